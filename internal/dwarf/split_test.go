package dwarf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spanflame/spanflame/internal/elffile"
)

// splitFiles opens files where the compiler left them.
type splitFiles struct {
	pack    string // "": none
	opened  int
	open    int
	results []error
	stale   error
}

func (s *splitFiles) Package() (*SplitFile, error) {
	if s.pack == "" {
		return nil, fs.ErrNotExist
	}
	return s.Unit(s.pack)
}

func (s *splitFiles) Unit(name string) (*SplitFile, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	e, err := elffile.Open(f, st.Size())
	if err != nil {
		f.Close()
		return nil, err
	}
	s.open++
	s.opened++
	return &SplitFile{File: e, Fresh: func() error { return s.stale }, Close: func() { s.open--; f.Close() }}, nil
}

func (s *splitFiles) Done(err error) { s.results = append(s.results, err) }

// split builds a program of two units, whose debugging information is in files of their
// own, and returns its path.
func split(t testing.TB, compiler, source string, flags ...string) string {
	t.Helper()
	name := "b.c"
	if strings.Contains(compiler, "+") {
		name = "b.cc"
	}
	dir := t.TempDir()
	second := filepath.Join(dir, name)
	const text = `static inline int half(int x) { volatile int y = x; return y / 2 + 1; }
int other(int x);
int other(int x) { int s = 0; for (int i = 0; i < x; i++) s += half(i); return s ^ half(x); }
`
	if err := os.WriteFile(second, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	prog := compile(t, compiler, source, append(flags, second)...)
	return prog
}

func run(t testing.TB, dir, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is needed: %v", name, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); ctx.Err() != nil && name == "llvm-dwp-19" {
		t.Skipf("%s %v does not end, as it does for some of gcc's units of version 5", name, args)
	} else if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func textAddrs(f *elffile.File) (addrs []uint64) {
	text := f.Section(".text")
	for a := uint64(text.Addr); a < uint64(text.Addr)+text.Len; a++ {
		addrs = append(addrs, a)
	}
	return addrs
}

func removeSplit(t testing.TB, prog string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(prog), "*.dwo"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%d split files: %v", len(files), err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSplitAgainstAddr2line compares every address of programs of split units with
// addr2line's answer. What gcc makes of version 5 is not packed: llvm-dwp of version 19
// does not end with some of it, and that of binutils 2.40 crashes.
func TestSplitAgainstAddr2line(t *testing.T) {
	for _, tt := range []struct {
		compiler, source string
		flags            []string
		dwp              string // what packs the units
	}{
		{"gcc", cSource, []string{"-O2", "-gdwarf-5"}, ""},
		{"gcc", cSource, []string{"-O2", "-gdwarf-4"}, ""},
		{"gcc", cSource, []string{"-O2", "-gdwarf-4"}, "llvm-dwp-19"},
		{"gcc", cSource, []string{"-O2", "-gdwarf-4"}, "dwp"},
		{"gcc", cSource, []string{"-O0", "-gdwarf-5", "-gz=zlib"}, ""},
		{"clang-19", cSource, []string{"-O2", "-gdwarf-5"}, ""},
		{"clang-19", cSource, []string{"-O2", "-gdwarf-5"}, "llvm-dwp-19"},
		{"clang-19", cSource, []string{"-O2", "-gdwarf-4"}, ""},
		{"clang-19", cSource, []string{"-O2", "-gdwarf-4"}, "llvm-dwp-19"},
		{"clang-19", cSource, []string{"-O2", "-gdwarf-4"}, "dwp"},
		{"clang-19", cSource, []string{"-O1", "-gdwarf64", "-gdwarf-5"}, ""},
		{"clang-19", cSource, []string{"-O2", "-gdwarf-5", "-fsplit-dwarf-inlining"}, ""},
		{"g++", cxxSource, []string{"-O2", "-gdwarf-5"}, ""},
		{"g++", cxxSource, []string{"-O2", "-gdwarf-5", "-fdebug-types-section"}, ""},
		{"g++", cxxSource, []string{"-O2", "-gdwarf-4"}, "dwp"},
		{"clang++-19", cxxSource, []string{"-O2", "-gdwarf-5", "-gz=zstd"}, ""},
		{"clang++-19", cxxSource, []string{"-O2", "-gdwarf-5", "-fdebug-types-section", "-ffunction-sections"}, "llvm-dwp-19"},
		{"clang++-19", cxxSource, []string{"-O2", "-gdwarf-4", "-fdebug-types-section"}, ""},
	} {
		t.Run(tt.compiler+strings.Join(tt.flags, "")+tt.dwp, func(t *testing.T) {
			path := split(t, tt.compiler, tt.source, append(tt.flags, "-gsplit-dwarf")...)
			files := &splitFiles{}
			if tt.dwp != "" {
				files.pack = path + ".dwp"
				run(t, filepath.Dir(path), tt.dwp, "-e", path, "-o", files.pack)
				removeSplit(t, path)
			}
			f := open(t, path)
			d, err := Open(f, nil, files)
			if err != nil {
				t.Fatal(err)
			}
			addrs := textAddrs(f)
			compare(t, d, addrs, oracle(t, path, addrs))
			if len(files.results) != 2 || errors.Join(files.results...) != nil {
				t.Errorf("units: %v", files.results)
			}
			if want := map[bool]int{true: 2, false: 1}[tt.dwp == ""]; files.open != want || d.OpenFiles() != want || files.opened != want {
				t.Errorf("%d files are open, %d are counted, %d were; want %d", files.open, d.OpenFiles(), files.opened, want)
			}
			d.Close()
			d.Close()
			if files.open != 0 || d.OpenFiles() != 0 {
				t.Errorf("%d files are open after the end, %d are counted", files.open, d.OpenFiles())
			}
			if _, err := d.Find(elffile.VirtAddr(addrs[0])); !errors.Is(err, ErrClosed) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

// TestSplitMissing has lines, but neither names nor inlined functions, where split units
// are missing or are those of another build.
func TestSplitMissing(t *testing.T) {
	for _, version := range []string{"-gdwarf-4", "-gdwarf-5"} {
		for _, compiler := range []string{"gcc", "clang-19"} {
			for _, kind := range []string{"missing", "of another build", "cut off", "no file of that kind"} {
				t.Run(compiler+version+" "+kind, func(t *testing.T) {
					path := split(t, compiler, cSource, "-O2", "-gsplit-dwarf", version)
					files := &splitFiles{}
					own, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.dwo"))
					if err != nil || len(own) != 2 {
						t.Fatal(own, err)
					}
					switch kind {
					case "missing":
						removeSplit(t, path)
					case "of another build":
						raw, err := os.ReadFile(own[0])
						if err == nil {
							err = os.WriteFile(own[1], raw, 0o600)
						}
						if err == nil {
							err = os.Remove(own[0])
						}
						if err != nil {
							t.Fatal(err)
						}
					case "cut off":
						for _, name := range own {
							if err := os.Truncate(name, 100); err != nil {
								t.Fatal(err)
							}
						}
					default:
						for _, name := range own {
							if err := os.WriteFile(name, []byte("\x7fELF"), 0o600); err != nil {
								t.Fatal(err)
							}
						}
					}
					f := open(t, path)
					d, err := Open(f, nil, files)
					if err != nil {
						t.Fatal(err)
					}
					addrs := textAddrs(f)
					lines := 0
					for i, w := range oracle(t, path, addrs) {
						got, err := d.Find(elffile.VirtAddr(addrs[i]))
						if err != nil {
							t.Fatal(err)
						}
						if len(got) == 0 {
							continue
						}
						lines++
						want := Call{File: w[0].File, Line: w[0].Line}
						if len(got) != 1 || got[0] != want {
							t.Fatalf("%#x: %+v, want %+v", addrs[i], got, want)
						}
					}
					if lines < 100 {
						t.Errorf("%d addresses have lines", lines)
					}
					if len(files.results) != 2 || files.results[0] == nil || files.results[1] == nil || files.open != 0 {
						t.Errorf("units: %v; %d files are open", files.results, files.open)
					}
				})
			}
		}
	}
}

// openSplit opens a program with split units, and lists the addresses of its code.
func openSplit(t *testing.T, path string, files SplitFiles) (*Data, []uint64) {
	t.Helper()
	f := open(t, path)
	d, err := Open(f, nil, files)
	if err != nil {
		t.Fatal(err)
	}
	return d, textAddrs(f)
}

// TestSplitOtherPackage has the units' own files where the package is of another build.
func TestSplitOtherPackage(t *testing.T) {
	other := split(t, "clang-19", strings.ReplaceAll(cSource, "100", "101"), "-O1", "-gsplit-dwarf")
	run(t, filepath.Dir(other), "llvm-dwp-19", "-e", other, "-o", other+".dwp")
	path := split(t, "clang-19", cSource, "-O2", "-gsplit-dwarf")
	files := &splitFiles{pack: other + ".dwp"}
	d, addrs := openSplit(t, path, files)
	compare(t, d, addrs, oracle(t, path, addrs))
	if files.open != 3 {
		t.Errorf("%d files are open, want 3", files.open)
	}
	files.stale = errors.New("it has changed")
	for _, a := range addrs {
		if got, err := d.Find(elffile.VirtAddr(a)); err != nil && (got != nil || !errors.Is(err, files.stale)) {
			t.Fatalf("%#x of a file that has changed: %v, %v", a, got, err)
		} else if got != nil {
			t.Fatalf("%#x of a file that has changed: %v", a, got)
		}
	}
	d.Close()
	if files.open != 0 {
		t.Errorf("%d files are open after the end", files.open)
	}
}

// TestSplitManyFiles keeps few files open.
func TestSplitManyFiles(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-O2", "-gsplit-dwarf"}
	for i := range 3 * maxSplitOpen {
		name := filepath.Join(dir, fmt.Sprintf("u%d.c", i))
		text := fmt.Sprintf("static inline int g%[1]d(int x) { volatile int y = x; return y / 2 + %[1]d; }\n"+
			"int f%[1]d(int x) {\n\treturn g%[1]d(x) * 3 + g%[1]d(x + 1);\n}\n", i)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, name)
	}
	path := compile(t, "gcc", cSource, args...)
	files := &splitFiles{}
	d, addrs := openSplit(t, path, files)
	want := oracle(t, path, addrs)
	compare(t, d, addrs, want)
	compare(t, d, addrs, want)
	if files.open != maxSplitOpen || d.OpenFiles() != maxSplitOpen || files.opened < 6*maxSplitOpen {
		t.Errorf("%d files are open, %d are counted, %d were; want %d", files.open, d.OpenFiles(), files.opened, maxSplitOpen)
	}
	d.Close()
	if files.open != 0 {
		t.Errorf("%d files are open after the end", files.open)
	}
}

// TestSplitSingle has the split units in the object files (-gsplit-dwarf=single).
func TestSplitSingle(t *testing.T) {
	path := compile(t, "clang-19", cSource)
	run(t, filepath.Dir(path), "clang-19", "-c", "-O2", "-g", "-gsplit-dwarf=single", "a.c")
	run(t, filepath.Dir(path), "clang-19", "a.o", "-o", "a.out")
	files := &splitFiles{}
	d, addrs := openSplit(t, path, files)
	compare(t, d, addrs, oracle(t, path, addrs))
	if files.open != 1 {
		t.Errorf("%d files are open, want 1", files.open)
	}
	d.Close()
}
