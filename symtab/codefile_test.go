package symtab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestCodeFrame(t *testing.T) {
	long := strings.Repeat("é", maxCodeName)
	for _, tt := range []struct {
		name string
		want Frame
	}{
		{"JS:*burnA /srv/shop.js:1:15", Frame{"burnA", "/srv/shop.js", 1}},
		{"JS:^ file:///srv/a b:c.mjs:17:3", Frame{"(anonymous)", "file:///srv/a b:c.mjs", 17}},
		{"LazyCompile:~get shop.js:12", Frame{"get", "shop.js", 12}},
		{"Eval:~ /srv/e.js:1:1", Frame{"(eval)", "/srv/e.js", 1}},
		{"JS:*", Frame{Name: "(anonymous)"}},
		{"Builtin:ArrayMap", Frame{Name: "Builtin:ArrayMap"}},
		{"py::Shop.checkout:/srv/shop.py", Frame{"Shop.checkout", "/srv/shop.py", 0}},
		{"int Split.burnA(int)", Frame{Name: "int Split.burnA(int)"}},
		{"$shop:checkout/2", Frame{Name: "$shop:checkout/2"}},
		{"a\x1b[2Jb\u202ec\xff", Frame{Name: "a\uFFFD[2Jb\uFFFDc\uFFFD"}},
		{"naïve 名前", Frame{Name: "naïve 名前"}},
		{long, Frame{Name: long[:maxCodeName]}},
		{"", Frame{}},
	} {
		if got := codeFrame([]byte(tt.name)); got != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// feedAll feeds a parser in pieces of n bytes.
func feedAll(t testing.TB, p interface {
	feed(*codeMap, []byte) error
}, m *codeMap, b []byte, n int) error {
	t.Helper()
	for len(b) > 0 {
		k := min(n, len(b))
		if err := p.feed(m, b[:k]); err != nil {
			return err
		}
		b = b[k:]
	}
	return nil
}

const perfMapText = "1000 20 first\n" +
	"0x1020 0x10 0x what\r\n" +
	"not a line\n" +
	"1008 8 JS:*newer /srv/a.js:3:7\n" +
	"\n2000 0 empty\n" +
	"fffffffffffffffff 10 far\n" +
	"3000 10 \n" +
	"4000 10 no end"

func TestPerfMap(t *testing.T) {
	for _, n := range []int{1, 3, 7, 1000} {
		m := newCodeMap(1 << 20)
		if err := feedAll(t, &perfMap{}, m, []byte(perfMapText), n); err != nil {
			t.Fatal(err)
		}
		for addr, want := range map[uint64]Frame{
			0x1007: {Name: "first"}, 0x1008: {"newer", "/srv/a.js", 3}, 0x1010: {Name: "first"},
			0x1020: {Name: "0x what"}, 0x2000: {}, 0x3000: {}, 0x4000: {}, 0xfff: {}, 0x1030: {},
		} {
			if f, _ := m.find(addr); f != want {
				t.Errorf("pieces of %d: %+v at %x, want %+v", n, f, addr, want)
			}
		}
	}
}

// dump builds a jitdump.
type dump struct {
	bytes.Buffer
	order binary.ByteOrder
}

func (d *dump) put(v ...any) *dump {
	for _, x := range v {
		switch x := x.(type) {
		case string:
			d.WriteString(x)
		default:
			_ = binary.Write(&d.Buffer, d.order, x)
		}
	}
	return d
}

func newDump(order binary.ByteOrder) *dump {
	d := &dump{order: order}
	return d.put(uint32(jitMagic), uint32(1), uint32(40), uint32(62), uint32(0), uint32(77), uint64(1), uint64(0))
}

func (d *dump) load(addr, size, index uint64, name string, code string) *dump {
	return d.put(uint32(jitCodeLoad), uint32(jitLoadFixed+len(name)+1+len(code)), uint64(9), uint32(77), uint32(77),
		addr, addr, size, index, name, uint8(0), code)
}

func (d *dump) move(from, to, size, index uint64) *dump {
	return d.put(uint32(jitCodeMove), uint32(jitMoveSize), uint64(9), uint32(77), uint32(77), to, from, to, size, index)
}

type dumpLine struct {
	at   uint64
	line uint32
	file string
}

func (d *dump) lines(addr uint64, rows ...dumpLine) *dump {
	size := jitDebugHead
	for _, r := range rows {
		size += 16 + len(r.file) + 1
	}
	d.put(uint32(jitDebugInfo), uint32(size), uint64(9), addr, uint64(len(rows)))
	for _, r := range rows {
		d.put(r.at, r.line, uint32(0), r.file, uint8(0))
	}
	return d
}

func smallDump(order binary.ByteOrder) []byte {
	d := newDump(order).load(0x1000, 0x40, 1, "first", strings.Repeat("\xcc", 0x40)).
		lines(0x2000, dumpLine{0x2000, 5, "/srv/a.c"}, dumpLine{0x2010, 6, "\xff"}, dumpLine{0x2020, 90, "/srv/b.h"}).
		load(0x2000, 0x30, 2, "second", strings.Repeat("\xcc", 0x30)).
		put(uint32(4), uint32(20), uint64(9), uint32(0)). // unwinding information
		move(0x1000, 0x5000, 0x40, 1).
		lines(0x6000, dumpLine{0x6040, 1, "/srv/a.js"}, dumpLine{0x6050, 2, "\xff"}).
		load(0x6000, 0x20, 3, "JS:*burn /srv/a.js:1:1", "").
		put(uint32(jitCodeClose), uint32(16), uint64(9)).
		load(0x7000, 0x20, 4, "after the end", "")
	return d.Bytes()
}

func TestJITDump(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, n := range []int{1, 5, 64, 1 << 20} {
			m := newCodeMap(1 << 20)
			if err := feedAll(t, &jitDump{}, m, smallDump(order), n); err != nil {
				t.Fatal(err)
			}
			for addr, want := range map[uint64]Frame{
				0x1000: {}, 0x5000: {Name: "first"}, 0x503f: {Name: "first"}, 0x2000: {"second", "/srv/a.c", 5},
				0x201f: {"second", "/srv/a.c", 6}, 0x2020: {"second", "/srv/b.h", 90}, 0x2030: {},
				0x6000: {"burn", "/srv/a.js", 1}, 0x6010: {"burn", "/srv/a.js", 2}, 0x7000: {},
			} {
				if f, _ := m.find(addr); f != want {
					t.Errorf("%s, pieces of %d: %+v at %x, want %+v", order, n, f, addr, want)
				}
			}
		}
	}
}

func TestJITDumpRefused(t *testing.T) {
	good := smallDump(binary.LittleEndian)
	for name, b := range map[string][]byte{
		"magic":         append([]byte("ELF!"), good[4:]...),
		"version":       slicesWith(good, 4, 9),
		"header size":   slicesWith(good, 8, 4),
		"record's size": slicesWith(good, 44, 3),
	} {
		if err := (&jitDump{}).feed(newCodeMap(1<<20), b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func slicesWith(b []byte, at int, v uint32) []byte {
	b = bytes.Clone(b)
	binary.LittleEndian.PutUint32(b[at:], v)
	return b
}

// writeFile writes a file and opens it.
func openCodeFile(t *testing.T, path, text string) *CodeFile {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	c := NewPerfMap(f, 1<<20)
	t.Cleanup(c.Close)
	return c
}

// TestCodeFile lets a map grow, be truncated and be written anew, and be deleted.
func TestCodeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "perf-1.map")
	c := openCodeFile(t, path, "1000 10 one\n")
	want := func(addr uint64, name string) {
		t.Helper()
		if _, err := c.Refresh(1 << 20); err != nil {
			t.Fatal(err)
		}
		got := c.Frames(addr)
		if name == "" && got != nil || name != "" && !reflect.DeepEqual(got, []Frame{{Name: name}}) {
			t.Errorf("%v at %x, want %q", got, addr, name)
		}
	}
	write := func(flags int, text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	want(0x1000, "one")
	before := c.Generation()
	want(0x1000, "one")
	if c.Generation() != before {
		t.Error("another generation of the same")
	}
	write(os.O_APPEND, "2000 10 tw")
	want(0x2000, "")
	write(os.O_APPEND, "o\n1000 8 newer\n")
	want(0x2000, "two")
	want(0x1000, "newer")
	want(0x1008, "one")
	if c.Generation() == before {
		t.Error("no other generation")
	}
	write(os.O_TRUNC, "3000 10 three\n") // shorter
	want(0x3000, "three")
	want(0x1000, "")
	write(os.O_TRUNC, "4000 10 four four four four\n5000 10 five\n") // longer
	want(0x5000, "five")
	want(0x3000, "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want(0x4000, "four four four four")
}

// TestCodeFileInPieces reads no more at once than was asked for.
func TestCodeFileInPieces(t *testing.T) {
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "%x 10 function %d\n", 0x1000+16*i, i)
	}
	c := openCodeFile(t, filepath.Join(t.TempDir(), "perf-1.map"), text.String())
	pieces := 1
	for ; ; pieces++ {
		more, err := c.Refresh(1000)
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
	}
	if want := (text.Len() + 999) / 1000; pieces != want {
		t.Errorf("%d pieces, want %d", pieces, want)
	}
	if got := c.Frames(0x1000 + 16*999); len(got) != 1 || got[0].Name != "function 999" {
		t.Errorf("%v", got)
	}
}

// TestCodeFileSparse has a file of 10 GB of nothing.
func TestCodeFileSparse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "perf-1.map")
	c := openCodeFile(t, path, "1000 10 one\n")
	if err := os.Truncate(path, 10<<30); err != nil {
		t.Skip(err)
	}
	read := 0
	for {
		more, err := c.Refresh(64 << 20)
		read++
		if err != nil {
			break
		}
		if !more {
			t.Fatal("all of it was read")
		}
	}
	if read != maxCodeFile/(64<<20)+1 {
		t.Errorf("%d times 64 MiB were read", read)
	}
	if got := c.Frames(0x1000); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func FuzzPerfMap(f *testing.F) {
	f.Add([]byte(perfMapText), uint8(7))
	f.Add([]byte("7fe5180062c0 298 JS:*burnA /tmp/s.js:1:15\n"), uint8(200))
	f.Add([]byte("0x00007f9f3cec7620 0x0000000000000238 int Split.burnA(int)\n"), uint8(3))
	f.Add([]byte("7f12 1a py::main:/srv/a.py\n"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		fuzzCode(t, func() codeParser { return &perfMap{} }, b, int(n)+1)
	})
}

func FuzzJITDump(f *testing.F) {
	f.Add(smallDump(binary.LittleEndian), uint8(7))
	f.Add(smallDump(binary.BigEndian), uint8(255))
	f.Add(newDump(binary.LittleEndian).move(1, 2, 3, 4).Bytes(), uint8(16))
	f.Add(newDump(binary.LittleEndian).lines(1, dumpLine{1, 2, "x"}).load(1, 9, 0, "x", "y").Bytes(), uint8(16))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		fuzzCode(t, func() codeParser { return &jitDump{} }, b, int(n)+1)
	})
}

type codeParser interface {
	feed(*codeMap, []byte) error
}

// fuzzCode: in pieces comes out what comes out at once, within the bounds.
func fuzzCode(t *testing.T, parser func() codeParser, b []byte, n int) {
	const max = 64 << 10
	whole, pieces := newCodeMap(max), newCodeMap(max)
	err := parser().feed(whole, b)
	errPieces := feedAll(t, parser(), pieces, b, n)
	if (err == nil) != (errPieces == nil) {
		t.Fatalf("at once %v, in pieces of %d %v", err, n, errPieces)
	}
	whole.merge()
	pieces.merge()
	if whole.size() > max {
		t.Fatalf("%d bytes", whole.size())
	}
	if len(whole.spans) != len(pieces.spans) {
		t.Fatalf("%v at once, %v in pieces", whole.spans, pieces.spans)
	}
	for i, s := range whole.spans {
		if i > 0 && s.start < whole.spans[i-1].end || s.start >= s.end {
			t.Fatalf("spans %v", whole.spans)
		}
		f, _ := whole.find(s.start)
		if g, _ := pieces.find(s.start); f != g {
			t.Fatalf("%v at once, %v in pieces", f, g)
		}
		if len(f.Name) > maxCodeName || len(f.File) > maxCodeName || strings.ContainsAny(f.Name+f.File, "\n\x00\x1b") {
			t.Fatalf("%v", f)
		}
	}
}
