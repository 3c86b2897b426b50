package v8

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/internal/madecode"
)

// constants are what a program with V8 says of V8's structures for debuggers: symbols that
// begin with v8dbg_ (V8, tools/gen-postmortem-metadata.py), each a 32-bit number. Offsets are
// from the address of an object, which is one less than the pointer to it.
type constants struct {
	values   map[string]int32
	builtins []builtin // sorted by offset
}

// builtin is code of V8's own. When it runs in the frame of a function of JavaScript, the
// function has no other frame: what V8 has a frame of its own for has no such word in it.
type builtin struct {
	offset, end uint64 // in the file
	name        string // "" of what does nothing but run the function
}

const (
	postmortem = "v8dbg_"
	prefix     = "Builtins_"
	maxNames   = 48 << 20
	maxValues  = 4096
	maxBuiltin = 8192
)

// find returns the builtin at an offset in the file.
func (c *constants) find(offset uint64) *builtin {
	i := sort.Search(len(c.builtins), func(i int) bool { return c.builtins[i].end > offset })
	if i == len(c.builtins) || offset < c.builtins[i].offset {
		return nil
	}
	return &c.builtins[i]
}

// known are those of the programs seen lately: many processes run the same one, of whose
// symbols there are some hundred thousand.
var known struct {
	mu   sync.Mutex
	list []knownFile
}

type knownFile struct {
	id        fileID
	constants *constants
	err       error
}

type fileID struct {
	dev, ino uint64
	size     int64
	mtime    syscall.Timespec
}

const maxKnown = 8

// constantsOf reads the constants of the program of a mapping.
func constantsOf(p *madecode.Process, f madecode.File) (*constants, error) {
	file, err := p.Open(f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("the file has no identity")
	}
	id := fileID{st.Dev, st.Ino, st.Size, st.Mtim}
	known.mu.Lock()
	i := slices.IndexFunc(known.list, func(k knownFile) bool { return k.id == id })
	if i >= 0 {
		k := known.list[i]
		known.mu.Unlock()
		return k.constants, k.err
	}
	known.mu.Unlock()
	c, err := readConstants(file, st.Size)
	known.mu.Lock()
	defer known.mu.Unlock()
	if len(known.list) >= maxKnown {
		known.list = slices.Delete(known.list, 0, 1)
	}
	known.list = append(known.list, knownFile{id, c, err})
	return c, err
}

func readConstants(file *os.File, size int64) (*constants, error) {
	ef, err := elffile.Open(file, size)
	if err != nil {
		return nil, err
	}
	s := ef.SectionOfType(elf.SHT_SYMTAB)
	if s == nil || !s.HasData() {
		return nil, errors.New("it has no table of symbols")
	}
	strs := ef.LinkedStrings(s)
	if strs == nil {
		return nil, errors.New("its symbols have no names")
	}
	names, err := ef.Data(strs, maxNames)
	if err != nil {
		return nil, err
	}
	c := &constants{values: map[string]int32{}}
	err = ef.EachSymbol(s, nil, func(y elffile.Symbol) error {
		if uint64(y.Name) >= uint64(len(names)) || y.Section == elf.SHN_UNDEF {
			return nil
		}
		b := names[y.Name:]
		switch {
		case y.Type() == elf.STT_OBJECT && bytes.HasPrefix(b, []byte(postmortem)) && len(c.values) < maxValues:
			var v [4]byte
			// What is 0 is in .bss, and has nothing in the file.
			_ = ef.ReadAddr(v[:], y.Value)
			c.values[text(b[len(postmortem):])] = int32(binary.LittleEndian.Uint32(v[:]))
		case y.Type() == elf.STT_FUNC && bytes.HasPrefix(b, []byte(prefix)) && len(c.builtins) < maxBuiltin:
			name := text(b)
			runs := strings.HasPrefix(name, "Builtins_InterpreterEntryTrampoline") || strings.HasPrefix(name, "Builtins_BaselineOutOfLinePrologue")
			off, ok := ef.OffsetOf(y.Value)
			if !ok || y.Size == 0 || y.Size > 1<<24 {
				return nil
			}
			if runs {
				name = ""
			}
			c.builtins = append(c.builtins, builtin{uint64(off), uint64(off) + y.Size, name})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(c.builtins, func(a, b builtin) int {
		if a.offset < b.offset {
			return -1
		}
		return 1
	})
	if len(c.values) == 0 {
		return nil, errors.New("it has no v8dbg_ symbols")
	}
	return c, nil
}

// text ends a name at its NUL, and bounds it.
func text(b []byte) string {
	b = b[:min(len(b), 256)]
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// layout is the numbers that are needed.
type layout struct {
	mapOf, instanceType                            uint64
	sharedType, scopeType, scriptType, debugType   uint16
	nameOrScope, scriptOrDebug, scriptName         uint64
	length, oneByte, twoByte                       uint64
	consFirst, consSecond, thin, sliced, slicedOff uint64
	notString                                      uint16
	encoding, oneByteTag, representation           uint16
	consTag, externalTag, slicedTag, thinTag       uint16
	scopeLocals, scopeFirst                        uint64
}

// What the sampler is told before a version is known: that of versions 10 to 11 (Node.js 18
// and 20). Others are refused.
const (
	functionSlot = 2 // [fp - 16]: the JSFunction
	sharedOffset = 24
)

var errVersion = errors.New("a version of V8 that is not known")

func newLayout(c *constants) (*layout, error) {
	var missing []string
	get := func(name string) int32 {
		v, ok := c.values[name]
		if !ok {
			missing = append(missing, name)
		}
		return v
	}
	off := func(name string) uint64 {
		v := get(name)
		if v < 0 || v > 1024 {
			missing = append(missing, fmt.Sprintf("%s (%d)", name, v))
		}
		return uint64(v)
	}
	l := &layout{
		mapOf: 0, instanceType: off("class_Map__instance_type__uint16_t"),
		sharedType: uint16(get("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE")), scopeType: uint16(get("type_ScopeInfo__SCOPE_INFO_TYPE")),
		scriptType:  uint16(get("type_Script__SCRIPT_TYPE")),
		nameOrScope: off("class_SharedFunctionInfo__name_or_scope_info__Object"), scriptName: off("class_Script__name__Object"),
		scriptOrDebug: off("class_SharedFunctionInfo__script_or_debug_info__HeapObject"),
		length:        off("class_String__length__int32_t"), oneByte: off("class_SeqOneByteString__chars__char"), twoByte: off("class_SeqTwoByteString__chars__char"),
		consFirst: off("class_ConsString__first__String"), consSecond: off("class_ConsString__second__String"), thin: off("class_ThinString__actual__String"),
		sliced: off("class_SlicedString__parent__String"), slicedOff: off("class_SlicedString__offset__SMI"),
		notString: uint16(get("IsNotStringMask")), encoding: uint16(get("StringEncodingMask")), oneByteTag: uint16(get("OneByteStringTag")),
		representation: uint16(get("StringRepresentationMask")), consTag: uint16(get("ConsStringTag")), externalTag: uint16(get("ExternalStringTag")),
		slicedTag: uint16(get("SlicedStringTag")), thinTag: uint16(get("ThinStringTag")),
		scopeLocals: off("scopeinfo_idx_ncontextlocals"), scopeFirst: off("scopeinfo_idx_first_vars"),
	}
	if d, ok := c.values["type_DebugInfo__DEBUG_INFO_TYPE"]; ok {
		l.debugType = uint16(d)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: it lacks %s", errVersion, strings.Join(missing, ", "))
	}
	for name, want := range map[string]int32{
		"off_fp_function": -8 * functionSlot, "off_fp_context_or_frame_type": -8, "class_JSFunction__shared__SharedFunctionInfo": sharedOffset,
		"SmiValueShift": 1, "SmiShiftSize": 31, "SmiTagMask": 1, "class_HeapObject__map__Map": 0,
	} {
		if v, ok := c.values[name]; !ok || v != want {
			return nil, fmt.Errorf("%w: %s is %d, not %d", errVersion, name, v, want)
		}
	}
	return l, nil
}
