package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What is to be reached.
const (
	maxLoss       = 0.03 // of throughput, at 100,000 switches a second
	maxTargetCost = 1500 * time.Nanosecond
	maxOtherCost  = 150 * time.Nanosecond
)

func reached(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

func (f figures) lines() string {
	var b strings.Builder
	for _, c := range []struct {
		what string
		change
	}{
		{"throughput, " + asTarget.name, f.target.elapsed}, {"the same a second of CPU time", f.target.cpu},
		{"throughput, " + asOther.name, f.other.elapsed}, {"the same a second of CPU time", f.other.cpu},
	} {
		goal, ok := "", ""
		if f.work > 0 {
			goal, ok = fmt.Sprintf("≥ −%.0f %%", 100*maxLoss), reached(c.mean >= -maxLoss)
		}
		fmt.Fprintf(&b, "| %s: %s | %.0f | %+.2f ± %.2f %% | %s | %s |\n", f.name, c.what, f.switches, 100*c.mean, 100*c.stderr, goal, ok)
	}
	for _, c := range f.costs {
		goal := maxTargetCost
		if c.who == asOther.name {
			goal = maxOtherCost
		}
		fmt.Fprintf(&b, "| %s: a run of `%s`, %s (%.2f runs a switch) | %.0f | %d ns | ≤ %d ns | %s |\n", f.name, c.program, c.who, c.runs, f.switches,
			c.each.Nanoseconds(), goal.Nanoseconds(), reached(c.each <= goal))
	}
	return b.String()
}

func markdown(all []figures, pairs int, d time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What off-CPU profiles cost

Written by the benchmark (%s); repeat it with

    make bench-offcpu

as root, on a machine that does nothing else. %s.

Pairs of threads that wake each other all the time, so that a round trip is two switches, on one CPU or on all. Throughput: round trips
a second while record takes CPU and off-CPU profiles at its defaults, against CPU profiles alone; %d runs of each, in turn,
of %s; mean of the changes in pairs ± its standard error. A second of CPU time is one of the load, which other programs
disturb less, but which lacks what the agent takes. Run time: the kernel's count, in runs of their own.

| what | switches a second | measured | goal | reached |
|---|--:|--:|--:|---|
`, time.Now().UTC().Format(time.DateOnly), machine(), pairs, d)
	for _, f := range all {
		b.WriteString(f.lines())
	}
	return b.String()
}

// machine says what this was measured on.
func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return runtime.GOARCH
	}
	return fmt.Sprintf("%d CPUs, Linux %s %s, %s", runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), runtime.GOARCH, runtime.Version())
}
