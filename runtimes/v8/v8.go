// Package v8 names the functions of JavaScript that V8 runs, as Node.js has it, with no flag
// and no file: the frame of each holds the function (V8, src/execution/frame-constants.h), of
// which the sampler keeps what all closures of it share (SharedFunctionInfo) and which the
// garbage collector hardly ever moves. Where its name is there, V8 says by its postmortem
// symbols.
//
// Nothing in the process is changed, stopped or asked to do anything. What is read must be
// what it is taken for by V8's own types, else there is no name.
package v8

import (
	"encoding/binary"
	"errors"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf16"

	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/internal/targetmem"
	"github.com/spanflame/spanflame/symtab"
)

// Runtime is its entry in the list of runtimes.
var Runtime = madecode.Runtime{
	Name: "v8",
	Match: func(p string) bool {
		b := path.Base(p)
		return b == "node" || b == "nodejs" || strings.HasPrefix(b, "libnode.so")
	},
	Attach:  attach,
	Capture: madecode.Capture{Slot: functionSlot, Deref: sharedOffset - 1, Marked: true},
}

// Bounds of what is believed and kept.
const (
	maxName      = 1024 // characters
	maxParts     = 64   // of a text that was put together
	maxLocals    = 256
	maxFunctions = 1 << 16
	functionCost = 256
	freshFor     = time.Second
)

type source struct {
	mem *targetmem.Reader
	c   *constants
	l   *layout
	max int64

	mu         sync.Mutex // guards the rest
	functions  map[uint64]symtab.Frame
	nameBytes  int64             // of the functions
	types      map[uint64]uint16 // of maps, which V8 does not move
	generation uint64
	refreshed  time.Time
}

func attach(p *madecode.Process, f madecode.File) (madecode.Source, error) {
	c, err := constantsOf(p, f)
	if err != nil {
		return nil, err
	}
	l, err := newLayout(c)
	if err != nil {
		return nil, err
	}
	return &source{mem: &targetmem.Reader{Memory: p.Memory}, c: c, l: l, max: p.MaxBytes,
		functions: map[uint64]symtab.Frame{}, types: map[uint64]uint16{}}, nil
}

// Name is that of the mapping in profiles.
func (s *source) Name() string { return "[jit]" }

// Frames names the function of a frame.
func (s *source) Frames(p madecode.Place) []symtab.Frame {
	var own *builtin
	if p.InFile {
		if own = s.c.find(p.Offset); own == nil {
			return nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.function(p.Word)
	if !ok {
		return nil
	}
	if own != nil && own.name != "" {
		return []symtab.Frame{{Name: own.name}, f}
	}
	return []symtab.Frame{f}
}

// function names a SharedFunctionInfo.
func (s *source) function(at uint64) (symtab.Frame, bool) {
	if at&1 == 0 {
		return symtab.Frame{}, false
	}
	f, err := s.readFunction(at - 1)
	if errors.Is(err, errNotIt) {
		return symtab.Frame{}, false
	}
	if err != nil { // the process has ended: what was there before has its name
		f, ok := s.functions[at]
		return f, ok
	}
	old := s.functions[at]
	if more := int64(len(f.Name) + len(f.File) - len(old.Name) - len(old.File)); s.bytes()+functionCost+more <= s.max && len(s.functions) < maxFunctions {
		s.functions[at] = f
		s.nameBytes += more
	}
	return f, true
}

var errNotIt = errors.New("not what it was taken for")

func (s *source) readFunction(at uint64) (f symtab.Frame, err error) {
	if t, err := s.typeOf(at); err != nil {
		return f, err
	} else if t != s.l.sharedType {
		return f, errNotIt
	}
	script, err := s.object(at + s.l.scriptOrDebug)
	if err != nil {
		return f, err
	}
	t, err := s.typeOf(script)
	if err == nil && t == s.l.debugType && s.l.debugType != 0 {
		return f, errNotIt // of a function that is being debugged
	}
	if err == nil && t != s.l.scriptType {
		err = errNotIt // V8's own
	}
	if err != nil {
		return f, err
	}
	name, err := s.object(at + s.l.nameOrScope)
	if err == nil {
		f.Name, err = s.nameOf(name)
	}
	if err != nil || f.Name == "" {
		f.Name = "(anonymous)"
	}
	if file, err := s.object(script + s.l.scriptName); err == nil {
		f.File, _ = s.text(file, maxParts) // without it there is the name
		f.File = symtab.CleanName([]byte(f.File))
	}
	f.Name = symtab.CleanName([]byte(f.Name))
	return f, nil
}

// nameOf reads a function's name, which is a text, or in what V8 knows of its scope.
func (s *source) nameOf(at uint64) (string, error) {
	t, err := s.typeOf(at)
	if err != nil {
		return "", err
	}
	if s.isString(t) {
		return s.text(at, maxParts)
	}
	if t != s.l.scopeType {
		return "", errNotIt
	}
	// The object's map; flags, parameters, context locals and, of a function, its position,
	// all numbers; of each local its name and a number; then the function's own name and its
	// slot, and the name that was inferred (src/objects/scope-info.tq).
	const word = 8
	locals, err := s.mem.Uint64(at + word*(1+s.l.scopeLocals))
	if err != nil {
		return "", err
	}
	n := locals >> 32
	if locals&0xffffffff != 0 || n > maxLocals {
		return "", errNotIt
	}
	from := at + word*(1+s.l.scopeFirst)
	var words [8]uint64
	for range 2 { // the position
		w, err := s.mem.Uint64(from)
		if err != nil {
			return "", err
		}
		if w&1 != 0 {
			break
		}
		from += word
	}
	from += 2 * word * n
	for i := range words {
		w, err := s.mem.Uint64(from + word*uint64(i))
		if err != nil {
			break
		}
		if w&1 == 0 {
			continue
		}
		t, err := s.typeOf(w - 1)
		if err != nil || !s.isString(t) {
			break
		}
		if name, err := s.text(w-1, maxParts); err == nil && name != "" {
			return name, nil
		}
	}
	return "", nil
}

// object reads a pointer to an object, and returns its address.
func (s *source) object(at uint64) (uint64, error) {
	w, err := s.mem.Uint64(at)
	if err == nil && w&1 == 0 {
		err = errNotIt
	}
	return w - 1, err
}

// typeOf reads the type of an object.
func (s *source) typeOf(at uint64) (uint16, error) {
	m, err := s.object(at + s.l.mapOf)
	if err != nil {
		return 0, err
	}
	if t, ok := s.types[m]; ok {
		return t, nil
	}
	t, err := s.mem.Uint16(m + s.l.instanceType)
	if err == nil && len(s.types) < 1024 {
		s.types[m] = t
	}
	return t, err
}

func (s *source) isString(t uint16) bool { return t&s.l.notString == 0 }

// text reads a string of JavaScript, at most maxName characters of it.
func (s *source) text(at uint64, parts int) (string, error) {
	if parts <= 0 {
		return "", errNotIt
	}
	t, err := s.typeOf(at)
	if err != nil || !s.isString(t) {
		return "", errors.Join(errNotIt, err)
	}
	n, err := s.mem.Uint32(at + s.l.length)
	if err != nil {
		return "", err
	}
	switch t & s.l.representation {
	case s.l.thinTag:
		next, err := s.object(at + s.l.thin)
		if err != nil {
			return "", err
		}
		return s.text(next, parts-1)
	case s.l.consTag:
		a, err := s.object(at + s.l.consFirst)
		if err != nil {
			return "", err
		}
		b, err := s.object(at + s.l.consSecond)
		if err != nil {
			return "", err
		}
		first, err := s.text(a, parts/2)
		if err != nil || len(first) >= maxName {
			return first, err
		}
		second, err := s.text(b, parts/2)
		return first + second, err
	case s.l.slicedTag:
		parent, err := s.object(at + s.l.sliced)
		if err != nil {
			return "", err
		}
		off, err := s.mem.Uint64(at + s.l.slicedOff)
		if err != nil || off&0xffffffff != 0 {
			return "", errors.Join(errNotIt, err)
		}
		pt, err := s.typeOf(parent)
		if err != nil || !s.isString(pt) || pt&s.l.representation != 0 {
			return "", errors.Join(errNotIt, err)
		}
		return s.characters(parent, pt, off>>32, n)
	case 0:
		return s.characters(at, t, 0, n)
	}
	return "", errNotIt // its characters are outside of V8's memory
}

// characters reads those of a string that has them in itself.
func (s *source) characters(at uint64, t uint16, from uint64, n uint32) (string, error) {
	n = min(n, maxName)
	if n == 0 {
		return "", nil
	}
	if t&s.l.encoding == s.l.oneByteTag {
		b := make([]byte, n)
		if err := s.mem.Read(b, at+s.l.oneByte+from); err != nil {
			return "", err
		}
		r := make([]rune, n) // Latin-1
		for i, c := range b {
			r[i] = rune(c)
		}
		return string(r), nil
	}
	b := make([]byte, 2*n)
	if err := s.mem.Read(b, at+s.l.twoByte+2*from); err != nil {
		return "", err
	}
	u := make([]uint16, n)
	for i := range u {
		u[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return string(utf16.Decode(u)), nil
}

// Refresh lets what is known be looked up anew.
func (s *source) Refresh(int64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.refreshed) >= freshFor {
		s.refreshed = now
		s.generation++
	}
	return false, nil
}

// Generation changes when objects may have been moved.
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

func (s *source) bytes() int64 { return int64(len(s.functions))*functionCost + s.nameBytes }

// Close forgets all.
func (s *source) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.functions, s.types, s.nameBytes = map[uint64]symtab.Frame{}, map[uint64]uint16{}, 0
}
