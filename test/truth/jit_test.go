package truth

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/spanflame/spanflame/test/harness"
)

// script is the path of a workload that is not built.
func script(t *testing.T, name string) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "test", "truth", "workloads", name)
}

// node is Node.js.
func node(t *testing.T) string {
	t.Helper()
	p, err := exec.LookPath("node")
	if err != nil {
		harness.SkipOrFail(t, "node is not installed")
	}
	return p
}

// checkSplit runs a program that burns 70 % of its time in one function and 30 % in another, and
// ends before the round does, and tests the shares and that the stacks are whole. caller, if
// not "", has to be below both.
func checkSplit(t *testing.T, file, prefix, caller string, command ...any) {
	t.Helper()
	const run = 8 * time.Second
	harness.AgentPath(t) // so that it is not built while the program runs
	rec := harness.StartRecord(t, lead+run+4*time.Second, "--all")
	time.Sleep(lead)
	w := harness.StartProgram(t, "sh", append(command, run.Seconds())...)
	t.Cleanup(func() { _ = os.Remove("/tmp/perf-" + pid(w) + ".map") })
	truth := w.Wait(t)
	p, _ := rec.Wait(t)
	whole(t, p, w)
	used := truth.Functions["burnA"] + truth.Functions["burnB"]
	if got := p.Time(harness.Any(harness.InFunction(prefix+"burnA"), harness.InFunction(prefix+"burnB"))); got < seconds(0.9*used) {
		t.Errorf("%.2f s are in the two functions, %.2f were used", got.Seconds(), used)
	}
	checkFunctions(t, p, truth, file, prefix, caller)
}

// checkFunctions tests the shares of the two functions, and their stacks.
func checkFunctions(t *testing.T, p *harness.Profile, truth harness.Truth, file, prefix, caller string) {
	t.Helper()
	inA, inB := harness.InFunction(prefix+"burnA"), harness.InFunction(prefix+"burnB")
	a, b := p.Samples(inA), p.Samples(inB)
	harness.CheckShare(t, "burnA", a, a+b, truth.Functions["burnA"]/(truth.Functions["burnA"]+truth.Functions["burnB"]))
	// The table of a virtual machine takes a while to make.
	loaded := func(s *pprof.Sample) bool { return harness.Cut(harness.Frames(s)) != "not_loaded_yet" }
	for _, in := range []string{"burnA", "burnB"} {
		checkEnds(t, p, in, harness.All(harness.InFunction(prefix+in), loaded), goalWhole)
		if caller != "" {
			checkBelowLoaded(t, p, prefix+in, caller)
		}
	}
	if t.Failed() {
		t.Log(p.Describe(harness.InFile(file)))
	}
}

// checkBelowLoaded is checkBelow without the stacks that were cut because tables were not
// made yet.
func checkBelowLoaded(t *testing.T, p *harness.Profile, function, caller string) {
	t.Helper()
	in := harness.InFunction(function)
	all := p.Samples(harness.All(in, func(s *pprof.Sample) bool { return harness.Cut(harness.Frames(s)) == "" }))
	with := p.Samples(harness.All(in, harness.InFunction(caller)))
	if with < 0.99*all {
		t.Errorf("%.0f of %.0f stacks of %s have its caller %s", with, all, function, caller)
	}
}

// TestJITMaps profiles a program in JavaScript that says in a file what code V8 makes of it.
// The program's name does not tell that it is Node.js: nothing but the file is read. One has
// a PID and a /tmp of its own.
func TestJITMaps(t *testing.T) {
	harness.NeedRoot(t)
	split := script(t, "split.js")
	vm := filepath.Join(t.TempDir(), "jsvm")
	if out, err := exec.Command("cp", node(t), vm).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// Functions that are inlined do not run in code of their own.
	const apart = "--no-turbo-inlining"
	for _, tt := range []struct {
		name    string
		command []any // of sh
	}{
		{"perf map", []any{"-c", `cd "$0" && exec "$@"`, t.TempDir(), vm, "--perf-basic-prof", apart, split}},
		{"jitdump", []any{"-c", `cd "$0" && exec "$@"`, t.TempDir(), vm, "--perf-prof", apart, split}},
		{"perf map in a container", []any{"-c",
			`exec 9<"$0" 8<"$1" && shift && exec unshare --pid --fork --mount sh -c 'mount -t tmpfs none /tmp && cd /tmp && exec "$@" <&9' sh /proc/self/fd/8 "$@"`,
			split, vm, "--perf-basic-prof", apart, "-"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// What runs in the interpreter is not in the file, as Shop.checkout at first.
			checkSplit(t, "jsvm", "", "", tt.command...)
		})
	}
}

// TestNode profiles Node.js without any flag: its functions, compiled and interpreted, have
// their names.
func TestNode(t *testing.T) {
	harness.NeedRoot(t)
	harness.AgentPath(t) // so that it is not built while the program runs
	for name, flags := range map[string][]any{"as it is": nil, "interpreted": {"--no-opt", "--no-sparkplug"}} {
		t.Run(name, func(t *testing.T) {
			checkRunning(t, "node", "", "checkout", node(t), append(append([]any{"--no-turbo-inlining"}, flags...), script(t, "split.js"))...)
		})
	}
}

// checkRunning profiles a program that is running already and lives on, and tests the shares of
// its two functions.
func checkRunning(t *testing.T, file, prefix, caller, program string, args ...any) {
	t.Helper()
	const d = 8 * time.Second
	w := harness.StartProgram(t, program, append(args, d.Seconds()+5)...)
	time.Sleep(time.Second) // what it does to begin with
	p, _ := harness.StartRecord(t, d, "--pid", pid(w)).Wait(t)
	truth := w.Wait(t)
	a, b := p.Samples(harness.InFunction(prefix+"burnA")), p.Samples(harness.InFunction(prefix+"burnB"))
	if all := p.Samples(nil); a+b < 0.97*all {
		t.Errorf("%.0f of %.0f samples are in the two functions", a+b, all)
	}
	checkFunctions(t, p, truth, file, prefix, caller)
}

// TestJava profiles Java without an agent: interpreted, and compiled with frame pointers.
func TestJava(t *testing.T) {
	harness.NeedRoot(t)
	harness.AgentPath(t)
	homes, _ := filepath.Glob("/usr/lib/jvm/*/bin/javac")
	seen := map[string]bool{}
	for _, javac := range homes {
		real, err := filepath.EvalSymlinks(javac)
		if err != nil || seen[real] {
			continue
		}
		seen[real] = true
		dir := t.TempDir()
		if out, err := exec.Command(real, "-d", dir, script(t, "Split.java")).CombinedOutput(); err != nil {
			t.Fatalf("javac: %v: %s", err, out)
		}
		for name, flags := range map[string][]any{
			"interpreted": {"-Xint"},
			"compiled":    {"-XX:+PreserveFramePointer", "-XX:-Inline"},
		} {
			t.Run(filepath.Base(filepath.Dir(filepath.Dir(real)))+" "+name, func(t *testing.T) {
				checkRunning(t, "libjvm.so", "Split.", "Split.checkout", filepath.Join(filepath.Dir(real), "java"), append(flags, "-cp", dir, "Split")...)
			})
		}
	}
	if len(seen) == 0 {
		harness.SkipOrFail(t, "no JDK is installed")
	}
}
