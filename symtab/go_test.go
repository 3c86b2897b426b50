package symtab

import (
	"bufio"
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// goProgram builds the program of testdata/src with other files and flags.
func goProgram(t testing.TB, cgo bool, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	extra := "nocgo.go.txt"
	if cgo {
		extra = "cgo.go.txt"
	}
	for _, f := range []string{"prog.go.txt", extra} {
		b, err := os.ReadFile(filepath.Join("testdata", "src", f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, strings.TrimSuffix(f, ".txt")), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.test/prog\n\ngo 1.18\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CGO_ENABLED", map[bool]string{true: "1", false: "0"}[cgo])
	out := filepath.Join(dir, "prog")
	run(t, dir, "go", append(append([]string{"build", "-o", out}, flags...), ".")...)
	return out
}

// TestOldGo builds programs with other releases of Go, which the go command fetches.
func TestOldGo(t *testing.T) {
	list := os.Getenv("SPANFLAME_TEST_GO_TOOLCHAINS")
	if list == "" {
		t.Skip("set SPANFLAME_TEST_GO_TOOLCHAINS to a list such as go1.15.15,go1.17.13,go1.18.10,go1.21.13 to test their formats")
	}
	// The program without type arguments, which older releases do not know.
	older := strings.NewReplacer("type number interface{ ~int | ~float64 }\n", "", "sum[T number](xs []T) (s T)", "sum(xs []int) (s int)",
		"twice[T number](x T) T", "twice(x int) int", "sum([]float64{1, 2}) + float64(sum([]int{1}))", "sum([]int{1})", "sum[int]", "sum", "any", "interface{}")
	src, err := os.ReadFile(filepath.Join("testdata", "src", "prog.go.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range strings.Split(list, ",") {
		for _, mode := range []string{"exe", "pie"} {
			t.Run(release+" "+mode, func(t *testing.T) {
				dir := t.TempDir()
				for name, text := range map[string]string{
					"go.mod": "module example.test/prog\n\ngo 1.12\n", "prog.go": older.Replace(string(src)), "extra.go": "package main\n\nfunc extra() {}\n",
				} {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				t.Setenv("GOTOOLCHAIN", release)
				t.Setenv("GOFLAGS", "-mod=mod") // flags of newer releases are unknown to older ones
				t.Setenv("CGO_ENABLED", "0")
				prog := filepath.Join(dir, "prog")
				run(t, dir, "go", "build", "-buildmode="+mode, "-o", prog, ".")
				said := run(t, ".", prog)
				for _, strip := range []bool{false, true} {
					file := prog
					if strip {
						file = stripped(t, prog)
					}
					m := moduleOf(t, newCache(t, Options{Demangle: "simplified", Inline: true}), file, nil)
					if err := m.Err(); err != nil || !m.IsGo() {
						t.Fatal(err, m.IsGo())
					}
					checkRuntime(t, m, prog, said)
					checkGoSymbols(t, m, prog, strip)
				}
			})
		}
	}
}

// textAddr is an address of a symbol of a file that is not stripped.
func textAddr(t testing.TB, path, name string) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Name == name {
			return s.Value
		}
	}
	t.Fatalf("no symbol %s in %s", name, path)
	return 0
}

func TestGoPrograms(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cgo   bool
		flags []string
	}{
		{"internal linking", false, nil},
		{"position independent", false, []string{"-buildmode=pie"}},
		{"cgo", true, nil},
		{"cgo, external linking", true, []string{"-ldflags=-linkmode=external"}},
		{"cgo, position independent", true, []string{"-buildmode=pie"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			prog := goProgram(t, tc.cgo, tc.flags...)
			said := run(t, ".", prog)
			for _, strip := range []bool{false, true} {
				t.Run(map[bool]string{false: "whole", true: "stripped"}[strip], func(t *testing.T) {
					file := prog
					if strip {
						file = stripped(t, prog)
					}
					m := moduleOf(t, newCache(t, Options{Demangle: "simplified", Inline: true}), file, nil)
					if err := m.Err(); err != nil {
						t.Fatal(err)
					}
					if !m.IsGo() {
						t.Fatal("not known as a Go program")
					}
					checkRuntime(t, m, prog, said)
					checkGoSymbols(t, m, prog, strip)
				})
			}
			t.Run("inlined functions", func(t *testing.T) {
				m := moduleOf(t, newCache(t, Options{Inline: true}), prog, nil)
				checkInlined(t, m, prog)
			})
		})
	}
}

// checkRuntime compares the innermost frame with what the program's own runtime said
// of every address of some functions.
func checkRuntime(t *testing.T, m *Module, prog, said string) {
	t.Helper()
	o := newOracle(t, prog)
	chain := textAddr(t, prog, "main.Chain")
	n := 0
	sc := bufio.NewScanner(strings.NewReader(said))
	for sc.Scan() {
		w := strings.Split(sc.Text(), "\t")
		rel, err := strconv.ParseUint(w[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		addr := chain + rel // modulo 2^64: functions before Chain have negative numbers
		if _, covered := o.names(addr); !covered {
			if fr := m.Frames(FileOffset(o.offset(addr))); fr != nil {
				t.Errorf("%#x: padding was named %q", addr, fr[0].Name)
			}
			continue
		}
		if w[1] == "" {
			continue // up to Go 1.23: the last byte of a function without padding
		}
		n++
		fr := m.Frames(FileOffset(o.offset(addr)))
		if fr == nil {
			t.Fatalf("%#x: not named, the runtime says %v", addr, w)
		}
		if got := fmt.Sprintf("%s\t%s\t%d", fr[0].Name, fr[0].File, fr[0].Line); got != strings.Join(w[1:], "\t") {
			t.Errorf("%#x: %s, the runtime says %v", addr, got, w[1:])
		}
	}
	if n < 1000 {
		t.Errorf("the program said something of %d addresses only", n)
	}
}

// checkGoSymbols checks every symbol of the program that is not stripped: the
// outermost frame is the function that the symbol names, with its true extent.
func checkGoSymbols(t *testing.T, m *Module, prog string, strip bool) {
	t.Helper()
	o := newOracle(t, prog)
	text, etext := textAddr(t, prog, "runtime.text"), textAddr(t, prog, "runtime.etext")
	checked, fromRuntime := 0, 0
	for _, s := range o.syms {
		if s.size == 0 || strings.HasPrefix(s.name, "go:textfips") { // marks of the linker
			continue
		}
		inGo := s.start >= text && s.start < etext
		for _, addr := range []uint64{s.start, s.start + s.size/2, s.start + s.size - 1, s.start + s.size} {
			if o.offset(addr) < 0 {
				continue
			}
			want, covered := o.names(addr)
			fr := m.Frames(FileOffset(o.offset(addr)))
			switch {
			case fr == nil && !covered:
			case fr == nil && strip && (!inGo || addr == etext): // C code without symbols
			case fr == nil:
				t.Errorf("%#x: not named, but covered by %q", addr, want)
			case !covered:
				t.Errorf("%#x: named %q, but no symbol covers it", addr, fr[len(fr)-1].Name)
			default:
				checked++
				got := fr[len(fr)-1].Name
				ok := false
				for _, w := range want {
					ok = ok || sameGoName(got, w)
				}
				if !ok {
					t.Errorf("%#x: named %q, covered by %q", addr, got, want)
				}
				if strings.HasPrefix(got, "runtime.") {
					fromRuntime++
				}
			}
		}
	}
	if checked < 4000 || fromRuntime < 1000 {
		t.Errorf("only %d addresses could be checked, %d of the runtime", checked, fromRuntime)
	}
}

// sameGoName compares a simplified name with that of a symbol. Symbols bear marks
// of the linker that the function table has not.
func sameGoName(got, symbol string) bool {
	for _, suffix := range []string{".abi0", ".abiinternal", ".args_stackmap"} {
		symbol = strings.TrimSuffix(symbol, suffix)
	}
	got = strings.ReplaceAll(got, "·", ".") // so does the linker
	return got == symbol || got == simplifyGo(symbol)
}

// dwarfScope is a function, or one inlined in another, as the debug information has it.
type dwarfScope struct {
	name     string
	ranges   [][2]uint64
	callLine int // where it is called, if it is inlined
	inner    []*dwarfScope
}

// dwarfFunctions reads the functions whose name want accepts.
func dwarfFunctions(t *testing.T, d *dwarf.Data, want func(string) bool) (out []*dwarfScope) {
	t.Helper()
	nameOf := func(e *dwarf.Entry) string {
		if off, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset); ok {
			r := d.Reader()
			r.Seek(off)
			origin, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			e = origin
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		return name
	}
	var stack []*dwarfScope // nil for what is of no interest
	r := d.Reader()
	for {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return out
		}
		if e.Tag == 0 {
			stack = stack[:len(stack)-1]
			continue
		}
		var scope *dwarfScope
		if len(stack) > 0 {
			scope = stack[len(stack)-1]
		}
		if e.Tag == dwarf.TagSubprogram && want(nameOf(e)) || e.Tag == dwarf.TagInlinedSubroutine && scope != nil {
			s := &dwarfScope{name: nameOf(e)}
			if s.ranges, err = d.Ranges(e); err != nil {
				t.Fatal(err)
			}
			if line, ok := e.Val(dwarf.AttrCallLine).(int64); ok {
				s.callLine = int(line)
			}
			if scope != nil {
				scope.inner = append(scope.inner, s)
			} else if len(s.ranges) > 0 {
				out = append(out, s)
			}
			scope = s
		}
		if e.Children {
			stack = append(stack, scope)
		}
	}
}

// at returns the names at an address, innermost first, and the lines of the calls.
func (s *dwarfScope) at(addr uint64) (names []string, calls []int) {
	for _, in := range s.inner {
		for _, r := range in.ranges {
			if addr >= r[0] && addr < r[1] {
				names, calls = in.at(addr)
				return append(names, s.name), append(calls, in.callLine)
			}
		}
	}
	return []string{s.name}, nil
}

// checkInlined compares all frames of every address of some functions with the
// debug information.
func checkInlined(t *testing.T, m *Module, prog string) {
	t.Helper()
	f, err := elf.Open(prog)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	d, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	o := newOracle(t, prog)
	total, same, deep := 0, 0, 0
	for _, fn := range dwarfFunctions(t, d, func(n string) bool {
		return strings.HasPrefix(n, "main.") || strings.HasPrefix(n, "fmt.(*pp)") || strings.HasPrefix(n, "reflect.deep")
	}) {
		for a := fn.ranges[0][0]; a < fn.ranges[0][1]; a++ {
			names, calls := fn.at(a)
			fr := m.Frames(FileOffset(o.offset(a)))
			var want, got []string
			for i, n := range names {
				n = simplifyGo(n)
				if i > 0 {
					n = fmt.Sprintf("%s:%d", n, calls[i-1])
				}
				want = append(want, n)
			}
			for i, x := range fr {
				n := simplifyGo(x.Name) // before Go 1.21 the two wrote shapes in different ways
				if i > 0 {
					n = fmt.Sprintf("%s:%d", n, x.Line)
				}
				got = append(got, n)
			}
			total++
			if len(names) > 2 {
				deep++
			}
			if strings.Join(got, "; ") == strings.Join(want, "; ") {
				same++
			} else if total-same < 10 {
				t.Logf("%#x: %q, the debug information says %q", a, got, want)
			}
		}
	}
	t.Logf("%d of %d addresses are the same, %d with frames inlined twice", same, total, deep)
	// The debug information and the inline tree are made by different parts of the
	// compiler and differ at some instructions.
	if deep < 50 || same*100 < total*99 {
		t.Error("too few are the same")
	}
}

// TestOwnChain compares with the stack that this process sees of itself.
func TestOwnChain(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pcs := make([]uintptr, 16)
	pcs = pcs[:runtime.Callers(1, pcs)]
	frames := runtime.CallersFrames(pcs)
	fr, _ := frames.Next()
	f, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			m := moduleOf(t, newCache(t, Options{Demangle: "simplified", Inline: true}), exe, nil)
			got := m.Frames(FileOffset(uint64(fr.PC) - p.Vaddr + p.Off))
			if f.Type == elf.ET_EXEC && (len(got) == 0 || got[0].Name != fr.Function || got[0].Line != fr.Line || got[0].File != fr.File) {
				t.Errorf("%+v, the runtime says %+v", got, fr)
			}
			return
		}
	}
	t.Fatal("no code in the test's own file")
}

// TestNoInline keeps the outermost frame only, with the line of the call in it.
func TestNoInline(t *testing.T) {
	prog := goProgram(t, false)
	with := moduleOf(t, newCache(t, Options{Inline: true}), prog, nil)
	without := moduleOf(t, newCache(t, Options{}), prog, nil)
	o := newOracle(t, prog)
	start := textAddr(t, prog, "main.Chain")
	inlined := 0
	for a := start; a < start+200; a++ {
		x, y := with.Frames(FileOffset(o.offset(a))), without.Frames(FileOffset(o.offset(a)))
		if len(x) == 0 {
			continue
		}
		if len(x) > 1 {
			inlined++
		}
		if len(y) != 1 || y[0] != x[len(x)-1] {
			t.Errorf("%#x: %+v, want the last of %+v", a, y, x)
		}
	}
	if inlined == 0 {
		t.Error("nothing was inlined: the test shows nothing")
	}
}
