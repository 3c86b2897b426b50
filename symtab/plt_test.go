package symtab

import (
	"bufio"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPLT compares the names of stubs with those that objdump gives them.
func TestPLT(t *testing.T) {
	for _, flags := range [][]string{nil, {"-fcf-protection=none"}, {"-fcf-protection"}, {"-Wl,-z,now"}, {"-Wl,-z,lazy", "-no-pie"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			prog := compile(t, "g++", "inlined.cc", flags...)
			f := openELF(t, prog)
			m := moduleOf(t, newCache(t, Options{}), prog, dirRoot("/"))
			head := regexp.MustCompile(`^([0-9a-f]+) <(.*)@plt>:$`)
			line := regexp.MustCompile(`^ +([0-9a-f]+):`)
			want, places := "", 0
			out := run(t, ".", "objdump", "-d", "-C", "-j", ".plt", "-j", ".plt.sec", "-j", ".plt.got", prog)
			for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
				if h := head.FindStringSubmatch(s.Text()); h != nil {
					want = h[2]
					continue
				}
				l := line.FindStringSubmatch(s.Text())
				if l == nil || want == "" || strings.HasSuffix(s.Text(), "<.plt>") {
					if l == nil {
						want = ""
					}
					continue
				}
				addr, err := strconv.ParseUint(l[1], 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				off, ok := f.OffsetOf(VirtAddr(addr))
				if !ok {
					t.Fatalf("%#x is not in the file", addr)
				}
				places++
				if got := m.Frames(off); len(got) != 1 || got[0].Name != want+"@plt" {
					t.Errorf("%#x: %+v, want %s@plt", addr, got, want)
				}
			}
			if places < 3 {
				t.Errorf("only %d places compared in\n%s", places, out)
			}
		})
	}
}
