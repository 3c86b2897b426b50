package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"time"

	profilev1 "github.com/grafana/pyroscope/api/gen/proto/go/google/v1"
	"github.com/prometheus/prometheus/model/labels"
	bolt "go.etcd.io/bbolt"
)

// Limits of one query. One that reaches a limit answers with what it has, the
// newest data, and says so in Stats.Cut.
const (
	maxQueriesAtOnce  = 2
	maxQueryTime      = 30 * time.Second
	maxQueryRows      = 3_000_000 // index rows looked at
	maxQueryProfiles  = 1_000_000 // profiles merged
	maxQueryBytes     = 1 << 30   // of symbols, decoded
	maxResultLabels   = 20_000    // label values, series
	maxResultSeries   = 2_000     // of SelectSeries
	maxPointsOfSeries = 11_000
)

// Stats tells what a query looked at.
type Stats struct {
	Profiles   int   // profiles that are in the answer
	Partitions int   // tables of symbols that were decoded for it
	Bytes      int64 // of these tables
	// Cut is why the answer is not whole, "" if it is.
	Cut string
}

type damageReport struct {
	seg *segment
	err error
}

// query is the state of one query.
type query struct {
	s        *Store
	ctx      context.Context
	stats    Stats
	rows     int
	from, to int64 // ns; to is exclusive
	matchers []*labels.Matcher
}

// cut remembers the first limit that was reached.
func (q *query) cut(format string, args ...any) {
	if q.stats.Cut == "" {
		q.stats.Cut = fmt.Sprintf(format, args...)
	}
}

var errStop = errors.New("limit reached")

// begin waits for a free place and sets the bounds. A zero from or to is open.
func (s *Store) begin(ctx context.Context, kind string, from, to time.Time, matchers []*labels.Matcher) (*query, func(), error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, maxQueryTime)
	select {
	case <-s.closed:
		cancel()
		return nil, nil, ErrClosed
	default:
	}
	select {
	case s.queries <- struct{}{}:
	case <-ctx.Done():
		cancel()
		return nil, nil, fmt.Errorf("wait for other queries: %w", ctx.Err())
	case <-s.closed:
		cancel()
		return nil, nil, ErrClosed
	}
	q := &query{s: s, ctx: ctx, from: 1, to: math.MaxInt64, matchers: matchers}
	if !from.IsZero() {
		q.from = from.UnixNano()
	}
	if !to.IsZero() {
		q.to = to.UnixNano()
	}
	// What is older than the retention may still be there, but not for long.
	q.from = max(q.from, s.opts.now().Add(-s.opts.Retention).UnixNano())
	return q, func() {
		<-s.queries
		cancel()
		s.metrics.queries.WithLabelValues(kind).Observe(time.Since(start).Seconds())
		if q.stats.Cut != "" {
			s.metrics.queriesCut.Inc()
		}
	}, nil
}

// eachSegment calls f for each segment that has data in the range, newest first.
func (q *query) eachSegment(f func(tx *bolt.Tx, seg *segment) error) error {
	q.s.mu.RLock()
	segs := slices.Clone(q.s.segments)
	q.s.mu.RUnlock()
	for _, seg := range slices.Backward(segs) {
		min, max := seg.bounds()
		if max == 0 || min >= q.to || max < q.from {
			continue
		}
		err := seg.view(func(tx *bolt.Tx) error { return f(tx, seg) })
		switch {
		case errors.Is(err, errStop):
			return nil
		case errors.Is(err, fs.ErrNotExist):
			// Deleted since the list was made.
		case errors.Is(err, errCorrupt):
			q.cut("a damaged part of the store was left out")
			select {
			case q.s.damage <- damageReport{seg, err}:
			default: // the next query reports it
			}
		case err != nil:
			return err
		}
	}
	return nil
}

// eachRow calls f for the index rows of the range.
func (q *query) eachRow(tx *bolt.Tx, f func(key []byte, row *indexRow) error) error {
	var row indexRow
	c := tx.Bucket(bucketIndex).Cursor()
	for k, v := c.Seek(indexKey(q.from, 0)); k != nil; k, v = c.Next() {
		if len(k) != indexKeyLen {
			return fmt.Errorf("index: %w", errCorrupt)
		}
		if indexKeyTime(k) >= q.to {
			return nil
		}
		if err := q.countRow(); err != nil {
			return err
		}
		if err := row.read(v); err != nil {
			return err
		}
		if err := f(k, &row); err != nil {
			return err
		}
	}
	return nil
}

func (q *query) countRow() error {
	q.rows++
	if q.rows > maxQueryRows {
		q.cut("more than %d profiles in the time range", maxQueryRows)
		return errStop
	}
	if q.rows%1024 == 0 {
		return q.check()
	}
	return nil
}

// check ends a query whose time is over. The caller's own end is an error; the
// store's limit cuts the answer.
func (q *query) check() error {
	if err := q.ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
		q.cut("the query took longer than %s", maxQueryTime)
		return errStop
	} else if err != nil {
		return err
	}
	return nil
}

// eachSeries calls f once for each series with a profile in the range that the
// matchers accept; more than once if it is in several segments.
func (q *query) eachSeries(f func(labels.Labels) error) error {
	return q.eachSegment(func(tx *bolt.Tx, seg *segment) error {
		series, err := loadSeries(tx)
		if err != nil {
			return err
		}
		if min, max := seg.bounds(); min < q.from || max >= q.to {
			// Only a part of the segment is in the range: look which.
			present := map[uint32]struct{}{}
			if err := q.eachRow(tx, func(_ []byte, row *indexRow) error {
				for _, sub := range row.subs {
					present[sub.series] = struct{}{}
				}
				return nil
			}); err != nil {
				return err
			}
			for n := range series {
				if _, ok := present[n]; !ok {
					delete(series, n)
				}
			}
		}
		for _, ls := range series {
			if ls.Has(labelSampleTypes) || !matchesAll(ls, q.matchers) {
				continue
			}
			if err := f(ls); err != nil {
				return err
			}
		}
		return nil
	})
}

// collect gathers strings, sorted, at most maxResultLabels.
func (q *query) collect(f func(ls labels.Labels, add func(string))) ([]string, error) {
	set := map[string]struct{}{}
	err := q.eachSeries(func(ls labels.Labels) error {
		f(ls, func(s string) { set[s] = struct{}{} })
		if len(set) > maxResultLabels {
			q.cut("more than %d values", maxResultLabels)
			return errStop
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(set))
	for s := range set {
		out = append(out, s)
	}
	slices.Sort(out)
	return out, nil
}

// LabelNames returns the names of the labels of the matching series.
func (s *Store) LabelNames(ctx context.Context, matchers []*labels.Matcher, from, to time.Time) ([]string, Stats, error) {
	q, end, err := s.begin(ctx, "label_names", from, to, matchers)
	if err != nil {
		return nil, Stats{}, err
	}
	defer end()
	names, err := q.collect(func(ls labels.Labels, add func(string)) {
		ls.Range(func(l labels.Label) { add(l.Name) })
	})
	return names, q.stats, err
}

// LabelValues returns the values of a label of the matching series.
func (s *Store) LabelValues(ctx context.Context, name string, matchers []*labels.Matcher, from, to time.Time) ([]string, Stats, error) {
	q, end, err := s.begin(ctx, "label_values", from, to, matchers)
	if err != nil {
		return nil, Stats{}, err
	}
	defer end()
	values, err := q.collect(func(ls labels.Labels, add func(string)) {
		if v := ls.Get(name); v != "" {
			add(v)
		}
	})
	return values, q.stats, err
}

// ProfileTypes returns the IDs of the profile types, such as
// "process_cpu:cpu:nanoseconds:cpu:nanoseconds".
func (s *Store) ProfileTypes(ctx context.Context, from, to time.Time) ([]string, error) {
	ids, _, err := s.LabelValues(ctx, LabelProfileType, nil, from, to)
	return ids, err
}

// Series returns the distinct label sets of the matching series, of the named
// labels only if there are any names. They are in order.
func (s *Store) Series(ctx context.Context, matchers []*labels.Matcher, names []string, from, to time.Time) ([]labels.Labels, Stats, error) {
	q, end, err := s.begin(ctx, "series", from, to, matchers)
	if err != nil {
		return nil, Stats{}, err
	}
	defer end()
	set := map[string]labels.Labels{}
	var key []byte
	err = q.eachSeries(func(ls labels.Labels) error {
		if len(names) > 0 {
			ls = labels.NewBuilder(ls).Keep(names...).Labels()
		}
		if ls.IsEmpty() {
			return nil
		}
		key = ls.Bytes(key)
		set[string(key)] = ls
		if len(set) > maxResultLabels {
			q.cut("more than %d series", maxResultLabels)
			return errStop
		}
		return nil
	})
	if err != nil {
		return nil, q.stats, err
	}
	out := make([]labels.Labels, 0, len(set))
	for _, ls := range set {
		out = append(out, ls)
	}
	slices.SortFunc(out, labels.Compare)
	return out, q.stats, nil
}

// Bounds returns the times of the oldest and the newest profile, zero if there
// is none.
func (s *Store) Bounds() (oldest, newest time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, seg := range s.segments {
		from, to := seg.bounds()
		if to == 0 {
			continue
		}
		if t := time.Unix(0, from); oldest.IsZero() || t.Before(oldest) {
			oldest = t
		}
		if t := time.Unix(0, to); t.After(newest) {
			newest = t
		}
	}
	return oldest, newest
}

// MergeProfile adds up the matching profiles of one type whose time is in
// [from, to).
func (s *Store) MergeProfile(ctx context.Context, typeID string, matchers []*labels.Matcher, from, to time.Time) (*profilev1.Profile, Stats, error) {
	m := newMerger(nil)
	stats, err := s.merge(ctx, "merge_profile", m, typeID, matchers, nil, from, to)
	if err != nil {
		return nil, stats, err
	}
	out := &profilev1.Profile{}
	if err := out.UnmarshalVT(m.encode()); err != nil {
		return nil, stats, fmt.Errorf("merge profiles: %w", err)
	}
	return out, stats, nil
}

// TreeOptions narrow a tree down. The zero value is everything.
type TreeOptions struct {
	CallSite []string // only stacks that begin, at the root, with these functions
	SpanIDs  []string // only samples with one of these span_id labels
}

// MergeTree adds up the matching profiles of one type by function name.
func (s *Store) MergeTree(ctx context.Context, typeID string, matchers []*labels.Matcher, from, to time.Time, opts TreeOptions) (*Tree, Stats, error) {
	m := newMerger(newTreeBuilder(opts.CallSite))
	stats, err := s.merge(ctx, "merge_tree", m, typeID, matchers, opts.SpanIDs, from, to)
	if err != nil {
		return nil, stats, err
	}
	return m.finishTree(), stats, nil
}

// typeMatcher is the condition that a series is of the type.
func typeMatcher(typeID string) *labels.Matcher {
	return labels.MustNewMatcher(labels.MatchEqual, LabelProfileType, typeID)
}
