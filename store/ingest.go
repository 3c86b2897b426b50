package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/model/labels"
)

// ErrRejected says that a pushed profile is over a limit or lacks something. It
// would be rejected again.
var ErrRejected = errors.New("profile rejected")

func rejected(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRejected, fmt.Sprintf(format, args...))
}

// Ingest stores a profile that another agent pushed. Its labels and time are
// checked against Pyroscope's limits and every part of the pprof (gzip or not) is
// decoded, so that what is stored can be merged. It fails with ErrMalformed or
// ErrRejected if the profile is at fault. The same profile pushed twice, as after
// a lost answer, is stored once. id is the pusher's own name for the profile, or
// empty. Pushed profiles are not entered in the account, which is the
// agent's own.
func (s *Store) Ingest(ctx context.Context, pushed []labels.Label, id string, pprof []byte) error {
	own, err := checkLabels(pushed)
	if err != nil {
		return err
	}
	raw, err := gunzip(pprof, nil, MaxPprofBytes)
	if err != nil {
		return err
	}
	var p wireProfile
	if err := p.parse(raw); err != nil {
		return err
	}
	for _, e := range p.strings {
		if b := p.bytes(e); len(b) > 65_535 || !utf8.Valid(b) {
			return rejected("a string is longer than 65,535 bytes or not UTF-8")
		}
	}
	now := s.opts.now()
	nanos := p.timeNanos
	if nanos == 0 {
		nanos = now.UnixNano()
	}
	switch at := time.Unix(0, nanos); {
	case now.Sub(at) > MaxPushAge:
		return rejected("its time is more than %s ago", MaxPushAge)
	case at.Sub(now) > MaxPushAhead:
		return rejected("its time is more than %s ahead", MaxPushAhead)
	}
	h := xxhash.New()
	_, _ = h.WriteString(id)
	_, _ = h.Write(own.Bytes(nil))
	_, _ = h.Write(raw)
	e, err := s.prepare(own, raw, nanos, max(p.durNanos, 0), h.Sum64())
	if err != nil {
		return err
	}
	e.samples = uint64(len(p.samples))
	return s.send(ctx, &appendRequest{entries: []*appendEntry{e}, done: make(chan struct{})})
}

// checkLabels validates the labels of a pushed series. Labels that begin with
// "__", but for __name__, are the server's own and are left out.
func checkLabels(pushed []labels.Label) (labels.Labels, error) {
	none := labels.EmptyLabels()
	b := labels.NewBuilder(none)
	n := 0
	for _, l := range pushed {
		name := strings.ReplaceAll(l.Name, ".", "_")
		switch {
		case len(name) > MaxLabelNameBytes:
			return none, rejected("a label name is longer than %d bytes", MaxLabelNameBytes)
		case len(l.Value) > MaxLabelValueBytes:
			return none, rejected("the value of label %s is longer than %d bytes", name, MaxLabelValueBytes)
		case !validLabelName(name):
			return none, rejected("%q is no label name", l.Name)
		case !utf8.ValidString(l.Value):
			return none, rejected("the value of label %s is not UTF-8", name)
		case strings.HasPrefix(name, "__") && name != LabelName, l.Value == "":
			continue
		case b.Get(name) != "":
			return none, rejected("label %s is given twice", name)
		}
		if n++; n > MaxSeriesLabels {
			return none, rejected("more than %d labels", MaxSeriesLabels)
		}
		b.Set(name, l.Value)
	}
	if b.Get(LabelName) == "" {
		return none, rejected("label __name__ is missing")
	}
	if strings.ContainsAny(b.Get(LabelName), ":\x1e\x1f") {
		return none, rejected("label __name__ has a colon or a control character")
	}
	if b.Get(LabelService) == "" {
		b.Set(LabelService, "unspecified")
	}
	return b.Labels(), nil
}

// SampleTypes returns the names of a profile's sample types, such as "cpu". The
// profile may be compressed with gzip.
func SampleTypes(pprof []byte) ([]string, error) {
	raw, err := gunzip(pprof, nil, MaxPprofBytes)
	if err != nil {
		return nil, err
	}
	var p wireProfile
	if err := p.parse(raw); err != nil {
		return nil, err
	}
	var out []string
	for _, t := range p.sampleTypes {
		out = append(out, string(p.str(t.typ)))
	}
	return out, nil
}
