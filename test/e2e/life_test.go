package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spanflame/spanflame/test/harness"
	"github.com/spanflame/spanflame/test/pyroserver"
)

// TestFirstFlameGraph starts the agent with no configuration at all: within 5
// seconds its store must have a flame graph of a program that runs.
func TestFirstFlameGraph(t *testing.T) {
	harness.NeedRoot(t)
	harness.NeedTool(t, "unshare")
	const addr = "127.0.0.1:4041"
	l, err := net.Listen("tcp", addr)
	if err != nil {
		harness.SkipOrFail(t, "the agent's default port is in use here: %v", err)
	}
	l.Close()
	w := harness.StartWorkload(t, "split", 30, 0)

	// The store's default folder is this machine's: give the agent another one there.
	a := &harness.Agent{URL: "http://" + addr, Process: harness.Launch{
		Prefix: []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs tmpfs /var/lib && exec "$0" "$@"`},
		Args:   []string{"run"},
	}.Start(t)}
	var found time.Duration
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	harness.Eventually(t, 30*time.Second, "a flame graph", func() error {
		service, err := serviceOf(a, w.PID)
		if err != nil {
			return err
		}
		raw, err := a.MergeProfile(ctx, harness.CPUType, fmt.Sprintf("{service_name=%q}", service), time.Now().Add(-time.Hour), time.Now())
		if err != nil {
			return err
		}
		p, err := harness.NewProfile(raw)
		if err != nil {
			return err
		}
		if p.Time(harness.InFunction("burn_a")) == 0 {
			return fmt.Errorf("burn_a is not in it")
		}
		found = time.Since(a.Started)
		return nil
	})
	t.Logf("the first flame graph was there %s after the start", found.Round(10*time.Millisecond))
	if found > 5*time.Second {
		t.Errorf("the first flame graph took %s, more than 5 s", found)
	}
	if code := a.Stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// serviceOf is the service that the agent gives a process, on its list of targets.
func serviceOf(a *harness.Agent, pid int) (string, error) {
	resp, err := http.Get(a.URL + "/api/v1/targets")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var page struct {
		Processes []struct {
			PID         int    `json:"pid"`
			ServiceName string `json:"service_name"`
			Why         string `json:"why"`
		} `json:"processes"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		return "", err
	}
	for _, p := range page.Processes {
		if p.PID == pid && p.ServiceName != "" {
			return p.ServiceName, nil
		}
	}
	return "", fmt.Errorf("process %d is no target among %d processes", pid, len(page.Processes))
}

// TestStop ends the agent in the middle of a round: what was sampled by then must
// have arrived, and nothing of the agent may be left in the kernel.
func TestStop(t *testing.T) {
	harness.NeedRoot(t)
	srv := pyroserver.Start(t)
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			global, label := external(t, 10*time.Second)
			w := harness.StartWorkload(t, "split", 60, 0)
			a := harness.StartAgent(t, global+harness.WorkloadTargets+write(srv.PushURL()))
			meter := harness.MeterCPU(t, w.PID)
			time.Sleep(50 * time.Millisecond)
			from := time.Now()
			time.Sleep(13 * time.Second) // into the second round
			held := harness.HeldKernelObjects(t, a.PID)
			stopped := time.Now()
			a.Signal(t, sig)
			if code := a.Wait(t, 20*time.Second); code != 0 {
				t.Errorf("exit code %d", code)
			}
			t.Logf("stopped in %s", time.Since(stopped).Round(time.Millisecond))
			if took := time.Since(stopped); took > 10*time.Second {
				t.Errorf("stopping took %s", took)
			}
			time.Sleep(50 * time.Millisecond)
			used := meter.Between(t, from, stopped)
			w.Kill()
			p := read(t, srv, fmt.Sprintf("{service_name=%q, test=%q}", "split", label), from.Add(-time.Minute), time.Now().Add(time.Minute), nil)
			// The agent samples from before it is ready: there may be more. Once it is told
			// to stop, it needs a moment.
			if got := p.Time(nil); got < used-used/50-500*time.Millisecond || got > used+3*time.Second {
				t.Errorf("%s arrived, %s were used while the agent ran", got, used)
			} else {
				t.Logf("%s arrived, %s were used from when the agent was ready until it was told to stop", got, used)
			}
			held.CheckGone(t)
			checkNoErrors(t, a)
		})
	}
}

// checkNoErrors tests that the agent has logged nothing as an error.
func checkNoErrors(t *testing.T, a *harness.Agent) {
	t.Helper()
	for line := range strings.Lines(a.Stderr()) {
		if strings.Contains(line, "level=error") || strings.Contains(line, "panic") || strings.Contains(line, "DATA RACE") {
			t.Errorf("the agent logged: %s", strings.TrimSpace(line))
		}
	}
}

// TestChurn has processes come and go all the time: that is no error, and the agent
// must not hold more and more of anything.
func TestChurn(t *testing.T) {
	harness.NeedRoot(t)
	a := harness.StartAgent(t, "global: { push_interval: 2s }\n")
	storm := harness.StartWorkload(t, "shortlived", "storm", 24, 0, 300)
	exec := harness.StartWorkload(t, "shortlived", 24, 1, 1, 10, "exec")
	time.Sleep(8 * time.Second) // caches fill
	files, threads := harness.OpenFiles(t, a.PID), harness.Threads(t, a.PID)
	resident, _, err := harness.ResidentBytes(a.PID)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(13 * time.Second)
	files2, threads2 := harness.OpenFiles(t, a.PID), harness.Threads(t, a.PID)
	resident2, _, err := harness.ResidentBytes(a.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("files %d → %d, threads %d → %d, resident %d → %d MiB, %d and %d processes", files, files2, threads, threads2,
		resident>>20, resident2>>20, storm.Wait(t).Children, exec.Wait(t).Children)
	if files2 > files+20 {
		t.Errorf("open files: %d, then %d", files, files2)
	}
	if threads2 > threads+8 {
		t.Errorf("threads: %d, then %d", threads, threads2)
	}
	if resident2 > resident+32<<20 {
		t.Errorf("resident memory: %d MiB, then %d MiB", resident>>20, resident2>>20)
	}
	checkAccounts(t, a)
	checkNoErrors(t, a)
	for line := range strings.Lines(a.Stderr()) {
		if strings.Contains(line, "no such process") || strings.Contains(line, "no such file") {
			t.Errorf("a process that is gone is nothing to log: %s", strings.TrimSpace(line))
		}
	}
}

// TestReload changes what runs without a restart; a configuration that is wrong
// changes nothing.
func TestReload(t *testing.T) {
	harness.NeedRoot(t)
	addr, dir := harness.FreeAddress(t), t.TempDir()
	file := filepath.Join(dir, "c.yml")
	config := func(frequency string) {
		yaml := "global: { push_interval: 2s }\nprofiles: { cpu: { frequency: " + frequency + " } }\n" + harness.WorkloadTargets +
			"server: { listen_address: " + addr + " }\nstore: { path: " + dir + "/store }\n"
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config("97")
	a := &harness.Agent{URL: "http://" + addr, Process: harness.Launch{Args: []string{"run", "--config.file", file}}.Start(t)}
	a.WaitReady(t, 30*time.Second)
	harness.StartWorkload(t, "split", 60, 0)

	period := func(from time.Time, want time.Duration) {
		t.Helper()
		read(t, a, `{service_name="split"}`, from, time.Now().Add(time.Minute), func(p *harness.Profile) error {
			if got := time.Duration(p.Period); got != want {
				return fmt.Errorf("the period is %s, want %s", got, want)
			}
			return nil
		})
	}
	period(time.Now().Add(-time.Minute), time.Second/97)

	config("499")
	if code, text := post(t, a.URL+"/-/reload"); code != http.StatusOK {
		t.Fatalf("reload: %d: %s", code, text)
	}
	time.Sleep(3 * time.Second) // past the round that had begun
	from := time.Now()
	period(from, time.Second/499)

	config("99999")
	code, text := post(t, a.URL+"/-/reload")
	if code == http.StatusOK || !strings.Contains(text, "frequency") {
		t.Errorf("reload of a wrong configuration: %d: %s", code, text)
	}
	time.Sleep(3 * time.Second)
	period(time.Now(), time.Second/499)
	checkAccounts(t, a)
	a.Stop(t)
}

func post(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return resp.StatusCode, b.String()
		}
	}
}

// TestPage looks at the agent's page in headless Chromium.
func TestPage(t *testing.T) {
	harness.NeedRoot(t)
	node := harness.NeedTool(t, "node")
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "web/ui/node_modules/playwright-core")); err != nil {
		harness.SkipOrFail(t, "the page's test tools are not installed (cd web/ui && npm ci): %v", err)
	}
	a := harness.StartAgent(t, "global: { push_interval: 3s }\n")
	w := harness.StartWorkload(t, "gosplit", 150, 0)
	cmd := execCommand(root, node, "test/page/run.mjs", "--url", a.URL+"/", "--function", "main.burnA", "--pid", strconv.Itoa(w.PID))
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("%v", err)
	}
	checkNoErrors(t, a)
}

// TestSelfProfiling has the agent push profiles of itself to its own store.
func TestSelfProfiling(t *testing.T) {
	harness.NeedRoot(t)
	a := harness.StartAgent(t, "self_profiling: { enabled: true, url: \"http://ADDRESS\" }\n"+harness.WorkloadTargets)
	// Left alone, it may do too little for a sample of a hundred a second.
	asked, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				a.Metrics(t)
			}
		}
	}()
	p := func() *harness.Profile {
		defer func() { close(stop); <-asked }()
		return read(t, a, `{service_name="spanflame-self"}`, time.Now().Add(-time.Minute), time.Now().Add(time.Minute), nil)
	}()
	if !strings.Contains(p.Describe(nil), "runtime.") {
		t.Errorf("the agent's profile of itself names no function of its runtime: %s", p.Describe(nil))
	}
	if code := a.Stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
