package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/go-kit/log/level"
	bolt "go.etcd.io/bbolt"
)

// mergeTask is one entry to make: a parent's profiles of one window.
type mergeTask struct {
	seg    *segment
	window uint32
	parent uint32
	count  uint64 // profiles in it
}

// mergeAfter is how long after its end a window is merged; what comes later
// makes it be merged again.
const mergeAfter = 30 * time.Second

// minMerge is the least number of profiles that are worth a merged one.
const minMerge = 3

// planMerges finds the windows that have ended (all, of a segment that is being
// sealed) and lists what is to be merged in them.
func (k *keeper) planMerges(now time.Time) {
	segs := append([]*segment(nil), k.sealing...)
	if k.current != nil {
		segs = append(segs, k.current)
	}
	for _, seg := range segs {
		for w := range seg.dirty {
			if seg == k.current && now.Before(windowEnd(w).Add(mergeAfter)) {
				continue
			}
			delete(seg.dirty, w)
			tasks, err := planWindow(seg, w)
			if errors.Is(err, errCorrupt) {
				k.dropDamaged(seg, err)
				break
			}
			if err != nil {
				level.Warn(k.logger).Log("msg", "could not merge a window of the store", "path", seg.path, "err", err)
				continue
			}
			k.work = append(k.work, tasks...)
		}
	}
}

func planWindow(seg *segment, w uint32) (tasks []mergeTask, err error) {
	counts := map[uint32]uint64{}
	err = seg.view(func(tx *bolt.Tx) error {
		var row indexRow
		if err := eachOfWindow(tx, w, func(_, v []byte) error {
			if err := row.read(v); err != nil {
				return err
			}
			counts[row.parent]++
			return nil
		}); err != nil {
			return err
		}
		merged := tx.Bucket(bucketMerged)
		for parent, n := range counts {
			if have, _, _ := readMerged(merged.Get(mergedKey(w, parent))); n >= minMerge && n != have {
				tasks = append(tasks, mergeTask{seg, w, parent, n})
			}
		}
		return nil
	})
	return tasks, err
}

// eachOfWindow calls f for each index row of a window.
func eachOfWindow(tx *bolt.Tx, w uint32, f func(k, v []byte) error) error {
	c := tx.Bucket(bucketIndex).Cursor()
	for k, v := c.Seek(binary.BigEndian.AppendUint32(nil, w)); k != nil; k, v = c.Next() {
		if len(k) != indexKeyLen {
			return fmt.Errorf("index: %w", errCorrupt)
		}
		if indexKeyWindow(k) != w {
			return nil
		}
		if err := f(k, v); err != nil {
			return err
		}
	}
	return nil
}

// readMerged splits a merged entry: how many profiles are in it, and the
// profile.
func readMerged(v []byte) (count uint64, payload []byte, ok bool) {
	count, n := binary.Uvarint(v)
	if n <= 0 {
		return 0, nil, false
	}
	return count, v[n:], true
}

// mergeOne does one task, or seals a segment that has none left.
func (k *keeper) mergeOne() {
	if len(k.work) == 0 {
		seg := k.sealing[0]
		k.sealing = k.sealing[1:]
		if err := guard("seal "+seg.path, seg.seal); err != nil {
			level.Warn(k.logger).Log("msg", "could not close a segment of the store", "path", seg.path, "err", err)
		}
		return
	}
	t := k.work[0]
	k.work = k.work[1:]
	entry, err := k.mergeWindow(t)
	if err == nil && entry != nil {
		err = k.putMerged(t, entry)
	}
	switch {
	case errors.Is(err, errCorrupt):
		k.dropDamaged(t.seg, err)
	case err != nil:
		// Not fatal and not repeated: the single profiles answer as well.
		level.Debug(k.logger).Log("msg", "could not merge a window of the store", "path", t.seg.path, "err", err)
	}
}

// mergeWindow makes the merged entry of a task; nil if profiles were added
// meanwhile, for which there is a new task.
func (k *keeper) mergeWindow(t mergeTask) ([]byte, error) {
	m := newMerger(false)
	var (
		row indexRow
		p   wireProfile
		raw []byte
		n   uint64
	)
	err := t.seg.view(func(tx *bolt.Tx) error {
		pprofs := tx.Bucket(bucketPprof)
		return eachOfWindow(tx, t.window, func(key, v []byte) error {
			if err := row.read(v); err != nil || row.parent != t.parent {
				return err
			}
			var err error
			if raw, err = k.dec.DecodeAll(pprofs.Get(key), raw[:0]); err != nil {
				return fmt.Errorf("profile of %s: %w: %w", t.seg.path, errCorrupt, err)
			}
			if err := p.parse(raw, MaxPprofSamples); err != nil {
				return err
			}
			n++
			return m.add(&p, -1, nil)
		})
	})
	if err != nil {
		return nil, err
	}
	if n != t.count {
		return nil, nil
	}
	if len(m.stackTab) > maxMergedSamples {
		return nil, errMergeFull
	}
	return k.enc.EncodeAll(m.encode(), binary.AppendUvarint(nil, n)), nil
}

func (k *keeper) putMerged(t mergeTask, entry []byte) error {
	if err := k.retain(int64(len(entry)) + growBytes); err != nil {
		return err
	}
	if !k.has(t.seg) {
		return nil // deleted to make room
	}
	err := guard("write "+t.seg.path, func() error {
		return t.seg.db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketMerged).Put(mergedKey(t.window, t.parent), entry)
		})
	})
	if err != nil {
		return err
	}
	k.metrics.merged.Inc()
	err = t.seg.stat()
	k.report()
	return err
}
