package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-kit/log/level"
	"github.com/prometheus/prometheus/model/labels"
	bolt "go.etcd.io/bbolt"
)

// appendEntry is a profile ready to be written.
type appendEntry struct {
	parent   labels.Labels
	subs     []subSeries
	*decoded // the profile
	nanos    int64
	duration int64
	samples  uint64
	key      []byte
	stored   bool // written by the keeper before done is closed
}

type appendRequest struct {
	entries []*appendEntry
	err     error
	done    chan struct{}
}

// maxBatchBytes bounds the uncompressed profiles that are written in one
// transaction (one profile may be larger).
const maxBatchBytes = 4 << 20

// maxEntries bounds the writer's tables, at about 40 bytes an entry; a segment
// that has more is sealed.
const maxEntries = 300_000

// tickEvery is how often segments are sealed and deleted by time.
const tickEvery = 15 * time.Second

// keeper is the only writer: it writes batches, seals and deletes segments, one
// thing after the other.
type keeper struct {
	*Store
	current *segment
	intern  interner
	sweepAt time.Time
	lastLog time.Time // of a failed write
	aside   int64     // bytes of the damaged segment that is kept
}

// load finds the segments of the folder. The newest goes on being written.
func (k *keeper) load() error {
	entries, err := os.ReadDir(k.opts.Path)
	if err != nil {
		return fmt.Errorf("read the store's folder: %w", err)
	}
	var ids []int64
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), "segment-")
		name, ok2 := strings.CutSuffix(name, ".bolt")
		if id, err := strconv.ParseInt(name, 10, 64); err == nil && ok && ok2 && segmentPath("", id) == e.Name() {
			ids = append(ids, id) // in order: names have a fixed width
		}
	}
	for i, id := range ids {
		path := segmentPath(k.opts.Path, id)
		seg, err := openSegment(path, id, i == len(ids)-1, k.opts.segmentBytes())
		switch {
		case errors.Is(err, errCorrupt):
			k.moveAside(path, err)
		case err != nil:
			return fmt.Errorf("open the store: %w", err)
		default:
			k.segments = append(k.segments, seg)
		}
	}
	if n := len(k.segments); n > 0 && k.segments[n-1].writable {
		k.current = k.segments[n-1]
	}
	k.asideBytes()
	if err := k.retain(0); err != nil {
		level.Warn(k.logger).Log("msg", "old profiles could not be removed; trying again later", "err", err)
	}
	k.report()
	return nil
}

// moveAside puts a damaged segment out of the way. Only the last one is kept,
// so that damage cannot fill the disk.
func (k *keeper) moveAside(path string, cause error) {
	k.metrics.damaged.Inc()
	dir := filepath.Join(k.opts.Path, "damaged")
	err := os.RemoveAll(dir)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	to := filepath.Join(dir, filepath.Base(path))
	if err == nil {
		err = os.Rename(path, to)
	}
	if err != nil {
		// It must not be met again at the next start.
		err = errors.Join(err, os.Remove(path))
		level.Error(k.logger).Log("msg", "a segment of the store is damaged and could not be moved aside", "path", path, "damage", cause, "err", err)
		return
	}
	k.asideBytes()
	level.Error(k.logger).Log("msg", "a segment of the store is damaged; moved aside, the rest goes on", "path", path, "to", to, "err", cause)
}

func (k *keeper) asideBytes() {
	k.aside = 0
	dir := filepath.Join(k.opts.Path, "damaged")
	entries, _ := os.ReadDir(dir) // usually there is none
	for _, e := range entries {
		if fi, err := e.Info(); err == nil {
			k.aside += fi.Size()
		}
	}
}

// dropDamaged takes a segment out of use after a read or write found it damaged.
func (k *keeper) dropDamaged(seg *segment, cause error) {
	if !slices.Contains(k.segments, seg) {
		return // reported twice
	}
	k.forget(seg)
	seg.abandon()
	k.moveAside(seg.path, cause)
	k.report()
}

// forget takes a segment off all lists.
func (k *keeper) forget(seg *segment) {
	k.mu.Lock()
	k.segments = without(k.segments, seg)
	k.mu.Unlock()
	if k.current == seg {
		k.current = nil
	}
}

// without returns a new list: readers may hold the old one.
func without(list []*segment, seg *segment) []*segment {
	return slices.DeleteFunc(slices.Clone(list), func(s *segment) bool { return s == seg })
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case req := <-k.appends:
			k.write(req)
		case d := <-k.damage:
			k.dropDamaged(d.seg, d.err)
		case <-tick.C:
			k.tick()
		case done := <-k.ticks:
			k.tick()
			close(done)
		case <-ctx.Done():
			return
		}
	}
}

func (k *keeper) tick() {
	now := k.opts.now()
	if k.current != nil && now.Sub(time.UnixMilli(k.current.id)) > k.opts.segmentAge() {
		k.rotate()
	}
	if err := k.retain(0); err != nil {
		level.Error(k.logger).Log("msg", "the store could not delete old profiles", "err", err)
	}
	k.sweep(now)
	if k.current != nil {
		k.current.unmapIfIdle()
	}
	k.report()
}

// sweepEvery is how long the tables of a parent are kept that brings nothing.
const sweepEvery = 5 * time.Minute

// sweep forgets the tables of parents that are gone. If one comes back they are
// read again.
func (k *keeper) sweep(now time.Time) {
	if k.current == nil || now.Sub(k.sweepAt).Abs() < sweepEvery {
		return
	}
	k.sweepAt = now
	for n, p := range k.current.partitions {
		if !p.used {
			delete(k.current.partitions, n)
		}
		p.used = false
	}
}

// write writes a request and those that wait behind it.
func (k *keeper) write(first *appendRequest) {
	batch := []*appendRequest{first}
	size := first.bytes()
	for size < maxBatchBytes {
		select {
		case r := <-k.appends:
			batch = append(batch, r)
			size += r.bytes()
			continue
		default:
		}
		break
	}
	for _, r := range batch {
		r.err = k.writeEntries(r.entries)
		close(r.done)
	}
	k.report()
}

func (r *appendRequest) bytes() (n int64) {
	for _, e := range r.entries {
		n += e.bytes()
	}
	return n
}

// bytes is an upper bound of what the entry takes on disk.
func (e *appendEntry) bytes() int64 { return int64(len(e.profile.buf)) + 8<<10 }

// writeEntries writes entries in transactions of bounded size.
func (k *keeper) writeEntries(entries []*appendEntry) error {
	var errs []error
	for len(entries) > 0 {
		n, size := 0, int64(0)
		for n < len(entries) && (n == 0 || size < maxBatchBytes) {
			size += entries[n].bytes()
			n++
		}
		if err := k.writeBatch(entries[:n], size); err != nil {
			errs = append(errs, err)
			for _, e := range entries[:n] {
				if !e.stored {
					k.metrics.failed.Inc()
				}
			}
			if now := k.opts.now(); now.Sub(k.lastLog) > time.Minute || now.Before(k.lastLog) {
				k.lastLog = now
				level.Error(k.logger).Log("msg", "the store could not write; profiles are lost until it can", "path", k.opts.Path, "err", err)
			}
		}
		entries = entries[n:]
	}
	return errors.Join(errs...)
}

func (k *keeper) writeBatch(entries []*appendEntry, size int64) error {
	if k.current != nil && (k.current.bytes.Load() >= k.opts.segmentBytes() || k.current.entries() > maxEntries) {
		k.rotate()
	}
	if err := k.retain(size); err != nil {
		return err
	}
	if k.current == nil {
		if err := k.newSegment(); err != nil {
			return err
		}
	}
	seg := k.current
	var refused []error
	var numbers map[string]uint32
	err := guard("write "+seg.path, func() error {
		return seg.db.Update(func(tx *bolt.Tx) error {
			numbers = map[string]uint32{}
			refused = nil
			for _, e := range entries {
				e.stored = false
				err := k.put(tx, seg, numbers, e)
				if errors.Is(err, ErrFull) || errors.Is(err, ErrMalformed) {
					refused = append(refused, err) // this profile's fault, not the others'
					continue
				}
				if err != nil {
					return err
				}
				e.stored = true
			}
			return nil
		})
	})
	if err != nil {
		for _, e := range entries {
			e.stored = false
		}
		// The tables may know what was not written: read them again when needed.
		clear(seg.partitions)
		if errors.Is(err, errCorrupt) {
			k.dropDamaged(seg, err)
		}
		return fmt.Errorf("write to the store: %w", err)
	}
	for s, n := range numbers {
		seg.series[s] = n
	}
	for _, e := range entries {
		if e.stored {
			seg.extend(e.nanos)
			k.metrics.profiles.Inc()
		}
	}
	if err := seg.stat(); err != nil {
		return fmt.Errorf("write to the store: %w", err)
	}
	return errors.Join(refused...)
}

// ErrFull says that a profile was refused as it would be one series too many.
// Later there may be room.
var ErrFull = fmt.Errorf("more than %d series", maxSeriesOfSegment)

// put writes one entry. numbers are the series that this transaction adds.
func (k *keeper) put(tx *bolt.Tx, seg *segment, numbers map[string]uint32, e *appendEntry) error {
	number := func(ls labels.Labels) (uint32, error) {
		b, err := marshalLabels(ls)
		if err != nil {
			return 0, err
		}
		if n, ok := seg.series[string(b)]; ok {
			return n, nil
		}
		if n, ok := numbers[string(b)]; ok {
			return n, nil
		}
		n := uint32(len(seg.series) + len(numbers))
		if n >= maxSeriesOfSegment {
			return 0, ErrFull
		}
		if err := tx.Bucket(bucketSeries).Put(seriesKey(n), b); err != nil {
			return 0, err
		}
		numbers[string(b)] = n
		return n, nil
	}
	index := tx.Bucket(bucketIndex)
	if index.Get(e.key) != nil {
		return nil // pushed twice
	}
	row := indexRow{duration: e.duration, period: max(e.profile.period, 0), samples: e.samples}
	var err error
	if row.parent, err = number(e.parent); err != nil {
		k.metrics.seriesFull.Inc()
		return err
	}
	samples, err := k.internProfile(tx, seg, row.parent, &e.profile)
	if err != nil {
		return err
	}
	for _, sub := range e.subs {
		n, err := number(sub.labels)
		if errors.Is(err, ErrFull) {
			// The profile is kept; only this label set cannot be selected.
			k.metrics.seriesFull.Inc()
			continue
		}
		if err != nil {
			return err
		}
		row.subs = append(row.subs, indexSub{n, uint32(sub.valueIndex), sub.total})
	}
	if err := index.Put(e.key, row.append(nil)); err != nil {
		return err
	}
	k.metrics.sampleBytes.Add(float64(len(samples)))
	return tx.Bucket(bucketSamples).Put(e.key, samples)
}

// internProfile turns a profile into the terms of its parent's partition and
// writes what is new in it.
func (k *keeper) internProfile(tx *bolt.Tx, seg *segment, parent uint32, p *wireProfile) ([]byte, error) {
	part := seg.partitions[parent]
	if part == nil {
		var err error
		if part, err = loadPartition(tx, k.dec, parent); err != nil {
			return nil, err
		}
		seg.partitions[parent] = part
	}
	part.used = true
	err := k.intern.intern(part, p)
	// Even if the profile is refused half way, what came before is in the tables
	// and must be in the file too.
	if len(k.intern.fragment) > 0 {
		b := packFragment(k.enc, k.intern.fragment)
		if err := tx.Bucket(bucketSymbols).Put(symbolsKey(parent, part.fragments), b); err != nil {
			return nil, err
		}
		part.fragments++
		k.metrics.symbolBytes.Add(float64(len(b)))
	}
	if err != nil {
		return nil, err
	}
	return k.intern.encodeSamples(), nil
}

// entries counts what the writer's tables hold.
func (s *segment) entries() (n int) {
	for _, p := range s.partitions {
		n += p.entries()
	}
	return n
}

func (k *keeper) newSegment() error {
	id := k.opts.now().UnixMilli()
	if n := len(k.segments); n > 0 && id <= k.segments[n-1].id {
		id = k.segments[n-1].id + 1 // the clock went back
	}
	seg, err := openSegment(segmentPath(k.opts.Path, id), id, true, k.opts.segmentBytes())
	if err != nil {
		_ = os.Remove(segmentPath(k.opts.Path, id)) // half made; on a full disk it would stay
		return fmt.Errorf("make a segment of the store: %w", err)
	}
	k.current = seg
	k.mu.Lock()
	k.segments = append(k.segments, seg)
	k.mu.Unlock()
	return nil
}

// rotate ends the current segment.
func (k *keeper) rotate() {
	seg := k.current
	k.current = nil
	if err := guard("close "+seg.path, seg.seal); err != nil {
		level.Warn(k.logger).Log("msg", "could not close a segment of the store", "path", seg.path, "err", err)
	}
}

// retain deletes the segments that are too old, and then the oldest until next
// more bytes fit.
func (k *keeper) retain(next int64) error {
	oldest := k.opts.now().Add(-k.opts.Retention).UnixNano()
	evict := func(seg *segment, reason string) error {
		if err := k.delete(seg); err != nil {
			return fmt.Errorf("make room in the store: %w", err)
		}
		k.metrics.evictedSegments.WithLabelValues(reason).Inc()
		level.Debug(k.logger).Log("msg", "deleted a segment of the store", "path", seg.path, "reason", reason)
		return nil
	}
	for _, seg := range k.segments {
		_, to := seg.bounds()
		if to < oldest && (to != 0 || seg != k.current) {
			if err := evict(seg, "age"); err != nil {
				return err
			}
		}
	}
	for len(k.segments) > 0 {
		used := k.aside + next + 2*growBytes // files grow in steps
		for _, s := range k.segments {
			used += s.bytes.Load()
		}
		if used <= k.opts.MaxBytes {
			break
		}
		if err := evict(k.segments[0], "bytes"); err != nil {
			return err
		}
	}
	return nil
}

// delete removes a segment. Queries that have it open finish on the file that
// is no longer named.
func (k *keeper) delete(seg *segment) error {
	if err := os.Remove(seg.path); err != nil && !os.IsNotExist(err) {
		return err
	}
	k.forget(seg)
	return guard("close "+seg.path, seg.seal)
}

func (k *keeper) report() {
	k.mu.RLock()
	defer k.mu.RUnlock()
	sum := k.aside
	for _, s := range k.segments {
		sum += s.bytes.Load()
	}
	k.metrics.diskBytes.Set(float64(sum))
	k.metrics.segments.Set(float64(len(k.segments)))
}
