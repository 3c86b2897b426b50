package truth

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/spanflame/spanflame/test/harness"
)

// goalWhole is the part of the user stacks that must be whole.
const goalWhole = 0.995

// warmUp is how long the kernel may lack what a process needs, from its first sample on:
// its mappings, then the table of one file after the other.
const warmUp = 100 * time.Millisecond

// fast samples so often that 0.5 % of the stacks are some.
const fast = "--frequency=499"

// checkEnds tests that the samples that match have stacks that are whole: they carry no
// marker, and end in a root frame. So many may not be, of all but those of the warm-up.
func checkEnds(t *testing.T, p *harness.Profile, what string, m harness.Match, goal float64) {
	t.Helper()
	if m == nil {
		m = harness.All()
	}
	broken := harness.All(m, func(s *pprof.Sample) bool {
		f := harness.Frames(s)
		return harness.Cut(f) != "" || !harness.IsWhole(f)
	})
	all, ends := p.Samples(m), p.Ends(broken)
	whole := all - p.Samples(broken)
	if all < 30 {
		t.Errorf("%s: %.0f samples are too few to say anything", what, all)
		return
	}
	text := fmt.Sprintf("%s: %.0f of %.0f stacks are whole, %.2f %%; the rest: %v", what, whole, all, 100*whole/all, ends)
	all -= min(ends["not_loaded_yet"], float64(warmUp)/float64(p.Period))
	if whole < goal*all {
		t.Errorf("%s\n%s", text, p.Describe(broken))
		return
	}
	t.Log(text)
}

// user are the frames of a stack from the first one on that is called so: what is
// before it are the kernel's. It is nil if there is none.
func user(s *pprof.Sample, first string) []string {
	frames := harness.Frames(s)
	at := slices.Index(frames, first)
	if at < 0 {
		return nil
	}
	return frames[at:]
}

// checkExact tests that all samples that match and are whole have, from the first frame
// on, exactly these frames, but for the C library's below the last one.
func checkExact(t *testing.T, p *harness.Profile, m harness.Match, want ...string) {
	t.Helper()
	if p.Samples(m) == 0 {
		t.Errorf("no sample in %s", want[0])
	}
	for _, s := range p.Matching(m) {
		frames := harness.Frames(s)
		if harness.Cut(frames) != "" {
			continue // checkEnds says how many there may be
		}
		got := user(s, want[0])
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) || !libcBelow(got[len(want):], want[len(want)-1]) {
			t.Errorf("%d ns in a wrong stack: %s\nnot %s", s.Value[0], strings.Join(frames, " < "), strings.Join(want, " < "))
			return
		}
	}
}

// libcBelow says whether frames are what calls the last function of a stack: main, or a
// thread's first one.
func libcBelow(frames []string, last string) bool {
	if last != "main" {
		return true
	}
	// __libc_start_call_main, __libc_start_main_impl, _start.
	return len(frames) == 3 && frames[2] == "_start" && strings.HasPrefix(frames[1], "__libc_start_main")
}

// TestSplitWithoutFramePointers is TestSplit with what distributions have: neither
// frame pointers, nor symbols, nor debug information in the program itself; and with
// functions that are there in the debug information only, as they were inlined; and with
// call frame information that is in the separate debug file only.
func TestSplitWithoutFramePointers(t *testing.T) {
	harness.NeedRoot(t)
	for _, name := range []string{"split-nofp", "split-apart", "split-inlined", "split-noeh"} {
		t.Run(name, func(t *testing.T) {
			const d = 5 * time.Second
			w := harness.StartWorkload(t, name, d.Seconds()+3, 0)
			meter := harness.MeterCPU(t, w.PID)
			p, account := harness.StartRecord(t, d, "--pid", pid(w), fast).Wait(t)
			used := meter.Between(t, p.Start(), p.End())
			truth := w.Wait(t)
			a, b := p.Samples(harness.InFunction("burn_a")), p.Samples(harness.InFunction("burn_b"))
			harness.CheckShare(t, "burn_a", a, a+b, truth.Functions["burn_a"]/(truth.Functions["burn_a"]+truth.Functions["burn_b"]))
			harness.CheckTotal(t, "total", p.Time(nil), used, p.End().Sub(p.Start()), time.Duration(p.Period))
			if account.Lost() != 0 {
				t.Errorf("samples were dropped: %v", account.Dropped)
			}
			checkEnds(t, p, "all", nil, goalWhole)
			checkExact(t, p, harness.InFunction("burn_a"), "burn_a", "main")
			checkExact(t, p, harness.InFunction("burn_b"), "burn_b", "main")
			if t.Failed() {
				t.Log(p.Describe(nil))
			}
		})
	}
}

// TestDeepStacksWithoutFramePointers has stacks of 105 frames, none of which may lack.
func TestDeepStacksWithoutFramePointers(t *testing.T) {
	const depth, d = 100, 4 * time.Second
	w := harness.StartWorkload(t, "deep-nofp", d.Seconds()+6, 0, depth)
	p, _ := harness.StartRecord(t, d, "--pid", pid(w), fast).Wait(t)
	w.Kill()
	checkEnds(t, p, "all", nil, goalWhole)
	want := slices.Concat([]string{"deep_leaf"}, slices.Repeat([]string{"deep_step"}, depth), []string{"main"})
	checkExact(t, p, harness.InFunction("deep_leaf"), want...)
	harness.CheckShare(t, "deep_leaf", p.Samples(harness.InFunction("deep_leaf")), p.Samples(nil), 0.998)
}

// TestSignals profiles programs that burn in signal handlers: what was interrupted must
// be in the stack under its right name, also where that was its first instruction.
func TestSignals(t *testing.T) {
	for _, stack := range []string{"plain", "alt"} {
		t.Run(stack, func(t *testing.T) {
			const d = 5 * time.Second
			w := harness.StartWorkload(t, "signals-nofp", d.Seconds()+2, 0, stack)
			p, _ := harness.StartRecord(t, d, "--pid", pid(w), fast).Wait(t)
			truth := w.Wait(t)
			checkEnds(t, p, "all", nil, goalWhole)
			checkSignals(t, p, truth)
			if t.Failed() {
				t.Log(p.Describe(nil))
			}
		})
	}
}

// TestShapes profiles a C++ program of functions that are hard to unwind.
func TestShapes(t *testing.T) {
	const d = 6 * time.Second
	w := harness.StartWorkload(t, "shapes-nofp", d.Seconds()+3, 0)
	p, _ := harness.StartRecord(t, d, "--pid", pid(w), fast).Wait(t)
	truth := w.Wait(t)

	// A thread's stack does not show who made it, nor does one that was made by hand.
	in := map[string]harness.Match{"in_thread": harness.InFunction("thread_burn"), "in_context": harness.InFunction("context_burn")}
	goals := map[string]float64{
		// While an exception is handed to who catches it, its way there is overwritten
		// (uw_install_context of libgcc).
		"in_throw": 0.96,
	}
	all := p.Samples(nil)
	for _, function := range slices.Sorted(maps.Keys(truth.Functions)) {
		if in[function] == nil {
			in[function] = harness.InFunction(function)
		}
		goal, special := goals[function]
		if !special {
			goal = goalWhole
		}
		harness.CheckShare(t, function, p.Samples(in[function]), all, truth.Functions[function]/truth.Total)
		checkEnds(t, p, function, in[function], goal)
	}
	checkEnds(t, p, "all others", func(s *pprof.Sample) bool {
		return !in["in_throw"](s)
	}, goalWhole)
	for _, chain := range [][]string{
		{"vla_leaf", "in_vla", "main"},
		{"realigned_leaf", "in_realigned", "main"},
		{"vfork_child", "in_vfork", "main"},
		{"never", "calls_never", "in_noreturn", "main"},
		{"thread_burn", "run_thread"},
		{"context_burn", "__start_context"},
		{"labs", "in_plt", "main"},
	} {
		checkExact(t, p, harness.InFunction(chain[0]), chain...)
	}
	for _, pair := range [][2]string{{"compare", "in_qsort"}, {"__gxx_personality_v0", "in_throw"}, {"read", "in_read"}} {
		checkBelow(t, p, pair[0], pair[1])
	}
	// A stub of the PLT is in the program itself.
	stubs := p.Samples(func(s *pprof.Sample) bool {
		f := harness.Frames(s)
		return slices.Contains([]string{"labs@plt", "[shapes-nofp]"}, f[0]) && len(f) > 2 && f[1] == "in_plt" && f[2] == "main"
	})
	if stubs == 0 {
		t.Error("no sample in a stub of the PLT")
	}
	// Exceptions are thrown below 20 frames, and are on their way through them.
	for _, s := range p.Matching(harness.All(harness.InFunction("__cxa_throw"), harness.InFunction("in_throw"))) {
		n := 0
		for _, f := range harness.Frames(s) {
			if f == "thrower" {
				n++
			}
		}
		if n > 20 || n < 19 { // the innermost may be in a part of its own (thrower.cold)
			t.Errorf("%d frames of thrower: %s", n, strings.Join(harness.Frames(s), " < "))
			break
		}
	}
	if t.Failed() {
		t.Log(p.Describe(nil))
	}
}

// TestLibraryLoadedWhileProfiling has libraries without frame pointers that are loaded
// while the profile runs.
func TestLibraryLoadedWhileProfiling(t *testing.T) {
	cpu0, _ := cpus(t)
	a, b := path(t, "plugin_a-nofp.so"), path(t, "plugin_b-nofp.so")
	path(t, "dlhost-nofp")
	const run = 4 * time.Second
	rec := harness.StartRecord(t, lead+run+2*time.Second, "--all", fast)
	time.Sleep(lead)
	w := harness.StartWorkload(t, "dlhost-nofp", run.Seconds(), cpu0, "apart", a, b)
	truth := w.Wait(t)
	p, _ := rec.Wait(t)
	whole(t, p, w)
	for _, f := range []string{"plugin_a", "plugin_b"} {
		in := harness.InFunction(f)
		harness.CheckTotal(t, f, p.Time(in), seconds(truth.Functions[f]), spell(w, truth, f), time.Duration(p.Period))
		checkEnds(t, p, f, in, goalWhole)
		checkExact(t, p, in, f, "call_plugin", "main")
	}
	if t.Failed() {
		t.Log(p.Describe(harness.InFile("dlhost-nofp")))
	}
}

// TestThousandShortPrograms has a thousand programs, each of which lives for 50 ms: they
// must be named as well as those that live on.
func TestThousandShortPrograms(t *testing.T) {
	cpu0, cpu1 := cpus(t)
	const each = 50 // ms
	const run = 27 * time.Second
	path(t, "shortlived-nofp")
	rec := harness.StartRecord(t, lead+run+2*time.Second, "--all")
	time.Sleep(lead)
	one := harness.StartWorkload(t, "shortlived-nofp", run.Seconds(), cpu0, each, each, "exec")
	two := harness.StartWorkload(t, "shortlived-nofp", run.Seconds(), cpu1, each, each, "exec")
	truth1, truth2 := one.Wait(t), two.Wait(t)
	p, account := rec.Wait(t)
	whole(t, p, one)
	whole(t, p, two)

	burn := harness.InFunction("exec_burn")
	of := harness.InFile("shortlived-nofp")
	taken := p.Samples(of)
	burnt := seconds(truth1.Functions["exec_burn"] + truth2.Functions["exec_burn"])
	t.Logf("%d programs, %.0f samples; account %+v", truth1.Children+truth2.Children, taken, account)
	if n := float64(account.Dropped["process_gone"] + account.Dropped["unknown_process"]); n > taken/100 {
		t.Errorf("%.0f samples of processes that ended were dropped, of %.0f: %v", n, taken, account.Dropped)
	}
	harness.CheckTotal(t, "exec_burn", p.Time(burn), burnt, 2*run, time.Duration(p.Period))
	checkExact(t, p, burn, "exec_burn", "main")
	// The first sample of a program makes the kernel ask for its mappings, which takes the
	// agent a while if there is no CPU for it.
	programs := float64(truth1.Children + truth2.Children)
	checkEnds(t, p, "exec_burn", burn, 1-1.5*programs/p.Samples(burn))
	t.Logf("all of the programs, with their start and end: %v", p.Ends(of))
	if t.Failed() {
		t.Log(p.Describe(of))
	}
}

// TestGoSignals profiles a Go program that is interrupted all the time: below the
// runtime's handler must be what it interrupted, though that has no frame in the chain.
func TestGoSignals(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		harness.SkipOrFail(t, "on %s stacks end at the handler", runtime.GOARCH)
	}
	const d = 6 * time.Second
	w := harness.StartWorkload(t, "gosignals", d.Seconds()+3, 0)
	p, _ := harness.StartRecord(t, d, "--pid", pid(w), fast).Wait(t)
	w.Kill()
	handler := func(s *pprof.Sample) bool {
		return user(s, "runtime.sigtramp") != nil || user(s, "runtime.sigtramp.abi0") != nil
	}
	checkEnds(t, p, "all", nil, goalWhole)
	checkEnds(t, p, "the handler", handler, goalWhole)
	want := []string{"main.leaf", "main.interrupted", "main.main", "runtime.main", "runtime.goexit"}
	inMain := harness.All(handler, harness.InFunction("main.main"))
	all, shown := p.Samples(inMain), p.Samples(harness.All(inMain, func(s *pprof.Sample) bool {
		f := user(s, "runtime.sigreturn__sigaction")
		if f == nil {
			f = user(s, "runtime.sigreturn__sigaction.abi0")
		}
		// A preemption is a call that the handler makes what it interrupted do.
		f = slices.DeleteFunc(f, func(name string) bool { return strings.HasPrefix(name, "runtime.asyncPreempt") })
		for i := range f {
			f[i] = strings.TrimSuffix(f[i], ".abi0")
		}
		return len(f) > 0 && slices.Equal(f[1:], want)
	}))
	// The rest came in between calls of leaf. The runtime's own threads are interrupted, too.
	if all < 20 || shown < 0.9*all {
		t.Errorf("%.0f of %.0f stacks of the handler go on with %v\n%s", shown, all, want, p.Describe(handler))
	}
	checkExact(t, p, harness.InFunction("main.leaf"), want[:3]...)
}

// TestGoMemory profiles a Go program in code that is not as Go's compiler makes it:
// memmove and memclr in assembler, and the collector on the system's stacks.
func TestGoMemory(t *testing.T) {
	const d = 6 * time.Second
	w := harness.StartWorkload(t, "gomem", d.Seconds()+5, 0)
	p, _ := harness.StartRecord(t, d, "--pid", pid(w), fast).Wait(t)
	w.Kill()
	checkEnds(t, p, "all", nil, goalWhole)
	for _, pair := range [][2]string{
		{"main.copyLarge", "main.main"}, {"main.clearLarge", "main.main"}, {"main.makeGarbage", "main.main"}, {"main.tree", "main.makeGarbage"},
	} {
		checkBelow(t, p, pair[0], pair[1])
	}
	named := func(name string) harness.Match {
		return func(s *pprof.Sample) bool {
			return slices.ContainsFunc(harness.Frames(s), func(f string) bool { return strings.TrimSuffix(f, ".abi0") == name })
		}
	}
	for leaf, caller := range map[string]string{"runtime.memmove": "main.copyLarge", "runtime.memclrNoHeapPointers": "main.clearLarge"} {
		var all, direct float64
		for _, s := range p.Matching(named(leaf)) {
			f := harness.Frames(s)
			at := slices.IndexFunc(f, func(f string) bool { return strings.TrimSuffix(f, ".abi0") == leaf })
			if slices.Contains(f, "runtime.mallocgc") || slices.Contains(f, "runtime.systemstack") {
				continue // the allocator's and the collector's own
			}
			n := float64(s.Value[0])
			all += n
			if at+1 < len(f) && f[at+1] == caller {
				direct += n
			}
		}
		if all == 0 || direct < goalWhole*all {
			t.Errorf("%s: %.2f %% of its stacks show %s as the caller", leaf, 100*direct/max(all, 1), caller)
		}
	}
	checkEnds(t, p, "the collector", func(s *pprof.Sample) bool {
		return named("runtime.systemstack")(s) || named("runtime.gcBgMarkWorker")(s) || named("runtime.bgsweep")(s)
	}, 0.99)
	if t.Failed() {
		t.Log(p.Describe(nil))
	}
}
