// Package elffile reads the parts of ELF files that a profiler needs: segments,
// sections, notes, symbols. It never trusts what it reads, and never runs or
// changes a file.
//
// Files are read with pread into buffers, never through a memory mapping: a file
// that is truncated while it is read yields an error, where a mapping would raise
// SIGBUS. Every size that the file states is checked against the file's own size
// and against a limit before memory is taken for it.
//
// Format: System V ABI, "Object Files", chapters 4 and 5, and its GNU additions
// (section compression, notes, .gnu_debuglink). Only little-endian files are
// read, of both classes.
package elffile

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Errors that callers decide on.
var (
	ErrNotELF      = errors.New("not an ELF file")
	ErrUnsupported = errors.New("unsupported ELF file")
	ErrCorrupt     = errors.New("corrupt ELF file")
	ErrTooLarge    = errors.New("larger than the limit")
	ErrNoData      = errors.New("section has no data in this file")
)

// FileOffset is a position in a file, in bytes.
type FileOffset uint64

// VirtAddr is an address as a file's headers state it, before any load bias.
type VirtAddr uint64

const (
	maxSegments     = 4096    // the kernel itself refuses program header tables over 64 KiB
	maxSections     = 1 << 16 // SHN_LORESERVE is 0xff00; more occur in relocatable objects only
	maxSectionNames = 4 << 20
)

// Segment is a program header.
type Segment struct {
	Type    elf.ProgType
	Flags   elf.ProgFlag
	Off     FileOffset
	Addr    VirtAddr
	FileLen uint64 // bytes in the file
	MemLen  uint64 // bytes in memory
	Align   uint64
}

// Section is a section header. Len is the size in the file, that is before
// decompression.
type Section struct {
	Name    string
	Type    elf.SectionType
	Flags   elf.SectionFlag
	Addr    VirtAddr
	Off     FileOffset
	Len     uint64
	Link    uint32
	Info    uint32
	Align   uint64
	EntSize uint64
}

// File is an ELF file. Its fields and methods are safe for concurrent use as long
// as nobody writes to the fields.
type File struct {
	Class   elf.Class
	Type    elf.Type
	Machine elf.Machine
	Entry   VirtAddr

	Segments []Segment // all program headers, in file order
	Loads    []Segment // those of type PT_LOAD that are well formed
	Sections []Section // by index; empty if the file has no section headers

	// SectionsErr says why Sections is empty although the header names some. Such
	// files run, as the kernel looks at segments only.
	SectionsErr error

	r     io.ReaderAt
	size  int64
	names int // bytes of section names
}

// Open reads the headers of an ELF file of size bytes. The reader must stay usable
// for as long as the File is used. The error wraps ErrNotELF, ErrUnsupported or
// ErrCorrupt, or is the reader's own.
func Open(r io.ReaderAt, size int64) (*File, error) {
	var head [64]byte
	n, err := r.ReadAt(head[:], 0)
	if n < len(head) && err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read ELF header: %w", err)
	}
	if n < elf.EI_NIDENT || string(head[:4]) != elf.ELFMAG {
		return nil, ErrNotELF
	}
	if elf.Data(head[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("%w: byte order %v", ErrUnsupported, elf.Data(head[elf.EI_DATA]))
	}
	f := &File{Class: elf.Class(head[elf.EI_CLASS]), r: r, size: size}
	f.Type = elf.Type(le.Uint16(head[16:]))
	f.Machine = elf.Machine(le.Uint16(head[18:]))
	var h tables
	switch f.Class {
	case elf.ELFCLASS64:
		if n < 64 {
			return nil, fmt.Errorf("%w: header cut off", ErrCorrupt)
		}
		f.Entry = VirtAddr(le.Uint64(head[24:]))
		h.phoff, h.shoff = le.Uint64(head[32:]), le.Uint64(head[40:])
		h.readCounts(head[54:])
		h.phmin, h.shmin = 56, 64
	case elf.ELFCLASS32:
		if n < 52 {
			return nil, fmt.Errorf("%w: header cut off", ErrCorrupt)
		}
		f.Entry = VirtAddr(le.Uint32(head[24:]))
		h.phoff, h.shoff = uint64(le.Uint32(head[28:])), uint64(le.Uint32(head[32:]))
		h.readCounts(head[42:])
		h.phmin, h.shmin = 32, 40
	default:
		return nil, fmt.Errorf("%w: class %v", ErrUnsupported, f.Class)
	}
	f.SectionsErr = f.readSections(&h)
	if err := f.readSegments(&h); err != nil {
		return nil, err
	}
	return f, nil
}

var le = binary.LittleEndian

// tables is what the ELF header says of the two header tables.
type tables struct {
	phoff, shoff     uint64
	phentsize, phnum uint64
	shentsize, shnum uint64
	shstrndx         uint64
	phmin, shmin     uint64
	extended         bool // phnum is in section 0
}

func (h *tables) readCounts(b []byte) {
	h.phentsize, h.phnum = uint64(le.Uint16(b)), uint64(le.Uint16(b[2:]))
	h.shentsize, h.shnum = uint64(le.Uint16(b[4:])), uint64(le.Uint16(b[6:]))
	h.shstrndx = uint64(le.Uint16(b[8:]))
	h.extended = h.phnum == 0xffff // PN_XNUM
}

// Footprint is about the memory that the headers take.
func (f *File) Footprint() int64 {
	return int64(256 + 56*(len(f.Segments)+len(f.Loads)) + 88*len(f.Sections) + f.names)
}

// ForgetHeaders gives the memory of headers back, but for Loads: the file can go on
// to be read by offset and by address.
func (f *File) ForgetHeaders() { f.Sections, f.Segments, f.names = nil, nil, 0 }

func (f *File) readSegments(h *tables) error {
	if h.phnum == 0 || h.phoff == 0 {
		return nil
	}
	if h.phentsize < h.phmin || h.phnum > maxSegments {
		return fmt.Errorf("%w: %d program headers of %d bytes", ErrCorrupt, h.phnum, h.phentsize)
	}
	raw, err := f.Bytes(FileOffset(h.phoff), h.phnum*h.phentsize, math.MaxInt64)
	if err != nil {
		return fmt.Errorf("read program headers: %w", err)
	}
	f.Segments = make([]Segment, 0, h.phnum)
	for ; uint64(len(raw)) >= h.phentsize; raw = raw[h.phentsize:] {
		var s Segment
		s.Type = elf.ProgType(le.Uint32(raw))
		if f.Class == elf.ELFCLASS64 {
			s.Flags = elf.ProgFlag(le.Uint32(raw[4:]))
			s.Off, s.Addr = FileOffset(le.Uint64(raw[8:])), VirtAddr(le.Uint64(raw[16:]))
			s.FileLen, s.MemLen, s.Align = le.Uint64(raw[32:]), le.Uint64(raw[40:]), le.Uint64(raw[48:])
		} else {
			s.Off, s.Addr = FileOffset(le.Uint32(raw[4:])), VirtAddr(le.Uint32(raw[8:]))
			s.FileLen, s.MemLen = uint64(le.Uint32(raw[16:])), uint64(le.Uint32(raw[20:]))
			s.Flags, s.Align = elf.ProgFlag(le.Uint32(raw[24:])), uint64(le.Uint32(raw[28:]))
		}
		f.Segments = append(f.Segments, s)
		// A segment that wraps round the end of either space maps nothing.
		if s.Type == elf.PT_LOAD && uint64(s.Off)+s.FileLen >= uint64(s.Off) &&
			uint64(s.Addr)+s.MemLen >= uint64(s.Addr) && uint64(s.Addr)+s.FileLen >= uint64(s.Addr) {
			f.Loads = append(f.Loads, s)
		}
	}
	return nil
}

func (f *File) readSections(h *tables) error {
	if h.shoff == 0 {
		return nil
	}
	if h.shentsize < h.shmin {
		return fmt.Errorf("%w: section headers of %d bytes", ErrCorrupt, h.shentsize)
	}
	if h.shnum == 0 || h.extended || h.shstrndx == uint64(elf.SHN_XINDEX) {
		// The counts that do not fit in the ELF header are in section header 0.
		raw, err := f.Bytes(FileOffset(h.shoff), h.shentsize, math.MaxInt64)
		if err != nil {
			return fmt.Errorf("read section header 0: %w", err)
		}
		zero := f.section(raw)
		if h.shnum == 0 {
			h.shnum = zero.Len
		}
		if h.extended {
			h.phnum = uint64(zero.Info)
		}
		if h.shstrndx == uint64(elf.SHN_XINDEX) {
			h.shstrndx = uint64(zero.Link)
		}
	}
	if h.shnum > maxSections {
		return fmt.Errorf("%w: %d sections", ErrTooLarge, h.shnum)
	}
	raw, err := f.Bytes(FileOffset(h.shoff), h.shnum*h.shentsize, math.MaxInt64)
	if err != nil {
		return fmt.Errorf("read section headers: %w", err)
	}
	sections := make([]Section, h.shnum)
	nameOffs := make([]uint32, h.shnum)
	for i := range sections {
		nameOffs[i] = le.Uint32(raw)
		sections[i] = f.section(raw)
		raw = raw[h.shentsize:]
	}
	if h.shstrndx < h.shnum {
		s := &sections[h.shstrndx]
		b, err := f.Bytes(s.Off, s.Len, maxSectionNames)
		if err != nil {
			return fmt.Errorf("read section names: %w", err)
		}
		f.names = len(b)
		names := string(b) // one allocation that all names are cut from
		for i := range sections {
			sections[i].Name = cString(names, nameOffs[i])
		}
	}
	f.Sections = sections
	return nil
}

func (f *File) section(raw []byte) Section {
	var s Section
	s.Type = elf.SectionType(le.Uint32(raw[4:]))
	if f.Class == elf.ELFCLASS64 {
		s.Flags = elf.SectionFlag(le.Uint64(raw[8:]))
		s.Addr, s.Off, s.Len = VirtAddr(le.Uint64(raw[16:])), FileOffset(le.Uint64(raw[24:])), le.Uint64(raw[32:])
		s.Link, s.Info = le.Uint32(raw[40:]), le.Uint32(raw[44:])
		s.Align, s.EntSize = le.Uint64(raw[48:]), le.Uint64(raw[56:])
	} else {
		s.Flags = elf.SectionFlag(le.Uint32(raw[8:]))
		s.Addr, s.Off, s.Len = VirtAddr(le.Uint32(raw[12:])), FileOffset(le.Uint32(raw[16:])), uint64(le.Uint32(raw[20:]))
		s.Link, s.Info = le.Uint32(raw[24:]), le.Uint32(raw[28:])
		s.Align, s.EntSize = uint64(le.Uint32(raw[32:])), uint64(le.Uint32(raw[36:]))
	}
	return s
}

// cString cuts the NUL-terminated string at off from s; empty if there is none.
func cString(s string, off uint32) string {
	if uint64(off) >= uint64(len(s)) {
		return ""
	}
	s = s[off:]
	for i := 0; i < len(s); i++ {
		if s[i] == 0 {
			return s[:i]
		}
	}
	return ""
}
