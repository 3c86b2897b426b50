package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/test/harness"
)

// cost is what an agent took under load.
type cost struct {
	took         time.Duration
	cpu          time.Duration // of the agent's own threads
	rss, peak    int64
	mapBytes     uint64 // of its BPF maps, as the kernel accounts them
	maps         int
	bpfTime      time.Duration // of the sampler's program
	bpfRuns      uint64
	frames       int // of the user stack of most samples; only with the store
	samples      float64
	profiles     int // that were pushed
	pushedBytes  int64
	stacks       float64 // of the last round
	roundSeconds float64 // mean
}

// steps is chosen so that the user stack has 30 frames: these, deep_leaf, main and
// the C library's caller of main.
const steps = 27

// underLoad runs the agent at its defaults while every CPU is busy in a stack of 30
// frames, and measures it: pushing alone, or with page and store and no endpoint.
func underLoad(r *harness.Runner, d time.Duration, store bool) cost {
	defer r.Stop()
	var c cost
	yaml := "server: { listen_address: ADDRESS }\nstore: { enabled: false }\n"
	sink := startSink(r)
	if store {
		yaml = ""
	} else {
		yaml += fmt.Sprintf("write: [ { url: %q } ]\n", sink.url)
	}
	what := "pushing alone"
	if store {
		what = "with page and store"
	}
	r.Logf("the agent %s, %s under load", what, d)

	for cpu := range runtime.NumCPU() {
		harness.StartWorkloadAt(r, 0, "deep", (d + time.Minute).Seconds(), cpu, steps)
	}
	a := harness.StartAgent(r, yaml)
	began := time.Now()
	time.Sleep(20 * time.Second) // the first round, in which all symbols are read, is not what it costs to run

	bpf0, runs0 := harness.SamplerCost(r, a.PID)
	cpu0, err := harness.CPUTime(a.PID)
	if err != nil {
		r.Fatal(err)
	}
	m0 := a.Metrics(r)
	start := time.Now()
	for time.Since(start) < d {
		time.Sleep(min(15*time.Second, d-time.Since(start)))
		if store {
			look(r, a, began) // somebody looks at the page four times a minute
		}
	}
	c.took = time.Since(start)
	cpu1, err := harness.CPUTime(a.PID)
	if err != nil {
		r.Fatal(err)
	}
	bpf1, runs1 := harness.SamplerCost(r, a.PID)
	c.cpu, c.bpfTime, c.bpfRuns = cpu1-cpu0, bpf1-bpf0, runs1-runs0
	if c.rss, c.peak, err = harness.ResidentBytes(a.PID); err != nil {
		r.Fatal(err)
	}
	c.maps, c.mapBytes = harness.KernelMapBytes(r, a.PID)
	m1 := a.Metrics(r)
	c.samples = m1.Sum("spanflame_samples_taken_total") - m0.Sum("spanflame_samples_taken_total")
	c.stacks = m1.Sum("spanflame_session_round_stacks")
	if rounds := m1.Count("spanflame_round_seconds") - m0.Count("spanflame_round_seconds"); rounds > 0 {
		c.roundSeconds = (m1.Sum("spanflame_round_seconds") - m0.Sum("spanflame_round_seconds")) / float64(rounds)
	}
	if store {
		c.frames = frames(r, a)
	}
	c.profiles, c.pushedBytes = sink.got()
	return c
}

// look asks for what the page shows first.
func look(r *harness.Runner, a *harness.Agent, since time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := a.MergeProfile(ctx, harness.CPUType, "{}", since.Add(-time.Minute), time.Now()); err != nil && !errors.Is(err, harness.ErrNoProfile) {
		r.Fatal(err)
	}
}

// frames is how many user frames most samples of the load have.
func frames(r *harness.Runner, a *harness.Agent) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	raw, err := a.MergeProfile(ctx, harness.CPUType, "{}", time.Now().Add(-time.Minute), time.Now())
	if err != nil {
		r.Fatal(err)
	}
	p, err := harness.NewProfile(raw)
	if err != nil {
		r.Fatal(err)
	}
	best, at := int64(0), 0
	for _, sample := range p.Matching(harness.InFunction("deep_leaf")) {
		n := 0
		for _, f := range harness.Frames(sample) {
			if !strings.HasPrefix(f, "[") {
				n++
			}
		}
		if sample.Value[0] > best {
			best, at = sample.Value[0], n
		}
	}
	return at
}

// round is how rounds with many stacks went.
type round struct {
	stacks  float64 // in the largest
	rounds  uint64
	seconds float64 // of the mean one, from the first read to the last sample
	taken   float64
	lost    map[string]float64
}

// roundOf has rounds with about n stacks, each of one sample.
func roundOf(r *harness.Runner, n int) round {
	defer r.Stop()
	frequency := 997
	length := time.Duration(float64(n)*1.1/float64(frequency*runtime.NumCPU())*10) * 100 * time.Millisecond
	if length < time.Second { // the shortest that there is: so, many CPUs
		length = time.Second
		frequency = max(1, n*11/10/runtime.NumCPU())
	}
	r.Logf("rounds of %d stacks, %s long", n, length)
	d := 4*length + 6*time.Second
	a := harness.StartAgent(r, fmt.Sprintf("global: { push_interval: %dms }\nprofiles: { cpu: { frequency: %d } }\n", length.Milliseconds(), frequency)+harness.WorkloadTargets)
	for cpu := range runtime.NumCPU() {
		// Of the lowest priority: how long a round takes is to be seen, not how long the
		// agent waits for a CPU.
		harness.StartWorkloadAt(r, 19, "manystacks", (d + time.Minute).Seconds(), cpu, 65_000, 400)
	}
	time.Sleep(length + time.Second) // the first round, with all symbols new
	m0 := a.Metrics(r)
	var out round
	for end := time.Now().Add(d - length); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		out.stacks = max(out.stacks, a.Metrics(r).Sum("spanflame_session_round_stacks"))
	}
	m1 := a.Metrics(r)
	out.rounds = m1.Count("spanflame_round_seconds") - m0.Count("spanflame_round_seconds")
	if out.rounds == 0 {
		r.Fatalf("no round within %s", d)
	}
	out.seconds = (m1.Sum("spanflame_round_seconds") - m0.Sum("spanflame_round_seconds")) / float64(out.rounds)
	out.taken = m1.Sum("spanflame_samples_taken_total") - m0.Sum("spanflame_samples_taken_total")
	out.lost = map[string]float64{}
	for reason, v := range m1.By("spanflame_samples_dropped_total", "reason") {
		if reason != "no_target" {
			out.lost[reason] = v
		}
	}
	return out
}

// sink is a server that takes every push and keeps none.
type sink struct {
	url      string
	profiles chan int64 // bytes of each
}

func startSink(r *harness.Runner) *sink {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	s := &sink{url: "http://" + l.Addr().String(), profiles: make(chan int64, 1<<16)}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n := req.ContentLength
		buf := make([]byte, 32<<10)
		for {
			if _, err := req.Body.Read(buf); err != nil {
				break
			}
		}
		select {
		case s.profiles <- n:
		default:
		}
		w.Header().Set("Content-Type", "application/proto") // an empty message: push.v1.PushResponse
	})}
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			r.Log(err)
		}
	}()
	r.Cleanup(func() { _ = srv.Close() }) // at the end of the measurement
	return s
}

func (s *sink) got() (n int, bytes int64) {
	for {
		select {
		case b := <-s.profiles:
			n++
			bytes += b
		default:
			return n, bytes
		}
	}
}

// machine describes this one.
func machine(r *harness.Runner) string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		r.Fatal(err)
	}
	model := "unknown CPU"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return strconv.Itoa(runtime.NumCPU()) + " CPUs (" + model + "), Linux " + unix.ByteSliceToString(u.Release[:]) + " " + runtime.GOARCH + ", " + runtime.Version()
}
