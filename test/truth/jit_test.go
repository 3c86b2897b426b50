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

// TestJITMaps profiles a program in JavaScript that says in a file what code V8 makes of it,
// and that ends before the round does. One reads the file of a process with a PID and a /tmp
// of its own.
func TestJITMaps(t *testing.T) {
	harness.NeedRoot(t)
	const run = 8 * time.Second
	split := script(t, "split.js")
	// Functions that are inlined do not run in code of their own.
	const apart = "--no-turbo-inlining"
	for _, tt := range []struct {
		name string
		args []any // of sh
	}{
		{"perf map", []any{"-c", `cd "$0" && exec "$@"`, t.TempDir(), node(t), "--perf-basic-prof", apart, split, run.Seconds()}},
		{"jitdump", []any{"-c", `cd "$0" && exec "$@"`, t.TempDir(), node(t), "--perf-prof", apart, split, run.Seconds()}},
		{"perf map in a container", []any{"-c",
			`exec 9<"$0" && exec unshare --pid --fork --mount sh -c 'mount -t tmpfs none /tmp && cd /tmp && exec "$0" "$@" <&9' "$@"`, split, node(t), "--perf-basic-prof", apart, "-", run.Seconds()}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := harness.StartRecord(t, lead+run+4*time.Second, "--all")
			time.Sleep(lead)
			w := harness.StartProgram(t, "sh", tt.args...)
			t.Cleanup(func() { _ = os.Remove("/tmp/perf-" + pid(w) + ".map") })
			truth := w.Wait(t)
			p, _ := rec.Wait(t)
			whole(t, p, w)
			inA, inB := harness.InFunction("burnA"), harness.InFunction("burnB")
			a, b := p.Samples(inA), p.Samples(inB)
			harness.CheckShare(t, "burnA", a, a+b, truth.Functions["burnA"]/(truth.Functions["burnA"]+truth.Functions["burnB"]))
			// What is compiled while it runs in the interpreter is not in code of its own at first.
			all := p.Samples(harness.InFile("node"))
			if all < 0.8*truth.Total/time.Duration(p.Period).Seconds() || a+b < 0.9*all {
				t.Errorf("%.0f samples of node's, %.0f in the two functions; %.2f s were used", all, a+b, truth.Total)
			}
			// Node's own table takes a while to make: the file has 90 MB.
			loaded := func(s *pprof.Sample) bool { return harness.Cut(harness.Frames(s)) != "not_loaded_yet" }
			checkEnds(t, p, "burnA", harness.All(inA, loaded), goalWhole)
			checkEnds(t, p, "burnB", harness.All(inB, loaded), goalWhole)
			checkBelow(t, p, "burnA", "checkout")
			checkBelow(t, p, "burnB", "checkout")
			if t.Failed() {
				t.Log(p.Describe(harness.InFile("node")))
			}
		})
	}
}
