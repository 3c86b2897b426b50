package symtab

import (
	"math/bits"
	"slices"
)

// candidate is a symbol that may name a range.
type candidate struct {
	start, size uint32
	name        uint32
	rank        uint16 // rankZero … rankGlobal
	source      uint16 // number of the symbol table
}

const (
	rankZero = iota // a function without size, or a symbol without type
	rankLocal
	rankWeak
	rankGlobal
)

// flattener turns symbols, which may nest, overlap and bear the same address, into
// disjoint ranges. It is used again and again, so as not to take new memory for
// each table.
//
// Where symbols overlap, the one that starts closest before an address names it. Of
// those that start at the same address: global before weak before local, the larger
// one, the one of the table that was read first. Those of one table that are equal in
// all this are aliases: which name is used is decided when it is first read.
type flattener struct {
	cands    []candidate // functions
	fallback []candidate // used where no function covers: no type, or no size
	keys     []uint64
	spare    []uint64
	ordered  []candidate
	out      []span
	weak     []span
	open     []interval
	aliases  []alias
}

// alias is a choice of two names, each a name or again a choice.
type alias struct{ a, b uint32 }

const (
	// aliasBit marks a reference to a choice. String tables are kept below it.
	aliasBit = 1 << 31
	// maxAliases bounds the names that an address can be given.
	maxAliases = 8
)

// interval is a symbol that is not passed yet.
type interval struct {
	end  uint64
	name uint32
}

func (f *flattener) reset() {
	f.cands, f.fallback, f.aliases = f.cands[:0], f.fallback[:0], f.aliases[:0]
}

// table makes the table of all candidates.
func (f *flattener) table() *table {
	f.out = f.flatten(f.cands, f.out[:0])
	spans := f.out
	if len(f.fallback) > 0 {
		f.weak = f.flatten(f.fallback, f.weak[:0])
		spans = fillGaps(f.out, f.weak)
	}
	t := newTable(spans)
	t.aliases = append([]alias(nil), f.aliases...)
	return t
}

// flatten appends disjoint ranges to out.
func (f *flattener) flatten(cands []candidate, out []span) []span {
	cands = f.sorted(cands)
	out = slices.Grow(out, len(cands)*3/4)
	f.open = f.open[:0]
	pos := uint64(0)
	for i := 0; i < len(cands); {
		start := cands[i].start
		out = f.advance(out, pos, uint64(start))
		pos = uint64(start)
		j := i + 1
		for j < len(cands) && cands[j].start == start {
			j++
		}
		f.pushGroup(cands[i:j])
		i = j
	}
	return f.advance(out, pos, 1<<32)
}

// advance emits what the open symbols cover of [pos, to).
func (f *flattener) advance(out []span, pos, to uint64) []span {
	for pos < to && len(f.open) > 0 {
		top := f.open[len(f.open)-1]
		if top.end <= pos {
			f.open = f.open[:len(f.open)-1]
			continue
		}
		end := min(top.end, to)
		if n := len(out) - 1; n >= 0 && out[n].name == top.name && uint64(out[n].start)+uint64(out[n].size) == pos {
			out[n].size += uint32(end - pos)
		} else {
			out = append(out, span{uint32(pos), uint32(end - pos), top.name})
		}
		pos = end
	}
	return out
}

// pushGroup opens the symbols that start at one address, the best on top. One that
// is worse and no longer than a better one would never be seen.
func (f *flattener) pushGroup(group []candidate) {
	if len(group) == 1 {
		c := &group[0]
		f.open = append(f.open, interval{uint64(c.start) + uint64(c.size), c.name})
		return
	}
	base := len(f.open)
	reach := uint32(0) // the size of the longest that was chosen
	for len(f.open)-base < maxPerAddress {
		// Choose the best of those that reach further than all chosen so far.
		best := (*candidate)(nil)
		name, aliases := uint32(0), 0
		for k := range group {
			c := &group[k]
			switch {
			case c.size <= reach:
			case best == nil || c.rank > best.rank || c.rank == best.rank && c.size > best.size:
				best, name, aliases = c, c.name, 1
			case c.rank == best.rank && c.size == best.size && c.source == best.source && aliases < maxAliases:
				f.aliases = append(f.aliases, alias{name, c.name})
				name = aliasBit | uint32(len(f.aliases)-1)
				aliases++
			}
		}
		if best == nil {
			break
		}
		reach = best.size
		f.open = append(f.open, interval{uint64(best.start) + uint64(reach), name})
	}
	// The best was found first and belongs on top.
	for a, b := base, len(f.open)-1; a < b; a, b = a+1, b-1 {
		f.open[a], f.open[b] = f.open[b], f.open[a]
	}
}

// maxPerAddress bounds the symbols of different length at one address, so that a
// hostile table cannot make the choice quadratic.
const maxPerAddress = 8

// sorted returns the candidates in order of their start; those with the same start
// keep their order.
func (f *flattener) sorted(cands []candidate) []candidate {
	f.keys = slices.Grow(f.keys[:0], len(cands))
	inOrder := true
	top := uint32(0)
	for i := range cands {
		s := cands[i].start
		inOrder = inOrder && s >= top
		top = max(top, s)
		f.keys = append(f.keys, uint64(s)<<32|uint64(i))
	}
	if inOrder {
		return cands
	}
	if cap(f.spare) < len(f.keys) {
		f.spare = make([]uint64, len(f.keys), cap(f.keys))
	}
	from, to := f.keys, f.spare[:len(f.keys)]
	passes := (bits.Len32(top) + radixBits - 1) / radixBits
	for p := range passes {
		radixPass(from, to, 32+uint(p)*radixBits)
		from, to = to, from
	}
	f.keys, f.spare = from, to
	// Gathered in a loop of its own, the reads from all over memory overlap.
	if cap(f.ordered) < len(from) {
		f.ordered = make([]candidate, len(from))
	}
	f.ordered = f.ordered[:len(from)]
	for i, k := range from {
		f.ordered[i] = cands[uint32(k)]
	}
	return f.ordered
}

const radixBits = 11

// radixPass sorts by radixBits bits from shift on, keeping the order of equals.
func radixPass(from, to []uint64, shift uint) {
	var at [1 << radixBits]uint32
	for _, k := range from {
		at[k>>shift&(1<<radixBits-1)]++
	}
	sum := uint32(0)
	for i, n := range at {
		at[i] = sum
		sum += n
	}
	for _, k := range from {
		d := k >> shift & (1<<radixBits - 1)
		to[at[d]] = k
		at[d]++
	}
}

// fillGaps adds to the spans of a what those of b cover and they do not.
func fillGaps(a, b []span) []span {
	out := make([]span, 0, len(a)+len(b))
	i := 0
	for _, s := range b {
		pos, end := uint64(s.start), uint64(s.start)+uint64(s.size)
		for pos < end {
			for i < len(a) && uint64(a[i].start)+uint64(a[i].size) <= pos {
				out = append(out, a[i])
				i++
			}
			if i == len(a) || uint64(a[i].start) >= end {
				out = append(out, span{uint32(pos), uint32(end - pos), s.name})
				break
			}
			if uint64(a[i].start) > pos {
				out = append(out, span{uint32(pos), a[i].start - uint32(pos), s.name})
			}
			pos = uint64(a[i].start) + uint64(a[i].size)
		}
	}
	return append(out, a[i:]...)
}
