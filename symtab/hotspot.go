package symtab

import (
	"bytes"
	"debug/elf"
	"slices"
	"strings"

	"github.com/spanflame/spanflame/internal/elffile"
)

const (
	minHotSpot      = 4 << 20  // bytes of a Java virtual machine
	maxHotSpotNames = 48 << 20 // bytes
	maxHotSpotSyms  = 4096
)

// CodeRange is code from one address to before another.
type CodeRange struct{ Start, End VirtAddr }

// HotSpotLeaves returns where the hand-written functions of the HotSpot virtual machine lie
// of which nothing tells how they are unwound: none of them calls anything or changes the
// stack pointer or the frame pointer. They are known by the names of their symbols, and have
// no sizes: each ends where the next symbol is. Source: OpenJDK, src/hotspot/os_cpu/
// linux_x86, linux_x86_64.S of versions 8 to 17, later os_linux.cpp and copy_linux_64.S.
func HotSpotLeaves(f *elffile.File) []CodeRange {
	full, dynamic := f.SectionOfType(elf.SHT_SYMTAB), f.SectionOfType(elf.SHT_DYNSYM)
	if f.Machine != elf.EM_X86_64 || f.Size() < minHotSpot || full == nil || !full.HasData() || dynamic == nil {
		return nil
	}
	if b := stringsOf(f, dynamic); !bytes.Contains(b, []byte("\x00JNI_CreateJavaVM\x00")) {
		return nil
	}
	text := stringsOf(f, full)
	var starts, all []VirtAddr
	err := f.EachSymbol(full, nil, func(s elffile.Symbol) error {
		if s.Section == elf.SHN_UNDEF || s.Section >= elf.SHN_LORESERVE || uint64(s.Name) >= uint64(len(text)) {
			return nil
		}
		all = append(all, s.Value)
		if t := s.Type(); t != elf.STT_FUNC && t != elf.STT_NOTYPE || !isHotSpotLeaf(text[s.Name:]) {
			return nil
		}
		if starts = append(starts, s.Value); len(starts) > maxHotSpotSyms {
			return errEnough
		}
		return nil
	})
	if err != nil || len(starts) == 0 {
		return nil
	}
	slices.Sort(all)
	slices.Sort(starts)
	var out []CodeRange
	for _, a := range slices.Compact(starts) {
		next, _ := slices.BinarySearch(all, a+1)
		if next == len(all) {
			break // it has no end
		}
		if n := len(out); n > 0 && out[n-1].End == a {
			out[n-1].End = all[next]
		} else {
			out = append(out, CodeRange{a, all[next]})
		}
	}
	return out
}

// isHotSpotLeaf: the copying functions have labels that are symbols, too.
func isHotSpotLeaf(b []byte) bool {
	name := string(cut(b[:min(len(b), 64)]))
	return name == "SpinPause" || strings.HasPrefix(name, "_Copy_") ||
		strings.HasSuffix(name, "_CopyLeft") || strings.HasSuffix(name, "_CopyRight")
}

// stringsOf are the names of a table of symbols; nil if they cannot be had.
func stringsOf(f *elffile.File, s *elffile.Section) []byte {
	strs := f.LinkedStrings(s)
	if strs == nil {
		return nil
	}
	b, err := f.Data(strs, maxHotSpotNames)
	if err != nil {
		return nil
	}
	return b
}
