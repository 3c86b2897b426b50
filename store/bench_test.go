package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/profile"
)

// fill stores rounds of profiles, every 15 s, of the services, each with the
// given stacks. Profiles are made once and only their times change, as making
// them takes longer than storing them.
func fill(b *testing.B, s *Store, clk *clock, services, rounds, stacks, depth int) {
	b.Helper()
	const variants = 8
	made := make([][]*profile.Profile, services)
	for svc := range services {
		for v := range variants {
			made[svc] = append(made[svc], entry(b, synthetic(b, svc, t0.Add(time.Duration(v)), stacks, depth), fmt.Sprintf("service%d", svc)))
		}
	}
	for r := range rounds {
		clk.set(t0.Add(time.Duration(r) * 15 * time.Second))
		batch := make([]*profile.Profile, 0, services)
		for svc := range services {
			p := *made[svc][r%variants]
			p.Start = clk.now()
			batch = append(batch, &p)
		}
		if err := s.Append(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
		if r%20 == 19 {
			tickNow(b, s)
		}
	}
	clk.set(clk.now().Add(time.Second))
}

// BenchmarkAppend stores one round of 20 services: 500 stacks of 30 frames each.
func BenchmarkAppend(b *testing.B) {
	clk := newClock(t0)
	s, _ := openStore(b, Options{now: clk.now})
	var batch []*profile.Profile
	for svc := range 20 {
		batch = append(batch, entry(b, synthetic(b, svc, t0, 500, 30), fmt.Sprintf("service%d", svc)))
	}
	size, raw := 0, 0
	for _, p := range batch {
		size += len(p.Pprof)
		u, err := gunzip(p.Pprof, nil, MaxPprofBytes)
		if err != nil {
			b.Fatal(err)
		}
		raw += len(u)
	}
	for i := 0; b.Loop(); i++ {
		for _, p := range batch {
			p.Start = t0.Add(time.Duration(i) * time.Millisecond)
		}
		if err := s.Append(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/20, "µs/profile")
	b.ReportMetric(float64(size)/20, "gzip_B/profile")
	b.ReportMetric(float64(raw)/20, "raw_B/profile")
}

// BenchmarkMerge asks for 15 minutes of 20 services and for 6 hours of one.
func BenchmarkMerge(b *testing.B) {
	for _, bc := range []struct {
		name             string
		services, rounds int
		m                []*labels.Matcher
	}{
		{"15m_of_20_services", 20, 60, nil},
		{"6h_of_1_service", 1, 1440, nil},
	} {
		clk := newClock(t0)
		s, _ := openStore(b, Options{now: clk.now, MaxBytes: 4 << 30, Retention: 24 * time.Hour})
		fill(b, s, clk, bc.services, bc.rounds, 500, 30)
		from, to := t0, clk.now()
		b.Run(bc.name+"/tree", func(b *testing.B) {
			for b.Loop() {
				t, stats, err := s.MergeTree(context.Background(), cpuID, bc.m, from, to, TreeOptions{})
				if err != nil || stats.Profiles != bc.services*bc.rounds || t.Total() == 0 {
					b.Fatal(err, stats)
				}
				b.ReportMetric(float64(stats.Partitions), "partitions")
			}
		})
		b.Run(bc.name+"/pprof", func(b *testing.B) {
			for b.Loop() {
				if _, stats, err := s.MergeProfile(context.Background(), cpuID, bc.m, from, to); err != nil || stats.Cut != "" {
					b.Fatal(err, stats)
				}
			}
		})
		b.Run(bc.name+"/series", func(b *testing.B) {
			for b.Loop() {
				if _, _, err := s.SelectSeries(context.Background(), cpuID, bc.m, from, to, []string{LabelService}, time.Minute, Sum, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Logf("%s: %d bytes on disk", bc.name, dirSize(b, s.opts.Path))
	}
}

// BenchmarkResident stores 40 services for half an hour with the smaller profiles
// of a 2-core host and says what the process's resident memory grew by.
func BenchmarkResident(b *testing.B) {
	for b.Loop() {
		runtime.GC()
		before := resident(b)
		clk := newClock(t0)
		s, _ := openStore(b, Options{now: clk.now})
		fill(b, s, clk, 40, 120, 60, 30)
		after := resident(b)
		runtime.GC()
		b.ReportMetric(float64(after["VmRSS"]-before["VmRSS"])/1024, "MB_more")
		b.ReportMetric(float64(after["RssFile"]-before["RssFile"])/1024, "MB_file_more")
		b.Logf("before %v after %v, %d bytes on disk", before, after, dirSize(b, filepath.Clean(s.opts.Path)))
	}
}

// resident reads the memory figures of /proc/self/status, in kB.
func resident(tb testing.TB) map[string]int64 {
	tb.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]int64{}
	for _, line := range strings.Split(string(data), "\n") {
		name, rest, _ := strings.Cut(line, ":")
		if name == "VmRSS" || name == "RssAnon" || name == "RssFile" {
			var n int64
			if _, err := fmt.Sscan(rest, &n); err != nil {
				tb.Fatal(err)
			}
			out[name] = n
		}
	}
	return out
}
