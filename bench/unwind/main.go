// Command unwind measures how many of the stacks of stock programs, which are built
// without frame pointers, end in their root frame, and what that costs, and writes the
// figures to a Markdown file: unwind -agent bin/spanflame -out bench/unwind/README.md.
// It runs as root, for half a minute a program. Programs that this machine does not have
// are left out, and it says so.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/test/harness"
)

func main() {
	agent := flag.String("agent", "bin/spanflame", "the agent to measure")
	out := flag.String("out", "", "Markdown file to write; none: standard output only")
	d := flag.Duration("duration", 20*time.Second, "how long each program is measured")
	only := flag.String("only", "", "names of programs, with commas between; none: all")
	flag.Parse()
	if err := run(*agent, *out, *only, *d); err != nil {
		fmt.Fprintln(os.Stderr, "unwind:", err)
		os.Exit(1)
	}
}

func run(agent, out, only string, d time.Duration) error {
	if os.Geteuid() != 0 {
		return errors.New("this profiles the host: run it as root")
	}
	if err := os.Setenv(harness.EnvBinary, agent); err != nil {
		return err
	}
	// The kernel counts what its programs cost for as long as this is open.
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return fmt.Errorf("switch on the kernel's statistics of BPF programs (Linux 5.8): %w", err)
	}
	defer stats.Close()

	var all []figures
	var skipped []string
	for _, p := range programs {
		if only != "" && !slices.Contains(strings.Split(only, ","), p.name) {
			continue
		}
		if lack := p.lacks(); lack != "" {
			skipped = append(skipped, p.name+": "+lack)
			fmt.Fprintf(os.Stderr, "%s is left out: %s\n", p.name, lack)
			continue
		}
		f, err := measure(p, d)
		if err != nil {
			skipped = append(skipped, p.name+": "+err.Error())
			fmt.Fprintf(os.Stderr, "%s is left out: %v\n", p.name, err)
			continue
		}
		fmt.Fprint(os.Stderr, f.line())
		all = append(all, f)
	}
	crowd := ""
	if only == "" || slices.Contains(strings.Split(only, ","), crowdProgram.name) {
		if lack := crowdProgram.lacks(); lack != "" {
			skipped = append(skipped, crowdProgram.name+": "+lack)
		} else {
			f, err := measureCrowd()
			if err != nil {
				return err
			}
			crowd = f.markdown()
		}
	}
	if len(all) == 0 && crowd == "" {
		return errors.New("nothing was measured")
	}
	text := markdown(all, skipped, d) + crowd
	fmt.Print(text)
	if out != "" {
		return os.WriteFile(out, []byte(text), 0o644)
	}
	return nil
}
