// Command offcpu measures what off-CPU profiling costs threads that wake each other all the
// time: their throughput with and without it, in turn, and the run time of the BPF programs
// a switch, for targets and for others. It writes the figures to a Markdown file:
// offcpu -agent bin/spanflame -out bench/offcpu/README.md. It runs as root, for about 8
// minutes, on a machine that does nothing else.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/spanflame/spanflame/test/harness"
)

func main() {
	agent := flag.String("agent", "bin/spanflame", "the agent to measure")
	out := flag.String("out", "", "Markdown file to write; none: standard output only")
	pairs := flag.Int("pairs", 8, "how many times throughput is measured without and with off-CPU profiles")
	d := flag.Duration("duration", 5*time.Second, "how long each time")
	flag.Parse()
	if err := run(*agent, *out, *pairs, *d); err != nil {
		fmt.Fprintln(os.Stderr, "offcpu:", err)
		os.Exit(1)
	}
}

func run(agent, out string, pairs int, d time.Duration) error {
	if os.Geteuid() != 0 {
		return errors.New("this profiles the host: run it as root")
	}
	if pairs < 2 {
		return errors.New("at least two pairs are needed for a standard error")
	}
	if err := os.Setenv(harness.EnvBinary, agent); err != nil {
		return err
	}
	var all []figures
	for _, l := range loads {
		f, err := measure(l, pairs, d)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		all = append(all, f)
	}
	text := markdown(all, pairs, d)
	fmt.Print(text)
	if out != "" {
		return os.WriteFile(out, []byte(text), 0o644)
	}
	return nil
}
