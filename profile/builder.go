package profile

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/internal/stack"
)

// Sample is one stack to add to a profile.
type Sample struct {
	Stack  []*stack.Location // the innermost frame first
	Value  int64             // in the type's unit
	Count  uint64            // the kernel's samples in it
	Labels Labels
}

// Labels are the labels of a sample; "" is none.
type Labels struct {
	Thread string // thread: its name
	Wait   string // wait: why it was off its CPU
	Idle   bool   // idle="true": it waited for work
}

// Builder collects the samples of one target and profile type in one round. It is
// not safe for concurrent use.
type Builder struct {
	typ       Type
	series    labels.Labels
	start     time.Time
	end       time.Time
	period    int64
	entries   map[uint64]*entry
	order     []*entry
	ids       map[*stack.Location]uint32
	locations []*stack.Location // by id, less one
	stack     []uint32          // of the sample that is being added
}

// entry is a distinct stack with what was added up under it.
type entry struct {
	locations []uint32
	labels    Labels
	value     int64
	count     uint64
	next      *entry // another stack with the same hash
}

// NewBuilder makes a builder. series are the labels of the target, to which
// __name__ is added. period is the time between samples, 0 if the type has none.
func NewBuilder(typ Type, series labels.Labels, period time.Duration) *Builder {
	b := labels.NewBuilder(series)
	b.Set(model.MetricNameLabel, typ.Name)
	return &Builder{
		typ: typ, series: b.Labels(), period: period.Nanoseconds(),
		entries: map[uint64]*entry{}, ids: map[*stack.Location]uint32{},
	}
}

// Cover extends the time that the profile covers.
func (b *Builder) Cover(start, end time.Time) {
	if b.start.IsZero() || start.Before(b.start) {
		b.start = start
	}
	if end.After(b.end) {
		b.end = end
	}
}

// Add adds a sample. The stack's locations are kept, the slice is not.
func (b *Builder) Add(s *Sample) {
	h := uint64(14695981039346656037)
	b.stack = b.stack[:0]
	for _, l := range s.Stack {
		id, ok := b.ids[l]
		if !ok {
			b.locations = append(b.locations, l)
			id = uint32(len(b.locations))
			b.ids[l] = id
		}
		b.stack = append(b.stack, id)
		h = (h ^ uint64(id)) * 1099511628211
		h ^= h >> 29
	}
	for e := b.entries[h]; e != nil; e = e.next {
		if e.labels == s.Labels && slices.Equal(e.locations, b.stack) {
			e.value += s.Value
			e.count += s.Count
			return
		}
	}
	e := &entry{locations: slices.Clone(b.stack), labels: s.Labels, value: s.Value, count: s.Count, next: b.entries[h]}
	b.entries[h] = e
	b.order = append(b.order, e)
}

// Samples is the number of the kernel's samples that were added.
func (b *Builder) Samples() uint64 {
	var n uint64
	for _, e := range b.order {
		n += e.count
	}
	return n
}

// Profiles encodes what was added, in as many profiles as the limits ask for. On
// an error the samples that are in no profile are lost, and their number is
// returned.
func (b *Builder) Profiles() (out []*Profile, lost uint64, err error) {
	work := [][]*entry{b.order}
	for len(work) > 0 {
		part := work[0]
		work = work[1:]
		if len(part) == 0 {
			continue
		}
		if len(part) > MaxSamples {
			work = append(work, part[:MaxSamples], part[MaxSamples:])
			continue
		}
		p, perr := b.encode(part)
		if perr != nil {
			err = perr
			for _, e := range part {
				lost += e.count
			}
			continue
		}
		if p.UncompressedBytes > MaxUncompressedBytes && len(part) > 1 {
			work = append(work, part[:len(part)/2], part[len(part)/2:])
			continue
		}
		out = append(out, p)
	}
	return out, lost, err
}

func (b *Builder) encode(part []*entry) (*Profile, error) {
	raw, samples := b.pprof(part)
	packed, err := compress(raw)
	if err != nil {
		return nil, err
	}
	return &Profile{
		Labels: b.series, Type: b.typ, Start: b.start, Duration: b.end.Sub(b.start),
		Pprof: packed, UncompressedBytes: len(raw), Samples: samples,
	}, nil
}

func compress(raw []byte) ([]byte, error) {
	var packed bytes.Buffer
	zw, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress a profile: %w", err)
	}
	if _, err := zw.Write(raw); err != nil {
		return nil, fmt.Errorf("compress a profile: %w", err)
	}
	if err := zw.Close(); err != nil {
		return nil, fmt.Errorf("compress a profile: %w", err)
	}
	return packed.Bytes(), nil
}

// Merged is all that was added as one gzip-compressed pprof, whatever its size.
func (b *Builder) Merged() ([]byte, error) {
	raw, _ := b.pprof(b.order)
	return compress(raw)
}

// pprof encodes some of the entries, and returns the number of their samples.
func (b *Builder) pprof(part []*entry) ([]byte, uint64) {
	e := newEncoder(b.locations)
	e.valueType(profileSampleType, b.typ.SampleType, b.typ.SampleUnit)
	if b.typ.PeriodType != "" {
		e.valueType(profilePeriodType, b.typ.PeriodType, b.typ.PeriodUnit)
		e.varint(profilePeriod, uint64(b.period))
	}
	e.varint(profileTimeNanos, uint64(b.start.UnixNano()))
	e.varint(profileDurationNanos, uint64(b.end.Sub(b.start).Nanoseconds()))
	var samples uint64
	for _, s := range part {
		e.sample(s)
		samples += s.count
	}
	return e.finish(), samples
}
