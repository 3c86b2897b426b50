package elffile

import (
	"bytes"
	"debug/elf"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func tool(t testing.TB, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is needed to make test data: %v", name, err)
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

const source = `#include <stdio.h>
int answer(int x) { return x * 42; }
int main(int argc, char **argv) { (void)argv; printf("%d\n", answer(argc)); return 0; }
`

// build compiles a small program.
func build(t testing.TB, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	src, out := filepath.Join(dir, "a.c"), filepath.Join(dir, "a")
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	tool(t, "gcc", append([]string{"-g", "-o", out, src}, flags...)...)
	return out
}

func open(t testing.TB, path string) *File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(f, fi.Size())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestAgainstStandardLibrary compares all headers and section data with debug/elf.
func TestAgainstStandardLibrary(t *testing.T) {
	for name, path := range map[string]string{
		"program": build(t), "not position independent": build(t, "-no-pie"),
		"zlib": build(t, "-gz=zlib"), "zstd": build(t, "-Wl,--compress-debug-sections=zstd"), "this test": os.Args[0],
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, path)
			want, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = want.Close() }()
			if f.Class != want.Class || f.Type != want.Type || f.Machine != want.Machine || uint64(f.Entry) != want.Entry {
				t.Errorf("%v, want %+v", f, want.FileHeader)
			}
			if len(f.Segments) != len(want.Progs) || len(f.Sections) != len(want.Sections) || f.SectionsErr != nil {
				t.Fatalf("%d segments, %d sections (%v), want %d and %d", len(f.Segments), len(f.Sections), f.SectionsErr, len(want.Progs), len(want.Sections))
			}
			for i, s := range f.Segments {
				w := want.Progs[i].ProgHeader
				if got := (elf.ProgHeader{Type: s.Type, Flags: s.Flags, Off: uint64(s.Off), Vaddr: uint64(s.Addr), Paddr: w.Paddr, Filesz: s.FileLen, Memsz: s.MemLen, Align: s.Align}); got != w {
					t.Errorf("segment %d: %+v, want %+v", i, got, w)
				}
			}
			for i := range f.Sections {
				s, w := &f.Sections[i], want.Sections[i]
				if s.Name != w.Name || s.Type != w.Type || s.Flags != w.Flags || uint64(s.Addr) != w.Addr || uint64(s.Off) != w.Offset ||
					s.Len != w.FileSize || s.Link != w.Link || s.Info != w.Info || s.EntSize != w.Entsize {
					t.Errorf("section %d: %+v, want %+v", i, s, w.SectionHeader)
				}
				if s.HasData() {
					got, err := f.Data(s, 64<<20)
					data, werr := w.Data()
					if err != nil || werr != nil || !bytes.Equal(got, data) {
						t.Errorf("data of %s: %d bytes, %v; want %d, %v", s.Name, len(got), err, len(data), werr)
					}
				}
			}
			checkSymbols(t, f, want)
			checkAddresses(t, f)
		})
	}
}

func checkSymbols(t *testing.T, f *File, want *elf.File) {
	t.Helper()
	s := f.SectionOfType(elf.SHT_SYMTAB)
	if s == nil {
		return
	}
	syms, err := want.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	names, err := f.Data(f.LinkedStrings(s), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 100, 24 * 100} { // of the buffer
		i := 0
		err = f.EachSymbol(s, make([]byte, size), func(y Symbol) error {
			w := syms[i]
			if uint64(y.Value) != w.Value || y.Size != w.Size || y.Info != w.Info || y.Section != w.Section || cString(string(names), y.Name) != w.Name {
				t.Errorf("symbol %d: %+v, want %+v", i, y, w)
			}
			i++
			return nil
		})
		if err != nil || i != len(syms) {
			t.Errorf("%d symbols, %v; want %d", i, err, len(syms))
		}
	}
	if err := f.EachSymbol(s, nil, func(Symbol) error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Errorf("the caller's error became %v", err)
	}
}

func checkAddresses(t *testing.T, f *File) {
	t.Helper()
	text := f.Section(".text")
	for _, d := range []uint64{0, 1, text.Len - 1} {
		off, addr := text.Off+FileOffset(d), text.Addr+VirtAddr(d)
		if a, ok := f.AddrOf(off); !ok || a != addr {
			t.Errorf("address of offset %#x: %#x %v, want %#x", off, a, ok, addr)
		}
		if o, ok := f.OffsetOf(addr); !ok || o != off {
			t.Errorf("offset of address %#x: %#x %v, want %#x", addr, o, ok, off)
		}
		var x, y [1]byte
		if err := errors.Join(f.ReadAddr(x[:], addr), f.ReadFull(y[:], off)); err != nil || x != y {
			t.Errorf("byte at %#x: %v %v %v", addr, x, y, err)
		}
	}
	if _, ok := f.AddrOf(1 << 60); ok {
		t.Error("an offset beyond the file has an address")
	}
	if _, ok := f.OffsetOf(1); ok && f.Type == elf.ET_EXEC {
		t.Error("address 1 is in the file")
	}
	if err := f.ReadAddr(make([]byte, f.Size()), text.Addr); err == nil {
		t.Error("read over the end of a segment")
	}
}

func TestBuildIDs(t *testing.T) {
	prog := build(t, "-Wl,--build-id=0x0123456789abcdef")
	if id := open(t, prog).BuildID(); id != "0123456789abcdef" {
		t.Errorf("build id %q", id)
	}
	if id := open(t, build(t, "-Wl,--build-id=none")).BuildID(); id != "" {
		t.Errorf("build id %q of a file without", id)
	}
	exe, err := exec.LookPath("go")
	if err != nil {
		t.Skip("the go command is needed: ", err)
	}
	dir := t.TempDir()
	src := filepath.Join(dir, "a.go")
	if err := os.WriteFile(src, []byte("package main\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "a")
	tool(t, exe, "build", "-ldflags=-B none", "-o", out, src)
	want, err := exec.Command(exe, "tool", "buildid", out).Output()
	if err != nil {
		t.Fatal(err)
	}
	f := open(t, out)
	if id := f.BuildID(); id == "" || id != strings.TrimSpace(string(want)) {
		t.Errorf("build id %q, go says %q", id, want)
	}
	if id := f.GNUBuildID(); id != "" {
		t.Errorf("GNU build id %q", id)
	}
}

func TestDebugLink(t *testing.T) {
	prog := build(t)
	dir := t.TempDir()
	debug, linked := filepath.Join(dir, "the.debug"), filepath.Join(dir, "linked")
	tool(t, "objcopy", "--only-keep-debug", prog, debug)
	tool(t, "objcopy", "-S", "--add-gnu-debuglink="+debug, prog, linked)
	b, err := os.ReadFile(debug)
	if err != nil {
		t.Fatal(err)
	}
	name, crc, ok := open(t, linked).DebugLink()
	if !ok || name != "the.debug" || crc != crc32.ChecksumIEEE(b) {
		t.Errorf("%q %x %v", name, crc, ok)
	}
	if _, _, ok := open(t, prog).DebugLink(); ok {
		t.Error("a link in a file without")
	}
	d := open(t, debug)
	if s := d.Section(".text"); s.HasData() {
		t.Error(".text of a debug file has data")
	} else if _, err := d.Data(s, 1<<20); !errors.Is(err, ErrNoData) {
		t.Errorf("data of .text of a debug file: %v", err)
	}
	link := filepath.Join(dir, "link")
	for _, bad := range []string{"../../etc/passwd\x00\x00\x00\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x01\x02\x03\x04", "..\x00\x00abcd", "noend", "short\x00"} {
		if err := os.WriteFile(link, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(dir, "bad")
		tool(t, "objcopy", "--add-section", ".gnu_debuglink="+link, prog, out)
		if name, _, ok := open(t, out).DebugLink(); ok {
			t.Errorf("the link %q was taken as %q", bad, name)
		}
	}
}

func TestLimits(t *testing.T) {
	f := open(t, build(t, "-gz=zlib"))
	s := f.Section(".debug_info")
	if s == nil || !s.Compressed() {
		t.Skip("this compiler did not compress .debug_info")
	}
	b, err := f.Data(s, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Data(s, int64(len(b))-1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a section over the limit: %v", err)
	}
	if _, err := f.Bytes(0, 1<<62, 1<<62); !errors.Is(err, ErrCorrupt) {
		t.Errorf("more than the file has: %v", err)
	}
	if _, err := f.Bytes(FileOffset(1<<64-1), 2, 100); !errors.Is(err, ErrCorrupt) {
		t.Errorf("over the end of all offsets: %v", err)
	}
}

// TestTruncatedWhileRead: the file shrinks after it was opened.
func TestTruncatedWhileRead(t *testing.T) {
	path := build(t)
	f := open(t, path)
	if err := os.Truncate(path, 300); err != nil {
		t.Fatal(err)
	}
	for i := range f.Sections {
		if s := &f.Sections[i]; s.HasData() && s.Len > 0 && s.Off > 300 {
			if _, err := f.Data(s, 64<<20); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
	}
}

func TestNotELF(t *testing.T) {
	for name, tc := range map[string]struct {
		data string
		want error
	}{
		"empty":      {"", ErrNotELF},
		"short":      {"\x7fELF", ErrNotELF},
		"script":     {"#!/bin/sh\necho and so on and so on, long enough for a header of an ELF file", ErrNotELF},
		"big endian": {"\x7fELF\x02\x02\x01" + strings.Repeat("\x00", 64), ErrUnsupported},
		"no class":   {"\x7fELF\x07\x01\x01" + strings.Repeat("\x00", 64), ErrUnsupported},
		"cut off":    {"\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 20), ErrCorrupt},
	} {
		if _, err := Open(strings.NewReader(tc.data), int64(len(tc.data))); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

func FuzzOpen(f *testing.F) {
	b, err := os.ReadFile("testdata/small.elf")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:200])
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		_ = e.String() + e.BuildID() + e.GNUBuildID()
		_, _, _ = e.DebugLink()
		const limit = 1 << 16
		for i := range e.Sections {
			s := &e.Sections[i]
			if i > 64 {
				break
			}
			if b, err := e.Data(s, limit); err == nil && len(b) > limit {
				t.Errorf("%d bytes", len(b))
			}
			n := uint64(0)
			_ = e.EachSymbol(s, nil, func(Symbol) error { n++; return nil })
			if n > s.Len {
				t.Errorf("%d symbols in %d bytes", n, s.Len)
			}
			e.LinkedStrings(s)
		}
		for _, s := range e.Loads {
			if a, ok := e.AddrOf(s.Off); s.FileLen > 0 && !ok {
				t.Errorf("offset %#x has no address (%#x)", s.Off, a)
			}
			var x [16]byte
			_ = e.ReadAddr(x[:], s.Addr)
		}
	})
}
