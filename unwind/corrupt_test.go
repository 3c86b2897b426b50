package unwind

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spanflame/spanflame/internal/elffile"
)

// show writes rows as "1000 sp+8" and the like.
func show(t *Table) string {
	var w []string
	for _, row := range t.Rows {
		r := t.Rules[row.Rule]
		s := map[CFA]string{CFANone: "none", CFAUnsupported: "unsupported", CFAEnd: "end"}[r.CFA]
		if s == "" {
			s = fmt.Sprintf("%s%+d", map[CFA]string{CFASP: "sp", CFAFP: "fp", CFARegister: "reg", CFASPDeref: "*sp", CFAFPDeref: "*fp", CFAPLT: "plt"}[r.CFA], r.CFAOffset)
		}
		if r.RA != SavedSame && (r.RA != SavedCFA || r.RAOffset != -8) {
			s += fmt.Sprintf(" ra %d%+d", r.RA, r.RAOffset)
		}
		if r.FP != SavedSame {
			s += fmt.Sprintf(" fp %d%+d", r.FP, r.FPOffset)
		}
		w = append(w, fmt.Sprintf("%x %s", row.Addr, s))
	}
	return strings.Join(w, ", ")
}

// move ends a row and gives the CFA another offset.
func move(by, off byte) []byte { return []byte{opAdvanceLoc | by, opDefCFAOffset, off} }

func repeat(n int, b ...byte) []byte { return bytes.Repeat(b, n) }

// TestOdd: what is rare, or wrong.
func TestOdd(t *testing.T) {
	long := repeat(10, 0xff)
	for name, tc := range map[string]struct {
		build func(f *frames)
		want  string
		err   error
	}{
		"one function": {func(f *frames) { f.fde(f.plain(), 0x1000, 0x100, move(4, 16)...) }, "1000 sp+8, 1004 sp+16, 1100 none", nil},
		"overlapping": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x1080, 0x180, opDefCFAOffset, 32, opAdvanceLoc1, 0xc0, opDefCFAOffset, 40)
			f.fde(c, 0x1000, 0x100)
		}, "1000 sp+8, 1100 sp+32, 1140 sp+40, 1200 none", nil},
		"overlapping, with rows before": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x1000, 0x100)
			f.fde(c, 0x1080, 0x100, slices.Concat(move(1, 16), move(1, 24))...)
		}, "1000 sp+8, 1100 sp+24, 1180 none", nil},
		"overlapping, with what is not supported before": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x1000, 0x100)
			f.fde(c, 0x1080, 0x100, slices.Concat([]byte{opDefCFAExpression, 0, opAdvanceLoc | 1, opDefCFA, 7, 24})...)
		}, "1000 sp+8, 1100 sp+24, 1180 none", nil},
		"overlapping, and the same in the end": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x1000, 0x100)
			f.fde(c, 0x1080, 0x100, slices.Concat(move(1, 16), move(1, 8))...)
		}, "1000 sp+8, 1180 none", nil},
		"inside another": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x1000, 0x100)
			f.fde(c, 0x1010, 0x10, opDefCFAOffset, 16)
		}, "1000 sp+8, 1100 none", nil},
		"twice": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x1000, 0x100)
			f.fde(c, 0x1000, 0x100, opDefCFAOffset, 16)
		}, "1000 sp+8, 1100 none", nil},
		"many times": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x2000, 0x100)
			for i := range uint64(100) {
				f.fde(c, 0x1000, 0x100, opDefCFAOffset, byte(i+16))
				f.fde(c, 0x2000-i, 0x10)
			}
		}, "1000 sp+16, 1100 none, 1f9d sp+8, 2100 none", nil},
		"padding": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x1000, 1)
			f.fde(c, 0x1010, 1, opDefCFAOffset, 16)
			f.fde(c, 0x1021, 1, opDefCFAOffset, 24)
		}, "1000 sp+8, 1010 sp+16, 1011 none, 1021 sp+24, 1022 none", nil},
		"start 0":     {func(f *frames) { f.fde(f.plain(), 0, 0x100) }, "0 none", nil},
		"no size":     {func(f *frames) { f.fde(f.plain(), 0x1000, 0) }, "0 none", nil},
		"wraps round": {func(f *frames) { f.fde(f.plain(), 0x1000, 1<<64-0x1000) }, "0 none", nil},
		"wraps round into others": {func(f *frames) {
			c := f.plain()
			f.fde(c, 0x1000, 1<<64-0x800, opDefCFAOffset, 16)
			f.fde(c, 0x2000, 0x100)
		}, "2000 sp+8, 2100 none", nil},
		"last addresses": {func(f *frames) { f.fde(f.plain(), 1<<64-0x100, 0xff, move(4, 16)...) }, "ffffffffffffff00 sp+8, ffffffffffffff04 sp+16, ffffffffffffffff none", nil},
		"4 GiB long": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 1<<32, slices.Concat([]byte{opAdvanceLoc4, 0, 0, 0, 0x80}, move(0, 16), []byte{opAdvanceLoc4, 0, 0, 0, 0x80}, move(0, 24))...)
		}, "1000 sp+8, 80001000 sp+16, 100001000 none", nil},
		"no instruction": {func(f *frames) { f.fde(f.cie(1, 0, 1, 0x78, 16), 0x1000, 0x100) }, "1000 unsupported, 1100 none", nil},

		"CIE outside":    {func(f *frames) { f.plain(); f.fde(0x10000, 0x1000, 0x100) }, "0 none", elffile.ErrCorrupt},
		"CIE is the FDE": {func(f *frames) { f.plain(); f.fde(len(f.b), 0x1000, 0x100) }, "0 none", elffile.ErrCorrupt},
		"CIE is an FDE": {func(f *frames) {
			d := f.fde(f.plain(), 0x1000, 0x100)
			f.fde(d, 0x2000, 0x100)
		}, "1000 sp+8, 1100 none", elffile.ErrCorrupt},
		"middle of a CIE":          {func(f *frames) { f.fde(f.plain()+4, 0x1000, 0x100) }, "0 none", elffile.ErrCorrupt},
		"CIE that comes later":     {func(f *frames) { f.fde(24, 0x1000, 0x100); f.plain() }, "1000 sp+8, 1100 none", nil},
		"length over the end":      {func(f *frames) { f.fde(f.plain(), 0x1000, 0x100); f.b = le.AppendUint32(f.b, 1000) }, "1000 sp+8, 1100 none", elffile.ErrCorrupt},
		"reserved length":          {func(f *frames) { f.b = append(f.b, repeat(40, 0xf0, 0xff, 0xff, 0xff)...) }, "0 none", elffile.ErrCorrupt},
		"64-bit length, all ones":  {func(f *frames) { f.b = append(f.b, repeat(40, 0xff)...) }, "0 none", elffile.ErrCorrupt},
		"64-bit length, cut off":   {func(f *frames) { f.b = append(f.b, repeat(7, 0xff)...) }, "0 none", elffile.ErrCorrupt},
		"64-bit length":            {func(f *frames) { f.wide = true; f.fde(f.plain(), 0x1000, 0x100) }, "1000 sp+8, 1100 none", nil},
		"both kinds of length":     {func(f *frames) { c := f.plain(); f.wide = true; f.fde(c, 0x1000, 0x100) }, "1000 sp+8, 1100 none", nil},
		"shorter than an id":       {func(f *frames) { f.fde(f.plain(), 0x1000, 0x100); f.b = append(f.b, 2, 0, 0, 0, 1, 1) }, "1000 sp+8, 1100 none", elffile.ErrCorrupt},
		"shorter than its address": {func(f *frames) { f.entry(uint64(f.plain()), false, 0, 0x10, 0, 0) }, "0 none", nil},
		"empty entries": {func(f *frames) {
			c := f.plain()
			f.b = append(f.b, 0, 0, 0, 0, 0, 0, 0, 0)
			f.fde(c, 0x1000, 0x100)
		}, "1000 sp+8, 1100 none", nil},

		"advance over the end": {func(f *frames) { f.fde(f.plain(), 0x1000, 8, slices.Concat(move(9, 16), move(1, 24))...) }, "1000 sp+8, 1008 none", nil},
		"advance to the end":   {func(f *frames) { f.fde(f.plain(), 0x1000, 8, move(8, 16)...) }, "1000 sp+8, 1008 none", nil},
		"advance over all addresses": {func(f *frames) {
			c := f.cie(1, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 0x78, 16, opDefCFA, 7, 8, opOffset|16, 1)
			f.fde(c, 0x1000, 8, slices.Concat(move(2, 16), move(2, 24))...)
		}, "1000 sp+8, 1008 none", nil},
		"code alignment 0": {func(f *frames) {
			c := f.cie(1, 0, 0, 0x78, 16, opDefCFA, 7, 8, opOffset|16, 1)
			f.fde(c, 0x1000, 8, slices.Concat(move(2, 16), move(2, 24))...)
		}, "1000 sp+24, 1008 none", nil},
		"row without length": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, slices.Concat(move(2, 16), move(0, 24), []byte{opSetLoc, 2, 0x10, 0, 0, 0, 0, 0, 0, opDefCFAOffset, 32})...)
		}, "1000 sp+8, 1002 sp+32, 1008 none", nil},
		"location set": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, opSetLoc, 3, 0x10, 0, 0, 0, 0, 0, 0, opDefCFAOffset, 32)
		}, "1000 sp+8, 1003 sp+32, 1008 none", nil},
		"location set back": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, append(move(4, 16), opSetLoc, 3, 0x10, 0, 0, 0, 0, 0, 0)...)
		}, "1000 sp+8, 1004 unsupported, 1008 none", nil},
		"location set over the end": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, opSetLoc, 3, 0x20, 0, 0, 0, 0, 0, 0, opDefCFAOffset, 32)
		}, "1000 sp+8, 1008 none", nil},
		"too much remembered": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, append(move(4, 16), repeat(100000, opRememberState)...)...)
		}, "1000 sp+8, 1004 unsupported, 1008 none", nil},
		"restored but not remembered": {func(f *frames) { f.fde(f.plain(), 0x1000, 8, append(move(4, 16), opRestoreState)...) }, "1000 sp+8, 1004 unsupported, 1008 none", nil},
		"remembered in the CIE":       {func(f *frames) { f.fde(f.plain(opRememberState), 0x1000, 8, opRestoreState) }, "1000 unsupported, 1008 none", nil},
		"unknown instruction":         {func(f *frames) { f.fde(f.plain(), 0x1000, 8, append(move(4, 16), 0x3f)...) }, "1000 sp+8, 1004 unsupported, 1008 none", nil},
		"cut off in an instruction":   {func(f *frames) { f.fde(f.plain(), 0x1000, 8, append(move(4, 16), opDefCFA, 7)...) }, "1000 sp+8, 1004 unsupported, 1008 none", nil},
		"number of more than 64 bits": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, append(append(move(4, 16), opDefCFAOffset), append(repeat(9, 0x80), 2)...)...)
		}, "1000 sp+8, 1004 unsupported, 1008 none", nil},
		"signed number of more than 64 bits": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, append(append(move(4, 16), opDefCFAOffsetSF), append(repeat(9, 0x80), 1)...)...)
		}, "1000 sp+8, 1004 unsupported, 1008 none", nil},
		"number without end":   {func(f *frames) { f.fde(f.plain(), 0x1000, 8, append([]byte{opDefCFAOffset}, repeat(1000, 0xff)...)...) }, "1000 unsupported, 1008 none", nil},
		"offset over 32 bits":  {func(f *frames) { f.fde(f.plain(), 0x1000, 8, opDefCFAOffset, 0x80, 0x80, 0x80, 0x80, 8) }, "1000 unsupported, 1008 none", nil},
		"offset under 32 bits": {func(f *frames) { f.fde(f.plain(), 0x1000, 8, opDefCFAOffsetSF, 0x80, 0x80, 0x80, 0x80, 8) }, "1000 unsupported, 1008 none", nil},
		"block of impossible size": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, append([]byte{opDefCFAExpression}, append(long[:9], 1)...)...)
		}, "1000 unsupported, 1008 none", nil},
		"empty block": {func(f *frames) { f.fde(f.plain(), 0x1000, 8, opDefCFAExpression, 0) }, "1000 unsupported, 1008 none", nil},
		"offset after expression": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, opDefCFAExpression, 3, xBreg0+7, 8, xDeref, opAdvanceLoc|1, opDefCFAOffset, 56, opAdvanceLoc|1, opDefCFARegister, 7)
		}, "1000 *sp+0, 1002 sp+56, 1008 none", nil},
		"GNU's negative offset": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, opGNUNegOffsetExtended, 16, 2, opAdvanceLoc|1, opGNUNegOffsetExtended, 6, 3, opAdvanceLoc|1, opUndefined, 16)
		}, "1000 sp+8 ra 2+16, 1001 sp+8 ra 2+16 fp 2+24, 1002 end, 1008 none", nil},
		"advance of 64 bits": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 1<<33, slices.Concat([]byte{opMIPSAdvanceLoc8, 0, 0, 0, 0, 1, 0, 0, 0}, move(0, 16))...)
		}, "1000 sp+8, 100001000 sp+16, 200001000 none", nil},
		"in a register that is none": {func(f *frames) { f.fde(f.plain(), 0x1000, 8, opRegister, 6, 40, opAdvanceLoc|1, opRegister, 16, 40) }, "1000 sp+8 fp 1+0, 1001 unsupported, 1008 none", nil},
		"negative addend": {func(f *frames) {
			f.fde(f.plain(), 0x1000, 8, slices.Concat([]byte{opDefCFAExpression, 14, xBreg0 + 7, 8, xDeref, xPlusUconst, 0xf8}, repeat(8, 0xff), []byte{1})...)
		}, "1000 unsupported, 1008 none", nil},
		"procedure linkage table": {plt(7, xLit0+11), "1000 plt+8, 1008 none", nil},
		"one of another register": {plt(3, xLit0+11), "1000 unsupported, 1008 none", nil},
		"one without number":      {plt(7, xLit0-1), "1000 unsupported, 1008 none", nil},

		"CIE that advances": {func(f *frames) {
			c := f.plain(slices.Concat(move(1, 16), move(1, 24), move(1, 32))...)
			f.fde(c, 0x1000, 8, move(1, 40)...)
			f.fde(c, 0x1008, 8, move(1, 40)...)
		}, "1000 unsupported, 1010 none", nil},
		"CIE that sets the location": {func(f *frames) { f.fde(f.plain(opSetLoc, 0, 0x20, 0, 0, 0, 0, 0, 0), 0x1000, 8) }, "1000 unsupported, 1008 none", nil},
		"other return address":       {func(f *frames) { f.fde(f.cie(1, 0, 1, 0x78, 17, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8) }, "1000 unsupported, 1008 none", nil},
		"version 2":                  {func(f *frames) { f.fde(f.cie(2, 0, 1, 0x78, 16, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8) }, "0 none", nil},
		"version 3":                  {func(f *frames) { f.fde(f.cie(3, 0, 1, 0x78, 0x90, 0, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8) }, "1000 sp+8, 1008 none", nil},
		"version 4":                  {func(f *frames) { f.fde(f.cie(4, 0, 8, 0, 1, 0x78, 16, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8) }, "1000 sp+8, 1008 none", nil},
		"version 4, 32-bit":          {func(f *frames) { f.fde(f.cie(4, 0, 4, 0, 1, 0x78, 16, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8) }, "0 none", nil},
		"CIE cut off":                {func(f *frames) { f.fde(f.cie(1, 0, 1), 0x1000, 8) }, "0 none", nil},
		"augmentation without end":   {func(f *frames) { f.fde(f.cie(1, 'z', 'R'), 0x1000, 8) }, "0 none", nil},
		"augmentation eh":            {func(f *frames) { f.fde(f.cie(1, 'e', 'h', 0, 1, 0x78, 16, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8) }, "0 none", nil},
		"augmentation z twice": {func(f *frames) {
			f.fde(f.cie(1, 'z', 'z', 0, 1, 0x78, 16, 0, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8, 0)
		}, "0 none", nil},
		"augmentation unknown": {func(f *frames) {
			f.fde(f.cie(1, 'z', 'X', 0, 1, 0x78, 16, 3, 1, 2, 3, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8, 0)
		}, "1000 unsupported, 1008 none", nil},
		"augmentation unknown, then the encoding": {func(f *frames) {
			f.fde(f.cie(1, 'z', 'X', 'R', 0, 1, 0x78, 16, 3, 1, 2, 3, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8, 0)
		}, "0 none", nil},
		"augmentation over its end": {func(f *frames) {
			f.fde(f.cie(1, 'z', 'L', 'L', 0, 1, 0x78, 16, 1, 0, 0, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8, 0)
		}, "0 none", nil},
		"augmentation of impossible size": {func(f *frames) {
			f.fde(f.cie(append(append([]byte{1, 'z', 'R', 0, 1, 0x78, 16}, long[:9]...), 1, 0)...), 0x1000, 8, 0)
		}, "0 none", nil},
		"FDE's augmentation of impossible size": {func(f *frames) {
			f.fde(f.cie(1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, opDefCFA, 7, 8, opOffset|16, 1), 0x1000, 8, append(long[:9], 1)...)
		}, "0 none", nil},
		"personality": {func(f *frames) {
			// Its encoding: absolute, relative to what is not known, left out.
			for i, p := range [][]byte{{0, 1, 2, 3, 4, 5, 6, 7, 8}, {0x3b, 1, 2, 3, 4}, {0x9b, 1, 2, 3, 4}, {0xff}} {
				c := f.cie(slices.Concat([]byte{1, 'z', 'P', 'L', 'R', 'S', 'B', 'G', 0, 1, 0x78, 16, byte(len(p) + 2)}, p, []byte{0, 0, opDefCFA, 7, byte(8 + 8*i), opOffset | 16, 1})...)
				f.fde(c, uint64(0x1000+8*i), 8, 0)
			}
		}, "1000 sp+8, 1008 sp+16, 1010 sp+24, 1018 sp+32, 1020 none", nil},
		"encoding left out":   {func(f *frames) { f.fde(f.cie(1, 'z', 'R', 0, 1, 0x78, 16, 1, 0xff), 0x1000, 8, 0) }, "0 none", nil},
		"encoding unknown":    {func(f *frames) { f.fde(f.cie(1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x55), 0x1000, 8, 0) }, "0 none", nil},
		"encoded in 16 bits":  {encoded(encU2, 0x00, 0x10, 8, 0), "1000 sp+8, 1008 none", nil},
		"encoded in 32 bits":  {encoded(encS4, 0x00, 0x10, 0, 0, 8, 0, 0, 0), "1000 sp+8, 1008 none", nil},
		"encoded in LEB128":   {encoded(encULEB, 0x80, 0x20, 8), "1000 sp+8, 1008 none", nil},
		"encoded negatively":  {encoded(encS2, 0x00, 0xf0, 8, 0), "fffffffffffff000 sp+8, fffffffffffff008 none", nil},
		"encoded relatively":  {encoded(encPCRel|encS4, 0xf0, 0xff, 0xff, 0xff, 8, 0, 0, 0), "50000e sp+8, 500016 none", nil},
		"encoded in 64 bits":  {encoded(encS8, 0, 0x10, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0), "1000 sp+8, 1008 none", nil},
		"encoded signed LEBs": {encoded(encSLEB, 0x80, 0x20, 8), "1000 sp+8, 1008 none", nil},
	} {
		for _, eh := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/eh %v", name, eh), func(t *testing.T) {
				f := &frames{eh: eh}
				tc.build(f)
				want, wantErr := tc.want, tc.err
				if name == "CIE that comes later" && eh {
					want, wantErr = "0 none", elffile.ErrCorrupt // the distance cannot be negative
				}
				got, err := f.evaluate(0x500000, Options{})
				if !errors.Is(err, wantErr) || wantErr == nil && err != nil {
					t.Errorf("error %v, want %v", err, wantErr)
				}
				checkTable(t, got)
				if show(got) != want {
					t.Errorf("%s\nwant %s", show(got), want)
				}
			})
		}
	}
}

// plt is a function whose CFA is as that of a procedure linkage table.
func plt(reg, lit byte) func(f *frames) {
	return func(f *frames) {
		f.fde(f.plain(), 0x1000, 8, opDefCFAExpression, 11, xBreg0+reg, 8, xBreg0+16, 0, xLit0+15, xAnd, lit, xGe, xLit0+3, xShl, xPlus)
	}
}

// encoded is a function with an address of that encoding.
func encoded(enc byte, address ...byte) func(f *frames) {
	return func(f *frames) {
		c := f.cie(1, 'z', 'R', 0, 1, 0x78, 16, 1, enc, opDefCFA, 7, 8, opOffset|16, 1)
		f.entry(uint64(c), false, append(address, 0)...)
	}
}

// TestEntryPoint: code that nothing describes and where a program begins.
func TestEntryPoint(t *testing.T) {
	f := &frames{}
	c := f.plain()
	f.fde(c, 0x1000, 0x100)
	f.fde(c, 0x1108, 0x10)
	f.fde(c, 0x1220, 0x10)
	const same = "1000 sp+8, 1118 none, 1220 sp+8, 1230 none"
	for name, tc := range map[string]struct {
		entry VirtAddr
		want  string
	}{
		"none":             {0, same},
		"described":        {0x1010, same},
		"before all":       {0x500, "500 end, 540 none, 1000 sp+8, 1118 none, 1220 sp+8, 1230 none"},
		"right before":     {0xff0, "ff0 end, 1000 sp+8, 1118 none, 1220 sp+8, 1230 none"},
		"after all":        {0x2000, same + ", 2000 end, 2040 none"},
		"right behind":     {0x1118, "1000 sp+8, 1118 end, 1158 none, 1220 sp+8, 1230 none"},
		"in between":       {0x1200, "1000 sp+8, 1118 none, 1200 end, 1220 sp+8, 1230 none"},
		"in padding":       {0x1100, "1000 sp+8, 1100 end, 1108 sp+8, 1118 none, 1220 sp+8, 1230 none"},
		"at the very last": {1<<64 - 1, same},
	} {
		t.Run(name, func(t *testing.T) {
			b := program(nil, f.b, true)
			le.PutUint64(b[24:], uint64(tc.entry))
			got, err := Read(openBytes(t, b), nil, Options{})
			if err != nil {
				t.Fatal(err)
			}
			checkTable(t, got)
			if show(got) != tc.want || got.Entries != 3 {
				t.Errorf("%d functions: %s\nwant %s", got.Entries, show(got), tc.want)
			}
		})
	}
}

// TestTruncated cuts a section off at every length.
func TestTruncated(t *testing.T) {
	for _, eh := range []bool{false, true} {
		f := &frames{eh: eh}
		ends := map[int]int{0: 0} // where entries end -> functions before
		c := f.plain()
		ends[len(f.b)] = 0
		for i := range 3 {
			f.fde(c, uint64(0x1000+0x100*i), 0x80, slices.Concat(move(4, 16), move(4, byte(24+8*i)))...)
			ends[len(f.b)] = i + 1
		}
		all, err := f.evaluate(0, Options{})
		if err != nil || all.Entries != 3 {
			t.Fatal(all, err)
		}
		for n := range len(f.b) {
			got, err := (&frames{b: f.b[:n], eh: eh}).evaluate(0, Options{})
			checkTable(t, got)
			want, whole := ends[n]
			if !whole {
				for end, functions := range ends {
					if end < n {
						want = max(want, functions)
					}
				}
			}
			if got.Entries != want || whole != (err == nil) || err != nil && !errors.Is(err, elffile.ErrCorrupt) {
				t.Errorf("%d bytes: %d functions, want %d, %v", n, got.Entries, want, err)
			}
			if k := len(got.Rows) - 1; k > 0 && !slices.Equal(got.Rows[:k], all.Rows[:k]) {
				t.Errorf("%d bytes: %s", n, show(got))
			}
		}
		for n := range program(f.b, f.b, true) {
			for _, sections := range []bool{false, true} {
				b := program(f.b, f.b, sections)
				if n >= len(b) {
					continue
				}
				if file, err := elffile.Open(bytes.NewReader(b[:n]), int64(n)); err == nil {
					if table, _ := Read(file, nil, Options{}); table != nil {
						checkTable(t, table)
					}
				}
			}
		}
	}
}

// TestWithoutTerminator: where .eh_frame ends if no section says so.
func TestWithoutTerminator(t *testing.T) {
	f := &frames{eh: true}
	c := f.plain()
	f.fde(c, 0x1000, 0x100)
	f.fde(c, 0x2000, 0x100)
	bare := slices.Clone(f.b)
	f.b = append(f.b, 0, 0, 0, 0)
	f.fde(c, 0x3000, 0x100)
	for name, tc := range map[string]struct {
		data      []byte
		count     uint32 // in .eh_frame_hdr
		sections  bool
		functions int
		err       error
	}{
		"all that is counted":         {append(bare[:len(bare):len(bare)], 1, 2, 3, 4, 5), 2, false, 2, nil},
		"less than is counted":        {append(bare[:len(bare):len(bare)], 1, 2, 3, 4, 5), 3, false, 2, elffile.ErrCorrupt},
		"not counted":                 {append(bare[:len(bare):len(bare)], 1, 2, 3, 4, 5), 0, false, 2, elffile.ErrCorrupt},
		"corrupt, in a section":       {append(bare[:len(bare):len(bare)], 1, 2, 3, 4, 5), 2, true, 2, elffile.ErrCorrupt},
		"terminator":                  {f.b, 2, false, 2, nil},
		"terminator within a section": {f.b, 2, true, 3, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := program(tc.data, nil, tc.sections)
			le.PutUint64(b[24:], 0x1000) // described
			le.PutUint32(b[64+2*56+8:], tc.count)
			got, err := Read(openBytes(t, b), nil, Options{})
			if got == nil || got.Entries != tc.functions || !errors.Is(err, tc.err) || tc.err == nil && err != nil {
				t.Errorf("%+v, %v, want %d functions, %v", got, err, tc.functions, tc.err)
			}
		})
	}
}

// TestOtherDebugFile: a debug file of another machine is not read.
func TestOtherDebugFile(t *testing.T) {
	f := &frames{}
	f.fde(f.plain(), 0x1000, 0x100)
	for machine, want := range map[elf.Machine]error{elf.EM_X86_64: nil, elf.EM_AARCH64: ErrNoFrames} {
		debug := program(nil, f.b, true)
		le.PutUint16(debug[18:], uint16(machine))
		if _, err := Read(openBytes(t, program(nil, nil, true)), openBytes(t, debug), Options{}); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%v: %v, want %v", machine, err, want)
		}
	}
}

// TestLimits: rows and functions have bounds, and so has the work.
func TestLimits(t *testing.T) {
	f := &frames{}
	c := f.plain()
	for i := range 100 {
		f.fde(c, uint64(0x1000+0x100*i), 0x80, slices.Concat(move(4, 16), move(4, 24))...)
	}
	for _, max := range []int{1, 2, 99, 100, 101, 399, 400, 401} {
		got, err := f.evaluate(0, Options{MaxRows: max})
		if got == nil {
			t.Fatal(err)
		}
		checkTable(t, got)
		if errors.Is(err, ErrTooMany) != (max < 400) || len(got.Rows) > max+1 {
			t.Errorf("%d rows of at most %d, %v", len(got.Rows), max, err)
		}
		if max < 100 && got.Entries != 0 {
			t.Errorf("%d functions are kept with at most %d rows", got.Entries, max)
		}
		if max >= 100 && max < 400 && (len(got.Rows) < max || show(got)[:20] != "1000 sp+8, 1004 sp+1") {
			t.Errorf("%d rows of at most %d: %.40s", len(got.Rows), max, show(got))
		}
	}
	f = &frames{}
	c = f.plain()
	for i := range uint32(maxRules + 100) {
		f.fde(c, uint64(0x1000+0x10*i), 0x10, append(le.AppendUint32([]byte{opDefCFAOffset}, i&0x7f|i>>7&0x7f<<8|i>>14&0x7f<<16|0x808080), 0)...)
	}
	got, err := f.evaluate(0, Options{})
	if err != nil {
		t.Fatal(err)
	}
	checkTable(t, got)
	if len(got.Rules) != maxRules+1 || got.Unsupported != 1 {
		t.Errorf("%d rules, %d rows are unsupported", len(got.Rules), got.Unsupported)
	}
	if r := got.Find(0x1000 + 0x10*1000); r.CFAOffset != 1000 {
		t.Errorf("before the limit: %+v", r)
	}
	file := openBytes(t, program(f.b, nil, true))
	if _, err := Read(file, nil, Options{MaxSection: 100}); !errors.Is(err, elffile.ErrTooLarge) {
		t.Errorf("a section over the limit: %v", err)
	}
}

// TestSharedWork: many functions refer to one long CIE. That must cost no more than
// what the file has.
func TestSharedWork(t *testing.T) {
	f := &frames{}
	c := f.plain(repeat(1<<20, opDefCFAOffset, 8)...)
	const functions = 100_000
	for i := range functions {
		f.fde(c, uint64(0x1000+0x100*i), 0x80)
	}
	start := time.Now()
	got, err := f.evaluate(0, Options{})
	if err != nil || got.Entries != functions || len(got.Rows) != 2*functions {
		t.Errorf("%d functions, %d rows, %v", got.Entries, len(got.Rows), err)
	}
	// The product is 10^11 instructions.
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
}
