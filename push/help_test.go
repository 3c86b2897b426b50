package push

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-kit/log"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testProfile is a profile of n samples whose body is size bytes.
func testProfile(service string, n uint64, size int) *profile.Profile {
	return &profile.Profile{
		Labels:            labels.FromStrings("__name__", "process_cpu", "service_name", service),
		Type:              profile.CPU,
		Start:             time.Now().Add(-10 * time.Second),
		Duration:          10 * time.Second,
		Pprof:             bytes.Repeat([]byte{'p'}, size),
		UncompressedBytes: size,
		Samples:           n,
	}
}

// fast are options under which retries take milliseconds.
func fast() Options {
	return Options{MinBackoff: 2 * time.Millisecond, MaxBackoff: 10 * time.Millisecond}
}

// rig is a running pusher.
type rig struct {
	*Pusher
	led  *ledger.Ledger
	reg  *prometheus.Registry
	logs *logBuffer
	stop func(time.Duration) error
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a pusher until the test ends, or until its stop is called.
func start(t *testing.T, opts Options, endpoints ...Endpoint) *rig {
	t.Helper()
	r := &rig{led: ledger.New(), reg: prometheus.NewPedanticRegistry(), logs: &logBuffer{}}
	p, err := New(log.NewLogfmtLogger(r.logs), r.reg, r.led, endpoints, opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Pusher = p
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var once sync.Once
	r.stop = func(d time.Duration) (err error) {
		once.Do(func() {
			stopCtx, stopCancel := context.WithTimeout(context.Background(), d)
			defer stopCancel()
			err = p.Stop(stopCtx)
			cancel()
			<-done
		})
		return err
	}
	t.Cleanup(func() { _ = r.stop(0) })
	return r
}

// only is the status of the single endpoint.
func (r *rig) only(t *testing.T) EndpointStatus {
	t.Helper()
	s := r.Status()
	if len(s) != 1 {
		t.Fatalf("endpoints = %d, want 1", len(s))
	}
	checkStatus(t, s[0])
	return s[0]
}

// settled waits until nothing waits.
func (r *rig) settled(t *testing.T) EndpointStatus {
	t.Helper()
	waitFor(t, "an empty queue", func() bool { return r.only(t).QueueProfiles == 0 })
	return r.only(t)
}

// checkStatus checks the equation of the account against the queue itself.
func checkStatus(t *testing.T, s EndpointStatus) {
	t.Helper()
	b := s.Account
	if b.In != b.Out+s.QueueSamples+b.Lost() {
		t.Errorf("%s: accepted %d ≠ delivered %d + pending %d + dropped %v", s.Name, b.In, b.Out, s.QueueSamples, b.Dropped)
	}
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !f(); {
		if time.Now().After(end) {
			t.Fatalf("waited 15 s in vain for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// received is one request as a fake server saw it.
type received struct {
	at     time.Time
	id     string
	labels map[string]string
	raw    []byte
	header http.Header
	path   string
}

// fake is a server of push.v1 whose answers the test decides.
type fake struct {
	*httptest.Server
	mu   sync.Mutex
	reqs []received
}

// newFake serves answer; n counts the requests from 1. The zero handler is ok.
func newFake(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *fake {
	t.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec, err := read(r)
		if err != nil { // the client broke off
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.mu.Lock()
		f.reqs = append(f.reqs, rec)
		n := len(f.reqs)
		f.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) requests() []received {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]received(nil), f.reqs...)
}

func read(r *http.Request) (received, error) {
	rec := received{at: time.Now(), header: r.Header, path: r.URL.Path, labels: map[string]string{}}
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return rec, err
		}
		body = z
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return rec, err
	}
	var m pushv1.PushRequest
	if err := proto.Unmarshal(b, &m); err != nil {
		return rec, err
	}
	if len(m.Series) != 1 || len(m.Series[0].Samples) != 1 {
		return rec, fmt.Errorf("%d series in the request, want one with one sample", len(m.Series))
	}
	for _, l := range m.Series[0].Labels {
		rec.labels[l.Name] = l.Value
	}
	rec.id, rec.raw = m.Series[0].Samples[0].ID, m.Series[0].Samples[0].RawProfile
	return rec, nil
}

func ok(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/proto")
	w.WriteHeader(http.StatusOK)
}

// connectError answers as a Connect server does.
func connectError(w http.ResponseWriter, status int, code, msg string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"code": code, "message": msg})
}
