package push

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-kit/log"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

// endpoint is the queue of one endpoint and what drives it: a loop that begins
// requests and drops what is too old, and up to limit workers. The lock is never
// held over I/O, and each change of the queue is entered into the account under
// it.
type endpoint struct {
	name    string
	opts    Options
	acct    *ledger.Account
	metrics *metrics
	notes   notes

	wake  chan struct{} // capacity 1: the loop has something to do
	quiet chan struct{} // capacity 1: drain has something to look at
	ctx   context.Context
	end   context.CancelFunc // ends requests and loop
	tasks sync.WaitGroup     // the loop and the workers

	mu       sync.Mutex
	client   *client // guarded by mu, as all that follows
	queue    queue
	looping  bool // the loop was started
	paused   bool // no request is to be begun
	refusing bool // no profile is accepted any more
	inflight int
	limit    int // how many may be in flight: halved by a failure, one more for each success

	failures    int       // of the endpoint, one after the other
	failedAt    time.Time // start of the present back-off
	gate        time.Time // back-off: no request is begun before
	serverGate  time.Time // the same, by the server's Retry-After
	lastSuccess time.Time
	lastError   string
	lastErrorAt time.Time
}

func newEndpoint(p *Pusher, c *client) *endpoint {
	ctx, end := context.WithCancel(context.Background())
	e := &endpoint{
		name:    c.cfg.Name,
		opts:    p.opts,
		acct:    p.led.Sink(c.cfg.Name),
		metrics: p.metrics,
		wake:    make(chan struct{}, 1),
		quiet:   make(chan struct{}, 1),
		ctx:     ctx,
		end:     end,
		client:  c,
		paused:  true,
		limit:   p.opts.Workers,
	}
	e.notes.logger = log.With(p.logger, "component", "push", "endpoint", e.name)
	return e
}

// enqueue accepts profiles into the account, and drops what finds no room.
func (e *endpoint) enqueue(profiles []*profile.Profile) {
	now := time.Now()
	e.mu.Lock()
	for _, p := range profiles {
		if p == nil {
			continue
		}
		e.acct.In(p.Samples)
		if e.refusing {
			e.acct.Drop(ledger.Shutdown, p.Samples)
			continue
		}
		it := newItem(p, now, e.opts.QueueMaxAge)
		if !now.Before(it.deadline) {
			e.dropLocked(it, ledger.TooOld)
			continue
		}
		for e.queue.bytes+it.size > e.opts.QueueMaxBytes {
			old := e.queue.oldest()
			if old == nil || it.size > e.opts.QueueMaxBytes {
				break
			}
			e.queue.remove(old)
			e.dropLocked(old, ledger.QueueFull)
		}
		if e.queue.bytes+it.size > e.opts.QueueMaxBytes {
			e.dropLocked(it, ledger.QueueFull)
			continue
		}
		e.queue.push(it)
	}
	e.gaugesLocked()
	e.mu.Unlock()
	poke(e.wake)
}

// dropLocked enters the loss of an item that is not, or no longer, in the queue.
func (e *endpoint) dropLocked(it *item, r ledger.Reason) {
	e.acct.Drop(r, it.p.Samples)
	if r == ledger.QueueFull || r == ledger.TooOld {
		e.notes.warn(string(r), "dropped a profile that could not be delivered in time", "reason", r, "samples", it.p.Samples, "last_err", e.lastError)
	}
}

// loop runs until the endpoint ends.
func (e *endpoint) loop() {
	defer e.tasks.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := e.dispatch(time.Now())
		e.notes.flush()
		timer.Reset(wait)
		select {
		case <-e.wake:
		case <-timer.C:
		case <-e.ctx.Done():
			return
		}
	}
}

// idleWait is how long the loop sleeps when nothing is due; whatever becomes due
// earlier wakes it.
const idleWait = time.Minute

// dispatch drops what is too old, begins the requests that are due and returns
// how long nothing else will be.
func (e *endpoint) dispatch(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, it := range e.queue.expired(now) {
		e.dropLocked(it, ledger.TooOld)
	}
	for {
		it := e.nextLocked(now)
		if it == nil {
			break
		}
		e.tasks.Add(1)
		go e.work(it, e.client)
	}
	e.gaugesLocked()
	poke(e.quiet)

	wait := idleWait
	if x := e.queue.expiry; !x.IsZero() {
		wait = min(wait, x.Sub(now))
	}
	if at, ok := e.dueLocked(); ok && !e.paused && e.inflight < e.limit {
		wait = min(wait, at.Sub(now))
	}
	return max(wait, time.Millisecond)
}

// nextLocked takes the next item that may be sent, if any, and counts it and its
// client's use as in flight.
func (e *endpoint) nextLocked(now time.Time) *item {
	if e.paused || e.ctx.Err() != nil || e.inflight >= e.limit || now.Before(e.gate) || now.Before(e.serverGate) {
		return nil
	}
	it := e.queue.take(now)
	if it != nil {
		e.inflight++
		e.client.users++
	}
	return it
}

// dueLocked is when the next request may begin as far as time decides it.
func (e *endpoint) dueLocked() (time.Time, bool) {
	at, ok := e.queue.nextReady()
	for _, t := range []time.Time{e.gate, e.serverGate} {
		if t.After(at) {
			at = t
		}
	}
	return at, ok
}

// work sends the item, and after it what else is due.
func (e *endpoint) work(it *item, c *client) {
	defer e.tasks.Done()
	for it != nil {
		if it.failed > 0 {
			e.metrics.retries.WithLabelValues(e.name).Inc()
		}
		start := time.Now()
		a := c.send(e.ctx, it)
		end := time.Now()
		e.metrics.requests.WithLabelValues(e.name, a.code).Inc()
		e.metrics.duration.WithLabelValues(e.name).Observe(end.Sub(start).Seconds())
		e.metrics.sent.WithLabelValues(e.name).Add(float64(len(it.p.Pprof)))

		e.mu.Lock()
		e.inflight--
		c.users--
		idle := c.retired && c.users == 0
		e.settleLocked(it, a, start, end)
		it = e.nextLocked(end)
		next := e.client
		e.gaugesLocked()
		e.mu.Unlock()
		if idle {
			c.http.CloseIdleConnections()
		}
		c = next
		poke(e.wake)
	}
}

// settleLocked enters what came of an attempt.
func (e *endpoint) settleLocked(it *item, a answer, start, now time.Time) {
	if a.verdict == cancelled {
		e.queue.putBack(it, now)
		return
	}
	if a.verdict != delivered {
		e.lastError, e.lastErrorAt = a.code+": "+a.words, now
	}
	if a.verdict == endpointFailed {
		e.failedLocked(a, start, now)
	} else {
		e.answeredLocked(a, now)
	}

	switch a.verdict {
	case delivered:
		e.lastSuccess = now
		e.acct.Out(it.p.Samples)
		e.queue.remove(it)
	case rejected:
		e.queue.remove(it)
		e.dropLocked(it, ledger.RejectedByServer)
		e.notes.warn("rejected", "the server rejected a profile", "code", a.code, "answer", a.words,
			"service_name", it.p.Labels.Get("service_name"), "type", it.p.Type.Name, "samples", it.p.Samples)
	case badAnswer:
		it.badServed++
		if it.badServed > maxBadAnswers {
			e.queue.remove(it)
			e.dropLocked(it, ledger.RetriesExhausted)
			e.notes.warn("exhausted", "gave up a profile that the server repeatedly failed on", "code", a.code, "answer", a.words,
				"service_name", it.p.Labels.Get("service_name"), "type", it.p.Type.Name, "samples", it.p.Samples)
			return
		}
		e.retryLocked(it, a, now)
	case endpointFailed:
		e.retryLocked(it, a, now)
	}
}

// retryLocked puts the item back for a later attempt, unless it would be too old
// by then.
func (e *endpoint) retryLocked(it *item, a answer, now time.Time) {
	it.failed++
	at := now.Add(max(a.retryAfter, jitter(e.opts, it.failed)))
	if !at.Before(it.deadline) {
		e.queue.remove(it)
		e.dropLocked(it, ledger.TooOld)
		return
	}
	e.queue.putBack(it, at)
}

// failedLocked makes the endpoint be left alone for a while. Requests that were
// begun before the back-off say nothing new when they fail too.
func (e *endpoint) failedLocked(a answer, start, now time.Time) {
	if a.retryAfter > 0 {
		if at := now.Add(min(a.retryAfter, e.opts.QueueMaxAge)); at.After(e.serverGate) {
			e.serverGate = at
		}
	}
	if e.failures > 0 && start.Before(e.failedAt) {
		return
	}
	e.failures++
	e.failedAt = now
	e.gate = now.Add(jitter(e.opts, e.failures))
	e.limit = max(1, e.limit/2)
	if e.failures > 1 {
		e.limit = 1
	}
	e.notes.warn("failing", "push failed and will be repeated", "code", a.code, "err", a.words)
}

// answeredLocked lets an endpoint that answers get more.
func (e *endpoint) answeredLocked(a answer, now time.Time) {
	if e.failures > 0 && a.verdict == delivered {
		e.notes.info("recovered", "push works again", "after", now.Sub(e.failedAt).Round(time.Millisecond), "failures", e.failures)
	}
	e.failures = 0
	e.gate = time.Time{}
	e.limit = min(e.limit+1, e.opts.Workers)
}

func (e *endpoint) gaugesLocked() {
	e.metrics.bytes.WithLabelValues(e.name).Set(float64(e.queue.bytes))
	e.metrics.profiles.WithLabelValues(e.name).Set(float64(e.queue.len()))
}

// jitter is the wait after the n-th failure in a row (n ≥ 1): random, up to a
// bound that doubles from MinBackoff to MaxBackoff.
func jitter(o Options, n int) time.Duration {
	d := o.MinBackoff
	for ; n > 1 && d < o.MaxBackoff; n-- {
		d *= 2
	}
	return rand.N(min(d, o.MaxBackoff)) + 1
}

// poke leaves word on a channel of capacity one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
