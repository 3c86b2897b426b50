package profile

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/internal/stack"
)

var (
	series = labels.FromStrings("service_name", "shop")
	t0     = time.Unix(1_700_000_000, 0)
)

func newTestBuilder() *Builder {
	b := NewBuilder(CPU, series, 10*time.Millisecond)
	b.Cover(t0, t0.Add(15*time.Second))
	return b
}

func parse(t *testing.T, p *Profile) *profile.Profile {
	t.Helper()
	got, err := profile.Parse(bytes.NewReader(p.Pprof))
	if err != nil {
		t.Fatal(err)
	}
	if err := got.CheckValid(); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestBuilderMergesEqualStacks(t *testing.T) {
	m := &stack.Mapping{File: "/usr/bin/shop", BuildID: "ab12", HasFunctions: true}
	leaf := &stack.Location{Mapping: m, Address: 0x1000, Lines: []stack.Line{{Function: "inlined", File: "a.c", Line: 3}, {Function: "leaf", File: "a.c", Line: 10}}}
	root := &stack.Location{Mapping: m, Address: 0x2000, Lines: []stack.Line{{Function: "main"}}}
	b := newTestBuilder()
	for i := 0; i < 3; i++ {
		b.Add(&Sample{Stack: []*stack.Location{leaf, root}, Value: 100, Count: 1})
	}
	b.Add(&Sample{Stack: []*stack.Location{root, leaf}, Value: 100, Count: 1})
	b.Add(&Sample{Stack: []*stack.Location{leaf, root}, Value: 100, Count: 1, Labels: Labels{Thread: "worker"}})
	out, lost, err := b.Profiles()
	if err != nil || lost != 0 || len(out) != 1 {
		t.Fatalf("%d profiles, lost %d, %v", len(out), lost, err)
	}
	p := out[0]
	if p.Samples != 5 || b.Samples() != 5 || p.Duration != 15*time.Second || !p.Start.Equal(t0) {
		t.Errorf("profile = %+v", p)
	}
	if got := p.Labels.String(); got != `{__name__="process_cpu", service_name="shop"}` {
		t.Errorf("labels = %s", got)
	}
	got := parse(t, p)
	if len(got.Sample) != 3 || got.Sample[0].Value[0] != 300 || got.Sample[2].Label["thread"][0] != "worker" {
		t.Errorf("samples = %v", got.Sample)
	}
	if got.Period != 10_000_000 || got.PeriodType.Type != "cpu" || got.TimeNanos != t0.UnixNano() || got.DurationNanos != 15e9 {
		t.Errorf("period %d %v, time %d, duration %d", got.Period, got.PeriodType, got.TimeNanos, got.DurationNanos)
	}
	l := got.Sample[0].Location[0]
	if l.Line[0].Function.Name != "inlined" || l.Line[1].Function.Name != "leaf" || l.Line[1].Line != 10 || l.Mapping.BuildID != "ab12" {
		t.Errorf("location = %+v", l)
	}
	if CPU.ID() != "process_cpu:cpu:nanoseconds:cpu:nanoseconds" || OffCPU.ID() != "off_cpu:off_cpu:nanoseconds::" {
		t.Errorf("ids = %s, %s", CPU.ID(), OffCPU.ID())
	}
}

// Whatever a target names its files, threads and functions, a server takes the
// profile.
func TestBuilderMakesUTF8(t *testing.T) {
	long := strings.Repeat("a", 70_000)
	b := newTestBuilder()
	b.Add(&Sample{
		Stack: []*stack.Location{
			{Mapping: &stack.Mapping{File: "/a\xff/b"}, Lines: []stack.Line{{Function: "f\xfe\xff", File: "\xc3"}}},
			{Lines: []stack.Line{{Function: long}}},
		},
		Value: 1, Count: 1, Labels: Labels{Thread: "t\x80"},
	})
	out, _, err := b.Profiles()
	if err != nil {
		t.Fatal(err)
	}
	got := parse(t, out[0])
	s := got.Sample[0]
	if s.Label["thread"][0] != "t?" || s.Location[0].Line[0].Function.Name != "f?" || got.Mapping[0].File != "/a?/b" {
		t.Errorf("%v", got)
	}
	if n := len(s.Location[1].Line[0].Function.Name); n > maxString || n < maxString-10 {
		t.Errorf("a name of %d bytes", n)
	}
}

// manyStacks makes n distinct stacks of the given depth.
func manyStacks(n, depth int) [][]*stack.Location {
	out := make([][]*stack.Location, n)
	locs := make([]*stack.Location, 4000)
	for i := range locs {
		locs[i] = &stack.Location{Address: uint64(i), Lines: []stack.Line{{Function: fmt.Sprintf("package/of/a/long/name.(*Type).Function%d", i)}}}
	}
	for i := 0; i < n; i++ {
		st := make([]*stack.Location, depth)
		for j := range st {
			st[j] = locs[(i*31+j*j*7+i/4000*j)%len(locs)]
		}
		st[0], st[depth-1] = locs[i%len(locs)], locs[i/len(locs)]
		out[i] = st
	}
	return out
}

func TestBuilderSplits(t *testing.T) {
	b := newTestBuilder()
	for _, st := range manyStacks(40_000, 40) {
		b.Add(&Sample{Stack: st, Value: 1, Count: 1})
	}
	out, lost, err := b.Profiles()
	if err != nil || lost != 0 {
		t.Fatal(lost, err)
	}
	var samples uint64
	var value int64
	for _, p := range out {
		if p.UncompressedBytes > MaxUncompressedBytes {
			t.Errorf("a profile of %d bytes", p.UncompressedBytes)
		}
		got := parse(t, p)
		if len(got.Sample) > MaxSamples {
			t.Errorf("a profile of %d samples", len(got.Sample))
		}
		samples += p.Samples
		for _, s := range got.Sample {
			value += s.Value[0]
		}
	}
	if samples != 40_000 || value != 40_000 || len(out) < 3 {
		t.Errorf("%d profiles with %d samples, value %d", len(out), samples, value)
	}
}

func BenchmarkBuild4300Stacks(b *testing.B) {
	stacks := manyStacks(4300, 40)
	for b.Loop() {
		pb := newTestBuilder()
		for _, st := range stacks {
			pb.Add(&Sample{Stack: st, Value: 1, Count: 1})
		}
		if _, _, err := pb.Profiles(); err != nil {
			b.Fatal(err)
		}
	}
}
