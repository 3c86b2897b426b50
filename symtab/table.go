package symtab

import (
	"fmt"
	"math"
	"sort"
)

// table holds disjoint ranges of addresses, sorted, each with a reference to its
// name. Addresses are 32-bit offsets in the executable segments of a file, put one
// behind the other (see layout). A range takes 10 bytes, and the index half a byte to one.
type table struct {
	starts  []uint32
	sizes   []uint16 // wideSize: see wide
	names   []uint32 // references of names
	wide    []wide   // ranges of wideSize bytes and more, sorted
	aliases []alias  // see aliasBit
	index   []uint32 // first range that starts in or after each block of 1<<shift bytes
	shift   uint8
}

type wide struct{ at, size uint32 }

const wideSize = math.MaxUint16

// span is a range with its name while a table is being made.
type span struct{ start, size, name uint32 }

// newTable packs spans, which must be sorted and disjoint.
func newTable(spans []span) *table {
	t := &table{
		starts: make([]uint32, len(spans)),
		sizes:  make([]uint16, len(spans)),
		names:  make([]uint32, len(spans)),
	}
	for i, s := range spans {
		t.starts[i], t.names[i] = s.start, s.name
		if s.size >= wideSize {
			t.sizes[i] = wideSize
			t.wide = append(t.wide, wide{uint32(i), s.size})
		} else {
			t.sizes[i] = uint16(s.size)
		}
	}
	if len(spans) > 0 {
		t.makeIndex()
	}
	return t
}

func (t *table) makeIndex() {
	last := t.starts[len(t.starts)-1]
	perBlock := 8
	if len(t.starts) < 1<<14 {
		perBlock = 4 // small tables can afford it
	}
	for last>>t.shift > uint32(len(t.starts)/perBlock) {
		t.shift++
	}
	t.index = make([]uint32, last>>t.shift+2)
	b := uint32(0)
	for i, s := range t.starts {
		for ; b <= s>>t.shift; b++ {
			t.index[b] = uint32(i)
		}
	}
	for ; b < uint32(len(t.index)); b++ {
		t.index[b] = uint32(len(t.starts))
	}
}

// find returns the range that covers at.
func (t *table) find(at uint32) (int, bool) {
	if len(t.starts) == 0 {
		return 0, false
	}
	lo, hi := uint32(0), uint32(len(t.starts))
	if b := at >> t.shift; uint64(b)+1 < uint64(len(t.index)) {
		lo, hi = t.index[b], t.index[b+1]
	} else {
		lo = hi
	}
	// The first range of [lo, hi) that starts behind at; the one before it is the
	// last that starts at or before it, and may lie in an earlier block. A block has
	// a few ranges on average: counting them off mispredicts one branch, halving
	// them three.
	for hi-lo > 24 {
		mid := (lo + hi) >> 1
		if t.starts[mid] <= at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for lo < hi && t.starts[lo] <= at {
		lo++
	}
	if lo == 0 {
		return 0, false
	}
	i := lo - 1
	size := uint32(t.sizes[i])
	if size == wideSize {
		size = t.wideSize(i)
	}
	return int(i), at-t.starts[i] < size
}

func (t *table) wideSize(i uint32) uint32 {
	k := sort.Search(len(t.wide), func(k int) bool { return t.wide[k].at >= i })
	return t.wide[k].size
}

// bytes is the memory that the table takes.
func (t *table) bytes() int64 {
	return int64(4*cap(t.starts) + 2*cap(t.sizes) + 4*cap(t.names) + 8*cap(t.wide) + 8*cap(t.aliases) + 4*cap(t.index))
}

func (t *table) len() int { return len(t.starts) }

// symbols counts the names, of which some are aliases of one range.
func (t *table) symbols() int { return len(t.starts) + len(t.aliases) }

// check verifies the invariants: sorted, disjoint, indexed. It is for tests.
func (t *table) check() error {
	for i := range t.starts {
		size := uint32(t.sizes[i])
		if size == wideSize {
			size = t.wideSize(uint32(i))
		}
		if size == 0 {
			return fmt.Errorf("range %d is empty", i)
		}
		if i+1 < len(t.starts) && uint64(t.starts[i])+uint64(size) > uint64(t.starts[i+1]) {
			return fmt.Errorf("range %d reaches into the next", i)
		}
	}
	return nil
}
