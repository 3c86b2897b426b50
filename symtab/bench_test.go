package symtab

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// benchFiles are files to measure, as far as this machine has them.
func benchFiles() map[string]string {
	files := map[string]string{}
	for name, pattern := range map[string]string{
		"libc": "/lib/*-linux-gnu/libc.so.6", "libstdc++": "/usr/lib/*-linux-gnu/libstdc++.so.6", "libjvm": "/usr/lib/jvm/*/lib/server/libjvm.so",
	} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // the pattern is well formed
			files[name] = found[0]
		}
	}
	for _, name := range []string{"go", "node"} {
		if path, err := exec.LookPath(name); err == nil {
			if path, err = filepath.EvalSymlinks(path); err == nil {
				files[name] = path
			}
		}
	}
	return files
}

func BenchmarkLoad(b *testing.B) {
	for name, path := range benchFiles() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			c := newCache(b, Options{})
			m := c.Module(FileID{}, path, func() (*os.File, error) { return os.Open(path) }, nil)
			for b.Loop() {
				if err := m.Err(); err != nil {
					b.Fatal(err)
				}
				c.forget(m, m.state.Load())
			}
		})
	}
}

// BenchmarkFrames asks for addresses that were asked for before.
func BenchmarkFrames(b *testing.B) {
	for name, path := range benchFiles() {
		b.Run(name, func(b *testing.B) {
			c := newCache(b, Options{Inline: true})
			m := c.Module(FileID{}, path, func() (*os.File, error) { return os.Open(path) }, nil)
			lay := m.ready().layout[0]
			r := rand.New(rand.NewPCG(1, 2))
			offs := make([]FileOffset, 0, 4096)
			for len(offs) < cap(offs) {
				if off := lay.off + FileOffset(r.Uint32N(lay.size)); m.Frames(off) != nil {
					offs = append(offs, off)
				}
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				m.Frames(offs[i%len(offs)])
				i++
			}
		})
	}
}

func BenchmarkKernelLoad(b *testing.B) {
	b.ReportAllocs()
	var k *Kernel
	for b.Loop() {
		var err error
		if k, err = LoadKernel(nil, Options{}); err != nil {
			b.Skip(err)
		}
	}
	b.ReportMetric(float64(k.Bytes())/float64(k.Symbols()), "B/symbol")
	b.ReportMetric(float64(k.Symbols()), "symbols")
}

func BenchmarkKernelLookup(b *testing.B) {
	k, err := LoadKernel(nil, Options{})
	if err != nil {
		b.Skip(err)
	}
	reg := k.cur.Load().regions[0]
	r := rand.New(rand.NewPCG(1, 2))
	addrs := make([]uint64, 2048)
	for i := range addrs {
		addrs[i] = reg.base + uint64(reg.table.starts[r.IntN(reg.table.len())])
		k.Lookup(addrs[i])
	}
	i := 0
	for b.Loop() {
		k.Lookup(addrs[i%len(addrs)])
		i++
	}
}
