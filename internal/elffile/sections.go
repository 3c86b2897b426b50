package elffile

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Size is the size of the file in bytes, as given to Open.
func (f *File) Size() int64 { return f.size }

// Bytes reads n bytes at off, if the file has them and they are at most limit.
func (f *File) Bytes(off FileOffset, n uint64, limit int64) ([]byte, error) {
	if err := f.inside(off, n); err != nil {
		return nil, err
	}
	if limit < 0 || n > uint64(limit) {
		return nil, fmt.Errorf("%d bytes: %w (%d)", n, ErrTooLarge, limit)
	}
	b := make([]byte, n)
	if err := readFull(f.r, b, int64(off)); err != nil {
		return nil, err
	}
	return b, nil
}

// ReadFull fills b from off. A file that ends before is an error.
func (f *File) ReadFull(b []byte, off FileOffset) error {
	if err := f.inside(off, uint64(len(b))); err != nil {
		return err
	}
	return readFull(f.r, b, int64(off))
}

func (f *File) inside(off FileOffset, n uint64) error {
	if uint64(off) > uint64(f.size) || n > uint64(f.size)-uint64(off) {
		return fmt.Errorf("%w: %d bytes at %#x in a file of %d", ErrCorrupt, n, uint64(off), f.size)
	}
	return nil
}

func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // the file shrank since it was measured
	}
	return err
}

// Section returns the first section of that name, or nil.
func (f *File) Section(name string) *Section {
	for i := range f.Sections {
		if f.Sections[i].Name == name {
			return &f.Sections[i]
		}
	}
	return nil
}

// SectionOfType returns the first section of that type, or nil.
func (f *File) SectionOfType(t elf.SectionType) *Section {
	for i := range f.Sections {
		if f.Sections[i].Type == t {
			return &f.Sections[i]
		}
	}
	return nil
}

// LinkedStrings returns the string table that a symbol table names by its sh_link,
// or nil.
func (f *File) LinkedStrings(s *Section) *Section {
	if uint64(s.Link) >= uint64(len(f.Sections)) {
		return nil
	}
	t := &f.Sections[s.Link]
	if t.Type != elf.SHT_STRTAB {
		return nil
	}
	return t
}

// Compressed says whether the section's data is compressed, in the way of the
// System V ABI (SHF_COMPRESSED) or the older way of GNU (.zdebug_).
func (s *Section) Compressed() bool {
	return s.Flags&elf.SHF_COMPRESSED != 0 || strings.HasPrefix(s.Name, ".zdebug_")
}

// HasData says whether this file holds the section's bytes. In a debug file that
// was split off, the sections of the program have none.
func (s *Section) HasData() bool { return s.Type != elf.SHT_NOBITS && s.Type != elf.SHT_NULL }

// Data reads a section, decompressed. Neither the data in the file nor the result
// may be larger than limit bytes; else the error wraps ErrTooLarge.
func (f *File) Data(s *Section, limit int64) ([]byte, error) {
	if !s.HasData() {
		return nil, fmt.Errorf("section %q: %w", s.Name, ErrNoData)
	}
	raw, err := f.Bytes(s.Off, s.Len, limit)
	if err != nil {
		return nil, fmt.Errorf("read section %q: %w", s.Name, err)
	}
	if !s.Compressed() {
		return raw, nil
	}
	b, err := f.decompress(s, raw, limit)
	if err != nil {
		return nil, fmt.Errorf("decompress section %q: %w", s.Name, err)
	}
	return b, nil
}

// decompress: System V ABI, "Section Compression" (Elf32_Chdr, Elf64_Chdr).
func (f *File) decompress(s *Section, raw []byte, limit int64) ([]byte, error) {
	var kind elf.CompressionType
	var size uint64
	switch {
	case s.Flags&elf.SHF_COMPRESSED == 0: // .zdebug_: "ZLIB" and a big-endian size
		if len(raw) < 12 || string(raw[:4]) != "ZLIB" {
			return nil, fmt.Errorf("%w: no ZLIB header", ErrCorrupt)
		}
		kind, size, raw = elf.COMPRESS_ZLIB, binary.BigEndian.Uint64(raw[4:]), raw[12:]
	case f.Class == elf.ELFCLASS64 && len(raw) >= 24:
		kind, size, raw = elf.CompressionType(le.Uint32(raw)), le.Uint64(raw[8:]), raw[24:]
	case f.Class == elf.ELFCLASS32 && len(raw) >= 12:
		kind, size, raw = elf.CompressionType(le.Uint32(raw)), uint64(le.Uint32(raw[4:])), raw[12:]
	default:
		return nil, fmt.Errorf("%w: compression header cut off", ErrCorrupt)
	}
	if limit < 0 || size > uint64(limit) {
		return nil, fmt.Errorf("%d bytes: %w (%d)", size, ErrTooLarge, limit)
	}
	var r io.Reader
	switch kind {
	case elf.COMPRESS_ZLIB:
		z, err := zlib.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		defer func() { _ = z.Close() }() // holds nothing outside memory
		r = z
	case elf.COMPRESS_ZSTD:
		z, err := zstd.NewReader(bytes.NewReader(raw), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow(limit)))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	default:
		return nil, fmt.Errorf("%w: compression %v", ErrUnsupported, kind)
	}
	// The stated size is only believed as far as data comes for it.
	var out bytes.Buffer
	out.Grow(int(min(size, 1<<20)))
	n, err := io.Copy(&out, io.LimitReader(r, int64(size)+1))
	if err != nil {
		return nil, err
	}
	if uint64(n) != size {
		return nil, fmt.Errorf("%w: %d bytes where the header says %d", ErrCorrupt, n, size)
	}
	return out.Bytes(), nil
}

// maxWindow bounds zstd's window to what the output can need.
func maxWindow(limit int64) uint64 {
	const least, most = 1 << 20, 128 << 20
	return uint64(max(least, min(limit, most)))
}

// AddrOf converts a file offset to the virtual address that the file's segments
// load it at. False if no segment loads it.
func (f *File) AddrOf(off FileOffset) (VirtAddr, bool) {
	for i := range f.Loads {
		s := &f.Loads[i]
		if off >= s.Off && uint64(off-s.Off) < s.FileLen {
			return s.Addr + VirtAddr(off-s.Off), true
		}
	}
	return 0, false
}

// OffsetOf converts a virtual address to the file offset that it is loaded from.
// False if it is not loaded from the file.
func (f *File) OffsetOf(addr VirtAddr) (FileOffset, bool) {
	for i := range f.Loads {
		s := &f.Loads[i]
		if addr >= s.Addr && uint64(addr-s.Addr) < s.FileLen {
			return s.Off + FileOffset(addr-s.Addr), true
		}
	}
	return 0, false
}

// ReadAddr fills b with what the file loads at a virtual address. What lies beyond
// the end of the segment's data in the file is an error.
func (f *File) ReadAddr(b []byte, addr VirtAddr) error {
	for i := range f.Loads {
		s := &f.Loads[i]
		if addr >= s.Addr && uint64(addr-s.Addr) < s.FileLen {
			if uint64(len(b)) > s.FileLen-uint64(addr-s.Addr) {
				break
			}
			return f.ReadFull(b, s.Off+FileOffset(addr-s.Addr))
		}
	}
	return fmt.Errorf("%w: %d bytes at address %#x are not in the file", ErrCorrupt, len(b), uint64(addr))
}
