package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	matched map[uint32]bool // of the series of the type: whether all matchers accept it
	types   map[uint32]typeNames
	w       wireProfile
	joined  []byte
}

// group is what a query has of one parent in one segment.
type group struct {
	parent     uint32
	valueIndex int
	partly     bool // some series of the type match and some do not: ask each stack
	sums       []int64
	profiles   int
}

// segment adds what a segment has: first the values by stack, for which only
// numbers are added up, then the stacks that have a value.
func (q *mergeQuery) segment(tx *bolt.Tx, _ *segment) error {
	var err error
	if q.series, err = loadSeries(tx); err != nil {
		return err
	}
	if !q.match() {
		return nil
	}
	groups := map[uint32]*group{}
	samples := tx.Bucket(bucketSamples)
	err = q.eachRow(tx, func(key []byte, row *indexRow) error {
		g := q.groupOf(groups, row)
		if g == nil {
			return nil
		}
		if q.stats.Profiles >= maxQueryProfiles {
			q.cut("more than %d profiles", maxQueryProfiles)
			return errStop
		}
		var err error
		if g.sums, err = addSamples(g.sums, samples.Get(key), len(q.types[row.parent].sample), g.valueIndex); err != nil {
			return err
		}
		g.profiles++
		q.stats.Profiles++
		q.addTimes(indexKeyTime(key), row)
		return nil
	})
	stopped := errors.Is(err, errStop)
	if err != nil && !stopped {
		return err
	}
	// In a fixed order, so that the same query has the same answer.
	for _, g := range slices.SortedFunc(maps.Values(groups), func(a, b *group) int { return cmp.Compare(a.parent, b.parent) }) {
		if err := q.addGroup(tx, g); err != nil {
			return err
		}
	}
	if stopped {
		return errStop
	}
	return nil
}

// match evaluates the matchers and reports whether any series is wanted.
func (q *mergeQuery) match() bool {
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
	return any
}

// groupOf returns the group of a row, nil if the row has no series that is
// wanted.
func (q *mergeQuery) groupOf(groups map[uint32]*group, row *indexRow) *group {
	wanted, partly, valueIndex := false, false, 0
	for _, sub := range row.subs {
		match, ofType := q.matched[sub.series]
		if !ofType {
			continue
		}
		valueIndex = int(sub.valueIndex)
		wanted = wanted || match
		partly = partly || !match
	}
	if !wanted || valueIndex >= len(q.types[row.parent].sample) {
		return nil
	}
	g := groups[row.parent]
	if g == nil {
		g = &group{parent: row.parent, valueIndex: valueIndex}
		groups[row.parent] = g
	}
	g.partly = g.partly || partly
	return g
}

// addTimes keeps what the result says of its time.
func (q *mergeQuery) addTimes(nanos int64, row *indexRow) {
	if q.m.timeNanos == 0 || nanos < q.m.timeNanos {
		q.m.timeNanos = nanos
	}
	q.m.durNanos = satAdd(q.m.durNanos, row.duration)
	if q.m.period == 0 {
		q.m.period = row.period
	}
}

// addGroup names the stacks of a group and adds them.
func (q *mergeQuery) addGroup(tx *bolt.Tx, g *group) error {
	if err := q.check(); err != nil {
		return err
	}
	var err error
	if q.joined, _, err = readPartition(tx, q.s.dec, g.parent, q.joined); err != nil {
		return err
	}
	q.stats.Partitions++
	if q.stats.Bytes += int64(len(q.joined)); q.stats.Bytes > maxQueryBytes {
		q.cut("more than %d MiB of symbols", maxQueryBytes>>20)
		return errStop
	}
	if err := q.w.scan(q.joined, maxPartitionStacks, maxPartitionTable); err != nil {
		return fmt.Errorf("symbols: %w: %w", errCorrupt, err)
	}
	if len(g.sums) > len(q.w.samples) {
		return fmt.Errorf("samples: a stack that there is not: %w", errCorrupt)
	}
	types := q.types[g.parent]
	q.m.setType(types, g.valueIndex)
	err = q.m.addStacks(&q.w, g.sums, q.keep(g, types))
	switch {
	case err == nil && q.m.tree != nil && q.m.tree.cut:
		q.cut("the tree has more than %d nodes: some stacks are cut", maxTreeNodes)
	case errors.Is(err, errMergeFull):
		q.cut("the merged profile has more than %d stacks or %d MiB", maxMergedStacks, maxMergedBytes>>20)
		return errStop
	case errors.Is(err, ErrMalformed):
		return fmt.Errorf("symbols: %w: %w", errCorrupt, err)
	}
	return err
}

// keep is the condition on a group's stacks, nil if all are wanted.
func (q *mergeQuery) keep(g *group, types typeNames) func([]stringLabel) bool {
	if !g.partly && len(q.spanIDs) == 0 {
		return nil
	}
	own := q.series[g.parent]
	return func(ls []stringLabel) bool {
		if len(q.spanIDs) > 0 && !slices.ContainsFunc(ls, func(l stringLabel) bool {
			return l.name == "span_id" && slices.Contains(q.spanIDs, l.value)
		}) {
			return false
		}
		return !g.partly || sampleMatches(own, types, g.valueIndex, ls, q.matchers)
	}
}
