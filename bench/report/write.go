package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// figures is all that was measured.
type figures struct {
	machine             string
	pushOnly, withStore cost
	small, large        round
}

// The figures to reach.
const (
	goalBPF         = 4 * time.Microsecond
	goalCPU         = 0.5 // % of one core
	goalRSSPush     = 60 << 20
	goalRSSStore    = 100 << 20
	goalMaps        = 30 << 20
	goalRound       = 20 * time.Millisecond
	goalSmallStacks = 4_300
	goalManyStacks  = 25_000
)

func (c cost) bpfEach() time.Duration {
	if c.bpfRuns == 0 {
		return 0
	}
	return c.bpfTime / time.Duration(c.bpfRuns)
}

func (c cost) cpuPercent() float64 { return 100 * c.cpu.Seconds() / c.took.Seconds() }

func mib(n float64) string { return fmt.Sprintf("%.1f MiB", n/(1<<20)) }

func reached(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

func (r round) lostText() string {
	if len(r.lost) == 0 {
		return "0"
	}
	var parts []string
	for reason, n := range r.lost {
		parts = append(parts, fmt.Sprintf("%s %.0f", reason, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func (f figures) markdown(load time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What the agent costs

Written by the benchmark (%s); repeat it with

    make bench

on a machine that does nothing else. Every figure is read from the running agent (/proc, its metrics) or from
the kernel's own statistics of BPF programs and maps. Symbol tables have [their own](symtab/README.md).

%s.

All CPUs busy in a stack of %d user frames, the agent at its defaults (97 Hz, rounds of 15 s), every process of the host a
target, measured over %s after the first 20 s.

`, time.Now().UTC().Format(time.DateOnly), f.machine, f.withStore.frames, load)

	row := func(what, got, goal string, ok bool) {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", what, got, goal, reached(ok))
	}
	b.WriteString("| what | measured | goal | reached |\n|---|--:|--:|---|\n")
	for _, c := range []struct {
		name string
		cost
		goalRSS int64
	}{{"pushing alone", f.pushOnly, goalRSSPush}, {"with page and store", f.withStore, goalRSSStore}} {
		row(fmt.Sprintf("BPF run time a sample, %s (mean of %d)", c.name, c.bpfRuns),
			fmt.Sprintf("%.2f µs", float64(c.bpfEach())/1e3), fmt.Sprintf("≤ %d µs", goalBPF/time.Microsecond), c.bpfEach() > 0 && c.bpfEach() <= goalBPF)
		row("the agent's own CPU time, "+c.name+", of one core", fmt.Sprintf("%.2f %%", c.cpuPercent()), fmt.Sprintf("≤ %.1f %%", goalCPU), c.cpuPercent() <= goalCPU)
		row("resident memory, "+c.name+" (peak)", fmt.Sprintf("%s (%s)", mib(float64(c.rss)), mib(float64(c.peak))), "≤ "+mib(float64(c.goalRSS)), c.rss <= c.goalRSS)
		row(fmt.Sprintf("kernel maps, %s (%d maps)", c.name, c.maps), mib(float64(c.mapBytes)), "≤ "+mib(goalMaps), c.mapBytes <= goalMaps)
	}
	row(fmt.Sprintf("a round of %.0f stacks (mean of %d)", f.small.stacks, f.small.rounds), fmt.Sprintf("%.1f ms", 1e3*f.small.seconds),
		fmt.Sprintf("≤ %d ms", goalRound/time.Millisecond), f.small.stacks >= goalSmallStacks && f.small.seconds <= goalRound.Seconds())
	row(fmt.Sprintf("samples lost in rounds of up to %.0f stacks (%.0f samples)", f.large.stacks, f.large.taken), f.large.lostText(), "0",
		f.large.stacks >= goalManyStacks && len(f.large.lost) == 0)

	fmt.Fprintf(&b, `
- BPF run time: the kernel's count of what the sampler's program took, over its runs. The kernel does it on the
  interrupted program's account, so it is in no process's CPU time, nor in the agent's below.
- CPU time: of the agent's threads, from /proc/PID/task/*/schedstat. With the store, its API was asked for the profile of
  everything four times a minute.
- Kernel maps: what the kernel says each map takes (memlock), added up over those that the agent holds. %.0f samples of %.0f
  stacks a round were taken meanwhile.
- A round: from the first read of the kernel's maps to the last pprof being finished and compressed
  (spanflame_round_seconds), at 997 Hz, every sample in a stack of its own, the programs at the lowest priority. A round of %.0f stacks took %.0f ms.
- Pushed: %d profiles of %.0f bytes on average (gzip).
`, f.withStore.samples, f.withStore.stacks, f.large.stacks, 1e3*f.large.seconds, f.pushOnly.profiles, float64(f.pushOnly.pushedBytes)/float64(max(1, f.pushOnly.profiles)))
	return b.String()
}
