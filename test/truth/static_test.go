package truth

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/spanflame/spanflame/test/harness"
)

// These tests profile programs without frame pointers and without libraries, so that they
// need nothing of the machine: they also run on other kernels, in virtual machines whose
// processor is emulated (test/kernels). The clocks of those are uneven, as is the time that
// they get. So only shares are compared, and not totals: a share is that of the program's
// own CPU time.

// recordStatic profiles a static workload for a few seconds, and checks the stacks' ends.
// The workload rests while it is not sampled: starting the sampler takes so long on an
// emulated processor that what the workload did meanwhile would be much of its truth.
func recordStatic(t *testing.T, name string, args ...any) (*harness.Profile, harness.Truth) {
	t.Helper()
	harness.NeedRoot(t)
	const d, enough = 4 * time.Second, 10 * time.Minute
	w := harness.StartWorkload(t, name, append([]any{enough.Seconds(), 0}, args...)...)
	harness.Eventually(t, time.Minute, "the workload burns", func() error {
		exe, err := os.Readlink("/proc/" + pid(w) + "/exe")
		if err != nil {
			return err
		}
		used, err := harness.CPUTime(w.PID)
		if err == nil && (filepath.Base(exe) != name || used < 200*time.Millisecond) {
			err = fmt.Errorf("%s has burnt %s", exe, used)
		}
		return err
	})
	w.Signal(t, syscall.SIGSTOP)
	rec := harness.StartRecord(t, enough, "--pid", pid(w))
	harness.Eventually(t, time.Minute, "record takes samples", func() error {
		if !strings.Contains(rec.Stderr(), "recording process") {
			return errors.New("it does not say so")
		}
		return nil
	})
	w.Signal(t, syscall.SIGCONT)
	time.Sleep(d)
	w.Signal(t, syscall.SIGSTOP)
	rec.Signal(t, os.Interrupt)
	p, account := rec.Wait(t)
	w.Signal(t, syscall.SIGTERM)
	w.Signal(t, syscall.SIGCONT)
	truth := w.Wait(t)
	if account.Lost() != 0 {
		t.Errorf("samples were dropped: %v", account.Dropped)
	}
	checkEnds(t, p, "all", nil, goalWhole)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Describe(nil))
		}
	})
	return p, truth
}

// TestStaticSplit has a program that burns 70 % of its time in one function and 30 % in
// another.
func TestStaticSplit(t *testing.T) {
	p, truth := recordStatic(t, "split-static")
	a, b := p.Samples(harness.InFunction("burn_a")), p.Samples(harness.InFunction("burn_b"))
	harness.CheckShare(t, "burn_a", a, a+b, truth.Functions["burn_a"]/(truth.Functions["burn_a"]+truth.Functions["burn_b"]))
	harness.CheckShare(t, "both", a+b, p.Samples(nil), (truth.Functions["burn_a"]+truth.Functions["burn_b"])/truth.Total)
	checkExact(t, p, harness.InFunction("burn_a"), "burn_a", "main")
	checkExact(t, p, harness.InFunction("burn_b"), "burn_b", "main")
}

// TestStaticDeep has stacks of 105 frames, none of which may lack.
func TestStaticDeep(t *testing.T) {
	const depth = 100
	p, truth := recordStatic(t, "deep-static", depth)
	leaf := harness.InFunction("deep_leaf")
	harness.CheckShare(t, "deep_leaf", p.Samples(leaf), p.Samples(nil), truth.Functions["deep_leaf"]/truth.Total)
	checkExact(t, p, leaf, slices.Concat([]string{"deep_leaf"}, slices.Repeat([]string{"deep_step"}, depth), []string{"main"})...)
}

// TestStaticSignals has a program that burns in signal handlers, on the thread's stack and
// on one of their own.
func TestStaticSignals(t *testing.T) {
	if runtime.GOARCH == "arm64" {
		t.Skip("stacks end at a signal handler's return on arm64: the vDSO has no call frame information for it")
	}
	for _, stack := range []string{"plain", "alt"} {
		t.Run(stack, func(t *testing.T) {
			p, truth := recordStatic(t, "signals-static", stack)
			checkSignals(t, p, truth)
		})
	}
}

// TestStaticWaits has threads that wait, each for a reason of its own. Those that need a disk
// are left out: the virtual machines have none.
func TestStaticWaits(t *testing.T) {
	lead := lead
	if testing.Short() {
		lead *= 8 // an emulated processor is slow
	}
	r := recordOffCPU(t, "waits-static", lead, 12, t.TempDir(), lead.Seconds(),
		"wait_sleep", "long_sleep", "wait_mutex", "wait_pipe", "wait_socket", "wait_poll")
	r.checkWaits(t)
}

// checkSignals checks the profile of the workload "signals".
func checkSignals(t *testing.T, p *harness.Profile, truth harness.Truth) {
	t.Helper()
	alarm, fault := harness.InFunction("on_alarm"), harness.InFunction("on_fault")
	plain := func(s *pprof.Sample) bool { return user(s, "interrupted") != nil && !alarm(s) }
	all := p.Samples(nil)
	for function, m := range map[string]harness.Match{"on_alarm": alarm, "on_fault": fault, "interrupted": plain} {
		harness.CheckShare(t, function, p.Samples(m), all, truth.Functions[function]/truth.Total)
	}
	// The alarm may ring while it is being set or stopped: then it came in between there.
	rang := func(s *pprof.Sample) bool {
		return alarm(s) && user(s, "setitimer") == nil && user(s, "__setitimer") == nil
	}
	checkExact(t, p, rang, "on_alarm", "__restore_rt", "interrupted", "main")
	checkExact(t, p, fault, "on_fault", "__restore_rt", "at_first", "call_first", "main")
	checkExact(t, p, plain, "interrupted", "main")
}
