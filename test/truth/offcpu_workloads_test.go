package truth

import (
	"math"
	"testing"
	"time"

	"github.com/spanflame/spanflame/test/harness"
)

// The workloads of off-CPU profiles measure themselves with clocks of which each could be
// wrong. These tests need no agent: they hold the clocks against each other.

// TestWaitsOwnAccount compares, for each thread, its elapsed time with the sum of what it
// was used for, and its waits with what it asked for.
func TestWaitsOwnAccount(t *testing.T) {
	harness.NeedRoot(t) // for perf's task clock
	// A timer's slack is 50 µs, and a virtual CPU that sleeps is woken late.
	const late = 200e-6
	for _, workload := range []string{"waits", "waits-nofp"} {
		t.Run(workload, func(t *testing.T) {
			truth := harness.StartWorkload(t, workload, 4, onDisk(t), 0).Wait(t)
			if len(truth.Threads) != 14 {
				t.Errorf("%d threads, want 14", len(truth.Threads))
			}
			for name, th := range truth.Threads {
				// The scheduler's clocks go together, but lack what a hypervisor stole.
				cpu, tolerance := th.CPU, 0.02
				if th.Waits == 0 {
					cpu, tolerance = th.SchedCPU, 0.05
				}
				near(t, name+": CPU + run queue + waited", cpu+th.RunQueue+th.Waited, th.Elapsed, tolerance)
				if th.Asked > 0 {
					near(t, name+": waited, for what was asked", th.Waited, th.Asked, 0.02+late*float64(th.Waits)/th.Asked)
				}
			}
			for _, name := range []string{"wait_fault", "wait_disk"} {
				if th := truth.Threads[name]; th.Switches-th.Preempted < th.Waits/4 {
					t.Errorf("%s: only %d of %d waits blocked", name, th.Switches-th.Preempted, th.Waits)
				}
			}
			for _, name := range []string{"preempted_a", "preempted_b"} {
				if th := truth.Threads[name]; th.RunQueue < 0.4*th.Elapsed {
					t.Errorf("%s: %.3f of %.3f s on the run queue: the other one shares its CPU", name, th.RunQueue, th.Elapsed)
				}
			}
		})
	}
}

// TestShortBlocksOwnAccount compares the blocks measured one by one with what the threads
// were off CPU in all.
func TestShortBlocksOwnAccount(t *testing.T) {
	harness.NeedRoot(t)
	truth := harness.StartWorkload(t, "shortblocks", 100000, 15, 50, 2, 0).Wait(t)
	var blocks, threads, preempted float64
	waits, switches := 0, 0
	for name, b := range truth.Blocks {
		t.Logf("%s: %d waits, %.1f µs off CPU on average", name, b.Waits, 1e6*b.OffCPU/float64(b.Waits))
		blocks += b.OffCPU
		waits += b.Waits
	}
	for _, th := range truth.Threads {
		threads += th.OffCPU()
		preempted += th.RunQueue
		switches += th.Switches - th.Preempted
	}
	// Preemptions between the blocks are not in them.
	near(t, "off CPU, block by block", blocks, threads, 0.01+preempted/threads)
	near(t, "voluntary switches, for blocks", float64(switches), float64(waits), 0.02)
}

// near tests that a number is within a part of what it should be.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	off := got/want - 1
	if !(math.Abs(off) <= tolerance) {
		t.Errorf("%s: %.4f, want %.4f: off by %+.2f %%, %.2f %% are allowed", what, got, want, 100*off, 100*tolerance)
		return
	}
	t.Logf("%s: %.4f, want %.4f (%+.3f %%)", what, got, want, 100*off)
}

// TestWaitsOfBpftrace compares what the threads measured with what bpftrace adds up.
func TestWaitsOfBpftrace(t *testing.T) {
	harness.NeedRoot(t)
	path(t, "waits")
	const before = 4 * time.Second // until bpftrace is there
	w := harness.StartWorkload(t, "waits", 5, onDisk(t), before.Seconds())
	bt := harness.StartBpftrace(t, w.PID)
	if time.Since(w.Started) > before {
		t.Fatal("bpftrace started too late")
	}
	truth := w.Wait(t)
	threads := bt.Stop(t)
	for name, th := range truth.Threads {
		got := threads[th.TID]
		harness.CheckNear(t, name+": off CPU by bpftrace", got.OffCPU, seconds(th.OffCPU()), seconds(0.02*th.Elapsed))
		harness.CheckNear(t, name+": run queue by bpftrace", got.RunQueue, seconds(th.Runnable()), seconds(0.02*th.Elapsed))
	}
}
