package symtab

import (
	"bufio"
	"bytes"
	"debug/elf"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// run runs a tool of the machine; a tool that is not there skips the test.
func run(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is needed as an oracle or to make test data: %v", name, err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// compile compiles a source of testdata/src.
func compile(t testing.TB, compiler, source string, flags ...string) string {
	t.Helper()
	src, err := filepath.Abs(filepath.Join("testdata", "src", source))
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(source, filepath.Ext(source)))
	run(t, ".", compiler, append([]string{"-O2", "-o", out, src}, flags...)...)
	return out
}

func newCache(t testing.TB, opts Options) *Cache {
	c := NewCache(nil, nil, opts)
	t.Cleanup(c.Close)
	return c
}

// moduleOf is the module of a file, with the identity that it would be mapped under.
func moduleOf(t testing.TB, c *Cache, path string, root Root) *Module {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHandle(f)
	if err != nil {
		t.Fatal(err)
	}
	h.close()
	return c.Module(FileID{Dev: 1, Ino: h.id.ino}, path, func() (*os.File, error) { return os.Open(path) }, root)
}

// dirRoot is a Root in a directory.
type dirRoot string

func (d dirRoot) Open(path string) (*os.File, error) { return os.Open(filepath.Join(string(d), path)) }

// oracleSymbol is a function as nm has it.
type oracleSymbol struct {
	start, size uint64
	name        string
	typed       bool // FUNC or IFUNC
}

// oracle answers which names an address may have.
type oracle struct {
	syms   []oracleSymbol // by start
	maxLen uint64
	file   *elf.File
}

// newOracle asks nm for the functions of the files, with addresses of prog. nm tells
// no symbol types, so those come from readelf.
func newOracle(t testing.TB, prog string, files ...string) *oracle {
	t.Helper()
	o := &oracle{}
	var err error
	if o.file, err = elf.Open(prog); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.file.Close() })
	for _, f := range append(files, prog) {
		out := run(t, ".", "readelf", "-sW", "--sym-base=16", f)
		sc := bufio.NewScanner(strings.NewReader(out))
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			// Num: Value Size Type Bind Vis Ndx Name
			w := strings.Fields(sc.Text())
			if len(w) < 8 || w[6] == "UND" || w[6] == "ABS" || (w[3] != "FUNC" && w[3] != "IFUNC" && w[3] != "NOTYPE") {
				continue
			}
			start, err1 := strconv.ParseUint(w[1], 16, 64)
			size, err2 := strconv.ParseUint(strings.TrimPrefix(w[2], "0x"), 16, 64)
			if err1 != nil || err2 != nil {
				continue
			}
			if w[3] == "NOTYPE" && size == 0 || o.offset(start) < 0 {
				continue
			}
			name, _, _ := strings.Cut(strings.Join(w[7:], " "), "@")
			o.syms = append(o.syms, oracleSymbol{start, size, name, w[3] != "NOTYPE"})
			o.maxLen = max(o.maxLen, size)
		}
	}
	slices.SortStableFunc(o.syms, func(a, b oracleSymbol) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
	return o
}

// offset converts an address in an executable segment to a file offset; -1 if none.
func (o *oracle) offset(addr uint64) int64 {
	for _, p := range o.file.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && addr >= p.Vaddr && addr-p.Vaddr < p.Filesz {
			return int64(addr - p.Vaddr + p.Off)
		}
	}
	return -1
}

// names are the names that an address may have: those of the covering symbols that
// start closest before it.
func (o *oracle) names(addr uint64) (names []string, covered bool) {
	i, _ := slices.BinarySearchFunc(o.syms, addr+1, func(s oracleSymbol, a uint64) int {
		if s.start < a {
			return -1
		}
		return 1
	})
	for _, typed := range []bool{true, false} {
		best := ^uint64(0)
		for k := i - 1; k >= 0 && addr-o.syms[k].start <= o.maxLen; k-- {
			s := o.syms[k]
			if best != ^uint64(0) && s.start != best {
				break
			}
			if s.typed == typed && addr-s.start < s.size {
				best = s.start
				names = append(names, s.name)
			}
		}
		if len(names) > 0 {
			return names, true
		}
	}
	for k := i - 1; k >= 0 && o.syms[k].start == addr; k-- {
		names = append(names, o.syms[k].name) // functions without size: the first byte
	}
	return names, len(names) > 0
}

// check compares the module's name of an address with the oracle's.
func (o *oracle) check(t testing.TB, m *Module, addr uint64) {
	t.Helper()
	off := o.offset(addr)
	if off < 0 {
		return
	}
	want, covered := o.names(addr)
	got := m.Frames(FileOffset(off))
	switch {
	case !covered && got != nil:
		t.Errorf("%#x: named %q, but no symbol covers it", addr, got[0].Name)
	case covered && got == nil:
		t.Errorf("%#x: not named, but covered by %q", addr, want)
	case covered && !slices.Contains(want, trimVersion(got[0].Name)):
		t.Errorf("%#x: named %q, covered by %q", addr, got[0].Name, want)
	}
}

func trimVersion(s string) string {
	s, _, _ = strings.Cut(s, "@")
	return s
}

// checkAll checks the start, the middle, the last byte and the byte past the end of
// every symbol, and random addresses of .text.
func (o *oracle) checkAll(t testing.TB, m *Module, random int) {
	t.Helper()
	if len(o.syms) == 0 {
		t.Fatal("the oracle knows no functions")
	}
	for _, s := range o.syms {
		o.check(t, m, s.start)
		if s.size > 0 {
			o.check(t, m, s.start+s.size/2)
			o.check(t, m, s.start+s.size-1)
		}
		o.check(t, m, s.start+s.size)
	}
	text := o.file.Section(".text")
	r := rand.New(rand.NewPCG(1, 2))
	for range random {
		o.check(t, m, text.Addr+r.Uint64N(text.Size))
	}
}
