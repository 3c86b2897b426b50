package truth

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spanflame/spanflame/test/harness"
)

// waitOf is why a thread of waits waits.
var waitOf = map[string]string{
	"wait_sleep": harness.WaitSleep, "long_sleep": harness.WaitSleep, "hold_mutex": harness.WaitSleep,
	"feed_pipe": harness.WaitSleep, "feed_socket": harness.WaitSleep,
	"wait_mutex": harness.WaitLock, "wait_pipe": harness.WaitPipe, "wait_socket": harness.WaitNetwork,
	"wait_poll": harness.WaitPoll, "wait_disk": harness.WaitDisk, "wait_fault": harness.WaitPageFault,
}

// blocking are the threads of waits that leave the CPUs idle most of the time.
var blocking = []any{"wait_sleep", "long_sleep", "wait_mutex", "wait_pipe", "wait_socket", "wait_poll", "wait_disk", "wait_fault"}

// recording is what a workload and the profiles of it say.
type recording struct {
	truth   harness.Truth
	onCPU   *harness.Profile
	off     *harness.OffCPUProfile
	account harness.Account
}

// recordWaits records waits for a time.
func recordWaits(t *testing.T, workload string, d time.Duration, names ...any) recording {
	t.Helper()
	return recordOffCPU(t, workload, lead, slices.Concat([]any{d.Seconds(), onDisk(t), lead.Seconds()}, names)...)
}

// recordOffCPU records a workload that begins a time after it was started.
func recordOffCPU(t *testing.T, workload string, lead time.Duration, args ...any) recording {
	t.Helper()
	path(t, workload)
	harness.AgentPath(t)
	w := harness.StartWorkload(t, workload, args...)
	rec := harness.StartRecord(t, 5*time.Minute, slices.Concat(offCPU, []string{"--pid", pid(w)})...)
	rec.WaitBegun(t)
	r := recording{truth: w.Wait(t)}
	r.onCPU, r.account = rec.Stop(t)
	r.off = rec.OffCPU(t)
	for _, start := range []time.Time{r.onCPU.Start(), r.off.Start()} {
		if begin := w.Started.Add(lead); begin.Before(start) {
			t.Fatalf("the threads began at %s, the profile at %s: record started too late", begin, start)
		}
	}
	if r.account.Lost() != 0 {
		t.Errorf("samples were dropped: %v", r.account.Dropped)
	}
	return r
}

// offCPU is how record is started, with all that was off CPU, however shortly.
// More are sampled than by default, so that what is left is the error of the method.
var offCPU = []string{harness.OffCPUFlag, harness.ThreadsFlag, harness.MaxEventsFlag, "1000"}

// onDisk is a folder for temporary files that is not in memory.
func onDisk(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(bin, "offcpu-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the files in it have no names
	return dir
}

// isShort says whether most of a thread's spells off CPU are sampled rather than all counted.
func isShort(th harness.ThreadTruth) bool { return th.OffCPU() < 2e-3*float64(th.Switches) }

// allowed is how far a time of a thread may be off: 2 % of the wall clock, and 4 standard
// deviations of the estimate where spells off CPU are sampled.
func (r recording) allowed(th harness.ThreadTruth) time.Duration {
	part := th.OffCPU()
	if !isShort(th) {
		part = th.Runnable() // with each preemption it is in a place of its own
	}
	all, sampled := 0.0, r.account.OffCPU.Sampled
	for _, other := range r.truth.Threads {
		if isShort(other) {
			all += other.OffCPU()
		} else {
			sampled -= min(sampled, uint64(other.Switches))
		}
	}
	return seconds(0.02*th.Elapsed) + 4*harness.EstimateError(seconds(part), seconds(all), sampled)
}

// TestWaits compares the off-CPU time of each function, and of each reason to wait, with
// what the threads measured.
func TestWaits(t *testing.T) {
	harness.NeedRoot(t)
	const d = 12 * time.Second // several rounds
	for _, tt := range []struct {
		name, workload string
		threads        []any // nil: all
	}{
		{"blocking", "waits", blocking},
		{"blocking, no frame pointers", "waits-nofp", blocking},
		{"blocking and busy", "waits", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			recordWaits(t, tt.workload, d, tt.threads...).checkWaits(t)
		})
	}
}

// checkWaits checks the off-CPU time of each thread by reason, and of each function.
func (r recording) checkWaits(t *testing.T) {
	t.Helper()
	truth, off := r.truth, r.off
	functions := map[string]harness.ThreadTruth{}
	for name, th := range truth.Threads {
		in := harness.Labelled(harness.ThreadLabel, name)
		waits := off.By(harness.WaitLabel, in)
		harness.CheckNear(t, name+": "+harness.WaitRunQueue, waits[harness.WaitRunQueue], seconds(th.Runnable()), r.allowed(th))
		if wait, ok := waitOf[name]; ok {
			harness.CheckNear(t, name+": "+wait, waits[wait], seconds(th.Waited-th.Other), r.allowed(th))
		}
		f := functions[th.Function]
		f.Elapsed += th.Elapsed
		f.CPU += th.CPU
		f.RunQueue += th.RunQueue
		f.Waits += th.Waits
		f.Switches += th.Switches
		functions[th.Function] = f
	}
	for name, f := range functions {
		harness.CheckNear(t, name, off.Time(harness.InFunction(name)), seconds(f.OffCPU()), r.allowed(f))
	}
	if t.Failed() {
		t.Log(off.Describe(nil))
	}
}

// TestThreadsAddUp compares the elapsed time of each thread with what the profiles say it
// was: on a CPU, off CPU, on the run queue.
func TestThreadsAddUp(t *testing.T) {
	harness.NeedRoot(t)
	r := recordWaits(t, "waits", 12*time.Second)
	truth, onCPU, off := r.truth, r.onCPU, r.off
	for name, th := range truth.Threads {
		in := harness.Labelled(harness.ThreadLabel, name)
		elapsed, period := seconds(th.Elapsed), time.Duration(onCPU.Period)
		on := onCPU.Time(in)
		waits := off.By(harness.WaitLabel, in)
		var blocked time.Duration
		for wait, d := range waits {
			if wait != harness.WaitRunQueue {
				blocked += d
			}
		}
		t.Logf("%s: on CPU %.3f s, off CPU %.3f s, run queue %.3f s", name, on.Seconds(), blocked.Seconds(), waits[harness.WaitRunQueue].Seconds())
		tolerance := r.allowed(th) + period + 4*harness.SamplingError(seconds(th.CPU), elapsed, period)
		harness.CheckNear(t, name, on+blocked+waits[harness.WaitRunQueue], elapsed, tolerance)
	}
	if t.Failed() {
		t.Log(off.Describe(nil))
	}
}

// TestShortBlocks tests the bias of the estimator with a million blocks so short that few are
// sampled: 1 %, besides the standard error of the estimate itself.
func TestShortBlocks(t *testing.T) {
	cpus(t)
	// What two clocks may disagree by in a switch, which is not done in a moment.
	const switchError = 300 * time.Nanosecond
	r := recordOffCPU(t, "shortblocks", lead, 1_000_000, 15, 50, 2, lead.Seconds())
	truth, off := r.truth, r.off
	for _, function := range slices.Sorted(maps.Keys(truth.Blocks)) {
		b := truth.Blocks[function]
		want := seconds(b.OffCPU)
		sigma := harness.EstimateError(want, off.Time(nil), r.account.OffCPU.Sampled)
		t.Logf("%s: %d blocks of %s on average, standard error of the estimate %.2f %%",
			function, b.Waits, want/time.Duration(b.Waits), 100*float64(sigma)/float64(want))
		harness.CheckNear(t, function, off.Time(harness.InFunction(function)), want, want/100+3*sigma+time.Duration(b.Waits)*switchError)
	}
	if t.Failed() {
		t.Log(off.Describe(nil))
	}
}

// TestAgainstBpftrace compares each thread's off-CPU time with what bpftrace adds up at the
// same switches, of all lengths.
func TestAgainstBpftrace(t *testing.T) {
	harness.NeedRoot(t)
	path(t, "waits")
	harness.AgentPath(t)
	const before = 6 * time.Second // until bpftrace and record are there
	w := harness.StartWorkload(t, "waits", 8, onDisk(t), before.Seconds())
	bt := harness.StartBpftrace(t, w.PID)
	rec := harness.StartRecord(t, 5*time.Minute, slices.Concat(offCPU, []string{"--pid", pid(w)})...)
	rec.WaitBegun(t)
	if time.Since(w.Started) > before {
		t.Fatal("bpftrace and record started too late")
	}
	r := recording{truth: w.Wait(t)}
	_, r.account = rec.Stop(t)
	off, threads := rec.OffCPU(t), bt.Stop(t)
	for name, th := range r.truth.Threads {
		in := harness.Labelled(harness.ThreadLabel, name)
		harness.CheckNear(t, name+", against bpftrace", off.Time(in), threads[th.TID].OffCPU, r.allowed(th))
		harness.CheckNear(t, name+": run queue, against bpftrace",
			off.Time(harness.All(in, harness.Labelled(harness.WaitLabel, harness.WaitRunQueue))), threads[th.TID].RunQueue, r.allowed(th))
	}
	if t.Failed() {
		t.Log(off.Describe(nil))
	}
}
