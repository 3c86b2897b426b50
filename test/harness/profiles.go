package harness

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
)

// Profile reads a profile of CPU time.
type Profile struct {
	*pprof.Profile
	value int // index of cpu/nanoseconds
}

// NewProfile finds the profile's CPU time. It fails if there is none, or if it is
// not whole.
func NewProfile(p *pprof.Profile) (*Profile, error) {
	if err := p.CheckValid(); err != nil {
		return nil, err
	}
	for i, st := range p.SampleType {
		if st.Type == "cpu" && st.Unit == "nanoseconds" {
			return &Profile{Profile: p, value: i}, nil
		}
	}
	return nil, fmt.Errorf("the profile has no cpu/nanoseconds: %v", p.SampleType)
}

// Start and End are the time that the profile covers.
func (p *Profile) Start() time.Time { return time.Unix(0, p.TimeNanos) }

// End is the end of the time that the profile covers.
func (p *Profile) End() time.Time { return p.Start().Add(time.Duration(p.DurationNanos)) }

// Match says whether a sample counts.
type Match func(*pprof.Sample) bool

// InFunction matches samples with the function anywhere in their stack.
func InFunction(name string) Match {
	return func(s *pprof.Sample) bool { return slices.Contains(Frames(s), name) }
}

// InFile matches samples with a frame of the mapped file, given by its base name.
// With file names that only one process maps, it matches the process.
func InFile(base string) Match {
	return func(s *pprof.Sample) bool {
		return slices.ContainsFunc(s.Location, func(l *pprof.Location) bool {
			return l.Mapping != nil && filepath.Base(strings.TrimSuffix(l.Mapping.File, " (deleted)")) == base
		})
	}
}

// All matches samples that all of ms match.
func All(ms ...Match) Match {
	return func(s *pprof.Sample) bool {
		return !slices.ContainsFunc(ms, func(m Match) bool { return !m(s) })
	}
}

// Time is the CPU time of the samples that match; nil matches all.
func (p *Profile) Time(m Match) time.Duration {
	var sum time.Duration
	for _, s := range p.Sample {
		if m == nil || m(s) {
			sum += time.Duration(s.Value[p.value])
		}
	}
	return sum
}

// Samples is how many samples of the sampler match: time over period.
func (p *Profile) Samples(m Match) float64 {
	return float64(p.Time(m)) / float64(p.Period)
}

// Matching are the samples that match.
func (p *Profile) Matching(m Match) []*pprof.Sample {
	var out []*pprof.Sample
	for _, s := range p.Sample {
		if m(s) {
			out = append(out, s)
		}
	}
	return out
}

// Frames are the function names of a stack, innermost first; "" where one is not
// known.
func Frames(s *pprof.Sample) []string {
	out := make([]string, 0, len(s.Location))
	for _, l := range s.Location {
		if len(l.Line) == 0 {
			out = append(out, "")
		}
		for _, line := range l.Line {
			name := ""
			if line.Function != nil {
				name = line.Function.Name
			}
			out = append(out, name)
		}
	}
	return out
}

// Describe prints the stacks that use most, for the message of a test that fails.
func (p *Profile) Describe(m Match) string {
	sum := map[string]float64{}
	for _, s := range p.Sample {
		if m == nil || m(s) {
			sum[strings.Join(Frames(s), " < ")] += float64(s.Value[p.value]) / float64(p.Period)
		}
	}
	var lines []string
	for stack, n := range sum {
		lines = append(lines, fmt.Sprintf("%8.1f  %s", n, stack))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return "samples and stacks (innermost first):\n" + strings.Join(lines[:min(len(lines), 25)], "\n")
}

// CheckShare tests that of n samples, got belong to something whose true share is
// known: within 4 standard deviations of the sampling error, which is binomial.
func CheckShare(t TB, what string, got, n, truth float64) {
	t.Helper()
	if n < 30 {
		t.Errorf("%s: %.0f samples are too few to say anything", what, n)
		return
	}
	sigma := math.Sqrt(truth * (1 - truth) / n)
	share := got / n
	// One sample is the smallest step that there is.
	if off := math.Abs(share - truth); off > 4*sigma+1/n {
		t.Errorf("%s: %.2f %% of %.0f samples, in truth %.2f %%: off by %.1f sigma", what, 100*share, n, 100*truth, off/sigma)
		return
	}
	t.Logf("%s: %.2f %% of %.0f samples, in truth %.2f %% (sigma %.2f %%)", what, 100*share, n, 100*truth, 100*sigma)
}

// CheckTotal tests that the profiled time is the CPU time that was used, within 2 %
// and the error that sampling itself makes: a clock that ticks every period hits
// one busy spell to within one sample; and if the program was busy only for part of
// the elapsed time (a CPU that others use, too), each tick hits it with that
// probability, which gives 4 standard deviations of a binomial more.
func CheckTotal(t TB, what string, got, truth, elapsed, period time.Duration) {
	t.Helper()
	n := float64(elapsed) / float64(period)
	busy := min(1, float64(truth)/float64(elapsed))
	allowed := 0.02*float64(truth) + float64(period)*(1+4*math.Sqrt(n*busy*(1-busy)))
	off := float64(got - truth)
	text := fmt.Sprintf("%s: %.3f s profiled, %.3f s used, off by %+.2f %%", what, got.Seconds(), truth.Seconds(), 100*off/float64(truth))
	if math.Abs(off) > allowed {
		t.Errorf("%s, more than the %.2f %% allowed", text, 100*allowed/float64(truth))
		return
	}
	t.Logf("%s (allowed %.2f %%)", text, 100*allowed/float64(truth))
}

// RootFrames are the functions that a whole user stack may begin in.
var RootFrames = []string{
	"main", "_start", "__libc_start_main", "__libc_start_main_impl", "__libc_start_call_main", "start_thread", "__clone", "clone", "__clone3", "clone3", "__start_context",
	"runtime.goexit", "runtime.goexit.abi0", "runtime.rt0_go", "runtime.rt0_go.abi0", "_rt0_amd64", "_rt0_arm64_linux", "runtime.mstart", "runtime.mstart.abi0",
	// Where Go's scheduler begins, and on arm64 signal handlers, on stacks of their own.
	"runtime.mcall", "runtime.mcall.abi0", "runtime.morestack", "runtime.morestack.abi0", "runtime.sigtramp", "runtime.sigtramp.abi0",
}

// markerPrefix begins the root frame that says why a stack is not whole.
const markerPrefix = "[truncated: "

// Cut says why a stack is not whole, as its marker does; "" if there is none.
func Cut(frames []string) string {
	if len(frames) == 0 {
		return ""
	}
	reason, ok := strings.CutPrefix(frames[len(frames)-1], markerPrefix)
	if !ok {
		return ""
	}
	return strings.TrimSuffix(reason, "]")
}

// Ends adds up the samples that match by why their stack is cut; "" are those that are
// not.
func (p *Profile) Ends(m Match) map[string]float64 {
	ends := map[string]float64{}
	for _, s := range p.Sample {
		if m == nil || m(s) {
			ends[Cut(Frames(s))] += float64(s.Value[p.value]) / float64(p.Period)
		}
	}
	return ends
}

// IsWhole says whether a stack ends in a root frame. A marker behind it is passed
// over: the C library keeps no frame pointers, so that an unwinder that follows
// them alone cannot know that nothing comes after __libc_start_call_main.
func IsWhole(frames []string) bool {
	for len(frames) > 0 && strings.HasPrefix(frames[len(frames)-1], "[truncated") {
		frames = frames[:len(frames)-1]
	}
	if len(frames) == 0 {
		return false
	}
	// Whatever version the symbol has (__libc_start_main@@GLIBC_2.34).
	name, _, _ := strings.Cut(frames[len(frames)-1], "@")
	return slices.Contains(RootFrames, name)
}

// Any matches samples that one of ms matches.
func Any(ms ...Match) Match {
	return func(s *pprof.Sample) bool {
		return slices.ContainsFunc(ms, func(m Match) bool { return m(s) })
	}
}
