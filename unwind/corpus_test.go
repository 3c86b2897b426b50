package unwind

import (
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/spanflame/spanflame/internal/elffile"
)

// firstOf is the first file that a pattern matches.
func firstOf(t *testing.T, patterns ...string) string {
	t.Helper()
	for _, p := range patterns {
		if m, _ := filepath.Glob(p); len(m) > 0 {
			return m[0]
		}
	}
	skip(t, "none of these is on this machine: %s", strings.Join(patterns, ", "))
	return ""
}

// TestStockFiles compares tables of programs as they are delivered.
func TestStockFiles(t *testing.T) {
	lib := func(name string) []string {
		return []string{"/lib/*-linux-gnu/" + name, "/usr/lib/*-linux-gnu/" + name, "/lib64/" + name}
	}
	for name, patterns := range map[string][]string{
		"libc":      lib("libc.so.6"),
		"ld.so":     lib("ld-linux-*.so.*"),
		"libstdc++": lib("libstdc++.so.6"),
		"libgcc":    lib("libgcc_s.so.1"),
		"libcrypto": lib("libcrypto.so.3"),
		"bash":      {"/bin/bash"},
		"python3":   {"/usr/bin/python3"},
		"perl":      {"/usr/bin/perl"},
		"git":       {"/usr/bin/git"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if f := checkFile(t, firstOf(t, patterns...)); float64(f.unsupported) > 1e-3*float64(f.rows) && f.unsupported > 5 {
				t.Errorf("%d of %d rows are unsupported", f.unsupported, f.rows)
			}
		})
	}
}

// TestCompilers compares tables of what compilers make today.
func TestCompilers(t *testing.T) {
	for _, source := range []struct{ file, gcc, clang string }{{"c.c", "gcc", "clang-19"}, {"cpp.cc", "g++", "clang++-19"}} {
		for _, compiler := range []string{source.gcc, source.clang} {
			for name, flags := range map[string]string{
				"O0":                  "-O0",
				"O2":                  "-O2",
				"O3 no frame pointer": "-O3 -fomit-frame-pointer",
				"frame pointer":       "-O2 -fno-omit-frame-pointer",
				"asynchronous":        "-O2 -fasynchronous-unwind-tables",
				"static":              "-O2 -static",
				"fixed address":       "-O2 -no-pie",
				"branch tracking":     "-O1 -fcf-protection",
			} {
				if source.file == "cpp.cc" && !strings.HasPrefix(name, "O") {
					continue // they differ in what C shows, too
				}
				t.Run(strings.Join([]string{source.file, compiler, name}, "/"), func(t *testing.T) {
					t.Parallel()
					f := checkFile(t, compile(t, compiler, source.file, strings.Fields(flags)...))
					if f.unsupported > 10 {
						t.Errorf("%d of %d rows are unsupported", f.unsupported, f.rows)
					}
				})
			}
		}
	}
}

// TestInstructions compares the tables of instructions that compilers do not write.
func TestInstructions(t *testing.T) {
	for name, flags := range map[string][]string{
		"fixed address":                {"-static"},
		"position independent":         {"-static-pie"},
		"compressed debug information": {"-static", "-g", "-gz"},
	} {
		t.Run(name, func(t *testing.T) {
			path := compile(t, "gcc", "cfi.S", append(flags, "-nostdlib")...)
			f := checkFile(t, path)
			if f.unsupported != 9 {
				t.Errorf("%d rows are unsupported, want those that say so in the source", f.unsupported)
			}
		})
	}
}

// lld finds a linker for other machines' programs.
func lld(t *testing.T) []string {
	for _, name := range []string{"ld.lld-19", "ld.lld"} {
		if _, err := exec.LookPath(name); err == nil {
			return []string{name}
		}
	}
	if out, err := exec.Command("rustc", "--print", "sysroot").Output(); err == nil {
		if m, _ := filepath.Glob(strings.TrimSpace(string(out)) + "/lib/rustlib/*/bin/rust-lld"); len(m) > 0 {
			return []string{m[0], "-flavor", "gnu"}
		}
	}
	skip(t, "a linker for arm64 is needed: ld.lld-19, ld.lld or rust-lld")
	return nil
}

// TestARM64 compares tables of programs for arm64.
func TestARM64(t *testing.T) {
	for name, flags := range map[string]string{
		"O0":                  "-O0 -fasynchronous-unwind-tables",
		"O2":                  "-O2 -fasynchronous-unwind-tables",
		"O3 no frame pointer": "-O3 -fomit-frame-pointer -fasynchronous-unwind-tables",
		"O2 synchronous":      "-O2 -funwind-tables",
		"signed":              "-O2 -mbranch-protection=standard -fasynchronous-unwind-tables",
		"debug_frame":         "-O2 -g -fno-asynchronous-unwind-tables -fno-unwind-tables",
	} {
		t.Run("clang/"+name, func(t *testing.T) {
			linker := lld(t)
			object := compile(t, "clang-19", "small.c", append(strings.Fields(flags), "--target=aarch64-linux-gnu", "-c", "-ffreestanding", "-fno-stack-protector")...)
			out := object + ".so"
			run(t, linker[0], append(linker[1:], "-shared", "--eh-frame-hdr", "-o", out, object)...)
			if f := checkFile(t, out); f.unsupported != 0 {
				t.Errorf("%d of %d rows are unsupported", f.unsupported, f.rows)
			}
		})
	}
	t.Run("go", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "out")
		source := out + ".go"
		if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(1) }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("GOARCH", "arm64")
		t.Setenv("CGO_ENABLED", "0")
		run(t, "go", "build", "-o", out, source)
		if f := checkFile(t, out); f.unsupported != 0 {
			t.Errorf("%d of %d rows are unsupported", f.unsupported, f.rows)
		}
	})
}

// TestAll compares all programs and libraries of the machine. It takes minutes.
func TestAll(t *testing.T) {
	if os.Getenv("SPANFLAME_TEST_UNWIND_ALL") != "1" {
		t.Skip("SPANFLAME_TEST_UNWIND_ALL=1 is not set")
	}
	var all, readelf figures
	var files, none, failed, readelfFailed, damaged, rules, rows int
	var mu sync.Mutex
	check := func(path string) {
		b, err := os.Open(path)
		if err != nil {
			return
		}
		defer b.Close()
		fi, err := b.Stat()
		if err != nil {
			return
		}
		f, err := elffile.Open(b, fi.Size())
		if err != nil || f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN || f.Machine != elf.EM_X86_64 && f.Machine != elf.EM_AARCH64 || f.Class != elf.ELFCLASS64 {
			return
		}
		table, err := Read(f, nil, Options{})
		if table == nil && errors.Is(err, ErrNoFrames) {
			mu.Lock()
			none++
			mu.Unlock()
			return
		}
		if table == nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		o, oracleErr := askLLVM(path, f.Machine)
		mu.Lock()
		defer mu.Unlock()
		files++
		rules, rows = max(rules, len(table.Rules)), max(rows, len(table.Rows))
		if err != nil {
			damaged++
			t.Logf("%s: %v", path, err)
		}
		if oracleErr != nil {
			failed++
			t.Logf("%s: the oracle fails: %v", path, oracleErr)
			return
		}
		checkTable(t, table)
		report := func(format string, args ...any) { t.Errorf(path+": "+format, args...) }
		all.add(o.compare(table, uint64(f.Entry), report))
		re, err := o.compareReadelf(table, path, report)
		if err != nil {
			readelfFailed++
			t.Logf("%s: readelf fails: %v", path, err)
			return
		}
		readelf.add(re)
	}
	paths := make(chan string)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for p := range paths {
				check(p)
			}
		})
	}
	for _, dir := range []string{"/usr/bin", "/usr/lib"} {
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				paths <- path
			}
			return nil // what cannot be read is left out
		})
	}
	close(paths)
	workers.Wait()
	t.Logf("%d files, %d more without call frame information; %d are damaged; llvm-dwarfdump fails with %d, readelf with %d", files, none, damaged, failed, readelfFailed)
	t.Logf("llvm-dwarfdump: %+v; readelf: %+v; tables have up to %d rows and %d rules", all, readelf, rows, rules)
	if all.rows == 0 || float64(all.unsupported) > 1e-3*float64(all.rows) {
		t.Errorf("%d of %d rows are unsupported", all.unsupported, all.rows)
	}
}
