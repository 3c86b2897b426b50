package symtab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// raw keeps names as they are, to compare them with the oracle's.
var raw = Options{Demangle: "none"}

func TestNamesOfCompiledFiles(t *testing.T) {
	for _, tc := range []struct {
		name, compiler, source string
		flags                  []string
	}{
		{"c", "gcc", "c.c", nil},
		{"c not position independent", "gcc", "c.c", []string{"-no-pie"}},
		{"c static", "gcc", "c.c", []string{"-static"}},
		{"c with data in the code's segment", "gcc", "c.c", []string{"-Wl,-z,noseparate-code"}},
		{"c++", "g++", "cpp.cc", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			prog := compile(t, tc.compiler, tc.source, tc.flags...)
			m := moduleOf(t, newCache(t, raw), prog, nil)
			if err := m.Err(); err != nil {
				t.Fatal(err)
			}
			newOracle(t, prog).checkAll(t, m, 2000)
		})
	}
}

// TestNamesOfSystemFiles reads what is on every machine, and large files where they are.
func TestNamesOfSystemFiles(t *testing.T) {
	for _, pattern := range []string{
		"/lib/*-linux-gnu/libc.so.6", "/usr/lib/*-linux-gnu/libstdc++.so.6",
		"/usr/lib/jvm/*/lib/server/libjvm.so", "/usr/bin/node",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			t.Run(file, func(t *testing.T) {
				if (testing.Short() || raceDetector) && !strings.Contains(file, "libc.so") {
					t.Skip("large files are left out of short runs, and of those under the race detector")
				}
				m := moduleOf(t, newCache(t, raw), file, nil)
				if err := m.Err(); err != nil {
					t.Fatal(err)
				}
				newOracle(t, file).checkAll(t, m, 20000)
			})
		}
	}
}

// symbolAddr is the address of a symbol, by nm.
func symbolAddr(t *testing.T, prog, name string) uint64 {
	t.Helper()
	for line := range strings.Lines(run(t, ".", "nm", prog)) {
		if w := strings.Fields(line); len(w) == 3 && w[2] == name {
			var a uint64
			if _, err := fmt.Sscanf(w[0], "%x", &a); err != nil {
				t.Fatal(err)
			}
			return a
		}
	}
	t.Fatalf("no symbol %s in %s", name, prog)
	return 0
}

func TestChoiceOfNames(t *testing.T) {
	prog := compile(t, "gcc", "c.c")
	m := moduleOf(t, newCache(t, Options{}), prog, nil)
	o := newOracle(t, prog)
	at := func(symbol string, plus uint64) string {
		fr := m.Frames(FileOffset(o.offset(symbolAddr(t, prog, symbol) + plus)))
		if fr == nil {
			return ""
		}
		return fr[0].Name
	}
	for _, tc := range []struct {
		symbol string
		plus   uint64
		want   string
	}{
		{"global_fn", 0, "global_fn"},
		{"__plain_alias", 1, "global_fn"}, // fewest underscores, and the first of two such
		{"nested_outer", 0, "nested_outer"},
		{"nested_outer", 3, "nested_outer"},
		{"nested_inner", 0, "nested_inner"},
		{"nested_inner", 1, "nested_inner"},
		{"nested_inner", 2, "nested_outer"}, // behind the inner one
		{"sizeless", 0, "sizeless"},
		{"sizeless", 1, ""},
		{"bare_label", 0, ""},
		{"sized_label", 1, "sized_label"},
		{"sized_label", 3, ""},
		{"weak_fn", 0, "weak_fn"},
	} {
		got := at(tc.symbol, tc.plus)
		if tc.symbol == "__plain_alias" && got == "plain_alias" {
			continue // their order in the table is the linker's choice
		}
		if tc.symbol == "global_fn" && got == "plain_alias" {
			continue
		}
		if got != tc.want {
			t.Errorf("%s+%d: %q, want %q", tc.symbol, tc.plus, got, tc.want)
		}
	}
}

func TestDemangling(t *testing.T) {
	prog := compile(t, "g++", "cpp.cc")
	o := newOracle(t, prog)
	off := FileOffset(o.offset(symbolAddr(t, prog, "_ZNK4shop6BasketIiE5countERKSt3mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEiSt4lessIS8_ESaISt4pairIKS8_iEEE")))
	for opt, want := range map[string]string{
		"none":       "_ZNK4shop6BasketIiE5countERKSt3mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEiSt4lessIS8_ESaISt4pairIKS8_iEEE",
		"simplified": "shop::Basket::count",
		"templates":  "shop::Basket<int>::count",
		"full":       "shop::Basket<int>::count(std::map<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, int, std::less<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > >, std::allocator<std::pair<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const, int> > > const&) const",
	} {
		m := moduleOf(t, newCache(t, Options{Demangle: opt}), prog, nil)
		if fr := m.Frames(off); fr == nil || fr[0].Name != want {
			t.Errorf("%s: %+v, want %s", opt, fr, want)
		}
	}
	for _, tc := range []struct{ in, want string }{
		{"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"},
		{"_RNvCs1234_7mycrate3foo", "mycrate::foo"},
		{"plain", "plain"},
		{"_start", "_start"},
		{"_Z" + strings.Repeat("1", 20<<10), "_Z" + strings.Repeat("1", 20<<10)},
	} {
		if got := demangler("full")(tc.in); got != tc.want {
			t.Errorf("demangle %.80s: %.80s, want %s", tc.in, got, tc.want)
		}
	}
	if err := (Options{Demangle: "some"}).Validate(); err == nil {
		t.Error("a wrong value of Demangle was accepted")
	}
}

// stripped makes a copy without .symtab.
func stripped(t *testing.T, prog string) string {
	out := filepath.Join(t.TempDir(), filepath.Base(prog))
	run(t, ".", "strip", "-s", "-o", out, prog)
	return out
}

func TestSeparateDebugFiles(t *testing.T) {
	prog := compile(t, "gcc", "c.c", "-g", "-Wl,--build-id")
	bare := stripped(t, prog)
	dir := t.TempDir()
	debug := filepath.Join(dir, "c.debug")
	run(t, ".", "objcopy", "--only-keep-debug", prog, debug)
	id := moduleOf(t, newCache(t, raw), prog, nil).BuildID()
	if len(id) != 40 {
		t.Fatalf("build id %q", id)
	}
	put := func(root, path, from string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	linked := filepath.Join(dir, "linked")
	run(t, dir, "objcopy", "--add-gnu-debuglink=c.debug", bare, linked)
	noID := filepath.Join(dir, "noid") // only the checksum tells
	run(t, dir, "objcopy", "--remove-section=.note.gnu.build-id", linked, noID)
	other := compile(t, "gcc", "c.c", "-g", "-O0", "-Wl,--build-id")
	otherDebug := filepath.Join(dir, "other.debug")
	run(t, ".", "objcopy", "--only-keep-debug", other, otherDebug)
	byID := "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"

	for _, tc := range []struct {
		name, prog, path, debug string
		found                   bool
	}{
		{"by build id", bare, byID, debug, true},
		{"by build id, of another build", bare, byID, otherDebug, false},
		{"beside the program", linked, "/opt/c.debug", debug, true},
		{"in .debug", linked, "/opt/.debug/c.debug", debug, true},
		{"in the debug directory", linked, "/usr/lib/debug/opt/c.debug", debug, true},
		{"by checksum", noID, "/opt/c.debug", debug, true},
		{"wrong checksum", noID, "/opt/c.debug", otherDebug, false},
		{"link to another build", linked, "/opt/c.debug", otherDebug, false},
		{"no debug file", linked, "/opt/unrelated", debug, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			put(root, tc.path, tc.debug)
			put(root, "/opt/prog", tc.prog)
			c := newCache(t, raw)
			m := c.Module(FileID{}, "/opt/prog", func() (*os.File, error) { return dirRoot(root).Open("/opt/prog") }, dirRoot(root))
			if tc.found {
				newOracle(t, tc.prog, debug).checkAll(t, m, 500)
				return
			}
			off := FileOffset(newOracle(t, prog).offset(symbolAddr(t, prog, "global_fn")))
			if fr := m.Frames(off); fr != nil && fr[0].Name != "global_fn" {
				t.Errorf("named %q by the wrong debug file", fr[0].Name)
			}
			if fr := m.Frames(FileOffset(newOracle(t, prog).offset(symbolAddr(t, prog, "local_fn")))); fr != nil {
				t.Errorf("a local function was named %q", fr[0].Name)
			}
			if tc.debug == otherDebug && !errors.Is(m.Err(), errNotItsDebugFile) {
				t.Errorf("the reason is not told: %v", m.Err())
			}
		})
	}
}

func TestMiniDebugInfo(t *testing.T) {
	prog := compile(t, "gcc", "c.c", "-rdynamic")
	dir := t.TempDir()
	for _, args := range [][]string{nil, {"--check=crc32"}, {"--check=sha256"}, {"--check=none"}, {"--block-size=512", "-T2"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			// As distributions do it: a file with only .symtab, compressed, as a section.
			mini := filepath.Join(t.TempDir(), "mini")
			run(t, ".", "objcopy", "--only-keep-debug", prog, mini)
			run(t, ".", "xz", append([]string{"-k", "-f"}, append(args, mini)...)...)
			out := filepath.Join(dir, "prog")
			run(t, ".", "objcopy", "--add-section", ".gnu_debugdata="+mini+".xz", stripped(t, prog), out)
			m := moduleOf(t, newCache(t, raw), out, nil)
			if err := m.Err(); err != nil {
				t.Fatal(err)
			}
			newOracle(t, out, mini).checkAll(t, m, 500)
			if fr := m.Frames(FileOffset(newOracle(t, prog).offset(symbolAddr(t, prog, "local_fn")))); fr == nil || fr[0].Name != "local_fn" {
				t.Errorf("local_fn: %+v", fr)
			}
		})
	}
	t.Run("broken", func(t *testing.T) {
		bad := filepath.Join(t.TempDir(), "bad.xz")
		if err := os.WriteFile(bad, []byte("\xfd7zXZ\x00 not xz"), 0o644); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(dir, "broken")
		run(t, ".", "objcopy", "--add-section", ".gnu_debugdata="+bad, stripped(t, prog), out)
		m := moduleOf(t, newCache(t, raw), out, nil)
		if m.Err() == nil {
			t.Error("a broken section is not told of")
		}
		newOracle(t, out).checkAll(t, m, 100) // .dynsym goes on to serve
	})
}

func TestVDSO(t *testing.T) {
	m := newCache(t, Options{}).VDSO()
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for off := FileOffset(0); off < 64<<10; off++ {
		for _, fr := range m.Frames(off) {
			found[fr.Name] = true
		}
	}
	want := "clock_gettime"
	for name := range found {
		if strings.Contains(name, want) {
			return
		}
	}
	t.Errorf("no %s among %v", want, found)
}

// TestKnownByCode: what the handlers of signals return to has a name in a program without
// any symbol, and the byte before it, where its call frame information begins, has none.
func TestKnownByCode(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the code is that of x86-64")
	}
	prog := compile(t, "gcc", "c.c", "-static")
	at := symbolAddr(t, prog, "__restore_rt")
	run(t, ".", "strip", "--strip-all", prog)
	f, m := openELF(t, prog), moduleOf(t, newCache(t, Options{}), prog, dirRoot("/"))
	for i := uint64(0); i < 14; i++ {
		off, ok := f.OffsetOf(VirtAddr(at - 2 + i))
		if !ok {
			t.Fatal("it is not in the file")
		}
		want := ""
		if i >= 2 && i <= 11 {
			want = "__restore_rt"
		}
		got := ""
		if fr := m.Frames(off); len(fr) > 0 {
			got = fr[0].Name
		}
		if got != want {
			t.Errorf("%+d: %q, want %q", int(i)-2, got, want)
		}
	}
}
