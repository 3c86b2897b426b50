package symtab

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFlatten compares with a search through all symbols.
func TestFlatten(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var f flattener // one for all: what it keeps must not show
	for round := range 3000 {
		f.reset()
		const space = 120
		scale := uint32(1) << (round % 24)
		n := r.IntN(24)
		for i := range n {
			start := r.Uint32N(space)
			c := candidate{start: start * scale, size: (1 + r.Uint32N(space-start)) * scale, name: uint32(i + 1), rank: uint16(1 + r.IntN(3)), source: uint16(r.IntN(2))}
			if r.IntN(5) == 0 {
				f.fallback = append(f.fallback, c)
			} else {
				f.cands = append(f.cands, c)
			}
		}
		cands, fallback := slices.Clone(f.cands), slices.Clone(f.fallback)
		tab := f.table()
		if err := tab.check(); err != nil {
			t.Fatal(err)
		}
		for at := uint32(0); at < space; at++ {
			want := bestOf(cands, at*scale)
			if want == nil {
				want = bestOf(fallback, at*scale)
			}
			i, ok := tab.find(at * scale)
			var got []uint32
			if ok {
				got = namesOf(tab, tab.names[i])
			}
			if ok != (want != nil) || ok && !slices.ContainsFunc(want, func(n uint32) bool { return slices.Contains(got, n) }) {
				t.Fatalf("round %d, %d: %v %v, want one of %v\n%v\n%v", round, at, ok, got, want, cands, fallback)
			}
			for _, g := range got {
				if !slices.Contains(want, g) {
					t.Fatalf("round %d, %d: %v, want some of %v", round, at, got, want)
				}
			}
		}
	}
}

// namesOf are the names of a reference, aliases among them.
func namesOf(t *table, ref uint32) []uint32 {
	if ref&aliasBit == 0 {
		return []uint32{ref}
	}
	a := t.aliases[ref&^aliasBit]
	return append(namesOf(t, a.a), namesOf(t, a.b)...)
}

// bestOf are the names of the best symbols that cover at.
func bestOf(cands []candidate, at uint32) []uint32 {
	var best *candidate
	for i := range cands {
		c := &cands[i]
		if at < c.start || at-c.start >= c.size {
			continue
		}
		if best == nil || c.start > best.start || c.start == best.start && (c.rank > best.rank || c.rank == best.rank && c.size > best.size) {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	var names []uint32
	for _, c := range cands {
		if c.start == best.start && c.rank == best.rank && c.size == best.size && c.source == best.source {
			names = append(names, c.name)
		}
	}
	return names
}

// TestHostileTable: many symbols at one address or nested deeply take linear time.
func TestHostileTable(t *testing.T) {
	const n = 200_000
	for name, size := range map[string]func(i uint32) (start, size uint32){
		"one address":                  func(i uint32) (uint32, uint32) { return 7, 1 + i },
		"one address, ever shorter":    func(i uint32) (uint32, uint32) { return 7, n + 1 - i },
		"nested":                       func(i uint32) (uint32, uint32) { return i, 2*n - 2*i + 1 },
		"equal":                        func(uint32) (uint32, uint32) { return 7, 9 },
		"all to the end of the layout": func(i uint32) (uint32, uint32) { return i, 1<<32 - 1 - i },
	} {
		t.Run(name, func(t *testing.T) {
			var f flattener
			for i := range uint32(n) {
				start, size := size(i)
				f.cands = append(f.cands, candidate{start: start, size: size, name: i + 1, rank: uint16(i % 3)})
			}
			tab := f.table()
			if err := tab.check(); err != nil {
				t.Error(err)
			}
			if tab.len() > 2*n || len(tab.aliases) > n {
				t.Errorf("%d ranges, %d aliases", tab.len(), len(tab.aliases))
			}
		})
	}
}
