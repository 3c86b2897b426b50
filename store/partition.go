package store

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/klauspost/compress/zstd"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
)

// A partition is the symbols and stacks of one parent in one segment. On disk it
// is a row of fragments, each a google.v1.Profile with only what was new: strings,
// mappings, functions, locations (ids go on from fragment to fragment) and, as
// samples without values, stacks with their labels. Fragments one behind the other
// are again one such message, as protobuf's repeated fields are. A profile is then
// a list of stack numbers with values.

// Bounds of a partition when it is read back.
const (
	maxPartitionBytes  = 64 << 20
	maxPartitionStacks = 1 << 21
	maxPartitionTable  = 1 << 21
)

// hash128 stands for the content of a table's entry. With random seeds, 128 bits
// are as good as the content.
type hash128 [2]uint64

var hashSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func hashOf(b []byte) hash128 {
	return hash128{maphash.Bytes(hashSeeds[0], b), maphash.Bytes(hashSeeds[1], b)}
}

// table numbers distinct entries.
type table map[hash128]uint32

// partition is what the writer knows of a parent's fragments: about 40 bytes an
// entry, whatever its length.
type partition struct {
	strings, mappings, functions, locations, stacks table

	fragments uint32 // written
	used      bool   // since the last sweep
}

func newPartition() *partition {
	return &partition{strings: table{}, mappings: table{}, functions: table{}, locations: table{}, stacks: table{}}
}

func (p *partition) entries() int {
	return len(p.strings) + len(p.mappings) + len(p.functions) + len(p.locations) + len(p.stacks)
}

// readPartition reads a parent's fragments and puts them together. buf is reused.
func readPartition(tx *bolt.Tx, dec *zstd.Decoder, parent uint32, buf []byte) (joined []byte, fragments uint32, err error) {
	joined = buf[:0]
	c := tx.Bucket(bucketSymbols).Cursor()
	for k, v := c.Seek(symbolsKey(parent, 0)); len(k) == 8 && binary.BigEndian.Uint32(k) == parent; k, v = c.Next() {
		if binary.BigEndian.Uint32(k[4:]) != fragments {
			return nil, 0, fmt.Errorf("symbols: a fragment is missing: %w", errCorrupt)
		}
		fragments++
		if v, err = checkSum(v); err != nil {
			return nil, 0, fmt.Errorf("symbols: %w", err)
		}
		if len(v) == 0 {
			return nil, 0, fmt.Errorf("symbols: %w", errCorrupt)
		}
		if v[0] == fragmentPlain {
			joined = append(joined, v[1:]...)
		} else if joined, err = dec.DecodeAll(v[1:], joined); err != nil {
			return nil, 0, fmt.Errorf("symbols: %w: %w", errCorrupt, err)
		}
		if len(joined) > maxPartitionBytes {
			return nil, 0, fmt.Errorf("symbols: more than %d bytes: %w", maxPartitionBytes, errCorrupt)
		}
	}
	return joined, fragments, nil
}

// How a fragment is stored: its first byte.
const (
	fragmentPlain = 0
	fragmentZstd  = 1
)

// minCompress is the size from which a fragment is compressed.
const minCompress = 256

func packFragment(enc *zstd.Encoder, b []byte) []byte {
	if len(b) < minCompress {
		return withSum(append([]byte{fragmentPlain}, b...))
	}
	return withSum(enc.EncodeAll(b, []byte{fragmentZstd}))
}

// loadPartition makes the writer's tables of what a segment has, after a restart
// or a pause of the parent.
func loadPartition(tx *bolt.Tx, dec *zstd.Decoder, parent uint32) (*partition, error) {
	joined, n, err := readPartition(tx, dec, parent, nil)
	if err != nil {
		return nil, err
	}
	var w wireProfile
	if err := w.scan(joined, maxPartitionStacks, maxPartitionTable); err != nil {
		return nil, fmt.Errorf("symbols: %w: %w", errCorrupt, err)
	}
	p := newPartition()
	p.fragments = n
	for i, e := range w.strings {
		p.strings[hashOf(w.bytes(e))] = uint32(i)
	}
	for i, e := range w.samples {
		p.stacks[hashOf(w.bytes(e))] = uint32(i)
	}
	for _, t := range []struct {
		to table
		of []extent
	}{{p.mappings, w.mappings}, {p.functions, w.functions}, {p.locations, w.locations}} {
		for i, e := range t.of {
			b := w.bytes(e)
			_, _, tag := protowire.ConsumeTag(b)
			if tag < 0 {
				return nil, fmt.Errorf("symbols: %w", errCorrupt)
			}
			_, id := protowire.ConsumeVarint(b[tag:])
			if id < 0 {
				return nil, fmt.Errorf("symbols: %w", errCorrupt)
			}
			t.to[hashOf(b[tag+id:])] = uint32(i) + 1
		}
	}
	return p, nil
}

// interner turns a profile into a partition's terms: what is new goes into
// fragment, and the profile becomes samples.
type interner struct {
	part     *partition
	p        *wireProfile
	fragment []byte
	samples  []internedSample
	values   []int64 // those of the samples, one behind the other

	sample                           wireSample
	strIdx, locIdx, funcIdx, mapIdx  []uint32 // by position: 0 not yet, else number+1
	locIDs, funcIDs, mapIDs          idTable
	msg, locMsg, lineMsg, packed, fn []byte
}

type internedSample struct {
	stack uint32
	at    int // in values
}

// intern reads all of the profile that its samples use.
func (in *interner) intern(part *partition, p *wireProfile) error {
	in.part, in.p = part, p
	in.fragment, in.samples, in.values = in.fragment[:0], in.samples[:0], in.values[:0]
	in.strIdx = cleared(in.strIdx, len(p.strings))
	in.locIdx = cleared(in.locIdx, len(p.locations))
	in.funcIdx = cleared(in.funcIdx, len(p.functions))
	in.mapIdx = cleared(in.mapIdx, len(p.mappings))
	for _, t := range []struct {
		ids *idTable
		of  []extent
	}{{&in.locIDs, p.locations}, {&in.funcIDs, p.functions}, {&in.mapIDs, p.mappings}} {
		if err := t.ids.fill(p, t.of); err != nil {
			return err
		}
	}
	in.string(nil) // the first string of a table is empty
	for i := range p.samples {
		if err := p.readSample(i, &in.sample); err != nil {
			return err
		}
		stack, err := in.stack()
		if err != nil {
			return err
		}
		in.samples = append(in.samples, internedSample{stack, len(in.values)})
		in.values = append(in.values, in.sample.values...)
	}
	return nil
}

// encodeSamples is the profile as it is stored: for each stack, in order, the
// distance to the stack before it and the values.
func (in *interner) encodeSamples() []byte {
	slices.SortFunc(in.samples, func(a, b internedSample) int { return int(int64(a.stack) - int64(b.stack)) })
	n := len(in.p.sampleTypes)
	var out []byte
	last := uint32(0)
	for i := 0; i < len(in.samples); {
		s := in.samples[i]
		sum := in.values[s.at : s.at+n]
		for i++; i < len(in.samples) && in.samples[i].stack == s.stack; i++ {
			for j := range sum {
				sum[j] = satAdd(sum[j], in.values[in.samples[i].at+j])
			}
		}
		out = binary.AppendUvarint(out, uint64(s.stack-last))
		last = s.stack
		for _, v := range sum {
			out = binary.AppendVarint(out, v)
		}
	}
	return withSum(out)
}

// add returns the number of an entry, first for the first one, and puts a new
// one into the fragment.
func (in *interner) add(t table, num protowire.Number, body []byte, first uint32) uint32 {
	h := hashOf(body)
	if n, ok := t[h]; ok {
		return n
	}
	n := uint32(len(t)) + first
	t[h] = n
	in.fragment = protowire.AppendTag(in.fragment, num, protowire.BytesType)
	if first == 0 {
		in.fragment = protowire.AppendBytes(in.fragment, body)
		return n
	}
	size := protowire.SizeTag(1) + protowire.SizeVarint(uint64(n)) + len(body)
	in.fragment = protowire.AppendVarint(in.fragment, uint64(size))
	in.fragment = appendVarint(in.fragment, 1, uint64(n))
	in.fragment = append(in.fragment, body...)
	return n
}

func (in *interner) string(b []byte) uint32 { return in.add(in.part.strings, 6, b, 0) }

// str numbers string i of the profile.
func (in *interner) str(i uint64) uint64 {
	if i >= uint64(len(in.strIdx)) {
		return 0
	}
	if in.strIdx[i] == 0 {
		in.strIdx[i] = in.string(in.p.str(i)) + 1
	}
	return uint64(in.strIdx[i] - 1)
}

// stack numbers in.sample.
func (in *interner) stack() (uint32, error) {
	in.packed = in.packed[:0]
	for _, id := range in.sample.locations {
		loc, err := in.location(id)
		if err != nil {
			return 0, err
		}
		in.packed = protowire.AppendVarint(in.packed, uint64(loc))
	}
	in.msg = protowire.AppendTag(in.msg[:0], 1, protowire.BytesType)
	in.msg = protowire.AppendBytes(in.msg, in.packed)
	for _, l := range in.sample.labels {
		b := appendVarint(in.packed[:0], 1, in.str(l.key))
		b = appendVarint(b, 2, in.str(l.str))
		b = appendVarint(b, 3, l.num)
		b = appendVarint(b, 4, in.str(l.unit))
		in.msg = protowire.AppendTag(in.msg, 3, protowire.BytesType)
		in.msg = protowire.AppendBytes(in.msg, b)
		in.packed = b
	}
	return in.add(in.part.stacks, 2, in.msg, 0), nil
}

// location numbers a location. An id that the profile does not define is a
// location of which nothing is known.
func (in *interner) location(id uint64) (uint32, error) {
	pos, ok := in.locIDs.find(id)
	if ok && in.locIdx[pos] != 0 {
		return in.locIdx[pos] - 1, nil
	}
	var loc wireLocation
	if ok {
		if err := loc.parse(in.p.bytes(in.p.locations[pos])); err != nil {
			return 0, err
		}
	}
	mapping, err := in.mapping(loc.mapping)
	if err != nil {
		return 0, err
	}
	in.locMsg = appendVarint(in.locMsg[:0], 2, mapping)
	in.locMsg = appendVarint(in.locMsg, 3, loc.address)
	for _, l := range loc.lines {
		f, err := in.function(l.function)
		if err != nil {
			return 0, err
		}
		if f == 0 {
			continue // readers of pprofs refuse a line without its function
		}
		in.lineMsg = appendVarint(appendVarint(in.lineMsg[:0], 1, f), 2, l.line)
		in.locMsg = protowire.AppendTag(in.locMsg, 4, protowire.BytesType)
		in.locMsg = protowire.AppendBytes(in.locMsg, in.lineMsg)
	}
	in.locMsg = appendVarint(in.locMsg, 5, uint64(b2u(loc.folded)))
	n := in.add(in.part.locations, 4, in.locMsg, 1)
	if ok {
		in.locIdx[pos] = n + 1
	}
	return n, nil
}

// function numbers a function, 0 if the profile has none of that id.
func (in *interner) function(id uint64) (uint64, error) {
	pos, ok := in.funcIDs.find(id)
	if !ok {
		return 0, nil
	}
	if in.funcIdx[pos] == 0 {
		if err := in.message(in.p.functions[pos], 2, 3, 4); err != nil {
			return 0, err
		}
		in.funcIdx[pos] = in.add(in.part.functions, 5, in.fn, 1) + 1
	}
	return uint64(in.funcIdx[pos] - 1), nil
}

// mapping numbers a mapping, 0 if the profile has none of that id.
func (in *interner) mapping(id uint64) (uint64, error) {
	pos, ok := in.mapIDs.find(id)
	if !ok {
		return 0, nil
	}
	if in.mapIdx[pos] == 0 {
		if err := in.message(in.p.mappings[pos], 5, 6, 0); err != nil {
			return 0, err
		}
		in.mapIdx[pos] = in.add(in.part.mappings, 3, in.fn, 1) + 1
	}
	return uint64(in.mapIdx[pos] - 1), nil
}

// maxMessageField is the last field of a mapping or a function (profile.proto).
const maxMessageField = 10

// message rewrites a message of plain fields in in.fn, without its id, and with
// its strings (the named fields) numbered anew.
func (in *interner) message(e extent, str1, str2, str3 protowire.Number) error {
	in.fn = in.fn[:0]
	var fields [maxMessageField + 1]uint64 // the last value wins, and they come in order
	err := varints(in.p.bytes(e), func(num protowire.Number, v uint64) {
		if num > 1 && num <= maxMessageField {
			fields[num] = v
		}
	}, nil)
	if err != nil {
		return err
	}
	for num := protowire.Number(2); num <= maxMessageField; num++ {
		v := fields[num]
		if num == str1 || num == str2 || num == str3 {
			v = in.str(v)
		}
		in.fn = appendVarint(in.fn, num, v)
	}
	return nil
}

// addSamples adds a stored profile's values of one sample type, of types, by
// stack to sums, which grows as is needed.
func addSamples(sums []int64, b []byte, types, valueIndex int) ([]int64, error) {
	b, err := checkSum(b)
	if err != nil {
		return sums, fmt.Errorf("samples: %w", err)
	}
	stack := uint64(0)
	for len(b) > 0 {
		d, n := binary.Uvarint(b)
		if n <= 0 || d > maxPartitionStacks {
			return sums, fmt.Errorf("samples: %w", errCorrupt)
		}
		b = b[n:]
		if stack += d; stack >= maxPartitionStacks {
			return sums, fmt.Errorf("samples: %w", errCorrupt)
		}
		for i := range types {
			v, n := binary.Varint(b)
			if n <= 0 {
				return sums, fmt.Errorf("samples: %w", errCorrupt)
			}
			b = b[n:]
			if i != valueIndex {
				continue
			}
			if stack >= uint64(len(sums)) {
				sums = append(sums, make([]int64, int(stack)+1-len(sums))...)
			}
			sums[stack] = satAdd(sums[stack], v)
		}
	}
	return sums, nil
}
