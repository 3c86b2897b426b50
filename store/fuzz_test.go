package store

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/protobuf/encoding/protowire"
)

// FuzzIngest takes profiles from strangers: none may crash the store, make it
// use much memory, or be stored such that it cannot be merged.
func FuzzIngest(f *testing.F) {
	for _, stacks := range []map[string]int64{{"main;a": 5, "main;b": 7}, {}, {"x": -3}} {
		p := cpuProfile(f, t0, stacks, func(string) map[string][]string { return map[string][]string{"http.route": {"/a"}} })
		raw := encode(f, p)
		f.Add(raw)
		u, err := gunzip(raw, nil, MaxPprofBytes)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(u)
	}
	f.Add([]byte{0x1f, 0x8b})
	clk := newClock(t0.Add(time.Second))
	s, _ := openStore(f, Options{now: clk.now})
	f.Fuzz(func(t *testing.T, data []byte) {
		err := s.Ingest(context.Background(), []labels.Label{{Name: LabelName, Value: "process_cpu"}, {Name: LabelService, Value: "fuzz"}}, "", data)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrRejected) && !errors.Is(err, ErrFull) {
				t.Fatalf("no fault of the profile: %v", err)
			}
			return
		}
		// What was taken must be mergeable, and valid for others.
		merged, stats, err := s.MergeProfile(context.Background(), typeOf(t, data), nil, time.Time{}, time.Time{})
		if err != nil || stats.Cut != "" {
			t.Fatal(err, stats)
		}
		if len(merged.Sample) == 0 {
			return // no type, or no value but zeros
		}
		b, err := merged.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pprof.ParseData(b); err != nil {
			t.Fatalf("the merged profile is not readable: %v", err)
		}
		if _, _, err := s.MergeTree(context.Background(), typeOf(t, data), nil, time.Time{}, time.Time{}, TreeOptions{}); err != nil {
			t.Fatal(err)
		}
	})
}

// typeOf is the ID of a profile's first type.
func typeOf(t *testing.T, data []byte) string {
	t.Helper()
	raw, err := gunzip(data, nil, MaxPprofBytes)
	if err != nil {
		t.Fatal(err)
	}
	var p wireProfile
	if err := p.parse(raw); err != nil {
		t.Fatal(err)
	}
	types := typesOf(&p)
	return "process_cpu:" + types.sample[0][0] + ":" + types.sample[0][1] + ":" + types.periodType + ":" + types.periodUnit
}

// FuzzIndexRow reads rows from a damaged file.
func FuzzIndexRow(f *testing.F) {
	r := indexRow{parent: 1, duration: 15e9, samples: 7, subs: []indexSub{{2, 0, -5}, {300, 1, 1 << 40}}}
	f.Add(r.append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		var row indexRow
		if err := row.read(data); err != nil {
			return
		}
		var again indexRow
		if err := again.read(row.append(nil)); err != nil || len(again.subs) != len(row.subs) {
			t.Fatalf("written again: %v", err)
		}
	})
}

func TestHostileProfiles(t *testing.T) {
	base, err := gunzip(encode(t, cpuProfile(t, t0, map[string]int64{"main;a": 5}, nil)), nil, MaxPprofBytes)
	if err != nil {
		t.Fatal(err)
	}
	field := func(num protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
	}
	varint := func(num protowire.Number, v uint64) []byte { return appendVarint(nil, num, v) }
	sample := func(locations int) []byte {
		var ids []byte
		for range locations {
			ids = protowire.AppendVarint(ids, 1)
		}
		return field(2, append(field(1, ids), field(2, protowire.AppendVarint(nil, 1))...))
	}
	label := field(3, append(varint(1, 1), varint(2, 2)...))
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, tc := range map[string]struct {
		data []byte
		ok   bool
	}{
		"as it is":          {base, true},
		"deep stack":        {join(base, sample(100_000)), true}, // cut
		"many samples":      {join(base, bytes.Repeat(sample(1), MaxPprofSamples)), false},
		"many labels":       {join(base, field(2, append(field(2, protowire.AppendVarint(nil, 1)), bytes.Repeat(label, MaxSampleLabels+1)...))), false},
		"many strings":      {join(base, bytes.Repeat(field(6, nil), maxTableEntries+1)), false},
		"many types":        {join(base, bytes.Repeat(field(1, nil), maxSampleTypes+1)), false},
		"unknown function":  {join(base, field(4, append(varint(1, 500), field(4, varint(1, 400))...)), field(2, append(varint(1, 500), varint(2, 1)...))), true},
		"unknown location":  {join(base, field(2, append(varint(1, 1<<60), varint(2, 1)...))), true},
		"values missing":    {join(base, field(2, varint(1, 1))), false},
		"string index":      {join(base, field(5, append(varint(1, 99), varint(2, 1<<50)...)), sample(1)), true},
		"huge ids":          {join(base, bytes.Repeat(field(4, varint(1, 1<<63)), 1000)), true},
		"length past end":   {append(bytes.Clone(base), 0x12, 0xff, 0xff, 0xff, 0xff, 0x0f), false},
		"bad wire type":     {append(bytes.Clone(base), 0x17), false},
		"not UTF-8":         {join(base, field(6, []byte{0xff, 0xfe})), false},
		"long string":       {join(base, field(6, bytes.Repeat([]byte("x"), 70_000))), false},
		"colon in the type": {join(field(1, append(varint(1, 1), varint(2, 1)...)), field(6, nil), field(6, []byte("a:b")), varint(9, uint64(t0.UnixNano()))), false},
		"endless lines":     {join(base, field(4, append(varint(1, 500), bytes.Repeat(field(4, varint(1, 1)), 2000)...)), field(2, append(varint(1, 500), varint(2, 1)...))), false},
		"nested gzip":       {gz(t, gz(t, base)), false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := openStore(t, Options{now: newClock(t0).now})
			err := s.Ingest(context.Background(), []labels.Label{{Name: LabelName, Value: "process_cpu"}}, "", tc.data)
			if tc.ok != (err == nil) || err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrRejected) {
				t.Fatalf("%v, want accepted: %v", err, tc.ok)
			}
			tree, stats, err := s.MergeTree(context.Background(), cpuID, nil, time.Time{}, time.Time{}, TreeOptions{})
			if err != nil || stats.Cut != "" || tc.ok != (tree.Total() > 0) {
				t.Errorf("merged: total %d, %+v, %v", tree.Total(), stats, err)
			}
			merged, _, err := s.MergeProfile(context.Background(), cpuID, nil, time.Time{}, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			if tc.ok {
				toGoogle(t, merged)
			}
		})
	}
}

func TestIngestOnce(t *testing.T) {
	s, _ := openStore(t, Options{now: newClock(t0).now})
	raw := encode(t, cpuProfile(t, t0, map[string]int64{"main;a": 5}, nil))
	for _, service := range []string{"a", "a", "b"} {
		if err := s.Ingest(context.Background(), []labels.Label{{Name: LabelName, Value: "process_cpu"}, {Name: LabelService, Value: service}}, "", raw); err != nil {
			t.Fatal(err)
		}
	}
	tree, _, err := s.MergeTree(context.Background(), cpuID, nil, time.Time{}, time.Time{}, TreeOptions{})
	if err != nil || tree.Total() != 10 {
		t.Errorf("total = %d, %v, want 10: the same push twice counts once", tree.Total(), err)
	}
}

func gz(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
