package symtab

import (
	"bytes"
	"debug/elf"
	"errors"

	"github.com/spanflame/spanflame/internal/elffile"
)

const (
	minV8        = 16 << 20 // bytes of a program with V8
	maxV8Names   = 48 << 20
	v8Builtin    = "Builtins_"
	minV8Symbols = 100
)

var errEnough = errors.New("enough")

// V8Builtins returns where the built-in functions of V8 lie in a program: code that V8
// itself makes and that the compiler describes nowhere, but which keeps frame pointers.
// It is known by the names of its symbols.
func V8Builtins(f *elffile.File) (start, end VirtAddr, ok bool) {
	s := f.SectionOfType(elf.SHT_SYMTAB)
	if f.Size() < minV8 || s == nil || !s.HasData() {
		return 0, 0, false
	}
	strs := f.LinkedStrings(s)
	if strs == nil {
		return 0, 0, false
	}
	names, err := f.Data(strs, maxV8Names)
	if err != nil || !bytes.Contains(names, []byte("\x00"+v8Builtin+"JSEntry\x00")) {
		return 0, 0, false
	}
	n := 0
	_ = f.EachSymbol(s, nil, func(y elffile.Symbol) error {
		if y.Type() != elf.STT_FUNC || uint64(y.Name) >= uint64(len(names)) || !bytes.HasPrefix(names[y.Name:], []byte(v8Builtin)) ||
			y.Value+VirtAddr(y.Size) < y.Value {
			return nil
		}
		if n == 0 || y.Value < start {
			start = y.Value
		}
		end = max(end, y.Value+VirtAddr(y.Size))
		if n++; n > 1<<16 {
			return errEnough
		}
		return nil
	})
	return start, end, n >= minV8Symbols && end > start
}
