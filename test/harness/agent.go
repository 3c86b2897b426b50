package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	pprof "github.com/google/pprof/profile"
	querierv1 "github.com/grafana/pyroscope/api/gen/proto/go/querier/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/querier/v1/querierv1connect"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/proto"
)

// CPUType is the id of the type of on-CPU profiles.
const CPUType = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

// ErrNoProfile is returned when a store has no profile that matches.
var ErrNoProfile = errors.New("no profile matches")

// client keeps no connection, so that a look for leaks finds none of ours.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}

// Agent is `spanflame run`, as a process of its own.
type Agent struct {
	*Process
	URL string // of its page, without a slash at the end
	Dir string // a folder of its own, with the store
}

// FreeAddress is an address of the loopback interface that was free a moment ago.
func FreeAddress(t TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// WriteConfig writes a configuration file: the YAML text with ADDRESS and DIR in it
// replaced.
func WriteConfig(t TB, yaml string, replace ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "spanflame.yml")
	if err := os.WriteFile(path, []byte(strings.NewReplacer(replace...).Replace(yaml)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// StartAgent starts the agent with a configuration (YAML) and waits until it is
// ready. The server's address and the store's path are added to the configuration,
// so it may have neither "server" nor "store". When the test ends the agent is
// stopped, if it still runs.
func StartAgent(t TB, yaml string) *Agent {
	t.Helper()
	return StartAgentWith(t, yaml, Launch{})
}

// StartAgentWith is StartAgent with further ways to start it; the arguments of l
// follow those of run.
func StartAgentWith(t TB, yaml string, l Launch) *Agent {
	t.Helper()
	NeedRoot(t)
	addr, dir := FreeAddress(t), t.TempDir()
	if !strings.Contains(yaml, "server:") {
		yaml += "\nserver: { listen_address: ADDRESS }\n"
	}
	if !strings.Contains(yaml, "store:") {
		yaml += "store: { path: DIR/store }\n"
	}
	config := WriteConfig(t, yaml, "ADDRESS", addr, "DIR", dir)
	l.Args = append([]string{"run", "--config.file", config}, l.Args...)
	a := &Agent{Process: l.Start(t), URL: "http://" + addr, Dir: dir}
	a.WaitReady(t, 30*time.Second)
	return a
}

// WaitReady waits until the agent says that it is ready.
func (a *Agent) WaitReady(t TB, limit time.Duration) {
	t.Helper()
	Eventually(t, limit, "the agent is ready", func() error {
		if !a.Running() {
			t.Fatalf("the agent ended with exit code %d", a.code)
		}
		_, err := a.get("/-/ready")
		return err
	})
}

// Get asks the agent's server and fails the test if the answer is not 200.
func (a *Agent) Get(t TB, path string) []byte {
	t.Helper()
	b, err := a.get(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (a *Agent) get(path string) ([]byte, error) {
	resp, err := client.Get(a.URL + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %s", path, resp.Status, strings.TrimSpace(string(b)))
	}
	return b, nil
}

// Stop ends the agent by SIGTERM and returns its exit code.
func (a *Agent) Stop(t TB) int {
	t.Helper()
	a.Signal(t, syscall.SIGTERM)
	return a.Wait(t, 30*time.Second)
}

// MergeProfile asks the embedded store, by Pyroscope's query API. It returns
// ErrNoProfile if nothing matches.
func (a *Agent) MergeProfile(ctx context.Context, typeID, selector string, from, until time.Time) (*pprof.Profile, error) {
	c := querierv1connect.NewQuerierServiceClient(client, a.URL)
	resp, err := c.SelectMergeProfile(ctx, connect.NewRequest(&querierv1.SelectMergeProfileRequest{
		ProfileTypeID: typeID, LabelSelector: selector, Start: from.UnixMilli(), End: until.UnixMilli(),
	}))
	if err != nil {
		return nil, fmt.Errorf("merge %s of %s: %w", typeID, selector, err)
	}
	if partial := resp.Header().Get("Spanflame-Partial"); partial != "" {
		return nil, fmt.Errorf("merge %s of %s: the answer is partial: %s", typeID, selector, partial)
	}
	if len(resp.Msg.Sample) == 0 {
		return nil, fmt.Errorf("merge %s of %s: %w", typeID, selector, ErrNoProfile)
	}
	b, err := proto.Marshal(resp.Msg)
	if err != nil {
		return nil, err
	}
	p, err := pprof.ParseUncompressed(b)
	if err != nil {
		return nil, fmt.Errorf("merge %s of %s: parse the answer: %w", typeID, selector, err)
	}
	return p, nil
}

// Metrics is one reading of /metrics.
type Metrics map[string]*dto.MetricFamily

// Metrics reads the agent's metrics.
func (a *Agent) Metrics(t TB) Metrics {
	t.Helper()
	b := a.Get(t, "/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	m, err := parser.TextToMetricFamilies(strings.NewReader(string(b)))
	if err != nil {
		t.Fatalf("parse /metrics: %v", err)
	}
	return m
}

// Sum adds up the values of a counter or gauge, or the sums of a histogram, over
// those of its series that have the labels, given as name, value, …. A metric that
// is not there is 0: counters with labels appear when they first count.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, s := range m[name].GetMetric() {
		if !hasLabels(s, labels) {
			continue
		}
		sum += s.GetCounter().GetValue() + s.GetGauge().GetValue() + s.GetUntyped().GetValue() + s.GetHistogram().GetSampleSum()
	}
	return sum
}

// By are the values of a counter or gauge by the value of a label.
func (m Metrics) By(name, label string) map[string]float64 {
	out := map[string]float64{}
	for _, s := range m[name].GetMetric() {
		for _, l := range s.GetLabel() {
			if l.GetName() == label {
				out[l.GetValue()] += s.GetCounter().GetValue() + s.GetGauge().GetValue()
			}
		}
	}
	return out
}

// Count is the number of observations of a histogram.
func (m Metrics) Count(name string) uint64 {
	var n uint64
	for _, s := range m[name].GetMetric() {
		n += s.GetHistogram().GetSampleCount()
	}
	return n
}

func hasLabels(s *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		found := false
		for _, l := range s.GetLabel() {
			found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}
