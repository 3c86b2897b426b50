package profile

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spanflame/spanflame/internal/stack"
)

// Field numbers of github.com/google/pprof/proto/profile.proto.
const (
	profileSampleType    = 1
	profileSample        = 2
	profileMapping       = 3
	profileLocation      = 4
	profileFunction      = 5
	profileStringTable   = 6
	profileTimeNanos     = 9
	profileDurationNanos = 10
	profilePeriodType    = 11
	profilePeriod        = 12

	valueTypeType = 1
	valueTypeUnit = 2

	sampleLocationID = 1
	sampleValue      = 2
	sampleLabel      = 3

	labelKey = 1
	labelStr = 2

	mappingID           = 1
	mappingLimit        = 3
	mappingFilename     = 5
	mappingBuildID      = 6
	mappingHasFunctions = 7

	locationID        = 1
	locationMappingID = 2
	locationAddress   = 3
	locationLine      = 4

	lineFunctionID = 1
	lineLine       = 2

	functionID         = 1
	functionName       = 2
	functionSystemName = 3
	functionFilename   = 4
)

type functionKey struct{ name, file string }

type mappingEntry struct {
	id, limit uint64
	mapping   *stack.Mapping
}

// encoder writes the wire format at once, without a tree of objects in between:
// a round has some hundred thousand references to locations. (google/pprof's own
// takes five times as long and ten times the memory; the tests read what is
// written here with it.)
type encoder struct {
	buf       []byte // the profile, fields in any order
	message   []byte // the message that is being written
	inner     []byte // one within it
	strings   map[string]uint64
	table     []string
	functions map[functionKey]uint64
	mappings  map[*stack.Mapping]*mappingEntry
	order     []*mappingEntry
	locations []*stack.Location // by id, less one
	written   []bool            // by id, less one
}

func newEncoder(locations []*stack.Location) *encoder {
	e := &encoder{
		strings: map[string]uint64{}, functions: map[functionKey]uint64{},
		mappings: map[*stack.Mapping]*mappingEntry{}, locations: locations, written: make([]bool, len(locations)),
	}
	e.str("") // entry 0 must be ""
	return e
}

// maxString is the longest string that a server takes, in bytes.
const maxString = 65_535

// str numbers a string. What targets name may be anything; a profile holds UTF-8 of
// bounded length, or servers refuse it whole.
func (e *encoder) str(s string) uint64 {
	if id, ok := e.strings[s]; ok {
		return id
	}
	valid := s
	if len(valid) > maxString {
		valid = valid[:maxString-len("\uFFFD")]
	}
	if !utf8.ValidString(valid) {
		valid = strings.ToValidUTF8(valid, "?")
	}
	id := uint64(len(e.table))
	e.strings[s] = id
	e.table = append(e.table, valid)
	return id
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

func (e *encoder) varint(field protowire.Number, v uint64) {
	e.buf = appendVarint(e.buf, field, v)
}

// emit appends the message that was built as a field of the profile.
func (e *encoder) emit(field protowire.Number) {
	e.buf = protowire.AppendTag(e.buf, field, protowire.BytesType)
	e.buf = protowire.AppendBytes(e.buf, e.message)
	e.message = e.message[:0]
}

// nest appends the inner message that was built as a field of the message.
func (e *encoder) nest(field protowire.Number) {
	e.message = protowire.AppendTag(e.message, field, protowire.BytesType)
	e.message = protowire.AppendBytes(e.message, e.inner)
	e.inner = e.inner[:0]
}

func (e *encoder) valueType(field protowire.Number, typ, unit string) {
	e.message = appendVarint(e.message, valueTypeType, e.str(typ))
	e.message = appendVarint(e.message, valueTypeUnit, e.str(unit))
	e.emit(field)
}

func (e *encoder) sample(s *entry) {
	// Locations are written first: they need the message's buffer.
	for _, id := range s.locations {
		if !e.written[id-1] {
			e.written[id-1] = true
			e.location(uint64(id), e.locations[id-1])
		}
	}
	for _, id := range s.locations {
		e.inner = protowire.AppendVarint(e.inner, uint64(id))
	}
	e.nest(sampleLocationID)
	e.inner = protowire.AppendVarint(e.inner, uint64(s.value))
	e.nest(sampleValue)
	e.label("thread", s.labels.Thread)
	e.label("wait", s.labels.Wait)
	if s.labels.Idle {
		e.label("idle", "true")
	}
	e.emit(profileSample)
}

// label adds a label to the sample that is being written, if it has a value.
func (e *encoder) label(name, value string) {
	if value == "" {
		return
	}
	e.inner = appendVarint(e.inner, labelKey, e.str(name))
	e.inner = appendVarint(e.inner, labelStr, e.str(value))
	e.nest(sampleLabel)
}

func (e *encoder) location(id uint64, l *stack.Location) {
	for i := range l.Lines {
		e.function(&l.Lines[i])
	}
	e.message = appendVarint(e.message, locationID, id)
	if l.Mapping != nil {
		m := e.mapping(l.Mapping)
		m.limit = max(m.limit, l.Address+1)
		e.message = appendVarint(e.message, locationMappingID, m.id)
	}
	e.message = appendVarint(e.message, locationAddress, l.Address)
	for i := range l.Lines {
		line := &l.Lines[i]
		e.inner = appendVarint(e.inner, lineFunctionID, e.functions[functionKey{line.Function, line.File}])
		e.inner = appendVarint(e.inner, lineLine, uint64(line.Line))
		e.nest(locationLine)
	}
	e.emit(profileLocation)
}

func (e *encoder) function(l *stack.Line) {
	key := functionKey{l.Function, l.File}
	if _, ok := e.functions[key]; ok {
		return
	}
	id := uint64(len(e.functions) + 1)
	e.functions[key] = id
	name := e.str(l.Function)
	e.message = appendVarint(e.message, functionID, id)
	e.message = appendVarint(e.message, functionName, name)
	e.message = appendVarint(e.message, functionSystemName, name)
	e.message = appendVarint(e.message, functionFilename, e.str(l.File))
	e.emit(profileFunction)
}

func (e *encoder) mapping(m *stack.Mapping) *mappingEntry {
	entry := e.mappings[m]
	if entry == nil {
		entry = &mappingEntry{id: uint64(len(e.order) + 1), mapping: m}
		e.mappings[m] = entry
		e.order = append(e.order, entry)
	}
	return entry
}

// finish writes what is only known at the end, and returns the profile.
func (e *encoder) finish() []byte {
	for _, m := range e.order {
		e.message = appendVarint(e.message, mappingID, m.id)
		e.message = appendVarint(e.message, mappingLimit, m.limit)
		e.message = appendVarint(e.message, mappingFilename, e.str(m.mapping.File))
		e.message = appendVarint(e.message, mappingBuildID, e.str(m.mapping.BuildID))
		if m.mapping.HasFunctions {
			e.message = appendVarint(e.message, mappingHasFunctions, 1)
		}
		e.emit(profileMapping)
	}
	for _, s := range e.table {
		e.buf = protowire.AppendTag(e.buf, profileStringTable, protowire.BytesType)
		e.buf = protowire.AppendString(e.buf, s)
	}
	return e.buf
}
