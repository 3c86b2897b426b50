package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"google.golang.org/protobuf/encoding/protowire"
)

// Limits of one profile that is taken in. They are Pyroscope's defaults
// (validation.max-profile-size-bytes and its siblings), plus bounds on the tables
// that the samples refer to.
const (
	MaxPprofBytes   = 4 << 20 // uncompressed
	MaxPprofSamples = 16_000
	MaxSampleLabels = 100
	MaxStackDepth   = 1_000 // frames further from the root are cut

	maxSampleTypes  = 64
	maxTableEntries = 1 << 18 // of each: locations, functions, mappings, strings
)

// ErrMalformed says that bytes are no profile, or one over a limit.
var ErrMalformed = errors.New("malformed profile")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

var gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}

// gunzip returns the uncompressed profile: data itself if it is not gzip, else
// in buf, if it is large enough. It reads no more than limit bytes, so that a
// small body cannot fill the memory.
func gunzip(data, buf []byte, limit int) ([]byte, error) {
	if len(data) < 2 || data[0] != 0x1f || data[1] != 0x8b {
		if len(data) > limit {
			return nil, malformed("%d bytes, the limit is %d", len(data), limit)
		}
		return data, nil
	}
	r := gzipReaders.Get().(*gzip.Reader)
	defer gzipReaders.Put(r)
	if err := r.Reset(bytes.NewReader(data)); err != nil {
		return nil, malformed("gzip: %v", err)
	}
	out := bytes.NewBuffer(buf[:0])
	// Profiles compress about four to one; the bound keeps a lie in check.
	out.Grow(min(4*len(data), limit) + bytes.MinRead)
	n, err := io.Copy(out, io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, malformed("gzip: %v", err)
	}
	if n > int64(limit) {
		return nil, malformed("more than %d bytes uncompressed", limit)
	}
	return out.Bytes(), nil
}

// extent is a part of a buffer.
type extent struct{ off, end uint32 }

type valueType struct{ typ, unit uint64 }

// wireProfile is a shallow view of an encoded profile (profile.proto of
// google/pprof): where its messages are, not what is in them. It is reused from
// profile to profile and valid as long as buf.
type wireProfile struct {
	buf         []byte
	sampleTypes []valueType
	samples     []extent
	mappings    []extent
	locations   []extent
	functions   []extent
	strings     []extent
	periodType  valueType
	period      int64
	timeNanos   int64
	durNanos    int64
}

func (p *wireProfile) bytes(e extent) []byte { return p.buf[e.off:e.end] }

// str returns string i. An index beyond the table is the empty string, as a
// profile that refers to it is nevertheless countable.
func (p *wireProfile) str(i uint64) []byte {
	if i >= uint64(len(p.strings)) {
		return nil
	}
	return p.bytes(p.strings[i])
}

// parse reads the top level of a profile that comes from outside.
func (p *wireProfile) parse(buf []byte) error {
	if err := p.scan(buf, MaxPprofSamples, maxTableEntries); err != nil {
		return err
	}
	if len(p.sampleTypes) == 0 {
		return malformed("no sample type")
	}
	if len(p.strings) == 0 {
		return malformed("no string table")
	}
	return nil
}

// scan finds the messages of buf, at most so many samples and entries of each
// table.
func (p *wireProfile) scan(buf []byte, maxSamples, maxEntries int) error {
	p.buf = buf
	p.sampleTypes, p.samples, p.mappings = p.sampleTypes[:0], p.samples[:0], p.mappings[:0]
	p.locations, p.functions, p.strings = p.locations[:0], p.functions[:0], p.strings[:0]
	p.periodType, p.period, p.timeNanos, p.durNanos = valueType{}, 0, 0, 0
	for off := 0; off < len(buf); {
		num, typ, n := protowire.ConsumeTag(buf[off:])
		if n < 0 {
			return malformed("tag at byte %d: %v", off, protowire.ParseError(n))
		}
		off += n
		switch typ {
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(buf[off:])
			if n < 0 {
				return malformed("field %d: %v", num, protowire.ParseError(n))
			}
			off += n
			e := extent{uint32(off - len(v)), uint32(off)}
			if err := p.addMessage(num, e, maxSamples, maxEntries); err != nil {
				return err
			}
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(buf[off:])
			if n < 0 {
				return malformed("field %d: %v", num, protowire.ParseError(n))
			}
			off += n
			switch num {
			case 9:
				p.timeNanos = int64(v)
			case 10:
				p.durNanos = int64(v)
			case 12:
				p.period = int64(v)
			}
		default:
			n := protowire.ConsumeFieldValue(num, typ, buf[off:])
			if n < 0 {
				return malformed("field %d: %v", num, protowire.ParseError(n))
			}
			off += n
		}
	}
	return nil
}

func (p *wireProfile) addMessage(num protowire.Number, e extent, maxSamples, maxEntries int) error {
	add := func(to *[]extent, limit int, what string) error {
		if len(*to) >= limit {
			return malformed("more than %d %s", limit, what)
		}
		*to = append(*to, e)
		return nil
	}
	switch num {
	case 1:
		if len(p.sampleTypes) >= maxSampleTypes {
			return malformed("more than %d sample types", maxSampleTypes)
		}
		vt, err := parseValueType(p.bytes(e))
		if err != nil {
			return err
		}
		p.sampleTypes = append(p.sampleTypes, vt)
	case 2:
		return add(&p.samples, maxSamples, "samples")
	case 3:
		return add(&p.mappings, maxEntries, "mappings")
	case 4:
		return add(&p.locations, maxEntries, "locations")
	case 5:
		return add(&p.functions, maxEntries, "functions")
	case 6:
		return add(&p.strings, maxEntries, "strings")
	case 11:
		var err error
		p.periodType, err = parseValueType(p.bytes(e))
		return err
	}
	return nil
}

// varints calls f for each varint field of a message and sub for each
// length-delimited one. Other fields are passed over.
func varints(b []byte, f func(num protowire.Number, v uint64), sub func(num protowire.Number, v []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed("%v", protowire.ParseError(n))
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return malformed("%v", protowire.ParseError(n))
			}
			b = b[n:]
			f(num, v)
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return malformed("%v", protowire.ParseError(n))
			}
			b = b[n:]
			if sub != nil {
				if err := sub(num, v); err != nil {
					return err
				}
			}
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return malformed("%v", protowire.ParseError(n))
			}
			b = b[n:]
		}
	}
	return nil
}

func parseValueType(b []byte) (vt valueType, err error) {
	err = varints(b, func(num protowire.Number, v uint64) {
		switch num {
		case 1:
			vt.typ = v
		case 2:
			vt.unit = v
		}
	}, nil)
	return vt, err
}

// wireLabel is a label of a sample; str is 0 if it is a numeric one.
type wireLabel struct{ key, str, num, unit uint64 }

// wireSample is one decoded sample. It is reused from sample to sample.
type wireSample struct {
	locations []uint64 // leaf first
	values    []int64
	labels    []wireLabel
	rawLabels []byte // the encoded labels one after the other: their identity within the profile
}

// readSample decodes sample i of a profile that comes from outside. A stack
// deeper than MaxStackDepth keeps its root side.
func (p *wireProfile) readSample(i int, s *wireSample) error {
	if err := p.readStack(i, s); err != nil {
		return err
	}
	if len(s.values) != len(p.sampleTypes) {
		return malformed("a sample has %d values for %d sample types", len(s.values), len(p.sampleTypes))
	}
	if n := len(s.locations); n > MaxStackDepth {
		s.locations = append(s.locations[:0], s.locations[n-MaxStackDepth:]...)
	}
	return nil
}

// readStack decodes sample i as it is.
func (p *wireProfile) readStack(i int, s *wireSample) error {
	s.locations, s.values, s.labels, s.rawLabels = s.locations[:0], s.values[:0], s.labels[:0], s.rawLabels[:0]
	return varints(p.bytes(p.samples[i]), func(num protowire.Number, v uint64) {
		switch num {
		case 1:
			s.locations = append(s.locations, v)
		case 2:
			s.values = append(s.values, int64(v))
		}
	}, func(num protowire.Number, b []byte) error {
		switch num {
		case 1, 2: // packed
			for len(b) > 0 {
				v, n := uint64(b[0]), 1
				if v >= 0x80 {
					if v, n = protowire.ConsumeVarint(b); n < 0 {
						return malformed("sample: %v", protowire.ParseError(n))
					}
				}
				b = b[n:]
				if num == 1 {
					s.locations = append(s.locations, v)
				} else {
					s.values = append(s.values, int64(v))
				}
			}
		case 3:
			if len(s.labels) >= MaxSampleLabels {
				return malformed("more than %d labels on a sample", MaxSampleLabels)
			}
			var l wireLabel
			if err := varints(b, func(num protowire.Number, v uint64) {
				switch num {
				case 1:
					l.key = v
				case 2:
					l.str = v
				case 3:
					l.num = v
				case 4:
					l.unit = v
				}
			}, nil); err != nil {
				return err
			}
			s.labels = append(s.labels, l)
			s.rawLabels = protowire.AppendBytes(s.rawLabels, b)
		}
		return nil
	})
}

// idTable finds the position of a table entry by its id. Ids are nearly always
// 1, 2, 3 …, for which a slice does; others go to a map.
type idTable struct {
	dense  []uint32 // position+1 by id
	sparse map[uint64]uint32
}

// fill reads the ids (field 1) of the entries. The first entry of an id wins.
func (t *idTable) fill(p *wireProfile, entries []extent) error {
	limit := 2*len(entries) + 64
	if cap(t.dense) < limit {
		t.dense = make([]uint32, limit)
	}
	t.dense = t.dense[:limit]
	clear(t.dense)
	t.sparse = nil
	for pos, e := range entries {
		id, err := firstVarint(p.bytes(e))
		if err != nil {
			return err
		}
		if id < uint64(limit) {
			if t.dense[id] == 0 {
				t.dense[id] = uint32(pos) + 1
			}
			continue
		}
		if t.sparse == nil {
			t.sparse = map[uint64]uint32{}
		}
		if _, ok := t.sparse[id]; !ok {
			t.sparse[id] = uint32(pos)
		}
	}
	return nil
}

func (t *idTable) find(id uint64) (pos uint32, ok bool) {
	if id < uint64(len(t.dense)) {
		return t.dense[id] - 1, t.dense[id] != 0
	}
	pos, ok = t.sparse[id]
	return pos, ok
}

// firstVarint returns field 1 of a message, 0 if it has none.
func firstVarint(b []byte) (uint64, error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, malformed("%v", protowire.ParseError(n))
		}
		b = b[n:]
		if num == 1 && typ == protowire.VarintType {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return 0, malformed("%v", protowire.ParseError(n))
			}
			return v, nil
		}
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			return 0, malformed("%v", protowire.ParseError(n))
		}
		b = b[n:]
	}
	return 0, nil
}
