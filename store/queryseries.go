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

// ErrRange says that a time range or step cannot be answered.
var ErrRange = errors.New("bad time range")

// Aggregation says how the profiles of one step become one value.
type Aggregation int

// The aggregations of Pyroscope's API.
const (
	Sum Aggregation = iota
	Average
)

// TimeSeries is a series of sums.
type TimeSeries struct {
	Labels labels.Labels // the grouped ones
	Points []Point
}

// Point is the value of one step: of profiles with a time in (Time-step, Time].
type Point struct {
	Time  time.Time
	Value float64
}

type cell struct{ sum, n float64 }

// SelectSeries sums the matching profiles of one type up by the labels groupBy
// and by step, counted from from. Steps without a profile are left out. At most
// limit series are returned, those with the largest sums; 0 is no limit but the
// store's.
func (s *Store) SelectSeries(ctx context.Context, typeID string, matchers []*labels.Matcher, from, to time.Time, groupBy []string, step time.Duration, agg Aggregation, limit int) ([]TimeSeries, Stats, error) {
	if step < time.Millisecond {
		return nil, Stats{}, fmt.Errorf("%w: a step of %s is too small", ErrRange, step)
	}
	if from.IsZero() || to.IsZero() || !from.Before(to) {
		return nil, Stats{}, fmt.Errorf("%w: from %s to %s is empty", ErrRange, from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	if n := to.Sub(from) / step; n > maxPointsOfSeries {
		return nil, Stats{}, fmt.Errorf("%w: %d steps, at most %d; ask for a longer step", ErrRange, n, maxPointsOfSeries)
	}
	matchers = append([]*labels.Matcher{typeMatcher(typeID)}, matchers...)
	q, end, err := s.begin(ctx, "select_series", from, to, matchers)
	if err != nil {
		return nil, Stats{}, err
	}
	defer end()

	type group struct {
		labels labels.Labels
		cells  map[int64]cell
		sum    float64
	}
	groups := map[string]*group{}
	var key []byte
	base := from.UnixNano()
	err = q.eachSegment(func(tx *bolt.Tx, _ *segment) error {
		series, err := loadSeries(tx)
		if err != nil {
			return err
		}
		of := map[uint32]*group{}
		for n, ls := range series {
			if ls.Has(labelSampleTypes) || !matchesAll(ls, matchers) {
				continue
			}
			by := labels.NewBuilder(ls).Keep(groupBy...).Labels()
			if len(groupBy) == 0 {
				by = labels.EmptyLabels()
			}
			key = by.Bytes(key)
			g := groups[string(key)]
			if g == nil {
				if len(groups) >= maxResultSeries {
					q.cut("more than %d series", maxResultSeries)
					continue
				}
				g = &group{labels: by, cells: map[int64]cell{}}
				groups[string(key)] = g
			}
			of[n] = g
		}
		if len(of) == 0 {
			return nil
		}
		return q.eachRow(tx, func(k []byte, row *indexRow) error {
			at := (indexKeyTime(k) - base + int64(step) - 1) / int64(step)
			for i, sub := range row.subs {
				g := of[sub.series]
				if g == nil {
					continue
				}
				c := g.cells[at]
				c.sum += float64(sub.total)
				if !slices.ContainsFunc(row.subs[:i], func(o indexSub) bool { return of[o.series] == g }) {
					c.n++ // a profile counts once, however many of its series are in the group
					q.stats.Profiles++
				}
				g.cells[at] = c
				g.sum += float64(sub.total)
			}
			return nil
		})
	})
	if err != nil {
		return nil, q.stats, err
	}
	list := make([]*group, 0, len(groups))
	for _, g := range groups {
		if len(g.cells) > 0 {
			list = append(list, g)
		}
	}
	if limit > 0 && len(list) > limit {
		slices.SortFunc(list, func(a, b *group) int {
			if a.sum != b.sum {
				if a.sum > b.sum {
					return -1
				}
				return 1
			}
			return labels.Compare(a.labels, b.labels)
		})
		list = list[:limit]
	}
	slices.SortFunc(list, func(a, b *group) int { return labels.Compare(a.labels, b.labels) })
	out := make([]TimeSeries, 0, len(list))
	for _, g := range list {
		ts := TimeSeries{Labels: g.labels, Points: make([]Point, 0, len(g.cells))}
		for at, c := range g.cells {
			v := c.sum
			if agg == Average {
				v /= c.n
			}
			ts.Points = append(ts.Points, Point{time.Unix(0, base+at*int64(step)), v})
		}
		slices.SortFunc(ts.Points, func(a, b Point) int { return a.Time.Compare(b.Time) })
		out = append(out, ts)
	}
	return out, q.stats, nil
}
