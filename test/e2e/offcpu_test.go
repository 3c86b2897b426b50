package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spanflame/spanflame/test/harness"
	"github.com/spanflame/spanflame/test/pyroserver"
)

const offCPUType = "off_cpu:off_cpu:nanoseconds::"

// readOffCPU waits until the source has an off-CPU profile of the selector with so much
// time, and returns it.
func readOffCPU(t *testing.T, s source, selector string, from, until time.Time, least time.Duration) *harness.OffCPUProfile {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 70*time.Second)
	defer cancel()
	var p *harness.OffCPUProfile
	harness.Eventually(t, 60*time.Second, "an off-CPU profile of "+selector, func() error {
		raw, err := s.MergeProfile(ctx, offCPUType, selector, from, until)
		if err != nil {
			return err
		}
		if p, err = harness.NewOffCPUProfile(raw); err != nil {
			t.Fatal(err)
		}
		if got := p.Time(nil); got < least {
			return fmt.Errorf("%s so far, want %s", got, least)
		}
		return nil
	})
	return p
}

// TestOffCPU enables off-CPU profiles while the agent runs, and reads from the store and
// from a real Pyroscope why threads waited.
func TestOffCPU(t *testing.T) {
	harness.NeedRoot(t)
	srv := pyroserver.Start(t)
	global, label := external(t, 3*time.Second)
	addr, dir := harness.FreeAddress(t), t.TempDir()
	file := filepath.Join(dir, "c.yml")
	config := func(profiles string) {
		yaml := global + "profiles: " + profiles + "\n" + harness.WorkloadTargets + write(srv.PushURL()) +
			"server: { listen_address: " + addr + " }\nstore: { path: " + dir + "/store }\n"
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config("{ off_cpu: { enabled: false } }")
	a := &harness.Agent{URL: "http://" + addr, Process: harness.Launch{Args: []string{"run", "--config.file", file}}.Start(t)}
	a.WaitReady(t, 30*time.Second)
	// More are sampled than by default, whose sums of some seconds have errors of more than 2 %.
	config("{ cpu: { thread: true }, off_cpu: { enabled: true, max_events_per_second: 1000 } }")
	if code, text := post(t, a.URL+"/-/reload"); code != http.StatusOK {
		t.Fatalf("reload: %d: %s", code, text)
	}

	from := time.Now().Add(-time.Second)
	const run = 8 * time.Second // several rounds
	w := harness.StartWorkload(t, "waits", run.Seconds(), dir, 2, "wait_mutex", "wait_pipe", "wait_poll")
	truth := w.Wait(t)
	until := time.Now().Add(time.Minute)
	for name, s := range sources(a, srv) {
		t.Run(name, func(t *testing.T) {
			for thread, wait := range map[string]string{
				"wait_mutex": harness.WaitLock, "wait_pipe": harness.WaitPipe, "wait_poll": harness.WaitPoll, "hold_mutex": harness.WaitSleep,
			} {
				th := truth.Threads[thread]
				want := seconds(th.Waited - th.Other)
				selector := fmt.Sprintf("{service_name=%q, test=%q, thread=%q, wait=%q}", "waits", label, thread, wait)
				p := readOffCPU(t, s, selector, from, until, want*9/10)
				harness.CheckNear(t, thread+": "+wait, p.Time(harness.InFunction(thread)), want, seconds(0.02*th.Elapsed))
			}
			idle := readOffCPU(t, s, fmt.Sprintf(`{service_name="waits", test=%q, idle="true"}`, label), from, until, 0)
			if got, all := idle.Time(harness.InFunction("wait_poll")), idle.Time(nil); got < all*99/100 {
				t.Errorf("idle: %s of %s in the event loop", got, all)
			}
		})
	}
	checkAccounts(t, a)
	a.Stop(t)
}
