// Package hotspot names the code of the Java virtual machine HotSpot (OpenJDK) from its own
// structures, whose layout it publishes in tables for debuggers: what the compilers made, by
// the virtual machine's own index of its code, and what the interpreter runs, by the method
// that each of its frames has.
//
// Nothing in the process is changed, stopped or asked to do anything.
package hotspot

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/internal/targetmem"
	"github.com/spanflame/spanflame/symtab"
)

// Runtime is its entry in the list of runtimes. An interpreted frame has its method at
// [fp - 24] (frame::interpreter_frame_method_offset, src/hotspot/cpu/{x86,aarch64}).
var Runtime = madecode.Runtime{
	Name:    "hotspot",
	Match:   func(p string) bool { return path.Base(p) == "libjvm.so" },
	Attach:  attach,
	Capture: madecode.Capture{Slot: 3},
}

// Bounds of what is kept and believed.
const (
	maxHeaps      = 8
	maxHeapBytes  = 4 << 30
	maxBlobs      = 1 << 16
	maxSymbol     = 1024
	maxSteps      = 4096 // through the segment map
	blobCost      = 128  // bytes that a blob takes here
	methodCost    = 256
	interpreter   = "Interpreter"
	firstWalk     = time.Second
	longestWalk   = time.Minute
	maxBlobName   = 128
	maxBlobHeader = 1024
)

// layout is where in HotSpot's structures is what. Of fields that have moved the first one
// that the tables have counts: newer versions first.
type layout struct {
	heaps, heapsLen, heapsData                 uint64
	memory, segmap, log2Segment                uint64
	low, high, lowBoundary                     uint64
	block, blockLength, blockUsed              uint64
	blockLengthSize                            uint64
	blobName, blobSize, blobHeader             uint64
	method, constMethod, constants             uint64
	nameIndex, pool, holder, klassName, poolOf uint64
	sourceIndex                                uint64
	sourceInPool                               bool
	symbolLength, symbolBody                   uint64
}

// errTables says what a version does not publish.
var errTables = errors.New("the tables of the virtual machine lack what is needed")

func newLayout(t *tables) (*layout, error) {
	l := &layout{}
	var missing []string
	get := func(names ...string) uint64 {
		for _, n := range names {
			if f, ok := t.fields[n]; ok {
				if f.address != 0 {
					return f.address
				}
				return f.offset
			}
		}
		missing = append(missing, names[0])
		return 0
	}
	l.heaps = get("CodeCache::_heaps")
	l.heapsLen = get("GrowableArrayBase::_len", "GenericGrowableArray::_len")
	l.heapsData = get("GrowableArray<int>::_data")
	l.memory, l.segmap = get("CodeHeap::_memory"), get("CodeHeap::_segmap")
	l.log2Segment = get("CodeHeap::_log2_segment_size")
	l.low, l.high, l.lowBoundary = get("VirtualSpace::_low"), get("VirtualSpace::_high"), get("VirtualSpace::_low_boundary")
	l.blockLength, l.blockUsed = get("HeapBlock::Header::_length"), get("HeapBlock::Header::_used")
	l.blobName, l.blobSize, l.blobHeader = get("CodeBlob::_name"), get("CodeBlob::_size"), get("CodeBlob::_header_size")
	l.method = get("nmethod::_method", "CompiledMethod::_method")
	l.constMethod, l.constants = get("Method::_constMethod"), get("ConstMethod::_constants")
	l.nameIndex = get("ConstMethod::_name_index")
	l.holder, l.klassName = get("ConstantPool::_pool_holder"), get("Klass::_name")
	l.poolOf = get("InstanceKlass::_constants")
	l.symbolLength, l.symbolBody = get("Symbol::_length"), get("Symbol::_body", "Symbol::_body[0]")
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s", errTables, strings.Join(missing, ", "))
	}
	if f, ok := t.fields["ConstantPool::_source_file_name_index"]; ok {
		l.sourceIndex, l.sourceInPool = f.offset, true
	} else if f, ok := t.fields["InstanceKlass::_source_file_name_index"]; ok {
		l.sourceIndex = f.offset
	}
	l.block, l.pool = t.sizes["HeapBlock"], t.sizes["ConstantPool"]
	l.blockLengthSize = 8
	if l.blockUsed-l.blockLength < 8 {
		l.blockLengthSize = 4
	}
	for _, v := range []uint64{l.memory, l.segmap, l.log2Segment, l.low, l.high, l.lowBoundary, l.blockLength, l.blockUsed, l.blobName, l.blobSize,
		l.method, l.constMethod, l.constants, l.nameIndex, l.holder, l.klassName, l.poolOf, l.symbolLength, l.symbolBody, l.heapsLen, l.heapsData,
		l.block, l.pool, l.sourceIndex} {
		if v > maxBlobHeader-8 {
			return nil, fmt.Errorf("%w: an offset of %d", errTables, v)
		}
	}
	if l.block == 0 || l.pool == 0 {
		return nil, fmt.Errorf("%w: sizes of HeapBlock and ConstantPool", errTables)
	}
	return l, nil
}

// codeHeap is a part of the code cache.
type codeHeap struct {
	low, high uint64 // of its memory in use
	base      uint64 // of what the segments count from
	segments  uint64 // address of their map
	count     uint64
	shift     uint32
}

// blob is a piece of code: a compiled method, or a stub of the virtual machine's own.
type blob struct {
	start, end uint64
	frames     []symtab.Frame
	method     uint64 // 0: none
	walk       uint64 // when it was last seen
}

// source names the code of one process.
type source struct {
	mem *targetmem.Reader
	l   *layout
	max int64

	mu         sync.Mutex // guards the rest
	heaps      []codeHeap
	blobs      map[uint64]*blob // by start
	blobText   int64            // bytes of their names
	methodText int64
	methods    map[uint64]symtab.Frame
	stubs      map[uint64]string // names of blobs by their address, which does not change
	generation uint64
	refreshed  time.Time
	nextWalk   time.Time
	every      time.Duration
	walks      uint64
	gone       bool // the process, or the memory
}

func attach(p *madecode.Process, f madecode.File) (madecode.Source, error) {
	t, err := readTables(p, f)
	if err != nil {
		return nil, err
	}
	l, err := newLayout(t)
	if err != nil {
		return nil, err
	}
	s := &source{mem: &targetmem.Reader{Memory: p.Memory}, l: l, max: p.MaxBytes, every: firstWalk,
		blobs: map[uint64]*blob{}, methods: map[uint64]symtab.Frame{}, stubs: map[uint64]string{}}
	if err := s.readHeaps(); err != nil {
		return nil, err
	}
	if len(s.heaps) == 0 {
		return nil, madecode.ErrNotYet
	}
	return s, nil
}

// readHeaps reads where the code is. The caller holds mu, or is alone.
func (s *source) readHeaps() error {
	array, err := s.mem.Uint64(s.l.heaps)
	if err != nil {
		return err
	}
	if array == 0 {
		return madecode.ErrNotYet
	}
	n, err := s.mem.Uint32(array + s.l.heapsLen)
	if err != nil {
		return err
	}
	data, err := s.mem.Uint64(array + s.l.heapsData)
	if err != nil {
		return err
	}
	if n > maxHeaps {
		return fmt.Errorf("%d code heaps", n)
	}
	heaps := make([]codeHeap, 0, n)
	for i := range uint64(n) {
		at, err := s.mem.Uint64(data + 8*i)
		if err != nil {
			return err
		}
		var h codeHeap
		errs := []error{
			s.word(at+s.l.memory+s.l.low, &h.low), s.word(at+s.l.memory+s.l.high, &h.high), s.word(at+s.l.memory+s.l.lowBoundary, &h.base),
			s.word(at+s.l.segmap+s.l.low, &h.segments), s.word(at+s.l.segmap+s.l.high, &h.count),
		}
		shift, err := s.mem.Uint32(at + s.l.log2Segment)
		if err := errors.Join(append(errs, err)...); err != nil {
			return err
		}
		h.shift = shift
		if h.count < h.segments || h.low < h.base || h.high < h.low || h.high-h.base > maxHeapBytes || shift < 3 || shift > 16 {
			return fmt.Errorf("a code heap that cannot be: %+v", h)
		}
		h.count -= h.segments
		heaps = append(heaps, h)
	}
	s.heaps = heaps
	return nil
}

func (s *source) word(at uint64, to *uint64) (err error) {
	*to, err = s.mem.Uint64(at)
	return err
}

// Name is that of the mapping in profiles.
func (s *source) Name() string { return "[jit]" }

// Frames names the code at a place.
func (s *source) Frames(p madecode.Place) []symtab.Frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.find(p.Addr)
	if b == nil {
		return nil
	}
	if b.method == 0 && len(b.frames) == 1 && b.frames[0].Name == interpreter {
		if f, ok := s.method(p.Word); ok {
			return []symtab.Frame{f}
		}
	}
	return b.frames
}

// find returns the blob at an address as it is now, or as it was when the process ended.
func (s *source) find(addr uint64) *blob {
	for i := range s.heaps {
		h := &s.heaps[i]
		if addr < h.low || addr >= h.high {
			continue
		}
		if !s.gone {
			start, err := s.blobStart(h, addr)
			if err == nil && start == 0 {
				return nil
			}
			if err == nil {
				return s.blobAt(start, addr)
			}
		}
		for _, b := range s.blobs {
			if addr >= b.start && addr < b.end {
				return b
			}
		}
	}
	return nil
}

// blobStart finds the block of an address by the segment map: each of its bytes says how
// many segments to go back at least (CodeHeap::find_start). 0: the segment is free.
func (s *source) blobStart(h *codeHeap, addr uint64) (uint64, error) {
	seg := (addr - h.base) >> h.shift
	if seg >= h.count {
		return 0, nil
	}
	for range maxSteps {
		var b [1]byte
		if err := s.mem.Read(b[:], h.segments+seg); err != nil {
			return 0, err
		}
		switch {
		case b[0] == 0xff:
			return 0, nil
		case b[0] == 0:
			return h.base + seg<<h.shift + s.l.block, nil
		case uint64(b[0]) > seg:
			return 0, nil
		}
		seg -= uint64(b[0])
	}
	return 0, nil
}

// blobAt reads a blob, which has to have the address in it.
func (s *source) blobAt(start, addr uint64) *blob {
	size, err := s.mem.Uint32(start + s.l.blobSize)
	if err != nil || size == 0 || size > 1<<28 || addr < start || addr-start >= uint64(size) {
		return nil
	}
	name, err := s.mem.Uint64(start + s.l.blobName)
	if err != nil {
		return nil
	}
	text := s.stubName(name)
	if text == "" {
		return nil
	}
	b := &blob{start: start, end: start + uint64(size), walk: s.walks}
	if text == "nmethod" || text == "native nmethod" {
		if b.method, err = s.mem.Uint64(start + s.l.method); err != nil {
			return nil
		}
		if old := s.blobs[start]; old != nil && old.method == b.method && old.end == b.end {
			old.walk = s.walks
			return old
		}
		f, ok := s.method(b.method)
		if !ok {
			return nil
		}
		b.frames = []symtab.Frame{f}
	} else {
		if old := s.blobs[start]; old != nil && old.method == 0 && old.end == b.end && old.frames[0].Name == text {
			old.walk = s.walks
			return old
		}
		b.frames = []symtab.Frame{{Name: text}}
	}
	if s.room() {
		s.forget(start)
		s.blobs[start] = b
		s.blobText += textBytes(b.frames[0])
	}
	return b
}

func (s *source) forget(start uint64) {
	if b := s.blobs[start]; b != nil {
		s.blobText -= textBytes(b.frames[0])
		delete(s.blobs, start)
	}
}

func textBytes(f symtab.Frame) int64 { return int64(len(f.Name) + len(f.File)) }

// room says whether one more blob and method may be kept.
func (s *source) room() bool {
	return s.bytes()+blobCost+methodCost <= s.max && len(s.blobs) < maxBlobs
}

func (s *source) bytes() int64 {
	return int64(len(s.blobs))*blobCost + int64(len(s.methods))*methodCost + int64(len(s.stubs))*blobCost + s.blobText + s.methodText
}

// stubName reads the name of a kind of blobs, "" if it has none.
func (s *source) stubName(at uint64) string {
	if n, ok := s.stubs[at]; ok {
		return n
	}
	n, err := s.mem.Text(at, maxBlobName)
	if err != nil {
		return ""
	}
	if n = symtab.CleanName([]byte(n)); len(s.stubs) < 4096 {
		s.stubs[at] = n
	}
	return n
}

// method names a method. Its constant pool and class have to know of each other, so that
// what is no method is not taken for one.
func (s *source) method(at uint64) (symtab.Frame, bool) {
	if at == 0 || at&7 != 0 {
		return symtab.Frame{}, false
	}
	if f, ok := s.methods[at]; ok {
		return f, true
	}
	f, err := s.readMethod(at)
	if err != nil {
		return symtab.Frame{}, false
	}
	if s.room() {
		s.methods[at] = f
		s.methodText += textBytes(f)
	}
	return f, true
}

var errNoMethod = errors.New("no method")

func (s *source) readMethod(at uint64) (symtab.Frame, error) {
	var cm, pool, holder, back, class uint64
	if err := s.word(at+s.l.constMethod, &cm); err != nil {
		return symtab.Frame{}, err
	}
	if err := s.word(cm+s.l.constants, &pool); err != nil {
		return symtab.Frame{}, err
	}
	if err := s.word(pool+s.l.holder, &holder); err != nil {
		return symtab.Frame{}, err
	}
	if err := s.word(holder+s.l.poolOf, &back); err != nil {
		return symtab.Frame{}, err
	}
	if back != pool {
		return symtab.Frame{}, errNoMethod
	}
	if err := s.word(holder+s.l.klassName, &class); err != nil {
		return symtab.Frame{}, err
	}
	index, err := s.mem.Uint16(cm + s.l.nameIndex)
	if err != nil {
		return symtab.Frame{}, err
	}
	name, err := s.poolSymbol(pool, index)
	if err != nil {
		return symtab.Frame{}, err
	}
	of, err := s.symbol(class)
	if err != nil {
		return symtab.Frame{}, err
	}
	f := symtab.Frame{Name: strings.ReplaceAll(of, "/", ".") + "." + name}
	from := pool
	if !s.l.sourceInPool {
		from = holder
	}
	if s.l.sourceIndex != 0 {
		if index, err := s.mem.Uint16(from + s.l.sourceIndex); err == nil && index != 0 {
			f.File, _ = s.poolSymbol(pool, index) // without it there is the name
		}
	}
	return f, nil
}

func (s *source) poolSymbol(pool uint64, index uint16) (string, error) {
	at, err := s.mem.Uint64(pool + s.l.pool + 8*uint64(index))
	if err != nil {
		return "", err
	}
	return s.symbol(at)
}

// symbol reads a text of the virtual machine's.
func (s *source) symbol(at uint64) (string, error) {
	n, err := s.mem.Uint16(at + s.l.symbolLength)
	if err != nil {
		return "", err
	}
	if n == 0 {
		return "", errNoMethod
	}
	b := make([]byte, min(n, maxSymbol))
	if err := s.mem.Read(b, at+s.l.symbolBody); err != nil {
		return "", err
	}
	return symtab.CleanName(b), nil
}

// Refresh lets what is known be looked up anew, and goes through all code once in a while,
// so that it has its name when the process has ended.
func (s *source) Refresh(int64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.gone || now.Sub(s.refreshed) < firstWalk {
		return false, nil
	}
	if err := s.readHeaps(); err != nil {
		s.gone = true // what it was goes on to be known
		return false, err
	}
	s.refreshed = now
	if now.Sub(s.nextWalk) >= 0 {
		s.walk()
		s.nextWalk = now.Add(s.every)
		s.every = min(2*s.every, longestWalk)
	}
	s.generation++
	return false, nil
}

// walk reads all blobs.
func (s *source) walk() {
	s.walks++
	clear(s.methods) // classes may have been unloaded
	s.methodText = 0
	for i := range s.heaps {
		h := &s.heaps[i]
		at := h.base
		for n := 0; at+s.l.block < h.high && n < maxBlobs; n++ {
			var b [16]byte
			if s.mem.Read(b[:], at) != nil {
				return
			}
			segments := uint64(0)
			for j := range s.l.blockLengthSize {
				segments |= uint64(b[(s.l.blockLength+j)&15]) << (8 * j)
			}
			if segments == 0 || segments > h.count {
				break
			}
			if b[s.l.blockUsed&15] != 0 {
				s.blobAt(at+s.l.block, at+s.l.block)
			}
			at += segments << h.shift
		}
	}
	for start, b := range s.blobs {
		if b.walk != s.walks {
			s.forget(start)
		}
	}
}

// Generation changes every time that the code is looked at.
func (s *source) Generation() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// Bytes is about what it takes.
func (s *source) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes()
}

// Close forgets all.
func (s *source) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	s.blobText, s.methodText = 0, 0
	s.heaps, s.blobs, s.methods, s.stubs = nil, map[uint64]*blob{}, map[uint64]symtab.Frame{}, map[uint64]string{}
}
