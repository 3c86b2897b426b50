package symtab

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spanflame/spanflame/internal/elffile"
)

// TestDebugInfo has frames of inlined functions, with lines: from the file itself, from a
// file apart, and without the inlined ones.
func TestDebugInfo(t *testing.T) {
	prog := compile(t, "g++", "inlined.cc", "-O2", "-g")
	dir := filepath.Dir(prog)
	run(t, dir, "objcopy", "--only-keep-debug", prog, prog+".debug")
	run(t, dir, "objcopy", "-S", "--add-gnu-debuglink="+prog+".debug", prog, prog+".stripped")
	dwz := prog + ".dwz"
	if _, err := exec.LookPath("dwz"); err == nil {
		run(t, dir, "cp", prog, dwz)
		run(t, dir, "cp", prog, dwz+"2")
		run(t, dir, "dwz", "-m", dir+"/common", "-M", "./common", dwz, dwz+"2")
	} else {
		t.Log("dwz is not installed: common files are not tested")
		dwz = prog
	}
	addr := textAddr(t, prog, "_ZN4shop4Cart5totalEl")
	for _, tt := range []struct {
		name, path string
		opts       Options
		want       [][]string // of an address in the loop: names
	}{
		{"itself", prog, Options{Inline: true}, [][]string{{"shop::price(long)", "shop::Cart::total(long)"}, {"price", "shop::Cart::total(long)"}}},
		{"apart", prog + ".stripped", Options{Inline: true}, [][]string{{"shop::price(long)", "shop::Cart::total(long)"}, {"price", "shop::Cart::total(long)"}}},
		{"with a common file", dwz, Options{Inline: true}, [][]string{{"shop::price(long)", "shop::Cart::total(long)"}, {"price", "shop::Cart::total(long)"}}},
		{"not inlined", prog, Options{}, [][]string{{"shop::Cart::total(long)"}}},
		{"not demangled", prog, Options{Inline: true, Demangle: "none"}, [][]string{{"_ZN4shopL5priceEl", "_ZN4shop4Cart5totalEl"}, {"price", "_ZN4shop4Cart5totalEl"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCache(t, tt.opts)
			m := moduleOf(t, c, tt.path, dirRoot("/"))
			off, ok := openELF(t, tt.path).OffsetOf(VirtAddr(addr))
			if !ok {
				t.Fatal("the function is not in the file")
			}
			hits := 0
			for i := range FileOffset(60) {
				frames := m.Frames(off + i)
				var names []string
				for _, f := range frames {
					names = append(names, f.Name)
				}
				if slices.ContainsFunc(tt.want, func(w []string) bool { return slices.Equal(w, names) }) {
					hits++
				}
				for j, f := range frames {
					if !strings.HasSuffix(f.File, "/inlined.cc") || f.Line < 3 || f.Line > 11 {
						t.Fatalf("frame %d at +%d: %+v", j, i, f)
					}
				}
				if len(frames) == 2 && frames[1].Line != 10 {
					t.Errorf("the call is in line %d, want 10", frames[1].Line)
				}
			}
			if hits < 10 {
				t.Errorf("%d of 60 addresses have the frames %v; the first has %+v", hits, tt.want, m.Frames(off))
			}
			if n, bytes := m.Size(); n == 0 || bytes > 4<<20 {
				t.Errorf("%d functions, %d bytes", n, bytes)
			}
		})
	}
}

func openELF(t *testing.T, path string) *elffile.File {
	t.Helper()
	f, err := dirRoot("/").Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	e, err := elffile.Open(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return e
}
