package symtab

import "math/bits"

// candidate is a symbol that may name a range.
type candidate struct {
	start, size uint32
	name        uint32
	rank        uint32 // rankLocal … rankGlobal
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
// one, the one with fewer leading underscores, the one that came first.
type flattener struct {
	cands    []candidate // functions
	fallback []candidate // used where no function covers: no type, or no size
	keys     []uint64
	spare    []uint64
	out      []span
	open     []interval
	weak     []span

	// plainer says whether the first name is to be preferred of two symbols that are
	// otherwise equal. It may be nil.
	plainer func(a, b uint32) bool
}

// interval is a symbol that is not passed yet.
type interval struct {
	end  uint64
	name uint32
}

func (f *flattener) reset() {
	f.cands, f.fallback, f.plainer = f.cands[:0], f.fallback[:0], nil
}

// table makes the table of all candidates.
func (f *flattener) table() *table {
	f.out = f.flatten(f.cands, f.out[:0])
	if len(f.fallback) == 0 {
		return newTable(f.out)
	}
	f.weak = f.flatten(f.fallback, f.weak[:0])
	return newTable(fillGaps(f.out, f.weak))
}

// flatten appends disjoint ranges to out.
func (f *flattener) flatten(cands []candidate, out []span) []span {
	keys := f.sorted(cands)
	f.open = f.open[:0]
	pos := uint64(0)
	for i := 0; i < len(keys); {
		start := keys[i] >> 32
		out = f.advance(out, pos, start)
		pos = start
		j := i + 1
		for j < len(keys) && keys[j]>>32 == start {
			j++
		}
		f.pushGroup(cands, keys[i:j])
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
func (f *flattener) pushGroup(cands []candidate, keys []uint64) {
	if len(keys) == 1 {
		c := &cands[uint32(keys[0])]
		f.open = append(f.open, interval{uint64(c.start) + uint64(c.size), c.name})
		return
	}
	base := len(f.open)
	reach := uint64(0)
	used := 0
	for used < len(keys) {
		// Choose the best of those that reach further than all chosen so far.
		best := -1
		for k, key := range keys {
			c := &cands[uint32(key)]
			if uint64(c.start)+uint64(c.size) <= reach {
				continue
			}
			if best < 0 || f.better(c, &cands[uint32(keys[best])]) {
				best = k
			}
		}
		if best < 0 {
			break
		}
		c := &cands[uint32(keys[best])]
		reach = uint64(c.start) + uint64(c.size)
		f.open = append(f.open, interval{reach, c.name})
		if used++; used == maxPerAddress {
			break
		}
	}
	// The best was found first and belongs on top.
	for a, b := base, len(f.open)-1; a < b; a, b = a+1, b-1 {
		f.open[a], f.open[b] = f.open[b], f.open[a]
	}
}

// maxPerAddress bounds the symbols of different length at one address, so that a
// hostile table cannot make the choice quadratic.
const maxPerAddress = 8

// better says whether a, which comes after b in the file, is to be preferred.
func (f *flattener) better(a, b *candidate) bool {
	if a.rank != b.rank {
		return a.rank > b.rank
	}
	if a.size != b.size {
		return a.size > b.size
	}
	return f.plainer != nil && f.plainer(a.name, b.name)
}

// sorted returns start<<32|index of the candidates in order of start, those with
// the same start in the order of the candidates.
func (f *flattener) sorted(cands []candidate) []uint64 {
	f.keys = f.keys[:0]
	inOrder := true
	top := uint32(0)
	for i := range cands {
		s := cands[i].start
		inOrder = inOrder && s >= top
		top = max(top, s)
		f.keys = append(f.keys, uint64(s)<<32|uint64(i))
	}
	if inOrder {
		return f.keys
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
	return from
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
