package truth

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/symtab"
	"github.com/spanflame/spanflame/unwind"
)

// tables are those of files, by path.
type tables map[string]*fileTable

type fileTable struct {
	file  *elffile.File
	table *unwind.Table
}

func (ts tables) of(path string) (*fileTable, error) {
	if t := ts[path]; t != nil {
		return t, nil
	}
	var ef *elffile.File
	var err error
	if path == "[vdso]" {
		ef, err = symtab.OwnVDSO()
	} else {
		f, openErr := os.Open(path)
		if openErr != nil {
			return nil, openErr
		}
		defer f.Close()
		info, statErr := f.Stat()
		if statErr != nil {
			return nil, statErr
		}
		ef, err = elffile.Open(f, info.Size())
	}
	if err != nil {
		return nil, err
	}
	t, err := unwind.Read(ef, nil, unwind.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	ts[path] = &fileTable{ef, t}
	return ts[path], nil
}

// memoryMap is a line of /proc/PID/maps.
type memoryMap struct {
	start, end, offset uint64
	path               string
}

func mapsOf(pid int) ([]memoryMap, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []memoryMap
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		var m memoryMap
		var perms, dev string
		var ino uint64
		n, _ := fmt.Sscanf(sc.Text(), "%x-%x %s %x %s %d %s", &m.start, &m.end, &perms, &m.offset, &dev, &ino, &m.path)
		if n >= 6 && perms[2] == 'x' {
			out = append(out, m)
		}
	}
	return out, sc.Err()
}

// walker is that of bpf/c/regs.h, and walks as bpf/c/unwind.h does.
type walker struct {
	ip, sp, fp uint64
	regs       [16]uint64 // by DWARF's numbers
	mem        *os.File
	maps       []memoryMap
	tables     tables
}

var (
	errWhole     = errors.New("whole")
	errNoMapping = errors.New("no_mapping")
	errNoRow     = errors.New("no_row")
	errChain     = errors.New("broken_chain")
	errRow       = errors.New("unsupported_row")
)

func (w *walker) word(at uint64) (uint64, error) {
	var b [8]byte
	if _, err := w.mem.ReadAt(b[:], int64(at)); err != nil {
		return 0, fmt.Errorf("bad_memory at %#x: %w", at, err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// walk returns the addresses of the frames, the innermost first, and how it ended.
func (w *walker) walk() (frames []uint64, end error) {
	exact := true
	for frames = append(frames, w.ip); len(frames) < 512; frames = append(frames, w.ip) {
		at := w.ip
		if !exact {
			at--
		}
		rule, err := w.rule(at)
		if err == nil {
			err = w.step(rule, len(frames) == 1)
		}
		if err == nil && w.ip == 0 {
			err = errWhole
		}
		if err != nil {
			return frames, err
		}
		exact = rule.Signal
	}
	return frames, errors.New("too_deep")
}

func (w *walker) rule(at uint64) (unwind.Rule, error) {
	for _, m := range w.maps {
		if at < m.start || at >= m.end {
			continue
		}
		t, err := w.tables.of(m.path)
		if err != nil {
			return unwind.Rule{}, err
		}
		addr, ok := t.file.AddrOf(elffile.FileOffset(at - m.start + m.offset))
		if !ok {
			return unwind.Rule{}, errNoRow
		}
		return t.table.Find(addr), nil
	}
	return unwind.Rule{}, errNoMapping
}

func (w *walker) step(r unwind.Rule, innermost bool) (err error) {
	var cfa uint64
	switch r.CFA {
	case unwind.CFASP:
		cfa = w.sp
	case unwind.CFAFP:
		cfa = w.fp
	case unwind.CFAEnd:
		return errWhole
	case unwind.CFANone:
		return errNoRow
	case unwind.CFARegister:
		if !innermost {
			return errRow
		}
		cfa = w.regs[r.Reg]
	case unwind.CFASPDeref:
		cfa, err = w.word(w.sp + uint64(int64(r.Deref)))
	case unwind.CFAFPDeref:
		cfa, err = w.word(w.fp + uint64(int64(r.Deref)))
	case unwind.CFAPLT:
		cfa = w.sp
		if w.ip&15 >= uint64(r.Deref) {
			cfa += 8
		}
	default:
		return errRow
	}
	if err != nil {
		return err
	}
	cfa += uint64(int64(r.CFAOffset))
	if cfa <= w.sp && !r.Signal && !innermost {
		return errChain
	}
	if r.RA == unwind.SavedSame || r.RA == unwind.SavedLost {
		return errRow // there is no link register
	}
	ip, err := w.saved(r.RA, r.RAOffset, cfa, 0, innermost)
	if err != nil {
		return err
	}
	fp, err := w.saved(r.FP, r.FPOffset, cfa, w.fp, innermost)
	if err != nil {
		return err
	}
	w.ip, w.sp, w.fp = ip, cfa, fp
	return nil
}

func (w *walker) saved(where unwind.Saved, off int32, cfa, same uint64, innermost bool) (uint64, error) {
	switch where {
	case unwind.SavedSame:
		return same, nil
	case unwind.SavedCFA:
		return w.word(cfa + uint64(int64(off)))
	case unwind.SavedSP:
		return w.word(w.sp + uint64(int64(off)))
	case unwind.SavedFP:
		return w.word(w.fp + uint64(int64(off)))
	case unwind.SavedReg:
		if innermost && off >= 0 && int(off) < len(w.regs) {
			return w.regs[off], nil
		}
		return 1, nil
	default:
		return 1, nil // lost
	}
}

// set takes the registers of a line "REGS ip sp …", by DWARF's numbers from the second
// on: what gdb calls them.
const gdbRegisters = "rip rax rdx rcx rbx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15"

func (w *walker) set(values []uint64) {
	w.ip = values[0]
	copy(w.regs[:], values[1:])
	w.fp, w.sp = w.regs[6], w.regs[7]
}

func parseHex(fields []string) ([]uint64, error) {
	out := make([]uint64, len(fields))
	for i, f := range fields {
		v, err := strconv.ParseUint(strings.TrimPrefix(f, "0x"), 16, 64)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}
