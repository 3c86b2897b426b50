package symtab

import (
	"debug/elf"
	"fmt"
	"math"

	"github.com/spanflame/spanflame/internal/elffile"
)

// execSegment is an executable segment of a file.
type execSegment struct {
	off  FileOffset
	addr VirtAddr
	base uint32 // its place in the layout
	size uint32
}

// layout puts the executable segments of a file one behind the other, in a space
// of 32-bit positions. Only they hold code, and mostly there is one.
type layout []execSegment

// maxExecSegments bounds the search by offset.
const maxExecSegments = 64

func newLayout(f *elffile.File) (layout, error) {
	var l layout
	next := uint64(0)
	for _, s := range f.Loads {
		if s.Flags&elf.PF_X == 0 || s.FileLen == 0 {
			continue
		}
		if len(l) == maxExecSegments || s.FileLen > math.MaxUint32-next {
			return nil, fmt.Errorf("%w: more than %d executable segments or 4 GiB of code", elffile.ErrUnsupported, maxExecSegments)
		}
		l = append(l, execSegment{off: s.Off, addr: s.Addr, base: uint32(next), size: uint32(s.FileLen)})
		next += s.FileLen
	}
	return l, nil
}

// position is a place in the code of a file.
type position struct {
	at   uint32 // in the layout
	addr VirtAddr
}

func (l layout) ofOffset(off FileOffset) (position, bool) {
	for i := range l {
		s := &l[i]
		if d := off - s.off; off >= s.off && uint64(d) < uint64(s.size) {
			return position{s.base + uint32(d), s.addr + VirtAddr(d)}, true
		}
	}
	return position{}, false
}

// ofAddr returns the place of an address, and the bytes from it to the end of its
// segment.
func (l layout) ofAddr(addr VirtAddr) (at, room uint32, ok bool) {
	for i := range l {
		s := &l[i]
		if d := addr - s.addr; addr >= s.addr && uint64(d) < uint64(s.size) {
			return s.base + uint32(d), s.size - uint32(d), true
		}
	}
	return 0, 0, false
}
