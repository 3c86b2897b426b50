// Command kernels runs the session's tests and the truth tests of static programs on
// other kernels than this machine's: those of Debian's suites, in virtual machines.
//
// For each suite it downloads the kernel's package with an apt configuration of its own,
// makes an initial RAM disk of the tests, of the agent and of the few programs that the
// tests run, boots both with QEMU and reads the results from the serial console. The
// processor is emulated (TCG): it needs no KVM, and can be another architecture's.
//
// Nothing of the machine's own is changed; everything is in the folder of -cache. It takes
// Debian's apt and dpkg, QEMU and gcc (make test-deps-kernels).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

// suite is a suite of Debian, and the series of kernels that it has.
type suite struct {
	name   string
	series string // "" if that changes
}

// suites are in the order of their kernels.
var suites = []suite{{"bullseye", "5.10."}, {"bookworm", "6.1."}, {"trixie", "6.12."}, {"sid", ""}}

// userland is the suite of the programs that the tests run, the same on all kernels.
const userland = "bookworm"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cache := flag.String("cache", ".cache/kernels", "folder for `packages`, builds and logs")
	architecture := flag.String("arch", "amd64", "architecture of the kernels: amd64 or arm64")
	names := flag.String("suites", "bullseye,bookworm,trixie,sid", "suites of Debian whose kernels are to run")
	verbose := flag.Bool("v", false, "copy the consoles to the standard output")
	pattern := flag.String("run", "", "run only the tests that match, of both binaries")
	flag.Parse()
	if err := run(ctx, *cache, *architecture, strings.Split(*names, ","), *pattern, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, cache, architecture string, names []string, pattern string, verbose bool) error {
	m, ok := machines[architecture]
	if !ok {
		return fmt.Errorf("there is no architecture %q", architecture)
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return err
	}
	mirror, err := machineMirror(ctx)
	if err != nil {
		return err
	}
	aptOf := func(suite string) *apt {
		return &apt{mirror: mirror, suite: suite, architecture: architecture, dir: filepath.Join(cache, architecture, suite)}
	}
	programs, err := aptOf(userland).unpack(ctx, "userland", m.packages()...)
	if err != nil {
		return err
	}
	initrd := filepath.Join(cache, architecture, "initrd")
	if err := makeInitrd(ctx, m, programs, filepath.Join(cache, architecture, "build"), initrd); err != nil {
		return err
	}
	var results []*result
	for _, s := range suites {
		if !slices.Contains(names, s.name) {
			continue
		}
		image, err := aptOf(s.name).kernel(ctx)
		if err != nil {
			return err
		}
		copyTo := io.Discard
		if verbose {
			copyTo = os.Stdout
		}
		r := boot(ctx, m, s, image, initrd, pattern, filepath.Join(cache, architecture, s.name+".log"), copyTo)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.report(os.Stdout)
		results = append(results, r)
	}
	if len(results) == 0 {
		return fmt.Errorf("none of the suites is known: %v", names)
	}
	problems := differences(results)
	for _, p := range problems {
		fmt.Println(p)
	}
	printTable(results)
	for _, r := range results {
		if len(r.problems) > 0 {
			problems = append(problems, r.suite.name)
		}
	}
	if len(problems) > 0 {
		return errors.New("not the same and right everywhere")
	}
	return nil
}

func printTable(results []*result) {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "suite\tkernel\tpassed\tfailed\tskipped\tsamples\twhole stacks\ttook\tresult")
	for _, r := range results {
		passed, failed, skipped := r.count()
		verdict := "ok"
		if len(r.problems) > 0 {
			verdict = "FAILED"
		}
		whole := "-"
		if r.samples > 0 {
			whole = fmt.Sprintf("%.2f %%", 100*float64(r.whole)/float64(r.samples))
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t%.0f s\t%s\n", r.suite.name, r.release, passed, failed, skipped, r.samples, whole, r.took.Seconds(), verdict)
	}
	_ = w.Flush() // to a terminal
}
