package ebpfspy

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/symtab"
	"github.com/spanflame/spanflame/unwind"
)

// testUnwinder makes one with a budget, in a kernel side of its own.
func testUnwinder(t *testing.T, tableBytes int64) *unwinder {
	t.Helper()
	needRoot(t)
	opts, err := Options{TableBytes: tableBytes}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	k, err := openKernelSide(log.NewLogfmtLogger(testWriter{t}), m, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.close(); err != nil {
			t.Error(err)
		}
	})
	return k.unwinder
}

// lookup finds the rule for an offset as the kernel's program does (bpf/c/unwind.h).
func (n *nodes) lookup(t *testing.T, tr tree, offset uint32) uint16 {
	t.Helper()
	read := func(id uint32, v any) {
		raw := make([]byte, nodeBytes)
		n.mu.Lock()
		segment := n.segments[id/n.perSeg]
		n.mu.Unlock()
		if err := segment.Lookup(id%n.perSeg, &raw); err != nil {
			t.Fatal(err)
		}
		if err := binary.Read(bytes.NewReader(raw), binary.NativeEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	id, base := tr.root, tr.base
	for range tr.levels {
		var in struct{ Start, Child [512]uint32 }
		read(id, &in)
		pos := 0
		for step := len(in.Start) / 2; step > 0; step /= 2 {
			if in.Start[pos+step] <= offset {
				pos += step
			}
		}
		base, id = in.Start[pos], in.Child[pos]
	}
	if offset < base {
		return 0
	}
	var leaf struct{ Offset, Rule [1024]uint16 }
	read(id, &leaf)
	rel := uint16(min(offset-base, leafSpan))
	pos := 0
	for step := len(leaf.Offset) / 2; step > 0; step /= 2 {
		if leaf.Offset[pos+step] <= rel {
			pos += step
		}
	}
	return leaf.Rule[pos]
}

// TestTree plants tables and finds the rule of every row, before, at and behind it.
func TestTree(t *testing.T) {
	u := testUnwinder(t, 64<<20)
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		name  string
		rows  int
		start uint32
		step  func() uint32
	}{
		{"one row", 1, 4096, func() uint32 { return 1 }},
		{"a full leaf", 1024, 0, func() uint32 { return 3 }},
		{"one more than a leaf", 1025, 17, func() uint32 { return 1 }},
		{"dense", 50_000, 0x1000, func() uint32 { return 1 + rnd.Uint32N(40) }},
		{"sparse", 3000, 0x1000, func() uint32 { return 1 + rnd.Uint32N(200_000) }},
		{"just too far", 300, 0, func() uint32 { return leafSpan + 1 }},
		{"at the end of 4 GiB", 2000, 0xffff0000, func() uint32 { return 1 + rnd.Uint32N(30) }},
		{"two inner levels", 600_000, 5, func() uint32 { return 1 + rnd.Uint32N(12) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := tt.start
			var rows []row
			for range tt.rows {
				rows = append(rows, row{at, uint16(rnd.Uint32N(16000))})
				next := at + tt.step()
				if next < at {
					break
				}
				at = next
			}
			tr, err := u.nodes.plant(rows)
			if err != nil {
				t.Fatal(err)
			}
			defer u.nodes.give(tr.nodes)
			if slices.Contains(tr.nodes, 0) {
				t.Error("node 0 was given out")
			}
			if tt.start > 0 && u.nodes.lookup(t, tr, tt.start-1) != 0 {
				t.Error("a rule before the first row")
			}
			looks := 3000
			if testing.Short() {
				looks = 300
			}
			every := max(1, len(rows)/looks)
			for i := 0; i < len(rows); i += every {
				if got := u.nodes.lookup(t, tr, rows[i].offset); got != rows[i].rule {
					t.Fatalf("rule at row %d (%#x) = %d, want %d", i, rows[i].offset, got, rows[i].rule)
				}
				if i > 0 {
					if got := u.nodes.lookup(t, tr, rows[i].offset-1); got != rows[i-1].rule {
						t.Fatalf("rule before row %d (%#x) = %d, want %d", i, rows[i].offset, got, rows[i-1].rule)
					}
				}
			}
		})
	}
}

// TestNodesRunOut takes all there are, and gets none twice.
func TestNodesRunOut(t *testing.T) {
	u := testUnwinder(t, 1<<20)
	all := int(u.nodes.max*u.nodes.perSeg) - 1 // node 0 is none
	ids, err := u.nodes.take(all)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(ids); len(slices.Compact(ids)) != all || ids[0] == 0 {
		t.Errorf("%d nodes, the first %d, some twice or none", len(ids), ids[0])
	}
	if _, err := u.nodes.take(1); !errors.Is(err, errNoNodes) {
		t.Errorf("one more: %v, want %v", err, errNoNodes)
	}
	u.nodes.give(ids[:10])
	if again, err := u.nodes.take(10); err != nil || len(again) != 10 {
		t.Errorf("ten that were given back: %v, %v", again, err)
	}
	if _, err := u.nodes.take(1); !errors.Is(err, errNoNodes) {
		t.Errorf("and one more: %v, want %v", err, errNoNodes)
	}
}

func TestOverlay(t *testing.T) {
	under := []row{{0, 1}, {10, 2}, {20, 3}, {30, 4}}
	for _, tt := range []struct {
		name string
		over []row
		end  uint32
		want []row
	}{
		{"in between", []row{{12, 9}, {14, 8}}, 16, []row{{0, 1}, {10, 2}, {12, 9}, {14, 8}, {16, 2}, {20, 3}, {30, 4}}},
		{"over rows", []row{{5, 9}}, 25, []row{{0, 1}, {5, 9}, {25, 3}, {30, 4}}},
		{"up to a row", []row{{10, 9}}, 20, []row{{0, 1}, {10, 9}, {20, 3}, {30, 4}}},
		{"behind", []row{{40, 9}}, 50, []row{{0, 1}, {10, 2}, {20, 3}, {30, 4}, {40, 9}, {50, 4}}},
	} {
		if got := overlay(under, tt.over, tt.end); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if got, want := overlay(nil, []row{{4, 9}}, 8), []row{{4, 9}}; !slices.Equal(got, want) {
		t.Errorf("over nothing: %v, want %v", got, want)
	}
}

func TestFill(t *testing.T) {
	under := []row{{0, 5}, {10, 0}, {20, 6}, {30, 0}}
	for _, tt := range []struct {
		name       string
		begin, end uint32
		want       []row
	}{
		{"a hole", 10, 20, []row{{0, 5}, {10, 9}, {20, 6}, {30, 0}}},
		{"within a hole", 12, 15, []row{{0, 5}, {10, 0}, {12, 9}, {15, 0}, {20, 6}, {30, 0}}},
		{"over all", 0, 100, []row{{0, 5}, {10, 9}, {20, 6}, {30, 9}, {100, 0}}},
		{"from a hole into a rule", 15, 25, []row{{0, 5}, {10, 0}, {15, 9}, {20, 6}, {25, 6}, {30, 0}}},
		{"no hole", 2, 8, []row{{0, 5}, {8, 5}, {10, 0}, {20, 6}, {30, 0}}},
		{"behind", 40, 50, []row{{0, 5}, {10, 0}, {20, 6}, {30, 0}, {40, 9}, {50, 0}}},
	} {
		if got := fill(under, tt.begin, tt.end, 9); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestRowsOf places the rows of real files at their offsets.
func TestRowsOf(t *testing.T) {
	var files []string
	for _, pattern := range []string{"/lib/*/libc.so.6", "/usr/bin/bash", "/usr/bin/perl"} {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Skip("no file of the system to read")
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		ef, err := elffile.Open(f, st.Size())
		if err != nil {
			t.Fatal(err)
		}
		table, err := unwind.Read(ef, nil, unwind.Options{})
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		numbers := map[unwind.Rule]uint16{}
		rows := rowsOf(ef, table, func(r unwind.Rule) uint16 {
			if numbers[r] == 0 {
				numbers[r] = uint16(len(numbers) + 1)
			}
			return numbers[r]
		}, 0)
		if !slices.IsSortedFunc(rows, byOffset) || len(rows) < 100 {
			t.Fatalf("%s: %d rows, or not in order", path, len(rows))
		}
		for _, r := range table.Rows {
			off, ok := ef.OffsetOf(r.Addr)
			if !ok {
				continue // the end of a segment
			}
			i, exact := slices.BinarySearchFunc(rows, row{offset: uint32(off)}, byOffset)
			if !exact {
				i--
			}
			if got, want := rows[i].rule, numbers[table.Rules[r.Rule]]; got != want {
				t.Fatalf("%s: rule %d at %#x, want %d", path, got, r.Addr, want)
			}
		}
	}
}

// mapsOf makes mappings of files, one page behind the other.
func mapsOf(paths ...string) *mappings {
	m := &mappings{}
	for i, p := range paths {
		start := uint64(i+1) << 32
		m.list = append(m.list, mapping{start: start, end: start + 4096, file: &file{id: symtab.FileID{Dev: 1, Ino: uint64(i + 1)}, path: p}})
	}
	return m
}

func openPath(m *mapping) origin {
	path := m.file.path
	return origin{open: func() (*os.File, error) { return os.Open(path) }}
}

// state waits until a file is not asked for any more.
func (u *unwinder) stateOf(t *testing.T, slot uint32) bpf.ProfileUnwindFileState {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		u.mu.Lock()
		queued := u.bySlot[slot] != nil && u.bySlot[slot].queued
		u.mu.Unlock()
		if !queued {
			break
		}
	}
	var v bpf.ProfileUnwindFile
	if err := u.objs.Files.Lookup(slot, &v); err != nil {
		t.Fatal(err)
	}
	return bpf.ProfileUnwindFileState(v.State)
}

// ask does what the kernel's program does when a sample needs a file's table.
func (u *unwinder) ask(t *testing.T, slot uint32, maps *mappings) bpf.ProfileUnwindFileState {
	t.Helper()
	asked := bpf.ProfileUnwindFile{State: uint32(bpf.ProfileUnwindFileStateFILE_ASKED)}
	if err := u.objs.Files.Put(slot, &asked); err != nil {
		t.Fatal(err)
	}
	u.asked(slot, maps, openPath)
	return u.stateOf(t, slot)
}

// bigFile assembles a file with at least so many rows.
func bigFile(t *testing.T, functions int) string {
	t.Helper()
	dir := t.TempDir()
	src, obj, out := filepath.Join(dir, "a.s"), filepath.Join(dir, "a.o"), filepath.Join(dir, "a.so")
	var b bytes.Buffer
	b.WriteString(".text\n.rept " + itoa(functions) + "\n.cfi_startproc\nnop\n.cfi_adjust_cfa_offset 8\nnop\nnop\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n.endr\n")
	if err := os.WriteFile(src, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"as", "-o", obj, src}, {"ld", "-shared", "-o", out, obj}} {
		said, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			t.Skipf("cannot assemble a file: %v", err)
		}
		if err != nil {
			t.Fatalf("%v: %v %s", args, err, said)
		}
	}
	return out
}

func itoa(n int) string {
	b := []byte{}
	for ; n > 0; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(b)
}

// TestTableBudget loads files into a budget that has room for one of them at a time:
// what is in use stays, what is not is evicted, what has no room says so and is asked
// for again.
func TestTableBudget(t *testing.T) {
	u := testUnwinder(t, 1<<20) // 255 nodes
	a, b, text := bigFile(t, 80_000), bigFile(t, 81_000), filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no ELF file\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(t.TempDir(), "gone")
	maps := mapsOf(a, b, text, gone)
	id := identity{pid: 1 << 30, start: sd.StartTicks(7)}
	if err := u.push(id, 1, maps, openPath); err != nil {
		t.Fatal(err)
	}
	const loaded, unloaded, asked, noTable = bpf.ProfileUnwindFileStateFILE_LOADED, bpf.ProfileUnwindFileStateFILE_UNLOADED, bpf.ProfileUnwindFileStateFILE_ASKED, bpf.ProfileUnwindFileStateFILE_NO_TABLE
	check := func(what string, got, want bpf.ProfileUnwindFileState) {
		t.Helper()
		if got != want {
			t.Errorf("%s: state %d, want %d", what, got, want)
		}
	}
	check("the first file", u.ask(t, 1, maps), loaded)
	generation := u.bySlot[1].tree.generation
	u.asked(1, maps, openPath) // by another CPU, at the same time
	if check("the first file, asked for twice", u.stateOf(t, 1), loaded); u.bySlot[1].tree.generation != generation {
		t.Error("a table that is in use was made anew")
	}
	check("no ELF file", u.ask(t, 3, maps), noTable)
	check("a file that is not there", u.ask(t, 4, maps), asked)
	check("a second file, while the first is in use", u.ask(t, 2, maps), asked)
	u.newRound()
	check("the second file, in the next round", u.stateOf(t, 2), unloaded)
	check("the file that was not there, in the next round", u.stateOf(t, 4), unloaded)
	u.newRound()
	check("the second file, when the first was not used", u.ask(t, 2, maps), loaded)
	check("the first file", u.stateOf(t, 1), unloaded)

	// The process goes: its space does, the table stays for the next one.
	u.forget(id)
	if len(u.spaces) != 0 || len(u.pushed) != 0 {
		t.Errorf("%d spaces and %d processes are left", len(u.spaces), len(u.pushed))
	}
	var v bpf.ProfileProcessSpace
	if err := u.objs.Processes.Lookup(id.pid, &v); err == nil {
		t.Error("the kernel still has the process")
	}
	again := mapsOf(a, b)
	if err := u.push(id, 2, again, openPath); err != nil {
		t.Fatal(err)
	}
	check("the table of a file that was mapped again", u.stateOf(t, 2), loaded)
	u.forget(id)
	// The same inode number, another file.
	if err := os.Rename(a, b); err != nil {
		t.Fatal(err)
	}
	if err := u.push(id, 3, mapsOf(a, b), openPath); err != nil {
		t.Fatal(err)
	}
	check("the table of a file that is another now", u.stateOf(t, 2), unloaded)

	u.forget(id)
	for range idleRounds + 2 {
		u.newRound()
	}
	if len(u.files) != 0 || u.nodes.used != 0 {
		t.Errorf("%d files and %d nodes are left of nothing", len(u.files), u.nodes.used)
	}
}

// TestSpaceOfManyMappings has more mappings than fit in all nodes of a space.
func TestSpaceOfManyMappings(t *testing.T) {
	u := testUnwinder(t, 4<<20)
	maps := &mappings{}
	for i := range uint64(maxMappings) {
		maps.list = append(maps.list, mapping{start: 0x10000 + i*0x2000, end: 0x11000 + i*0x2000})
	}
	maps.list = append(maps.list, mapping{start: 0xffffffffff600000, end: 0xffffffffff601000}) // [vsyscall]
	id := identity{pid: 1 << 30, start: 1}
	if err := u.push(id, 1, maps, openPath); err != nil {
		t.Fatal(err)
	}
	var v bpf.ProfileProcessSpace
	if err := u.objs.Processes.Lookup(id.pid, &v); err != nil {
		t.Fatal(err)
	}
	for i, node := range v.Node {
		if node == 0 || v.First[i] != maps.list[i*spaceEntries].start {
			t.Errorf("node %d is %d and begins at %#x", i, node, v.First[i])
		}
	}
	// A change makes a new space, and gives the old one's nodes back.
	used := u.nodes.used
	maps.insert(mapping{start: 0x10800, end: 0x10900}, 1)
	if err := u.push(id, 1, maps, openPath); err != nil {
		t.Fatal(err)
	}
	if u.nodes.used != used || len(u.spaces) != 1 {
		t.Errorf("%d nodes and %d spaces, want %d and 1", u.nodes.used, len(u.spaces), used)
	}
}

// TestRation has work at a high priority end when it takes too long, and go on after ten
// times as long.
func TestRation(t *testing.T) {
	var r ration
	now := time.Now()
	if r.spent(now) {
		t.Error("spent before anything was done")
	}
	r.take(rationBurst)
	if r.spent(now) {
		t.Error("spent at what is allowed at once")
	}
	r.take(400 * time.Millisecond)
	for _, tt := range []struct {
		after time.Duration
		spent bool
	}{{0, true}, {3900 * time.Millisecond, true}, {4100 * time.Millisecond, false}} {
		if got := r; got.spent(now.Add(tt.after)) != tt.spent {
			t.Errorf("%v after 500 ms of work: spent is %v", tt.after, !tt.spent)
		}
	}
}

// TestSeparateDebugFrame has a program with no call frame information for its own code but
// in its separate debug file.
func TestSeparateDebugFrame(t *testing.T) {
	dir := t.TempDir()
	source, program, debug := filepath.Join(dir, "a.c"), filepath.Join(dir, "a"), filepath.Join(dir, "a.debug")
	text := "int f(int (*g)(int), int n) { while (g(n) && g(n + 1) && g(n + 2) && g(n + 3) && g(n + 4) && g(n + 5) && g(n + 6) && g(n + 7) && g(n + 8)) n += g(n * 3); return g(n) + 1; }\nint main(int n, char **v) { return n > 1 ? f((int (*)(int))v, n) + 1 : 0; }\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"gcc", "-O2", "-g", "-fno-inline", "-fomit-frame-pointer", "-fno-asynchronous-unwind-tables", "-o", program, source},
		{"objcopy", "--only-keep-debug", program, debug},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %v\n%s", args, err, out)
		}
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "f" })
	text0 := f.Section(".text")
	at := uint32(symbols[i].Value + symbols[i].Size - 1 - text0.Addr + text0.Offset) // its ret
	for _, args := range [][]string{
		{"strip", "--strip-all", program},
		{"objcopy", "--add-gnu-debuglink=" + debug, program},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}

	u := testUnwinder(t, 8<<20)
	cache := symtab.NewCache(nil, nil, symtab.Options{})
	t.Cleanup(cache.Close)
	from := origin{
		open: func() (*os.File, error) { return os.Open(program) },
		debug: func(f *elffile.File, wanted func(*elffile.File) bool) (*elffile.File, io.Closer, error) {
			return cache.DebugFile(f, program, root{"/proc", uint32(os.Getpid())}, wanted)
		},
	}
	file := &unwindFile{id: symtab.FileID{Ino: 1}, path: program}
	find := func(m made) bpf.ProfileCfaKind {
		i, found := slices.BinarySearchFunc(m.rows, row{offset: at}, byOffset)
		if !found {
			i--
		}
		var r bpf.ProfileUnwindRule
		if err := u.objs.Rules.Lookup(uint32(m.rows[i].rule), &r); err != nil {
			t.Fatal(err)
		}
		return bpf.ProfileCfaKind(r.Cfa)
	}
	if m := u.read(file, from, largeFile); !m.large || m.err != nil {
		t.Errorf("the debug file is read in a hurry: %v, %v", m.large, m.err)
	}
	m := u.read(file, from, maxTableFile)
	if m.large || m.err != nil || find(m) != bpf.ProfileCfaKindCFA_SP {
		t.Errorf("with its debug file: %v, %v, %v", m.large, m.err, find(m))
	}
	// One of another program is left alone.
	if err := os.WriteFile(debug, append(readAll(t, debug), 0), 0o600); err != nil {
		t.Fatal(err)
	}
	byID := filepath.Join(dir, "no id")
	if out, err := exec.Command("objcopy", "--remove-section=.note.gnu.build-id", program, byID).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	from.open = func() (*os.File, error) { return os.Open(byID) }
	if m := u.read(file, from, maxTableFile); m.large || m.err == nil || find(m) != bpf.ProfileCfaKindCFA_NONE {
		t.Errorf("with a debug file whose checksum is wrong: %v, %v, %v", m.large, m.err, find(m))
	}
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
