package elffile

import (
	"debug/elf"
	"fmt"
)

// Symbol is an entry of a symbol table. Name is an offset in the table's strings.
type Symbol struct {
	Value   VirtAddr
	Size    uint64
	Name    uint32
	Section elf.SectionIndex
	Info    byte
}

// Type is the symbol's type.
func (s Symbol) Type() elf.SymType { return elf.ST_TYPE(s.Info) }

// Bind is the symbol's binding.
func (s Symbol) Bind() elf.SymBind { return elf.ST_BIND(s.Info) }

// SymbolCount is the number of entries of a symbol table, the null symbol included.
func (f *File) SymbolCount(s *Section) uint64 {
	return s.Len / f.symbolSize()
}

func (f *File) symbolSize() uint64 {
	if f.Class == elf.ELFCLASS64 {
		return elf.Sym64Size
	}
	return elf.Sym32Size
}

// EachSymbol calls fn with every entry of a symbol table but the null symbol. The
// buffer is used to read in pieces, and is made if it is too small.
// Format: System V ABI, "Symbol Table".
func (f *File) EachSymbol(s *Section, buf []byte, fn func(Symbol) error) error {
	if !s.HasData() || s.Compressed() {
		return fmt.Errorf("symbols of section %q: %w", s.Name, ErrNoData)
	}
	size := f.symbolSize()
	if s.EntSize != size {
		return fmt.Errorf("%w: symbols of %d bytes in section %q", ErrCorrupt, s.EntSize, s.Name)
	}
	if err := f.inside(s.Off, s.Len); err != nil {
		return fmt.Errorf("symbols of section %q: %w", s.Name, err)
	}
	if uint64(len(buf)) < 16*size {
		buf = make([]byte, 64<<10)
	}
	buf = buf[:uint64(len(buf))/size*size]
	off, left := s.Off, s.Len/size*size
	first := true
	for left > 0 {
		b := buf[:min(left, uint64(len(buf)))]
		if err := f.ReadFull(b, off); err != nil {
			return fmt.Errorf("read symbols of section %q: %w", s.Name, err)
		}
		off += FileOffset(len(b))
		left -= uint64(len(b))
		if first {
			b, first = b[size:], false
		}
		if err := f.decodeSymbols(b, fn); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) decodeSymbols(b []byte, fn func(Symbol) error) error {
	if f.Class == elf.ELFCLASS64 {
		for ; len(b) >= elf.Sym64Size; b = b[elf.Sym64Size:] {
			err := fn(Symbol{Name: le.Uint32(b), Info: b[4], Section: elf.SectionIndex(le.Uint16(b[6:])),
				Value: VirtAddr(le.Uint64(b[8:])), Size: le.Uint64(b[16:])})
			if err != nil {
				return err
			}
		}
		return nil
	}
	for ; len(b) >= elf.Sym32Size; b = b[elf.Sym32Size:] {
		err := fn(Symbol{Name: le.Uint32(b), Value: VirtAddr(le.Uint32(b[4:])), Size: uint64(le.Uint32(b[8:])),
			Info: b[12], Section: elf.SectionIndex(le.Uint16(b[14:]))})
		if err != nil {
			return err
		}
	}
	return nil
}
