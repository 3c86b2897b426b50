package symtab

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestCodeMap compares with memory in which every byte knows what was written last.
func TestCodeMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		m := newCodeMap(1 << 20)
		var truth [512]string
		for i := range 100 {
			start, size := uint64(r.IntN(500)), uint64(1+r.IntN(40))
			size = min(size, 512-start)
			name := fmt.Sprintf("f%d", i%37)
			if r.IntN(8) == 0 {
				name = ""
				m.remove(start, size)
			} else if !m.add(start, size, Frame{Name: name}, linesOf{}) {
				t.Fatal("refused")
			}
			for a := start; a < start+size; a++ {
				truth[a] = name
			}
			if r.IntN(10) == 0 {
				m.merge()
			}
			if r.IntN(30) == 0 {
				m.merge()
				m.compact()
			}
		}
		for a := range truth {
			if f, _ := m.find(uint64(a)); f.Name != truth[a] {
				t.Fatalf("round %d: %q at %d, want %q", round, f.Name, a, truth[a])
			}
		}
		for i := 1; i < len(m.spans); i++ {
			if m.spans[i].start < m.spans[i-1].end {
				t.Fatal("spans overlap")
			}
		}
	}
}

// TestCodeMapIsBounded enters far more than there is room for: what it still says is true.
func TestCodeMapIsBounded(t *testing.T) {
	const max = 256 << 10
	m := newCodeMap(max)
	for i := range 100_000 {
		m.add(uint64(i)*16, 16, Frame{Name: fmt.Sprintf("function %d", i), File: fmt.Sprint("file ", i/100)},
			linesOf{[]codeLine{{0, uint32(i), 0}, {8, uint32(i) + 1, 0}}, []string{fmt.Sprint("file ", i/100)}})
		if m.size() > max {
			t.Fatalf("%d bytes, want %d at most", m.size(), max)
		}
	}
	if m.flushed == 0 {
		t.Error("it never was full")
	}
	known := 0
	for i := range 100_000 {
		f, ok := m.find(uint64(i)*16 + 9)
		if !ok {
			continue
		}
		known++
		if want := (Frame{fmt.Sprintf("function %d", i), fmt.Sprint("file ", i/100), i + 1}); f != want {
			t.Fatalf("%v, want %v", f, want)
		}
	}
	if f, _ := m.find(99_999 * 16); f.Name != "function 99999" || known < 100 {
		t.Errorf("the last is %v, and %d are known", f, known)
	}
}

// TestCodeMapReused has code that is made anew again and again: there is room for it.
func TestCodeMapReused(t *testing.T) {
	m := newCodeMap(1 << 20)
	for i := range 300_000 {
		m.add(uint64(i%100)*64, 64, Frame{Name: fmt.Sprintf("function %d", i)}, linesOf{})
	}
	if f, _ := m.find(99 * 64); f.Name != "function 299999" {
		t.Errorf("%v", f)
	}
	if m.size() > 1<<20 {
		t.Errorf("%d bytes", m.size())
	}
}
