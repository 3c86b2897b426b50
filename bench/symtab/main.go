// Command symtab measures the symbol tables: how long a file's names take to load,
// how much memory a symbol takes, and how long a look-up takes. It prints a table,
// with what the best peer needs for the same files on the same kind of machine.
//
// Each figure is the smallest of many repeats, so that other work on the machine
// disturbs it little. Give paths as arguments to measure other files.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spanflame/spanflame/symtab"
)

// subject is a file to measure, and what the peer needs for it.
type subject struct {
	name, path string
	peer       string
}

func main() {
	synthetic := flag.Int("synthetic", 1_000_000, "functions of a file made for the measurement; 0 for none")
	repeats := flag.Int("repeats", 30, "loads of each file")
	flag.Parse()
	dir, err := os.MkdirTemp("", "symtab-bench")
	if err != nil {
		fail("make a directory", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // in the system's directory for such

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "file\tsymbols\tfirst load ms\tload ms\tB/symbol\twarm ns\tfirst µs\tpeer (load; kept; warm)\t")
	for _, s := range subjects(dir, flag.Args(), *synthetic) {
		if err := measure(w, s, *repeats); err != nil {
			fmt.Fprintf(os.Stderr, "symtab: %s: %v\n", s.path, err)
		}
	}
	if err := measureKernel(w, *repeats); err != nil {
		fmt.Fprintf(os.Stderr, "symtab: the kernel: %v\n", err)
	}
	if err := w.Flush(); err != nil {
		fail("print", err)
	}
}

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "symtab: %s: %v\n", what, err)
	os.Exit(1)
}

// subjects are the files that the machine has.
func subjects(dir string, args []string, synthetic int) (out []subject) {
	for _, a := range args {
		out = append(out, subject{name: filepath.Base(a), path: a})
	}
	if len(args) > 0 {
		return out
	}
	glob := func(name, pattern, peer string) {
		if files, err := filepath.Glob(pattern); err == nil && len(files) > 0 {
			out = append(out, subject{name, files[0], peer})
		}
	}
	glob("libc", "/lib/*-linux-gnu/libc.so.6", "0.42–0.51 ms; 9.4 B; 25–47 ns")
	glob("libstdc++", "/usr/lib/*-linux-gnu/libstdc++.so.6", "")
	if path, err := resolved("go"); err == nil {
		out = append(out, subject{"go, .gopclntab", path, "0.95 ms"})
		if table, err := withoutGoTable(dir, path); err == nil {
			out = append(out, subject{"go, .symtab", table, "3.1 ms; 8.9 B"})
		} else {
			fmt.Fprintf(os.Stderr, "symtab: go's .symtab is left out: %v\n", err)
		}
	}
	glob("libjvm", "/usr/lib/jvm/*/lib/server/libjvm.so", "10–11 ms; 8.2 B")
	if path, err := resolved("node"); err == nil {
		out = append(out, subject{"node", path, "35–36 ms; 8.0 B"})
	}
	if synthetic > 0 {
		path := filepath.Join(dir, "synthetic")
		if err := writeSynthetic(path, synthetic); err != nil {
			fail("make a file with many functions", err)
		}
		out = append(out, subject{"synthetic", path, ""})
	}
	return out
}

func resolved(command string) (string, error) {
	path, err := exec.LookPath(command)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// withoutGoTable makes a copy whose function table is not found, so that the symbol
// table is read.
func withoutGoTable(dir, path string) (string, error) {
	out := filepath.Join(dir, "go")
	b, err := exec.Command("objcopy", "--rename-section", ".gopclntab=.hidden", "--remove-section=.go.buildinfo",
		"--remove-section=.note.go.buildid", path, out).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("objcopy: %w: %s", err, b)
	}
	return out, nil
}

// measure prints the line of a file.
func measure(w *tabwriter.Writer, s subject, repeats int) error {
	open := func() (*os.File, error) { return os.Open(s.path) }
	var first, least time.Duration
	c := symtab.NewCache(nil, nil, symtab.Options{Inline: true})
	defer c.Close()
	var m *symtab.Module
	for i := range repeats {
		m = c.Module(symtab.FileID{}, s.path, open, nil)
		start := time.Now()
		if err := m.Err(); err != nil {
			return err
		}
		took := time.Since(start)
		if i == 0 {
			first = took
		}
		if least == 0 || took < least {
			least = took
		}
		if i+1 < repeats {
			c.Expire(time.Now().Add(time.Duration(i+1) * time.Hour)) // evicts it
		}
	}
	functions, bytes := m.Size()
	cold, warm, err := lookUps(m, s.path)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%.1f\t%.0f\t%.1f\t%s\t\n", s.name, functions, ms(first), ms(least),
		float64(bytes)/float64(functions), warm, cold, s.peer)
	return nil
}

// lookUps measures the first look-up of an address in µs, and later ones in ns.
func lookUps(m *symtab.Module, path string) (cold, warm float64, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	r := rand.New(rand.NewPCG(1, 2))
	var offs []symtab.FileOffset
	var spent time.Duration
	for tries := 0; len(offs) < 4096 && tries < 1<<20; tries++ {
		off := symtab.FileOffset(r.Int64N(fi.Size()))
		start := time.Now()
		found := m.Frames(off) != nil
		took := time.Since(start)
		if found {
			spent += took
			offs = append(offs, off)
		}
	}
	if len(offs) == 0 {
		return 0, 0, fmt.Errorf("no address has a name")
	}
	cold = float64(spent.Nanoseconds()) / 1000 / float64(len(offs))
	warm = least(300, func() int {
		for _, off := range offs {
			m.Frames(off)
		}
		return len(offs)
	})
	return cold, warm, nil
}

// least is the smallest time of one of fn's steps, in ns, over some calls.
func least(calls int, fn func() int) float64 {
	best := 0.0
	for range calls {
		start := time.Now()
		n := fn()
		if per := float64(time.Since(start).Nanoseconds()) / float64(n); best == 0 || per < best {
			best = per
		}
	}
	return best
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// measureKernel prints the line of the kernel's own functions.
func measureKernel(w *tabwriter.Writer, repeats int) error {
	var first, best time.Duration
	var k *symtab.Kernel
	for i := range repeats {
		start := time.Now()
		var err error
		if k, err = symtab.LoadKernel(nil, symtab.Options{}); err != nil {
			return err
		}
		took := time.Since(start)
		if i == 0 {
			first = took
		}
		if best == 0 || took < best {
			best = took
		}
	}
	kept := float64(k.Bytes()) / float64(k.Symbols())
	addrs, err := kernelAddresses()
	if err != nil {
		return err
	}
	start := time.Now()
	for _, a := range addrs {
		k.Lookup(a)
	}
	cold := float64(time.Since(start).Nanoseconds()) / 1000 / float64(len(addrs))
	warm := least(300, func() int {
		for _, a := range addrs {
			k.Lookup(a)
		}
		return len(addrs)
	})
	fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%.1f\t%.0f\t%.1f\t%s\t\n", "kernel", k.Symbols(), ms(first), ms(best), kept, warm, cold,
		"96–99 ms; 84 B; 18 ns")
	read, err := readKallsyms(repeats)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s\t\t\t%.2f\t\t\t\t%s\t\n", "(the kernel prints its list)", ms(read), "")
	return nil
}
