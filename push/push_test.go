package push

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	promconfig "github.com/prometheus/common/config"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

func TestRequest(t *testing.T) {
	f := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) { ok(w) })
	r := start(t, Options{UserAgent: "spanflame/test"}, Endpoint{Name: "a", URL: f.URL + "/base/"})
	a, b := testProfile("a", 3, 100), testProfile("b", 4, 200)
	r.Push([]*profile.Profile{a, nil, b})
	s := r.settled(t)
	if s.Account.In != 7 || s.Account.Out != 7 || s.LastSuccess.IsZero() || s.Failures != 0 || s.QueueBytes != 0 {
		t.Errorf("status = %+v", s)
	}
	reqs := f.requests()
	if len(reqs) != 2 || reqs[0].id == reqs[1].id {
		t.Fatalf("requests = %d, ids unique: %v", len(reqs), len(reqs) == 2 && reqs[0].id != reqs[1].id)
	}
	for _, q := range reqs {
		want := a
		if q.labels["service_name"] == "b" {
			want = b
		}
		if !bytes.Equal(q.raw, want.Pprof) || q.labels["__name__"] != "process_cpu" || len(q.labels) != 2 {
			t.Errorf("request = %+v", q)
		}
		if q.path != "/base/push.v1.PusherService/Push" || q.header.Get("User-Agent") != "spanflame/test" || q.header.Get("Content-Type") != "application/proto" {
			t.Errorf("path %s, header %v", q.path, q.header)
		}
	}
	if n := testutil.ToFloat64(r.metrics.sent.WithLabelValues("a")); n != 300 {
		t.Errorf("bytes = %v, want 300", n)
	}
	if n, err := testutil.GatherAndCount(r.reg); err != nil || n == 0 {
		t.Errorf("metrics = %d, %v", n, err)
	}
}

// TestConcurrency: a server that answers after 0.5 s gets several requests at
// once, but never more than Workers.
func TestConcurrency(t *testing.T) {
	var now, peak atomic.Int32
	f := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		time.Sleep(100 * time.Millisecond)
		now.Add(-1)
		ok(w)
	})
	r := start(t, Options{Workers: 8}, Endpoint{URL: f.URL})
	for range 40 {
		r.Push([]*profile.Profile{testProfile("s", 1, 10)})
	}
	if s := r.settled(t); s.Account.Out != 40 {
		t.Fatalf("delivered = %d", s.Account.Out)
	}
	if p := peak.Load(); p != 8 {
		t.Errorf("requests at once = %d, want 8", p)
	}
}

// TestDeadEndpoint: one endpoint that takes connections and never answers, and
// one that refuses them, slow down neither the caller nor the good one.
func TestDeadEndpoint(t *testing.T) {
	good := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) { ok(w) })
	mute := newFake(t, func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	r := start(t, Options{QueueMaxBytes: 64 << 10}, Endpoint{Name: "refuses", URL: "http://127.0.0.1:1"},
		Endpoint{Name: "mute", URL: mute.URL}, Endpoint{Name: "good", URL: good.URL})
	var worst time.Duration
	for range 100 {
		begin := time.Now()
		r.Push([]*profile.Profile{testProfile("s", 1, 1000)})
		worst = max(worst, time.Since(begin))
		time.Sleep(time.Millisecond)
	}
	waitFor(t, "the good endpoint", func() bool { return r.Status()[2].Account.Out == 100 })
	if worst > 200*time.Millisecond {
		t.Errorf("a push took %s", worst)
	}
	for _, s := range r.Status()[:2] {
		checkStatus(t, s)
		if s.QueueBytes > 64<<10 || s.Account.Dropped[ledger.QueueFull] == 0 || s.Account.Out != 0 {
			t.Errorf("%s: %d bytes wait, account %+v", s.Name, s.QueueBytes, s.Account)
		}
	}
	// Back-off: it is not asked a hundred times.
	if s := r.Status()[0]; s.Failures == 0 || s.LastError == "" || !strings.Contains(s.LastError, "refused") {
		t.Errorf("status = %+v", s)
	}
	if n := testutil.ToFloat64(r.metrics.requests.WithLabelValues("refuses", "transport")); n > 40 {
		t.Errorf("%v requests to an endpoint that refuses", n)
	}
}

// TestFailureOfOneProfile: a profile that only ever fails does not hold up the
// others, though the endpoint looks dead each time it is tried.
func TestFailureOfOneProfile(t *testing.T) {
	f := newFake(t, func(int, http.ResponseWriter, *http.Request) {})
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q, err := read(r); err != nil || q.labels["service_name"] == "poison" {
			http.Error(w, "overloaded", 503)
			return
		}
		ok(w)
	})
	r := start(t, fast(), Endpoint{URL: f.URL})
	r.Push([]*profile.Profile{testProfile("poison", 1, 10)})
	for range 50 {
		r.Push([]*profile.Profile{testProfile("fine", 1, 10)})
	}
	waitFor(t, "the fine ones", func() bool { return r.only(t).Account.Out == 50 })
	if s := r.only(t); s.QueueSamples != 1 {
		t.Errorf("status = %+v", s)
	}
}

func TestQueueFullDropsTheOldest(t *testing.T) {
	f := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) { ok(w) })
	led := ledger.New()
	p, err := New(nil, nil, led, []Endpoint{{Name: "a", URL: f.URL}}, Options{QueueMaxBytes: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 { // before Run nothing leaves
		p.Push([]*profile.Profile{testProfile("s", 1<<i, 1500)})
	}
	p.Push([]*profile.Profile{testProfile("huge", 1<<20, 20_000)}) // never fits, and must drive out nothing
	s := p.Status()[0]
	checkStatus(t, s)
	if s.QueueBytes > 10_000 || s.QueueProfiles != 4 || s.QueueSamples != 1<<6+1<<7+1<<8+1<<9 {
		t.Errorf("status = %+v", s)
	}
	if d := s.Account.Dropped[ledger.QueueFull]; d != 1<<20+1<<6-1 {
		t.Errorf("queue_full = %d", d)
	}
	if err := p.Stop(context.Background()); err != nil { // Run never ran: Stop flushes all the same
		t.Error(err)
	}
	if b := led.Sinks()["a"]; b.Out != s.QueueSamples || b.Pending() != 0 {
		t.Errorf("account = %+v", b)
	}
}

func TestTooOld(t *testing.T) {
	down := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) { http.Error(w, "", 503) })
	opts := fast()
	opts.QueueMaxAge = 11 * time.Second // the test profiles are 10 s old
	r := start(t, opts, Endpoint{URL: down.URL})
	old := testProfile("old", 2, 10)
	old.Start = time.Now().Add(-time.Hour)
	r.Push([]*profile.Profile{old, testProfile("s", 1, 10)})
	if s := r.only(t); s.Account.Dropped[ledger.TooOld] != 2 || s.QueueSamples != 1 {
		t.Errorf("at once: %+v", s)
	}
	begin := time.Now()
	if s := r.settled(t); s.Account.Dropped[ledger.TooOld] != 3 {
		t.Errorf("later: %+v", s)
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("given up after %s", d)
	}
	if n := len(down.requests()); n < 2 {
		t.Errorf("requests = %d, want some before it was given up", n)
	}
}

// TestAgesWhileNothingIsSent: what waits behind a closed gate ages too.
func TestAgesWhileNothingIsSent(t *testing.T) {
	f := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		http.Error(w, "", 503)
	})
	opts := fast()
	opts.Workers, opts.QueueMaxAge = 1, 11*time.Second
	r := start(t, opts, Endpoint{URL: f.URL})
	r.Push([]*profile.Profile{testProfile("s", 1, 10), testProfile("s", 1, 10), testProfile("s", 1, 10)})
	if s := r.settled(t); s.Account.Dropped[ledger.TooOld] != 3 {
		t.Errorf("account = %+v", s.Account)
	}
	if n := len(f.requests()); n != 1 {
		t.Errorf("requests = %d, want 1", n)
	}
}

func TestLogsOnceAMinute(t *testing.T) {
	f := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		connectError(w, 400, "invalid_argument", "no such\nthing")
	})
	r := start(t, fast(), Endpoint{URL: f.URL})
	for range 50 {
		r.Push([]*profile.Profile{testProfile("s", 1, 10)})
	}
	r.settled(t)
	_ = r.stop(time.Second)
	if n := strings.Count(r.logs.String(), "no such thing"); n != 1 {
		t.Errorf("logged %d times: %s", n, r.logs)
	}
}

func TestStopFlushes(t *testing.T) {
	f := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		time.Sleep(20 * time.Millisecond)
		ok(w)
	})
	r := start(t, Options{Workers: 4}, Endpoint{Name: "a", URL: f.URL})
	for range 40 {
		r.Push([]*profile.Profile{testProfile("s", 1, 10)})
	}
	if err := r.stop(10 * time.Second); err != nil {
		t.Error(err)
	}
	r.Push([]*profile.Profile{testProfile("late", 5, 10)})
	b := r.led.Sinks()["a"]
	if b.Out != 40 || b.Dropped[ledger.Shutdown] != 5 || b.Pending() != 0 {
		t.Errorf("account = %+v", b)
	}
	if err := r.Update(nil); !errors.Is(err, ErrStopped) {
		t.Errorf("Update after Stop = %v", err)
	}
	if err := r.Run(context.Background()); !errors.Is(err, ErrStopped) {
		t.Errorf("Run after Stop = %v", err)
	}
	if err := r.Stop(context.Background()); err != nil {
		t.Errorf("second Stop = %v", err)
	}
}

// TestStopAfterRunsContext: the order in which an agent ends them is free.
func TestStopAfterRunsContext(t *testing.T) {
	var gate atomic.Bool
	f := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !gate.Load() {
			http.Error(w, "", 503)
			return
		}
		ok(w)
	})
	led := ledger.New()
	p, err := New(nil, nil, led, []Endpoint{{Name: "a", URL: f.URL}}, fast())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	p.Push([]*profile.Profile{testProfile("s", 3, 10)})
	waitFor(t, "a failure", func() bool { return p.Status()[0].Failures > 0 })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.Push([]*profile.Profile{testProfile("s", 4, 10)})
	gate.Store(true)
	stopCtx, stopCancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer stopCancel()
	if err := p.Stop(stopCtx); err != nil {
		t.Error(err)
	}
	if b := led.Sinks()["a"]; b.Out != 7 || b.Pending() != 0 {
		t.Errorf("account = %+v", b)
	}
}

func TestStopKeepsItsDeadline(t *testing.T) {
	mute := newFake(t, func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	r := start(t, Options{}, Endpoint{Name: "mute", URL: mute.URL}, Endpoint{Name: "refuses", URL: "http://127.0.0.1:1"})
	r.Push([]*profile.Profile{testProfile("s", 3, 10)})
	begin := time.Now()
	err := r.stop(300 * time.Millisecond)
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("Stop took %s", d)
	}
	if err == nil || !strings.Contains(err.Error(), "3 samples") {
		t.Errorf("Stop = %v", err)
	}
	for name, b := range r.led.Sinks() {
		if b.Dropped[ledger.Shutdown] != 3 || b.Pending() != 0 {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// TestStopAtAnyMoment ends the pusher while everything else goes on. goleak
// looks at what is left when all tests are over.
func TestStopAtAnyMoment(t *testing.T) {
	f := newFake(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n%3 == 0 {
			http.Error(w, "", 503)
			return
		}
		ok(w)
	})
	for i := range 60 {
		led := ledger.New()
		p, err := New(nil, nil, led, []Endpoint{{Name: "a", URL: f.URL}, {Name: "dead", URL: "http://127.0.0.1:1"}}, fast())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Add(3)
		go func() { defer wg.Done(); _ = p.Run(ctx) }()
		go func() {
			defer wg.Done()
			for range 20 {
				p.Push([]*profile.Profile{testProfile("s", 1, 10)})
				p.Status()
			}
		}()
		go func() {
			defer wg.Done()
			_ = p.Update([]Endpoint{{Name: "a", URL: f.URL + "/x"}, {Name: "new", URL: f.URL}})
		}()
		time.Sleep(time.Duration(i*50) * time.Microsecond)
		if i%2 == 0 {
			cancel()
		}
		stopCtx, stopCancel := context.WithTimeout(context.Background(), time.Duration(i%4)*5*time.Millisecond)
		_ = p.Stop(stopCtx)
		stopCancel()
		cancel()
		wg.Wait()
		for name, b := range led.Sinks() {
			if b.Pending() != 0 {
				t.Fatalf("round %d: %s: %d samples are not accounted for: %+v", i, name, b.Pending(), b)
			}
		}
	}
}

func TestUpdate(t *testing.T) {
	down := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) { http.Error(w, "", 503) })
	up := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) { ok(w) })
	opts := Options{MinBackoff: time.Minute, MaxBackoff: time.Minute}
	keep := Endpoint{Name: "keep", URL: down.URL}
	r := start(t, opts, keep, Endpoint{Name: "moves", URL: down.URL}, Endpoint{Name: "goes", URL: down.URL})
	r.Push([]*profile.Profile{testProfile("s", 5, 10)})
	waitFor(t, "three failures", func() bool {
		for _, s := range r.Status() {
			if s.Failures == 0 {
				return false
			}
		}
		return true
	})
	if err := r.Update([]Endpoint{{Name: "x"}}); err == nil {
		t.Fatal("a bad update was accepted")
	}
	if n := len(r.Status()); n != 3 {
		t.Fatalf("a bad update left %d endpoints", n)
	}
	before := r.Status()[0]
	if err := r.Update([]Endpoint{{Name: "new", URL: up.URL}, {Name: "moves", URL: up.URL}, keep}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "what moved", func() bool { return r.Status()[1].Account.Out == 5 })
	s := r.Status()
	if s[2].Name != "keep" || s[2].QueueSamples != 5 || !s[2].NextAttempt.Equal(before.NextAttempt) || s[2].Failures != before.Failures {
		t.Errorf("the unchanged endpoint: %+v, before %+v", s[2], before)
	}
	if b := r.led.Sinks()["goes"]; b.Dropped[ledger.Shutdown] != 5 || b.Pending() != 0 {
		t.Errorf("the removed endpoint: %+v", b)
	}
	r.Push([]*profile.Profile{testProfile("s", 6, 10)})
	waitFor(t, "the new endpoint", func() bool { return r.Status()[0].Account.Out == 6 })
	mfs, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, mf := range mfs {
		for _, m := range mf.Metric {
			for _, l := range m.Label {
				if l.GetValue() == "goes" {
					t.Errorf("%s still has the removed endpoint", mf.GetName())
				}
			}
		}
	}
}

func TestRedirects(t *testing.T) {
	other := newFake(t, func(_ int, w http.ResponseWriter, _ *http.Request) { ok(w) })
	var target string
	status := http.StatusPermanentRedirect
	f := newFake(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/new/") {
			http.Redirect(w, r, target, status)
			return
		}
		ok(w)
	})
	hc := promconfig.DefaultHTTPClientConfig
	hc.BasicAuth = &promconfig.BasicAuth{Username: "joe", Password: "hunter22"}
	for _, tt := range []struct {
		name, target string
		status       int
		follow       bool
		delivered    uint64
	}{
		{"same server", f.URL + "/new/push", 308, true, 1},
		{"same server, not asked for", f.URL + "/new/push", 308, false, 0},
		{"same server, would become a GET", f.URL + "/new/push", 302, true, 0},
		{"another server", other.URL + "/push", 307, true, 0},
		{"round and round", f.URL + "/old/push", 308, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			target, status = tt.target, tt.status
			c := hc
			c.FollowRedirects = tt.follow
			r := start(t, fast(), Endpoint{URL: f.URL, HTTP: c})
			r.Push([]*profile.Profile{testProfile("s", 1, 10)})
			s := r.settled(t)
			if s.Account.Out != tt.delivered || s.Account.Out+s.Account.Dropped[ledger.RejectedByServer] != 1 {
				t.Errorf("account = %+v (%s)", s.Account, s.LastError)
			}
		})
	}
	if n := len(other.requests()); n != 0 {
		t.Errorf("another server was sent %d requests", n)
	}
}

func TestSameRegistryTwice(t *testing.T) {
	reg := prometheus.NewRegistry()
	for i := range 2 {
		p, err := New(log.NewNopLogger(), reg, ledger.New(), nil, Options{})
		if (err != nil) != (i == 1) {
			t.Errorf("pusher %d: %v", i, err)
		}
		if p != nil {
			p.Push([]*profile.Profile{testProfile("s", 1, 1)})
			_ = p.Stop(context.Background())
		}
	}
}

func TestCheckRedirect(t *testing.T) {
	req := func(method, url string) *http.Request {
		r, err := http.NewRequest(method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, tt := range []struct {
		from, to, method string
		via              int
		follow           bool
	}{
		{"http://x:4040/a", "http://x:4040/b", "POST", 1, true},
		{"http://x/a", "https://x/a", "POST", 1, true},
		{"http://x:80/a", "https://x:8443/a", "POST", 1, true},
		{"http://x/a", "http://x/b", "POST", maxRedirects, false},
		{"http://x/a", "http://x/b", "GET", 1, false},
		{"https://x/a", "http://x/a", "POST", 1, false},
		{"http://x/a", "http://x:81/a", "POST", 1, false},
		{"http://x/a", "http://y/a", "POST", 1, false},
		{"http://x/a", "https://x.evil/a", "POST", 1, false},
	} {
		via := make([]*http.Request, tt.via)
		for i := range via {
			via[i] = req("POST", tt.from)
		}
		if got := checkRedirect(req(tt.method, tt.to), via) == nil; got != tt.follow {
			t.Errorf("%s → %s %s after %d: followed %v, want %v", tt.from, tt.method, tt.to, tt.via, got, tt.follow)
		}
	}
}

// TestServerThatDoesNotRead: the request itself gets stuck, not the answer.
func TestServerThatDoesNotRead(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Add(1)
	go func() {
		defer conns.Done()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	defer func() { _ = ln.Close(); conns.Wait() }()
	r := start(t, fast(), Endpoint{Name: "a", URL: "http://" + ln.Addr().String(), Timeout: 200 * time.Millisecond})
	r.Push([]*profile.Profile{testProfile("s", 3, 12<<20)})
	waitFor(t, "two time-outs", func() bool {
		return testutil.ToFloat64(r.metrics.requests.WithLabelValues("a", "timeout")) >= 2
	})
	if s := r.only(t); s.QueueSamples != 3 || !strings.HasPrefix(s.LastError, "timeout") {
		t.Errorf("status = %+v", s)
	}
	_ = r.stop(0)
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"http://x", "https://joe:pw@x:1/y/ingest", "http://[::1]:4040/%2F", "x", "http://x/push.v1.PusherService/Push", "http://0//0//0 0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ep, err := Endpoint{URL: s}.normalise()
		if err != nil {
			return
		}
		if strings.Contains(strings.SplitN(strings.TrimPrefix(strings.TrimPrefix(ep.URL, "https://"), "http://"), "/", 2)[0], "@") {
			t.Errorf("%q: user information in %q", s, ep.URL)
		}
		again, err := Endpoint{URL: ep.URL}.normalise()
		if err != nil {
			t.Fatalf("%q became %q, which is refused: %v", s, ep.URL, err)
		}
		// One end of the URL is removed, not the ends that were behind it.
		if len(again.URL) > len(ep.URL) {
			t.Errorf("%q became %q and then %q", s, ep.URL, again.URL)
		}
	})
}

// BenchmarkPush is the cost of a profile from Push to its delivery, the fake
// server's included.
func BenchmarkPush(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		ok(w)
	}))
	defer srv.Close()
	led := ledger.New()
	p, err := New(nil, nil, led, []Endpoint{{Name: "a", URL: srv.URL}}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = p.Run(ctx) }()
	prof := []*profile.Profile{testProfile("s", 1, 20_000)}
	b.ReportAllocs()
	for b.Loop() {
		p.Push(prof)
		for p.Status()[0].QueueProfiles >= DefaultWorkers {
			time.Sleep(100 * time.Microsecond)
		}
	}
	if err := p.Stop(context.Background()); err != nil {
		b.Fatal(err)
	}
}
