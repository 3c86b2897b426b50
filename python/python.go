// Package python knows CPython: in which files it is and of which version, where that
// version keeps the frames of functions, and how its line tables are read. It reads files
// and bytes that it is given, never a process.
//
// CPython 3.8 to 3.12 do not say where their structs have their fields; the table was made
// from the debugging information of builds. From 3.13 on a build states it itself: at the
// start of _PyRuntime (Include/internal/pycore_debug_offsets.h).
package python

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/spanflame/spanflame/internal/elffile"
)

// ErrNotPython says that a file has no CPython in it.
var ErrNotPython = errors.New("no CPython in the file")

// UnsupportedError says that a file has a CPython whose frames cannot be read.
type UnsupportedError struct {
	Version Version // 0: not known
	Why     string
}

func (e *UnsupportedError) Error() string {
	if e.Version == 0 {
		return "CPython of unknown version: " + e.Why
	}
	return fmt.Sprintf("CPython %s: %s", e.Version, e.Why)
}

// Oldest and Newest are the versions 3.x that can be read.
const (
	Oldest = 8
	Newest = 14
)

// Range is a part of a file's code.
type Range struct{ Start, End elffile.VirtAddr }

// Runtime is CPython as a file has it.
type Runtime struct {
	Version Version
	// FreeThreaded says that it was built without the global interpreter lock.
	FreeThreaded bool
	Address      elffile.VirtAddr // of _PyRuntime
	// Static is what _PyRuntime begins with in every process, nil if that is not known.
	Static  []byte
	Offsets Offsets
	// Eval are the parts of the function that runs Python code, by their symbols.
	Eval []Range
	// Text is all code of the file.
	Text Range
}

// Minor is x of 3.x.
func (r *Runtime) Minor() int { return r.Version.Minor() }

const (
	maxStrings = 64 << 20
	maxSymbols = 64 << 20
)

// Detect finds CPython in a file. The error is ErrNotPython, an *UnsupportedError, or the
// file could not be read.
func Detect(f *elffile.File) (*Runtime, error) {
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 {
		return nil, ErrNotPython
	}
	names := append([]string{"_PyRuntime", "Py_Version", evalName}, since...)
	found := map[string]elffile.Symbol{}
	var err error
	// A program that has it built in need not export it, and then has it in .symtab alone.
	for _, t := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		if err = symbolsNamed(f, t, names, found); err != nil {
			return nil, err
		}
		if _, ok := found["_PyRuntime"]; ok {
			break
		}
	}
	runtime, ok := found["_PyRuntime"]
	if !ok || runtime.Type() != elf.STT_OBJECT {
		return nil, ErrNotPython
	}
	r := &Runtime{Address: runtime.Value}
	if r.Version, err = versionOf(f, found); err != nil {
		return nil, err
	}
	if r.Version.Major() != 3 || r.Minor() < Oldest || r.Minor() > Newest {
		return nil, &UnsupportedError{r.Version, fmt.Sprintf("only 3.%d to 3.%d can be read", Oldest, Newest)}
	}
	if o, ok := offsetsOf[r.Minor()]; ok {
		r.Offsets = o
	} else if err := r.readOffsets(f); err != nil {
		return nil, err
	}
	r.Eval = evalRanges(f, found)
	if len(r.Eval) == 0 {
		return nil, &UnsupportedError{r.Version, "the function " + evalName + " is not among the symbols"}
	}
	for i := range f.Loads {
		s := &f.Loads[i]
		if s.Flags&elf.PF_X != 0 {
			if r.Text.End == 0 {
				r.Text.Start = s.Addr
			}
			r.Text.End = s.Addr + elffile.VirtAddr(s.MemLen)
		}
	}
	return r, nil
}

// maxLauncher bounds the programs that only start the interpreter.
const maxLauncher = 256 << 10

// IsLauncher says whether a file is Python's own program where the interpreter is in a
// library: it does nothing but call that one's main function.
func IsLauncher(f *elffile.File) bool {
	if f.Size() > maxLauncher {
		return false
	}
	table := f.SectionOfType(elf.SHT_DYNSYM)
	if table == nil {
		return false
	}
	strs := f.LinkedStrings(table)
	if strs == nil || !strs.HasData() || strs.Len > maxLauncher {
		return false
	}
	has, err := contains(f, strs, "\x00Py_BytesMain\x00")
	return err == nil && has
}

const evalName = "_PyEval_EvalFrameDefault"

// since are functions by which a version is known, from 3.8 on: each came with one.
var since = []string{"PyCode_NewWithPosOnlyArgs", "PyFrame_GetCode", "Py_NewRef"}

// versionOf finds out the version: from 3.11 on a symbol says it.
func versionOf(f *elffile.File, found map[string]elffile.Symbol) (Version, error) {
	if s, ok := found["Py_Version"]; ok && s.Type() == elf.STT_OBJECT {
		var b [8]byte
		if err := f.ReadAddr(b[:], s.Value); err != nil {
			return 0, fmt.Errorf("read Py_Version: %w", err)
		}
		return Version(binary.LittleEndian.Uint32(b[:])), nil
	}
	minor := Oldest - 1
	for i, name := range since {
		if _, ok := found[name]; ok {
			minor = Oldest + i
		}
	}
	if minor < Oldest {
		return 0, &UnsupportedError{0, fmt.Sprintf("older than 3.%d", Oldest)}
	}
	return Version(3<<24 | minor<<16), nil
}

// symbolsNamed finds symbols of some names. The names are looked for first, for most files
// have none of them.
func symbolsNamed(f *elffile.File, t elf.SectionType, names []string, found map[string]elffile.Symbol) error {
	table := f.SectionOfType(t)
	if table == nil || !table.HasData() || table.Compressed() || table.Len > maxSymbols {
		return nil
	}
	strs := f.LinkedStrings(table)
	if strs == nil || !strs.HasData() || strs.Len > maxStrings {
		return nil
	}
	has, err := contains(f, strs, "\x00_PyRuntime\x00")
	if err != nil || !has {
		return err
	}
	data, err := f.Data(strs, maxStrings)
	if err != nil {
		return err
	}
	at := map[uint32]string{}
	for _, n := range names {
		// Strings may share their ends.
		if i := bytes.Index(data, []byte("\x00"+n+"\x00")); i >= 0 {
			at[uint32(i)+1] = n
		}
	}
	return f.EachSymbol(table, nil, func(s elffile.Symbol) error {
		if n, ok := at[s.Name]; ok && s.Section != elf.SHN_UNDEF {
			if _, twice := found[n]; !twice {
				found[n] = s
			}
		}
		return nil
	})
}

// contains says whether a section has some bytes, and reads it in pieces.
func contains(f *elffile.File, s *elffile.Section, what string) (bool, error) {
	buf := make([]byte, 256<<10)
	for off := uint64(0); off < s.Len; {
		n := min(uint64(len(buf)), s.Len-off)
		if err := f.ReadFull(buf[:n], s.Off+elffile.FileOffset(off)); err != nil {
			return false, err
		}
		if bytes.Contains(buf[:n], []byte(what)) {
			return true, nil
		}
		if n < uint64(len(buf)) {
			break
		}
		off += n - uint64(len(what))
	}
	return false, nil
}

// evalRanges finds the code of the interpreter's main function, its cold parts too as far
// as .symtab names them.
func evalRanges(f *elffile.File, found map[string]elffile.Symbol) []Range {
	var out []Range
	if s, ok := found[evalName]; ok && s.Size > 0 {
		hot := Range{s.Value, s.Value + elffile.VirtAddr(s.Size)}
		out = append(append(out, hot), coldParts(f, hot)...)
	}
	table := f.SectionOfType(elf.SHT_SYMTAB)
	if table == nil || !table.HasData() || table.Len > maxSymbols {
		return out
	}
	strs := f.LinkedStrings(table)
	if strs == nil || !strs.HasData() || strs.Len > maxStrings {
		return out
	}
	data, err := f.Data(strs, maxStrings)
	if err != nil {
		return out
	}
	at := map[uint32]bool{}
	for i := 0; i < len(data); {
		j := bytes.Index(data[i:], []byte(evalName))
		if j < 0 {
			break
		}
		i += j
		if i > 0 && data[i-1] == 0 {
			at[uint32(i)] = true
		}
		i += len(evalName)
	}
	_ = f.EachSymbol(table, nil, func(s elffile.Symbol) error {
		r := Range{s.Value, s.Value + elffile.VirtAddr(s.Size)}
		if at[s.Name] && s.Size > 0 && s.Type() == elf.STT_FUNC && len(out) < 16 && !slices.Contains(out, r) {
			out = append(out, r)
		}
		return nil
	})
	return out
}
