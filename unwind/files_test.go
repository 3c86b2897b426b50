package unwind

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spanflame/spanflame/symtab"
)

// withoutSections is a file whose header names no sections.
func withoutSections(b []byte) []byte {
	b = slices.Clone(b)
	clear(b[40:48]) // e_shoff
	clear(b[60:64]) // e_shnum, e_shstrndx
	return b
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sameTable compares what two tables say.
func sameTable(t *testing.T, got, want *Table) {
	t.Helper()
	if len(want.Rows) < 4 {
		t.Fatalf("%d rows are too few to compare", len(want.Rows))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%d rows of %d functions, want %d of %d", len(got.Rows), got.Entries, len(want.Rows), want.Entries)
		for i := range min(len(got.Rows), len(want.Rows)) {
			if g, w := got.Rows[i], want.Rows[i]; g.Addr != w.Addr || got.Rules[g.Rule] != want.Rules[w.Rule] {
				t.Fatalf("row %d: %#x %+v, want %#x %+v", i, g.Addr, got.Rules[g.Rule], w.Addr, want.Rules[w.Rule])
			}
		}
	}
}

func TestWithoutSectionHeaders(t *testing.T) {
	for name, path := range map[string]func(t *testing.T) string{
		"libc":    func(t *testing.T) string { return firstOf(t, "/lib/*-linux-gnu/libc.so.6", "/lib64/libc.so.6") },
		"bash":    func(t *testing.T) string { return firstOf(t, "/bin/bash") },
		"gcc":     func(t *testing.T) string { return compile(t, "gcc", "c.c", "-O2") },
		"static":  func(t *testing.T) string { return compile(t, "gcc", "c.c", "-O2", "-static", "-Wl,--eh-frame-hdr") },
		"clang":   func(t *testing.T) string { return compile(t, "clang++-19", "cpp.cc", "-O2") },
		"no libc": func(t *testing.T) string { return compile(t, "gcc", "cfi.S", "-nostdlib", "-Wl,--eh-frame-hdr") },
	} {
		t.Run(name, func(t *testing.T) {
			p := path(t)
			f := openBytes(t, withoutSections(readFile(t, p)))
			if len(f.Sections) != 0 {
				t.Fatalf("%d sections are left", len(f.Sections))
			}
			got, err := Read(f, nil, Options{})
			if err != nil {
				t.Fatal(err)
			}
			sameTable(t, got, read(t, p))
		})
	}
}

// debugFrameProgram has its functions in .debug_frame only.
func debugFrameProgram(t *testing.T, compiler string) string {
	return compile(t, compiler, "c.c", "-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
}

func TestDebugFrame(t *testing.T) {
	for _, compiler := range []string{"gcc", "clang-19"} {
		t.Run(compiler, func(t *testing.T) {
			p := debugFrameProgram(t, compiler)
			checkFile(t, p)
			want := read(t, p)
			f := openELF(t, p)
			if s := f.Section(".debug_frame"); s == nil || s.Len < 200 {
				t.Fatal("this compiler wrote no .debug_frame")
			}
			skipped, err := Read(f, nil, Options{SkipDebugFrame: true})
			if err != nil || skipped.Entries >= want.Entries {
				t.Errorf("%d functions without .debug_frame, %d with it, %v", skipped.Entries, want.Entries, err)
			}
			for _, kind := range []string{"zlib-gnu", "zlib-gabi", "zstd"} {
				t.Run(kind, func(t *testing.T) {
					out := filepath.Join(t.TempDir(), "out")
					run(t, "objcopy", "--compress-debug-sections="+kind, p, out)
					c := openELF(t, out)
					s := c.Section(".debug_frame")
					if s == nil {
						s = c.Section(".zdebug_frame")
					}
					if s == nil || !s.Compressed() {
						t.Fatal("objcopy did not compress .debug_frame")
					}
					sameTable(t, read(t, out), want)
				})
			}
			t.Run("separate", func(t *testing.T) {
				dir := t.TempDir()
				debug, stripped := filepath.Join(dir, "debug"), filepath.Join(dir, "stripped")
				run(t, "objcopy", "--only-keep-debug", p, debug)
				run(t, "objcopy", "--strip-debug", p, stripped)
				sameTable(t, read(t, stripped), skipped)
				got, err := Read(openELF(t, stripped), openELF(t, debug), Options{})
				if err != nil {
					t.Fatal(err)
				}
				sameTable(t, got, want)
			})
			t.Run("alone", func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out")
				run(t, "objcopy", "--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr", p, out)
				// Nothing is left at what PT_GNU_EH_FRAME refers to.
				got, err := Read(openELF(t, out), nil, Options{})
				if got == nil {
					t.Fatal(err)
				}
				if got.Entries != want.Entries-skipped.Entries {
					t.Errorf("%d functions, want %d", got.Entries, want.Entries-skipped.Entries)
				}
			})
		})
	}
}

func TestVDSO(t *testing.T) {
	f, err := symtab.OwnVDSO()
	if err != nil {
		skip(t, "no vDSO: %v", err)
	}
	image, err := f.Bytes(0, uint64(f.Size()), f.Size())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "vdso")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	checkFile(t, path)
	for name, b := range map[string][]byte{"with sections": image, "without": withoutSections(image)} {
		t.Run(name, func(t *testing.T) {
			got, err := Read(openBytes(t, b), nil, Options{})
			if err != nil {
				t.Fatal(err)
			}
			sameTable(t, got, read(t, path))
		})
	}
}

// symbol finds a function of a file.
func symbol(t *testing.T, path, name string) elf.Symbol {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dynamic, _ := f.DynamicSymbols()
	static, _ := f.Symbols()
	for _, s := range append(dynamic, static...) {
		if s.Name == name && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			return s
		}
	}
	t.Fatalf("%s has no %s", path, name)
	return elf.Symbol{}
}

// TestSpecialFrames: where stacks end, signals, the procedure linkage table.
func TestSpecialFrames(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		skip(t, "the frames that are looked for are those of x86-64")
	}
	libc := firstOf(t, "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6")
	t.Run("signal", func(t *testing.T) {
		// glibc, sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c: the registers are in a ucontext.
		table, f := read(t, libc), openELF(t, libc)
		found := 0
		for _, r := range table.Rows {
			if table.Rules[r.Rule] != SignalFrame {
				continue
			}
			found++
			var code [10]byte
			if err := f.ReadAddr(code[:], r.Addr); err != nil {
				t.Fatal(err)
			}
			// nop; mov $__NR_rt_sigreturn, %rax; syscall
			if !bytes.Contains(code[:], []byte{0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05}) {
				t.Errorf("at %#x is % x", r.Addr, code)
			}
		}
		if found != 1 {
			t.Errorf("__restore_rt was found %d times", found)
		}
	})
	t.Run("clone", func(t *testing.T) {
		s, table := symbol(t, libc, "clone"), read(t, libc)
		if r := table.Find(VirtAddr(s.Value)); r.CFA != CFASP || r.RA != SavedCFA {
			t.Errorf("at its start: %+v", r)
		}
		thread := 0
		for a := s.Value; a < s.Value+s.Size; a++ {
			if table.Find(VirtAddr(a)) == (Rule{CFA: CFAEnd}) {
				thread++
			}
		}
		if thread < 10 {
			t.Errorf("the code of the thread has %d bytes", thread)
		}
	})
	t.Run("longjmp", func(t *testing.T) {
		// Its CFA is the jump buffer, its stack pointer in a register.
		table, o := read(t, libc), 0
		for _, r := range table.Rules {
			if r.CFA == CFARegister && r.RA == SavedReg {
				o++
			}
		}
		if o != 0 || table.Unsupported == 0 {
			t.Errorf("%d rules without stack pointer, %d rows are unsupported", o, table.Unsupported)
		}
	})
	program := compile(t, "gcc", "c.c", "-O2", "-Wl,-z,lazy", "-fcf-protection=none")
	t.Run("start", func(t *testing.T) {
		s, table := symbol(t, program, "_start"), read(t, program)
		for _, a := range []uint64{s.Value, s.Value + s.Size - 1} {
			if r := table.Find(VirtAddr(a)); r != (Rule{CFA: CFAEnd}) {
				t.Errorf("%#x: %+v", a, r)
			}
		}
	})
	t.Run("procedure linkage table", func(t *testing.T) {
		plt := openELF(t, program).Section(".plt")
		table := read(t, program)
		for at, want := range map[VirtAddr]Rule{
			0:    {CFA: CFASP, CFAOffset: 16, RA: SavedCFA, RAOffset: -8},
			6:    {CFA: CFASP, CFAOffset: 24, RA: SavedCFA, RAOffset: -8},
			16:   {CFA: CFAPLT, CFAOffset: 8, Deref: 11, RA: SavedCFA, RAOffset: -8},
			0x3f: {CFA: CFAPLT, CFAOffset: 8, Deref: 11, RA: SavedCFA, RAOffset: -8},
		} {
			if got := table.Find(plt.Addr + at); got != want {
				t.Errorf("%#x: %+v, want %+v", at, got, want)
			}
		}
	})
	t.Run("entry point that nothing describes", func(t *testing.T) {
		p := compile(t, "gcc", "cfi.S", "-nostdlib", "-static")
		s, table := symbol(t, p, "_start"), read(t, p)
		for a := s.Value; a < s.Value+s.Size; a++ {
			if r := table.Find(VirtAddr(a)); r != (Rule{CFA: CFAEnd}) {
				t.Errorf("%#x: %+v", a, r)
			}
		}
		if r := table.Find(VirtAddr(s.Value + entryLen)); r.CFA != CFANone {
			t.Errorf("behind it: %+v", r)
		}
		if n := strings.Count(string(readFile(t, "testdata/src/cfi.S")), "\t.cfi_startproc"); table.Entries != n {
			t.Errorf("%d functions, want %d", table.Entries, n)
		}
	})
}

// TestLacks tells programs with code that nothing describes from those without.
func TestLacks(t *testing.T) {
	for _, tc := range []struct {
		flags []string
		want  bool
	}{
		{[]string{"-O2"}, false},
		{[]string{"-O2", "-fno-asynchronous-unwind-tables"}, true},
		{[]string{"-O2", "-fno-asynchronous-unwind-tables", "-g"}, false}, // there is .debug_frame
	} {
		p := compile(t, "gcc", "c.c", tc.flags...)
		if got := read(t, p).Lacks(openELF(t, p)); got != tc.want {
			t.Errorf("%v: %v", tc.flags, got)
		}
	}
}

// TestNothing: files that have no table say why.
func TestNothing(t *testing.T) {
	plain := compile(t, "gcc", "small.c", "-nostdlib", "-static", "-fno-asynchronous-unwind-tables", "-fno-stack-protector")
	for name, tc := range map[string]struct {
		file []byte
		want error
	}{
		"no information": {readFile(t, plain), ErrNoFrames},
		"other machine":  {patched(readFile(t, plain), 18, byte(elf.EM_RISCV)), ErrMachine},
	} {
		t.Run(name, func(t *testing.T) {
			if table, err := Read(openBytes(t, tc.file), nil, Options{}); table != nil || !errors.Is(err, tc.want) {
				t.Errorf("%v, %v, want %v", table, err, tc.want)
			}
		})
	}
}

func patched(b []byte, at int, v byte) []byte {
	b[at] = v
	return b
}
