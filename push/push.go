// Package push delivers profiles to Pyroscope-compatible endpoints over
// push.v1.PusherService/Push (Connect protocol, protobuf). Each endpoint has a
// bounded queue in memory, its own workers and its own account in the ledger, so
// a slow or dead endpoint costs neither the caller nor another endpoint
// anything. The package never changes or splits a profile, and never logs a
// secret.
//
// The protocol: https://github.com/grafana/pyroscope/blob/main/api/push/v1/push.proto
// and https://connectrpc.com/docs/protocol (unary RPCs).
package push

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

// Defaults of Options and Endpoint. The server's limit on a profile's age is
// one hour (Pyroscope's validation.reject-older-than); DefaultQueueMaxAge leaves
// room for a last request.
const (
	DefaultQueueMaxBytes = 16 << 20
	DefaultQueueMaxAge   = 55 * time.Minute
	DefaultWorkers       = 16
	DefaultMinBackoff    = 500 * time.Millisecond
	DefaultMaxBackoff    = 30 * time.Second
	DefaultTimeout       = 30 * time.Second
	DefaultUserAgent     = "spanflame"
)

// ErrStopped is returned by Run and Update once Stop was called.
var ErrStopped = errors.New("the pusher is stopped")

// Options bound what a Pusher uses, for each endpoint. A zero field stands for
// its default.
type Options struct {
	// QueueMaxBytes bounds what waits for one endpoint, in bytes of compressed
	// profiles and their labels, those in flight included. When it is reached
	// the oldest profile that is not in flight is dropped (queue_full).
	QueueMaxBytes int64
	// QueueMaxAge is how old a profile (by its start) may become before it is
	// dropped (too_old). It also caps a server's Retry-After.
	QueueMaxAge time.Duration
	// Workers is how many requests to one endpoint may be in flight. Workers are
	// goroutines that exist only while they have something to send.
	Workers int
	// MinBackoff and MaxBackoff bound the exponential back-off, of which each
	// wait is a random part (full jitter).
	MinBackoff, MaxBackoff time.Duration
	// UserAgent is the request header.
	UserAgent string
}

func (o Options) withDefaults() (Options, error) {
	if o.QueueMaxBytes < 0 || o.QueueMaxAge < 0 || o.Workers < 0 || o.MinBackoff < 0 || o.MaxBackoff < 0 {
		return o, errors.New("push options: no field may be negative")
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.QueueMaxAge, DefaultQueueMaxAge)
	def(&o.MinBackoff, DefaultMinBackoff)
	def(&o.MaxBackoff, DefaultMaxBackoff)
	if o.MaxBackoff < o.MinBackoff {
		return o, fmt.Errorf("push options: the maximal back-off %s is below the minimal %s", o.MaxBackoff, o.MinBackoff)
	}
	if o.QueueMaxBytes == 0 {
		o.QueueMaxBytes = DefaultQueueMaxBytes
	}
	if o.Workers == 0 {
		o.Workers = DefaultWorkers
	}
	if o.UserAgent == "" {
		o.UserAgent = DefaultUserAgent
	}
	return o, nil
}

// Pusher hands profiles to endpoints. Its methods are safe for concurrent use.
type Pusher struct {
	logger  log.Logger
	led     *ledger.Ledger
	opts    Options
	metrics *metrics

	updates sync.Mutex // held over a whole Update or Stop

	mu        sync.RWMutex
	endpoints []*endpoint // guarded by mu; in the order of the configuration
	running   bool        // guarded by mu: Run was called and its context lives
	stopping  bool        // guarded by mu: Stop was called

	stopped chan struct{} // closed when Stop has finished
}

// New returns a pusher that queues, but sends nothing before Run. It registers
// its metrics with reg, which may be nil. The names of the endpoints must be
// unique. No endpoint at all is allowed.
func New(logger log.Logger, reg prometheus.Registerer, led *ledger.Ledger, endpoints []Endpoint, opts Options) (*Pusher, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if logger == nil {
		logger = log.NewNopLogger()
	}
	p := &Pusher{logger: logger, led: led, opts: opts, stopped: make(chan struct{})}
	cfgs, err := normaliseAll(endpoints)
	if err != nil {
		return nil, err
	}
	clients := make([]*client, len(cfgs))
	for i, cfg := range cfgs {
		if clients[i], err = newClient(cfg, opts.UserAgent); err != nil {
			return nil, err
		}
	}
	if p.metrics, err = newMetrics(reg); err != nil {
		return nil, err
	}
	for _, c := range clients {
		p.endpoints = append(p.endpoints, newEndpoint(p, c))
	}
	return p, nil
}

// Push accepts the profiles for every endpoint. It never blocks on an endpoint
// and never fails: what finds no room is dropped and counted. The profiles must
// not be changed afterwards. After Stop everything is dropped as shutdown.
func (p *Pusher) Push(profiles []*profile.Profile) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, e := range p.endpoints {
		e.enqueue(profiles)
	}
}

// Run delivers until ctx ends or Stop is called. When ctx ends, requests in
// flight go on but no other is begun; Stop must still be called, and flushes. It
// returns ErrStopped if Stop was called before it.
func (p *Pusher) Run(ctx context.Context) error {
	p.mu.Lock()
	if p.stopping {
		p.mu.Unlock()
		return ErrStopped
	}
	p.running = true
	for _, e := range p.endpoints {
		e.resume()
	}
	p.mu.Unlock()

	select {
	case <-p.stopped:
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		// Stop resumes the endpoints for its flush; that must not be undone.
		if p.running && !p.stopping {
			p.running = false
			for _, e := range p.endpoints {
				e.pause()
			}
		}
	}
	return nil
}

// Stop takes no more profiles, delivers what waits for as long as ctx lives and
// an attempt can still be made within it, cancels the rest, counts it as
// shutdown and frees everything. It returns an error that says how many samples
// were lost. It may be called at any moment and again; a second call waits for
// the first.
func (p *Pusher) Stop(ctx context.Context) error {
	p.updates.Lock()
	defer p.updates.Unlock()
	p.mu.Lock()
	if p.stopping {
		p.mu.Unlock()
		return nil
	}
	p.stopping = true
	endpoints := p.endpoints
	for _, e := range endpoints {
		e.refuse()
	}
	p.mu.Unlock()

	var wg sync.WaitGroup
	lost := make([]uint64, len(endpoints))
	for i, e := range endpoints {
		wg.Add(1)
		go func() {
			defer wg.Done()
			e.drain(ctx)
			lost[i] = e.close()
		}()
	}
	wg.Wait()
	close(p.stopped)

	var errs []error
	for i, e := range endpoints {
		if lost[i] > 0 {
			errs = append(errs, fmt.Errorf("push to %s: %d samples were not delivered before the stop", e.name, lost[i]))
		}
	}
	return errors.Join(errs...)
}

// Update changes the endpoints. An endpoint is known by its name: one that stays
// keeps its queue, and is sent to under its new configuration from the next
// request on. What waits for one that is gone is dropped as shutdown. On an
// error nothing has changed.
func (p *Pusher) Update(endpoints []Endpoint) error {
	cfgs, err := normaliseAll(endpoints)
	if err != nil {
		return err
	}
	p.updates.Lock()
	defer p.updates.Unlock()

	p.mu.RLock()
	stopping := p.stopping
	old := map[string]*endpoint{}
	for _, e := range p.endpoints {
		old[e.name] = e
	}
	p.mu.RUnlock()
	if stopping {
		return ErrStopped
	}

	clients := make([]*client, len(cfgs)) // nil: as it was
	for i, cfg := range cfgs {
		if e, ok := old[cfg.Name]; ok && reflect.DeepEqual(e.config(), cfg) {
			continue
		}
		if clients[i], err = newClient(cfg, p.opts.UserAgent); err != nil {
			return err
		}
	}

	p.mu.Lock()
	next := make([]*endpoint, 0, len(cfgs))
	for i, cfg := range cfgs {
		e, ok := old[cfg.Name]
		delete(old, cfg.Name)
		switch {
		case !ok:
			e = newEndpoint(p, clients[i])
			if p.running {
				e.resume()
			}
		case clients[i] != nil:
			e.swap(clients[i])
		}
		next = append(next, e)
	}
	p.endpoints = next
	p.mu.Unlock()

	for _, e := range old {
		e.close()
		p.metrics.forget(e.name)
	}
	return nil
}

// Status reads the state of each endpoint, in the order of the configuration.
func (p *Pusher) Status() []EndpointStatus {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := make([]EndpointStatus, 0, len(p.endpoints))
	for _, e := range p.endpoints {
		out = append(out, e.status())
	}
	return out
}
