package symtab

import (
	"sync"
	"sync/atomic"
)

// frameCache keeps the frames of keys (a range of a table, or an address). Reading
// takes no lock. It forgets all it has when it is full, or when all caches together
// have passed their budget: what is in use then comes back at its own cost.
type frameCache struct {
	slots atomic.Pointer[[]atomic.Pointer[cachedFrames]] // a power of two, at most half full

	mu     sync.Mutex // guards the rest, and writing
	used   int
	size   int64
	closed bool
	budget *budget
}

// budget is shared by all frame caches of a Cache.
type budget struct {
	used  atomic.Int64
	limit atomic.Int64
}

type cachedFrames struct {
	key    uint64
	frames []Frame
}

const (
	minSlots     = 16
	maxSlots     = 1 << 17
	frameBytes   = 40 // a Frame
	entryBytes   = 48 // a cachedFrames, rounded up, with two slots
	hashMultiple = 0x9e3779b97f4a7c15
)

func (c *frameCache) get(key uint64) ([]Frame, bool) {
	p := c.slots.Load()
	if p == nil {
		return nil, false
	}
	slots := *p
	mask := uint64(len(slots) - 1)
	for i := key * hashMultiple >> 40; ; i++ {
		e := slots[i&mask].Load()
		if e == nil {
			return nil, false
		}
		if e.key == key {
			return e.frames, true
		}
	}
}

// put keeps frames and returns those to use: another goroutine may have been first.
// fresh is the memory of strings that only these frames hold.
func (c *frameCache) put(key uint64, frames []Frame, fresh int64) []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.get(key); ok {
		return old
	}
	if c.closed {
		return frames
	}
	cost := entryBytes + frameBytes*int64(len(frames)) + fresh
	if c.budget.used.Load()+cost > c.budget.limit.Load() || 2*c.used >= maxSlots {
		c.dropLocked()
	}
	p := c.slots.Load()
	if p == nil || 2*(c.used+1) > len(*p) {
		p = c.growLocked(p)
	}
	insert(*p, &cachedFrames{key, frames})
	c.used++
	c.size += cost
	c.budget.used.Add(cost)
	return frames
}

func (c *frameCache) growLocked(old *[]atomic.Pointer[cachedFrames]) *[]atomic.Pointer[cachedFrames] {
	n := minSlots
	if old != nil {
		n = 2 * len(*old)
	}
	slots := make([]atomic.Pointer[cachedFrames], n)
	if old != nil {
		for i := range *old {
			if e := (*old)[i].Load(); e != nil {
				insert(slots, e)
			}
		}
	}
	c.slots.Store(&slots)
	return &slots
}

func insert(slots []atomic.Pointer[cachedFrames], e *cachedFrames) {
	mask := uint64(len(slots) - 1)
	i := e.key * hashMultiple >> 40
	for slots[i&mask].Load() != nil {
		i++
	}
	slots[i&mask].Store(e)
}

// close forgets all frames, and keeps none from then on.
func (c *frameCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked()
	c.closed = true
}

func (c *frameCache) dropLocked() {
	c.slots.Store(nil)
	c.budget.used.Add(-c.size)
	c.used, c.size = 0, 0
}

func (c *frameCache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}
