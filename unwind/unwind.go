// Package unwind turns the call frame information of ELF files into tables from
// which a stack can be walked without frame pointers: for each address of the code,
// where the caller's frame begins, its return address and its frame pointer.
//
// It reads .eh_frame (with or without section headers) and .debug_frame. It never
// guesses: what it cannot express is a row that says so. Files are hostile: every
// size has a bound, and what is corrupt ends the reading with an error.
//
// Formats: DWARF 5, section 6.4 "Call Frame Information" and 7.24; Linux Standard
// Base Core 5.0, 10.5 "DWARF Extensions" and 10.6 "Exception Frames"; registers: System
// V psABI x86-64, figure 3.36, and "DWARF for the Arm 64-bit Architecture", 4.1.
package unwind

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"slices"

	"github.com/spanflame/spanflame/internal/elffile"
)

// VirtAddr is an address as a file's headers state it, before any load bias.
type VirtAddr = elffile.VirtAddr

// Errors of Read, besides those of internal/elffile.
var (
	ErrNoFrames = errors.New("the file has no call frame information")
	ErrMachine  = errors.New("no tables for this machine")
	ErrTooMany  = errors.New("more rows than the limit")
)

// CFA says how the canonical frame address, the value that the stack pointer had
// before the call, is found. Every kind adds Rule.CFAOffset in the end.
type CFA uint8

// Kinds of CFA.
const (
	CFANone        CFA = iota // no code that is described: padding, or assembler without frame information
	CFAUnsupported            // described by what the tables cannot express
	CFAEnd                    // there is no caller: the outermost frame
	CFASP                     // stack pointer
	CFAFP                     // frame pointer
	CFARegister               // register Rule.Reg: known in the innermost frame only
	CFASPDeref                // what is in memory at stack pointer + Rule.Deref
	CFAFPDeref                // what is in memory at frame pointer + Rule.Deref
	CFAPLT                    // stack pointer, and 8 more from byte Rule.Deref of each 16 bytes of code on
)

// Saved says where the caller's value of a register is.
type Saved uint8

// Places of a register.
const (
	SavedSame Saved = iota // still in the register
	SavedLost              // nowhere
	SavedCFA               // in memory at CFA + offset
	SavedSP                // in memory at stack pointer + offset
	SavedFP                // in memory at frame pointer + offset
	SavedReg               // in the register whose DWARF number is the offset: known in the innermost frame only
)

// Rule says how to get from a frame to its caller's. Offsets are in bytes.
//
// A frame with a rule of a signal was not called. A return address that leads there is that
// of its first instruction, though the byte before was looked up. Its caller, if it has
// one, was interrupted: its address is that of the next instruction.
type Rule struct {
	CFA       CFA
	FP        Saved // of the frame pointer (rbp, x29)
	RA        Saved // of the return address; Same: in the link register
	Reg       uint8 // DWARF number, of CFARegister
	Signal    bool  // not called: see below
	CFAOffset int32
	Deref     int32
	FPOffset  int32
	RAOffset  int32
}

// SignalFrame is the rule of what a signal's handler returns to on x86-64: its stack
// pointer is at the ucontext, uc_mcontext being 40 bytes on. Source: Linux,
// arch/x86/include/uapi/asm/sigcontext.h.
var SignalFrame = Rule{CFA: CFASPDeref, Deref: 160, FP: SavedSP, FPOffset: 120, RA: SavedSP, RAOffset: 168, Signal: true}

// Row is where a rule begins to hold, which it does until the next row.
type Row struct {
	Addr VirtAddr
	Rule uint32 // index in Table.Rules
}

// Table is what is known of the code of a file. Rows are sorted by address, and no
// two neighbours have the same rule.
type Table struct {
	Rows  []Row
	Rules []Rule // the first is that of no code
	// Entries is the number of descriptions (FDEs) read; Unsupported that of rows
	// that could not be expressed.
	Entries, Unsupported int
}

// Options of Read. The zero value works.
type Options struct {
	MaxSection int64 // bytes of one section; 0: 256 MiB
	MaxRows    int   // 0: 8 million
	// SkipDebugFrame leaves .debug_frame out: Go's does not tell where frame pointers are
	// and where stacks change.
	SkipDebugFrame bool
}

const (
	defaultMaxSection = 256 << 20
	defaultMaxRows    = 8 << 20
	// Gaps between functions that are shorter are padding and get no row of their own.
	padding = 16
)

// Read makes the table of a file. debug is its separate debug file and may be nil.
// Both are only used during the call. With an error that wraps elffile.ErrCorrupt the
// table holds what was read before.
func Read(f, debug *elffile.File, opts Options) (*Table, error) {
	if opts.MaxSection <= 0 {
		opts.MaxSection = defaultMaxSection
	}
	if opts.MaxRows <= 0 {
		opts.MaxRows = defaultMaxRows
	}
	arch, ok := archs[f.Machine]
	if !ok || f.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("%w: %v", ErrMachine, f.Machine)
	}
	r := &reader{file: f, arch: arch, opts: opts}
	errs := []error{r.ehFrame(f)}
	if !opts.SkipDebugFrame {
		errs = append(errs, r.debugFrame(f))
	}
	if debug != nil && !opts.SkipDebugFrame && debug.Machine == f.Machine {
		errs = append(errs, r.debugFrame(debug))
	}
	err := errors.Join(errs...)
	if len(r.fdes) == 0 && err == nil {
		err = ErrNoFrames
	}
	if len(r.fdes) == 0 {
		return nil, err
	}
	t, terr := r.table()
	return t, errors.Join(err, terr)
}

// HasDebugFrame says whether a file has call frame information for debuggers.
func HasDebugFrame(f *elffile.File) bool {
	s := debugFrameOf(f)
	return s != nil && s.HasData()
}

// Lacks says whether the file has code that the table says nothing of: 256 bytes or more in
// one place. Those of the compiler's own start files, of which it never says anything, are
// fewer.
func (t *Table) Lacks(f *elffile.File) bool {
	const much = 256
	for i := range f.Sections {
		s := &f.Sections[i]
		if s.Flags&elf.SHF_EXECINSTR == 0 || s.Flags&elf.SHF_ALLOC == 0 || s.Addr+VirtAddr(s.Len) < s.Addr {
			continue
		}
		at, end := s.Addr, s.Addr+VirtAddr(s.Len)
		row, _ := slices.BinarySearchFunc(t.Rows, at, byAddr)
		for ; at < end; row++ {
			next := end
			if row < len(t.Rows) {
				next = min(end, t.Rows[row].Addr)
			}
			if next-at >= much && t.Find(at).CFA == CFANone {
				return true
			}
			at = next
			if row >= len(t.Rows) {
				break
			}
		}
	}
	return false
}

func byAddr(r Row, a VirtAddr) int { return cmp.Compare(r.Addr, a) }

// Find returns the rule that holds at an address.
func (t *Table) Find(a VirtAddr) Rule {
	i, found := slices.BinarySearchFunc(t.Rows, a, byAddr)
	if !found {
		i--
	}
	if i < 0 {
		return Rule{}
	}
	return t.Rules[t.Rows[i].Rule]
}

// arch is what differs between machines.
type arch struct {
	sp, fp, ra uint8 // DWARF numbers; ra is the column of the return address
	linkReg    bool  // whether ra is a real register
	registers  uint8 // that CFARegister may name
}

var archs = map[elf.Machine]arch{
	elf.EM_X86_64:  {sp: 7, fp: 6, ra: 16, registers: 16},
	elf.EM_AARCH64: {sp: 31, fp: 29, ra: 30, linkReg: true, registers: 31},
}
