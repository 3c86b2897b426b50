package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/spanflame/spanflame/test/harness"
)

// warmUp is the time after the start that is left out: the kernel does not have the
// tables yet. It is one round.
const warmUp = 5 * time.Second

// figures are those of one program.
type figures struct {
	program
	ends       map[string]float64 // user stacks by how they ended
	jit        float64            // of these, those left out because of code made at run time
	early      float64            // part of the stacks of the warm-up that was whole
	frames     float64            // mean, those of the kernel too
	bpf        time.Duration      // a sample
	rows       float64            // of tables, loaded
	bytes      float64            // of tables and mappings in the kernel
	build      float64            // seconds
	unnamed    float64            // part of the frames that is not named
	lost       float64            // samples that were dropped, though of a target
	names      map[string]float64 // what the stacks that are not whole end in
	bpfSamples uint64
}

func measure(p program, d time.Duration) (f figures, err error) {
	r := &harness.Runner{}
	defer r.Stop()
	defer r.Catch(&err)
	f.program = p
	r.Logf("%s, %s", p.name, d)
	p.start(r)
	a := harness.StartAgent(r, fmt.Sprintf(`
global: { push_interval: %s }
symbols: { unknown: module_offset }
target_configs:
  - job_name: bench
    process_sd_configs: [{}]
    relabel_configs:
      - source_labels: [__meta_process_exe]
        regex: '%s'
        action: keep
      - target_label: service_name
        replacement: bench
`, warmUp, p.exe))
	const lag = 700 * time.Millisecond // from a round's end to its figures
	time.Sleep(time.Until(a.Started.Add(warmUp + 2*lag)))
	from := time.Now()
	m0 := a.Metrics(r)
	bpf0, runs0 := harness.SamplerCost(r, a.PID)
	time.Sleep(d)
	bpf1, runs1 := harness.SamplerCost(r, a.PID)
	m1 := a.Metrics(r)

	const ends = "spanflame_session_user_stacks_total"
	early := m0.By(ends, "end")
	f.ends = m1.By(ends, "end")
	f.early = whole(early)
	for end, n := range early {
		f.ends[end] -= n
	}
	delete(f.ends, "none")
	if f.bpfSamples = runs1 - runs0; f.bpfSamples > 0 {
		f.bpf = (bpf1 - bpf0) / time.Duration(f.bpfSamples)
	}
	f.rows = m1.Sum("spanflame_session_unwind_rows_loaded_total")
	f.bytes = m1.Sum("spanflame_session_unwind_table_bytes")
	f.build = m1.Sum("spanflame_session_unwind_table_seconds")
	for reason, n := range m1.By("spanflame_samples_dropped_total", "reason") {
		if reason != "no_target" {
			f.lost += n
		}
	}
	f.read(r, a, from)
	if total(f.ends) < 100 {
		r.Fatalf("%.0f stacks are too few", total(f.ends))
	}
	return f, nil
}

// read fills in what only the profile says.
func (f *figures) read(r *harness.Runner, a *harness.Agent, from time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	raw, err := a.MergeProfile(ctx, harness.CPUType, "{}", from, time.Now())
	if err != nil {
		r.Fatal(err)
	}
	p, err := harness.NewProfile(raw)
	if err != nil {
		r.Fatal(err)
	}
	var samples, frames, unnamed float64
	f.names = map[string]float64{}
	jitEnds := map[string]float64{}
	for _, s := range p.Sample {
		n := float64(s.Value[0]) / float64(p.Period)
		names := harness.Frames(s)
		end := harness.Cut(names)
		if end != "" {
			names = names[:len(names)-1]
		}
		if f.program.jit && slices.ContainsFunc(names, isJIT) {
			jitEnds[end] += n
			continue
		}
		samples += n
		frames += n * float64(len(names))
		for _, name := range names {
			if strings.HasPrefix(name, "[") {
				unnamed += n
			}
		}
		if end != "" && len(s.Location) > 1 {
			f.names[end+" at "+lastPlace(s)] += n
		}
	}
	if samples > 0 {
		f.frames, f.unnamed = frames/samples, unnamed/max(frames, 1)
	}
	if f.program.jit {
		// The profile covers the rounds that the metrics do, but for the edges.
		f.jit = total(jitEnds)
		f.ends = p.Ends(func(s *pprof.Sample) bool { return !slices.ContainsFunc(harness.Frames(s), isJIT) })
		f.ends["whole"] += f.ends[""]
		delete(f.ends, "")
	}
}

func isJIT(name string) bool { return name == "[anonymous code]" }

// lastPlace says what the last frame before the marker is: its function and file, or file and
// offset.
func lastPlace(s *pprof.Sample) string {
	l := s.Location[len(s.Location)-2]
	name := ""
	if len(l.Line) > 0 {
		name = l.Line[len(l.Line)-1].Function.Name
	}
	if l.Mapping == nil || l.Mapping.File == "" || strings.HasPrefix(name, "[") {
		return name
	}
	return name + " of " + l.Mapping.File[strings.LastIndexByte(l.Mapping.File, '/')+1:]
}

func total(ends map[string]float64) float64 {
	var n float64
	for _, v := range ends {
		n += v
	}
	return n
}

// whole is the part of the stacks that is.
func whole(ends map[string]float64) float64 { return ends["whole"] / max(1, total(ends)-ends["none"]) }
