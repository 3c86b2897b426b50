package store

import (
	"encoding/binary"
	"errors"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Limits of one merge. A merge that reaches one stops there and says so.
const (
	maxMergedStacks = 200_000
	maxMergedBytes  = 48 << 20 // of interned strings, locations and stacks
)

var errMergeFull = errors.New("the merged profile reached its size limit")

type (
	mappingKey struct {
		start, limit, offset    uint64
		file, build             uint32
		hasFuncs, hasFiles      bool
		hasLines, hasInlineFunc bool
	}
	functionKey struct {
		name, system, file uint32
		startLine          int64
	}
)

// merger adds up the stacks of partitions. Everything is interned as it comes, by
// content; what the stacks do not use is never looked at. It is not safe for
// concurrent use.
type merger struct {
	// tree, if not nil, takes the samples: what looks the same in a flame graph is
	// merged, a location is its functions' names, and labels are left out.
	tree *treeBuilder

	sampleType [2]uint32 // of the result: type and unit
	periodType [2]uint32
	period     int64
	timeNanos  int64
	durNanos   int64

	strings   map[string]uint32
	stringTab []string
	mappings  map[mappingKey]uint32
	mapTab    []mappingKey
	functions map[functionKey]uint32
	funcTab   []functionKey
	locations map[string]uint32
	locTab    []string // key: of a tree: names, leaf first (4 bytes each); else mapping, address, folded, then function and line of each
	stacks    map[string]uint32
	stackTab  []string // key: count, locations, labels; see stackKey
	values    []int64  // by stack
	size      int

	// of the partition being added
	p         *wireProfile
	sample    wireSample
	strIdx    []uint32 // 0: not interned yet, else index+1
	locIdx    []uint32
	funcIdx   []uint32
	mapIdx    []uint32
	locIDs    idTable
	funcIDs   idTable
	mapIDs    idTable
	key       []byte
	locKey    []byte
	kept      map[string]bool
	strLabels []stringLabel
}

// stringLabel is a label of a sample whose value is a string.
type stringLabel struct{ name, value string }

// newMerger makes a merger for a pprof, or for a tree if t is not nil.
func newMerger(t *treeBuilder) *merger {
	m := &merger{
		tree:      t,
		strings:   map[string]uint32{},
		mappings:  map[mappingKey]uint32{},
		functions: map[functionKey]uint32{},
		locations: map[string]uint32{},
		stacks:    map[string]uint32{},
	}
	m.internBytes(nil)
	return m
}

// addStacks adds the stacks of a partition with their values, one sample type of
// it. keep, if not nil, says by its string labels whether a stack is wanted; it is
// asked once for each distinct set. After errMergeFull the merger holds what
// fitted.
func (m *merger) addStacks(p *wireProfile, values []int64, keep func([]stringLabel) bool) error {
	m.p = p
	m.strIdx = cleared(m.strIdx, len(p.strings))
	m.locIdx = cleared(m.locIdx, len(p.locations))
	m.funcIdx = cleared(m.funcIdx, len(p.functions))
	m.mapIdx = cleared(m.mapIdx, len(p.mappings))
	m.kept = nil
	for _, t := range []struct {
		ids *idTable
		of  []extent
	}{{&m.locIDs, p.locations}, {&m.funcIDs, p.functions}, {&m.mapIDs, p.mappings}} {
		if err := t.ids.fill(p, t.of); err != nil {
			return err
		}
	}
	for i, v := range values {
		if v == 0 {
			continue
		}
		if err := p.readStack(i, &m.sample); err != nil {
			return err
		}
		if keep != nil && !m.keeps(keep) {
			continue
		}
		if err := m.addSample(v); err != nil {
			return err
		}
	}
	return nil
}

// setType declares the sample type of the result.
func (m *merger) setType(t typeNames, valueIndex int) {
	m.sampleType = [2]uint32{m.internBytes([]byte(t.sample[valueIndex][0])), m.internBytes([]byte(t.sample[valueIndex][1]))}
	m.periodType = [2]uint32{m.internBytes([]byte(t.periodType)), m.internBytes([]byte(t.periodUnit))}
}

func (m *merger) keeps(keep func([]stringLabel) bool) bool {
	if v, ok := m.kept[string(m.sample.rawLabels)]; ok {
		return v
	}
	m.strLabels = m.strLabels[:0]
	for _, l := range m.sample.labels {
		if l.str != 0 {
			m.strLabels = append(m.strLabels, stringLabel{string(m.p.str(l.key)), string(m.p.str(l.str))})
		}
	}
	if m.kept == nil {
		m.kept = map[string]bool{}
	}
	v := keep(m.strLabels)
	m.kept[string(m.sample.rawLabels)] = v
	return v
}

// addSample adds m.sample: to the tree, or under its stack's key: the number of
// locations, the locations, then key, string, number and unit of each label.
func (m *merger) addSample(v int64) error {
	m.key = binary.LittleEndian.AppendUint32(m.key[:0], uint32(len(m.sample.locations)))
	for _, id := range m.sample.locations {
		loc, err := m.location(id)
		if err != nil {
			return err
		}
		m.key = binary.LittleEndian.AppendUint32(m.key, loc)
	}
	if m.tree != nil {
		return m.addToTree(v)
	}
	for _, l := range m.sample.labels {
		m.key = binary.LittleEndian.AppendUint32(m.key, m.str(l.key))
		m.key = binary.LittleEndian.AppendUint32(m.key, m.str(l.str))
		m.key = binary.LittleEndian.AppendUint64(m.key, l.num)
		m.key = binary.LittleEndian.AppendUint32(m.key, m.str(l.unit))
	}
	if i, ok := m.stacks[string(m.key)]; ok {
		m.values[i] = satAdd(m.values[i], v)
		return nil
	}
	if len(m.stackTab) >= maxMergedStacks || m.size > maxMergedBytes {
		return errMergeFull
	}
	k := string(m.key)
	m.stacks[k] = uint32(len(m.stackTab))
	m.stackTab = append(m.stackTab, k)
	m.values = append(m.values, v)
	m.size += len(k) + 64
	return nil
}

// location interns a location of the profile. An id that the profile does not
// define is a location without a name.
func (m *merger) location(id uint64) (uint32, error) {
	pos, ok := m.locIDs.find(id)
	if ok && m.locIdx[pos] != 0 {
		return m.locIdx[pos] - 1, nil
	}
	var loc wireLocation
	if ok {
		if err := loc.parse(m.p.bytes(m.p.locations[pos])); err != nil {
			return 0, err
		}
	}
	var err error
	if m.tree != nil {
		err = m.locationByName(&loc)
	} else {
		err = m.locationWhole(&loc)
	}
	if err != nil {
		return 0, err
	}
	i, found := m.locations[string(m.locKey)]
	if !found {
		k := string(m.locKey)
		i = uint32(len(m.locTab))
		m.locations[k] = i
		m.locTab = append(m.locTab, k)
		m.size += len(k) + 64
	}
	if ok {
		m.locIdx[pos] = i + 1
	}
	return i, nil
}

func (m *merger) locationWhole(loc *wireLocation) error {
	mapping, err := m.mapping(loc.mapping)
	if err != nil {
		return err
	}
	m.locKey = binary.LittleEndian.AppendUint32(m.locKey[:0], mapping)
	m.locKey = binary.LittleEndian.AppendUint64(m.locKey, loc.address)
	m.locKey = append(m.locKey, b2u(loc.folded))
	for _, l := range loc.lines {
		f, err := m.function(l.function)
		if err != nil {
			return err
		}
		m.locKey = binary.LittleEndian.AppendUint32(m.locKey, f)
		m.locKey = binary.LittleEndian.AppendUint64(m.locKey, l.line)
	}
	return nil
}

func (m *merger) locationByName(loc *wireLocation) error {
	m.locKey = m.locKey[:0]
	for _, l := range loc.lines {
		f, err := m.function(l.function)
		if err != nil {
			return err
		}
		name := uint32(0)
		if f != 0 {
			name = m.funcTab[f-1].name
		}
		m.locKey = binary.LittleEndian.AppendUint32(m.locKey, name)
	}
	if len(m.locKey) == 0 {
		mapping, err := m.mapping(loc.mapping)
		if err != nil {
			return err
		}
		name := unknownName
		if mapping != 0 {
			name = moduleName(m.stringTab[m.mapTab[mapping-1].file])
		}
		m.locKey = binary.LittleEndian.AppendUint32(m.locKey, m.internBytes([]byte(name)))
	}
	return nil
}

// function interns a function and returns its index+1, 0 if there is none of
// that id.
func (m *merger) function(id uint64) (uint32, error) {
	pos, ok := m.funcIDs.find(id)
	if !ok {
		return 0, nil
	}
	if m.funcIdx[pos] != 0 {
		return m.funcIdx[pos], nil
	}
	var k functionKey
	err := varints(m.p.bytes(m.p.functions[pos]), func(num protowire.Number, v uint64) {
		switch num {
		case 2:
			k.name = m.str(v)
		case 3:
			k.system = m.str(v)
		case 4:
			k.file = m.str(v)
		case 5:
			k.startLine = int64(v)
		}
	}, nil)
	if err != nil {
		return 0, err
	}
	if m.tree != nil {
		k = functionKey{name: k.name}
	}
	i, found := m.functions[k]
	if !found {
		m.funcTab = append(m.funcTab, k)
		i = uint32(len(m.funcTab))
		m.functions[k] = i
		m.size += 48
	}
	m.funcIdx[pos] = i
	return i, nil
}

// mapping interns a mapping and returns its index+1, 0 if there is none.
func (m *merger) mapping(id uint64) (uint32, error) {
	pos, ok := m.mapIDs.find(id)
	if !ok {
		return 0, nil
	}
	if m.mapIdx[pos] != 0 {
		return m.mapIdx[pos], nil
	}
	var k mappingKey
	err := varints(m.p.bytes(m.p.mappings[pos]), func(num protowire.Number, v uint64) {
		switch num {
		case 2:
			k.start = v
		case 3:
			k.limit = v
		case 4:
			k.offset = v
		case 5:
			k.file = m.str(v)
		case 6:
			k.build = m.str(v)
		case 7:
			k.hasFuncs = v != 0
		case 8:
			k.hasFiles = v != 0
		case 9:
			k.hasLines = v != 0
		case 10:
			k.hasInlineFunc = v != 0
		}
	}, nil)
	if err != nil {
		return 0, err
	}
	i, found := m.mappings[k]
	if !found {
		m.mapTab = append(m.mapTab, k)
		i = uint32(len(m.mapTab))
		m.mappings[k] = i
		m.size += 96
	}
	m.mapIdx[pos] = i
	return i, nil
}

// str interns string i of the profile.
func (m *merger) str(i uint64) uint32 {
	if i >= uint64(len(m.strIdx)) {
		return 0
	}
	if m.strIdx[i] == 0 {
		m.strIdx[i] = m.internBytes(m.p.str(i)) + 1
	}
	return m.strIdx[i] - 1
}

func (m *merger) internBytes(b []byte) uint32 {
	if i, ok := m.strings[string(b)]; ok {
		return i
	}
	s := string(b)
	i := uint32(len(m.stringTab))
	m.strings[s] = i
	m.stringTab = append(m.stringTab, s)
	m.size += len(s) + 48
	return i
}

// wireLocation is a decoded Location.
type wireLocation struct {
	mapping, address uint64
	folded           bool
	lines            []wireLine
}

type wireLine struct{ function, line uint64 }

func (l *wireLocation) parse(b []byte) error {
	return varints(b, func(num protowire.Number, v uint64) {
		switch num {
		case 2:
			l.mapping = v
		case 3:
			l.address = v
		case 5:
			l.folded = v != 0
		}
	}, func(num protowire.Number, b []byte) error {
		if num != 4 {
			return nil
		}
		if len(l.lines) >= MaxStackDepth {
			return malformed("more than %d lines at a location", MaxStackDepth)
		}
		var line wireLine
		err := varints(b, func(num protowire.Number, v uint64) {
			switch num {
			case 1:
				line.function = v
			case 2:
				line.line = v
			}
		}, nil)
		l.lines = append(l.lines, line)
		return err
	})
}

// satAdd adds and stays at the ends of the range rather than wrap round: values
// come from outside.
func satAdd(a, b int64) int64 {
	s := a + b
	switch {
	case a > 0 && b > 0 && s < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && s >= 0:
		return math.MinInt64
	}
	return s
}

func cleared(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	s = s[:n]
	clear(s)
	return s
}

func b2u(b bool) byte {
	if b {
		return 1
	}
	return 0
}
