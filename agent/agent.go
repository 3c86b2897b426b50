// Package agent puts the parts together: it starts them in order, hands each
// round's profiles to the endpoints and the store, changes the configuration of
// what runs, and stops all in order.
package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/common/version"

	"github.com/spanflame/spanflame/config"
	"github.com/spanflame/spanflame/ebpfspy"
	"github.com/spanflame/spanflame/internal/caps"
	"github.com/spanflame/spanflame/internal/doctor"
	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
	"github.com/spanflame/spanflame/push"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/store"
	"github.com/spanflame/spanflame/web"
)

const (
	// The first rounds are short, so that there is something to see soon.
	firstRound = 2 * time.Second
	// What the endpoints may take to empty their queues at the end.
	stopTimeout = 5 * time.Second
)

// Agent is one running agent.
type Agent struct {
	logger     log.Logger
	configFile string // "": none
	reg        *prometheus.Registry
	ledger     *ledger.Ledger
	started    time.Time

	targets *sd.Manager
	session *ebpfspy.Session
	pusher  *push.Pusher
	store   *store.Store // nil if it is off
	server  *web.Server  // nil if it is off
	self    stopper      // nil if the agent does not profile itself

	rounds   prometheus.Histogram
	ready    atomic.Bool
	interval atomic.Int64 // of rounds, ns

	mu  sync.Mutex     // guards cfg; held over a whole reload
	cfg *config.Config // what runs
}

// New makes an agent and opens what can fail: the store, the port, the endpoints.
// configFile is what Reload reads; "" if there is none. Run closes what was opened.
func New(logger log.Logger, cfg *config.Config, configFile string) (a *Agent, err error) {
	if err := checkCapabilities(); err != nil {
		return nil, err
	}
	a = &Agent{
		logger: logger, configFile: configFile, cfg: cfg, started: time.Now(),
		reg: prometheus.NewRegistry(), ledger: ledger.New(),
		rounds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "spanflame_round_seconds", Help: "Time from the first read of a round's kernel maps to its last finished pprof.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5},
		}),
	}
	a.interval.Store(int64(cfg.Global.PushInterval))
	a.reg.MustRegister(a.ledger, a.rounds, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), versioncollector.NewCollector("spanflame"))
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
			a = nil
		}
	}()
	if a.targets, err = sd.NewManager(log.With(logger, "component", "sd"), a.reg, sd.Options{MaxTargets: cfg.Symbols.MaxTargets}); err != nil {
		return a, fmt.Errorf("start discovery: %w", err)
	}
	if err := a.targets.ApplyConfig(cfg.TargetConfigs, cfg.Global.ExternalLabels); err != nil {
		level.Warn(logger).Log("msg", "a part of discovery does not work; the rest does", "err", err)
	}
	if cfg.Store.Enabled {
		a.store, err = store.Open(log.With(logger, "component", "store"), a.reg, a.ledger.Sink("store"), store.Options{
			Path: cfg.Store.Path, Retention: time.Duration(cfg.Store.Retention), MaxBytes: int64(cfg.Store.MaxBytes),
		})
		if err != nil {
			return a, fmt.Errorf("open the store: %w", err)
		}
	}
	if a.pusher, err = push.New(log.With(logger, "component", "push"), a.reg, a.ledger, endpoints(cfg), push.Options{UserAgent: "spanflame/" + version.Version}); err != nil {
		return a, err
	}
	if a.session, err = ebpfspy.NewSession(log.With(logger, "component", "session"), a.reg, a.ledger.Session(), a.targets, sessionOptions(cfg)); err != nil {
		return a, err
	}
	return a, a.listen(cfg)
}

// checkCapabilities names what is missing before anything else fails for it.
func checkCapabilities() error {
	set, err := caps.Effective()
	if err != nil {
		return err
	}
	if missing := set.Missing(caps.Required...); len(missing) > 0 {
		return fmt.Errorf("profiling this host is not permitted: %s missing; run as root, or give the agent these capabilities (`spanflame doctor` says more)", doctor.Join(missing))
	}
	return nil
}

func endpoints(cfg *config.Config) []push.Endpoint {
	var out []push.Endpoint
	for _, w := range cfg.Write {
		out = append(out, push.Endpoint{
			Name: w.Name, URL: urlOf(w.URL), Headers: w.HeaderValues(),
			HTTP: w.HTTPClientConfig, Timeout: time.Duration(w.RemoteTimeout),
		})
	}
	return out
}

// Run starts what New made, profiles until ctx ends, and stops all. Samples that
// were taken are delivered, as far as the endpoints take them within a few seconds.
func (a *Agent) Run(ctx context.Context) error {
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	failed := make(chan error, 3)
	spawn := func(what string, f func(context.Context) error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(background); err != nil && !errors.Is(err, context.Canceled) {
				failed <- fmt.Errorf("%s: %w", what, err)
			}
		}()
	}
	err := a.start(spawn)
	if err == nil {
		err = a.loop(ctx, failed)
	}
	a.ready.Store(false)
	if cerr := a.collect(background); err == nil && !errors.Is(cerr, ebpfspy.ErrStopped) {
		err = cerr
	}
	err = errors.Join(err, a.session.Stop())
	stopCtx, cancel := context.WithTimeout(background, stopTimeout)
	if perr := a.pusher.Stop(stopCtx); perr != nil {
		level.Warn(a.logger).Log("msg", "not all could be delivered before the end", "err", perr)
	}
	cancel()
	stopBackground()
	wg.Wait()
	return errors.Join(err, a.close())
}

func (a *Agent) start(spawn func(string, func(context.Context) error)) error {
	if a.server != nil {
		spawn("serve the page", a.server.Serve)
	}
	spawn("discover targets", a.targets.Run)
	spawn("push", a.pusher.Run)
	if err := a.session.Start(); err != nil {
		return fmt.Errorf("start profiling: %w", err)
	}
	if err := a.startSelfProfiling(); err != nil {
		return err
	}
	a.ready.Store(true)
	kv := []any{"msg", "profiling", "frequency", a.cfg.Profiles.CPU.Frequency, "push_interval", a.cfg.Global.PushInterval}
	if a.server != nil {
		kv = append(kv, "page", a.server.Addr())
	}
	level.Info(a.logger).Log(kv...)
	return nil
}

// loop ends a round each interval.
func (a *Agent) loop(ctx context.Context, failed <-chan error) error {
	timer := time.NewTimer(min(firstRound, time.Duration(a.interval.Load())))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-a.targets.Changed():
			a.session.UpdateTargets()
		case <-timer.C:
			begun := time.Now()
			if err := a.collect(ctx); err != nil && !errors.Is(err, ebpfspy.ErrStopped) {
				level.Error(a.logger).Log("msg", "a round failed", "err", err)
			}
			timer.Reset(max(time.Duration(a.interval.Load())-time.Since(begun), 100*time.Millisecond))
		}
	}
}

// collect ends the round and hands its profiles on.
func (a *Agent) collect(ctx context.Context) error {
	builders := map[series]*profile.Builder{}
	info, err := a.session.CollectProfiles(func(s *ebpfspy.Sample) {
		addSample(builders, s)
	})
	encoding := time.Now()
	var all []*profile.Profile
	for of, b := range builders {
		profiles, lost, berr := b.Profiles()
		if berr != nil {
			level.Error(a.logger).Log("msg", "a profile could not be encoded", "service_name", of.target.ServiceName(), "type", of.typ.Name, "samples", lost, "err", berr)
			a.ledger.Sink("encoder").In(lost)
			a.ledger.Sink("encoder").Drop(ledger.EncodeFailed, lost)
		}
		all = append(all, profiles...)
	}
	if err == nil {
		a.rounds.Observe((info.Spent + time.Since(encoding)).Seconds())
	}
	a.pusher.Push(all)
	if a.store != nil {
		if serr := a.store.Append(context.WithoutCancel(ctx), all); serr != nil {
			level.Warn(a.logger).Log("msg", "a round was not stored", "err", serr)
		}
	}
	return err
}

// series is what a profile is of.
type series struct {
	target *sd.Target
	typ    profile.Type
}

// typeOf is the type of the profile that a sample belongs to.
func typeOf(s *ebpfspy.Sample) profile.Type {
	if s.Kind == ebpfspy.OffCPU {
		return profile.OffCPU
	}
	return profile.CPU
}

func addSample(builders map[series]*profile.Builder, s *ebpfspy.Sample) {
	of := series{s.Target, typeOf(s)}
	b := builders[of]
	if b == nil {
		b = profile.NewBuilder(of.typ, s.Target.Labels, s.Period)
		builders[of] = b
	}
	b.Cover(s.Start, s.End)
	b.Add(profileSample(s))
}

func profileSample(s *ebpfspy.Sample) *profile.Sample {
	return &profile.Sample{
		Stack: s.Stack, Value: s.Time.Nanoseconds(), Count: s.Count,
		Labels: profile.Labels{Thread: s.Thread, Wait: s.Wait, Idle: s.Idle},
	}
}

// close closes what New opened, whatever that is.
func (a *Agent) close() error {
	var errs []error
	if a.self != nil {
		errs = append(errs, a.self.Stop())
		a.self = nil
	}
	if a.session != nil {
		errs = append(errs, a.session.Close())
	}
	if a.server != nil {
		errs = append(errs, a.server.Close())
	}
	if a.targets != nil {
		a.targets.Close()
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	return errors.Join(errs...)
}
