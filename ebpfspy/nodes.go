package ebpfspy

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// errNoNodes says that the budget of the tables is used up.
var errNoNodes = errors.New("no room for more unwind tables")

// nodes hands out the pages that tables and mappings are kept in. The kernel's memory
// for them grows by a segment at a time and does not shrink. Safe for concurrent use, but
// for close.
type nodes struct {
	outer  *ebpf.Map
	inner  *ebpf.MapSpec
	perSeg uint32
	max    uint32 // segments

	mu       sync.Mutex
	segments []*ebpf.Map
	free     []uint32 // ready to be used
	freed    []uint32 // programs that run now may still read these
	used     int
}

// minFreed is how many nodes are waited for at once: a wait takes some ten milliseconds.
const minFreed = 256

func newNodes(outer *ebpf.Map, inner *ebpf.MapSpec, maxSegments uint32) *nodes {
	return &nodes{outer: outer, inner: inner, perSeg: inner.MaxEntries, max: maxSegments}
}

// take returns n nodes, or errNoNodes and none.
func (n *nodes) take(count int) ([]uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.free) < count {
		if len(n.freed) >= minFreed && len(n.free)+len(n.freed) >= count || uint32(len(n.segments)) >= n.max {
			if len(n.freed) == 0 {
				return nil, errNoNodes
			}
			if err := n.settleLocked(); err != nil {
				return nil, err
			}
			continue
		}
		if err := n.grow(); err != nil {
			return nil, err
		}
	}
	ids := make([]uint32, count)
	copy(ids, n.free[len(n.free)-count:])
	n.free = n.free[:len(n.free)-count]
	n.used += count
	return ids, nil
}

// room is how many nodes can be taken.
func (n *nodes) room() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.free) + len(n.freed) + (int(n.max)-len(n.segments))*int(n.perSeg)
}

func (n *nodes) grow() error {
	m, err := ebpf.NewMap(n.inner)
	if err != nil {
		return fmt.Errorf("make a segment of unwind tables: %w", err)
	}
	seg := uint32(len(n.segments))
	if err := n.outer.Put(seg, m); err != nil {
		return errors.Join(fmt.Errorf("add a segment of unwind tables: %w", err), m.Close())
	}
	n.segments = append(n.segments, m)
	for i := n.perSeg; i > 0; i-- {
		if id := seg*n.perSeg + i - 1; id != 0 { // 0 is none
			n.free = append(n.free, id)
		}
	}
	return nil
}

// put writes a node: a *bpf.ProfileTableLeaf, a *bpf.ProfileTableInner or a
// *bpf.ProfileSpaceNode.
func (n *nodes) put(id uint32, value any) error {
	n.mu.Lock()
	seg := n.segments[id/n.perSeg]
	n.mu.Unlock()
	if err := seg.Put(id%n.perSeg, value); err != nil {
		return fmt.Errorf("write an unwind table: %w", err)
	}
	return nil
}

// give takes nodes back that nothing refers to any more.
func (n *nodes) give(ids []uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.freed = append(n.freed, ids...)
	n.used -= len(ids)
}

// settle waits until no program runs that may read what was given back.
func (n *nodes) settle() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.settleLocked()
}

func (n *nodes) settleLocked() error {
	if len(n.freed) == 0 {
		return nil
	}
	// As in counter.flip: the update of a map of maps returns after a grace period.
	if err := n.outer.Put(uint32(0), n.segments[0]); err != nil {
		return fmt.Errorf("wait for the readers of unwind tables: %w", err)
	}
	n.free = append(n.free, n.freed...)
	n.freed = n.freed[:0]
	return nil
}

// inUse is how many nodes are taken.
func (n *nodes) inUse() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.used
}

// memory is what the segments take, in bytes.
func (n *nodes) memory() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return int64(len(n.segments)) * int64(n.perSeg) * nodeBytes
}

func (n *nodes) close() error {
	var errs []error
	for _, m := range n.segments {
		errs = append(errs, m.Close())
	}
	n.segments = nil
	return errors.Join(errs...)
}
