package v8

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/internal/targetmem"
	"github.com/spanflame/spanflame/symtab"
)

// version is what V8 11.3 says of itself.
var version = map[string]int32{
	"class_Map__instance_type__uint16_t": 12, "type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE": 262, "type_ScopeInfo__SCOPE_INFO_TYPE": 261,
	"type_Script__SCRIPT_TYPE": 167, "type_DebugInfo__DEBUG_INFO_TYPE": 153, "class_SharedFunctionInfo__name_or_scope_info__Object": 16,
	"class_Script__name__Object": 16, "class_SharedFunctionInfo__script_or_debug_info__HeapObject": 32, "class_String__length__int32_t": 12,
	"class_SeqOneByteString__chars__char": 16, "class_SeqTwoByteString__chars__char": 16, "class_ConsString__first__String": 16,
	"class_ConsString__second__String": 24, "class_ThinString__actual__String": 16, "class_SlicedString__parent__String": 16,
	"class_SlicedString__offset__SMI": 24, "IsNotStringMask": -128, "StringEncodingMask": 8, "OneByteStringTag": 8, "StringRepresentationMask": 7,
	"ConsStringTag": 1, "ExternalStringTag": 2, "SlicedStringTag": 3, "ThinStringTag": 5, "scopeinfo_idx_ncontextlocals": 2,
	"scopeinfo_idx_first_vars": 3, "off_fp_function": -16, "off_fp_context_or_frame_type": -8, "class_JSFunction__shared__SharedFunctionInfo": 24,
	"SmiValueShift": 1, "SmiShiftSize": 31, "SmiTagMask": 1, "class_HeapObject__map__Map": 0,
}

// memory is a heap from base on.
type memory []byte

const base = 0x100000

func (m memory) ReadAt(b []byte, addr int64) (int, error) {
	if addr < base || addr-base+int64(len(b)) > int64(len(m)) {
		return 0, errors.New("nothing is there")
	}
	return copy(b, m[addr-base:]), nil
}

func (m memory) word(at, v uint64) { binary.LittleEndian.PutUint64(m[at-base:], v) }

// object makes one at an address, with its map behind the heap's other objects.
func (m memory) object(at uint64, t uint16) {
	mapAt := uint64(base+0x8000) + uint64(t)*16
	binary.LittleEndian.PutUint16(m[mapAt+12-base:], t)
	m.word(at, mapAt+1)
}

func (m memory) text(at uint64, s string) {
	m.object(at, 40)
	binary.LittleEndian.PutUint32(m[at+12-base:], uint32(len(s)))
	copy(m[at+16-base:], s)
}

func smi(n uint32) uint64 { return uint64(n) << 32 }

const (
	shared, script, fileAt, nameAt, scope = base + 0x100, base + 0x200, base + 0x300, base + 0x400, base + 0x500
	part1, part2                          = base + 0x600, base + 0x700
)

func heap() memory {
	m := make(memory, 0x20000)
	m.object(shared, 262)
	m.object(script, 167)
	m.word(shared+32, script+1)
	m.word(script+16, fileAt+1)
	m.text(fileAt, "/srv/shop.js")
	m.word(shared+16, nameAt+1)
	m.text(nameAt, "checkout")
	return m
}

func newTestSource(t testing.TB, m memory) *source {
	t.Helper()
	c := &constants{values: version, builtins: []builtin{{100, 200, ""}, {200, 300, "Builtins_AddHandler"}}}
	l, err := newLayout(c)
	if err != nil {
		t.Fatal(err)
	}
	return &source{mem: &targetmem.Reader{Memory: m}, c: c, l: l, max: 1 << 20, functions: map[uint64]symtab.Frame{}, types: map[uint64]uint16{}}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(m memory)
		want string
	}{
		{"text", func(memory) {}, "checkout"},
		{"two bytes", func(m memory) { m.text(nameAt, "\x0d\x54\x4d\x52"); m.object(nameAt, 32); m[nameAt+12-base] = 2 }, "名前"},
		{"Latin-1", func(m memory) { m.text(nameAt, "caf\xe9") }, "café"},
		{"two parts", func(m memory) {
			m.object(nameAt, 41)
			m.word(nameAt+16, part1+1)
			m.word(nameAt+24, part2+1)
			m.text(part1, "get ")
			m.text(part2, "price")
		}, "get price"},
		{"a part of another", func(m memory) {
			m.object(nameAt, 43)
			m.word(nameAt+8, smi(0)|5<<32)
			m.word(nameAt+16, part1+1)
			m.word(nameAt+24, smi(4))
			m.text(part1, "the price of it")
		}, "price"},
		{"of a scope", func(m memory) {
			m.word(shared+16, scope+1)
			m.object(scope, 261)
			for i, v := range []uint64{smi(7), smi(1), smi(1), smi(10), smi(20), part1 + 1, smi(0), part2 + 1, smi(3)} {
				m.word(scope+8+8*uint64(i), v)
			}
			m.text(part1, "local")
			m.text(part2, "own")
		}, "own"},
		{"of a scope, none", func(m memory) {
			m.word(shared+16, scope+1)
			m.object(scope, 261)
			for i := range uint64(12) {
				m.word(scope+8+8*i, 0)
			}
		}, "(anonymous)"},
		{"a text that is itself its part", func(m memory) {
			m.object(nameAt, 41)
			m.word(nameAt+16, nameAt+1)
			m.word(nameAt+24, nameAt+1)
		}, "(anonymous)"},
		{"a text of any length", func(m memory) { binary.LittleEndian.PutUint32(m[nameAt+12-base:], 0xffffffff) }, "checkout\x00"},
		{"no function", func(m memory) { m.object(shared, 260) }, ""},
		{"no script", func(m memory) { m.object(script, 166) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := heap()
			tt.make(m)
			got := newTestSource(t, m).Frames(madecode.Place{Addr: 1, Word: shared + 1})
			switch {
			case tt.want == "":
				if got != nil {
					t.Errorf("%+v", got)
				}
			case strings.HasSuffix(tt.want, "\x00"):
				if len(got) != 1 || len(got[0].Name) > maxName {
					t.Errorf("%+v", got)
				}
			case len(got) != 1 || got[0] != symtab.Frame{Name: tt.want, File: "/srv/shop.js"}:
				t.Errorf("%+v, want %s", got, tt.want)
			}
		})
	}
}

// TestBuiltins has frames in V8's own code, which run functions or do not.
func TestBuiltins(t *testing.T) {
	s := newTestSource(t, heap())
	for offset, want := range map[uint64]string{99: "", 150: "checkout", 250: "Builtins_AddHandler < checkout", 300: ""} {
		var names []string
		for _, f := range s.Frames(madecode.Place{InFile: true, Offset: offset, Word: shared + 1}) {
			names = append(names, f.Name)
		}
		if got := strings.Join(names, " < "); got != want {
			t.Errorf("%q at %d, want %q", got, offset, want)
		}
	}
}

// TestAfterTheEnd asks when the memory is gone.
func TestAfterTheEnd(t *testing.T) {
	s := newTestSource(t, heap())
	p := madecode.Place{Word: shared + 1}
	before := s.Frames(p)
	s.mem = &targetmem.Reader{Memory: memory(nil)}
	s.types = map[uint64]uint16{}
	if after := s.Frames(p); len(after) != 1 || after[0] != before[0] {
		t.Errorf("%v, before %v", after, before)
	}
	if got := s.Frames(madecode.Place{Word: nameAt + 1}); got != nil {
		t.Errorf("%v", got)
	}
}

func TestUnknownVersion(t *testing.T) {
	for name, change := range map[string]func(map[string]int32){
		"nothing":         func(m map[string]int32) { clear(m) },
		"another offset":  func(m map[string]int32) { m["class_JSFunction__shared__SharedFunctionInfo"] = 16 },
		"a small integer": func(m map[string]int32) { m["SmiShiftSize"] = 0 },
		"far away":        func(m map[string]int32) { m["class_Script__name__Object"] = 1 << 20 },
	} {
		values := map[string]int32{}
		for k, v := range version {
			values[k] = v
		}
		change(values)
		if _, err := newLayout(&constants{values: values}); !errors.Is(err, errVersion) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostile changes the heap at random: nothing may hang or crash.
func TestHostile(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		m := heap()
		for range 20 {
			at := 0x100 + r.IntN(0x700)
			if r.IntN(2) == 0 {
				m[at] = byte(r.Uint32())
			} else {
				m.word(base+uint64(at&^7), base+0x100+uint64(r.IntN(0x700))|1)
			}
		}
		s := newTestSource(t, m)
		for range 5 {
			for _, f := range s.Frames(madecode.Place{Word: base + uint64(r.IntN(0x800))}) {
				if len(f.Name) > maxName+8 {
					t.Fatalf("%d bytes", len(f.Name))
				}
			}
		}
	}
}

// TestInstalledNode reads the constants of the Node.js that is installed.
func TestInstalledNode(t *testing.T) {
	p, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	c, err := readConstants(f, info.Size())
	if err != nil {
		t.Skip("node says nothing of V8: ", err)
	}
	if _, err := newLayout(c); err != nil {
		t.Error(err)
	}
	if len(c.builtins) < 1000 {
		t.Errorf("%d builtins", len(c.builtins))
	}
}
