package ebpfspy

import (
	"slices"
	"sort"
)

// maxMappings bounds the executable mappings that are kept of one process. A
// stock JVM has about 40; a process beyond the bound loses the names of the rest.
const maxMappings = 8192

// mapping is one executable range of a process's memory.
type mapping struct {
	start, end uint64 // addresses, end exclusive
	offset     uint64 // of start in the file, bytes
	file       *file  // nil: anonymous memory
}

// addrRange is a range of addresses that a round saw mapped twice, differently.
type addrRange struct{ start, end, round uint64 }

// mappings are the executable mappings of a program, sorted by address. They are
// shared, after a fork and by a round that reads them: a change makes a copy.
type mappings struct {
	list     []mapping
	replaced []addrRange // ranges whose content changed, with the round
}

// with returns m with one more mapping, which covers what it overlaps.
func (m *mappings) with(add mapping, round uint64) *mappings {
	if add.end <= add.start {
		return m
	}
	out := &mappings{list: make([]mapping, 0, len(m.list)+2)}
	for _, r := range m.replaced {
		if r.round >= round {
			out.replaced = append(out.replaced, r)
		}
	}
	for _, old := range m.list {
		if old.end <= add.start || old.start >= add.end {
			out.list = append(out.list, old)
			continue
		}
		if old.file != add.file || old.start-old.offset != add.start-add.offset {
			lo, hi := max(old.start, add.start), min(old.end, add.end)
			out.replaced = append(out.replaced, addrRange{lo, hi, round})
		}
		if old.start < add.start {
			left := old
			left.end = add.start
			out.list = append(out.list, left)
		}
		if old.end > add.end {
			right := old
			right.start = add.end
			right.offset += add.end - old.start
			out.list = append(out.list, right)
		}
	}
	if len(out.list) >= maxMappings {
		return m
	}
	at, _ := slices.BinarySearchFunc(out.list, add.start, func(e mapping, start uint64) int {
		switch {
		case e.start < start:
			return -1
		case e.start > start:
			return 1
		}
		return 0
	})
	out.list = slices.Insert(out.list, at, add)
	if len(out.replaced) > maxMappings {
		out.replaced = out.replaced[len(out.replaced)-maxMappings:]
	}
	return out
}

// find returns the mapping that covers an address. ambiguous says that in the
// given round the address was covered by something else as well.
func (m *mappings) find(addr, round uint64) (found *mapping, ambiguous bool) {
	i := sort.Search(len(m.list), func(i int) bool { return m.list[i].end > addr })
	if i == len(m.list) || m.list[i].start > addr {
		return nil, false
	}
	for _, r := range m.replaced {
		if r.round == round && addr >= r.start && addr < r.end {
			return &m.list[i], true
		}
	}
	return &m.list[i], false
}
