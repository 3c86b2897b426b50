package store

import (
	"context"
	"errors"
	"maps"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("STORE_TEST_CHILD"); dir != "" {
		childWrites(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func TestAppendAndQuery(t *testing.T) {
	clk := newClock(t0.Add(2 * time.Minute))
	s, account := openStore(t, Options{now: clk.now})
	ctx := context.Background()
	for i := range 4 {
		at := t0.Add(time.Duration(i) * 15 * time.Second)
		appendAll(t, s,
			entry(t, cpuProfile(t, at, map[string]int64{"main;a": 70e7, "main;b": 30e7}, nil), "shop", "pod", "p1"),
			entry(t, cpuProfile(t, at, map[string]int64{"main;c": 10e7}, nil), "cart"))
	}
	if b := account.Balance(); b.In != 4*110 || b.Out != b.In || b.Lost() != 0 {
		t.Errorf("account = %+v", b)
	}

	types, err := s.ProfileTypes(ctx, t0, clk.now())
	if err != nil || !reflect.DeepEqual(types, []string{cpuID}) {
		t.Errorf("types = %v, %v", types, err)
	}
	names, _, err := s.LabelNames(ctx, matchers(t, LabelService, "cart"), t0, clk.now())
	want := []string{"__name__", "__period_type__", "__period_unit__", "__profile_type__", "__service_name__", "__type__", "__unit__", "service_name"}
	if err != nil || !reflect.DeepEqual(names, want) {
		t.Errorf("names = %v, %v", names, err)
	}
	values, _, err := s.LabelValues(ctx, LabelService, matchers(t, LabelProfileType, cpuID), t0, clk.now())
	if err != nil || !reflect.DeepEqual(values, []string{"cart", "shop"}) {
		t.Errorf("services = %v, %v", values, err)
	}
	if values, _, _ := s.LabelValues(ctx, LabelService, nil, t0.Add(-time.Hour), t0); len(values) != 0 {
		t.Errorf("services before the data = %v", values)
	}
	series, _, err := s.Series(ctx, nil, []string{LabelService, "pod"}, t0, clk.now())
	if err != nil || len(series) != 2 || series[0].Get("pod") != "p1" {
		t.Errorf("series = %v, %v", series, err)
	}

	for _, tc := range []struct {
		name     string
		m        []*labels.Matcher
		from, to time.Time
		want     map[string]int64
	}{
		{"one service", matchers(t, LabelService, "shop"), t0, clk.now(), map[string]int64{"main;a": 280e7, "main;b": 120e7}},
		{"all", nil, t0, clk.now(), map[string]int64{"main;a": 280e7, "main;b": 120e7, "main;c": 40e7}},
		{"a part of the time", matchers(t, LabelService, "shop"), t0.Add(15 * time.Second), t0.Add(45 * time.Second), map[string]int64{"main;a": 140e7, "main;b": 60e7}},
		{"none", matchers(t, LabelService, "nope"), t0, clk.now(), map[string]int64{}},
		{"by another label", matchers(t, "pod", "p1", LabelType, "cpu"), t0, t0.Add(time.Second), map[string]int64{"main;a": 70e7, "main;b": 30e7}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tree, stats, err := s.MergeTree(ctx, cpuID, tc.m, tc.from, tc.to, TreeOptions{})
			if err != nil || stats.Cut != "" {
				t.Fatal(err, stats)
			}
			if got := treeOf(tree); !maps.Equal(got, tc.want) {
				t.Errorf("tree = %v, want %v", got, tc.want)
			}
		})
	}

	ts, _, err := s.SelectSeries(ctx, cpuID, nil, t0.Add(-15*time.Second), t0.Add(time.Minute), []string{LabelService}, 30*time.Second, Sum, 0)
	if err != nil || len(ts) != 2 || ts[1].Labels.Get(LabelService) != "shop" {
		t.Fatalf("series = %v, %v", ts, err)
	}
	// Profiles at 0, 15, 30 and 45 s; steps end at 15 and 45 s.
	if got := ts[1].Points; len(got) != 2 || got[0].Value != 200e7 || !got[0].Time.Equal(t0.Add(15*time.Second)) || got[1].Value != 200e7 {
		t.Errorf("points = %v", got)
	}
	ts, _, err = s.SelectSeries(ctx, cpuID, nil, t0.Add(-15*time.Second), t0.Add(time.Minute), nil, time.Minute, Average, 0)
	if err != nil || len(ts) != 1 || ts[0].Points[0].Value != 55e7 {
		t.Errorf("average = %v, %v", ts, err)
	}
}

func TestMergeProfileEqualsGooglesMerge(t *testing.T) {
	clk := newClock(t0.Add(2 * time.Minute))
	s, _ := openStore(t, Options{now: clk.now})
	want := map[string]int64{}
	for i := range 5 {
		p := synthetic(t, 1, t0.Add(time.Duration(i)*time.Second), 200, 20)
		for _, smp := range p.Sample {
			smp.Label = map[string][]string{"http_route": {"/a"}}
			smp.NumLabel = map[string][]int64{"bytes": {int64(i%2 + 1)}}
			want[sampleText(smp)] += smp.Value[0]
		}
		appendAll(t, s, entry(t, p, "shop"))
	}
	merged, stats, err := s.MergeProfile(context.Background(), cpuID, nil, t0, clk.now())
	if err != nil || stats.Profiles != 5 {
		t.Fatal(err, stats)
	}
	got := map[string]int64{}
	for _, smp := range toGoogle(t, merged).Sample {
		got[sampleText(smp)] += smp.Value[0]
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d distinct samples, want %d, or other values", len(got), len(want))
	}
}

func TestSampleLabelsAreSeries(t *testing.T) {
	clk := newClock(t0.Add(20 * time.Minute))
	dir := t.TempDir()
	s, _ := openStore(t, Options{Path: dir, now: clk.now})
	route := func(stack string) map[string][]string {
		switch {
		case strings.HasSuffix(stack, "a"):
			return map[string][]string{"http_route": {"/a"}, "span_id": {"00f067aa0ba902b7"}}
		case strings.HasSuffix(stack, "b"):
			return map[string][]string{"http.route": {"/b"}, LabelService: {"a clash"}}
		}
		return nil
	}
	for i := range 6 {
		p := cpuProfile(t, t0.Add(time.Duration(i)*15*time.Second), map[string]int64{"main;a": 70e7, "main;b": 20e7, "main;c": 10e7}, route)
		appendAll(t, s, entry(t, p, "shop"))
	}
	ctx := context.Background()
	check := func(t *testing.T) {
		values, _, err := s.LabelValues(ctx, "http_route", nil, t0, clk.now())
		if err != nil || !reflect.DeepEqual(values, []string{"/a", "/b"}) {
			t.Errorf("routes = %v, %v", values, err)
		}
		if v, _, _ := s.LabelValues(ctx, "span_id", nil, t0, clk.now()); len(v) != 0 {
			t.Errorf("span_id became a series label: %v", v)
		}
		for _, tc := range []struct {
			name string
			m    []*labels.Matcher
			o    TreeOptions
			want map[string]int64
		}{
			{"route", matchers(t, "http_route", "/a"), TreeOptions{}, map[string]int64{"main;a": 420e7}},
			{"dots", matchers(t, "http_route", "/b"), TreeOptions{}, map[string]int64{"main;b": 120e7}},
			{"no route", matchers(t, "http_route", ""), TreeOptions{}, map[string]int64{"main;c": 60e7}},
			{"the series' label wins", matchers(t, LabelService, "shop"), TreeOptions{}, map[string]int64{"main;a": 420e7, "main;b": 120e7, "main;c": 60e7}},
			{"span", nil, TreeOptions{SpanIDs: []string{"00f067aa0ba902b7"}}, map[string]int64{"main;a": 420e7}},
			{"no such span", nil, TreeOptions{SpanIDs: []string{"1"}}, map[string]int64{}},
			{"call site", nil, TreeOptions{CallSite: []string{"main", "b"}}, map[string]int64{"main;b": 120e7}},
		} {
			tree, _, err := s.MergeTree(ctx, cpuID, tc.m, t0, clk.now(), tc.o)
			if err != nil {
				t.Fatal(err)
			}
			if got := treeOf(tree); !maps.Equal(got, tc.want) {
				t.Errorf("%s: tree = %v, want %v", tc.name, got, tc.want)
			}
		}
		ts, _, err := s.SelectSeries(ctx, cpuID, nil, t0.Add(-time.Second), clk.now(), []string{"http_route"}, time.Hour, Sum, 1)
		if err != nil || len(ts) != 1 || ts[0].Labels.Get("http_route") != "/a" || ts[0].Points[0].Value != 420e7 {
			t.Errorf("largest series = %v, %v", ts, err)
		}
	}
	t.Run("written", check)
	// After a restart the numbers of symbols go on.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = openStore(t, Options{Path: dir, now: clk.now})
	t.Run("reopened", check)
	appendAll(t, s, entry(t, cpuProfile(t, t0.Add(time.Second), map[string]int64{"main;a": 1e7, "main;new": 0}, nil), "shop"))
	tree, _, err := s.MergeTree(ctx, cpuID, nil, t0, clk.now(), TreeOptions{})
	if err != nil || tree.Total() != 601e7 {
		t.Errorf("total = %d, %v, want 601e7", tree.Total(), err)
	}
	tree, _, err = s.MergeTree(ctx, cpuID, nil, t0, t0.Add(40*time.Second), TreeOptions{})
	if err != nil || tree.Total() != 301e7 {
		t.Errorf("total of a part of a window = %d, %v, want 301e7", tree.Total(), err)
	}
}

func TestReopen(t *testing.T) {
	clk := newClock(t0.Add(time.Minute))
	dir := t.TempDir()
	opts := Options{Path: dir, now: clk.now}
	s, _ := openStore(t, opts)
	appendAll(t, s, entry(t, cpuProfile(t, t0, map[string]int64{"main;a": 1e7}, nil), "shop"))
	if _, err := Open(log.NewNopLogger(), nil, nil, opts); !errors.Is(err, ErrLocked) {
		t.Errorf("second open: %v, want ErrLocked", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(context.Background(), nil); err != nil {
		t.Error(err)
	}
	p := entry(t, cpuProfile(t, t0, map[string]int64{"main;a": 1e7}, nil), "shop")
	if err := s.Append(context.Background(), append(ps(), p)); !errors.Is(err, ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	if _, err := s.ProfileTypes(context.Background(), t0, clk.now()); !errors.Is(err, ErrClosed) {
		t.Errorf("query after close: %v", err)
	}
	s, _ = openStore(t, opts)
	appendAll(t, s, p)
	tree, _, err := s.MergeTree(context.Background(), cpuID, nil, t0, clk.now(), TreeOptions{})
	if err != nil || tree.Total() != 2e7 {
		t.Errorf("total after reopening = %d, %v", tree.Total(), err)
	}
}

func TestRetentionByAge(t *testing.T) {
	clk := newClock(t0)
	s, account := openStore(t, Options{Retention: time.Hour, now: clk.now})
	for i := range 180 { // three hours
		clk.set(t0.Add(time.Duration(i) * time.Minute))
		appendAll(t, s, entry(t, cpuProfile(t, clk.now(), map[string]int64{"main;a": 1e7}, nil), "shop"))
		tickNow(t, s)
	}
	tree, _, err := s.MergeTree(context.Background(), cpuID, nil, time.Time{}, time.Time{}, TreeOptions{})
	if err != nil || tree.Total() != 61e7 {
		t.Errorf("total = %d, %v, want one hour's 61e7", tree.Total(), err)
	}
	s.mu.RLock()
	oldest, _ := s.segments[0].bounds()
	s.mu.RUnlock()
	if age := clk.now().Sub(time.Unix(0, oldest)); age > 70*time.Minute {
		t.Errorf("the oldest profile on disk is %s old", age)
	}
	old := entry(t, cpuProfile(t, clk.now().Add(-2*time.Hour), map[string]int64{"main;a": 1e7}, nil), "shop")
	if err := s.Append(context.Background(), append(ps(), old)); err == nil {
		t.Error("a profile older than the retention was taken")
	}
	if b := account.Balance(); b.Dropped[ledger.TooOld] != 1 || b.Pending() != 0 {
		t.Errorf("account = %+v", b)
	}
}

func TestRetentionByBytes(t *testing.T) {
	clk := newClock(t0)
	dir := t.TempDir()
	reg := prometheus.NewPedanticRegistry()
	const maxBytes = 16 << 20
	s, err := Open(log.NewNopLogger(), reg, nil, Options{Path: dir, MaxBytes: maxBytes, now: clk.now})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var most int64
	next := unlike(t, 1000)
	for i := range 200 {
		clk.set(t0.Add(time.Duration(i) * 15 * time.Second))
		appendAll(t, s, next(clk.now(), "shop"))
		if i%20 == 0 {
			tickNow(t, s)
		}
		most = max(most, dirSize(t, dir))
	}
	if most > maxBytes {
		t.Errorf("%d bytes on disk, the limit is %d", most, maxBytes)
	}
	if most < maxBytes/2 {
		t.Errorf("only %d bytes of %d used: the test does not reach the limit", most, maxBytes)
	}
	if n := testutil.ToFloat64(s.metrics.evictedSegments.WithLabelValues("bytes")); n == 0 {
		t.Error("nothing evicted")
	}
	// The newest are there.
	tree, _, err := s.MergeTree(context.Background(), cpuID, nil, clk.now(), time.Time{}, TreeOptions{})
	if err != nil || tree.Total() == 0 {
		t.Errorf("newest profile: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"no path":   {},
		"retention": {Path: t.TempDir(), Retention: time.Second},
		"bytes":     {Path: t.TempDir(), MaxBytes: 1},
		"file":      {Path: "store_test.go"},
	} {
		if s, err := Open(nil, nil, nil, o); err == nil {
			t.Errorf("%s: accepted", name)
			_ = s.Close()
		}
	}
}

// A profile that cannot be decoded is counted, and takes nothing with it.
func TestBadProfileAmongGood(t *testing.T) {
	clk := newClock(t0)
	s, account := openStore(t, Options{now: clk.now})
	good := func(stack string) *profile.Profile {
		return entry(t, cpuProfile(t, t0, map[string]int64{stack: 1e7}, nil), "shop")
	}
	list := append(ps(), good("main;a"))
	for _, raw := range [][]byte{nil, []byte("x"), gz(t, nil), gz(t, []byte("x")), badLocation(t)} {
		p := *good("main;b")
		p.Pprof = raw
		list = append(list, &p)
	}
	list = append(list, good("main;c"))
	if err := s.Append(context.Background(), list); !errors.Is(err, ErrMalformed) {
		t.Errorf("err = %v", err)
	}
	appendAll(t, s, good("main;d"))
	if b := account.Balance(); b.In != 8 || b.Out != 3 || b.Dropped[ledger.StoreFailed] != 5 {
		t.Errorf("account = %+v", b)
	}
	want := map[string]int64{"main;a": 1e7, "main;c": 1e7, "main;d": 1e7}
	for range 2 {
		tree, _, err := s.MergeTree(context.Background(), cpuID, nil, time.Time{}, time.Time{}, TreeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := treeOf(tree); !maps.Equal(got, want) {
			t.Errorf("tree = %v, want %v", got, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s, _ = openStore(t, Options{Path: s.opts.Path, now: clk.now})
	}
}

// badLocation is a profile whose second sample cannot be decoded: its location
// is cut off.
func badLocation(t *testing.T) []byte {
	t.Helper()
	raw, err := gunzip(encode(t, cpuProfile(t, t0, map[string]int64{"main;b;x": 5}, nil)), nil, MaxPprofBytes)
	if err != nil {
		t.Fatal(err)
	}
	location := []byte{0x08, 99, 0x22, 0x05, 0x08, 0x01, 0x10} // id 99, a line longer than the rest
	sample := []byte{0x08, 99, 0x10, 1}                        // location 99, value 1
	raw = append(raw, 0x22, byte(len(location)))
	raw = append(raw, location...)
	raw = append(raw, 0x12, byte(len(sample)))
	return gz(t, append(raw, sample...))
}

func TestSeriesLimit(t *testing.T) {
	p := cpuProfile(t, t0, map[string]int64{}, nil)
	for i := range 700 {
		q := cpuProfile(t, t0, map[string]int64{"main;a": 1e7}, nil)
		q.Sample[0].Label = map[string][]string{"user": {string(rune('a'+i%26)) + strings.Repeat("x", i/26)}}
		q.Sample[0].Location = nil
		p.Sample = append(p.Sample, q.Sample...)
	}
	clk := newClock(t0)
	s, _ := openStore(t, Options{now: clk.now})
	appendAll(t, s, entry(t, p, "shop"))
	values, _, err := s.LabelValues(context.Background(), "user", nil, time.Time{}, time.Time{})
	if err != nil || len(values) != maxSeriesOfProfile-1 {
		t.Errorf("%d values, %v, want %d", len(values), err, maxSeriesOfProfile-1)
	}
	tree, _, err := s.MergeTree(context.Background(), cpuID, nil, time.Time{}, time.Time{}, TreeOptions{})
	if err != nil || tree.Total() != 700e7 {
		t.Errorf("total = %d, %v: samples beyond the limit are lost", tree.Total(), err)
	}
}

// TestLabelsOfOldStores reads label values that an older version has stored and that
// cannot be sent to anybody.
func TestLabelsOfOldStores(t *testing.T) {
	b, err := marshalLabels(labels.FromStrings("service_name", "a\xffb"))
	if err != nil {
		t.Fatal(err)
	}
	ls, err := unmarshalLabels(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := ls.Get("service_name"); got != "a\uFFFDb" {
		t.Errorf("%q", got)
	}
}
