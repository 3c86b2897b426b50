package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// indexKeyLen is the length of a key of the index and of the samples: the time in
// nanoseconds and a number that makes it unique.
const indexKeyLen = 8 + 8

func indexKey(nanos int64, seq uint64) []byte {
	k := binary.BigEndian.AppendUint64(make([]byte, 0, indexKeyLen), uint64(nanos))
	return binary.BigEndian.AppendUint64(k, seq)
}

func indexKeyTime(k []byte) int64 { return int64(binary.BigEndian.Uint64(k)) }

func seriesKey(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// symbolsKey is the key of a fragment of a parent's symbols.
func symbolsKey(parent, n uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(make([]byte, 0, 8), parent), n)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// withSum appends a checksum: a damaged file must be found out, not believed.
func withSum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// checkSum verifies and removes the checksum.
func checkSum(b []byte) ([]byte, error) {
	n := len(b) - 4
	if n < 0 || crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return nil, fmt.Errorf("checksum: %w", errCorrupt)
	}
	return b[:n], nil
}

// indexRow is what the index says of one profile.
type indexRow struct {
	parent   uint32 // series number of the parent
	duration int64  // ns
	period   int64  // the pprof's
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
	b = binary.AppendUvarint(b, uint64(r.period))
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
	var head [4]uint64
	for i := range head {
		v, ok := next()
		if !ok {
			return fail()
		}
		head[i] = v
	}
	r.parent, r.duration, r.period, r.samples = uint32(head[0]), int64(head[1]), int64(head[2]), head[3]
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
