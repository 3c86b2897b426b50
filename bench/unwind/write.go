package main

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// goal is the part of the user stacks of each program that is to be whole.
const goal = 0.995

func (f figures) rest() string {
	var parts []string
	all := total(f.ends)
	for _, end := range slices.Sorted(maps.Keys(f.ends)) {
		if n := f.ends[end]; end != "whole" && n > 0.5 {
			parts = append(parts, fmt.Sprintf("%s %.2f %%", end, 100*n/all))
		}
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, ", ")
}

// line is a row of the table.
func (f figures) line() string {
	reached := "yes"
	if whole(f.ends) < goal {
		reached = "**no**"
	}
	rate := "–"
	if f.build > 0 {
		rate = fmt.Sprintf("%.1f M/s", f.rows/f.build/1e6)
	}
	name := f.name
	if f.jit > 0 {
		name += fmt.Sprintf(" (without %.0f stacks with code made at run time)", f.jit)
	}
	return fmt.Sprintf("| %s | %.0f | %.2f %% | %s | %s | %.0f | %.2f µs | %.0f | %.0f KiB | %s | %.1f %% |\n", name, total(f.ends), 100*whole(f.ends),
		reached, f.rest(), f.frames, float64(f.bpf)/1e3, f.rows, f.bytes/1024, rate, 100*f.early)
}

func markdown(all []figures, skipped []string, d time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Whole stacks from stock programs

Written by the benchmark (%s); repeat it with

    make bench-unwind

as root. It takes half a minute a program. %s.

Programs as the distribution has them, without frame pointers, at work on their own while the agent samples all CPUs 97
times a second, with a target for this program only. Each is measured over %s, after a warm-up of %s in
which the kernel gets its tables (its last column tells how many were whole meanwhile).

| program | user stacks | whole | ≥ %.1f %% | the rest | frames | BPF a sample | rows | kernel memory | built at | warm-up |
|---|--:|--:|---|---|--:|--:|--:|--:|--:|--:|
`, time.Now().UTC().Format(time.DateOnly), machine(), d, warmUp, 100*goal)
	for _, f := range all {
		b.WriteString(f.line())
	}
	b.WriteString(`
- Whole: the user stack ends in its root frame. The rest by the reason in its marker (metric
  spanflame_session_user_stacks_total); where it has code made at run time, by the profile.
- Frames: the mean of a stack, with the kernel's.
- BPF a sample: the kernel's count of what the sampler's program took, over its runs, those for other programs of the host
  among them.
- Rows: of all tables that were loaded (spanflame_session_unwind_rows_loaded_total); kernel memory: what the tables and
  mappings take (spanflame_session_unwind_table_bytes); built at: rows over the time that it took to read the files and
  fill the tables (spanflame_session_unwind_table_seconds), on a CPU shared with the program.
`)
	if ends := commonEnds(all); ends != "" {
		b.WriteString("\nWhere the stacks end that are not whole, if more than 2 do:\n\n" + ends)
	}
	if len(skipped) > 0 {
		b.WriteString("\nLeft out:\n\n")
		for _, s := range skipped {
			fmt.Fprintf(&b, "- %s\n", s)
		}
	}
	return b.String()
}

func commonEnds(all []figures) string {
	var b strings.Builder
	for _, f := range all {
		keys := slices.SortedFunc(maps.Keys(f.names), func(a, b string) int { return int(f.names[b] - f.names[a]) })
		for _, k := range keys[:min(len(keys), 5)] {
			if f.names[k] > 2.5 {
				fmt.Fprintf(&b, "- %s: %s, %.0f\n", f.name, k, f.names[k])
			}
		}
	}
	return b.String()
}

// machine describes this one.
func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "Linux"
	}
	return fmt.Sprintf("%d CPUs, Linux %s %s", runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), runtime.GOARCH)
}
