package harness

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
)

// How off-CPU profiles are asked for, and what is in them.
const (
	// OffCPUFlag makes record write a second file, of off-CPU time.
	OffCPUFlag = "--off-cpu"
	// MaxEventsFlag says how many stacks it takes, a second and CPU.
	MaxEventsFlag = "--max-events"
	// ThreadsFlag makes it keep threads apart.
	ThreadsFlag = "--threads"
	// OffCPUSampleType is the type of the values, in nanoseconds.
	OffCPUSampleType = "off_cpu"
	// WaitLabel says why a thread waited: one of the Wait… below.
	WaitLabel = "wait"
	// ThreadLabel is the thread's name.
	ThreadLabel = "thread"
)

// Values of WaitLabel.
const (
	WaitLock      = "lock"
	WaitDisk      = "disk"
	WaitNetwork   = "network"
	WaitSleep     = "sleep"
	WaitPipe      = "pipe"
	WaitPoll      = "poll"
	WaitPageFault = "page_fault"
	WaitRunQueue  = "run_queue"
	WaitOther     = "other"
)

// offCPUFile is the second file that record writes: F.off_cpu.pb.gz beside F.pb.gz.
func offCPUFile(file string) string {
	return strings.TrimSuffix(file, ".pb.gz") + ".off_cpu.pb.gz"
}

// OffCPUProfile reads a profile of off-CPU time.
type OffCPUProfile struct {
	*pprof.Profile
	value int // index of off_cpu/nanoseconds
}

// NewOffCPUProfile finds the profile's off-CPU time. It fails if there is none, or if the
// profile is not whole.
func NewOffCPUProfile(p *pprof.Profile) (*OffCPUProfile, error) {
	if err := p.CheckValid(); err != nil {
		return nil, err
	}
	for i, st := range p.SampleType {
		if st.Type == OffCPUSampleType && st.Unit == "nanoseconds" {
			return &OffCPUProfile{Profile: p, value: i}, nil
		}
	}
	return nil, fmt.Errorf("the profile has no %s/nanoseconds: %v", OffCPUSampleType, p.SampleType)
}

// OffCPU reads the off-CPU profile of a recording that has ended.
func (r *Recording) OffCPU(t TB) *OffCPUProfile {
	t.Helper()
	p, err := NewOffCPUProfile(readProfile(t, offCPUFile(r.file)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Start is when the time that the profile covers begins.
func (p *OffCPUProfile) Start() time.Time { return time.Unix(0, p.TimeNanos) }

// End is when it ends.
func (p *OffCPUProfile) End() time.Time { return p.Start().Add(time.Duration(p.DurationNanos)) }

// Labelled matches samples whose label has one of the values.
func Labelled(label string, values ...string) Match {
	return func(s *pprof.Sample) bool {
		return slices.ContainsFunc(s.Label[label], func(v string) bool { return slices.Contains(values, v) })
	}
}

// Time is the off-CPU time of the samples that match; nil matches all.
func (p *OffCPUProfile) Time(m Match) time.Duration {
	var sum time.Duration
	for _, s := range p.Sample {
		if m == nil || m(s) {
			sum += time.Duration(s.Value[p.value])
		}
	}
	return sum
}

// By is the off-CPU time of the samples that match, by the value of a label; "" is the time
// of those without it.
func (p *OffCPUProfile) By(label string, m Match) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, s := range p.Sample {
		if m != nil && !m(s) {
			continue
		}
		value := ""
		if v := s.Label[label]; len(v) > 0 {
			value = v[0]
		}
		out[value] += time.Duration(s.Value[p.value])
	}
	return out
}

// Describe prints the stacks with most time, for the message of a test that fails.
func (p *OffCPUProfile) Describe(m Match) string {
	sum := map[string]time.Duration{}
	for _, s := range p.Sample {
		if m == nil || m(s) {
			key := fmt.Sprintf("%v %v %s", s.Label[ThreadLabel], s.Label[WaitLabel], strings.Join(Frames(s), " < "))
			sum[key] += time.Duration(s.Value[p.value])
		}
	}
	var lines []string
	for stack, d := range sum {
		lines = append(lines, fmt.Sprintf("%9.4f  %s", d.Seconds(), stack))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return "seconds off CPU, thread, wait, and stack (innermost first):\n" + strings.Join(lines[:min(len(lines), 30)], "\n")
}

// OffCPUAccount is what record says of the spells off CPU.
type OffCPUAccount struct {
	Sampled uint64 `json:"sampled"`  // with their stacks
	LeftOut uint64 `json:"left_out"` // those that were sampled stand for them, too
}

// EstimateError is the standard deviation of the estimated time of a part of the spells off
// CPU that are sampled, if all of them take a time and that many of them were. The chance to
// be sampled is the same for all spells of a place and goes with their root mean square, so
// that of the n of a place m = n·p are sampled, where m goes with the place's time. The
// variance of Σ d/p is n·E[d²]·(1−p)/p, which is no more than (part²/m)·E[d²]/E[d]²; the
// last factor is that of an exponential distribution, 2.
func EstimateError(part, all time.Duration, sampled uint64) time.Duration {
	return time.Duration(math.Sqrt(2 * float64(part) * float64(all) / float64(max(sampled, 1))))
}

// SamplingError is the standard deviation of the CPU time that a sampler with this period
// says a thread used: each tick of the elapsed time hits it with the same probability.
func SamplingError(cpu, elapsed, period time.Duration) time.Duration {
	n, busy := float64(elapsed)/float64(period), min(1, float64(cpu)/float64(elapsed))
	return time.Duration(float64(period) * math.Sqrt(n*busy*(1-busy)))
}

// CheckNear tests that a time is what it should be, to within the tolerance.
func CheckNear(t TB, what string, got, want, tolerance time.Duration) {
	t.Helper()
	off := got - want
	text := fmt.Sprintf("%s: %.4f s, in truth %.4f s, off by %+.4f s", what, got.Seconds(), want.Seconds(), off.Seconds())
	if off.Abs() > tolerance {
		t.Errorf("%s, more than the %.4f s allowed", text, tolerance.Seconds())
		return
	}
	t.Logf("%s (allowed %.4f s)", text, tolerance.Seconds())
}
