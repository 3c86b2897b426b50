package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// result is what the tests say on one kernel.
type result struct {
	suite    suite
	release  string // of the kernel
	took     time.Duration
	tests    map[string]string // "ebpfspy.test TestOptions" → PASS, FAIL or SKIP
	reasons  map[string]string // of those that were skipped, and the text of those that failed
	problems []string

	samples, whole int // of the truth tests: user stacks, and those that are whole

	binary string          // whose lines come now
	said   []string        // since the last test began
	exits  map[string]bool // binaries that ended
	ended  bool
}

func newResult(s suite) *result {
	return &result{suite: s, tests: map[string]string{}, reasons: map[string]string{}, exits: map[string]bool{}}
}

func (r *result) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// Lines of the console.
var (
	// What init says of itself (test/kernels/init).
	initLine = regexp.MustCompile(`^init: (kernel|run|exit|error|end) ?(.*)`)
	// What a test binary says with -test.v: results of tests, not of subtests.
	testBegin = regexp.MustCompile(`^=== RUN +([^/ ]+)$`)
	testEnd   = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): ([^ ]+) \(`)
	// checkEnds of test/truth.
	wholeStacks = regexp.MustCompile(`: all: (\d+) of (\d+) stacks are whole`)
	// The kernel's own trouble.
	kernelTrouble = regexp.MustCompile(`\b(BUG|Oops|WARNING|INFO|UBSAN|KASAN): |Kernel panic|general protection|Call Trace`)
)

// line takes a line of the console.
func (r *result) line(line string) {
	if m := initLine.FindStringSubmatch(line); m != nil {
		r.initSays(m[1], m[2])
		return
	}
	if m := wholeStacks.FindStringSubmatch(line); m != nil {
		whole, _ := strconv.Atoi(m[1])
		all, _ := strconv.Atoi(m[2])
		r.whole, r.samples = r.whole+whole, r.samples+all
	}
	if testBegin.MatchString(line) {
		r.said = nil
	}
	if m := testEnd.FindStringSubmatch(line); m != nil {
		name := r.binary + " " + m[2]
		r.tests[name] = m[1]
		switch {
		case m[1] == "FAIL":
			r.reasons[name] = strings.Join(r.said, "\n")
		case m[1] == "SKIP" && len(r.said) > 0:
			r.reasons[name] = strings.TrimSpace(r.said[len(r.said)-1])
		}
		r.said = nil
		return
	}
	if r.said = append(r.said, line); len(r.said) > 400 {
		r.said = r.said[200:]
	}
	if strings.HasPrefix(line, "<") && kernelTrouble.MatchString(line) || strings.Contains(line, "Kernel panic") {
		r.problem("the kernel says: %s", line)
	}
}

func (r *result) initSays(what, rest string) {
	switch what {
	case "kernel":
		r.release = rest
		if !strings.HasPrefix(rest, r.suite.series) {
			r.problem("this is Linux %s, want %s*", rest, r.suite.series)
		}
	case "run":
		r.binary, r.said = rest, nil
		r.exits[rest] = false
	case "exit":
		code, binary, _ := strings.Cut(rest, " ")
		r.exits[binary] = true
		if code != "0" {
			r.problem("%s ended with exit code %s; its last lines:\n%s", binary, code, strings.Join(r.said[max(0, len(r.said)-20):], "\n"))
		}
	case "error":
		r.problem("init: %s", rest)
	case "end":
		r.ended = true
	}
}

// finish looks for what is missing, of all tests or of some.
func (r *result) finish(some bool) {
	if !r.ended {
		r.problem("the tests did not come to their end")
	}
	for binary, exited := range r.exits {
		if !exited {
			r.problem("%s did not end", binary)
		}
	}
	passed := map[string]int{}
	for name, status := range r.tests {
		if status == "PASS" {
			binary, _, _ := strings.Cut(name, " ")
			passed[binary]++
		}
	}
	if len(passed) == 0 || !some && (passed["ebpfspy.test"] == 0 || passed["truth.test"] == 0 || r.samples == 0) {
		r.problem("too little passed to say anything: %v, %d samples in the truth tests", passed, r.samples)
	}
}

func (r *result) count() (passed, failed, skipped int) {
	for _, status := range r.tests {
		switch status {
		case "PASS":
			passed++
		case "FAIL":
			failed++
		case "SKIP":
			skipped++
		}
	}
	return passed, failed, skipped
}

// report prints what did not pass, and why.
func (r *result) report(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(r.tests)) {
		if status := r.tests[name]; status != "PASS" {
			fmt.Fprintf(w, "%s: %s: %s: %s\n", r.suite.name, status, name, r.reasons[name])
		}
	}
	for _, p := range r.problems {
		fmt.Fprintf(w, "%s: %s\n", r.suite.name, p)
	}
}

// differences says which tests ended differently on some kernel than on the first.
func differences(results []*result) []string {
	var out []string
	first := results[0]
	for _, r := range results[1:] {
		names := maps.Clone(first.tests)
		maps.Copy(names, r.tests)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if a, b := first.tests[name], r.tests[name]; a != b {
				out = append(out, fmt.Sprintf("%s: %s in %s, but %s in %s", name, orNone(a), first.suite.name, orNone(b), r.suite.name))
			}
		}
	}
	return out
}

func orNone(status string) string {
	if status == "" {
		return "not run"
	}
	return status
}
