package symtab

import (
	"os"
	"testing"
)

func BenchmarkKallsyms(b *testing.B) {
	b.ReportAllocs()
	var k *Kernel
	for b.Loop() {
		var err error
		if k, err = LoadKernel(nil, Options{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(k.Bytes())/float64(k.Symbols()), "B/symbol")
	b.ReportMetric(float64(k.Symbols()), "symbols")
}

func BenchmarkLoad(b *testing.B) {
	for _, path := range []string{"/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/local/go/bin/go", "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so", "/usr/bin/node"} {
		b.Run(path, func(b *testing.B) {
			if _, err := os.Stat(path); err != nil {
				b.Skip(err)
			}
			b.ReportAllocs()
			c := NewCache(nil, nil, Options{})
			defer c.Close()
			for b.Loop() {
				m := c.Module(FileID{}, path, func() (*os.File, error) { return os.Open(path) }, nil)
				if m.Err() != nil {
					b.Fatal(m.Err())
				}
				c.forget(m, m.state.Load())
			}
		})
	}
}
