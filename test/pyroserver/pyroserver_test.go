package pyroserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"
	pprof "github.com/google/pprof/profile"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
	"github.com/spanflame/spanflame/push"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const period = int64(time.Second) / 97

// stacks are a profile's content: samples by stack, the outermost frame first,
// joined by ";".
type stacks map[string]int64

// make encodes a profile with the reference implementation, so that what the
// server is given does not depend on our own encoder.
func (s stacks) make(t testing.TB, typ profile.Type, service string, start time.Time, extra ...string) *profile.Profile {
	t.Helper()
	unit := int64(1)
	p := &pprof.Profile{
		SampleType:    []*pprof.ValueType{{Type: typ.SampleType, Unit: typ.SampleUnit}},
		TimeNanos:     start.UnixNano(),
		DurationNanos: int64(10 * time.Second),
		Mapping:       []*pprof.Mapping{{ID: 1, File: "/usr/bin/" + service, BuildID: "abcd", HasFunctions: true}},
	}
	if typ.PeriodType != "" {
		p.PeriodType, p.Period = &pprof.ValueType{Type: typ.PeriodType, Unit: typ.PeriodUnit}, period
		unit = period
	}
	locs := map[string]*pprof.Location{}
	var n uint64
	for stack, count := range s {
		frames := strings.Split(stack, ";")
		sample := &pprof.Sample{Value: []int64{count * unit}}
		for i := len(frames) - 1; i >= 0; i-- {
			l, ok := locs[frames[i]]
			if !ok {
				f := &pprof.Function{ID: uint64(len(locs) + 1), Name: frames[i]}
				l = &pprof.Location{ID: f.ID, Mapping: p.Mapping[0], Address: 0x1000 * f.ID, Line: []pprof.Line{{Function: f}}}
				locs[frames[i]] = l
				p.Function, p.Location = append(p.Function, f), append(p.Location, l)
			}
			sample.Location = append(sample.Location, l)
		}
		p.Sample = append(p.Sample, sample)
		n += uint64(count)
	}
	var raw, packed bytes.Buffer
	if err := p.WriteUncompressed(&raw); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(&packed); err != nil {
		t.Fatal(err)
	}
	ls := append([]string{"__name__", typ.Name, "service_name", service}, extra...)
	return &profile.Profile{
		Labels: labels.FromStrings(ls...), Type: typ, Start: start, Duration: 10 * time.Second,
		Pprof: packed.Bytes(), UncompressedBytes: raw.Len(), Samples: n,
	}
}

// pusher runs a pusher to the server until the test ends.
func pusher(t *testing.T, srv *Server, opts push.Options) (*push.Pusher, func() push.EndpointStatus) {
	t.Helper()
	ep := push.Endpoint{Name: "server", URL: srv.PushURL()}
	if srv.Tenant() != "" {
		ep.Headers = map[string]string{"X-Scope-OrgID": srv.Tenant()}
	}
	p, err := push.New(log.NewNopLogger(), nil, ledger.New(), []push.Endpoint{ep}, opts)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.Run(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.Stop(ctx)
		<-done
	})
	return p, func() push.EndpointStatus {
		s := p.Status()[0]
		if b := s.Account; b.In != b.Out+s.QueueSamples+b.Lost() {
			t.Errorf("accepted %d ≠ delivered %d + pending %d + dropped %v", b.In, b.Out, s.QueueSamples, b.Dropped)
		}
		return s
	}
}

func settled(t *testing.T, status func() push.EndpointStatus) push.EndpointStatus {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		s := status()
		if s.QueueProfiles == 0 {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("profiles still wait after 30 s: %+v", s)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// unique makes a service name that no earlier run has used on a shared server.
func unique(name string) string { return name + "-" + strconv.FormatUint(rand.Uint64(), 36) }

func selector(service string) string { return fmt.Sprintf("{service_name=%q}", service) }

// byLeaf sums a profile's first value by the innermost function.
func byLeaf(p *pprof.Profile) (m map[string]int64, total int64) {
	m = map[string]int64{}
	for _, s := range p.Sample {
		m[s.Location[0].Line[0].Function.Name] += s.Value[0]
		total += s.Value[0]
	}
	return m, total
}

func window(at time.Time) (from, until time.Time) {
	return at.Add(-time.Minute), at.Add(time.Minute)
}

// TestRoundTrip pushes profiles of both types and two services, and reads back
// what the server made of them: shares, totals, labels, types, period, times.
func TestRoundTrip(t *testing.T) {
	srv := Start(t)
	p, status := pusher(t, srv, push.Options{})
	at := time.Now().Add(-30 * time.Second).Truncate(time.Millisecond)
	from, until := window(at)
	shop, other := unique("shop"), unique("other")

	p.Push([]*profile.Profile{
		stacks{"main;hot": 70, "main;cold": 30}.make(t, profile.CPU, shop, at, "env", "prod", "k8s.pod", "shop-1"),
		stacks{"main;hot": 140, "main;cold": 60}.make(t, profile.CPU, shop, at.Add(15*time.Second), "env", "prod", "k8s.pod", "shop-1"),
		stacks{"main;only": 5}.make(t, profile.CPU, other, at),
		stacks{"main;lock": 3_000_000, "main;sleep": 7_000_000}.make(t, profile.OffCPU, shop, at, "env", "prod"),
	})
	if s := settled(t, status); s.Account.Out != 300+5+10_000_000 || s.Account.Lost() != 0 {
		t.Fatalf("account = %+v, last error %q", s.Account, s.LastError)
	}

	cpu := srv.WaitProfile(t, profile.CPU.ID(), selector(shop), from, until, func(p *pprof.Profile) bool {
		_, total := byLeaf(p)
		return total >= 300*period
	})
	leaves, total := byLeaf(cpu)
	if total != 300*period || leaves["hot"] != 210*period || leaves["cold"] != 90*period {
		t.Errorf("values = %v, total %d, want 210 and 90 times %d", leaves, total, period)
	}
	if share := float64(leaves["hot"]) / float64(total); math.Abs(share-0.7) > 1e-9 {
		t.Errorf("share = %v, want 0.7", share)
	}
	if v := cpu.SampleType[0]; v.Type != "cpu" || v.Unit != "nanoseconds" {
		t.Errorf("sample type = %v", v)
	}
	if v := cpu.PeriodType; v == nil || v.Type != "cpu" || v.Unit != "nanoseconds" {
		t.Errorf("period type = %v", v)
	}
	for _, s := range cpu.Sample {
		if outer := s.Location[len(s.Location)-1].Line[0].Function.Name; outer != "main" || len(s.Location) != 2 {
			t.Errorf("a stack of %d frames ends in %q", len(s.Location), outer)
		}
	}
	if len(cpu.Mapping) == 0 || cpu.Mapping[0].File != "/usr/bin/"+shop || cpu.Mapping[0].BuildID != "abcd" {
		t.Errorf("mappings = %v", cpu.Mapping)
	}

	off := srv.WaitProfile(t, profile.OffCPU.ID(), selector(shop), from, until, nil)
	if leaves, total := byLeaf(off); total != 10_000_000 || leaves["lock"] != 3_000_000 {
		t.Errorf("off-CPU values = %v", leaves)
	}
	alone := srv.WaitProfile(t, profile.CPU.ID(), selector(other), from, until, nil)
	if leaves, total := byLeaf(alone); total != 5*period || leaves["only"] != total {
		t.Errorf("the other service's values = %v", leaves)
	}

	ctx := context.Background()
	types, err := srv.ProfileTypes(ctx, from, until)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []profile.Type{profile.CPU, profile.OffCPU} {
		if !strings.Contains(strings.Join(types, " ")+" ", want.ID()+" ") {
			t.Errorf("types = %v, want %s among them", types, want.ID())
		}
	}
	series, err := srv.Series(ctx, selector(shop), from, until)
	if err != nil {
		t.Fatal(err)
	}
	if len(series) != 2 {
		t.Errorf("series = %v, want one a type", series)
	}
	for _, s := range series {
		if s["service_name"] != shop || s["env"] != "prod" {
			t.Errorf("series %v lacks a label", s)
		}
		if pod, want := s["k8s_pod"], map[string]string{"process_cpu": "shop-1"}[s["__name__"]]; pod != want {
			t.Errorf("series %v: k8s_pod = %q, want %q", s, pod, want)
		}
	}

	if !srv.Own() {
		return
	}
	stored, err := srv.Profiles(ctx, profile.CPU.ID(), selector(shop), from, until)
	if err != nil {
		t.Fatal(err)
	}
	if len(stored) != 2 || !stored[0].Time.Equal(at) || !stored[1].Time.Equal(at.Add(15*time.Second)) || stored[0].Series != stored[1].Series {
		t.Errorf("stored = %v, want %s and 15 s later in one series", stored, at)
	}
	// Half of the time finds half of it.
	half := srv.WaitProfile(t, profile.CPU.ID(), selector(shop), at.Add(time.Second), until, nil)
	if _, total := byLeaf(half); total != 200*period {
		t.Errorf("from the second profile on: %d, want %d", total, 200*period)
	}
}

func TestNoProfile(t *testing.T) {
	srv := Start(t)
	from, until := window(time.Now())
	_, err := srv.MergeProfile(context.Background(), profile.CPU.ID(), selector(unique("nobody")), from, until)
	if !errors.Is(err, ErrNoProfile) {
		t.Errorf("error = %v, want ErrNoProfile", err)
	}
}

// TestRejected: what the server refuses is not repeated, is counted, and does
// not keep the rest from getting there.
func TestRejected(t *testing.T) {
	srv := Start(t)
	p, status := pusher(t, srv, push.Options{QueueMaxAge: 3 * time.Hour}) // let the server be the judge
	now := time.Now()
	service := unique("s")
	long := strings.Repeat("v", 3000)
	for _, tt := range []struct {
		name string
		p    *profile.Profile
		says string
	}{
		{"too old", stacks{"a": 1}.make(t, profile.CPU, service, now.Add(-2*time.Hour)), "ingestion window"},
		{"too new", stacks{"a": 1}.make(t, profile.CPU, service, now.Add(time.Hour)), "ingestion window"},
		{"label too long", stacks{"a": 1}.make(t, profile.CPU, service, now, "x", long), "label"},
	} {
		before := status()
		p.Push([]*profile.Profile{tt.p})
		s := settled(t, status)
		if n := s.Account.Dropped[ledger.RejectedByServer] - before.Account.Dropped[ledger.RejectedByServer]; n != 1 {
			t.Errorf("%s: account %+v, want one more rejected", tt.name, s.Account)
		}
		if !strings.HasPrefix(s.LastError, "400") || !strings.Contains(s.LastError, tt.says) {
			t.Errorf("%s: last error = %q, want 400 and %q", tt.name, s.LastError, tt.says)
		}
	}
	p.Push([]*profile.Profile{stacks{"main;fine": 9}.make(t, profile.CPU, service, now)})
	if s := settled(t, status); s.Account.Out != 9 {
		t.Errorf("account = %+v", s.Account)
	}
	from, until := window(now)
	got := srv.WaitProfile(t, profile.CPU.ID(), selector(service), from, until, nil)
	if _, total := byLeaf(got); total != 9*period {
		t.Errorf("total = %d, want %d", total, 9*period)
	}
}

// TestKilledAndRestarted kills the server under a stream of profiles. Nothing may
// be lost on our side, and what the second server has must be exactly what the
// first had not answered for.
func TestKilledAndRestarted(t *testing.T) {
	srv := StartWith(t, Options{BurstMB: 50, RateMB: 50})
	p, status := pusher(t, srv, push.Options{MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond})
	const total = 800
	begin := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	service := unique("s")
	var all []*profile.Profile
	for i := range total {
		all = append(all, stacks{"main;f": 1}.make(t, profile.CPU, service, begin.Add(time.Duration(i)*time.Millisecond)))
	}
	pushed := make(chan struct{})
	go func() {
		defer close(pushed)
		for i := range all {
			p.Push(all[i : i+1])
			time.Sleep(2 * time.Millisecond)
		}
	}()
	wait := func(what string, f func(push.EndpointStatus) bool) {
		t.Helper()
		for end := time.Now().Add(15 * time.Second); !f(status()); {
			if time.Now().After(end) {
				t.Fatalf("waited 15 s in vain for %s: %+v", what, status())
			}
			time.Sleep(2 * time.Millisecond)
		}
	}

	wait("the first profiles", func(s push.EndpointStatus) bool { return s.Account.Out >= 100 })
	srv.Kill(t)
	wait("failures", func(s push.EndpointStatus) bool { return s.Failures >= 3 && s.InFlight == 0 })
	answered := status().Account.Out // by the first server
	srv.Restart(t)
	<-pushed
	s := settled(t, status)
	if s.Account.In != total || s.Account.Out != total || s.Account.Lost() != 0 || s.Failures != 0 {
		t.Errorf("status = %+v", s)
	}
	stored, err := srv.Profiles(context.Background(), profile.CPU.ID(), selector(service), begin.Add(-time.Second), begin.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if uint64(len(stored)) != total-answered || answered == total {
		t.Errorf("the first server answered for %d of %d profiles, the second has %d", answered, total, len(stored))
	}
	t.Logf("%d answered for by the first server, %d by the second", answered, len(stored))
}

// TestRateLimit: 429 of the real server is waited for, and everything arrives.
func TestRateLimit(t *testing.T) {
	srv := StartWith(t, Options{RateMB: 0.05, BurstMB: 0.02})
	p, status := pusher(t, srv, push.Options{MinBackoff: 50 * time.Millisecond, MaxBackoff: 500 * time.Millisecond})
	big := stacks{}
	for i := range 100 {
		big[fmt.Sprintf("main;a_function_with_rather_a_long_name_%d", i)] = 1
	}
	begin := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	service := unique("s")
	for i := range 10 {
		p.Push([]*profile.Profile{big.make(t, profile.CPU, service, begin.Add(time.Duration(i)*time.Millisecond))})
	}
	s := settled(t, status)
	if s.Account.Out != 1000 || s.Account.Lost() != 0 {
		t.Errorf("account = %+v, %s", s.Account, s.LastError)
	}
	if !strings.HasPrefix(s.LastError, "429") {
		t.Errorf("last error = %q: the server never said 429, so this shows nothing", s.LastError)
	}
}

func TestTenants(t *testing.T) {
	srv := StartWith(t, Options{Tenant: "team-a"})
	p, status := pusher(t, srv, push.Options{})
	service, at := unique("s"), time.Now()
	p.Push([]*profile.Profile{stacks{"main;f": 2}.make(t, profile.CPU, service, at)})
	if s := settled(t, status); s.Account.Out != 2 {
		t.Errorf("account = %+v, %s", s.Account, s.LastError)
	}
	from, until := window(at)
	srv.WaitProfile(t, profile.CPU.ID(), selector(service), from, until, nil)

	stranger := *srv
	stranger.tenant = ""
	p, status = pusher(t, &stranger, push.Options{})
	p.Push([]*profile.Profile{stacks{"main;f": 2}.make(t, profile.CPU, service, at)})
	if s := settled(t, status); s.Account.Dropped[ledger.RejectedByServer] != 2 || !strings.HasPrefix(s.LastError, "401") {
		t.Errorf("without a tenant: %+v, %s", s.Account, s.LastError)
	}
}

// TestSameTime shows what two profiles of one series with one time come to: the
// parts of a profile that was split must not be taken for doubles.
func TestSameTime(t *testing.T) {
	srv := Start(t)
	p, status := pusher(t, srv, push.Options{})
	service, at := unique("s"), time.Now().Truncate(time.Millisecond)
	p.Push([]*profile.Profile{
		stacks{"main;f": 2}.make(t, profile.CPU, service, at),
		stacks{"main;g": 3}.make(t, profile.CPU, service, at),
	})
	settled(t, status)
	from, until := window(at)
	got := srv.WaitProfile(t, profile.CPU.ID(), selector(service), from, until, nil)
	if leaves, total := byLeaf(got); total != 5*period {
		t.Errorf("values = %v, want 2 and 3 times %d", leaves, period)
	}
}
