package store

import (
	"encoding/binary"
	"path"
	"slices"
	"strings"
)

// unknownName is the name of a frame of which nothing is known.
const unknownName = "[unknown]"

// moduleName is the name of a frame of which only the file is known.
func moduleName(file string) string {
	if file == "" {
		return unknownName
	}
	return "[" + strings.Trim(path.Base(file), "[]") + "]"
}

// Tree is a merged profile by function name, as a flame graph shows it. Node 0 is
// the root; its name means nothing.
type Tree struct {
	Nodes []TreeNode
	Names []string
}

// TreeNode is one function under one caller. Values are in the unit of the
// profile type. Children are linked by index; 0 ends the list.
type TreeNode struct {
	Self, Total int64
	Name        uint32 // index into Names
	FirstChild  int32
	NextSibling int32
	children    int32
}

// Name is the name of a node.
func (t *Tree) Name(node int32) string { return t.Names[t.Nodes[node].Name] }

// Total is the sum of all samples.
func (t *Tree) Total() int64 { return t.Nodes[0].Total }

// Children returns the indices of a node's children, by name, in buf.
func (t *Tree) Children(node int32, buf []int32) []int32 {
	buf = buf[:0]
	for c := t.Nodes[node].FirstChild; c != 0; c = t.Nodes[c].NextSibling {
		buf = append(buf, c)
	}
	slices.SortFunc(buf, func(a, b int32) int { return strings.Compare(t.Name(a), t.Name(b)) })
	return buf
}

// maxTreeNodes bounds a tree's memory (32 bytes a node).
const maxTreeNodes = 1 << 19

// fewChildren is up to how many children a node's list is searched; those of
// wider nodes are also in a map.
const fewChildren = 16

type treeBuilder struct {
	Tree
	wide     map[treeEdge]int32
	callSite []string
	path     []uint32 // root first
	cut      bool
}

type treeEdge struct {
	parent int32
	name   uint32
}

// child returns the child of that name and makes it if there is none, 0 if there
// is no room.
func (t *treeBuilder) child(parent int32, name uint32) int32 {
	n := &t.Nodes[parent]
	if n.children > fewChildren {
		if c, ok := t.wide[treeEdge{parent, name}]; ok {
			return c
		}
	} else {
		for c := n.FirstChild; c != 0; c = t.Nodes[c].NextSibling {
			if t.Nodes[c].Name == name {
				return c
			}
		}
	}
	if len(t.Nodes) >= maxTreeNodes {
		return 0
	}
	c := int32(len(t.Nodes))
	next := n.FirstChild
	n.FirstChild = c
	n.children++
	if n.children > fewChildren {
		if t.wide == nil {
			t.wide = map[treeEdge]int32{}
		}
		if n.children == fewChildren+1 {
			for s := next; s != 0; s = t.Nodes[s].NextSibling {
				t.wide[treeEdge{parent, t.Nodes[s].Name}] = s
			}
		}
		t.wide[treeEdge{parent, name}] = c
	}
	t.Nodes = append(t.Nodes, TreeNode{Name: name, NextSibling: next})
	return c
}

// newTreeBuilder begins a tree. callSite, if not empty, keeps only stacks that
// begin (at the root) with these names.
func newTreeBuilder(callSite []string) *treeBuilder {
	return &treeBuilder{Tree: Tree{Nodes: make([]TreeNode, 1, 1024)}, callSite: callSite}
}

// addToTree adds the stack in m.key. If the tree has no room for it, it is cut at
// the leaf side, and the tree says that it is cut; the totals stay right.
func (m *merger) addToTree(v int64) error {
	t := m.tree
	t.path = t.path[:0]
	for j := len(m.key) - 4; j >= 4; j -= 4 {
		loc := m.locTab[binary.LittleEndian.Uint32(m.key[j:])]
		for k := len(loc) - 4; k >= 0; k -= 4 {
			t.path = append(t.path, u32(loc[k:]))
		}
	}
	if !m.beginsWith(t.path, t.callSite) {
		return nil
	}
	if m.size > maxMergedBytes {
		return errMergeFull
	}
	node := int32(0)
	t.Nodes[0].Total = satAdd(t.Nodes[0].Total, v)
	for _, name := range t.path {
		c := t.child(node, name)
		if c == 0 {
			t.cut = true
			break
		}
		node = c
		t.Nodes[node].Total = satAdd(t.Nodes[node].Total, v)
	}
	t.Nodes[node].Self = satAdd(t.Nodes[node].Self, v)
	return nil
}

func (m *merger) beginsWith(path []uint32, callSite []string) bool {
	if len(path) < len(callSite) {
		return false
	}
	for i, s := range callSite {
		if name := m.stringTab[path[i]]; name != s && (name != "" || s != unknownName) {
			return false
		}
	}
	return true
}

// finishTree returns the tree with its names.
func (m *merger) finishTree() *Tree {
	m.tree.Names = m.stringTab
	m.tree.Names[0] = unknownName
	return &m.tree.Tree
}
