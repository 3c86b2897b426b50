package web

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	profilev1 "github.com/grafana/pyroscope/api/gen/proto/go/google/v1"
	querierv1 "github.com/grafana/pyroscope/api/gen/proto/go/querier/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/querier/v1/querierv1connect"
	typesv1 "github.com/grafana/pyroscope/api/gen/proto/go/types/v1"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/store"
)

// partialHeader is set on answers that reached a limit of the store; its value
// says which.
const partialHeader = "Spanflame-Partial"

// querier answers querier.v1.QuerierService from the embedded store. Times of
// requests are milliseconds since 1970, both ends included. What it does not
// have is answered as unimplemented.
type querier struct {
	querierv1connect.UnimplementedQuerierServiceHandler
	store Store
}

var errStoreOff = connect.NewError(connect.CodeUnavailable, errors.New("the embedded store is off (store.enabled)"))

func badRequest(err error) error { return connect.NewError(connect.CodeInvalidArgument, err) }

func unimplemented(what string) error {
	return connect.NewError(connect.CodeUnimplemented, fmt.Errorf("%s is not supported by the embedded store", what))
}

// queryError gives a store's error its code.
func queryError(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	case errors.Is(err, store.ErrClosed):
		return connect.NewError(connect.CodeUnavailable, err)
	}
	return connect.NewError(connect.CodeInternal, err)
}

// respond makes the answer and says if it is partial.
func respond[T any](msg *T, stats store.Stats) *connect.Response[T] {
	r := connect.NewResponse(msg)
	if stats.Cut != "" {
		r.Header().Set(partialHeader, stats.Cut)
	}
	return r
}

func (q *querier) ProfileTypes(ctx context.Context, req *connect.Request[querierv1.ProfileTypesRequest]) (*connect.Response[querierv1.ProfileTypesResponse], error) {
	if q.store == nil {
		return nil, errStoreOff
	}
	from, to, err := msRange(req.Msg.Start, req.Msg.End)
	if err != nil {
		return nil, badRequest(err)
	}
	ids, err := q.store.ProfileTypes(ctx, from, to)
	if err != nil {
		return nil, queryError(err)
	}
	out := &querierv1.ProfileTypesResponse{}
	for _, id := range ids {
		t, err := parseTypeID(id)
		if err != nil {
			return nil, queryError(err)
		}
		out.ProfileTypes = append(out.ProfileTypes, t)
	}
	return connect.NewResponse(out), nil
}

// parseTypeID splits name:type:unit:period_type:period_unit.
func parseTypeID(id string) (*typesv1.ProfileType, error) {
	p := strings.Split(id, ":")
	if len(p) != 5 || p[0] == "" {
		return nil, fmt.Errorf("profile type %.200q: want name:type:unit:period_type:period_unit", id)
	}
	return &typesv1.ProfileType{ID: id, Name: p[0], SampleType: p[1], SampleUnit: p[2], PeriodType: p[3], PeriodUnit: p[4]}, nil
}

// union asks for each of the alternative selectors and joins the answers.
func union(selectors [][]*labels.Matcher, f func([]*labels.Matcher) ([]string, store.Stats, error)) ([]string, store.Stats, error) {
	var (
		out   []string
		stats store.Stats
	)
	for _, ms := range selectors {
		part, st, err := f(ms)
		if err != nil {
			return nil, st, err
		}
		out = append(out, part...)
		if st.Cut != "" {
			stats = st
		}
	}
	slices.Sort(out)
	return slices.Compact(out), stats, nil
}

func (q *querier) LabelNames(ctx context.Context, req *connect.Request[typesv1.LabelNamesRequest]) (*connect.Response[typesv1.LabelNamesResponse], error) {
	if q.store == nil {
		return nil, errStoreOff
	}
	from, to, err := msRange(req.Msg.Start, req.Msg.End)
	if err != nil {
		return nil, badRequest(err)
	}
	selectors, err := parseSelectors(req.Msg.Matchers)
	if err != nil {
		return nil, badRequest(err)
	}
	names, stats, err := union(selectors, func(ms []*labels.Matcher) ([]string, store.Stats, error) {
		return q.store.LabelNames(ctx, ms, from, to)
	})
	if err != nil {
		return nil, queryError(err)
	}
	return respond(&typesv1.LabelNamesResponse{Names: names}, stats), nil
}

func (q *querier) LabelValues(ctx context.Context, req *connect.Request[typesv1.LabelValuesRequest]) (*connect.Response[typesv1.LabelValuesResponse], error) {
	if q.store == nil {
		return nil, errStoreOff
	}
	if req.Msg.Name == "" {
		return nil, badRequest(errors.New("name is missing"))
	}
	from, to, err := msRange(req.Msg.Start, req.Msg.End)
	if err != nil {
		return nil, badRequest(err)
	}
	selectors, err := parseSelectors(req.Msg.Matchers)
	if err != nil {
		return nil, badRequest(err)
	}
	values, stats, err := union(selectors, func(ms []*labels.Matcher) ([]string, store.Stats, error) {
		return q.store.LabelValues(ctx, req.Msg.Name, ms, from, to)
	})
	if err != nil {
		return nil, queryError(err)
	}
	return respond(&typesv1.LabelValuesResponse{Names: values}, stats), nil
}

func (q *querier) Series(ctx context.Context, req *connect.Request[querierv1.SeriesRequest]) (*connect.Response[querierv1.SeriesResponse], error) {
	if q.store == nil {
		return nil, errStoreOff
	}
	from, to, err := msRange(req.Msg.Start, req.Msg.End)
	if err != nil {
		return nil, badRequest(err)
	}
	selectors, err := parseSelectors(req.Msg.Matchers)
	if err != nil {
		return nil, badRequest(err)
	}
	var (
		all   []labels.Labels
		stats store.Stats
	)
	for _, ms := range selectors {
		part, st, err := q.store.Series(ctx, ms, req.Msg.LabelNames, from, to)
		if err != nil {
			return nil, queryError(err)
		}
		all = append(all, part...)
		if st.Cut != "" {
			stats = st
		}
	}
	slices.SortFunc(all, labels.Compare)
	all = slices.CompactFunc(all, labels.Equal)
	out := &querierv1.SeriesResponse{}
	for _, ls := range all {
		out.LabelsSet = append(out.LabelsSet, &typesv1.Labels{Labels: pairsOf(ls)})
	}
	return respond(out, stats), nil
}

func pairsOf(ls labels.Labels) []*typesv1.LabelPair {
	out := []*typesv1.LabelPair{}
	ls.Range(func(l labels.Label) { out = append(out, &typesv1.LabelPair{Name: l.Name, Value: l.Value}) })
	return out
}

// selection is what the requests for a merged profile have in common.
type selection struct {
	typeID   string
	matchers []*labels.Matcher
	from, to time.Time
}

func (q *querier) selection(typeID, selector string, start, end int64) (sel selection, err error) {
	if q.store == nil {
		return sel, errStoreOff
	}
	if _, err := parseTypeID(typeID); err != nil {
		return sel, badRequest(err)
	}
	sel.typeID = typeID
	if sel.matchers, err = parseSelector(selector); err != nil {
		return sel, badRequest(err)
	}
	if sel.from, sel.to, err = msRange(start, end); err != nil {
		return sel, badRequest(err)
	}
	return sel, nil
}

// tree answers the request for a tree that several calls make.
func (q *querier) tree(ctx context.Context, m *querierv1.SelectMergeStacktracesRequest) (*store.Tree, store.Stats, error) {
	if len(m.ProfileIdSelector) > 0 || len(m.TraceIdSelector) > 0 {
		return nil, store.Stats{}, unimplemented("selecting by profile or trace id")
	}
	if m.Async != nil && m.Async.Type != querierv1.AsyncQueryType_ASYNC_QUERY_TYPE_DISABLED {
		return nil, store.Stats{}, unimplemented("an asynchronous query")
	}
	sel, err := q.selection(m.ProfileTypeID, m.LabelSelector, m.Start, m.End)
	if err != nil {
		return nil, store.Stats{}, err
	}
	opts := store.TreeOptions{SpanIDs: m.SpanSelector}
	if opts.CallSite, err = callSite(m.StackTraceSelector); err != nil {
		return nil, store.Stats{}, err
	}
	t, stats, err := q.store.MergeTree(ctx, sel.typeID, sel.matchers, sel.from, sel.to, opts)
	if err != nil {
		return nil, stats, queryError(err)
	}
	return t, stats, nil
}

func callSite(s *typesv1.StackTraceSelector) ([]string, error) {
	if s == nil {
		return nil, nil
	}
	if s.GoPgo != nil {
		return nil, unimplemented("the Go PGO format")
	}
	if len(s.CallSite) > store.MaxStackDepth {
		return nil, badRequest(fmt.Errorf("more than %d functions in the call site", store.MaxStackDepth))
	}
	var out []string
	for _, l := range s.CallSite {
		out = append(out, l.GetName())
	}
	return out, nil
}

func (q *querier) SelectMergeStacktraces(ctx context.Context, req *connect.Request[querierv1.SelectMergeStacktracesRequest]) (*connect.Response[querierv1.SelectMergeStacktracesResponse], error) {
	m := req.Msg
	switch m.Format {
	case querierv1.ProfileFormat_PROFILE_FORMAT_UNSPECIFIED, querierv1.ProfileFormat_PROFILE_FORMAT_FLAMEGRAPH:
	case querierv1.ProfileFormat_PROFILE_FORMAT_PPROF:
		if len(m.SpanSelector) > 0 || m.StackTraceSelector != nil || len(m.ProfileIdSelector) > 0 || len(m.TraceIdSelector) > 0 {
			return nil, unimplemented("selecting stacks or ids for a pprof")
		}
		p, stats, err := q.profile(ctx, m.ProfileTypeID, m.LabelSelector, m.Start, m.End)
		if err != nil {
			return nil, err
		}
		return respond(&querierv1.SelectMergeStacktracesResponse{Pprof: &querierv1.PprofProfile{Profile: p}}, stats), nil
	default:
		return nil, unimplemented("the format " + m.Format.String())
	}
	t, stats, err := q.tree(ctx, m)
	if err != nil {
		return nil, err
	}
	return respond(&querierv1.SelectMergeStacktracesResponse{Flamegraph: flameGraph(t, nodeLimit(m.GetMaxNodes()))}, stats), nil
}

func (q *querier) SelectMergeSpanProfile(ctx context.Context, req *connect.Request[querierv1.SelectMergeSpanProfileRequest]) (*connect.Response[querierv1.SelectMergeSpanProfileResponse], error) {
	m := req.Msg
	if m.Format != querierv1.ProfileFormat_PROFILE_FORMAT_UNSPECIFIED && m.Format != querierv1.ProfileFormat_PROFILE_FORMAT_FLAMEGRAPH {
		return nil, unimplemented("the format " + m.Format.String())
	}
	if len(m.SpanSelector) == 0 {
		return nil, badRequest(errors.New("spanSelector is empty"))
	}
	t, stats, err := q.tree(ctx, &querierv1.SelectMergeStacktracesRequest{
		ProfileTypeID: m.ProfileTypeID, LabelSelector: m.LabelSelector, Start: m.Start, End: m.End, SpanSelector: m.SpanSelector,
	})
	if err != nil {
		return nil, err
	}
	return respond(&querierv1.SelectMergeSpanProfileResponse{Flamegraph: flameGraph(t, nodeLimit(m.GetMaxNodes()))}, stats), nil
}

func (q *querier) profile(ctx context.Context, typeID, selector string, start, end int64) (*profilev1.Profile, store.Stats, error) {
	sel, err := q.selection(typeID, selector, start, end)
	if err != nil {
		return nil, store.Stats{}, err
	}
	p, stats, err := q.store.MergeProfile(ctx, sel.typeID, sel.matchers, sel.from, sel.to)
	if err != nil {
		return nil, stats, queryError(err)
	}
	return p, stats, nil
}

// SelectMergeProfile answers with everything that is stored, whatever max_nodes
// says: a pprof is not for the screen.
func (q *querier) SelectMergeProfile(ctx context.Context, req *connect.Request[querierv1.SelectMergeProfileRequest]) (*connect.Response[profilev1.Profile], error) {
	m := req.Msg
	if len(m.ProfileIdSelector) > 0 || len(m.TraceIdSelector) > 0 || m.StackTraceSelector != nil {
		return nil, unimplemented("selecting stacks or ids for a pprof")
	}
	p, stats, err := q.profile(ctx, m.ProfileTypeID, m.LabelSelector, m.Start, m.End)
	if err != nil {
		return nil, err
	}
	return respond(p, stats), nil
}

func (q *querier) SelectSeries(ctx context.Context, req *connect.Request[querierv1.SelectSeriesRequest]) (*connect.Response[querierv1.SelectSeriesResponse], error) {
	m := req.Msg
	if m.StackTraceSelector != nil && len(m.StackTraceSelector.CallSite) > 0 {
		return nil, unimplemented("selecting stacks for a time series")
	}
	sel, err := q.selection(m.ProfileTypeID, m.LabelSelector, m.Start, m.End)
	if err != nil {
		return nil, err
	}
	if m.Start == 0 || m.End == 0 {
		return nil, badRequest(errors.New("start and end are needed"))
	}
	if math.IsNaN(m.Step) || m.Step < 0.001 || m.Step > 1e8 {
		return nil, badRequest(errors.New("step must be seconds, at least 0.001"))
	}
	if len(m.GroupBy) > store.MaxSeriesLabels {
		return nil, badRequest(fmt.Errorf("groupBy has more than %d labels", store.MaxSeriesLabels))
	}
	agg := store.Sum
	if m.GetAggregation() == typesv1.TimeSeriesAggregationType_TIME_SERIES_AGGREGATION_TYPE_AVERAGE {
		agg = store.Average
	}
	list, stats, err := q.store.SelectSeries(ctx, sel.typeID, sel.matchers, sel.from, sel.to, m.GroupBy,
		time.Duration(m.Step*float64(time.Second)), agg, int(max(0, min(m.GetLimit(), math.MaxInt32))))
	if errors.Is(err, store.ErrRange) {
		return nil, badRequest(err)
	}
	if err != nil {
		return nil, queryError(err)
	}
	out := &querierv1.SelectSeriesResponse{}
	for _, s := range list {
		ts := &typesv1.Series{Labels: pairsOf(s.Labels)}
		for _, p := range s.Points {
			ts.Points = append(ts.Points, &typesv1.Point{Timestamp: p.Time.UnixMilli(), Value: p.Value})
		}
		out.Series = append(out.Series, ts)
	}
	return respond(out, stats), nil
}

func (q *querier) Diff(ctx context.Context, req *connect.Request[querierv1.DiffRequest]) (*connect.Response[querierv1.DiffResponse], error) {
	if req.Msg.Left == nil || req.Msg.Right == nil {
		return nil, badRequest(errors.New("left and right are needed"))
	}
	l, stats, err := q.tree(ctx, req.Msg.Left)
	if err != nil {
		return nil, err
	}
	r, statsR, err := q.tree(ctx, req.Msg.Right)
	if err != nil {
		return nil, err
	}
	if stats.Cut == "" {
		stats = statsR
	}
	n := nodeLimit(max(req.Msg.Left.GetMaxNodes(), req.Msg.Right.GetMaxNodes()))
	return respond(&querierv1.DiffResponse{Flamegraph: diffGraph(l, r, n)}, stats), nil
}

func (q *querier) GetProfileStats(context.Context, *connect.Request[typesv1.GetProfileStatsRequest]) (*connect.Response[typesv1.GetProfileStatsResponse], error) {
	if q.store == nil {
		return nil, errStoreOff
	}
	out := &typesv1.GetProfileStatsResponse{}
	if oldest, newest := q.store.Bounds(); !newest.IsZero() {
		out.DataIngested, out.OldestProfileTime, out.NewestProfileTime = true, oldest.UnixMilli(), newest.UnixMilli()
	}
	return connect.NewResponse(out), nil
}
