package symtab

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"

	"github.com/spanflame/spanflame/internal/elffile"
)

// loader reads the symbol tables of one file at a time. Its buffers are used again,
// as they are far larger than what is kept.
type loader struct {
	flat flattener
	buf  []byte
	used bool // since the last round
}

// maxScratch is the size over which a loader's buffers are not kept until the next
// load; smaller ones are let go by the second round without a load.
const maxScratch = 32 << 20

func newLoader() *loader {
	return &loader{buf: make([]byte, 96<<10)} // a multiple of both sizes of symbols
}

// scratch is about the memory that the loader holds on to.
func (l *loader) scratch() int {
	f := &l.flat
	return 16*(cap(f.cands)+cap(f.fallback)) + 8*(cap(f.keys)+cap(f.spare)) + 12*(cap(f.out)+cap(f.weak)) + 16*cap(f.ordered) + 8*cap(f.aliases)
}

// elfSymbols is a file with symbols. handle is nil if it is in memory.
type elfSymbols struct {
	file   *elffile.File
	handle *handle
}

// symbols makes the table of the functions that the files' symbol tables name, all
// in the layout of the program itself. limit is the number of symbols that may be
// read. What is wrong with one table does not keep the others from being used; the
// first such error is returned besides the table.
func (l *loader) symbols(lay layout, files []elfSymbols, limit int) (*table, *names, error) {
	l.flat.reset()
	n := &names{}
	var first error
	for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
		for _, ef := range files {
			if err := l.collect(lay, ef, kind, n, limit); err != nil && first == nil {
				first = err
			}
		}
	}
	return l.flat.table(), n, first
}

// collect adds the functions of one symbol table. Format: System V ABI, "Symbol Table".
func (l *loader) collect(lay layout, ef elfSymbols, kind elf.SectionType, n *names, limit int) error {
	sec := ef.file.SectionOfType(kind)
	if sec == nil || !sec.HasData() || sec.Len == 0 {
		return nil
	}
	strs := ef.file.LinkedStrings(sec)
	if strs == nil {
		return fmt.Errorf("%w: %s names no string table", elffile.ErrCorrupt, sec.Name)
	}
	base, err := n.add(ef.file, ef.handle, strs)
	if err != nil {
		return err
	}
	source := uint16(len(n.sources))
	strLen := n.sources[len(n.sources)-1].size
	room := int(min(ef.file.SymbolCount(sec), maxPresize, uint64(limit)))
	l.flat.cands = slices.Grow(l.flat.cands, room)
	thumb := ef.file.Machine == elf.EM_ARM
	f := &l.flat
	return ef.file.EachSymbol(sec, l.buf, func(s elffile.Symbol) error {
		typ := s.Type()
		if typ != elf.STT_FUNC && typ != elf.STT_GNU_IFUNC && (typ != elf.STT_NOTYPE || s.Size == 0) {
			return nil
		}
		if s.Section == elf.SHN_UNDEF || s.Section >= elf.SHN_LORESERVE && s.Section != elf.SHN_XINDEX ||
			s.Name == 0 || s.Name >= strLen {
			return nil
		}
		if thumb {
			s.Value &^= 1 // the bit says which instruction set it is
		}
		at, room, ok := lay.ofAddr(s.Value)
		if !ok {
			return nil
		}
		if len(f.cands)+len(f.fallback) >= limit {
			return fmt.Errorf("%d symbols: %w", limit, ErrTableTooBig)
		}
		c := candidate{start: at, size: room, name: base + s.Name, rank: rankLocal, source: source}
		if s.Size < uint64(room) {
			c.size = uint32(s.Size)
		}
		switch s.Bind() {
		case elf.STB_GLOBAL, stbUnique:
			c.rank = rankGlobal
		case elf.STB_WEAK:
			c.rank = rankWeak
		}
		switch {
		case s.Size == 0:
			c.size, c.rank = 1, rankZero
			f.fallback = append(f.fallback, c)
		case typ == elf.STT_NOTYPE:
			f.fallback = append(f.fallback, c)
		default:
			f.cands = append(f.cands, c)
		}
		return nil
	})
}

// maxPresize bounds the memory that is taken because of a number that a file states.
const maxPresize = 1 << 18

// stbUnique is STB_GNU_UNIQUE: global, and one in the process.
const stbUnique = elf.SymBind(10)

// symbolFiles finds the files with symbols of a program: itself, its MiniDebugInfo,
// and its separate debug file if it has no full table of its own, or if it could be
// fetched for want of debugging information. The handles it opened are returned to be
// closed with the tables; the error says what was wrong with a source that was there.
func symbolFiles(main elfSymbols, path string, root Root, opts *Options, fetched *remote, golang bool) (files []elfSymbols, opened []*handle, err error) {
	files = []elfSymbols{main}
	if s := main.file.Section(".gnu_debugdata"); s != nil {
		mini, merr := miniDebugInfo(main.file, s)
		if merr != nil {
			err = fmt.Errorf("read MiniDebugInfo: %w", merr)
		} else {
			files = append(files, elfSymbols{file: mini})
		}
	}
	if root != nil && (!hasFullTable(main.file) || fetched.wanted(files, golang)) {
		f, h, derr := findDebugFile(main.file, path, root, opts.DebugDirs, nil)
		if derr != nil {
			err = errors.Join(err, derr)
		}
		if f != nil {
			files = append(files, elfSymbols{f, h})
			opened = append(opened, h)
		}
	}
	if fetched.wanted(files, golang) {
		if f, h := fetched.find(main.file.GNUBuildID()); f != nil {
			files = append(files, elfSymbols{f, h})
			opened = append(opened, h)
		}
	}
	return files, opened, err
}

// hasFullTable says whether the file has a .symtab that was not cut down to less
// than its .dynsym.
func hasFullTable(f *elffile.File) bool {
	full := f.SectionOfType(elf.SHT_SYMTAB)
	if full == nil || !full.HasData() || full.Len == 0 {
		return false
	}
	dyn := f.SectionOfType(elf.SHT_DYNSYM)
	return dyn == nil || !dyn.HasData() || f.SymbolCount(full) >= f.SymbolCount(dyn)
}
