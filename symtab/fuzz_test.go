package symtab

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spanflame/spanflame/internal/elffile"
)

// tinyELF is a file with one segment, readable and executable, that holds all of it
// at address base, and with the given sections.
func tinyELF(base uint64, sections ...tinySection) []byte {
	const ehdr, phdr, shdr = 64, 56, 64
	var body bytes.Buffer
	names := []byte{0}
	sections = append(sections, tinySection{name: ".shstrtab", typ: elf.SHT_STRTAB})
	headers := make([]elf.Section64, 1, len(sections)+1)
	at := uint64(ehdr + phdr)
	for i := range sections {
		s := &sections[i]
		name := uint32(len(names))
		names = append(append(names, s.name...), 0)
		if s.name == ".shstrtab" {
			s.data = names
		}
		for (at+uint64(body.Len()))%16 != 0 {
			body.WriteByte(0)
		}
		off := at + uint64(body.Len())
		body.Write(s.data)
		headers = append(headers, elf.Section64{Name: name, Type: uint32(s.typ), Flags: uint64(s.flags), Addr: base + off,
			Off: off, Size: uint64(len(s.data)), Link: s.link, Entsize: s.entsize})
	}
	size := at + uint64(body.Len())
	var out bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: ehdr, Shoff: size,
		Ehsize: ehdr, Phentsize: phdr, Phnum: 1, Shentsize: shdr, Shnum: uint16(len(headers)), Shstrndx: uint16(len(headers) - 1)}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = 2, 1, 1
	for _, v := range []any{h, elf.Prog64{Type: 1, Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Filesz: size, Memsz: size}, body.Bytes(), headers} {
		if err := binary.Write(&out, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return out.Bytes()
}

type tinySection struct {
	name    string
	typ     elf.SectionType
	flags   elf.SectionFlag
	link    uint32
	entsize uint64
	data    []byte
}

// tinyProgram has a function in each of its symbol tables.
func tinyProgram() []byte {
	sym := func(name uint32, value uint64) []byte {
		var b bytes.Buffer
		_ = binary.Write(&b, binary.LittleEndian, []elf.Sym64{{}, {Name: name, Info: 0x12, Shndx: 1, Value: value, Size: 16}})
		return b.Bytes()
	}
	return tinyELF(0x400000,
		tinySection{name: ".text", typ: elf.SHT_PROGBITS, data: make([]byte, 64)},
		tinySection{name: ".strtab", typ: elf.SHT_STRTAB, data: []byte("\x00first\x00_Z6secondv\x00")},
		tinySection{name: ".symtab", typ: elf.SHT_SYMTAB, link: 2, entsize: 24, data: sym(1, 0x400080)},
		tinySection{name: ".dynsym", typ: elf.SHT_DYNSYM, link: 2, entsize: 24, data: sym(7, 0x400090)},
		tinySection{name: ".gnu_debuglink", typ: elf.SHT_PROGBITS, data: []byte("a.debug\x00\x01\x02\x03\x04")},
		tinySection{name: ".gnu_debugdata", typ: elf.SHT_PROGBITS, data: []byte("\xfd7zXZ\x00")},
	)
}

// loadBytes reads a program in memory as a module reads a file, and asks for names.
func loadBytes(t testing.TB, b []byte) {
	f, err := elffile.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return
	}
	lay, err := newLayout(f)
	if err != nil {
		return
	}
	c := NewCache(nil, nil, Options{Inline: true, MaxBytes: 1 << 20})
	defer c.Close()
	opts := c.opts
	main := elfSymbols{file: f}
	st := &state{layout: lay, buildID: f.BuildID()}
	if g, err := newGoTable(main, lay, &opts, &c.frames); err == nil && g != nil {
		st.resolvers = append(st.resolvers, g)
	}
	table := &symbolTable{cache: c, main: main, root: func() Root { return nil }, layout: lay, opts: &opts}
	_ = table.load(newLoader())
	if s := table.got.Load(); s != nil {
		if err := s.table.check(); err != nil {
			t.Error(err)
		}
	}
	st.resolvers = append(st.resolvers, table)
	_, _, _ = f.DebugLink()
	for _, s := range lay {
		for k := range FileOffset(256) {
			p, ok := lay.ofOffset(s.off + k*FileOffset(s.size/256+1))
			if !ok {
				continue
			}
			fr, _ := st.frames(p)
			if len(fr) > maxInlineDepth+1 {
				t.Errorf("%d frames", len(fr))
			}
		}
	}
	st.close()
}

func TestTinyProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiny")
	if err := os.WriteFile(path, tinyProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	m := moduleOf(t, newCache(t, Options{}), path, nil)
	for off, want := range map[FileOffset]string{0x7f: "", 0x80: "first", 0x8f: "first", 0x90: "second()", 0x9f: "second()", 0xa0: ""} {
		got := ""
		if fr := m.Frames(off); fr != nil {
			got = fr[0].Name
		}
		if got != want {
			t.Errorf("%#x: %q, want %q (error %v)", off, got, want, m.Err())
		}
	}
}

// The fuzz targets are to be run with -fuzzminimizetime 1x: else the fuzzer spends its
// time making inputs shorter, and passes after a handful of them. Look at "execs".

func FuzzProgram(f *testing.F) {
	f.Add(tinyProgram())
	f.Add(tinyELF(0, tinySection{name: ".gopclntab", typ: elf.SHT_PROGBITS, data: tinyGoTable(go120)}))
	f.Fuzz(func(t *testing.T, b []byte) { loadBytes(t, b) })
}

// tinyGoTable is a table of two functions.
func tinyGoTable(v goVersion) []byte {
	var b []byte
	word := func(x uint64) { b = binary.LittleEndian.AppendUint64(b, x) }
	half := func(x ...uint32) {
		for _, y := range x {
			b = binary.LittleEndian.AppendUint32(b, y)
		}
	}
	magic := map[goVersion]uint32{go12: 0xfffffffb, go116: 0xfffffffa, go118: 0xfffffff0, go120: 0xfffffff1}[v]
	half(magic)
	b = append(b, 0, 0, 1, 8)
	word(2)
	word(1)
	word(0x400080) // start of the code
	const names, cu, files, pcs, funcs = 0x48, 0x58, 0x60, 0x70, 0x80
	for _, off := range []uint64{names, cu, files, pcs, funcs} {
		word(off)
	}
	b = append(b, "main.a\x00main.b\x00\x00\x00"...)
	half(0, 0)
	b = append(b, "/src/main.go\x00\x00\x00\x00"...)
	b = append(b, 0, 2, 16, 0, 20, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // values: file 0 up to 16, line 9 up to 16
	half(0, 20, 16, 20+44, 32)
	for i := range uint32(2) {
		half(i*16, i*7, 0, 0, 0, 1, 4, 0, 0, 1, 0)
	}
	return b
}

// TestTinyGoTable: without moduledata and without code that looks like Go's the
// table is not believed, as where its functions are cannot be known.
func TestTinyGoTable(t *testing.T) {
	b := tinyELF(0x400000,
		tinySection{name: ".text", typ: elf.SHT_PROGBITS, data: make([]byte, 64)},
		tinySection{name: ".gopclntab", typ: elf.SHT_PROGBITS, data: tinyGoTable(go120)})
	f, err := elffile.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	lay, err := newLayout(f)
	if err != nil {
		t.Fatal(err)
	}
	if g, err := newGoTable(elfSymbols{file: f}, lay, &Options{MaxBytes: 1 << 20}, &budget{}); err == nil {
		t.Errorf("believed: %+v", g)
	}
}

func FuzzGoTable(f *testing.F) {
	for _, v := range []goVersion{go12, go116, go118, go120} {
		f.Add(tinyGoTable(v), uint64(0x80))
	}
	f.Fuzz(func(t *testing.T, table []byte, text uint64) {
		b := tinyELF(0x400000,
			tinySection{name: ".text", typ: elf.SHT_PROGBITS, data: make([]byte, 4096)},
			tinySection{name: ".gopclntab", typ: elf.SHT_PROGBITS, data: table})
		file, err := elffile.Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		addr, off, size, ok := findGoTable(file)
		if !ok {
			t.Fatal("the section is not found")
		}
		places := 0
		if _, err := GoFrames(file, func(GoFrame) { places++ }); places > maxGoFrames {
			t.Errorf("%d places, %v", places, err)
		}
		g, err := readGoFuncs(file, addr, off, size)
		if err != nil {
			return
		}
		if g.version >= go118 {
			g.base = 0x400000 + VirtAddr(text%4096)
		}
		bud := &budget{}
		bud.limit.Store(1 << 20)
		tab := &goTable{funcs: g, gofunc: 0x400000, inline: true, strings: map[uint64]string{}}
		tab.cache.budget = bud
		for _, s := range g.starts[:min(len(g.starts), 64)] {
			for _, d := range []uint32{0, 1, 15} {
				fr, _ := tab.frames(position{s + d, g.base + VirtAddr(s) + VirtAddr(d)})
				if len(fr) > maxInlineDepth+1 {
					t.Errorf("%d frames", len(fr))
				}
			}
		}
		_ = g.findGofunc([]uint64{0x400000, 1, ^uint64(0)})
		_, _ = g.locate(layout{{addr: 0x400000, size: uint32(len(b))}})
	})
}

func FuzzXZ(f *testing.F) {
	files, err := filepath.Glob("testdata/*.xz")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 16
		if out, err := unxz(b, limit); err == nil && len(out) > limit {
			t.Errorf("%d bytes", len(out))
		}
	})
}

func FuzzKallsyms(f *testing.F) {
	f.Add(x86Symbols, x86Modules)
	f.Add("ffffffff81000000 T a\nffffffffffffffff t b\n", "")
	f.Add("ffffffffc0000000 t m\t[m]\nffffffff81000000 T a [b\n", "m 1 1 - Live 0xffffffffffffffff\n")
	f.Fuzz(func(t *testing.T, text, modules string) {
		ends := map[string]moduleRange{}
		for line := range strings.Lines(modules) {
			name, _, _ := strings.Cut(line, " ")
			ends[name] = moduleRange{1<<63 | uint64(len(line)), 1 << 60}
		}
		_ = loadedModules([]byte(modules))
		for _, inOrder := range []bool{true, false} {
			k, err := readKallsyms(strings.NewReader(text), ends, inOrder)
			if err != nil {
				continue
			}
			n := 0
			for _, r := range k.regions {
				if err := r.table.check(); err != nil {
					t.Error(err)
				}
				for _, s := range r.table.starts {
					if _, _, ok := k.lookup(r.base + uint64(s)); !ok {
						t.Errorf("%#x is not found", r.base+uint64(s))
					}
					n++
				}
			}
			if n != k.count {
				t.Errorf("%d functions in regions, %d counted", n, k.count)
			}
		}
	})
}
