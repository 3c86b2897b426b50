package push

import (
	"context"
	"time"

	"github.com/spanflame/spanflame/internal/ledger"
)

// resume begins or goes on with requests.
func (e *endpoint) resume() {
	e.mu.Lock()
	e.paused = false
	if !e.looping && e.ctx.Err() == nil {
		e.looping = true
		e.tasks.Add(1)
		go e.loop()
	}
	e.mu.Unlock()
	poke(e.wake)
}

// pause begins no more requests; those in flight go on.
func (e *endpoint) pause() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.paused = true
}

// refuse accepts no more profiles; later ones are counted as shutdown.
func (e *endpoint) refuse() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refusing = true
}

// config is the endpoint's present configuration.
func (e *endpoint) config() Endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.client.cfg
}

// swap sends under a new configuration from the next request on, at once: what
// held up the old one need not hold up the new.
func (e *endpoint) swap(c *client) {
	e.mu.Lock()
	old := e.client
	e.client = c
	old.retired = true
	idle := old.users == 0
	e.failures, e.limit = 0, e.opts.Workers
	e.gate, e.serverGate = time.Time{}, time.Time{}
	e.queue.hurry(time.Now())
	e.mu.Unlock()
	if idle {
		old.http.CloseIdleConnections()
	}
	poke(e.wake)
}

// drain sends what waits, at once and then at the usual pace, until nothing
// waits, ctx ends, or no attempt is possible before ctx ends. A server's
// Retry-After is obeyed even then.
func (e *endpoint) drain(ctx context.Context) {
	e.mu.Lock()
	e.gate = time.Time{}
	e.queue.hurry(time.Now())
	e.mu.Unlock()
	e.resume()
	for !e.drained(ctx) {
		select {
		case <-e.quiet:
		case <-ctx.Done():
			return
		}
	}
}

func (e *endpoint) drained(ctx context.Context) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.queue.len() == 0 {
		return true
	}
	at, _ := e.dueLocked()
	deadline, ok := ctx.Deadline()
	return ok && e.inflight == 0 && at.After(deadline)
}

// close ends everything and waits for it. It returns the samples that it had to
// count as shutdown.
func (e *endpoint) close() (lost uint64) {
	e.mu.Lock()
	e.refusing = true
	e.end() // under the lock: resume starts the loop under it, or sees the end
	e.mu.Unlock()
	e.tasks.Wait()

	e.mu.Lock()
	for e.queue.len() > 0 {
		it := e.queue.all.Front().Value.(*item)
		e.queue.remove(it)
		e.dropLocked(it, ledger.Shutdown)
		lost += it.p.Samples
	}
	e.gaugesLocked()
	c := e.client
	e.mu.Unlock()
	c.http.CloseIdleConnections()
	e.notes.flush()
	return lost
}
