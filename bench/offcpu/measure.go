package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/test/harness"
)

// load is a way to run the workload switches.
type load struct {
	name  string
	pairs int
	how   string
	cpu   int // the only one it has; anyCPU: it has all
	work  int // steps of more than a nanosecond before each switch
}

const anyCPU = -1

// Servers that do something between their waits: about 100,000 switches a second, on two
// CPUs or even on one; and pairs of threads that do nothing else.
var loads = []load{
	{"work between switches, all CPUs", 8, "futex", anyCPU, 8500},
	{"work between switches, one CPU", 4, "futex", 0, 3500},
	{"no work: as many switches as go", 1, "pipe", 0, 0},
}

// recordings are what is compared: their arguments besides the processes.
var (
	without = []string{}
	with    = []string{harness.OffCPUFlag}
)

// recorded says which processes are recorded.
type recorded struct {
	name string // of the load
	args []string
}

// All, so that the load is a target, or init and its children, so that it is none.
var (
	asTarget = recorded{"a target", []string{"--all"}}
	asOther  = recorded{"not a target", []string{"--pid", "1"}}
)

// figures are those of a load.
type figures struct {
	load
	switches float64 // a second, without off-CPU profiles
	target   changes
	other    changes
	costs    []cost
}

// changes are those of throughput: of round trips a second, and a second of the CPU time of
// the load, which other programs on the machine disturb less, but which lacks what the agent
// itself takes of the CPU.
type changes struct {
	elapsed, cpu change
}

// change is the mean of the changes in pairs of runs, and its standard error.
type change struct {
	mean, stderr float64
}

// cost is what a program of the agent costs a run, with off-CPU profiles.
type cost struct {
	program string
	who     string
	runs    float64 // a switch of the load
	each    time.Duration
}

func measure(l load, pairs int, d time.Duration) (f figures, err error) {
	r := &harness.Runner{}
	defer r.Stop()
	defer r.Catch(&err)
	f.load = l
	f.target = f.compare(r, asTarget, pairs, d)
	f.other = f.compare(r, asOther, pairs, d)
	// The kernel's statistics cost something themselves: these runs are apart.
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return f, fmt.Errorf("switch on the kernel's statistics of BPF programs (Linux 5.8): %w", err)
	}
	defer stats.Close()
	f.costs = append(f.programs(r, asTarget, d), f.programs(r, asOther, d)...)
	return f, nil
}

// compare runs the load without and with off-CPU profiles, in turn.
func (f *figures) compare(r *harness.Runner, who recorded, pairs int, d time.Duration) changes {
	var elapsed, cpu []float64
	for i := range pairs {
		off, _ := f.run(r, who, without, d)
		on, _ := f.run(r, who, with, d)
		elapsed = append(elapsed, on.rate()/off.rate()-1)
		cpu = append(cpu, on.rateOfCPU()/off.rateOfCPU()-1)
		r.Logf("%s, %s, pair %d: %.0f, %.0f round trips a second: %+.2f %%, a second of CPU time: %+.2f %%",
			f.name, who.name, i+1, off.rate(), on.rate(), 100*elapsed[i], 100*cpu[i])
		f.switches += off.switches() / float64(2*pairs) // there are two comparisons
	}
	return changes{meanOf(elapsed), meanOf(cpu)}
}

// ran is what the load did.
type ran struct{ harness.Truth }

func (t ran) rate() float64      { return float64(t.RoundTrips) / t.Elapsed }
func (t ran) rateOfCPU() float64 { return float64(t.RoundTrips) / t.Total }
func (t ran) switches() float64  { return float64(t.Switches) / t.Elapsed }

// run runs the load while record runs, and returns what the load did and what the agent's
// programs cost meanwhile, if the kernel's statistics are switched on.
func (f *figures) run(r *harness.Runner, who recorded, how []string, d time.Duration) (ran, map[string]harness.ProgramCost) {
	defer r.Stop() // what this run has started
	rec := harness.StartRecord(r, d+time.Minute, slices.Concat(who.args, how)...)
	rec.WaitBegun(r)
	before := harness.ProgramCosts(r, rec.PID)
	costs := map[string]harness.ProgramCost{}
	w := harness.StartWorkloadAt(r, 0, "switches", d.Seconds(), f.pairs, f.how, f.cpu, f.work)
	truth := w.Wait(r)
	for name, c := range harness.ProgramCosts(r, rec.PID) {
		c.Runs -= before[name].Runs
		c.RunTime -= before[name].RunTime
		costs[name] = c
	}
	rec.Stop(r)
	return ran{truth}, costs
}

// programs measures the run time of the agent's programs but for the one that samples CPUs.
func (f *figures) programs(r *harness.Runner, who recorded, d time.Duration) []cost {
	truth, costs := f.run(r, who, with, d)
	var out []cost
	for _, name := range slices.Sorted(maps.Keys(costs)) {
		c := costs[name]
		if c.Type == ebpf.PerfEvent || c.Runs < truth.Switches/10 {
			continue
		}
		out = append(out, cost{
			program: name, who: who.name,
			runs: float64(c.Runs) / float64(truth.Switches), each: c.RunTime / time.Duration(c.Runs),
		})
	}
	return out
}

func meanOf(x []float64) change {
	var sum, squares float64
	for _, v := range x {
		sum += v
	}
	n := float64(len(x))
	mean := sum / n
	for _, v := range x {
		squares += (v - mean) * (v - mean)
	}
	return change{mean, math.Sqrt(squares / (n - 1) / n)}
}
