package ebpfspy

import (
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spanflame/spanflame/symtab"
)

func TestMappingsCover(t *testing.T) {
	a, b := &file{path: "/a"}, &file{path: "/b"}
	m := &mappings{}
	m.insert(mapping{start: 0x1000, end: 0x5000, offset: 0x100, file: a}, 1)
	m.insert(mapping{start: 0x2000, end: 0x3000, file: b}, 2)
	for _, tc := range []struct {
		addr      uint64
		round     uint64
		file      *file
		offset    uint64
		ambiguous bool
	}{
		{addr: 0xfff, round: 2},
		{addr: 0x1000, round: 2, file: a, offset: 0x100},
		{addr: 0x1fff, round: 2, file: a, offset: 0x10ff},
		{addr: 0x2000, round: 2, file: b, ambiguous: true},
		{addr: 0x2000, round: 3, file: b},
		{addr: 0x3000, round: 2, file: a, offset: 0x2100},
		{addr: 0x4fff, round: 2, file: a, offset: 0x40ff},
		{addr: 0x5000, round: 2},
	} {
		got, ambiguous := m.find(tc.addr, tc.round)
		if tc.file == nil {
			if got != nil {
				t.Errorf("%#x is in %v", tc.addr, got)
			}
			continue
		}
		if got == nil || got.file != tc.file || tc.addr-got.start+got.offset != tc.offset || ambiguous != tc.ambiguous {
			t.Errorf("%#x in round %d: %+v, ambiguous %v", tc.addr, tc.round, got, ambiguous)
		}
	}
	// The same file mapped again at the same place changes nothing.
	again := m.clone()
	again.insert(mapping{start: 0x1000, end: 0x2000, offset: 0x100, file: a}, 4)
	if _, ambiguous := again.find(0x1500, 4); ambiguous {
		t.Error("mapped again as before, and ambiguous")
	}
}

// A mapping that /proc told of first, and the kernel's record of it, which comes later.
func TestMappingsToldTwice(t *testing.T) {
	proc := &file{id: symtab.FileID{Dev: 1, Ino: 53}}
	for _, tt := range []struct {
		name      string
		id        symtab.FileID
		ambiguous bool
	}{
		{"the same file, with its generation", symtab.FileID{Dev: 1, Ino: 53, Gen: 7}, false},
		{"another inode", symtab.FileID{Dev: 1, Ino: 54, Gen: 7}, true},
		{"another device", symtab.FileID{Dev: 2, Ino: 53, Gen: 7}, true},
		{"no file", symtab.FileID{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &mappings{}
			m.insert(mapping{start: 0x1000, end: 0x5000, file: proc}, 1)
			m.insert(mapping{start: 0x1000, end: 0x6000, file: &file{id: tt.id}}, 1)
			if _, ambiguous := m.find(0x2000, 1); ambiguous != tt.ambiguous {
				t.Errorf("ambiguous is %v", ambiguous)
			}
		})
	}
	m := &mappings{}
	m.insert(mapping{start: 0x1000, end: 0x5000, file: &file{id: symtab.FileID{Dev: 1, Ino: 53, Gen: 6}}}, 1)
	m.insert(mapping{start: 0x1000, end: 0x5000, file: &file{id: symtab.FileID{Dev: 1, Ino: 53, Gen: 7}}}, 1)
	if _, ambiguous := m.find(0x2000, 1); !ambiguous {
		t.Error("two generations of an inode are taken for one file")
	}
}

// The list agrees with an array that has one entry for each page.
func TestMappingsAgainstPages(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	files := []*file{{path: "a"}, {path: "b"}, nil}
	type page struct {
		f      *file
		offset uint64
		ok     bool
	}
	for run := 0; run < 200; run++ {
		m, pages := &mappings{}, [64]page{}
		for i := 0; i < 30; i++ {
			lo := uint64(rng.Intn(63))
			hi := lo + 1 + uint64(rng.Intn(64-int(lo)))
			if hi > 64 {
				hi = 64
			}
			f := files[rng.Intn(len(files))]
			off := uint64(rng.Intn(8))
			before := len(m.list)
			if grown := m.insert(mapping{start: lo, end: hi, offset: off, file: f}, 1); before+grown != len(m.list) {
				t.Fatalf("%d mappings and %d more are %d", before, grown, len(m.list))
			}
			for p := lo; p < hi; p++ {
				pages[p] = page{f, off + p - lo, true}
			}
		}
		for p := range pages {
			got, _ := m.find(uint64(p), 9)
			if (got != nil) != pages[p].ok {
				t.Fatalf("page %d: %v, want %v", p, got, pages[p])
			}
			if got != nil && (got.file != pages[p].f || uint64(p)-got.start+got.offset != pages[p].offset) {
				t.Fatalf("page %d: %+v, want %+v", p, got, pages[p])
			}
		}
	}
}

func TestMappingsAreBounded(t *testing.T) {
	m := &mappings{}
	for i := uint64(0); i < maxMappings+100; i++ {
		m.insert(mapping{start: i * 2, end: i*2 + 1}, 1)
	}
	for i := uint64(0); i < 3*maxMappings; i++ {
		m.insert(mapping{start: i % 7, end: 20, offset: i}, 1)
	}
	if len(m.list) > maxMappings+2 || len(m.replaced) > maxMappings {
		t.Errorf("%d mappings, %d replaced", len(m.list), len(m.replaced))
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add("7f3c1a000000-7f3c1a155000 r-xp 00026000 fe:00 1835033                    /usr/lib/libc.so.6\n")
	f.Add("7ffd-7fff r-xp 00000000 00:00 0 [vdso]\n")
	f.Add("x")
	f.Fuzz(func(t *testing.T, s string) {
		entries, err := parseMaps(strings.NewReader(s))
		if err != nil {
			return
		}
		for _, e := range entries {
			if e.end <= e.start {
				t.Fatalf("%+v", e)
			}
		}
	})
}

func TestParseMapsLine(t *testing.T) {
	e, executable, err := parseMapsLine("7f3c1a000000-7f3c1a155000 r-xp 00026000 fe:1f 1835033                    /a b/lib c.so (deleted)")
	want := mapsEntry{0x7f3c1a000000, 0x7f3c1a155000, 0x26000, symtab.FileID{Dev: 0xfe<<32 | 0x1f, Ino: 1835033}, "/a b/lib c.so"}
	if err != nil || !executable || e != want {
		t.Errorf("%+v %v %v", e, executable, err)
	}
}

func TestReadOwnMaps(t *testing.T) {
	entries, err := readMaps("/proc", uint32(os.Getpid()))
	if err != nil || len(entries) < 2 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
}

// No file outside of the root is opened, and nothing but a regular one.
func TestOpenStaysInRoot(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "secret")
	rootDir := filepath.Join(dir, "root")
	for _, err := range []error{
		os.WriteFile(outside, []byte("secret"), 0o600),
		os.MkdirAll(filepath.Join(rootDir, "bin"), 0o755),
		os.WriteFile(filepath.Join(rootDir, "bin", "real"), []byte("real"), 0o700),
		os.Symlink(outside, filepath.Join(rootDir, "bin", "out")),
		os.Symlink("../../../../../../.."+outside, filepath.Join(rootDir, "bin", "up")),
		os.Symlink("/bin/real", filepath.Join(rootDir, "bin", "in")),
		syscall.Mkfifo(filepath.Join(rootDir, "bin", "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/bin/real": "real", "/bin/in": "real", "/bin/out": "", "/bin/up": "", "/bin/fifo": "", "/bin": "",
		"/../../secret": "", "/bin/none": "",
	} {
		f, err := openIn(rootDir, path)
		if want == "" {
			if err == nil {
				t.Errorf("%s was opened", path)
				f.Close()
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		b := make([]byte, 10)
		n, _ := f.Read(b)
		f.Close()
		if string(b[:n]) != want {
			t.Errorf("%s holds %q", path, b[:n])
		}
	}
	if f, err := openIn("/", "/dev/zero"); err == nil {
		f.Close()
		t.Error("a device was opened")
	}
}
