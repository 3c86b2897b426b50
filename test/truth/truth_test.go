// Package truth tests what the agent measures against programs whose answer is
// known: how their CPU time is shared, how much it is, and that none of it is lost
// or given to another function. The programs are in workloads and say at their end
// what they did; the errors that are allowed are those of sampling, computed.
package truth

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/spanflame/spanflame/test/harness"
)

// lead is how long record may take until it samples: a workload that is to be seen
// whole is started after it.
const lead = 3 * time.Second

// whole fails the test if the workload did not run within the profile's time.
func whole(t *testing.T, p *harness.Profile, w *harness.Workload) {
	t.Helper()
	if w.Started.Before(p.Start()) || w.Ended().After(p.End()) {
		t.Fatalf("%s ran from %s to %s, the profile covers %s to %s: record started too late or ended too early",
			w.Name, w.Started, w.Ended(), p.Start(), p.End())
	}
}

// cpus are two CPUs to pin programs to.
func cpus(t *testing.T) (a, b int) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		harness.SkipOrFail(t, "two CPUs are needed, one for each program")
	}
	return 0, 1
}

// TestSplit profiles programs of one process that burn 70 % of a CPU in one function
// and 30 % in another: the shares, the total, and the stacks.
func TestSplit(t *testing.T) {
	harness.NeedRoot(t)
	tests := []struct {
		workload string
		a, b     string // functions
		top      string // in every stack of theirs
	}{
		{"split", "burn_a", "burn_b", "main"},
		{"gosplit", "main.burnA", "main.burnB", "main.main"},
		{"gosplit-stripped", "main.burnA", "main.burnB", "main.main"},
		{"gocgo", "c_burn", "main.cgoBurnB", ""},
	}
	for _, tt := range tests {
		t.Run(tt.workload, func(t *testing.T) {
			const d = 10 * time.Second
			w := harness.StartWorkload(t, tt.workload, d.Seconds()+9, 0)
			meter := harness.MeterMainThread(t, w.PID)
			p, account := harness.StartRecord(t, d, "--pid", pid(w)).Wait(t)
			used := meter.Between(t, p.Start(), p.End())
			truth := w.Wait(t)

			a, b := p.Samples(harness.InFunction(tt.a)), p.Samples(harness.InFunction(tt.b))
			share := truth.Functions[tt.a] / (truth.Functions[tt.a] + truth.Functions[tt.b])
			harness.CheckShare(t, tt.a, a, a+b, share)
			// Nothing else is to be in the profile but the little between the two.
			// Go's other threads nap for microseconds at a time (sysmon, while there is a call of
			// C; the scheduler, when it is preempted): in a virtual machine what they are charged
			// for and what a sampler can see of it is not the same.
			own := func(s *pprof.Sample) bool {
				return !harness.InFunction("runtime.mstart")(s) && !harness.InFunction("runtime.mcall")(s)
			}
			harness.CheckShare(t, "both", min(a+b, p.Samples(own)), p.Samples(own), (truth.Functions[tt.a]+truth.Functions[tt.b])/truth.Total)
			harness.CheckTotal(t, "total", p.Time(own), used, p.End().Sub(p.Start()), time.Duration(p.Period))
			if account.Lost() != 0 {
				t.Errorf("samples were dropped: %v", account.Dropped)
			}
			if tt.top != "" {
				checkWhole(t, p, harness.InFunction(tt.top))
			}
			checkBelow(t, p, tt.a, tt.top)
			checkBelow(t, p, tt.b, tt.top)
			if t.Failed() {
				t.Log(p.Describe(nil))
			}
		})
	}
}

func pid(w *harness.Workload) string { return strconv.Itoa(w.PID) }

// checkWhole tests that the stacks that match end in a root frame, all but one in a
// hundred: a sample in the first instructions of a function has no frame for its
// caller yet.
func checkWhole(t *testing.T, p *harness.Profile, m harness.Match) {
	t.Helper()
	var all, broken float64
	for _, s := range p.Matching(m) {
		n := float64(s.Value[0])
		all += n
		if !harness.IsWhole(harness.Frames(s)) {
			broken += n
		}
	}
	if all == 0 {
		t.Error("no stack matches")
		return
	}
	if broken > all/100 {
		t.Errorf("%.1f %% of the stacks do not end in a root frame", 100*broken/all)
	}
}

// checkWholeBut tests that no more than a number of stacks are cut, and those because the
// kernel did not know yet what it needed.
func checkWholeBut(t *testing.T, p *harness.Profile, m harness.Match, firsts int) {
	t.Helper()
	cut, reasons := 0, map[string]int{}
	for _, s := range p.Matching(m) {
		frames := harness.Frames(s)
		if harness.IsWhole(frames) {
			continue
		}
		if reason := frames[len(frames)-1]; reason != "[truncated: not_loaded_yet]" && reason != "[truncated: no_mapping]" {
			t.Errorf("a stack ends as %s", reason)
		}
		n := int(s.Value[0] / p.Period)
		cut += n
		reasons[strings.Join(frames, " < ")] += n
	}
	if cut > firsts {
		t.Errorf("%d stacks do not end in a root frame, want %d at most: %v", cut, firsts, reasons)
	}
}

// checkBelow tests that the function is called by the other one, in all its stacks
// but one in a hundred.
func checkBelow(t *testing.T, p *harness.Profile, function, caller string) {
	t.Helper()
	if caller == "" {
		return
	}
	var all, without float64
	for _, s := range p.Matching(harness.InFunction(function)) {
		n := float64(s.Value[0])
		all += n
		frames := harness.Frames(s)
		if at := slices.Index(frames, function); !slices.Contains(frames[at:], caller) {
			without += n
		}
	}
	if without > all/100 {
		t.Errorf("%.1f %% of the stacks of %s lack its caller %s", 100*without/max(all, 1), function, caller)
	}
}

// TestDeepStacks has stacks of 40 frames, none of which may be missing.
func TestDeepStacks(t *testing.T) {
	const depth, d = 40, 5 * time.Second
	w := harness.StartWorkload(t, "deep", d.Seconds()+6, 0, depth)
	p, _ := harness.StartRecord(t, d, "--pid", pid(w)).Wait(t)
	w.Kill()
	leaf := harness.InFunction("deep_leaf")
	checkWhole(t, p, leaf)
	var all, wrong float64
	for _, s := range p.Matching(leaf) {
		n := float64(s.Value[0])
		all += n
		steps := 0
		frames := harness.Frames(s)
		for _, f := range frames {
			if f == "deep_step" {
				steps++
			}
		}
		if steps != depth || !slices.Contains(frames, "main") {
			wrong += n
		}
	}
	if wrong > all/100 {
		t.Errorf("%.1f %% of the stacks have not %d frames and main\n%s", 100*wrong/all, depth, p.Describe(nil))
	}
	harness.CheckShare(t, "deep_leaf", p.Samples(leaf), p.Samples(nil), 0.998)
}

// TestShortLived profiles programs that have ended, and whose many children have
// ended, long before the round does: by fork alone, and by exec.
func TestShortLived(t *testing.T) {
	cpu0, cpu1 := cpus(t)
	const run = 8 * time.Second
	path(t, "shortlived") // so that it is not built while record runs
	rec := harness.StartRecord(t, lead+run+4*time.Second, "--all")
	time.Sleep(lead)
	forked := harness.StartWorkload(t, "shortlived", run.Seconds(), cpu0, 200, 600, "fork")
	executed := harness.StartWorkload(t, "shortlived", run.Seconds(), cpu1, 50, 400, "exec")
	truthF, truthE := forked.Wait(t), executed.Wait(t)
	p, account := rec.Wait(t)
	whole(t, p, forked)
	whole(t, p, executed)

	for _, tt := range []struct {
		function string
		truth    harness.Truth
		w        *harness.Workload
	}{{"short_burn", truthF, forked}, {"exec_burn", truthE, executed}} {
		t.Run(tt.function, func(t *testing.T) {
			in := harness.InFunction(tt.function)
			harness.CheckTotal(t, strconv.Itoa(tt.truth.Children)+" children", p.Time(in), seconds(tt.truth.Functions[tt.function]),
				tt.w.Ended().Sub(tt.w.Started), time.Duration(p.Period))
			if tt.function == "short_burn" {
				checkWhole(t, p, in) // a fork has its parent's mappings at once
				return
			}
			// The kernel is told of a new program's mappings about a millisecond after its
			// exec, which is later than the first sample of some.
			checkWholeBut(t, p, in, tt.truth.Children)
		})
	}
	if n := account.Dropped["process_gone"] + account.Dropped["unknown_process"]; n > 0 {
		t.Errorf("%d samples of processes that ended were dropped: %v", n, account.Dropped)
	}
	if t.Failed() {
		t.Log(p.Describe(harness.InFile("shortlived")))
	}
}

// TestChangesOfProgram profiles processes that become another program, and that load
// one library where another was, all of which has ended before the round does.
func TestChangesOfProgram(t *testing.T) {
	cpu0, cpu1 := cpus(t)
	after, a, b := path(t, "execafter"), path(t, "plugin_a.so"), path(t, "plugin_b.so")
	path(t, "execbefore")
	path(t, "dlhost")
	const run = 8 * time.Second
	rec := harness.StartRecord(t, lead+run+4*time.Second, "--all")
	time.Sleep(lead)
	// Each of the two burns half of the time.
	exec := harness.StartWorkload(t, "execbefore", run.Seconds()/2, cpu0, after)
	dl := harness.StartWorkload(t, "dlhost", run.Seconds()-1, cpu1, "apart", a, b)
	truthExec, truthDL := exec.Wait(t), dl.Wait(t)
	p, _ := rec.Wait(t)
	whole(t, p, exec)
	whole(t, p, dl)

	for _, tt := range []struct {
		function string
		truth    harness.Truth
		w        *harness.Workload
	}{
		{"before_exec", truthExec, exec}, {"after_exec", truthExec, exec},
		{"plugin_a", truthDL, dl}, {"plugin_b", truthDL, dl},
	} {
		t.Run(tt.function, func(t *testing.T) {
			harness.CheckTotal(t, tt.function, p.Time(harness.InFunction(tt.function)), seconds(tt.truth.Functions[tt.function]),
				spell(tt.w, tt.truth, tt.function), time.Duration(p.Period))
			// Of a new program or library: its mappings, and its table, are asked for.
			checkWholeBut(t, p, harness.InFunction(tt.function), 4)
		})
	}
	if t.Failed() {
		t.Log(p.Describe(harness.InFile("execbefore")), p.Describe(harness.InFile("execafter")), p.Describe(harness.InFile("dlhost")))
	}
}

// spell is how long a workload was in a function that it was in once: its part of the
// time that all took.
func spell(w *harness.Workload, truth harness.Truth, function string) time.Duration {
	return time.Duration(float64(w.Ended().Sub(w.Started)) * truth.Functions[function] / truth.Total)
}

// TestReusedAddresses has a library loaded where another one was before, in one
// round: an address then may mean either. Nothing of one may get the other's name;
// a frame without a name is right.
func TestReusedAddresses(t *testing.T) {
	cpu0, cpu1 := cpus(t)
	a, b := path(t, "plugin_a.so"), path(t, "plugin_b.so")
	path(t, "dlhost")
	dir := t.TempDir()
	const run = 6 * time.Second
	rec := harness.StartRecord(t, lead+run+4*time.Second, "--all")
	time.Sleep(lead)
	dl := harness.StartWorkload(t, "dlhost", run.Seconds(), cpu0, "reuse", a, b)

	// At the same time: a program whose file is gone soon after it began, and that
	// ends before the round does.
	file := filepath.Join(dir, "gone-soon")
	data, err := os.ReadFile(path(t, "split"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o755); err != nil {
		t.Fatal(err)
	}
	gone := harness.StartProgram(t, file, run.Seconds()/2, cpu1)
	time.Sleep(500 * time.Millisecond)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	truthDL, truthGone := dl.Wait(t), gone.Wait(t)
	p, _ := rec.Wait(t)
	whole(t, p, dl)
	whole(t, p, gone)

	t.Run("reused", func(t *testing.T) {
		if !truthDL.SameAddress {
			t.Log("the second library did not get the first one's addresses: both must be named")
		}
		for _, f := range []string{"plugin_a", "plugin_b"} {
			got, truth := p.Time(harness.InFunction(f)), seconds(truthDL.Functions[f])
			if truthDL.SameAddress && got < truth {
				// What lacks its name is no lie.
				t.Logf("%s: %.2f of %.2f s have their name", f, got.Seconds(), truth.Seconds())
				continue
			}
			harness.CheckTotal(t, f, got, truth, spell(dl, truthDL, f), time.Duration(p.Period))
		}
		// Whatever their names, the samples are there.
		harness.CheckTotal(t, "total", p.Time(harness.InFile("dlhost")), seconds(truthDL.Total), dl.Ended().Sub(dl.Started), time.Duration(p.Period))
	})
	t.Run("deleted", func(t *testing.T) {
		for _, f := range []string{"burn_a", "burn_b"} {
			got := p.Time(harness.All(harness.InFunction(f), harness.InFile("gone-soon")))
			// Each is entered and left a few hundred times: its own ticks are not in a row.
			harness.CheckTotal(t, f, got, seconds(truthGone.Functions[f]), gone.Ended().Sub(gone.Started), time.Duration(p.Period))
		}
	})
	if t.Failed() {
		t.Log(p.Describe(harness.InFile("dlhost")), p.Describe(harness.InFile("gone-soon")))
	}
}

// TestForkStorm profiles a busy program while processes come and go by the thousand:
// no sample may lack in the account, none of the busy program's be lost.
func TestForkStorm(t *testing.T) {
	cpu0, cpu1 := cpus(t)
	path(t, "split")
	path(t, "shortlived")
	const run = 6 * time.Second
	for _, tt := range []struct {
		name string
		rate int // processes a second, 0: as many as go
		lost float64
	}{
		{"a thousand a second", 1000, 0.01},
		// More than the session's table of processes holds: what is lost is counted.
		{"as many as go", 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := harness.StartRecord(t, lead+run+4*time.Second, "--all")
			time.Sleep(lead)
			busy := harness.StartWorkload(t, "split", run.Seconds(), cpu0)
			storm := harness.StartWorkload(t, "shortlived", "storm", run.Seconds(), cpu1, tt.rate)
			truth, truthStorm := busy.Wait(t), storm.Wait(t)
			p, account := rec.Wait(t)
			whole(t, p, busy)
			whole(t, p, storm)

			in := harness.InFile("split")
			a := p.Samples(harness.All(in, harness.InFunction("burn_a")))
			b := p.Samples(harness.All(in, harness.InFunction("burn_b")))
			harness.CheckShare(t, "burn_a", a, a+b, truth.Functions["burn_a"]/(truth.Functions["burn_a"]+truth.Functions["burn_b"]))
			harness.CheckTotal(t, "total of the busy program", p.Time(in), seconds(truth.Total), busy.Ended().Sub(busy.Started), time.Duration(p.Period))
			t.Logf("%d processes came and went, %.2f s of CPU time; account %+v", truthStorm.Children, truthStorm.Total, account)
			stormSamples := truthStorm.Total / time.Duration(p.Period).Seconds()
			if lost := float64(account.Lost()); lost > tt.lost*stormSamples+1 {
				t.Errorf("%.0f of about %.0f samples of the processes that came and went are lost: %v", lost, stormSamples, account.Dropped)
			}
			if t.Failed() {
				t.Log(p.Describe(nil))
			}
		})
	}
}

// path builds a workload before something else is timed.
func path(t *testing.T, name string) string {
	t.Helper()
	p, err := harness.WorkloadPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
