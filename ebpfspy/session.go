package ebpfspy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/symtab"
)

// TargetFinder says which target a process belongs to, or why to none. The same
// target is the same pointer. It must be safe for concurrent use.
type TargetFinder interface {
	FindTarget(p *sd.Process) (t *sd.Target, why string)
}

// ErrStopped is returned by a session that is not running.
var ErrStopped = errors.New("the session is not running")

// Session samples the host. Make it with NewSession. All methods are safe for
// concurrent use, in any order.
type Session struct {
	logger  log.Logger
	finder  TargetFinder
	account *ledger.Account
	metrics *metrics
	procfs  string

	// life serializes Start, Stop, Update and CollectProfiles. It is the outermost
	// lock and is held over I/O: it guards the order of these calls, not data that
	// others need.
	life    sync.Mutex
	running bool
	opts    Options
	count   counter
	carried []*rawRound // rounds that an Update ended
	symbols *symtab.Cache
	kernel  *symtab.Kernel
	// kernelGeneration is that of the names in locs.
	kernelGeneration uint64
	locs             *locations
	made             *madeCode
	round            uint64
	started          time.Time // of the current round
	startNS          uint64
	cancel           context.CancelFunc
	wg               sync.WaitGroup
	waiter           *waiter
	// Of the stack that is being resolved.
	kinds  []frameKind
	python []pythonLoc
	native []*stack.Location

	// pumpMu guards the kernel side's rings and events; it is taken before mu.
	pumpMu     sync.Mutex
	kern       *kernelSide
	pending    []timed
	asks       []bpf.ProfileProcessEvent // of the kernel, for mappings and tables
	newCodes   []uint64                  // Python functions that the kernel has seen for the first time
	declined   map[uint32]struct{}       // PIDs that were asked for and are no targets
	lostEvents uint64
	lost       atomic.Bool

	mu    sync.Mutex // guards the rest; never held over I/O or a callback
	table *table
	held  int
	// executables are those with counters of their own.
	executables map[string]bool
	last        RoundInfo
}

// NewSession makes a session that is not yet running. The registerer may be nil.
func NewSession(logger log.Logger, reg prometheus.Registerer, account *ledger.Account, finder TargetFinder, opts Options) (*Session, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("options of the session: %w", err)
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, fmt.Errorf("register the session's metrics: %w", err)
	}
	s := &Session{
		logger: logger, finder: finder, account: account, metrics: m, procfs: opts.ProcFS, opts: opts,
		symbols: symtab.NewCache(logger, reg, opts.Symbols),
		table:   newTable(opts.MaxProcesses), executables: map[string]bool{},
	}
	s.made = newMadeCode(logger, m, opts.ProcFS, opts.JITBytes)
	s.made.alive = s.runs
	return s, nil
}

// Start loads and attaches the kernel programs, reads /proc and begins to sample.
// If a step fails, all that was opened is closed again and the error is a
// *StartError. Requires CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, and Linux 5.10.
func (s *Session) Start() (err error) {
	s.life.Lock()
	defer s.life.Unlock()
	if s.running {
		return errors.New("the session is running already")
	}
	kern, err := openKernelSide(s.logger, s.metrics, s.opts)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.shut())
		}
	}()
	s.setKern(kern)
	if s.waiter, err = newWaiter(); err != nil {
		return startError("wait for the kernel's events", err)
	}
	if err := s.waiter.watch(kern); err != nil {
		return startError("watch the kernel's events", err)
	}
	if s.kernel == nil {
		// Without them kernel frames have no names; that stops nothing.
		if s.kernel, err = symtab.LoadKernel(s.logger, s.opts.Symbols); err != nil {
			level.Warn(s.logger).Log("msg", "the kernel's functions will have no names", "err", err)
			s.kernel = nil
		}
	}
	s.locs = newLocations(s.opts.Unknown, s.symbols, s.kernel)
	if err := s.scan(); err != nil {
		return startError("read the processes", err)
	}
	if s.opts.Preload {
		s.preload()
	}
	s.pump()
	if err := s.begin(); err != nil {
		return startError("start the sampler", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Add(1)
	go s.pumpLoop(ctx)
	s.wg.Go(func() { s.made.watch(ctx) })
	s.running = true
	s.updateMapBytes()
	return nil
}

// begin starts the samplers, and the first round.
func (s *Session) begin() error {
	s.started, s.startNS = time.Now(), monotonic()
	if err := s.count.began(s.count.current, s.startNS); err != nil {
		return err
	}
	if err := s.kern.enable(); err != nil {
		return err
	}
	if s.kern.offCPU {
		s.enterSleepers()
	}
	return nil
}

func (s *Session) setKern(k *kernelSide) {
	s.pumpMu.Lock()
	s.kern = k
	s.pending, s.asks = nil, nil
	s.lostEvents = 0
	s.declined = map[uint32]struct{}{}
	s.pumpMu.Unlock()
	s.count = counter{kern: k}
}

// Stop ends sampling and closes everything. Samples of the round that had begun
// are dropped and counted: call CollectProfiles before to have them. It is
// idempotent; the session may be started again.
func (s *Session) Stop() error {
	s.life.Lock()
	defer s.life.Unlock()
	if !s.running {
		return nil
	}
	s.running = false
	s.pumpMu.Lock()
	err := errors.Join(s.kern.closeClocks(), s.kern.detachOffCPU())
	s.pumpMu.Unlock()
	if raw, rerr := s.takeRound(); raw != nil {
		s.carried = append(s.carried, raw)
		err = errors.Join(err, rerr)
	}
	for _, raw := range s.carried {
		s.abandon(raw)
	}
	s.carried = nil
	return errors.Join(err, s.shut())
}

// Close stops the session for good and lets go of the symbol tables.
func (s *Session) Close() error {
	err := s.Stop()
	s.symbols.Close()
	return err
}

// abandon counts the samples of a round that nobody will have, those that nobody
// would have had in any case as what they are.
func (s *Session) abandon(raw *rawRound) {
	s.settleKernel(raw)
	subjects := s.subjects(raw)
	for i := range raw.keys {
		reason := subjects[subjectOf(&raw.keys[i])].reason
		if reason == "" {
			reason = ledger.RoundAbandoned
		}
		s.account.Drop(reason, raw.values[i].Count)
	}
}

// shut closes what Start opened, in whatever state it is.
func (s *Session) shut() error {
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
	if s.waiter != nil {
		s.waiter.wake()
	}
	s.wg.Wait()
	if s.waiter != nil {
		s.waiter.close()
		s.waiter = nil
	}
	s.pumpMu.Lock()
	var err error
	if s.kern != nil {
		err = s.kern.close()
		s.kern = nil
	}
	s.pending = nil
	s.pumpMu.Unlock()
	s.made.close()
	s.count = counter{} // it holds on to the kernel side
	s.mu.Lock()
	for _, f := range s.table.files {
		f.held.close()
	}
	s.held = 0
	s.table = newTable(s.opts.MaxProcesses)
	s.mu.Unlock()
	return err
}

// Update changes the options of a session, running or not: what it says is what
// runs when it returns. A round that had begun under another frequency or with
// other maps is ended and kept for the next CollectProfiles, so that no sample is
// lost. On an error the session goes on as before.
func (s *Session) Update(opts Options) error {
	opts, err := opts.withDefaults()
	if err != nil {
		return fmt.Errorf("options of the session: %w", err)
	}
	s.life.Lock()
	defer s.life.Unlock()
	if s.running {
		if err := s.updateRunning(opts); err != nil {
			return err
		}
	}
	s.opts = opts
	s.symbols.SetOptions(opts.Symbols)
	if s.running {
		s.locs.reset()
		s.made.forgetLocations()
		s.made.setMax(opts.JITBytes)
		s.locs.style = opts.Unknown
	}
	s.mu.Lock()
	s.table.max = opts.MaxProcesses
	s.mu.Unlock()
	return nil
}

// maxCarried bounds the rounds that updates can leave behind.
const maxCarried = 4

func (s *Session) updateRunning(opts Options) error {
	if len(s.carried) >= maxCarried {
		return errors.New("too many updates within one round: try again after the next")
	}
	if s.opts.sameKernelSide(opts) {
		if opts.Frequency == s.opts.Frequency {
			return s.kern.setVariables(opts)
		}
		s.pumpMu.Lock()
		err := s.kern.closeClocks()
		s.pumpMu.Unlock()
		if err != nil {
			return err
		}
		raw, err := s.takeRound() // at the old frequency
		if raw != nil {
			s.carried = append(s.carried, raw)
		}
		s.pumpMu.Lock()
		defer s.pumpMu.Unlock()
		return errors.Join(err, s.kern.setVariables(opts), s.kern.reopenClocks(opts))
	}

	next, err := openKernelSide(s.logger, s.metrics, opts)
	if err != nil {
		return err
	}
	s.pumpMu.Lock()
	old := s.kern
	err = errors.Join(old.closeClocks(), old.detachOffCPU())
	s.pumpMu.Unlock()
	s.pump()
	raw, rerr := s.takeRound()
	if raw != nil {
		s.carried = append(s.carried, raw)
	}
	s.setKern(next)
	err = errors.Join(err, rerr, old.close(), s.waiter.watch(next), s.begin())
	s.updateMapBytes()
	s.lost.Store(true) // events between the two: compare with /proc
	s.waiter.wake()
	return err
}

// UpdateTargets looks up the target of every process anew, for what is known of
// targets has changed.
func (s *Session) UpdateTargets() {
	s.pumpMu.Lock()
	defer s.pumpMu.Unlock()
	s.mu.Lock()
	s.table.epoch++
	s.mu.Unlock()
	if s.kern != nil {
		s.kern.clearExcluded()
		for pid := range s.declined {
			_ = s.kern.objs.Processes.Delete(pid) // so that it asks again
		}
		clear(s.declined)
	}
}

// Scale is the time that one sample stands for.
func (s *Session) Scale() time.Duration {
	s.life.Lock()
	defer s.life.Unlock()
	return s.opts.period()
}

// clearExcluded lets the kernel count all processes again.
func (k *kernelSide) clearExcluded() {
	var pid uint32
	var ticks uint64
	var pids []uint32
	it := k.objs.Excluded.Iterate()
	for it.Next(&pid, &ticks) {
		pids = append(pids, pid)
	}
	for _, p := range pids {
		_ = k.objs.Excluded.Delete(p) // an exec may have been faster
	}
	k.forgetExcluded()
}

func (s *Session) updateMapBytes() {
	var n uint64
	add := func(m *ebpf.Map) {
		if info, err := m.Info(); err == nil {
			if b, ok := info.Memlock(); ok {
				n += b
			}
		}
	}
	o := s.kern.objs
	for _, m := range []*ebpf.Map{o.Arena, o.Counts, o.Cursors, o.Excluded, o.FreeChunks0, o.FreeChunks1, o.LostProcessEvents, o.ProcessEvents, o.Scratches, o.Stats, o.Segments, o.Rules, o.Files, o.Processes, o.Threads, o.Sites, o.Rates, o.Followed, o.ExcludedLately, o.PythonCodes, o.PythonLayouts, o.PythonProcesses, o.PythonThreads, s.kern.inner[0], s.kern.inner[1]} {
		add(m)
	}
	s.metrics.mapBytes.Set(float64(n) + float64(s.kern.unwinder.memory()))
}
