package store

import (
	"encoding/binary"
	"fmt"
	"time"
)

// window is the span of time whose profiles are merged into one.
const window = 5 * time.Minute

// windowOf is the number of the window of a time in nanoseconds since 1970.
func windowOf(nanos int64) uint32 { return uint32(nanos / int64(window)) }

// windowEnd is the first time after the window.
func windowEnd(w uint32) time.Time { return time.Unix(0, (int64(w)+1)*int64(window)) }

// indexKeyLen is the length of a key of the index and of the profiles: window,
// time in nanoseconds, a number that makes it unique.
const indexKeyLen = 4 + 8 + 8

func indexKey(nanos int64, seq uint64) []byte {
	k := binary.BigEndian.AppendUint32(make([]byte, 0, indexKeyLen), windowOf(nanos))
	k = binary.BigEndian.AppendUint64(k, uint64(nanos))
	return binary.BigEndian.AppendUint64(k, seq)
}

func indexKeyTime(k []byte) int64 { return int64(binary.BigEndian.Uint64(k[4:])) }

func indexKeyWindow(k []byte) uint32 { return binary.BigEndian.Uint32(k) }

// mergedKey is the key of a merged profile: window and parent.
func mergedKey(w, parent uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(make([]byte, 0, 8), w), parent)
}

func seriesKey(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// indexRow is what the index says of one profile.
type indexRow struct {
	parent   uint32 // series number of the parent
	duration int64  // ns
	samples  uint64
	subs     []indexSub
}

type indexSub struct {
	series     uint32
	valueIndex uint32
	total      int64
}

func (r *indexRow) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(r.parent))
	b = binary.AppendUvarint(b, uint64(r.duration))
	b = binary.AppendUvarint(b, r.samples)
	for _, s := range r.subs {
		b = binary.AppendUvarint(b, uint64(s.series))
		b = binary.AppendUvarint(b, uint64(s.valueIndex))
		b = binary.AppendVarint(b, s.total)
	}
	return b
}

// read decodes b into r, whose subs it reuses.
func (r *indexRow) read(b []byte) error {
	r.subs = r.subs[:0]
	fail := func() error { return fmt.Errorf("index row: %w", errCorrupt) }
	next := func() (v uint64, ok bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	var head [3]uint64
	for i := range head {
		v, ok := next()
		if !ok {
			return fail()
		}
		head[i] = v
	}
	r.parent, r.duration, r.samples = uint32(head[0]), int64(head[1]), head[2]
	for len(b) > 0 {
		series, ok1 := next()
		value, ok2 := next()
		total, n := binary.Varint(b)
		if !ok1 || !ok2 || n <= 0 {
			return fail()
		}
		b = b[n:]
		r.subs = append(r.subs, indexSub{uint32(series), uint32(value), total})
	}
	return nil
}
