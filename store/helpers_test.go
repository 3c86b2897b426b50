package store

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/go-kit/log"
	pprof "github.com/google/pprof/profile"
	profilev1 "github.com/grafana/pyroscope/api/gen/proto/go/google/v1"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

// t0 is when the tests' data begins.
var t0 = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)

const cpuID = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

// cpuProfile makes a profile of the stacks (root first, ";" between) with their
// values. labelsOf gives the labels of stack i.
func cpuProfile(tb testing.TB, at time.Time, stacks map[string]int64, labelsOf func(stack string) map[string][]string) *pprof.Profile {
	tb.Helper()
	p := &pprof.Profile{
		SampleType:    []*pprof.ValueType{{Type: "cpu", Unit: "nanoseconds"}},
		PeriodType:    &pprof.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Period:        10_000_000,
		TimeNanos:     at.UnixNano(),
		DurationNanos: int64(15 * time.Second),
	}
	p.Mapping = []*pprof.Mapping{{ID: 1, Start: 0x400000, Limit: 0x800000, File: "/usr/bin/shop", BuildID: "abcd", HasFunctions: true}}
	locs := map[string]*pprof.Location{}
	for stack, v := range stacks {
		s := &pprof.Sample{Value: []int64{v}}
		if labelsOf != nil {
			s.Label = labelsOf(stack)
		}
		names := bytes.Split([]byte(stack), []byte(";"))
		for i := len(names) - 1; i >= 0; i-- {
			name := string(names[i])
			l := locs[name]
			if l == nil {
				f := &pprof.Function{ID: uint64(len(p.Function) + 1), Name: name, SystemName: name, Filename: strings.SplitAfterN(name, ".(", 2)[0] + ".go"}
				p.Function = append(p.Function, f)
				l = &pprof.Location{ID: uint64(len(p.Location) + 1), Mapping: p.Mapping[0], Address: 0x400000 + xxhash.Sum64String(name)%0x400000, Line: []pprof.Line{{Function: f, Line: 7}}}
				p.Location = append(p.Location, l)
				locs[name] = l
			}
			s.Location = append(s.Location, l)
		}
		p.Sample = append(p.Sample, s)
	}
	if err := p.CheckValid(); err != nil {
		tb.Fatal(err)
	}
	return p
}

func encode(tb testing.TB, p *pprof.Profile) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// entry wraps a profile as the agent does.
func entry(tb testing.TB, p *pprof.Profile, service string, extra ...string) *profile.Profile {
	tb.Helper()
	ls := append([]string{LabelName, "process_cpu", LabelService, service}, extra...)
	var n int64
	for _, s := range p.Sample {
		n += s.Value[0] / 10_000_000
	}
	return &profile.Profile{
		Labels: labels.FromStrings(ls...), Type: profile.CPU, Start: time.Unix(0, p.TimeNanos),
		Duration: 15 * time.Second, Pprof: encode(tb, p), Samples: uint64(max(n, 1)),
	}
}

// clock is a clock that tests set.
type clock struct{ nanos atomic.Int64 }

func newClock(at time.Time) *clock {
	c := &clock{}
	c.set(at)
	return c
}

func (c *clock) set(at time.Time) { c.nanos.Store(at.UnixNano()) }

func (c *clock) now() time.Time { return time.Unix(0, c.nanos.Load()) }

func openStore(tb testing.TB, opts Options) (*Store, *ledger.Account) {
	tb.Helper()
	if opts.Path == "" {
		opts.Path = tb.TempDir()
	}
	account := ledger.New().Sink("store")
	s, err := Open(log.NewNopLogger(), nil, account, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s, account
}

func appendAll(tb testing.TB, s *Store, ps ...*profile.Profile) {
	tb.Helper()
	if err := s.Append(context.Background(), ps); err != nil {
		tb.Fatal(err)
	}
}

func matchers(tb testing.TB, pairs ...string) (out []*labels.Matcher) {
	tb.Helper()
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, labels.MustNewMatcher(labels.MatchEqual, pairs[i], pairs[i+1]))
	}
	return out
}

// treeOf flattens a tree: stack (";" between) → self.
func treeOf(t *Tree) map[string]int64 {
	out := map[string]int64{}
	var walk func(node int32, path string)
	walk = func(node int32, path string) {
		if n := t.Nodes[node]; n.Self != 0 {
			out[path] = n.Self
		}
		for _, c := range t.Children(node, nil) {
			p := t.Name(c)
			if path != "" {
				p = path + ";" + p
			}
			walk(c, p)
		}
	}
	walk(0, "")
	return out
}

// synthetic makes profiles such as a busy service's: stacks through a call graph
// in which most calls go one way, so that they share their roots and about two
// functions a stack are distinct; a fifth of the stacks is new each time.
func synthetic(tb testing.TB, service int, at time.Time, stacks, depth int) *pprof.Profile {
	r := rand.New(rand.NewPCG(uint64(service), uint64(at.UnixNano())))
	fixed := rand.New(rand.NewPCG(uint64(service), 0))
	m := map[string]int64{}
	for len(m) < stacks {
		from := fixed
		if len(m)%5 == 0 {
			from = r
		}
		var b bytes.Buffer
		fn := 0
		for d := range depth {
			way := 0
			if from.IntN(6) == 0 {
				way = 1 + from.IntN(2)
			}
			fn = (fn*31 + way + 7*d) % 700
			if d > 0 {
				b.WriteByte(';')
			}
			fmt.Fprintf(&b, "github.com/example/service%d/internal/package%d.(*Type).Function%d", service, fn%100, fn)
		}
		m[b.String()] += 10_000_000
	}
	return cpuProfile(tb, at, m, nil)
}

// unlike makes profiles of n stacks that have nothing in common and cannot be
// compressed much, out of one: its names are overwritten.
func unlike(tb testing.TB, n int) func(at time.Time, service string) *profile.Profile {
	tb.Helper()
	stacks := map[string]int64{}
	for i := range n {
		stacks[fmt.Sprintf("%048d;%016d", i, i)] = 1e7
	}
	raw, err := gunzip(encode(tb, cpuProfile(tb, t0, stacks, nil)), nil, MaxPprofBytes)
	if err != nil {
		tb.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	return func(at time.Time, service string) *profile.Profile {
		raw := bytes.Clone(raw)
		var p wireProfile
		if err := p.parse(raw); err != nil {
			tb.Fatal(err)
		}
		for _, e := range p.strings {
			if b := p.bytes(e); len(b) >= 16 {
				for i := range b {
					b[i] = "0123456789abcdef"[r.IntN(16)]
				}
			}
		}
		return &profile.Profile{
			Labels: labels.FromStrings(LabelName, "process_cpu", LabelService, service), Type: profile.CPU,
			Start: at, Duration: 15 * time.Second, Pprof: raw, Samples: uint64(n),
		}
	}
}

func ps() []*profile.Profile { return nil }

func sampleText(s *pprof.Sample) string {
	var b bytes.Buffer
	for _, l := range s.Location {
		fmt.Fprintf(&b, "%x %s %s", l.Address, l.Mapping.File, l.Mapping.BuildID)
		for _, line := range l.Line {
			fmt.Fprintf(&b, " %s %s:%d", line.Function.Name, line.Function.Filename, line.Line)
		}
		b.WriteByte('\n')
	}
	fmt.Fprint(&b, s.Label, s.NumLabel)
	return b.String()
}

func toGoogle(tb testing.TB, p *profilev1.Profile) *pprof.Profile {
	tb.Helper()
	b, err := p.MarshalVT()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := pprof.ParseData(b)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// tickNow does the keeper's timed work.
func tickNow(tb testing.TB, s *Store) {
	tb.Helper()
	done := make(chan struct{})
	s.ticks <- done
	<-done
}

func dirSize(tb testing.TB, dir string) (n int64) {
	tb.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err == nil && fi.Mode().IsRegular() {
			n += fi.Size()
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return n
}
