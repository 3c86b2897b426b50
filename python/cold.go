package python

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"sort"

	"github.com/spanflame/spanflame/internal/elffile"
)

// Compilers move what they believe to be rarely run of a function elsewhere: in some builds
// that is nearly all of the interpreter's. Files that are stripped do not name such a part,
// but it has an entry of its own in the table of call frame information, and the function
// jumps into the middle of it, as it would into no other.

const (
	maxHeader = 16 << 20
	maxEval   = 1 << 20 // bytes of code
	// leastJumps is how many places of a part are jumped to.
	leastJumps = 2
)

// coldParts are the parts of a function that lie elsewhere. x86-64 only.
func coldParts(f *elffile.File, hot Range) []Range {
	starts := functionStarts(f)
	size := uint64(hot.End - hot.Start)
	if len(starts) == 0 || size > maxEval {
		return nil
	}
	code := make([]byte, size)
	if f.ReadAddr(code, hot.Start) != nil {
		return nil
	}
	targets := map[int]map[elffile.VirtAddr]bool{} // by index in starts
	jump := func(end int) {
		to := hot.Start + elffile.VirtAddr(end) + elffile.VirtAddr(int64(int32(binary.LittleEndian.Uint32(code[end-4:]))))
		if to >= hot.Start && to < hot.End {
			return
		}
		i := sort.Search(len(starts), func(i int) bool { return starts[i] > to }) - 1
		if i < 0 || i == len(starts)-1 || to == starts[i] {
			return // a call of another function as the last thing
		}
		if targets[i] == nil {
			targets[i] = map[elffile.VirtAddr]bool{}
		}
		targets[i][to] = true
	}
	// Instructions are not told apart from their middles: what is none leads to a place in the
	// file's code by chance only, and not twice into one function.
	for i := 0; i+5 <= len(code); i++ {
		switch {
		case code[i] == 0xe9: // jmp rel32
			jump(i + 5)
		case code[i] == 0x0f && code[i+1]&0xf0 == 0x80 && i+6 <= len(code): // jcc rel32
			jump(i + 6)
		}
	}
	var out []Range
	for i, places := range targets {
		if len(places) >= leastJumps && starts[i+1]-starts[i] <= maxEval {
			out = append(out, Range{starts[i], starts[i+1]})
		}
	}
	return out
}

// functionStarts reads where the entries of .eh_frame begin, sorted: the search table of
// .eh_frame_hdr (LSB core, 10.6.2), as linkers make it.
func functionStarts(f *elffile.File) []elffile.VirtAddr {
	for i := range f.Segments {
		s := &f.Segments[i]
		if s.Type != elf.PT_GNU_EH_FRAME || s.FileLen < 12 {
			continue
		}
		b, err := f.Bytes(s.Off, s.FileLen, maxHeader)
		// Version 1; pcrel sdata4, udata4, datarel sdata4.
		if err != nil || b[0] != 1 || b[1] != 0x1b || b[2] != 0x03 || b[3] != 0x3b {
			return nil
		}
		n := uint64(binary.LittleEndian.Uint32(b[8:]))
		b = b[12:]
		n = min(n, uint64(len(b))/8)
		out := make([]elffile.VirtAddr, 0, n)
		for ; n > 0; n, b = n-1, b[8:] {
			out = append(out, s.Addr+elffile.VirtAddr(int64(int32(binary.LittleEndian.Uint32(b)))))
		}
		slices.Sort(out)
		return out
	}
	return nil
}
