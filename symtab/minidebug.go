package symtab

import (
	"bytes"

	"github.com/spanflame/spanflame/internal/elffile"
)

const (
	maxMiniCompressed = 32 << 20
	maxMini           = 64 << 20
)

// miniDebugInfo decompresses .gnu_debugdata: an ELF file whose .symtab has the
// functions that .dynsym lacks. Source: GDB manual, "MiniDebugInfo".
func miniDebugInfo(f *elffile.File, s *elffile.Section) (*elffile.File, error) {
	packed, err := f.Data(s, maxMiniCompressed)
	if err != nil {
		return nil, err
	}
	b, err := unxz(packed, maxMini)
	if err != nil {
		return nil, err
	}
	return elffile.Open(bytes.NewReader(b), int64(len(b)))
}
