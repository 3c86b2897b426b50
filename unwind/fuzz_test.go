package unwind

import (
	"bytes"
	"debug/elf"
	"slices"
	"testing"

	"github.com/spanflame/spanflame/internal/elffile"
)

// sample is a section with most instructions.
func sample(eh bool) []byte {
	f := &frames{eh: eh}
	c := f.cie(1, 'z', 'P', 'L', 'R', 0, 1, 0x78, 16, 7, 0x9b, 1, 2, 3, 4, 0x1b, 0x1b, opDefCFA, 7, 8, opOffset|16, 1)
	for i := range byte(4) {
		f.entry(uint64(c), false, slices.Concat([]byte{0, i, 1, 0, 0x80, 0, 0, 0, 4, 1, 2, 3, 4}, move(1, 16), []byte{opOffset | 6, 2},
			[]byte{opAdvanceLoc1, 3, opDefCFARegister, 6, opRememberState, opAdvanceLoc2, 4, 0, opRestoreExtended, 6, opRestoreState, opGNUArgsSize, 8},
			[]byte{opDefCFAExpression, 5, xBreg0 + 7, 8, xDeref, xPlusUconst, 16, opExpression, 6, 2, xBreg0 + 6, 8, opAdvanceLoc4, 5, 0, 0, 0, opDefCFASF, 7, 0x7e})...)
	}
	c = f.plain()
	f.fde(c, 0x1000, 0x100, slices.Concat(move(4, 16), []byte{opSetLoc, 0x20, 0x10, 0, 0, 0, 0, 0, 0, opUndefined, 16})...)
	f.fde(c, 0x1080, 0x100, opDefCFAExpression, 11, xBreg0+7, 8, xBreg0+16, 0, xLit0+15, xAnd, xLit0+11, xGe, xLit0+3, xShl, xPlus)
	f.wide = true
	f.fde(f.plain(opValOffset, 7, 0, opRegister, 6, 9), 0x2000, 0x100)
	return f.b
}

func FuzzSections(f *testing.F) {
	for _, eh := range []bool{false, true} {
		f.Add(sample(eh), uint64(0x1000), eh, false)
		f.Add(sample(eh), uint64(0x400000), eh, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, addr uint64, eh, arm bool) {
		machine := elf.EM_X86_64
		if arm {
			machine = elf.EM_AARCH64
		}
		for _, endless := range []bool{false, true} {
			r := &reader{file: &elffile.File{Entry: VirtAddr(addr)}, arch: archs[machine], opts: Options{MaxRows: 1 << 16}}
			err := r.read(section{buf: buf{b: b}, addr: VirtAddr(addr), eh: eh, endless: endless})
			table, terr := r.table()
			checkTable(t, table)
			if err == nil && terr == nil && len(table.Rows) > len(b)+3 {
				t.Errorf("%d rows of %d bytes", len(table.Rows), len(b))
			}
		}
	})
}

func FuzzRead(f *testing.F) {
	for _, sections := range []bool{false, true} {
		f.Add(program(sample(true), sample(false), sections))
		f.Add(program(append(sample(true), 0, 0, 0, 0), nil, sections))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := elffile.Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		const limit = 1 << 16
		table, err := Read(file, file, Options{MaxSection: 1 << 18, MaxRows: limit})
		if table == nil {
			if err == nil {
				t.Error("neither a table nor an error")
			}
			return
		}
		checkTable(t, table)
		if len(table.Rows) > limit+1 {
			t.Errorf("%d rows", len(table.Rows))
		}
		for _, r := range table.Rows[:min(len(table.Rows), 100)] {
			if got := table.Find(r.Addr); got != table.Rules[r.Rule] {
				t.Errorf("at %#x: %+v, want %+v", r.Addr, got, table.Rules[r.Rule])
			}
		}
	})
}
