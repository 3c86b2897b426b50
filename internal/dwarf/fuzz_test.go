package dwarf

import (
	"os/exec"
	"testing"
	"time"

	"github.com/spanflame/spanflame/internal/elffile"
)

// FuzzFind reads debugging information that is anything: it must end soon, and not take
// much.
func FuzzFind(f *testing.F) {
	f.Add([]byte("\x0c\x00\x00\x00\x04\x00\x00\x00\x00\x00\x08\x01\x00\x00\x00\x00"), []byte("\x01\x11\x01\x10\x17\x00\x00\x00"), []byte{}, []byte{}, []byte{})
	for _, version := range []string{"-gdwarf-4", "-gdwarf-5"} {
		if _, err := exec.LookPath("gcc"); err != nil {
			break // the corpus in testdata is there
		}
		file := open(f, compile(f, "gcc", "static inline int g(int x) { return x * x; }\nint h(int x) { return g(x) + g(x + 1); }\n", "-O2", "-c", version))
		var parts [5][]byte
		for i, name := range []string{".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_line_str"} {
			if s := file.Section(name); s != nil {
				b, err := file.Data(s, 1<<20)
				if err != nil {
					f.Fatal(err)
				}
				parts[i] = b
			}
		}
		f.Add(parts[0], parts[1], parts[2], parts[3], parts[4])
	}
	f.Fuzz(func(t *testing.T, info, abbrev, line, str, more []byte) {
		sec := func(b []byte) *section { return &section{mem: append([]byte{0}, b...)[1:], size: uint64(len(b))} }
		d := &Data{
			info: sec(info), abbrev: sec(abbrev), line: sec(line), str: sec(str), lineStr: sec(more),
			ranges: sec(more), rnglists: sec(more), addr: sec(more), strOffsets: sec(more),
			loaded: map[int]*unit{}, abbrevs: map[uint64]*abbrevTable{},
		}
		d.alt = &Data{
			info: d.info, abbrev: d.abbrev, line: d.line, str: d.str, lineStr: d.str, ranges: d.ranges, rnglists: d.rnglists,
			addr: d.addr, strOffsets: d.strOffsets, loaded: map[int]*unit{}, abbrevs: map[uint64]*abbrevTable{},
		}
		begun := time.Now()
		for _, a := range []uint64{0, 1, 0x10, 0x1000, 1 << 40} {
			calls, _ := d.Find(elffile.VirtAddr(a))
			if len(calls) > maxInlined {
				t.Errorf("%d calls", len(calls))
			}
		}
		for _, s := range d.spans[:min(len(d.spans), 16)] {
			_, _ = d.Find(elffile.VirtAddr(s.lo))
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("%d bytes took %s", len(info)+len(abbrev)+len(line)+len(str)+len(more), took)
		}
		if n := d.Bytes(); n > 16<<20 {
			t.Errorf("%d bytes are held", n)
		}
	})
}
