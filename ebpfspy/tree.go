package ebpfspy

import (
	"debug/elf"
	"fmt"
	"slices"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/unwind"
)

// row is a row of a table as the kernel has it.
type row struct {
	offset uint32 // in the file, bytes
	rule   uint16
}

// Shapes of nodes: LEAF_ROWS, LEAF_SPAN, INNER_ENTRIES and TABLE_LEVELS of
// c/spanflame.h.
const (
	leafRows     = len(bpf.ProfileTableLeaf{}.Offset)
	leafSpan     = 0xfffe
	innerEntries = len(bpf.ProfileTableInner{}.Start)
	tableLevels  = 2
)

// tree is a table in nodes.
type tree struct {
	root, levels, base uint32
	generation         uint32 // in the order of loading
	nodes              []uint32
}

// child is a node with what it begins at.
type child struct{ start, id uint32 }

// leavesOf cuts rows into leaves and returns where each begins.
func leavesOf(rows []row) []int {
	var cuts []int
	for i := 0; i < len(rows); {
		cuts = append(cuts, i)
		end := min(i+leafRows, len(rows))
		for end > i+1 && rows[end-1].offset-rows[i].offset > leafSpan {
			// Sparse code: search for the first that is too far.
			j, _ := slices.BinarySearchFunc(rows[i:end], rows[i].offset+leafSpan+1, func(r row, at uint32) int {
				if r.offset < at {
					return -1
				}
				return 1
			})
			end = i + max(j, 1)
		}
		i = end
	}
	return cuts
}

// nodesFor is the number of nodes that a table with so many leaves takes.
func nodesFor(leaves int) int {
	n := leaves
	for level := leaves; level > 1; {
		level = (level + innerEntries - 1) / innerEntries
		n += level
	}
	return n
}

// plant writes rows, sorted by offset, as a tree. There is at least one.
func (n *nodes) plant(rows []row) (t tree, err error) {
	cuts := leavesOf(rows)
	ids, err := n.take(nodesFor(len(cuts)))
	if err != nil {
		return t, err
	}
	defer func() {
		if err != nil {
			n.give(ids)
		}
	}()
	t.nodes = ids
	next := ids
	level := make([]child, 0, len(cuts))
	var leaf bpf.ProfileTableLeaf
	for i, from := range cuts {
		to := len(rows)
		if i+1 < len(cuts) {
			to = cuts[i+1]
		}
		base := rows[from].offset
		for j := range leaf.Offset {
			leaf.Offset[j], leaf.Rule[j] = 0xffff, 0
		}
		for j, r := range rows[from:to] {
			leaf.Offset[j], leaf.Rule[j] = uint16(r.offset-base), r.rule
		}
		if err := n.put(next[0], &leaf); err != nil {
			return t, err
		}
		level = append(level, child{base, next[0]})
		next = next[1:]
	}
	t.base = level[0].start
	for len(level) > 1 {
		if t.levels++; t.levels > tableLevels {
			return t, fmt.Errorf("%d rows: %w", len(rows), unwind.ErrTooMany)
		}
		var up []child
		var inner bpf.ProfileTableInner
		for part := range slices.Chunk(level, innerEntries) {
			for j := range inner.Start {
				inner.Start[j], inner.Child[j] = 0xffffffff, 0
			}
			for j, c := range part {
				inner.Start[j], inner.Child[j] = c.start, c.id
			}
			if err := n.put(next[0], &inner); err != nil {
				return t, err
			}
			up = append(up, child{part[0].start, next[0]})
			next = next[1:]
		}
		level = up
	}
	t.root = level[0].id
	return t, nil
}

// rowsOf places the rows of a table at their offsets in the file. number gives each
// rule its number; gap is what holds where the table says nothing.
func rowsOf(f *elffile.File, t *unwind.Table, number func(unwind.Rule) uint16, gap uint16) []row {
	numbers := make([]uint16, len(t.Rules))
	for i, r := range t.Rules {
		if numbers[i] = gap; r.CFA != unwind.CFANone {
			numbers[i] = number(r)
		}
	}
	var rows []row
	add := func(off uint64, rule uint16) {
		if off > 0xffffffff {
			return
		}
		if n := len(rows); n > 0 && rows[n-1].offset == uint32(off) {
			rows[n-1].rule = rule
			return
		} else if n > 0 && rows[n-1].rule == rule && rows[n-1].offset < uint32(off) {
			return
		}
		rows = append(rows, row{uint32(off), rule})
	}
	for _, seg := range f.Loads {
		if seg.Flags&elf.PF_X == 0 || seg.FileLen == 0 {
			continue
		}
		lo, _ := slices.BinarySearchFunc(t.Rows, seg.Addr, func(r unwind.Row, a unwind.VirtAddr) int {
			if r.Addr < a {
				return -1
			}
			return 1
		})
		end := seg.Addr + unwind.VirtAddr(seg.FileLen)
		rows = slices.Grow(rows, len(t.Rows)-lo+2)
		if lo == len(t.Rows) || t.Rows[lo].Addr > seg.Addr {
			add(uint64(seg.Off), gap)
		}
		for ; lo < len(t.Rows) && t.Rows[lo].Addr < end; lo++ {
			add(uint64(seg.Off)+uint64(t.Rows[lo].Addr-seg.Addr), numbers[t.Rows[lo].Rule])
		}
		add(uint64(seg.Off)+seg.FileLen, gap)
	}
	if !slices.IsSortedFunc(rows, byOffset) {
		slices.SortStableFunc(rows, byOffset)
	}
	return rows
}

// overlay puts rows in the place of those of another table, up to end.
func overlay(rows, over []row, end uint32) []row {
	lo, _ := slices.BinarySearchFunc(rows, over[0], byOffset)
	hi, exact := slices.BinarySearchFunc(rows, row{offset: end}, byOffset)
	out := slices.Concat(rows[:lo], over)
	if before := rows[:hi]; !exact && len(before) > 0 {
		out = append(out, row{end, before[len(before)-1].rule})
	}
	return append(out, rows[hi:]...)
}

// fill puts a rule where a range has none, from begin to end.
func fill(rows []row, begin, end uint32, rule uint16) []row {
	out := make([]row, 0, len(rows)+4)
	last := uint16(ruleNone)
	put := func(at uint32, r uint16) {
		if n := len(out); n > 0 && out[n-1].offset == at {
			out[n-1].rule = r
		} else {
			out = append(out, row{at, r})
		}
	}
	entered, left := false, false
	border := func(at uint32) {
		if !entered && at >= begin {
			entered = true
			if last == ruleNone {
				put(begin, rule)
			}
		}
		if !left && at >= end {
			left = true
			put(end, last)
		}
	}
	for _, r := range rows {
		border(r.offset)
		last = r.rule
		if r.rule == ruleNone && r.offset >= begin && r.offset < end {
			put(r.offset, rule)
		} else {
			put(r.offset, r.rule)
		}
	}
	border(0xffffffff)
	return out
}

func byOffset(a, b row) int {
	switch {
	case a.offset < b.offset:
		return -1
	case a.offset > b.offset:
		return 1
	}
	return 0
}
