package dwarf

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/spanflame/spanflame/internal/elffile"
)

// section is a section of the file, or nothing. A compressed one is in memory from the
// first look-up on.
type section struct {
	f      *elffile.File
	off    elffile.FileOffset
	size   uint64
	mem    []byte
	packed *elffile.Section
}

// newSection prepares the reading of a section, which may be nil.
func newSection(f *elffile.File, s *elffile.Section) (*section, error) {
	if s == nil || !s.HasData() {
		return &section{}, nil
	}
	if s.Compressed() {
		packed := *s
		return &section{f: f, packed: &packed}, nil
	}
	if uint64(s.Off)+s.Len < s.Len || uint64(s.Off)+s.Len > uint64(f.Size()) {
		return nil, fmt.Errorf("%w: it lies outside the file", elffile.ErrCorrupt)
	}
	return &section{f: f, off: s.Off, size: s.Len}, nil
}

// unpack decompresses the section if it must be, within what is left of a limit.
func (s *section) unpack(left *int64) error {
	if s.packed == nil || s.mem != nil {
		return nil
	}
	b, err := s.f.Data(s.packed, *left)
	if err != nil {
		return fmt.Errorf("decompress %s: %w", s.packed.Name, err)
	}
	*left -= int64(len(b))
	s.mem, s.size = b, uint64(len(b))
	return nil
}

// bytes returns n bytes at an offset.
func (s *section) bytes(at, n uint64) ([]byte, error) {
	if at > s.size || n > s.size-at {
		return nil, fmt.Errorf("%w: %d bytes at %#x of a section of %d", elffile.ErrCorrupt, n, at, s.size)
	}
	if s.mem != nil {
		return s.mem[at:][:n], nil
	}
	return s.f.Bytes(s.off+elffile.FileOffset(at), n, maxUnit)
}

// some returns at most n bytes from an offset on.
func (s *section) some(at, n uint64) ([]byte, error) {
	if at > s.size {
		return nil, fmt.Errorf("%w: %#x of a section of %d bytes", elffile.ErrCorrupt, at, s.size)
	}
	return s.bytes(at, min(n, s.size-at))
}

// str returns the string at an offset, which ends with a NUL.
func (s *section) str(at uint64) string {
	for n := uint64(128); ; n *= 8 {
		b, err := s.some(at, n)
		if err != nil {
			return ""
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return string(b[:i])
		}
		if uint64(len(b)) < n || n >= maxString {
			return string(b)
		}
	}
}

// buf reads numbers from bytes. After an error it yields zeros.
type buf struct {
	b   []byte
	at  int
	bad bool
}

func (b *buf) fail() { b.bad, b.at = true, len(b.b) }

func (b *buf) take(n uint64) []byte {
	if n > uint64(len(b.b)-b.at) {
		b.fail()
		return nil
	}
	b.at += int(n)
	return b.b[b.at-int(n) : b.at]
}

func (b *buf) skip(n uint64) { b.take(n) }

// num reads a number of n bytes, 1 to 8.
func (b *buf) num(n int) uint64 {
	p := b.take(uint64(n))
	switch len(p) {
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(p))
	case 3:
		return uint64(p[0]) | uint64(p[1])<<8 | uint64(p[2])<<16
	case 4:
		return uint64(binary.LittleEndian.Uint32(p))
	case 8:
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (b *buf) uleb() uint64 {
	var v uint64
	for shift := uint(0); shift < 64; shift += 7 {
		if b.at >= len(b.b) {
			break
		}
		c := b.b[b.at]
		b.at++
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
	b.fail()
	return 0
}

func (b *buf) sleb() int64 {
	var v int64
	for shift := uint(0); shift < 64; shift += 7 {
		if b.at >= len(b.b) {
			break
		}
		c := b.b[b.at]
		b.at++
		v |= int64(c&0x7f) << shift
		if c < 0x80 {
			if c&0x40 != 0 && shift+7 < 64 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	b.fail()
	return 0
}

func (b *buf) str() string {
	i := bytes.IndexByte(b.b[b.at:], 0)
	if i < 0 {
		b.fail()
		return ""
	}
	s := string(b.b[b.at : b.at+min(i, maxString)])
	b.at += i + 1
	return s
}

// length reads a unit's length: 7.4.
func (b *buf) length() (n uint64, offset int) {
	if n = b.num(4); n == 0xffffffff {
		return b.num(8), 8
	}
	return n, 4
}
