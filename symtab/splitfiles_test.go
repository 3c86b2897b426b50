package symtab

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// openSplits are the files of split units that this process has open.
func openSplits(t *testing.T) (names []string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		name, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && (strings.Contains(name, ".dwo") || strings.Contains(name, ".dwp")) {
			names = append(names, name)
		}
	}
	return names
}

// TestSplitUnits has the inlined functions of split units, which are found in the root of
// the target, and else the function and lines that the program itself tells.
func TestSplitUnits(t *testing.T) {
	const unit = "prog-inlined.dwo"
	for _, tt := range []struct {
		name, flags, compDir string
		in                   string // where in the root the units are
		pack, other          bool
		result               string
	}{
		{"file", "-gdwarf-5", "/build", "/build/" + unit, false, false, "read"},
		{"file of version 4", "-gdwarf-4", "/build", "/build/" + unit, false, false, "read"},
		{"relative compilation directory", "-gdwarf-5", ".", "/app/" + unit, false, false, "read"},
		{"package", "-gdwarf-4", "/build", "/app/prog.dwp", true, false, "read"},
		{"package in a debug directory", "-gdwarf-4", "/build", "/usr/lib/debug/app/prog.dwp", true, false, "read"},
		{"missing", "-gdwarf-5", "/build", "", false, false, "missing"},
		{"missing of version 4", "-gdwarf-4", "/build", "", false, false, "missing"},
		{"elsewhere", "-gdwarf-5", "/build", "/" + unit, false, false, "missing"},
		{"of another build", "-gdwarf-5", "/build", "/build/" + unit, false, true, "other_build"},
		{"of another build of version 4", "-gdwarf-4", "/build", "/build/" + unit, false, true, "other_build"},
		{"package of another build", "-gdwarf-4", "/build", "/app/prog.dwp", true, true, "other_build"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src, err := os.ReadFile("testdata/src/inlined.cc")
			if err != nil {
				t.Fatal(err)
			}
			build := func(src string) string {
				dir := t.TempDir()
				if err := os.WriteFile(dir+"/inlined.cc", []byte(src), 0o600); err != nil {
					t.Fatal(err)
				}
				run(t, dir, "g++", "-O2", "-gsplit-dwarf", tt.flags, "-fdebug-prefix-map="+dir+"="+tt.compDir, "inlined.cc", "-o", "prog")
				return dir
			}
			dir := build(string(src))
			from := dir
			if tt.other {
				from = build(strings.ReplaceAll(string(src), "price", "prize"))
			}
			if from += "/" + unit; tt.pack {
				run(t, filepath.Dir(from), "llvm-dwp-19", from, "-o", "prog.dwp")
				from = filepath.Dir(from) + "/prog.dwp"
			}
			root := t.TempDir()
			put := func(from, to string) {
				raw, err := os.ReadFile(from)
				if err == nil {
					err = os.MkdirAll(filepath.Dir(root+to), 0o700)
				}
				if err == nil {
					err = os.WriteFile(root+to, raw, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if tt.in != "" {
				put(from, tt.in)
			}
			put(dir+"/prog", "/app/prog")
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err) // not to be found outside of the root
			}

			c := newCache(t, Options{Inline: true})
			m := c.Module(FileID{}, "/app/prog", func() (*os.File, error) { return os.Open(root + "/app/prog") }, dirRoot(root))
			off, ok := openELF(t, root+"/app/prog").OffsetOf(VirtAddr(textAddr(t, root+"/app/prog", "_ZN4shop4Cart5totalEl")))
			if !ok {
				t.Fatal("the function is not in the file")
			}
			_ = m.HasFunctions()
			if open := openSplits(t); len(open) > 0 {
				t.Errorf("%v are open before an address was asked for", open)
			}
			inlined := 0
			for i := range FileOffset(60) {
				frames := m.Frames(off + i)
				if len(frames) == 0 {
					break
				}
				var names []string
				for _, f := range frames {
					names = append(names, f.Name)
					if !strings.HasSuffix(f.File, "inlined.cc") || f.Line < 3 || f.Line > 11 {
						t.Errorf("frames at +%d: %+v", i, frames)
					}
				}
				switch {
				case tt.result == "read" && (slices.Equal(names, []string{"shop::price(long)", "shop::Cart::total(long)"}) ||
					slices.Equal(names, []string{"price", "shop::Cart::total(long)"})):
					inlined++
					if frames[1].Line != 10 {
						t.Errorf("the call is in line %d, want 10", frames[1].Line)
					}
				case !slices.Equal(names, []string{"shop::Cart::total(long)"}):
					t.Errorf("frames at +%d: %+v", i, frames)
				}
			}
			if (inlined >= 10) != (tt.result == "read") {
				t.Errorf("%d addresses are in the inlined function", inlined)
			}
			if n := testutil.ToFloat64(c.metrics.splits.WithLabelValues(tt.result)); n != 1 {
				t.Errorf("%v units are counted as %s, want 1", n, tt.result)
			}
			open, counted := openSplits(t), m.state.Load().files()-1
			if len(open) != counted || tt.result == "read" && counted != 1 {
				t.Errorf("%v are open, %d are counted", open, counted)
			}
			c.Expire(time.Now().Add(time.Hour))
			if open := openSplits(t); len(open) > 0 {
				t.Errorf("%v are open after the table was evicted", open)
			}
		})
	}
}

// TestSplitUnitChanges reads a split unit that is replaced in place no more.
func TestSplitUnitChanges(t *testing.T) {
	prog := compile(t, "g++", "inlined.cc", "-O2", "-g", "-gsplit-dwarf")
	units, err := filepath.Glob(filepath.Dir(prog) + "/*.dwo")
	if err != nil || len(units) != 1 {
		t.Fatal(units, err)
	}
	c := newCache(t, Options{Inline: true})
	m := moduleOf(t, c, prog, dirRoot("/"))
	off, _ := openELF(t, prog).OffsetOf(VirtAddr(textAddr(t, prog, "_ZN4shop4Cart5totalEl")))
	depth := func(from, to FileOffset) (most int) {
		for i := from; i < to; i++ {
			most = max(most, len(m.Frames(off+i)))
		}
		return most
	}
	if n := depth(0, 24); n != 2 {
		t.Fatalf("%d frames, want 2", n)
	}
	raw, err := os.ReadFile(units[0])
	if err == nil {
		err = os.WriteFile(units[0], make([]byte, len(raw)+1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := depth(24, 48); n != 1 {
		t.Errorf("%d frames of a unit that has changed, want 1", n)
	}
	if n := testutil.ToFloat64(c.metrics.splits.WithLabelValues("error")); n != 1 {
		t.Errorf("%v errors are counted, want 1", n)
	}
}

// TestSplitUnitsAreFiles counts the files of split units among those that may be open.
func TestSplitUnitsAreFiles(t *testing.T) {
	c := newCache(t, Options{Inline: true, MaxFiles: 3})
	for range 3 {
		prog := compile(t, "g++", "inlined.cc", "-O2", "-g", "-gsplit-dwarf")
		m := moduleOf(t, c, prog, dirRoot("/"))
		off, _ := openELF(t, prog).OffsetOf(VirtAddr(textAddr(t, prog, "_ZN4shop4Cart5totalEl")))
		m.Frames(off)
	}
	// The third was loaded when there were two, of two files each.
	if n, open := c.Stats().Tables, len(openSplits(t)); n != 2 || open != 2 {
		t.Errorf("%d tables and %d split units are held, want 2 and 2", n, open)
	}
	c.Expire(time.Now())
	if n, open := c.Stats().Tables, len(openSplits(t)); n != 1 || open != 1 {
		t.Errorf("%d tables and %d split units are held after a round, want 1 and 1", n, open)
	}
}

// TestSplitSameID has a unit of another build whose id is the same, as gcc gives it where
// only the code has changed: no function may get another's name by it.
func TestSplitSameID(t *testing.T) {
	const source = `
static inline __attribute__((always_inline)) long inner(long x) { volatile long y = x; return y / 2; }
__attribute__((noinline)) long first(long x) { __asm__(".skip NUMBER"); return inner(x); }
__attribute__((noinline)) long second(long x) { return inner(x) + 1; }
__attribute__((noinline)) long third(long x) { return inner(x) + 2; }
int main(int n, char **v) { (void)v; return (int)(first(n) + second(n) + third(n)); }
`
	dir, root := t.TempDir(), t.TempDir() // the id depends on the folder
	keep := func(number, file, as string) {
		if err := os.WriteFile(dir+"/a.cc", []byte(strings.ReplaceAll(source, "NUMBER", number)), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, dir, "g++", "-O2", "-gsplit-dwarf", "-gdwarf-5", "-fdebug-prefix-map="+dir+"=/build", "a.cc", "-o", "prog")
		if err := os.MkdirAll(filepath.Dir(root+as), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(dir+"/"+file, root+as); err != nil {
			t.Fatal(err)
		}
	}
	keep("10", "prog", "/app/prog")               // as wide: columns are part of the id
	keep("64", "prog-a.dwo", "/build/prog-a.dwo") // in which what comes behind begins further on
	c := newCache(t, Options{Inline: true})
	m := c.Module(FileID{}, "/app/prog", func() (*os.File, error) { return os.Open(root + "/app/prog") }, dirRoot(root))
	for symbol, name := range map[string]string{"_Z5firstl": "first(long)", "_Z6secondl": "second(long)", "_Z5thirdl": "third(long)"} {
		off, ok := openELF(t, root+"/app/prog").OffsetOf(VirtAddr(textAddr(t, root+"/app/prog", symbol)))
		if !ok {
			t.Fatalf("%s is not in the file", name)
		}
		for i := range FileOffset(16) {
			if frames := m.Frames(off + i); len(frames) == 0 || frames[len(frames)-1].Name != name {
				t.Errorf("%s+%d: %v", name, i, frames)
				break
			}
		}
	}
	if n := testutil.ToFloat64(c.metrics.splits.WithLabelValues("read")); n != 1 {
		t.Errorf("%v units were read, %v of another build, %v missing: this tests nothing", n,
			testutil.ToFloat64(c.metrics.splits.WithLabelValues("other_build")), testutil.ToFloat64(c.metrics.splits.WithLabelValues("missing")))
	}
}
