package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

// Defaults and least values of Options.
const (
	DefaultRetention = 6 * time.Hour
	DefaultMaxBytes  = 1 << 30

	minRetention = 5 * time.Minute
	minMaxBytes  = 16 << 20
)

// Limits of what is taken in from other agents; they are Pyroscope's defaults.
const (
	MaxSeriesLabels    = 30
	MaxLabelNameBytes  = 1024
	MaxLabelValueBytes = 2048
	MaxPushAge         = time.Hour
	MaxPushAhead       = 10 * time.Minute
)

// ErrClosed says that the store was closed.
var ErrClosed = errors.New("the store is closed")

// Options of a store. Zero values take the defaults.
type Options struct {
	Path      string        // folder; made if it is missing
	Retention time.Duration // profiles older than this are deleted; at least 5 minutes
	MaxBytes  int64         // bound of all files together; at least 16 MiB

	now func() time.Time // for tests
}

func (o *Options) complete() error {
	if o.Path == "" {
		return errors.New("store: no path")
	}
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Retention < minRetention {
		return fmt.Errorf("store: a retention of %s is too short, at least %s", o.Retention, minRetention)
	}
	if o.MaxBytes < minMaxBytes {
		return fmt.Errorf("store: max_bytes of %d is too small, at least %d", o.MaxBytes, int64(minMaxBytes))
	}
	if o.now == nil {
		o.now = time.Now
	}
	return nil
}

// segmentBytes is the size at which a segment is sealed: small against the
// bound, as segments are deleted whole.
func (o *Options) segmentBytes() int64 { return max(512<<10, min(o.MaxBytes/32, 32<<20)) }

// segmentAge is the age at which a segment is sealed: profiles live at most that
// much longer than the retention.
func (o *Options) segmentAge() time.Duration {
	return max(minRetention, min(o.Retention/12, 24*time.Hour))
}

// Store keeps profiles on disk. All methods are safe for concurrent use.
type Store struct {
	logger  log.Logger
	opts    Options
	account *ledger.Account
	metrics *metrics
	lock    *os.File

	enc *zstd.Encoder
	dec *zstd.Decoder
	seq atomic.Uint64

	appends chan *appendRequest // to the keeper
	damage  chan damageReport   // to the keeper
	ticks   chan chan struct{}  // tests: do the timed work now
	queries chan struct{}       // a place in it is the right to run a query
	cancel  context.CancelFunc
	done    chan struct{} // closed when the keeper has ended
	closing sync.Once
	closed  chan struct{}
	err     error // of Close; set before done is closed

	mu       sync.RWMutex
	segments []*segment // oldest first; guarded by mu
}

// Open opens the store in opts.Path. Damaged segments are moved into the folder
// "damaged" in it (the last one is kept), logged and counted; the others stay in
// use. It fails with ErrLocked if another process has the folder, and if the
// folder cannot be used at all. account may be nil.
func Open(logger log.Logger, reg prometheus.Registerer, account *ledger.Account, opts Options) (*Store, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = log.NewNopLogger()
	}
	if account == nil {
		account = ledger.New().Sink("store")
	}
	if err := os.MkdirAll(opts.Path, 0o700); err != nil {
		return nil, fmt.Errorf("make the store's folder: %w", err)
	}
	lock, err := lockDir(opts.Path)
	if err != nil {
		return nil, err
	}
	s := &Store{
		logger: logger, opts: opts, account: account, lock: lock,
		appends: make(chan *appendRequest),
		damage:  make(chan damageReport, 16),
		ticks:   make(chan chan struct{}),
		queries: make(chan struct{}, maxQueriesAtOnce),
		done:    make(chan struct{}),
		closed:  make(chan struct{}),
	}
	s.seq.Store(uint64(time.Now().UnixNano()))
	if err := s.start(reg); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) start(reg prometheus.Registerer) (err error) {
	// One thread each and little memory: profiles are small.
	if s.enc, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(512<<10)); err != nil {
		return err
	}
	if s.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(maxQueriesAtOnce+1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxPartitionBytes)); err != nil {
		return err
	}
	if s.metrics, err = newMetrics(reg); err != nil {
		s.dec.Close()
		return fmt.Errorf("register the store's metrics: %w", err)
	}
	s.metrics.maxBytes.Set(float64(s.opts.MaxBytes))
	k := &keeper{Store: s}
	if err := k.load(); err != nil {
		s.metrics.unregister()
		s.dec.Close()
		return errors.Join(err, s.closeSegments())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go k.run(ctx)
	return nil
}

// Close writes what was accepted, closes the files and frees the folder. It is
// idempotent.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.closed)
		s.cancel()
		<-s.done
		// Wait for queries: they have segments open.
		for range maxQueriesAtOnce {
			s.queries <- struct{}{}
		}
		s.err = s.closeSegments()
		_ = s.enc.Close()
		s.dec.Close()
		s.metrics.unregister()
		s.err = errors.Join(s.err, s.lock.Close())
	})
	return s.err
}

func (s *Store) closeSegments() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, seg := range s.segments {
		errs = append(errs, guard("close "+seg.path, seg.seal))
	}
	s.segments = nil
	return errors.Join(errs...)
}

// Append stores profiles of this agent's own. What could be stored is stored,
// even if an error is returned. Each profile is entered in the account: In, and
// then Out, or a drop (store_failed, too_old).
func (s *Store) Append(ctx context.Context, profiles []*profile.Profile) error {
	for _, p := range profiles {
		s.account.In(p.Samples)
	}
	var (
		errs   []error
		req    = &appendRequest{done: make(chan struct{})}
		oldest = s.opts.now().Add(-s.opts.Retention)
	)
	// A part at a time, so that not all of a round is in memory uncompressed.
	flush := func() {
		if err := s.send(ctx, req); err != nil {
			errs = append(errs, err)
		}
		for _, e := range req.entries {
			if e.stored {
				s.account.Out(e.samples)
			} else {
				s.account.Drop(ledger.StoreFailed, e.samples)
			}
			e.recycle()
		}
		req = &appendRequest{done: make(chan struct{})}
	}
	for _, p := range profiles {
		if p.Start.Before(oldest) {
			s.account.Drop(ledger.TooOld, p.Samples)
			s.metrics.failed.Inc()
			errs = append(errs, fmt.Errorf("store a profile of %s: older than the retention of %s", p.Start.Format(time.RFC3339), s.opts.Retention))
			continue
		}
		e, err := s.prepare(p.Labels, p.Pprof, p.Start.UnixNano(), int64(p.Duration), s.seq.Add(1))
		if err != nil {
			s.account.Drop(ledger.StoreFailed, p.Samples)
			s.metrics.failed.Inc()
			errs = append(errs, fmt.Errorf("store a profile of %s: %w", p.Labels.Get(LabelService), err))
			continue
		}
		e.samples = p.Samples
		req.entries = append(req.entries, e)
		if req.bytes() >= maxBatchBytes/2 {
			flush()
		}
	}
	flush()
	return errors.Join(errs...)
}

// send hands a request to the keeper and waits for it. Once the keeper has it, it
// is done whatever becomes of ctx: its outcome must be known for the account.
func (s *Store) send(ctx context.Context, req *appendRequest) error {
	if len(req.entries) == 0 {
		return nil
	}
	select {
	case s.appends <- req:
		<-req.done
	case <-ctx.Done():
		s.metrics.failed.Add(float64(len(req.entries)))
		return ctx.Err()
	case <-s.closed:
		s.metrics.failed.Add(float64(len(req.entries)))
		return ErrClosed
	}
	return req.err
}

// decoded is the memory of a profile at work: most of what Append would allocate.
type decoded struct {
	buf     []byte
	profile wireProfile
}

var decodedPool = sync.Pool{New: func() any { return new(decoded) }}

// maxPooled is the largest buffer that is kept for the next profile.
const maxPooled = 1 << 20

// recycle gives the entry's memory back. The entry must not be used any more.
func (e *appendEntry) recycle() {
	d := e.decoded
	e.decoded = nil
	d.profile.buf = nil
	if cap(d.buf) <= maxPooled && cap(d.profile.samples) <= MaxPprofSamples {
		decodedPool.Put(d)
	}
}

// prepare uncompresses a profile and sums it up by series.
func (s *Store) prepare(own labels.Labels, pprof []byte, nanos, duration int64, seq uint64) (*appendEntry, error) {
	if nanos <= 0 {
		return nil, malformed("a time before 1970")
	}
	d := decodedPool.Get().(*decoded)
	raw, err := gunzip(pprof, d.buf, MaxPprofBytes)
	if err != nil {
		return nil, err
	}
	if len(raw) > 0 && &raw[0] != &pprof[0] { // it was compressed: the memory is ours
		d.buf = raw
	}
	e := &appendEntry{decoded: d, nanos: nanos, duration: max(duration, 0), key: indexKey(nanos, seq)}
	if err := e.profile.parse(raw); err != nil {
		return nil, err
	}
	if e.parent, e.subs, err = splitSeries(&e.profile, own); err != nil {
		return nil, err
	}
	return e, nil
}
