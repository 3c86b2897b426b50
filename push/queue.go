package push

import (
	"container/heap"
	"container/list"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/profile"
)

// itemOverhead is what an item costs beside its profile's bytes, roughly. It
// also bounds how many tiny profiles a queue can hold.
const itemOverhead = 512

// item is a profile on its way to one endpoint.
type item struct {
	p        *profile.Profile
	id       string    // the same in each attempt, so that a server can find doubles
	size     int64     // bytes it counts as
	deadline time.Time // too old from then on

	readyAt   time.Time // not to be sent before
	failed    int       // attempts that are to be repeated
	badServed int       // of these, answers that are repeated maxBadAnswers times at most

	seq   uint64        // order of arrival
	elem  *list.Element // in queue.all
	index int           // in queue.ready, or -1 while in flight
}

// queue holds the items of an endpoint: all of them in order of arrival, and
// those not in flight also by the time at which they may be sent. It is not safe
// for concurrent use.
type queue struct {
	all     list.List // of *item
	ready   readyHeap
	bytes   int64
	samples uint64
	seq     uint64
	expiry  time.Time // no item is too old before it; zero: unknown or empty
}

func newItem(p *profile.Profile, now time.Time, maxAge time.Duration) *item {
	size := int64(len(p.Pprof)) + itemOverhead
	p.Labels.Range(func(l labels.Label) { size += int64(len(l.Name) + len(l.Value)) })
	from := now
	if !p.Start.IsZero() && p.Start.Before(now) {
		from = p.Start
	}
	return &item{p: p, size: size, deadline: from.Add(maxAge), readyAt: now, index: -1}
}

func (q *queue) len() int { return q.all.Len() }

func (q *queue) push(it *item) {
	it.id = uuid.NewString()
	q.seq++
	it.seq = q.seq
	it.elem = q.all.PushBack(it)
	q.bytes += it.size
	q.samples += it.p.Samples
	if q.expiry.IsZero() || it.deadline.Before(q.expiry) {
		q.expiry = it.deadline
	}
	heap.Push(&q.ready, it)
}

// remove takes the item out, in flight or not.
func (q *queue) remove(it *item) {
	q.all.Remove(it.elem)
	q.bytes -= it.size
	q.samples -= it.p.Samples
	if it.index >= 0 {
		heap.Remove(&q.ready, it.index)
	}
	if q.all.Len() == 0 {
		q.expiry = time.Time{}
	}
}

// take returns the next item that may be sent at now, and marks it as in flight.
func (q *queue) take(now time.Time) *item {
	if len(q.ready) == 0 || q.ready[0].readyAt.After(now) {
		return nil
	}
	return heap.Pop(&q.ready).(*item)
}

// putBack ends an item's flight; it may be sent again from readyAt on.
func (q *queue) putBack(it *item, readyAt time.Time) {
	it.readyAt = readyAt
	heap.Push(&q.ready, it)
	if q.expiry.IsZero() || it.deadline.Before(q.expiry) { // expired passes over what is in flight
		q.expiry = it.deadline
	}
}

// nextReady is when the first item not in flight may be sent.
func (q *queue) nextReady() (time.Time, bool) {
	if len(q.ready) == 0 {
		return time.Time{}, false
	}
	return q.ready[0].readyAt, true
}

// hurry lets every item that waits be sent at now.
func (q *queue) hurry(now time.Time) {
	for _, it := range q.ready {
		if it.readyAt.After(now) {
			it.readyAt = now
		}
	}
	heap.Init(&q.ready)
}

// oldest is the item that arrived first of those not in flight.
func (q *queue) oldest() *item {
	for e := q.all.Front(); e != nil; e = e.Next() {
		if it := e.Value.(*item); it.index >= 0 {
			return it
		}
	}
	return nil
}

// expired removes and returns the items not in flight that are too old at now.
func (q *queue) expired(now time.Time) []*item {
	if q.expiry.IsZero() || now.Before(q.expiry) {
		return nil
	}
	var old []*item
	next := time.Time{}
	for e := q.all.Front(); e != nil; {
		it := e.Value.(*item)
		e = e.Next()
		switch {
		case it.index < 0: // the end of its flight decides
		case !now.Before(it.deadline):
			q.remove(it)
			old = append(old, it)
		case next.IsZero() || it.deadline.Before(next):
			next = it.deadline
		}
	}
	q.expiry = next
	return old
}

// readyHeap orders by readyAt, then by arrival (container/heap).
type readyHeap []*item

func (h readyHeap) Len() int { return len(h) }
func (h readyHeap) Less(i, j int) bool {
	if !h[i].readyAt.Equal(h[j].readyAt) {
		return h[i].readyAt.Before(h[j].readyAt)
	}
	return h[i].seq < h[j].seq
}
func (h readyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *readyHeap) Push(x any) {
	it := x.(*item)
	it.index = len(*h)
	*h = append(*h, it)
}
func (h *readyHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	it.index = -1
	return it
}
