package dwarf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spanflame/spanflame/internal/elffile"
)

// parts are the sections that the fuzzer makes. Those of which it makes none share one.
type parts struct{ info, abbrev, line, str, more, addr, dwo, dwoAbbrev, index []byte }

// fuzzFiles are split units: in a package if there is an index.
type fuzzFiles struct {
	parts *parts
	open  int
}

func (f *fuzzFiles) Package() (*SplitFile, error) {
	if len(f.parts.index) == 0 {
		return nil, fs.ErrNotExist
	}
	return f.file(f.parts.index)
}

func (f *fuzzFiles) Unit(string) (*SplitFile, error) { return f.file(nil) }

func (f *fuzzFiles) Done(error) {}

func (f *fuzzFiles) file(index []byte) (*SplitFile, error) {
	p := f.parts
	raw := elfOf([]string{
		".debug_info.dwo", ".debug_abbrev.dwo", ".debug_str.dwo", ".debug_str_offsets.dwo", ".debug_rnglists.dwo", ".debug_cu_index",
	}, p.dwo, p.dwoAbbrev, p.str, p.more, p.more, index)
	e, err := elffile.Open(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		return nil, err
	}
	f.open++
	return &SplitFile{File: e, Fresh: func() error { return nil }, Close: func() { f.open-- }}, nil
}

// elfOf makes an ELF file of sections.
func elfOf(names []string, data ...[]byte) []byte {
	le := binary.LittleEndian
	out := append([]byte(elf.ELFMAG+"\x02\x01\x01"), make([]byte, 57)...)
	strs := []byte{0}
	heads := slices.Repeat([]byte{0}, 64)
	add := func(name string, typ elf.SectionType, b []byte) {
		h := make([]byte, 64)
		le.PutUint32(h, uint32(len(strs)))
		le.PutUint32(h[4:], uint32(typ))
		le.PutUint64(h[24:], uint64(len(out)))
		le.PutUint64(h[32:], uint64(len(b)))
		strs = append(append(strs, name...), 0)
		out = append(out, b...)
		heads = append(heads, h...)
	}
	for i, name := range names {
		add(name, elf.SHT_PROGBITS, data[i])
	}
	add("", elf.SHT_STRTAB, strs)
	le.PutUint64(out[40:], uint64(len(out)))
	le.PutUint16(out[58:], 64)
	le.PutUint16(out[60:], uint16(len(heads)/64))
	le.PutUint16(out[62:], uint16(len(heads)/64-1))
	return append(out, heads...)
}

func (p *parts) data(files SplitFiles) *Data {
	sec := func(b []byte) *section { return &section{mem: append([]byte{0}, b...)[1:], size: uint64(len(b))} }
	d := &Data{
		info: sec(p.info), abbrev: sec(p.abbrev), line: sec(p.line), str: sec(p.str), lineStr: sec(p.more),
		ranges: sec(p.more), rnglists: sec(p.more), addr: sec(p.addr), strOffsets: sec(p.more),
		loaded: map[int]*unit{}, abbrevs: map[uint64]*abbrevTable{}, work: new(int64), splits: files,
	}
	d.alt = &Data{
		info: d.info, abbrev: d.abbrev, line: d.line, str: d.str, lineStr: d.str, ranges: d.ranges, rnglists: d.rnglists,
		addr: d.addr, strOffsets: d.strOffsets, loaded: map[int]*unit{}, abbrevs: map[uint64]*abbrevTable{}, work: d.work,
	}
	return d
}

// seed takes the sections of a program; those of split units from another file.
func seed(tb testing.TB, prog, units string) *parts {
	p := &parts{}
	get := func(path, name string, to *[]byte) {
		file := open(tb, path)
		if s := file.Section(name); s != nil {
			b, err := file.Data(s, 1<<20)
			if err != nil {
				tb.Fatal(err)
			}
			*to = b
		}
	}
	get(prog, ".debug_info", &p.info)
	get(prog, ".debug_abbrev", &p.abbrev)
	get(prog, ".debug_line", &p.line)
	get(prog, ".debug_str", &p.str)
	get(prog, ".debug_line_str", &p.more)
	if units != "" {
		get(prog, ".debug_addr", &p.addr)
		get(prog, ".debug_ranges", &p.more)
		get(prog, ".debug_rnglists", &p.more)
		get(units, ".debug_info.dwo", &p.dwo)
		get(units, ".debug_abbrev.dwo", &p.dwoAbbrev)
		get(units, ".debug_cu_index", &p.index)
	}
	return p
}

// FuzzFind reads debugging information that is anything: it must end soon, and not take
// much.
func FuzzFind(f *testing.F) {
	add := func(p *parts) { f.Add(p.info, p.abbrev, p.line, p.str, p.more, p.addr, p.dwo, p.dwoAbbrev, p.index) }
	add(&parts{
		info:   []byte("\x0c\x00\x00\x00\x04\x00\x00\x00\x00\x00\x08\x01\x00\x00\x00\x00"),
		abbrev: []byte("\x01\x11\x01\x10\x17\x00\x00\x00"),
	})
	const source = "static inline int g(int x) { return x * x; }\nint h(int x) { return g(x) + g(x + 1); }\n"
	for _, version := range []string{"-gdwarf-4", "-gdwarf-5"} {
		if _, err := exec.LookPath("gcc"); err != nil {
			break
		}
		add(seed(f, compile(f, "gcc", source, "-O2", "-c", version), ""))
		prog := compile(f, "gcc", source, "-O2", "-shared", "-nostdlib", "-fPIC", "-gsplit-dwarf", version)
		units, err := filepath.Glob(filepath.Join(filepath.Dir(prog), "*.dwo"))
		if err != nil || len(units) != 1 {
			f.Fatal(units, err)
		}
		add(seed(f, prog, units[0]))
		if _, err := exec.LookPath("llvm-dwp-19"); err == nil {
			run(f, filepath.Dir(prog), "llvm-dwp-19", "-e", prog, "-o", prog+".dwp")
			p := seed(f, prog, prog+".dwp")
			add(p)
			d := p.data(&fuzzFiles{parts: p})
			calls, err := d.Find(open(f, prog).Section(".text").Addr)
			if err != nil || len(calls) == 0 || d.pack == nil {
				f.Fatalf("%s: %v, %v: the seed is none", version, calls, err)
			}
		}
	}
	f.Fuzz(func(t *testing.T, info, abbrev, line, str, more, addr, dwo, dwoAbbrev, index []byte) {
		p := &parts{info, abbrev, line, str, more, addr, dwo, dwoAbbrev, index}
		files := &fuzzFiles{parts: p}
		d := p.data(files)
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
			t.Errorf("%d bytes took %s", len(info)+len(abbrev)+len(line)+len(str)+len(more)+len(dwo)+len(index), took)
		}
		if n := d.Bytes(); n > 16<<20 {
			t.Errorf("%d bytes are held", n)
		}
		if files.open != d.OpenFiles() || files.open > maxSplitOpen+1 {
			t.Errorf("%d files are open, %d are counted", files.open, d.OpenFiles())
		}
		d.Close()
		if files.open != 0 {
			t.Errorf("%d files are open after the end", files.open)
		}
	})
}
