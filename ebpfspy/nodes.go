package ebpfspy

import (
	"context"
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

	slow sync.Mutex // held while the kernel is waited for; taken before mu

	mu       sync.Mutex
	segments []*ebpf.Map
	free     []uint32 // ready to be used
	freed    []uint32 // programs that run now may still read these
	settling int      // that settle is waiting for
	used     int

	low chan struct{} // there are less than reserve
}

// minFreed is how many nodes are waited for at once: a wait takes some ten milliseconds.
const minFreed = 256

// reserve is how many nodes are kept ready: what the thread that answers the kernel takes
// while a wait is under way.
const reserve = 16

func newNodes(outer *ebpf.Map, inner *ebpf.MapSpec, maxSegments uint32) *nodes {
	return &nodes{outer: outer, inner: inner, perSeg: inner.MaxEntries, max: maxSegments, low: make(chan struct{}, 1)}
}

// take returns n nodes, or errNoNodes and none.
func (n *nodes) take(count int) ([]uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.free) < count {
		n.mu.Unlock()
		err := n.more(count)
		n.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	ids := make([]uint32, count)
	copy(ids, n.free[len(n.free)-count:])
	n.free = n.free[:len(n.free)-count]
	n.used += count
	if len(n.free) < reserve {
		nudge(n.low)
	}
	return ids, nil
}

// replenish keeps a reserve of free nodes, until ctx ends: others then need not wait for
// the kernel, which takes some ten milliseconds.
func (n *nodes) replenish(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.low:
			_ = n.more(reserve) // who needs a node says that there is none
		}
	}
}

// more sees to it that there are more free nodes if there are less than want.
func (n *nodes) more(want int) error {
	n.slow.Lock()
	defer n.slow.Unlock()
	n.mu.Lock()
	free, freed, segments := len(n.free), len(n.freed), len(n.segments)
	n.mu.Unlock()
	full := uint32(segments) >= n.max
	switch {
	case free >= want:
		return nil // somebody else was faster
	case full && freed == 0:
		return errNoNodes
	case full || freed >= minFreed && free+freed >= want:
		return n.settleSlow()
	}
	return n.grow(uint32(segments))
}

// room is how many nodes can be taken.
func (n *nodes) room() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.free) + len(n.freed) + n.settling + (int(n.max)-len(n.segments))*int(n.perSeg)
}

// grow adds a segment. The caller holds slow: the kernel waits for its programs when a map
// of maps is changed.
func (n *nodes) grow(seg uint32) error {
	m, err := ebpf.NewMap(n.inner)
	if err != nil {
		return fmt.Errorf("make a segment of unwind tables: %w", err)
	}
	if err := n.outer.Put(seg, m); err != nil {
		return errors.Join(fmt.Errorf("add a segment of unwind tables: %w", err), m.Close())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
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
	n.slow.Lock()
	defer n.slow.Unlock()
	return n.settleSlow()
}

// settleSlow is settle; the caller holds slow.
func (n *nodes) settleSlow() error {
	n.mu.Lock()
	freed := n.freed
	if len(freed) == 0 {
		n.mu.Unlock()
		return nil
	}
	n.freed, n.settling = nil, len(freed)
	first := n.segments[0]
	n.mu.Unlock()
	// As in counter.flip: the update of a map of maps returns after a grace period.
	err := n.outer.Put(uint32(0), first)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settling = 0
	if err != nil {
		n.freed = append(n.freed, freed...)
		return fmt.Errorf("wait for the readers of unwind tables: %w", err)
	}
	n.free = append(n.free, freed...)
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
	n.segments, n.freed = nil, nil
	return errors.Join(errs...)
}
