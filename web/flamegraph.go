package web

import (
	"container/heap"
	"slices"
	"strings"

	querierv1 "github.com/grafana/pyroscope/api/gen/proto/go/querier/v1"

	"github.com/spanflame/spanflame/store"
)

// Nodes of a flame graph when none are asked for, and at most. They are
// Pyroscope's limits (querier.max-flamegraph-nodes-default and -max).
const (
	defaultMaxNodes = 8192
	maxMaxNodes     = 1 << 20
)

const (
	rootName  = "total"
	otherName = "other"
)

func nodeLimit(asked int64) int {
	if asked <= 0 {
		return defaultMaxNodes
	}
	return int(min(asked, maxMaxNodes))
}

// minValue is the smallest total that a node must have to be among the n largest
// (all nodes of an equal total stay).
func minValue(totals func(yield func(int64)), n int) int64 {
	h := &minHeap{}
	totals(func(v int64) {
		if h.Len() < n {
			heap.Push(h, v)
		} else if v > (*h)[0] {
			(*h)[0] = v
			heap.Fix(h, 0)
		}
	})
	if h.Len() < n {
		return 0
	}
	return (*h)[0]
}

type minHeap []int64

func (h minHeap) Len() int           { return len(h) }
func (h minHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h minHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *minHeap) Push(x any)        { *h = append(*h, x.(int64)) }
func (h *minHeap) Pop() any {
	old := *h
	v := old[len(old)-1]
	*h = old[:len(old)-1]
	return v
}

// nameTable gives names their index. Index 0 is the root's.
type nameTable struct {
	names []string
	index map[string]int64
}

func newNameTable() *nameTable {
	return &nameTable{names: []string{rootName}, index: map[string]int64{rootName: 0}}
}

func (t *nameTable) of(name string) int64 {
	i, ok := t.index[name]
	if !ok {
		i = int64(len(t.names))
		t.index[name] = i
		t.names = append(t.names, name)
	}
	return i
}

// flameGraph writes a tree in Pyroscope's levels: for each level four numbers a
// node, from left to right: the distance from the end of the node before it, its
// total, its own value, the index of its name. Nodes that are not among the
// maxNodes largest are added up as "other" under their parent.
func flameGraph(t *store.Tree, maxNodes int) *querierv1.FlameGraph {
	least := minValue(func(yield func(int64)) {
		for _, n := range t.Nodes {
			yield(n.Total)
		}
	}, maxNodes)
	names := newNameTable()
	fg := &querierv1.FlameGraph{Total: t.Total()}
	type item struct {
		node  int32
		x     int64
		other int64 // not 0: no node of the tree but the sum of small ones
	}
	var children []int32
	for level := []item{{}}; len(level) > 0; {
		values := make([]int64, 0, 4*len(level))
		var next []item
		end := int64(0)
		for _, it := range level {
			if it.other != 0 {
				values = append(values, it.x-end, it.other, it.other, names.of(otherName))
				fg.MaxSelf = max(fg.MaxSelf, it.other)
				end = it.x + it.other
				continue
			}
			n := t.Nodes[it.node]
			name := int64(0)
			if it.node != 0 {
				name = names.of(t.Name(it.node))
			}
			values = append(values, it.x-end, n.Total, n.Self, name)
			fg.MaxSelf = max(fg.MaxSelf, n.Self)
			end = it.x + n.Total
			x, other := it.x+n.Self, int64(0)
			children = t.Children(it.node, children)
			for _, c := range children {
				total := t.Nodes[c].Total
				if total < least || total <= 0 {
					other += max(total, 0)
					continue
				}
				next = append(next, item{node: c, x: x})
				x += total
			}
			if other != 0 {
				next = append(next, item{x: x, other: other})
			}
		}
		fg.Levels = append(fg.Levels, &querierv1.Level{Values: values})
		level = next
	}
	fg.Names = names.names
	return fg
}

// diffGraph writes two trees as one: for each node seven numbers, distance, total
// and own value of the left, the same of the right, and the index of the name.
func diffGraph(l, r *store.Tree, maxNodes int) *querierv1.FlameGraphDiff {
	least := minValue(func(yield func(int64)) {
		for _, t := range []*store.Tree{l, r} {
			for _, n := range t.Nodes {
				yield(n.Total)
			}
		}
	}, maxNodes)
	names := newNameTable()
	fg := &querierv1.FlameGraphDiff{Total: l.Total() + r.Total(), LeftTicks: l.Total(), RightTicks: r.Total()}
	type side struct{ x, total, self int64 }
	type item struct {
		l, r int32 // nodes, -1 if that side has none
		name int64
		a, b side
	}
	var cl, cr []int32
	root := item{a: side{0, l.Total(), l.Nodes[0].Self}, b: side{0, r.Total(), r.Nodes[0].Self}}
	for level := []item{root}; len(level) > 0; {
		values := make([]int64, 0, 7*len(level))
		var next []item
		var endL, endR int64
		for _, it := range level {
			values = append(values, it.a.x-endL, it.a.total, it.a.self, it.b.x-endR, it.b.total, it.b.self, it.name)
			fg.MaxSelf = max(fg.MaxSelf, it.a.self, it.b.self)
			endL, endR = it.a.x+it.a.total, it.b.x+it.b.total
			cl, cr = cl[:0], cr[:0]
			if it.l >= 0 {
				cl = l.Children(it.l, cl)
			}
			if it.r >= 0 {
				cr = r.Children(it.r, cr)
			}
			xl, xr := it.a.x+it.a.self, it.b.x+it.b.self
			var otherL, otherR int64
			pairs(l, r, cl, cr, func(nl, nr int32, name string) {
				next1 := item{l: nl, r: nr, a: side{x: xl}, b: side{x: xr}}
				if nl >= 0 {
					next1.a.total, next1.a.self = l.Nodes[nl].Total, l.Nodes[nl].Self
				}
				if nr >= 0 {
					next1.b.total, next1.b.self = r.Nodes[nr].Total, r.Nodes[nr].Self
				}
				if big := max(next1.a.total, next1.b.total); big < least || big <= 0 {
					otherL += max(next1.a.total, 0)
					otherR += max(next1.b.total, 0)
					return
				}
				next1.name = names.of(name)
				next = append(next, next1)
				xl += next1.a.total
				xr += next1.b.total
			})
			if otherL != 0 || otherR != 0 {
				next = append(next, item{l: -1, r: -1, name: names.of(otherName), a: side{xl, otherL, otherL}, b: side{xr, otherR, otherR}})
			}
		}
		fg.Levels = append(fg.Levels, &querierv1.Level{Values: values})
		level = next
	}
	fg.Names = names.names
	return fg
}

// pairs goes through two lists of children, both by name, together.
func pairs(l, r *store.Tree, cl, cr []int32, f func(nl, nr int32, name string)) {
	for len(cl) > 0 || len(cr) > 0 {
		c := 0
		switch {
		case len(cl) == 0:
			c = 1
		case len(cr) == 0:
			c = -1
		default:
			c = strings.Compare(l.Name(cl[0]), r.Name(cr[0]))
		}
		switch {
		case c < 0:
			f(cl[0], -1, l.Name(cl[0]))
			cl = cl[1:]
		case c > 0:
			f(-1, cr[0], r.Name(cr[0]))
			cr = cr[1:]
		default:
			f(cl[0], cr[0], l.Name(cl[0]))
			cl, cr = cl[1:], cr[1:]
		}
	}
}

// intLevels is for the JSON of /pyroscope/render.
func intLevels(levels []*querierv1.Level) [][]int64 {
	out := make([][]int64, len(levels))
	for i, l := range levels {
		out[i] = slices.Clone(l.Values)
	}
	return out
}
