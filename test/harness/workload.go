package harness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// cFlags keep the frame pointers. What is warned of in a workload is a mistake.
var cFlags = []string{"-O2", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer", "-D_GNU_SOURCE", "-pthread"}

// noFP builds as distributions do, without frame pointers; but no frame is left out.
var noFP = []string{"-fomit-frame-pointer", "-fno-optimize-sibling-calls"}

// recipe says how a workload is built.
type recipe struct {
	source string   // C or C++ file, or Go package, in test/truth/workloads
	flags  []string // further ones
	apart  bool     // strip it, with the debug information in a file of its own (.debug)
}

var recipes = map[string]recipe{
	"split":      {source: "c/split.c"},
	"deep":       {source: "c/deep.c"},
	"manystacks": {source: "c/manystacks.c"},
	"shortlived": {source: "c/shortlived.c"},
	"threads":    {source: "c/threads.c"},
	"execbefore": {source: "c/execbefore.c"},
	"execafter":  {source: "c/execafter.c"},
	"dlhost":     {source: "c/dlhost.c", flags: []string{"-ldl"}},
	// Of different sizes, so that one offset means two functions.
	"plugin_a.so": {source: "c/plugin.c", flags: []string{"-shared", "-fPIC", "-DPLUGIN=plugin_a", "-DPADDING=64"}},
	"plugin_b.so": {source: "c/plugin.c", flags: []string{"-shared", "-fPIC", "-DPLUGIN=plugin_b", "-DPADDING=8192"}},

	// Has what is no Python under Python's names.
	"fakepython": {source: "c/fakepython.c", flags: []string{"-rdynamic"}},
	"fakenewer":  {source: "c/fakepython.c", flags: []string{"-rdynamic", "-DVERSION=0x031000f0"}},

	"waits":       {source: "c/waits.c"},
	"switches":    {source: "c/switches.c"},
	"shortblocks": {source: "c/shortblocks.c", flags: []string{"-lm"}},

	"split-nofp":       {source: "c/split.c", flags: noFP},
	"split-apart":      {source: "c/split.c", flags: append([]string{"-g"}, noFP...), apart: true},
	"split-noeh":       {source: "c/split.c", flags: append([]string{"-g", "-fno-asynchronous-unwind-tables"}, noFP...), apart: true},
	"split-inlined":    {source: "c/split.c", flags: append([]string{"-g", "-DFRAME=inline __attribute__((always_inline))"}, noFP...)},
	"deep-nofp":        {source: "c/deep.c", flags: noFP},
	"shortlived-nofp":  {source: "c/shortlived.c", flags: noFP},
	"signals-nofp":     {source: "c/signals.c", flags: noFP},
	"waits-nofp":       {source: "c/waits.c", flags: noFP},
	"shapes-nofp":      {source: "c/shapes.cc", flags: noFP},
	"dlhost-nofp":      {source: "c/dlhost.c", flags: append([]string{"-ldl"}, noFP...)},
	"plugin_a-nofp.so": {source: "c/plugin.c", flags: append([]string{"-shared", "-fPIC", "-DPLUGIN=plugin_a", "-DPADDING=64"}, noFP...)},
	"plugin_b-nofp.so": {source: "c/plugin.c", flags: append([]string{"-shared", "-fPIC", "-DPLUGIN=plugin_b", "-DPADDING=8192"}, noFP...)},

	// With everything in them, so that they run on a machine that has no C library.
	"split-static":      {source: "c/split.c", flags: append([]string{"-static"}, noFP...)},
	"deep-static":       {source: "c/deep.c", flags: append([]string{"-static"}, noFP...)},
	"fakepython-static": {source: "c/fakepython.c", flags: []string{"-static"}},
	"waits-static":      {source: "c/waits.c", flags: append([]string{"-static"}, noFP...)},
	"signals-static":    {source: "c/signals.c", flags: append([]string{"-static"}, noFP...)},

	"gosplit":          {source: "gosplit"},
	"gosplit-stripped": {source: "gosplit", flags: []string{"-ldflags=-s -w"}},
	"gocgo":            {source: "gocgo"},
	"gomem":            {source: "gomem"},
	"gosignals":        {source: "gosignals"},
}

var builtWorkloads sync.Map // name → func() (string, error)

// WorkloadPath builds a workload of test/truth/workloads, if it is not built or older
// than its sources, and returns its path. With SPANFLAME_TEST_WORKLOADS it builds none.
func WorkloadPath(name string) (string, error) {
	if dir := os.Getenv(EnvWorkloads); dir != "" {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", EnvWorkloads, err)
		}
		return path, nil
	}
	build, _ := builtWorkloads.LoadOrStore(name, sync.OnceValues(func() (string, error) { return buildWorkload(name) }))
	return build.(func() (string, error))()
}

func buildWorkload(name string) (string, error) {
	r, ok := recipes[name]
	if !ok {
		return "", fmt.Errorf("there is no workload %q", name)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	b := Build{Dir: filepath.Join(root, "bin", "test")}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return "", err
	}
	folder := filepath.Join(root, "test", "truth", "workloads")
	out := filepath.Join(b.Dir, name)
	return out, b.locked(func() error {
		compiler := map[string]string{".c": "gcc", ".cc": "g++"}[filepath.Ext(r.source)]
		if compiler == "" {
			args := slices.Concat([]string{"build", "-o", out}, r.flags, []string{"./" + r.source})
			return command(folder, nil, "go", args...)
		}
		source := filepath.Join(folder, r.source)
		if fresh(out, source, filepath.Join(folder, "c", "workload.h"), filepath.Join(folder, "c", "offcpu.h")) {
			return nil
		}
		err := compile(folder, compiler, r, out)
		if err == nil && r.apart {
			err = splitDebug(out)
		}
		return err
	})
}

// CompileWorkload builds a workload that is in C into a file, with a compiler that may be
// one for another architecture.
func CompileWorkload(compiler, name, out string) error {
	r, ok := recipes[name]
	if !ok || filepath.Ext(r.source) != ".c" {
		return fmt.Errorf("there is no workload %q in C", name)
	}
	root, err := Root()
	if err != nil {
		return err
	}
	return compile(filepath.Join(root, "test", "truth", "workloads"), compiler, r, out)
}

func compile(folder, compiler string, r recipe, out string) error {
	return command(folder, nil, compiler, slices.Concat(cFlags, []string{"-o", out, r.source}, r.flags)...)
}

// splitDebug moves a program's symbols and debug information to a file beside it, which
// it links to (.gnu_debuglink), as distributions do.
func splitDebug(program string) error {
	debug := program + ".debug"
	return errors.Join(
		command("", nil, "objcopy", "--only-keep-debug", program, debug),
		command("", nil, "strip", "--strip-all", program),
		command("", nil, "objcopy", "--add-gnu-debuglink="+debug, program),
	)
}

// fresh says whether a file is newer than those it is made of.
func fresh(file string, from ...string) bool {
	info, err := os.Stat(file)
	if err != nil {
		return false
	}
	for _, f := range from {
		in, err := os.Stat(f)
		if err != nil || !in.ModTime().Before(info.ModTime()) {
			return false
		}
	}
	return true
}

// Truth is what a workload says of itself. Times are in seconds.
type Truth struct {
	Functions    map[string]float64     `json:"functions"` // CPU time
	Threads      map[string]ThreadTruth `json:"threads"`
	Blocks       map[string]BlockTruth  `json:"blocks"` // by function
	Total        float64                `json:"total"`  // CPU time of the process, and of its children if it has any
	Children     int                    `json:"children"`
	StacksWalked uint64                 `json:"stacks_walked"`
	SameAddress  bool                   `json:"same_address"`
	RoundTrips   uint64                 `json:"round_trips"`
	Switches     uint64                 `json:"switches"` // of its threads, to any other
	Elapsed      float64                `json:"elapsed"`
}

// ThreadTruth is what a thread of a workload says of itself, from its first statement to its
// last. Workloads that wait fill in all of it, others the CPU time only. Times are in
// seconds; Elapsed is CPU + RunQueue + Waited but for what the clocks miss of each other.
type ThreadTruth struct {
	Function  string  `json:"function"` // that it is in all the time
	Elapsed   float64 `json:"elapsed"`
	CPU       float64 `json:"cpu"`
	SchedCPU  float64 `json:"sched_cpu"` // CPU by the scheduler's clock, for comparison
	RunQueue  float64 `json:"run_queue"` // runnable, but on no CPU
	Waited    float64 `json:"waited"`    // in its waits, neither on a CPU nor runnable
	Other     float64 `json:"other"`     // of it, in what is not the wait that the thread is for
	Asked     float64 `json:"asked"`     // what it asked to wait, 0 if another thread decides
	Waits     int     `json:"waits"`
	Switches  int     `json:"switches"`
	Preempted int     `json:"preempted"` // of the switches
	TID       int     `json:"tid"`
}

// OffCPU is how long the thread was on no CPU.
func (t ThreadTruth) OffCPU() float64 { return t.Elapsed - t.CPU }

// Runnable is how long the thread was runnable, but on no CPU. Of one that never waits it is
// all the time off CPU: the scheduler's RunQueue begins at the wake-up of the thread that
// preempts, some microseconds early.
func (t ThreadTruth) Runnable() float64 {
	if t.Waits == 0 {
		return t.OffCPU()
	}
	return t.RunQueue
}

// BlockTruth is what short blocks in a function add up to.
type BlockTruth struct {
	OffCPU float64 `json:"off_cpu"` // on no CPU, whether blocked or runnable
	Waits  int     `json:"waits"`
}

// Workload is a running program with a known profile.
type Workload struct {
	PID     int
	Name    string
	Started time.Time

	cmd      *exec.Cmd
	out, err bytes.Buffer
	done     chan struct{} // closed when it was waited for
	waitErr  error
	ended    time.Time
}

// StartWorkload starts a workload of test/truth/workloads with its arguments, at a
// high priority: the more of its CPU it gets, the smaller the error of what is
// measured. It is killed when the test ends.
func StartWorkload(t TB, name string, args ...any) *Workload {
	t.Helper()
	return StartWorkloadAt(t, testNice, name, args...)
}

// testNice is the priority of the workloads of tests.
const testNice = -10

// StartWorkloadAt is StartWorkload at a priority: a nice value.
func StartWorkloadAt(t TB, nice int, name string, args ...any) *Workload {
	t.Helper()
	path, err := WorkloadPath(name)
	if err != nil {
		t.Fatalf("build the workload: %v", err)
	}
	return startProgram(t, nice, path, args...)
}

// StartProgram is StartWorkload for a program by its path.
func StartProgram(t TB, path string, args ...any) *Workload {
	t.Helper()
	return startProgram(t, testNice, path, args...)
}

func startProgram(t TB, nice int, path string, args ...any) *Workload {
	t.Helper()
	text := []string{"-n", strconv.Itoa(nice), path}
	for _, a := range args {
		text = append(text, fmt.Sprint(a))
	}
	w := &Workload{Name: filepath.Base(path), done: make(chan struct{})}
	w.cmd = exec.Command("nice", text...)
	w.cmd.Stdout, w.cmd.Stderr = &w.out, &w.err
	w.Started = time.Now()
	if err := w.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	w.PID = w.cmd.Process.Pid
	go func() {
		w.waitErr = w.cmd.Wait()
		w.ended = time.Now()
		close(w.done)
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		<-w.done
	})
	return w
}

// Kill ends the workload.
func (w *Workload) Kill() {
	_ = w.cmd.Process.Kill()
	<-w.done
}

// Signal sends the workload a signal. At SIGTERM it ends and says what it did, if it calls
// stop_on_term (workload.h).
func (w *Workload) Signal(t TB, s os.Signal) {
	t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		t.Fatalf("send %s to %s: %v", s, w.Name, err)
	}
}

// Wait waits until the workload has ended and returns its truth.
func (w *Workload) Wait(t TB) Truth {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s does not end", w.Name)
	}
	if w.waitErr != nil {
		t.Fatalf("%s: %v: %s", w.Name, w.waitErr, w.err.String())
	}
	sum := Truth{Functions: map[string]float64{}}
	dec := json.NewDecoder(&w.out)
	for {
		var one Truth
		err := dec.Decode(&one)
		if err != nil {
			break
		}
		for f, s := range one.Functions {
			sum.Functions[f] += s
		}
		sum.Total += one.Total
		sum.Children += one.Children
		sum.StacksWalked += one.StacksWalked
		sum.SameAddress = sum.SameAddress || one.SameAddress
		sum.RoundTrips += one.RoundTrips
		sum.Switches += one.Switches
		sum.Elapsed = max(sum.Elapsed, one.Elapsed)
		if one.Threads != nil {
			sum.Threads = one.Threads
		}
		if one.Blocks != nil {
			sum.Blocks = one.Blocks
		}
	}
	if sum.Total == 0 {
		t.Fatalf("%s said nothing of what it did", w.Name)
	}
	return sum
}

// Ended is when the workload had been waited for. Call it after Wait.
func (w *Workload) Ended() time.Time { return w.ended }

// CPUMeter reads the CPU time of a process again and again, so that what it used
// between any two moments is known afterwards.
type CPUMeter struct {
	pid   int
	stop  chan struct{}
	done  chan struct{}
	at    []time.Time
	spent []time.Duration
}

// MeterCPU begins to read the CPU time of a process, every 5 ms.
func MeterCPU(t TB, pid int) *CPUMeter {
	return meter(t, func() (time.Duration, error) { return CPUTime(pid) }, pid)
}

// MeterMainThread does so for the main thread of a process alone.
func MeterMainThread(t TB, pid int) *CPUMeter {
	return meter(t, func() (time.Duration, error) {
		return threadTime(filepath.Join("/proc", strconv.Itoa(pid), "task", strconv.Itoa(pid)))
	}, pid)
}

func meter(t TB, read func() (time.Duration, error), pid int) *CPUMeter {
	m := &CPUMeter{pid: pid, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(m.done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			if d, err := read(); err == nil {
				m.at = append(m.at, time.Now())
				m.spent = append(m.spent, d)
			}
			select {
			case <-m.stop:
				return
			case <-tick.C:
			}
		}
	}()
	t.Cleanup(m.end)
	return m
}

func (m *CPUMeter) end() {
	select {
	case <-m.stop:
	default:
		close(m.stop)
	}
	<-m.done
}

// Between is the CPU time used between two moments. It stops the meter.
func (m *CPUMeter) Between(t TB, from, to time.Time) time.Duration {
	t.Helper()
	m.end()
	if len(m.at) < 2 || from.Before(m.at[0]) || to.After(m.at[len(m.at)-1]) {
		t.Fatalf("the CPU time of process %d was not measured from %s to %s", m.pid, from, to)
	}
	return m.when(to) - m.when(from)
}

func (m *CPUMeter) when(at time.Time) time.Duration {
	i, _ := slices.BinarySearchFunc(m.at, at, time.Time.Compare)
	if i == 0 {
		return m.spent[0]
	}
	span := m.at[i].Sub(m.at[i-1])
	part := float64(at.Sub(m.at[i-1])) / float64(max(span, 1))
	return m.spent[i-1] + time.Duration(part*float64(m.spent[i]-m.spent[i-1]))
}

// CPUTime is the CPU time of all living threads of a process, from
// /proc/PID/task/TID/schedstat: nanoseconds, where /proc/PID/stat has only ticks.
func CPUTime(pid int) (time.Duration, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, task := range tasks {
		d, err := threadTime(filepath.Join(dir, task.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// threadTime is the CPU time of the thread whose folder in /proc this is.
func threadTime(dir string) (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join(dir, "schedstat"))
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(b, []byte(" "))
	ns, err := strconv.ParseInt(string(first), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s/schedstat: %w", dir, err)
	}
	return time.Duration(ns), nil
}
