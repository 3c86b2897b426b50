package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/go-kit/log"
	pprof "github.com/google/pprof/profile"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	querierv1 "github.com/grafana/pyroscope/api/gen/proto/go/querier/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/querier/v1/querierv1connect"
	typesv1 "github.com/grafana/pyroscope/api/gen/proto/go/types/v1"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/spanflame/spanflame/store"
)

const cpuID = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(log.NewNopLogger(), nil, nil, store.Options{Path: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// serve starts a server with a store on a free port and returns its URL.
func serve(t *testing.T, opts Options) string {
	t.Helper()
	if opts.ListenAddress == "" {
		opts.ListenAddress = "127.0.0.1:0"
	}
	srv, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + srv.Addr().String()
}

// profileOf makes a CPU profile of stacks, root first.
func profileOf(t testing.TB, at time.Time, stacks map[string]int64) []byte {
	t.Helper()
	p := &pprof.Profile{
		SampleType: []*pprof.ValueType{{Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &pprof.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Period:     1e7, TimeNanos: at.UnixNano(), DurationNanos: 15e9,
	}
	for stack, v := range stacks {
		s := &pprof.Sample{Value: []int64{v}}
		names := strings.Split(stack, ";")
		for i := len(names) - 1; i >= 0; i-- {
			f := &pprof.Function{ID: uint64(len(p.Function) + 1), Name: names[i], Filename: "x.go"}
			l := &pprof.Location{ID: f.ID, Line: []pprof.Line{{Function: f, Line: 3}}}
			p.Function, p.Location = append(p.Function, f), append(p.Location, l)
			s.Location = append(s.Location, l)
		}
		p.Sample = append(p.Sample, s)
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func pair(name, value string) *typesv1.LabelPair {
	return &typesv1.LabelPair{Name: name, Value: value}
}

// push sends a profile with the real client.
func push(t *testing.T, base, service string, raw []byte, extra ...*typesv1.LabelPair) error {
	t.Helper()
	c := pushv1connect.NewPusherServiceClient(http.DefaultClient, base, connect.WithSendGzip())
	_, err := c.Push(context.Background(), connect.NewRequest(&pushv1.PushRequest{Series: []*pushv1.RawProfileSeries{{
		Labels:  append([]*typesv1.LabelPair{pair("__name__", "process_cpu"), pair("service_name", service)}, extra...),
		Samples: []*pushv1.RawSample{{RawProfile: raw}},
	}}}))
	return err
}

// call posts JSON to a Connect method, as the page does it.
func call(t *testing.T, base, method string, req any) map[string]any {
	t.Helper()
	b, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(base+"/querier.v1.QuerierService/"+method, "application/json", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatalf("%s: %d: %v", method, resp.StatusCode, err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d: %v", method, resp.StatusCode, out)
	}
	return out
}

func TestPushAndQueryAsJSON(t *testing.T) {
	base := serve(t, Options{Store: newStore(t)})
	now := time.Now()
	at := now.Add(-time.Minute).Truncate(time.Millisecond)
	first := profileOf(t, at, map[string]int64{"main;a": 70, "main;b;c": 20, "main": 10})
	for _, raw := range [][]byte{first, first, profileOf(t, at.Add(15*time.Second), map[string]int64{"main;a": 30})} {
		if err := push(t, base, "shop", raw, pair("pod", "p1"), pair("k8s.node", "n1"), pair("__session_id__", "1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := push(t, base, "cart", profileOf(t, at, map[string]int64{"main;x": 5})); err != nil {
		t.Fatal(err)
	}
	ms := func(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) } // int64 as strings
	rng := func(kv ...any) map[string]any {
		m := map[string]any{"start": ms(now.Add(-time.Hour)), "end": ms(now.Add(time.Minute))}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1]
		}
		return m
	}
	want := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %#v,\nwant %#v", what, got, want)
		}
	}
	want("types", call(t, base, "ProfileTypes", rng()), map[string]any{"profileTypes": []any{map[string]any{
		"ID": cpuID, "name": "process_cpu", "sampleType": "cpu", "sampleUnit": "nanoseconds", "periodType": "cpu", "periodUnit": "nanoseconds"}}})
	want("values", call(t, base, "LabelValues", rng("name", "service_name", "matchers", []string{`{__profile_type__="` + cpuID + `"}`})),
		map[string]any{"names": []any{"cart", "shop"}})
	want("union", call(t, base, "LabelValues", rng("name", "service_name", "matchers", []string{`{pod="p1"}`, `{service_name=~"ca.*"}`})),
		map[string]any{"names": []any{"cart", "shop"}})
	want("names", call(t, base, "LabelNames", rng("matchers", []string{`{pod="p1"}`})), map[string]any{"names": []any{
		"__name__", "__period_type__", "__period_unit__", "__profile_type__", "__service_name__", "__type__", "__unit__", "k8s_node", "pod", "service_name"}})
	want("series", call(t, base, "Series", rng("labelNames", []string{"service_name"})), map[string]any{"labelsSet": []any{
		map[string]any{"labels": []any{map[string]any{"name": "service_name", "value": "cart"}}},
		map[string]any{"labels": []any{map[string]any{"name": "service_name", "value": "shop"}}}}})

	sel := rng("profileTypeID", cpuID, "labelSelector", `{service_name="shop"}`)
	want("flame graph", call(t, base, "SelectMergeStacktraces", sel), map[string]any{"flamegraph": map[string]any{
		"names": []any{"total", "main", "a", "b", "c"},
		"total": "130", "maxSelf": "100",
		"levels": []any{
			map[string]any{"values": []any{"0", "130", "0", "0"}},
			map[string]any{"values": []any{"0", "130", "10", "1"}},
			map[string]any{"values": []any{"10", "100", "100", "2", "0", "20", "0", "3"}},
			map[string]any{"values": []any{"110", "20", "20", "4"}},
		}}})
	sel["maxNodes"] = "3"
	want("cut flame graph", call(t, base, "SelectMergeStacktraces", sel)["flamegraph"].(map[string]any)["levels"], []any{
		map[string]any{"values": []any{"0", "130", "0", "0"}},
		map[string]any{"values": []any{"0", "130", "10", "1"}},
		map[string]any{"values": []any{"10", "100", "100", "2", "0", "20", "20", "3"}},
	})
	series := call(t, base, "SelectSeries", map[string]any{"profileTypeID": cpuID, "labelSelector": "{}", "start": ms(at.Add(-15 * time.Second)),
		"end": ms(at.Add(time.Minute)), "step": 15, "groupBy": []string{"service_name"}})
	want("points", series["series"].([]any)[1], map[string]any{
		"labels": []any{map[string]any{"name": "service_name", "value": "shop"}},
		"points": []any{map[string]any{"timestamp": ms(at), "value": 100.0}, map[string]any{"timestamp": ms(at.Add(15 * time.Second)), "value": 30.0}}})
	diff := call(t, base, "Diff", map[string]any{"left": rng("profileTypeID", cpuID, "labelSelector", `{service_name="shop"}`),
		"right": rng("profileTypeID", cpuID, "labelSelector", `{service_name="cart"}`)})["flamegraph"].(map[string]any)
	want("diff", diff["levels"], []any{
		map[string]any{"values": []any{"0", "130", "0", "0", "5", "0", "0"}},
		map[string]any{"values": []any{"0", "130", "10", "0", "5", "0", "1"}},
		map[string]any{"values": []any{"10", "100", "100", "0", "0", "0", "2", "0", "20", "0", "0", "0", "0", "3", "0", "0", "0", "0", "5", "5", "4"}},
		map[string]any{"values": []any{"110", "20", "20", "0", "0", "0", "5"}},
	})
	stats := call(t, base, "GetProfileStats", map[string]any{})
	want("stats", stats, map[string]any{"dataIngested": true, "oldestProfileTime": ms(at), "newestProfileTime": ms(at.Add(15 * time.Second))})

	// The pprof opens in Google's own reader.
	c := querierv1connect.NewQuerierServiceClient(http.DefaultClient, base)
	resp, err := c.SelectMergeProfile(context.Background(), connect.NewRequest(&querierv1.SelectMergeProfileRequest{
		ProfileTypeID: cpuID, LabelSelector: `{service_name="shop"}`, Start: now.Add(-time.Hour).UnixMilli(), End: now.UnixMilli()}))
	if err != nil {
		t.Fatal(err)
	}
	b, err := resp.Msg.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	p, err := pprof.ParseData(b)
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, s := range p.Sample {
		sum += s.Value[0]
	}
	if sum != 130 || p.PeriodType.Type != "cpu" || p.Period != 1e7 {
		t.Errorf("pprof: sum %d, period %v %d", sum, p.PeriodType, p.Period)
	}
	// gRPC over clear-text HTTP/2 works too.
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	h2 := &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	defer h2.CloseIdleConnections()
	if _, err := querierv1connect.NewQuerierServiceClient(h2, base, connect.WithGRPC()).ProfileTypes(context.Background(), connect.NewRequest(&querierv1.ProfileTypesRequest{})); err != nil {
		t.Errorf("gRPC: %v", err)
	}
}

func TestRefusedQueries(t *testing.T) {
	base := serve(t, Options{Store: newStore(t)})
	for name, tc := range map[string]struct {
		method, body string
		code         int
	}{
		"bad JSON":          {"ProfileTypes", "{", 400},
		"bad selector":      {"SelectMergeStacktraces", `{"profileTypeID":"` + cpuID + `","labelSelector":"{a="}`, 400},
		"bad type":          {"SelectMergeStacktraces", `{"profileTypeID":"cpu"}`, 400},
		"no label":          {"LabelValues", `{}`, 400},
		"reversed":          {"LabelNames", `{"start":"2","end":"1"}`, 400},
		"far future":        {"LabelNames", `{"start":"9223372036854775807"}`, 400},
		"no step":           {"SelectSeries", `{"profileTypeID":"` + cpuID + `","start":"1","end":"2"}`, 400},
		"too many steps":    {"SelectSeries", `{"profileTypeID":"` + cpuID + `","start":"1","end":"99999999999","step":1}`, 400},
		"heatmap":           {"SelectHeatmap", `{}`, 501},
		"tree format":       {"SelectMergeStacktraces", `{"profileTypeID":"` + cpuID + `","format":"PROFILE_FORMAT_TREE"}`, 501},
		"span without ids":  {"SelectMergeSpanProfile", `{"profileTypeID":"` + cpuID + `"}`, 400},
		"half a diff":       {"Diff", `{"left":{"profileTypeID":"` + cpuID + `"}}`, 400},
		"large":             {"LabelNames", `{"matchers":["` + strings.Repeat("a", 2<<20) + `"]}`, 413},
		"long selector":     {"LabelNames", `{"matchers":["{a=\"` + strings.Repeat("a", 20<<10) + `\"}"]}`, 400},
		"many selectors":    {"LabelNames", `{"matchers":[` + strings.Repeat(`"{}",`, 20) + `"{}"]}`, 400},
		"go pgo":            {"SelectMergeStacktraces", `{"profileTypeID":"` + cpuID + `","stackTraceSelector":{"goPgo":{}}}`, 501},
		"unknown method":    {"Nope", `{}`, 404},
		"an empty answer":   {"ProfileTypes", `{}`, 200},
		"no data, no nodes": {"SelectMergeStacktraces", `{"profileTypeID":"` + cpuID + `"}`, 200},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := http.Post(base+"/querier.v1.QuerierService/"+tc.method, "application/json", strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tc.code {
				t.Errorf("%d %.200s, want %d", resp.StatusCode, b, tc.code)
			}
		})
	}
}

func TestRefusedPushes(t *testing.T) {
	base := serve(t, Options{Store: newStore(t)})
	now := time.Now()
	good := profileOf(t, now, map[string]int64{"main": 1})
	many := make([]*typesv1.LabelPair, 40)
	for i := range many {
		many[i] = pair(fmt.Sprintf("l%d", i), "v")
	}
	bomb := gzipped(t, make([]byte, 64<<20))
	for name, tc := range map[string]struct {
		raw   []byte
		extra []*typesv1.LabelPair
		code  connect.Code
	}{
		"good":            {good, nil, 0},
		"garbage":         {[]byte("hello"), nil, connect.CodeInvalidArgument},
		"empty":           {nil, nil, connect.CodeInvalidArgument},
		"bad gzip":        {[]byte{0x1f, 0x8b, 1, 2, 3}, nil, connect.CodeInvalidArgument},
		"gzip bomb":       {bomb, nil, connect.CodeInvalidArgument},
		"too old":         {profileOf(t, now.Add(-2*time.Hour), map[string]int64{"main": 1}), nil, connect.CodeInvalidArgument},
		"too new":         {profileOf(t, now.Add(time.Hour), map[string]int64{"main": 1}), nil, connect.CodeInvalidArgument},
		"labels":          {good, many, connect.CodeInvalidArgument},
		"label name":      {good, []*typesv1.LabelPair{pair("a-b", "c")}, connect.CodeInvalidArgument},
		"label twice":     {good, []*typesv1.LabelPair{pair("a", "c"), pair("a", "d")}, connect.CodeInvalidArgument},
		"long value":      {good, []*typesv1.LabelPair{pair("a", strings.Repeat("x", 3000))}, connect.CodeInvalidArgument},
		"larger than all": {bytes.Repeat([]byte("x"), 17<<20), nil, connect.CodeResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			err := push(t, base, "shop", tc.raw, tc.extra...)
			if tc.code == 0 && err != nil || tc.code != 0 && connect.CodeOf(err) != tc.code {
				t.Errorf("%v, want %v", err, tc.code)
			}
		})
	}
	c := pushv1connect.NewPusherServiceClient(http.DefaultClient, base)
	_, err := c.Push(context.Background(), connect.NewRequest(&pushv1.PushRequest{Series: []*pushv1.RawProfileSeries{
		{Samples: []*pushv1.RawSample{{RawProfile: good}}}}}))
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("no __name__: %v", err)
	}
}

func TestStoreOff(t *testing.T) {
	base := serve(t, Options{})
	for _, req := range [][2]string{{"POST", "/querier.v1.QuerierService/ProfileTypes"}, {"POST", "/push.v1.PusherService/Push"}, {"POST", "/ingest?name=a"}, {"GET", "/pyroscope/render?query=" + cpuID}} {
		r, _ := http.NewRequest(req[0], base+req[1], strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %d, want 503", req[1], resp.StatusCode)
		}
	}
}

func TestIngestAndRender(t *testing.T) {
	base := serve(t, Options{Store: newStore(t)})
	now := time.Now()
	raw := profileOf(t, now.Add(-30*time.Second), map[string]int64{"main;a": 70, "main;b": 30})
	post := func(query, contentType string, body io.Reader) int {
		t.Helper()
		resp, err := http.Post(base+"/ingest?"+query, contentType, body)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	name := url.QueryEscape(`my.app{env=prod,region="eu"}`)
	if code := post("format=pprof&name="+name, "application/octet-stream", bytes.NewReader(raw)); code != 200 {
		t.Fatalf("raw: %d", code)
	}
	var form bytes.Buffer
	form.WriteString("--xx\r\nContent-Disposition: form-data; name=\"sample_type_config\"\r\n\r\n{}\r\n--xx\r\nContent-Disposition: form-data; name=\"profile\"; filename=\"p\"\r\n\r\n")
	form.Write(profileOf(t, now.Add(-15*time.Second), map[string]int64{"main;a": 100}))
	form.WriteString("\r\n--xx--\r\n")
	if code := post("name=my.app", "multipart/form-data; boundary=xx", &form); code != 200 {
		t.Fatalf("multipart: %d", code)
	}
	for q, want := range map[string]int{"": 400, "name=%7Ba=b%7D": 400, "name=a%7Bb": 400, "name=a&format=jfr": 422, "name=a": 422} {
		if code := post(q, "text/plain", strings.NewReader("x")); code != want {
			t.Errorf("%q: %d, want %d", q, code, want)
		}
	}
	if code := post("name=a", "text/plain", bytes.NewReader(make([]byte, 17<<20))); code != 413 {
		t.Errorf("large: %d, want 413", code)
	}
	resp, err := http.Get(base + "/pyroscope/render?from=now-15m&until=now&query=" + url.QueryEscape(cpuID+`{service_name="my.app", env="prod"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var fb flamebearer
	if err := json.NewDecoder(resp.Body).Decode(&fb); err != nil {
		t.Fatal(err)
	}
	if fb.Flamebearer.NumTicks != 100 || !reflect.DeepEqual(fb.Flamebearer.Levels, [][]int64{{0, 100, 0, 0}, {0, 100, 0, 1}, {0, 70, 70, 2, 0, 30, 30, 3}}) {
		t.Errorf("render = %+v", fb.Flamebearer)
	}
	sum := uint64(0)
	for _, v := range fb.Timeline.Samples {
		sum += v
	}
	if sum != 100 {
		t.Errorf("timeline adds up to %d", sum)
	}
	for _, q := range []string{"", "query=x", "query=" + cpuID + "%7Ba%3D", "query=" + cpuID + "&from=now-9x", "query=" + cpuID + "&from=now&until=now-1h", "query=" + cpuID + "&from=99999999999999999", "query=" + cpuID + "&max-nodes=x"} {
		resp, err := http.Get(base + "/pyroscope/render?" + q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("render?%s: %d, want 400", q, resp.StatusCode)
		}
	}
}

func TestParseTime(t *testing.T) {
	now := time.Unix(1_796_119_200, 0)
	for s, want := range map[string]time.Time{
		"": now, "now": now, "now-15m": now.Add(-15 * time.Minute), "now-2d": now.Add(-48 * time.Hour), "now+1h": now.Add(time.Hour),
		"1796119200": now, "1796119200000": now, "1796119200000000": now, "1796119200000000000": now,
	} {
		if got, err := parseTime(s, now, now); err != nil || !got.Equal(want) {
			t.Errorf("%q = %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"now-", "now-15", "now15m", "now-999999999w", "yesterday", "-1", "0", "99999999999", "9223372036854775807", "now-2147483647d"} {
		if got, err := parseTime(s, now, now); err == nil {
			t.Errorf("%q = %v, want an error", s, got)
		}
	}
}

func TestPagesAndGuards(t *testing.T) {
	reloads := 0
	base := serve(t, Options{
		Store: newStore(t),
		Targets: func(context.Context) TargetsPage {
			return TargetsPage{Processes: []Process{{PID: 7, Comm: "a\xffb", Why: "job host"}}}
		},
		Status: func() any { return map[string]any{"version": "1"} },
		Reload: func(context.Context) error { reloads++; return nil },
		Ready:  func() error { return fmt.Errorf("first round not done") },
	})
	host := strings.TrimPrefix(base, "http://")
	for name, tc := range map[string]struct {
		method, path string
		header       map[string]string
		code         int
		contains     string
	}{
		"page":                  {"GET", "/", nil, 200, "Spanflame"},
		"a view of the page":    {"GET", "/targets", nil, 200, "Spanflame"},
		"no such file":          {"GET", "/assets/nope.js", nil, 404, ""},
		"traversal":             {"GET", "/assets/../../server.go", nil, 404, ""},
		"encoded traversal":     {"GET", "/%2e%2e/%2e%2e/etc/passwd", nil, 404, ""},
		"encoded slash":         {"GET", "/..%2f..%2fetc%2fpasswd.html", nil, 404, ""},
		"post to the page":      {"POST", "/", nil, 405, ""},
		"metrics":               {"GET", "/metrics", nil, 200, "spanflame_http_requests_total"},
		"healthy":               {"GET", "/-/healthy", nil, 200, "healthy"},
		"not ready":             {"GET", "/-/ready", nil, 503, "first round"},
		"targets":               {"GET", "/api/v1/targets", nil, 200, `"pid":7`},
		"targets, no unmatched": {"GET", "/api/v1/targets", nil, 200, `"unmatched":[]`},
		"status":                {"GET", "/api/v1/status", nil, 200, `"version":"1"`},
		"unknown api":           {"GET", "/api/v1/nope", nil, 404, ""},
		"reload by get":         {"GET", "/-/reload", nil, 404, ""},
		"reload":                {"POST", "/-/reload", nil, 200, "reloaded"},
		"reload by a site":      {"POST", "/-/reload", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, ""},
		"reload by a neighbour": {"POST", "/-/reload", map[string]string{"Sec-Fetch-Site": "same-site"}, 403, ""},
		"reload by origin":      {"POST", "/-/reload", map[string]string{"Origin": "http://evil.example"}, 403, ""},
		"reload by null origin": {"POST", "/-/reload", map[string]string{"Origin": "null"}, 403, ""},
		"reload by the page":    {"POST", "/-/reload", map[string]string{"Origin": base, "Sec-Fetch-Site": "same-origin"}, 200, ""},
		"reload by own origin":  {"POST", "/-/reload", map[string]string{"Origin": base}, 200, ""},
		"api by a site":         {"GET", "/api/v1/targets", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, ""},
		"query by a site":       {"POST", "/querier.v1.QuerierService/ProfileTypes", map[string]string{"Origin": "https://evil.example"}, 403, ""},
		"link from a site":      {"GET", "/", map[string]string{"Sec-Fetch-Site": "cross-site"}, 200, ""},
		"rebinding":             {"GET", "/api/v1/targets", map[string]string{"Host": "evil.example:4041"}, 403, "loopback"},
		"rebinding the page":    {"GET", "/", map[string]string{"Host": "evil.example"}, 403, ""},
		"localhost":             {"GET", "/", map[string]string{"Host": "localhost:4041"}, 200, ""},
		"IPv6":                  {"GET", "/", map[string]string{"Host": "[::1]:4041"}, 200, ""},
		"own profile":           {"GET", "/debug/pprof/heap", nil, 200, ""},
		"own profile, too long": {"GET", "/debug/pprof/profile?seconds=3600", nil, 400, ""},
		"own profile, NaN":      {"GET", "/debug/pprof/trace?seconds=NaN", nil, 400, ""},
		"own profile by post":   {"POST", "/debug/pprof/symbol", nil, 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &http.Request{Method: tc.method, URL: &url.URL{Scheme: "http", Host: host}, Header: http.Header{}}
			r.URL.Opaque = tc.path // as it is, not cleaned
			if p, q, ok := strings.Cut(tc.path, "?"); ok {
				r.URL = &url.URL{Scheme: "http", Host: host, Path: p, RawQuery: q}
			}
			for k, v := range tc.header {
				if k == "Host" {
					r.Host = v
				}
				r.Header.Set(k, v)
			}
			client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: http.DefaultTransport}
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			redirected := strings.Contains(name, "traversal") && resp.StatusCode/100 == 3
			if resp.StatusCode != tc.code && !redirected || !bytes.Contains(b, []byte(tc.contains)) {
				t.Errorf("%d %.200s, want %d %q", resp.StatusCode, b, tc.code, tc.contains)
			}
			if bytes.Contains(b, []byte("root:")) {
				t.Error("a file of the host was served")
			}
			for k, v := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Content-Security-Policy": contentPolicy} {
				if resp.Header.Get(k) != v {
					t.Errorf("%s = %q", k, resp.Header.Get(k))
				}
			}
		})
	}
	if reloads != 3 {
		t.Errorf("%d reloads, want 3", reloads)
	}
}

func TestPageFiles(t *testing.T) {
	big := bytes.Repeat([]byte("a"), 4096)
	p := &page{files: map[string]*pageFile{
		"/index.html":    {data: []byte("<html>"), contentType: "text/html"},
		"/assets/x-1.js": {data: big, gz: gzipped(t, big), contentType: "text/javascript", immutable: true},
	}}
	get := func(path, encoding string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Accept-Encoding", encoding)
		p.ServeHTTP(w, r)
		return w
	}
	if w := get("/assets/x-1.js", "gzip, br"); w.Header().Get("Cache-Control") != "public, max-age=31536000, immutable" || w.Header().Get("Content-Encoding") != "gzip" || w.Body.Len() > 1000 {
		t.Errorf("hashed file: %v", w.Header())
	}
	if w := get("/assets/x-1.js", "gzip;q=0"); w.Header().Get("Content-Encoding") != "" || w.Body.Len() != 4096 {
		t.Errorf("hashed file, not compressed: %v", w.Header())
	}
	if w := get("/", ""); w.Header().Get("Cache-Control") != "no-cache" || w.Body.String() != "<html>" {
		t.Errorf("page: %v %s", w.Header(), w.Body)
	}
}

func TestListen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	srv, err := New(Options{ListenAddress: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	err = srv.Listen()
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "server.listen_address") || !strings.Contains(err.Error(), "in use") {
		t.Errorf("port in use: %v", err)
	}
	for _, addr := range []string{"nonsense", "127.0.0.1:x", "127.0.0.1:99999"} {
		if _, err := New(Options{ListenAddress: addr}); err == nil {
			t.Errorf("%s: accepted", addr)
		}
	}
	reg := prometheus.NewRegistry()
	if _, err := New(Options{Registry: reg}); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Registry: reg}); err == nil {
		t.Error("two servers on one registry")
	}
}

func TestBasicAuth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yml")
	// The password is "secret" (bcrypt, cost 4: a test only).
	hash, err := bcryptHash("secret")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("basic_auth_users:\n  admin: "+hash+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := serve(t, Options{ConfigFile: file})
	for pass, want := range map[string]int{"": 401, "wrong": 401, "secret": 200} {
		r, _ := http.NewRequest("GET", base+"/", nil)
		if pass != "" {
			r.SetBasicAuth("admin", pass)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("password %q: %d, want %d", pass, resp.StatusCode, want)
		}
	}
	if err := os.WriteFile(file, []byte("nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{ConfigFile: file}); err == nil || !strings.Contains(err.Error(), "web_config_file") {
		t.Errorf("bad web configuration: %v", err)
	}
}

func TestPanicIsAnAnswer(t *testing.T) {
	base := serve(t, Options{Status: func() any { panic("boom") }})
	resp, err := http.Get(base + "/api/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 500 {
		t.Errorf("%d, want 500", resp.StatusCode)
	}
}
