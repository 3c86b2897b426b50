// Command report measures what the agent costs on this machine and writes the
// figures to a Markdown file: report -agent bin/spanflame -out bench/README.md. It
// runs as root, for about 6 minutes, on a machine that does nothing else. Every
// figure is read from the running agent, or from the kernel's own statistics.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/test/harness"
)

func main() {
	agent := flag.String("agent", "bin/spanflame", "the agent to measure")
	out := flag.String("out", "", "Markdown file to write; none: standard output only")
	load := flag.Duration("load", 60*time.Second, "how long the agent is measured under load, without and with its store")
	flag.Parse()
	if err := run(*agent, *out, *load); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(agent, out string, load time.Duration) (err error) {
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

	r := &harness.Runner{}
	defer func() { err = errors.Join(r.Finish(), err) }()
	defer r.Catch(&err)

	var f figures
	f.machine = machine(r)
	f.pushOnly = underLoad(r, load, false)
	f.withStore = underLoad(r, load, true)
	f.small = roundOf(r, 4300)
	f.large = roundOf(r, 25_000)
	text := f.markdown(load)
	fmt.Print(text)
	if out != "" {
		return os.WriteFile(out, []byte(text), 0o644)
	}
	return nil
}
