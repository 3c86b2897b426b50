package unwind

import (
	"debug/elf"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/spanflame/spanflame/internal/elffile"
)

// largest is the path of the largest file that patterns match.
func largest(patterns ...string) (path string) {
	size := int64(0)
	for _, p := range patterns {
		m, _ := filepath.Glob(p)
		for _, f := range m {
			if fi, err := os.Stat(f); err == nil && fi.Size() > size {
				size, path = fi.Size(), f
			}
		}
	}
	return path
}

// BenchmarkRead: rows per second on one core, and how large tables are. A table's size
// is that of its rows and rules in memory.
func BenchmarkRead(b *testing.B) {
	for name, path := range map[string]string{
		"libc":    largest("/lib/*-linux-gnu/libc.so.6", "/lib64/libc.so.6"),
		"node":    largest("/usr/bin/node"),
		"libLLVM": largest("/usr/lib/*-linux-gnu/libLLVM*"),
	} {
		b.Run(name, func(b *testing.B) {
			if path == "" {
				b.Skip("it is not on this machine")
			}
			f := openELF(b, path)
			text := uint64(0)
			for i := range f.Loads {
				if f.Loads[i].Flags&elf.PF_X != 0 {
					text += f.Loads[i].FileLen
				}
			}
			b.ReportAllocs()
			var t *Table
			for b.Loop() {
				t = readAgain(b, f)
			}
			size := float64(len(t.Rows))*float64(unsafe.Sizeof(Row{})) + float64(len(t.Rules))*float64(unsafe.Sizeof(Rule{}))
			b.ReportMetric(float64(len(t.Rows)*b.N)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(len(t.Rows)), "rows")
			b.ReportMetric(float64(len(t.Rules)), "rules")
			b.ReportMetric(size/(float64(text)/(1<<20)), "B/MB-text")
			b.ReportMetric(float64(len(t.Rows))/(float64(text)/(1<<20)), "rows/MB-text")
		})
	}
}

func readAgain(b *testing.B, f *elffile.File) *Table {
	t, err := Read(f, nil, Options{})
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// BenchmarkFind looks addresses up in the order that a hash puts them in.
func BenchmarkFind(b *testing.B) {
	path := largest("/lib/*-linux-gnu/libc.so.6", "/lib64/libc.so.6")
	if path == "" {
		b.Skip("libc is not on this machine")
	}
	t := read(b, path)
	first, last := uint64(t.Rows[0].Addr), uint64(t.Rows[len(t.Rows)-1].Addr)
	i, found := uint64(0), 0
	for b.Loop() {
		i += 0x9e3779b97f4a7c15
		if t.Find(VirtAddr(first+i%(last-first))).CFA != CFANone {
			found++
		}
	}
	if found == 0 {
		b.Error("nothing was found")
	}
}
