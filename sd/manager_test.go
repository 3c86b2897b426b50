package sd

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"
)

func TestApplyConfigRefuses(t *testing.T) {
	m := running(t, Options{ProcFS: fakeProc(t)}, hostJob)
	for _, c := range []struct {
		name, config string
		external     labels.Labels
		want         string
	}{
		{"no name", "- process_sd_configs: [{}]", labels.EmptyLabels(), "target_configs[0]: job_name: the name is missing"},
		{"twice", hostJob + hostJob, labels.EmptyLabels(), `target_configs[1]: job_name "host" is used twice`},
		{"nothing", "- job_name: a", labels.EmptyLabels(), `job "a" discovers nothing`},
		{"rule", hostJob + "  relabel_configs: [{action: hashmod}]", labels.EmptyLabels(), "target_configs[0]: relabel_configs[0]: relabel configuration for hashmod"},
		{"external service name", hostJob, labels.FromStrings("service_name", "x"), "external label service_name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := m.ApplyConfig(jobs(t, c.config), c.external); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if got, _ := m.FindTarget(proc(1, "/a")); serviceOf(got) != "a" {
				t.Error("the configuration before is not in force any more")
			}
		})
	}
}

// A mechanism that cannot be started does not keep the others from it.
func TestApplyConfigTellsFailures(t *testing.T) {
	m := running(t, Options{ProcFS: fakeProc(t)}, "[]")
	err := m.ApplyConfig(jobs(t, `
- job_name: broken
  http_sd_configs: [{url: "https://127.0.0.1:1", tls_config: {ca_file: /none/ca.pem}}]
- job_name: good
  static_configs: [{targets: [x], labels: {__process_pid__: "1", service_name: good}}]
`), labels.EmptyLabels())
	if err == nil || !strings.Contains(err.Error(), `start http discovery of job "broken"`) || !strings.Contains(err.Error(), "/none/ca.pem") {
		t.Errorf("got %v", err)
	}
	eventually(t, m, proc(1, "/x"), "good")
}

// A mechanism that stays goes on with what it has found, even if it is not reached
// any more; one that goes takes its targets along.
func TestReload(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`[{"targets": ["x"], "labels": {"__process_pid__": "1", "service_name": "web"}}]`))
	}))
	defer server.Close()
	web := "- job_name: web\n  http_sd_configs: [{url: '" + server.URL + "'}]\n"
	m := running(t, Options{ProcFS: fakeProc(t)}, web)
	eventually(t, m, proc(1, "/x"), "web")
	for range 3 {
		if err := m.ApplyConfig(jobs(t, web+"  relabel_configs: [{target_label: env, replacement: prod}]\n"+hostJob), labels.EmptyLabels()); err != nil {
			t.Fatal(err)
		}
		if got, why := m.FindTarget(proc(1, "/x")); serviceOf(got) != "web" || got.Labels.Get("env") != "prod" {
			t.Fatalf("after a reload: %q (%s)", serviceOf(got), why)
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests; the mechanism was started again", n)
	}
	if err := m.ApplyConfig(jobs(t, hostJob), labels.EmptyLabels()); err != nil {
		t.Fatal(err)
	}
	if got, _ := m.FindTarget(proc(1, "/x")); serviceOf(got) != "x" {
		t.Errorf("after its job has gone: %q", serviceOf(got))
	}
	// Nothing comes back with a late update.
	select {
	case <-m.Changed():
	case <-time.After(100 * time.Millisecond):
	}
	if _, total := m.Targets(1); total != 0 {
		t.Errorf("%d targets are left", total)
	}
}

// An update that says nothing new makes nobody look again.
func TestChangedOnlyOnChanges(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`[{"targets": ["x"], "labels": {"__process_pid__": "1", "service_name": "web"}}]`))
	}))
	defer server.Close()
	m := running(t, Options{ProcFS: fakeProc(t)}, "- job_name: web\n  http_sd_configs: [{url: '"+server.URL+"', refresh_interval: 50ms}]\n")
	eventually(t, m, proc(1, "/x"), "web")
	before := requests.Load()
	for range 100 {
		if requests.Load() >= before+5 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if requests.Load() < before+5 {
		t.Fatal("the server is not asked again")
	}
	select {
	case <-m.Changed():
		t.Error("something has changed, it is said")
	default:
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`[]`))
	}))
	defer server.Close()
	config := jobs(t, "- job_name: j\n  http_sd_configs: [{url: '"+server.URL+"'}]\n  file_sd_configs: [{files: [/none/*.yml]}]\n  static_configs: [{targets: ['127.0.0.1:1']}]\n  process_sd_configs: [{}]\n")
	before := goleak.IgnoreCurrent()
	reg := prometheus.NewRegistry()
	for range 3 { // metrics can be registered again
		m, err := NewManager(testLog(t), reg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.ApplyConfig(config, labels.EmptyLabels()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		if err := m.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		cancel()
		m.Close()
		if err := m.ApplyConfig(config, labels.EmptyLabels()); !errors.Is(err, ErrClosed) {
			t.Errorf("ApplyConfig after Close: %v", err)
		}
		if err := m.Run(context.Background()); !errors.Is(err, ErrClosed) {
			t.Errorf("Run after Close: %v", err)
		}
		if got, _ := m.FindTarget(proc(1, "/a")); serviceOf(got) != "a" {
			t.Errorf("FindTarget after Close: %v", got)
		}
	}
	if families, err := reg.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%d metrics are left, %v", len(families), err)
	}
	// One that is closed without ever having run.
	m, err := NewManager(testLog(t), reg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ApplyConfig(config, labels.EmptyLabels()); err != nil {
		t.Fatal(err)
	}
	if _, err := NewManager(testLog(t), reg, Options{}); err == nil {
		t.Error("a second manager with the same registry is accepted")
	}
	m.Close()
	server.CloseClientConnections()
	server.Close()
	http.DefaultClient.CloseIdleConnections()
	goleak.VerifyNone(t, before)
}

// However much discovery finds, what is looked at is bounded.
func TestDiscoveredIsBounded(t *testing.T) {
	js, err := newJobSet(jobs(t, "- job_name: j\n  static_configs: [{targets: [x]}]\n"), labels.EmptyLabels(), 10)
	if err != nil {
		t.Fatal(err)
	}
	group := &targetgroup.Group{}
	for range maxDiscovered + 5 {
		group.Targets = append(group.Targets, model.LabelSet{model.AddressLabel: "a:1"})
	}
	ix := buildIndex(js, map[string][]*targetgroup.Group{"j": {group}}, newInterner(10))
	if len(ix.entries) != maxDiscovered || ix.truncated != 5 {
		t.Errorf("%d targets, %d left out", len(ix.entries), ix.truncated)
	}
}

func TestCompareNatural(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"2", "10", -1}, {"a2", "a10", -1}, {"b1", "a2", 1}, {"a", "a1", -1}, {"a01", "a1", 0}, {"", "", 0}} {
		if got := compareNatural(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %d", c.a, c.b, got)
		}
	}
}
