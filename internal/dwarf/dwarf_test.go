package dwarf

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spanflame/spanflame/internal/elffile"
)

const cSource = `#include <stdio.h>
#include <stdlib.h>
static inline int twice(int x) { return x * 2 + (x & 1 ? rand() : 3); }
static inline int fourfold(int x) {
	int y = twice(x);
	for (int i = 0; i < x; i++)
		y += twice(y + i);
	return y;
}
static int cold(int x) { if (x > 100) abort(); return fourfold(x) ^ twice(x); }
int visible(int x) { return cold(x) + fourfold(x + 1); }
int main(int argc, char **argv) {
	(void)argv;
	int s = 0;
	for (int i = 0; i < argc * 10; i++) { s += visible(i); { int j = i * 2; s ^= fourfold(j); } }
	printf("%d\n", s);
	return 0;
}
`

const cxxSource = `#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>
namespace shop {
template <typename T> struct Cart {
	std::vector<T> items;
	void add(T t) { items.push_back(t); if (items.size() > 1000) throw std::runtime_error("full"); }
	T total() const { T s{}; for (auto &i : items) s += i; return s; }
};
namespace { int hidden(int x) { return std::max(x, 7) * 3; } }
int sorted(std::vector<int> &v) {
	std::sort(v.begin(), v.end(), [](int a, int b) { return hidden(a) < hidden(b); });
	return v.empty() ? 0 : v.front();
}
}
int main(int argc, char **argv) {
	shop::Cart<double> c;
	std::map<std::string, int> m;
	std::vector<int> v;
	try {
		for (int i = 0; i < argc * 100; i++) { c.add(i); m[argv[0] + std::to_string(i)]++; v.push_back(i * 37 % 101); }
	} catch (const std::exception &e) { return 2; }
	return int(c.total()) + int(m.size()) + shop::sorted(v) > 3;
}
`

// compile builds a program and returns its path.
func compile(t testing.TB, compiler, source string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("%s is needed: %v", compiler, err)
	}
	dir := t.TempDir()
	name := "a.c"
	if strings.Contains(compiler, "+") {
		name = "a.cc"
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(compiler, append([]string{name, "-o", "a.out", "-g"}, flags...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("%s %v: %v\n%s", compiler, flags, err, out)
	}
	return filepath.Join(dir, "a.out")
}

func open(t testing.TB, path string) *elffile.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	ef, err := elffile.Open(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return ef
}

// oracle asks llvm-addr2line for the functions and lines of addresses.
func oracle(t testing.TB, path string, addrs []uint64) [][]Call {
	t.Helper()
	const tool = "llvm-addr2line-19"
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("%s is needed: %v", tool, err)
	}
	var in bytes.Buffer
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", a)
	}
	cmd := exec.Command(tool, "-a", "-f", "-i", "-e", path)
	cmd.Stdin = &in
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var out [][]Call
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text := lines.Text()
		if strings.HasPrefix(text, "0x") {
			out = append(out, nil)
			continue
		}
		if !lines.Scan() {
			t.Fatal("a function without a line")
		}
		file, number, _ := cutLast(lines.Text())
		number, _, _ = strings.Cut(number, " ")
		c := Call{Linkage: text, File: file}
		c.Line, _ = strconv.Atoi(number)
		out[len(out)-1] = append(out[len(out)-1], c)
	}
	if len(out) != len(addrs) {
		t.Fatalf("%d answers to %d questions", len(out), len(addrs))
	}
	return out
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// TestAgainstAddr2line compares every address of programs with addr2line's answer.
func TestAgainstAddr2line(t *testing.T) {
	for _, tt := range []struct {
		compiler, source string
		flags            []string
	}{
		{"gcc", cSource, []string{"-O2", "-gdwarf-5"}},
		{"gcc", cSource, []string{"-O2", "-gdwarf-4"}},
		{"gcc", cSource, []string{"-O2", "-gdwarf-3"}},
		{"gcc", cSource, []string{"-O0"}},
		{"gcc", cSource, []string{"-O3", "-gz=zlib", "-ffunction-sections", "-Wl,--gc-sections"}},
		{"gcc", cSource, []string{"-O2", "-no-pie", "-freorder-blocks-and-partition"}},
		{"clang-19", cSource, []string{"-O2", "-gdwarf-5"}},
		{"clang-19", cSource, []string{"-O2", "-gdwarf-4"}},
		{"clang-19", cSource, []string{"-O1", "-gdwarf64", "-gdwarf-5"}},
		{"g++", cxxSource, []string{"-O2", "-gdwarf-5"}},
		{"g++", cxxSource, []string{"-O2", "-gdwarf-4"}},
		{"g++", cxxSource, []string{"-O0"}},
		{"clang++-19", cxxSource, []string{"-O2", "-gdwarf-5"}},
		{"clang++-19", cxxSource, []string{"-O2", "-gdwarf-4", "-gz=zstd"}},
	} {
		t.Run(tt.compiler+strings.Join(tt.flags, ""), func(t *testing.T) {
			path := compile(t, tt.compiler, tt.source, tt.flags...)
			f := open(t, path)
			d, err := Open(f, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			text := f.Section(".text")
			var addrs []uint64
			for a := uint64(text.Addr); a < uint64(text.Addr)+text.Len; a++ {
				addrs = append(addrs, a)
			}
			compare(t, d, addrs, oracle(t, path, addrs))
		})
	}
}

var aliases = strings.NewReplacer("C1E", "C2E", "D1E", "D2E", "C1I", "C2I")

// compare tells where the answers differ. Where debugging information has no function,
// addr2line asks the symbol table, which is not this package's to know.
func compare(t *testing.T, d *Data, addrs []uint64, want [][]Call) {
	t.Helper()
	known, inlined, wrong := 0, 0, 0
	for i, a := range addrs {
		got, err := d.Find(elffile.VirtAddr(a))
		if err != nil {
			t.Fatalf("%#x: %v", a, err)
		}
		if got == nil {
			if w := want[i]; len(w) > 1 || w[0].Line != 0 && w[0].Linkage != "??" {
				wrong++
				t.Errorf("%#x: nothing, want %+v", a, w)
			}
			continue
		}
		known++
		if len(got) > 1 {
			inlined++
		}
		same := len(got) == len(want[i])
		for j := 0; same && j < len(got); j++ {
			name := got[j].Linkage
			if name == "" {
				name = got[j].Name
			}
			w := want[i][j]
			// Complete and base constructors are one where they are the same.
			w.Linkage, name = aliases.Replace(w.Linkage), aliases.Replace(name)
			if w.File == "??" {
				w.File = ""
			}
			if got[j].Line == 0 {
				got[j].File = w.File
			}
			if j == len(got)-1 {
				// The symbol table has its say there: "visible.cold".
				w.Linkage, _, _ = strings.Cut(w.Linkage, ".")
				if got[j].Linkage == "" && strings.HasPrefix(w.Linkage, "_Z") {
					w.Linkage = name // as the symbol table has it
				}
			}
			same = name == w.Linkage && filepath.Clean(got[j].File) == filepath.Clean(w.File) && got[j].Line == w.Line
		}
		if !same {
			wrong++
			t.Errorf("%#x: %+v\n\twant %+v", a, got, want[i])
		}
		if wrong > 10 {
			t.Fatal("and so on")
		}
	}
	if known < 100 {
		t.Errorf("only %d addresses are known", known)
	}
	t.Logf("%d addresses, %d known, %d in inlined functions, %d bytes kept", len(addrs), known, inlined, d.Bytes())
}

func TestNone(t *testing.T) {
	f := open(t, compile(t, "gcc", cSource, "-s"))
	if _, err := Open(f, nil, nil); !errors.Is(err, ErrNone) || Has(f) {
		t.Errorf("%v, want %v", err, ErrNone)
	}
}
