// Package profile turns resolved samples into profiles in the pprof format
// (github.com/google/pprof/proto/profile.proto), one for each target and
// profile type a round, split where a server's limits ask for it. It never reads
// a process or a file.
package profile

import (
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// Type names a kind of profile as Pyroscope does.
type Type struct {
	Name       string // series label __name__, e.g. "process_cpu"
	SampleType string // e.g. "cpu"
	SampleUnit string // e.g. "nanoseconds"
	PeriodType string // "" if the type has no period
	PeriodUnit string
}

// The profile types.
var (
	CPU    = Type{Name: "process_cpu", SampleType: "cpu", SampleUnit: "nanoseconds", PeriodType: "cpu", PeriodUnit: "nanoseconds"}
	OffCPU = Type{Name: "off_cpu", SampleType: "off_cpu", SampleUnit: "nanoseconds"}
)

// ID is the type's identity in queries, e.g.
// "process_cpu:cpu:nanoseconds:cpu:nanoseconds".
func (t Type) ID() string {
	return t.Name + ":" + t.SampleType + ":" + t.SampleUnit + ":" + t.PeriodType + ":" + t.PeriodUnit
}

// Limits of one encoded profile. They are Pyroscope's defaults, less a margin:
// 16,000 samples, and a burst of 2 MB uncompressed a tenant.
const (
	MaxSamples           = 16_000
	MaxUncompressedBytes = 1_500_000
)

// Profile is one encoded profile: what is pushed and what is stored. It is
// immutable once made and may be shared by several sinks.
type Profile struct {
	// Labels are the series labels: __name__, service_name (never empty) and
	// those of the target. No other label begins with "__".
	Labels labels.Labels
	Type   Type
	Start  time.Time // time_nanos of the pprof
	// Duration is the time that the profile covers.
	Duration time.Duration
	// Pprof is the gzip-compressed pprof.
	Pprof []byte
	// UncompressedBytes is the size of the pprof before compression.
	UncompressedBytes int
	// Samples counts the kernel's samples in the profile (not the pprof's
	// sample entries); the ledger of each sink adds it up.
	Samples uint64
}
