package main

import (
	"slices"
	"strings"
	"testing"
)

// console is what a machine says when all is well.
const console = `[    0.000000] a line of the kernel's
init: kernel 6.1.0-50-cloud-amd64
init: run ebpfspy.test
=== RUN   TestOptions
--- PASS: TestOptions (0.01s)
=== RUN   TestCPUHotplug
    session_test.go:430: CPU 1 cannot be switched
--- SKIP: TestCPUHotplug (0.00s)
PASS
init: exit 0 ebpfspy.test
init: run truth.test
=== RUN   TestStaticSignals
=== RUN   TestStaticSignals/plain
    static_test.go:64: all: 387 of 388 stacks are whole, 99.74 %; the rest: map[]
--- PASS: TestStaticSignals (14.12s)
    --- PASS: TestStaticSignals/plain (7.05s)
PASS
init: exit 0 truth.test
<4>[    8.262510] Unstable clock detected
init: end
`

// readConsole takes a console's lines as boot does.
func readConsole(text string) *result {
	r := newResult(suite{"bookworm", "6.1."})
	for line := range strings.Lines(text) {
		r.line(strings.TrimSuffix(line, "\n"))
	}
	r.finish(false)
	return r
}

func TestResult(t *testing.T) {
	r := readConsole(console)
	passed, failed, skipped := r.count()
	if passed != 2 || failed != 0 || skipped != 1 || r.whole != 387 || r.samples != 388 || r.release != "6.1.0-50-cloud-amd64" || len(r.problems) != 0 {
		t.Errorf("%d passed, %d failed, %d skipped, %d of %d whole on %s, problems %v", passed, failed, skipped, r.whole, r.samples, r.release, r.problems)
	}
	if why := r.reasons["ebpfspy.test TestCPUHotplug"]; !strings.Contains(why, "cannot be switched") {
		t.Errorf("reason of the skip: %q", why)
	}
}

// TestResultOfFailures has consoles with one thing wrong.
func TestResultOfFailures(t *testing.T) {
	for _, tt := range []struct{ name, old, with, want string }{
		{"another kernel", "kernel 6.1.", "kernel 6.2.", "want 6.1.*"},
		{"a test failed", "exit 0 truth.test", "exit 1 truth.test", "truth.test ended with exit code 1"},
		{"a binary did not end", "init: exit 0 ebpfspy.test\n", "", "ebpfspy.test did not end"},
		{"the machine did not end", "init: end\n", "", "did not come to their end"},
		{"no test ran", "--- PASS: TestOptions (0.01s)\n", "", "too little passed"},
		{"no samples", "387 of 388", "0 of 0", "too little passed"},
		{"the kernel found a fault", "Unstable clock", "WARNING: CPU: 1 PID: 144 at kernel/bpf", "the kernel says"},
		{"the kernel died", "init: run truth.test", "[   12.3] Kernel panic - not syncing", "the kernel says"},
		{"init failed", "init: end", "init: error mount /proc\ninit: end", "init: mount /proc"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(console, tt.old, tt.with, 1)
			if text == console {
				t.Fatal("nothing was replaced")
			}
			problems := strings.Join(readConsole(text).problems, "\n")
			if !strings.Contains(problems, tt.want) {
				t.Errorf("problems %q, want %q", problems, tt.want)
			}
		})
	}
}

func TestDifferences(t *testing.T) {
	a, b := readConsole(console), readConsole(strings.Replace(console, "SKIP: TestCPUHotplug", "PASS: TestCPUHotplug", 1))
	b.suite.name = "sid"
	if got := differences([]*result{a, a}); len(got) != 0 {
		t.Errorf("of the same: %v", got)
	}
	want := []string{"ebpfspy.test TestCPUHotplug: SKIP in bookworm, but PASS in sid"}
	if got := differences([]*result{a, b}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
