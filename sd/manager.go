package sd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/klog/v2"

	"github.com/spanflame/spanflame/internal/slogkit"
)

// Options of a Manager. The zero value works.
type Options struct {
	ProcFS string // "": /proc
	// MaxTargets bounds the targets with labels of their own that are in use at
	// once; 0: DefaultMaxTargets.
	MaxTargets int
	// UpdateInterval is how often at most what discovery found is taken over; 0:
	// DefaultUpdateInterval.
	UpdateInterval time.Duration
	// ListenInterval is how often at most all processes are looked through for who
	// listens on the addresses of targets; 0: DefaultListenInterval. It is done only
	// if there is such a target, and takes at most 1/200 of a CPU.
	ListenInterval time.Duration
	// LookupHost resolves the hosts of addresses; nil: the host's resolver.
	LookupHost func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Defaults of Options.
const (
	DefaultMaxTargets     = 10_000
	DefaultUpdateInterval = 5 * time.Second
	DefaultListenInterval = 10 * time.Second
)

// ErrClosed is returned by a manager that was closed.
var ErrClosed = errors.New("the discovery manager is closed")

// Manager runs service discovery and says which process belongs to which target.
// All methods are safe for concurrent use.
type Manager struct {
	logger    log.Logger
	opts      Options
	boot      time.Time
	metrics   *metrics
	interned  *interner
	listeners *listeners
	changed   chan struct{}
	rescan    chan struct{}

	state atomic.Pointer[state]

	ctx       context.Context // of the discoverers
	cancel    context.CancelFunc
	discovery *discovery.Manager
	unhook    func() // takes discovery's metrics out of the registry
	running   sync.WaitGroup

	mu     sync.Mutex                      // serializes changes of state
	closed bool                            // guarded by mu
	starts starts                          // guarded by mu
	groups map[string][]*targetgroup.Group // guarded by mu; by set
}

// state is what FindTarget works with.
type state struct {
	jobs  *jobSet
	index *index
}

// NewManager makes a manager without jobs. Discoverers start with ApplyConfig;
// what they find counts once Run runs. Close it, or run and end Run, to stop them.
// The registerer may be nil.
func NewManager(logger log.Logger, reg prometheus.Registerer, opts Options) (*Manager, error) {
	if opts.ProcFS == "" {
		opts.ProcFS = "/proc"
	}
	if opts.MaxTargets <= 0 {
		opts.MaxTargets = DefaultMaxTargets
	}
	if opts.UpdateInterval <= 0 {
		opts.UpdateInterval = DefaultUpdateInterval
	}
	if opts.ListenInterval <= 0 {
		opts.ListenInterval = DefaultListenInterval
	}
	if opts.LookupHost == nil {
		opts.LookupHost = lookupHost
	}
	m := &Manager{
		logger: logger, opts: opts, interned: newInterner(opts.MaxTargets),
		listeners: newListeners(opts.ProcFS, opts.LookupHost),
		changed:   make(chan struct{}, 1), rescan: make(chan struct{}, 1),
	}
	var err error
	if m.boot, err = bootTime(opts.ProcFS); err != nil {
		level.Warn(logger).Log("msg", "processes will have no label "+processStartLabel, "err", err)
	}
	jobs, err := newJobSet(nil, labels.EmptyLabels(), opts.MaxTargets)
	if err != nil {
		return nil, err
	}
	m.state.Store(&state{jobs: jobs, index: buildIndex(jobs, nil, m.interned)})
	if m.metrics, err = newMetrics(reg, m); err != nil {
		return nil, fmt.Errorf("register the metrics of targets: %w", err)
	}
	if err := m.newDiscovery(reg); err != nil {
		m.metrics.unregister()
		return nil, err
	}
	m.starts.running = &m.running
	return m, nil
}

// newDiscovery makes Prometheus's manager, with its metrics.
func (m *Manager) newDiscovery(reg prometheus.Registerer) error {
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	sdMetrics, err := discovery.CreateAndRegisterSDMetrics(reg)
	if err != nil {
		return fmt.Errorf("register the metrics of service discovery: %w", err)
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.discovery = discovery.NewManager(m.ctx, slogkit.New(m.logger), reg, sdMetrics,
		discovery.Name("targets"), discovery.Updatert(m.opts.UpdateInterval))
	unhookMechanisms := func() {
		for _, mm := range sdMetrics.MechanismMetrics {
			mm.Unregister()
		}
		sdMetrics.RefreshManager.Unregister()
	}
	if m.discovery == nil {
		m.cancel()
		unhookMechanisms()
		return errors.New("register the metrics of service discovery: another manager has registered its own")
	}
	m.unhook = func() {
		m.discovery.UnregisterMetrics()
		unhookMechanisms()
	}
	return nil
}

// ApplyConfig replaces all jobs and the external labels. Mechanisms that stay as
// they are go on undisturbed, with what they have found. If the configuration is
// refused nothing changes. If a mechanism cannot be started (a certificate's file
// is missing, say) the rest is in force and the error says which could not.
func (m *Manager) ApplyConfig(configs []JobConfig, external labels.Labels) error {
	js, err := newJobSet(slices.Clone(configs), external, m.opts.MaxTargets)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	before := m.state.Load().jobs.sets()
	next := js.sets()
	kept := map[string][]*targetgroup.Group{}
	for name, config := range next {
		if old, ok := before[name]; ok && sameSet(old, config) {
			kept[name] = m.groups[name]
		}
	}
	m.groups = kept
	m.publish(js)

	m.starts.failed = nil
	wrapped := make(map[string]discovery.Configs, len(next))
	for name, config := range next {
		if config.Name() == "kubernetes" {
			// The client of Kubernetes logs through a logger of its own for the whole
			// process, which writes to standard error unless it is told otherwise.
			klog.SetSlogLogger(slogkit.New(log.With(m.logger, "component", "kubernetes")))
		}
		wrapped[name] = discovery.Configs{&watched{Config: config, starts: &m.starts}}
	}
	if err := m.discovery.ApplyConfig(wrapped); err != nil {
		return fmt.Errorf("start service discovery: %w", err)
	}
	return errors.Join(m.starts.failed...)
}

// publish makes a state of the jobs and what is known of their targets. The caller
// holds mu.
func (m *Manager) publish(js *jobSet) {
	ix := buildIndex(js, m.groups, m.interned)
	if ix.truncated > 0 {
		level.Warn(m.logger).Log("msg", "service discovery finds more targets than are looked at; the last are left out", "limit", maxDiscovered, "left_out", ix.truncated)
	}
	m.state.Store(&state{jobs: js, index: ix})
	signal(m.rescan)
	signal(m.changed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already
	}
}

// Changed tells that the answers of FindTarget may be others than before. Several
// changes can come as one.
func (m *Manager) Changed() <-chan struct{} { return m.changed }

// Run takes over what discovery finds until ctx is done, then closes the manager
// and returns nil. Call it once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrClosed
	}
	m.running.Add(2)
	m.mu.Unlock()
	go func() {
		defer m.running.Done()
		_ = m.discovery.Run() // returns the error of its context, which is ours
	}()
	go func() {
		defer m.running.Done()
		m.watchListeners()
	}()
	defer m.Close()
	age := time.NewTicker(turnPeriod)
	defer age.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.ctx.Done():
			return nil
		case groups, ok := <-m.discovery.SyncCh():
			if !ok {
				return nil
			}
			m.take(groups)
		case <-age.C:
			m.state.Load().jobs.verdicts.turn()
		}
	}
}

// take takes over what discovery has found.
func (m *Manager) take(found map[string][]*targetgroup.Group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.metrics.updates.Inc()
	js := m.state.Load().jobs
	next := map[string][]*targetgroup.Group{}
	for name := range js.sets() {
		groups := slices.DeleteFunc(slices.Clone(found[name]), func(g *targetgroup.Group) bool { return g == nil })
		slices.SortStableFunc(groups, func(a, b *targetgroup.Group) int { return compareNatural(a.Source, b.Source) })
		if _, answered := found[name]; !answered {
			groups = m.groups[name] // of before a change of the configuration
		}
		next[name] = groups
	}
	if sameGroups(m.groups, next) {
		return
	}
	m.groups = next
	m.publish(js)
}

func sameGroups(a, b map[string][]*targetgroup.Group) bool {
	return maps.EqualFunc(a, b, func(x, y []*targetgroup.Group) bool {
		return slices.EqualFunc(x, y, func(p, q *targetgroup.Group) bool { return p == q || reflect.DeepEqual(p, q) })
	})
}

// watchListeners finds out again and again who listens on the addresses of
// targets.
func (m *Manager) watchListeners() {
	const share = 200 // a scan may take 1/200 of the time
	for {
		var spent time.Duration
		addresses := slices.Sorted(maps.Keys(m.state.Load().index.byAddress))
		if len(addresses) > 0 || m.listeners.any() {
			begun := time.Now()
			changed, err := m.listeners.scan(m.ctx, addresses)
			spent = time.Since(begun)
			m.metrics.scanSeconds.Observe(spent.Seconds())
			if err != nil && m.ctx.Err() == nil {
				level.Warn(m.logger).Log("msg", "cannot find out who listens on the addresses of targets", "err", err)
			}
			if changed {
				signal(m.changed)
			}
		}
		rest := share * spent
		if !m.sleep(rest, nil) || !m.sleep(max(0, m.opts.ListenInterval-rest), m.rescan) {
			return
		}
	}
}

// sleep waits for a time or until early; it is false once the manager is closed.
func (m *Manager) sleep(d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-m.ctx.Done():
		return false
	case <-early:
	case <-timer.C:
	}
	return true
}

// closeTimeout bounds how long Close waits for discoverers, some of which are
// libraries that do not always listen to their context.
const closeTimeout = 2 * time.Second

// Close stops all discoverers and waits for them. It is idempotent. Afterwards
// FindTarget answers as before.
func (m *Manager) Close() {
	m.mu.Lock()
	already := m.closed
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	done := make(chan struct{})
	go func() {
		m.running.Wait()
		close(done)
	}()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		level.Info(m.logger).Log("msg", "a service discovery has not stopped in time and is left behind", "after", closeTimeout)
	}
	if !already {
		m.unhook()
		m.metrics.unregister()
	}
}
