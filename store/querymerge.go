package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	bolt "go.etcd.io/bbolt"
)

// merge adds the matching profiles to m.
func (s *Store) merge(ctx context.Context, kind string, m *merger, typeID string, matchers []*labels.Matcher, spanIDs []string, from, to time.Time) (Stats, error) {
	matchers = append([]*labels.Matcher{typeMatcher(typeID)}, matchers...)
	q, end, err := s.begin(ctx, kind, from, to, matchers)
	if err != nil {
		return Stats{}, err
	}
	defer end()
	mq := &mergeQuery{query: q, m: m, spanIDs: spanIDs}
	err = q.eachSegment(mq.segment)
	return q.stats, err
}

type mergeQuery struct {
	*query
	m       *merger
	spanIDs []string

	// of the segment at work
	series  map[uint32]labels.Labels
	matched map[uint32]bool
	types   map[uint32]typeNames // by parent
	p       wireProfile
	raw     []byte
}

// group is what a query wants of one parent in one window.
type group struct {
	total      uint64   // profiles of the parent in the window
	keys       [][]byte // of those in the range that have a matching series
	inRange    uint64
	valueIndex int
	partly     bool // some series of the type match and some do not: ask each sample
}

// segment adds what a segment has. It goes through the index window by window
// and takes a window's merged profile where the range covers all that is in it.
func (q *mergeQuery) segment(tx *bolt.Tx, _ *segment) error {
	var err error
	if q.series, err = loadSeries(tx); err != nil {
		return err
	}
	q.matched, q.types = map[uint32]bool{}, map[uint32]typeNames{}
	typeOnly := q.matchers[:1]
	any := false
	for n, ls := range q.series {
		if ls.Has(labelSampleTypes) {
			q.types[n] = decodeTypes(ls.Get(labelSampleTypes))
		} else if matchesAll(ls, typeOnly) {
			q.matched[n] = matchesAll(ls, q.matchers)
			any = any || q.matched[n]
		}
	}
	if !any {
		return nil
	}
	var (
		row    indexRow
		w      uint32
		groups = map[uint32]*group{}
		c      = tx.Bucket(bucketIndex).Cursor()
	)
	for k, v := c.Seek(seekWindow(windowOf(q.from))); k != nil; k, v = c.Next() {
		if len(k) != indexKeyLen {
			return fmt.Errorf("index: %w", errCorrupt)
		}
		if kw := indexKeyWindow(k); kw != w {
			if err := q.flush(tx, w, groups); err != nil {
				return err
			}
			if kw > windowOf(q.to-1) {
				return nil
			}
			w = kw
		}
		if err := q.countRow(); err != nil {
			return err
		}
		if err := row.read(v); err != nil {
			return err
		}
		q.place(groups, k, &row)
	}
	return q.flush(tx, w, groups)
}

// place enters a row in its group.
func (q *mergeQuery) place(groups map[uint32]*group, key []byte, row *indexRow) {
	g := groups[row.parent]
	if g == nil {
		g = &group{}
		groups[row.parent] = g
	}
	g.total++
	if t := indexKeyTime(key); t < q.from || t >= q.to {
		return
	}
	wanted := false
	for _, sub := range row.subs {
		match, ofType := q.matched[sub.series]
		if !ofType {
			continue
		}
		g.valueIndex = int(sub.valueIndex)
		wanted = wanted || match
		g.partly = g.partly || !match
	}
	g.inRange++
	if wanted {
		g.keys = append(g.keys, key)
	}
}

// flush merges the groups of a window and empties the map.
func (q *mergeQuery) flush(tx *bolt.Tx, w uint32, groups map[uint32]*group) error {
	if len(groups) == 0 {
		return nil
	}
	defer clear(groups)
	merged, pprofs := tx.Bucket(bucketMerged), tx.Bucket(bucketPprof)
	for parent, g := range groups {
		if len(g.keys) == 0 {
			continue
		}
		keep := q.keep(parent, g)
		if g.inRange == g.total && len(g.keys) > 1 {
			if n, payload, ok := readMerged(merged.Get(mergedKey(w, parent))); ok && n == g.total {
				if err := q.add(payload, maxMergedSamples, g.valueIndex, keep); err != nil {
					return err
				}
				q.stats.Profiles += len(g.keys)
				continue
			}
		}
		for _, k := range g.keys {
			if err := q.add(pprofs.Get(k), MaxPprofSamples, g.valueIndex, keep); err != nil {
				return err
			}
			q.stats.Profiles++
		}
	}
	return nil
}

// keep is the condition on a group's samples, nil if all are wanted.
func (q *mergeQuery) keep(parent uint32, g *group) func([]stringLabel) bool {
	if !g.partly && len(q.spanIDs) == 0 {
		return nil
	}
	own, types := q.series[parent], q.types[parent]
	return func(ls []stringLabel) bool {
		if len(q.spanIDs) > 0 && !slices.ContainsFunc(ls, func(l stringLabel) bool {
			return l.name == "span_id" && slices.Contains(q.spanIDs, l.value)
		}) {
			return false
		}
		return !g.partly || g.valueIndex < len(types.sample) && sampleMatches(own, types, g.valueIndex, ls, q.matchers)
	}
}

// add decodes a stored profile and adds it.
func (q *mergeQuery) add(payload []byte, maxSamples, valueIndex int, keep func([]stringLabel) bool) error {
	if err := q.check(); err != nil {
		return err
	}
	if q.stats.Decoded >= maxQueryProfiles || q.stats.Bytes > maxQueryBytes {
		q.cut("more than %d profiles or %d MiB to merge", maxQueryProfiles, maxQueryBytes>>20)
		return errStop
	}
	var err error
	if q.raw, err = q.s.dec.DecodeAll(payload, q.raw[:0]); err != nil {
		return fmt.Errorf("profile: %w: %w", errCorrupt, err)
	}
	q.stats.Decoded++
	q.stats.Bytes += int64(len(q.raw))
	err = q.p.parse(q.raw, maxSamples)
	if err == nil {
		err = q.m.add(&q.p, valueIndex, keep)
	}
	switch {
	case errors.Is(err, errMergeFull):
		q.cut("the merged profile has more than %d stacks or %d MiB", maxMergedStacks, maxMergedBytes>>20)
		return errStop
	case errors.Is(err, ErrMalformed):
		q.stats.Unreadable++
		return nil
	}
	return err
}
