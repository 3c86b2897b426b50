package unwind

import (
	"encoding/binary"

	"github.com/spanflame/spanflame/internal/elffile"
)

// buf reads numbers from bytes. After an error it yields zeros.
type buf struct {
	b   []byte
	at  int
	err error
}

func (b *buf) fail() {
	if b.err == nil {
		b.err = elffile.ErrCorrupt
	}
	b.at = len(b.b)
}

func (b *buf) take(n int) []byte {
	if n > len(b.b)-b.at {
		b.fail()
		return nil
	}
	b.at += n
	return b.b[b.at-n : b.at]
}

func (b *buf) skip(n uint64) {
	if n > uint64(len(b.b)-b.at) {
		b.fail()
		return
	}
	b.at += int(n)
}

func (b *buf) u8() byte {
	if b.at >= len(b.b) {
		b.fail()
		return 0
	}
	b.at++
	return b.b[b.at-1]
}

func (b *buf) u16() uint16 {
	if p := b.take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (b *buf) u32() uint32 {
	if p := b.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (b *buf) u64() uint64 {
	if p := b.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// uleb: DWARF 5, 7.6. Bits beyond 64 are an error.
func (b *buf) uleb() uint64 {
	var v uint64
	for shift := uint(0); shift < 64; shift += 7 {
		c := b.u8()
		v |= uint64(c&0x7f) << shift
		if c < 0x80 && (shift < 63 || c <= 1) {
			return v
		}
	}
	b.fail()
	return 0
}

func (b *buf) sleb() int64 {
	var v int64
	for shift := uint(0); shift < 64; shift += 7 {
		c := b.u8()
		v |= int64(c&0x7f) << shift
		if c < 0x80 && (shift < 63 || c == 0 || c == 0x7f) {
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
	for i := b.at; i < len(b.b); i++ {
		if b.b[i] == 0 {
			s := string(b.b[b.at:i])
			b.at = i + 1
			return s
		}
	}
	b.fail()
	return ""
}

// length reads the length of an entry: DWARF 5, 7.4.
func (b *buf) length() (n uint64, wide bool) {
	n = uint64(b.u32())
	if n == 0xffffffff {
		return b.u64(), true
	}
	return n, false
}

func (b *buf) id(wide bool) uint64 {
	if wide {
		return b.u64()
	}
	return uint64(b.u32())
}

// pointer reads an encoded pointer. here is what pointers relative to themselves are
// relative to.
func (b *buf) pointer(enc byte, here VirtAddr) uint64 {
	if enc == encOmit {
		return 0
	}
	var v uint64
	switch enc & 0x0f {
	case encAbs, encU8, encS8:
		v = b.u64()
	case encULEB:
		v = b.uleb()
	case encU2:
		v = uint64(b.u16())
	case encU4:
		v = uint64(b.u32())
	case encSLEB:
		v = uint64(b.sleb())
	case encS2:
		v = uint64(int64(int16(b.u16())))
	case encS4:
		v = uint64(int64(int32(b.u32())))
	default:
		b.fail()
	}
	switch enc & 0x70 {
	case 0:
	case encPCRel:
		v += uint64(here)
	default:
		b.fail() // relative to what is not known, or aligned
	}
	return v
}

// here is the address of the next byte.
func (s *section) here() VirtAddr { return s.addr + VirtAddr(s.at) }
