package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

var (
	errCorrupt = errors.New("damaged")

	bucketSeries  = []byte("series")
	bucketIndex   = []byte("index")
	bucketSamples = []byte("samples")
	bucketSymbols = []byte("symbols")
	bucketNames   = [][]byte{bucketSeries, bucketIndex, bucketSamples, bucketSymbols}
)

// maxSeriesOfSegment bounds the series of a segment, and with it the memory of
// the writer.
const maxSeriesOfSegment = 20_000

// growBytes is the step by which a segment's file grows.
const growBytes = 256 << 10

// segment is one bbolt file. One that is written stays open; one that is only
// read is opened for the time of a query, so that the pages it maps are given
// back.
type segment struct {
	path     string
	id       int64 // number in the file name: creation time in ms
	writable bool
	mapBytes int

	mu   sync.Mutex
	db   *bolt.DB // guarded by mu; nil while closed
	refs int      // guarded by mu

	// Time range of the data in ns, 0 if there is none; guarded by mu.
	minTime, maxTime int64

	bytes atomic.Int64 // the file's size when it was last looked at
	// Of the writer (the keeper) only, while writable.
	series     map[string]uint32 // labels → number
	partitions map[uint32]*partition
}

// guard runs f, which reads or writes a mapped database, and turns a panic or a
// fault in it (a damaged page, a file cut short) into an error. The agent must
// outlive its store.
func guard(what string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: %w: %v", what, errCorrupt, r)
		}
	}()
	return f()
}

// openSegment opens or creates the file. A writable segment is kept open.
func openSegment(path string, id int64, writable bool, maxBytes int64) (*segment, error) {
	s := &segment{path: path, id: id, writable: writable, mapBytes: int(maxBytes + 2*maxBatchBytes)}
	err := guard("open "+path, func() error {
		db, err := s.openDB()
		if err != nil {
			return err
		}
		s.db = db
		if writable {
			if err := s.prepare(); err != nil {
				return err
			}
		}
		return s.readBounds()
	})
	if err != nil {
		s.abandon()
		return nil, err
	}
	if !writable {
		s.closeIfIdle()
	}
	return s, s.stat()
}

func (s *segment) openDB() (*bolt.DB, error) {
	fi, err := os.Lstat(s.path)
	switch {
	case err == nil && !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: %w", s.path, errCorrupt)
	case err == nil && fi.Size() == 0:
		return nil, fmt.Errorf("%s is empty: %w", s.path, errCorrupt)
	case err != nil && !s.writable:
		return nil, err
	}
	opts := &bolt.Options{
		Timeout:      time.Second,
		ReadOnly:     !s.writable,
		FreelistType: bolt.FreelistMapType,
		NoStatistics: true,
		// Room for the whole segment, so that the file is never mapped anew, for
		// which the writer would wait for all readers.
		InitialMmapSize: s.mapBytes,
	}
	if !s.writable {
		opts.InitialMmapSize = 0
	}
	db, err := bolt.Open(s.path, 0o600, opts)
	if err != nil {
		if isDamage(err) {
			err = fmt.Errorf("%w: %w", errCorrupt, err)
		}
		return nil, fmt.Errorf("open %s: %w", s.path, err)
	}
	db.AllocSize = growBytes
	return db, nil
}

// isDamage tells a file that is no good from one that could not be opened.
func isDamage(err error) bool {
	var errno unix.Errno
	return !errors.As(err, &errno) && !errors.Is(err, bolterrors.ErrTimeout) && !os.IsPermission(err)
}

// prepare makes the buckets and reads what the writer must know.
func (s *segment) prepare() error {
	s.series, s.partitions = map[string]uint32{}, map[uint32]*partition{}
	err := s.db.Update(func(tx *bolt.Tx) error {
		for _, b := range bucketNames {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("prepare %s: %w", s.path, err)
	}
	return s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketSeries).ForEach(func(k, v []byte) error {
			if len(k) != 4 {
				return fmt.Errorf("series of %s: %w", s.path, errCorrupt)
			}
			s.series[string(v)] = binary.BigEndian.Uint32(k)
			return nil
		})
	})
}

func (s *segment) readBounds() error {
	return s.db.View(func(tx *bolt.Tx) error {
		for _, b := range bucketNames {
			if tx.Bucket(b) == nil {
				return fmt.Errorf("%s has no bucket %q: %w", s.path, b, errCorrupt)
			}
		}
		c := tx.Bucket(bucketIndex).Cursor()
		first, _ := c.First()
		if first == nil {
			return nil
		}
		if len(first) != indexKeyLen {
			return fmt.Errorf("index of %s: %w", s.path, errCorrupt)
		}
		min := indexKeyTime(first)
		last, _ := c.Last()
		if len(last) != indexKeyLen {
			return fmt.Errorf("index of %s: %w", s.path, errCorrupt)
		}
		s.mu.Lock()
		s.minTime, s.maxTime = min, indexKeyTime(last)
		s.mu.Unlock()
		return nil
	})
}

func (s *segment) stat() error {
	fi, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	s.bytes.Store(fi.Size())
	return nil
}

// extend widens the time range.
func (s *segment) extend(nanos int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.maxTime == 0 {
		s.minTime, s.maxTime = nanos, nanos
		return
	}
	s.minTime, s.maxTime = min(s.minTime, nanos), max(s.maxTime, nanos)
}

// bounds is the time range of the data, zero if there is none.
func (s *segment) bounds() (from, to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.minTime, s.maxTime
}

// view runs f in a read transaction. The slices that f sees are only valid
// within it.
func (s *segment) view(f func(tx *bolt.Tx) error) error {
	return guard("read "+s.path, func() error {
		db, err := s.acquire()
		if err != nil {
			return err
		}
		defer s.release()
		return db.View(f)
	})
}

func (s *segment) acquire() (*bolt.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		if s.writable {
			return nil, fmt.Errorf("%s is closed", s.path)
		}
		db, err := s.openDB()
		if err != nil {
			return nil, err
		}
		s.db = db
	}
	s.refs++
	return s.db, nil
}

// release gives back the pages that a reader mapped: of a sealed segment by
// closing it, of the one being written by asking the kernel to unmap them. They
// stay in the page cache.
func (s *segment) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs--
	if s.refs > 0 || s.db == nil {
		return
	}
	if s.writable {
		s.unmapPages()
		return
	}
	db := s.db
	s.db = nil
	_ = db.Close() // opened for reading only: there is nothing to lose
}

// unmapPages drops the mapping's resident pages. The caller holds mu.
func (s *segment) unmapPages() {
	size := uintptr(min(int64(s.mapBytes), s.bytes.Load()) &^ 4095)
	if size == 0 {
		return
	}
	// Advice only: if it is refused, the pages merely stay resident.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.db.Info().Data, size, unix.MADV_DONTNEED)
}

// unmapIfIdle gives back the pages that writing has mapped.
func (s *segment) unmapIfIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs == 0 && s.db != nil && s.writable {
		s.unmapPages()
	}
}

func (s *segment) closeIfIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs == 0 && s.db != nil {
		db := s.db
		s.db = nil
		_ = db.Close()
	}
}

// seal ends writing: from now on the segment is opened for reading only.
// Readers that are at work keep the open database; the last one closes it.
func (s *segment) seal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writable = false
	s.series, s.partitions = nil, nil
	if s.refs > 0 || s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	return db.Close()
}

// abandon closes a damaged segment without ever waiting for it: a panic may have
// left its locks held.
func (s *segment) abandon() {
	s.mu.Lock()
	db := s.db
	s.db = nil
	s.mu.Unlock()
	if db == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = guard("close "+s.path, db.Close)
	}()
	select {
	case <-done:
	case <-time.After(time.Second):
	}
}

func segmentPath(dir string, id int64) string {
	return filepath.Join(dir, fmt.Sprintf("segment-%013d.bolt", id))
}

// loadSeries reads all series of a segment by number.
func loadSeries(tx *bolt.Tx) (map[uint32]labels.Labels, error) {
	out := map[uint32]labels.Labels{}
	err := tx.Bucket(bucketSeries).ForEach(func(k, v []byte) error {
		if len(k) != 4 {
			return fmt.Errorf("series: %w", errCorrupt)
		}
		ls, err := unmarshalLabels(v)
		if err != nil {
			return fmt.Errorf("series: %w: %w", errCorrupt, err)
		}
		out[binary.BigEndian.Uint32(k)] = ls
		return nil
	})
	return out, err
}
