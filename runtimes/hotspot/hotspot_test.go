package hotspot

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/internal/targetmem"
	"github.com/spanflame/spanflame/symtab"
)

// memory is that of a process, by address.
type memory map[uint64]byte

func (m memory) ReadAt(b []byte, addr int64) (int, error) {
	for i := range b {
		c, ok := m[uint64(addr)+uint64(i)]
		if !ok {
			return i, errors.New("nothing is there")
		}
		b[i] = c
	}
	return len(b), nil
}

func (m memory) word(at, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	for i, c := range b {
		m[at+uint64(i)] = c
	}
}

func (m memory) half(at uint64, v uint32) {
	for i := range uint64(4) {
		m[at+i] = byte(v >> (8 * i))
	}
}

func (m memory) short(at uint64, v uint16) { m[at], m[at+1] = byte(v), byte(v>>8) }

func (m memory) text(at uint64, s string) {
	for i := range len(s) {
		m[at+uint64(i)] = s[i]
	}
	m[at+uint64(len(s))] = 0
}

func (m memory) symbol(at uint64, s string) {
	m.short(at+4, uint16(len(s)))
	m.text(at+6, s)
}

// testLayout is that of OpenJDK 17.
var testLayout = layout{
	heaps: 0x10000, heapsLen: 0, heapsData: 8, memory: 8, segmap: 120, log2Segment: 256, lowBoundary: 0, low: 16, high: 24,
	block: 16, blockLength: 0, blockUsed: 8, blockLengthSize: 8, blobName: 96, blobSize: 12, blobHeader: 16, method: 112,
	constMethod: 8, constants: 8, nameIndex: 34, pool: 72, holder: 24, klassName: 24, poolOf: 232, sourceIndex: 54, sourceInPool: true,
	symbolLength: 4, symbolBody: 6,
}

const (
	codeAt   = 0x40000 // of the heap
	segments = 0x60000
	methodAt = 0x50000
)

// process has a compiled method in segments 0 to 3 and the interpreter in 4 to 7.
func process() memory {
	m := memory{}
	m.word(0x10000, 0x10100)
	m.half(0x10100, 1)
	m.word(0x10108, 0x10200)
	m.word(0x10200, 0x10300)
	m.word(0x10300+8, codeAt)
	m.word(0x10300+8+16, codeAt)
	m.word(0x10300+8+24, codeAt+8*128)
	m.word(0x10300+120+16, segments)
	m.word(0x10300+120+24, segments+8)
	m.half(0x10300+256, 7)
	for i, back := range []byte{0, 1, 2, 3, 0, 1, 2, 1} {
		m[segments+uint64(i)] = back
	}
	for i, name := range []string{"nmethod", "Interpreter"} {
		at := uint64(codeAt + 512*i)
		m.word(at, 4)
		m.word(at+8, 1)
		m.half(at+16+12, 400)
		m.word(at+16+96, uint64(0x20000+256*i))
		m.word(at+16+112, methodAt)
		m.text(uint64(0x20000+256*i), name)
		for a := at; a < at+512; a++ {
			if _, ok := m[a]; !ok {
				m[a] = 0
			}
		}
	}
	for i := range uint64(128) {
		m[0x20000+i*4] += 0
	}
	method(m, methodAt, 0x51000, "checkout", "org/example/Shop", "Shop.java")
	method(m, 0x54000, 0x55000, "run\n", "org/example/Loop", "")
	return m
}

func method(m memory, at, more uint64, name, class, file string) {
	pool, klass := more+0x100, more+0x300
	m.word(at+8, more)
	m.word(more+8, pool)
	m.short(more+34, 3)
	m.word(pool+24, klass)
	m.short(pool+54, 0)
	m.word(klass+232, pool)
	m.word(klass+24, more+0x600)
	m.symbol(more+0x600, class)
	m.word(pool+72+8*3, more+0x700)
	m.symbol(more+0x700, name)
	if file != "" {
		m.short(pool+54, 5)
		m.word(pool+72+8*5, more+0x800)
		m.symbol(more+0x800, file)
	}
}

func newSource(t testing.TB, m memory) *source {
	t.Helper()
	l := testLayout
	s := &source{mem: &targetmem.Reader{Memory: m}, l: &l, max: 1 << 20, every: firstWalk,
		blobs: map[uint64]*blob{}, methods: map[uint64]symtab.Frame{}, stubs: map[uint64]string{}}
	if err := s.readHeaps(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFrames(t *testing.T) {
	m := process()
	for i := range uint64(300) { // what follows the texts
		for _, at := range []uint64{0x20000, 0x20100} {
			if _, ok := m[at+i]; !ok {
				m[at+i] = 0
			}
		}
	}
	s := newSource(t, m)
	compiled := symtab.Frame{Name: "org.example.Shop.checkout", File: "Shop.java"}
	for _, tt := range []struct {
		p    madecode.Place
		want symtab.Frame
	}{
		{madecode.Place{Addr: codeAt + 100}, compiled},
		{madecode.Place{Addr: codeAt + 390}, compiled},
		{madecode.Place{Addr: codeAt + 500}, symtab.Frame{}}, // behind its end
		{madecode.Place{Addr: codeAt + 600}, symtab.Frame{Name: "Interpreter"}},
		{madecode.Place{Addr: codeAt + 900, Word: 0x54000}, symtab.Frame{Name: "org.example.Loop.run"}},
		{madecode.Place{Addr: codeAt + 900, Word: 0x54008}, symtab.Frame{Name: "Interpreter"}},
		{madecode.Place{Addr: codeAt + 900, Word: 7}, symtab.Frame{Name: "Interpreter"}},
		{madecode.Place{Addr: codeAt + 8*128}, symtab.Frame{}},
	} {
		got := s.Frames(tt.p)
		if len(got) != 1 && tt.want.Name != "" || len(got) == 1 && got[0] != tt.want {
			t.Errorf("%+v: %+v, want %+v", tt.p, got, tt.want)
		}
	}
	// What was seen is known when the process has ended.
	if _, err := s.Refresh(0); err != nil {
		t.Fatal(err)
	}
	clear(m)
	s.refreshed = s.refreshed.Add(-2 * firstWalk)
	if _, err := s.Refresh(0); err == nil {
		t.Error("no error")
	}
	if got := s.Frames(madecode.Place{Addr: codeAt + 100}); len(got) != 1 || got[0] != compiled {
		t.Errorf("%+v after the end", got)
	}
}

// TestHostile changes the memory at random: nothing may hang, crash or grow.
func TestHostile(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		m := process()
		s := newSource(t, m)
		for a := range m {
			if r.IntN(40) == 0 {
				m[a] = byte(r.Uint32())
			}
		}
		for range 50 {
			s.Frames(madecode.Place{Addr: codeAt + uint64(r.IntN(1024)), Word: 0x50000 + 8*uint64(r.IntN(0x1000))})
		}
		s.refreshed = s.refreshed.Add(-2 * firstWalk)
		_, _ = s.Refresh(0)
		if s.Bytes() > 1<<20 {
			t.Fatal("it has grown")
		}
	}
}
