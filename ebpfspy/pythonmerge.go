package ebpfspy

import (
	"path"
	"strings"

	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/symtab"
)

// frameKind says what a native frame is to the Python frames of its stack.
type frameKind uint8

const (
	frameOther       frameKind = iota // kept
	frameInterpreter                  // in the interpreter's file
	frameEval                         // its function that runs Python code
	frameSystem                       // in the C library, where threads begin
	frameProgram                      // in the program's file, if that is another
)

// pythonEntry is PYTHON_ENTRY of c/spanflame.h.
const pythonEntry = uint64(1) << 63

// pythonLoc is a Python frame, and whether the interpreter was entered with it.
type pythonLoc struct {
	loc   *stack.Location
	entry bool
}

// kindOf says what a frame is.
func (r *interpreters) kindOf(sub *subject, f *file, offset uint64) frameKind {
	if f.python == nil {
		f.python = r.pythonIn(f.id)
	}
	switch {
	case f.python != nil && f.python.isEval(offset):
		return frameEval
	case f.python != nil:
		return frameInterpreter
	case isSystem(f.path):
		return frameSystem
	case f.path == sub.img.exe:
		return frameProgram
	}
	return frameOther
}

// isSystem says whether a file is a C library or its loader.
func isSystem(file string) bool {
	base := path.Base(file)
	for _, p := range []string{"libc.so", "libc-", "libpthread", "ld-musl-", "libc.musl-", "ld-linux"} {
		if strings.HasPrefix(base, p) {
			return true
		}
	}
	return false
}

// visible are functions of the interpreter that are shown where a thread runs or waits in
// one of them: what they do is none of the Python function's doing, or what it called.
var visible = map[string]bool{
	"take_gil": true, "gc_collect_main": true, "gc_collect_generations": true, "_PyGC_Collect": true, "_Py_RunGC": true,
	"time_sleep": true, "PyThread_acquire_lock_timed": true, "_PyMutex_LockTimed": true,
}

// mergePython puts Python frames in the place of the interpreter's own. All are innermost
// first. Each frame of the interpreter's main function stands for one or more Python frames:
// up to the one that it was entered with. cut says that the native frames are not all.
func mergePython(out, native []*stack.Location, kinds []frameKind, frames []pythonLoc, cut bool) []*stack.Location {
	var runs [][]pythonLoc
	for len(frames) > 0 {
		n := 0
		for n < len(frames)-1 && !frames[n].entry {
			n++
		}
		runs = append(runs, frames[:n+1])
		frames = frames[n+1:]
	}
	emit := func(n int) {
		for ; n > 0 && len(runs) > 0; n-- {
			for _, f := range runs[0] {
				out = append(out, f.loc)
			}
			runs = runs[1:]
		}
	}
	evals, root := 0, len(native)
	for i, k := range kinds {
		switch {
		case k == frameEval:
			evals++
			root = i + 1
		case k == frameInterpreter && evals == 0 && root == len(native):
			root = i // unless there is an eval frame to come
		}
	}
	// Where the native frames are all there, the roots are level: the interpreter may have
	// just been entered, and have no frame yet. Else the leaves are.
	empty := 0
	if !cut {
		empty = evals - len(runs)
	}
	entered := false
	for i, loc := range native[:root] {
		switch k := kinds[i]; {
		case k == frameEval && empty > 0:
			empty--
		case k == frameEval:
			emit(1 - empty) // more runs than places: the innermost are together
			empty, entered = 0, true
		case k != frameInterpreter || !entered && visible[loc.Lines[len(loc.Lines)-1].Function]:
			out = append(out, loc)
		}
	}
	emit(len(runs))
	return appendRoot(out, native[root:], kinds[root:])
}

// appendRoot appends the frames beyond the outermost Python one: of a program that has
// Python built in. Of Python's own program there are none but those that all have.
func appendRoot(out, native []*stack.Location, kinds []frameKind) []*stack.Location {
	program, others := 0, false
	for _, k := range kinds {
		switch k {
		case frameProgram:
			program++
		case frameOther:
			others = true
		}
	}
	if program <= 2 && !others { // main and _start
		return out
	}
	for i, loc := range native {
		if kinds[i] != frameInterpreter {
			out = append(out, loc)
		}
	}
	return out
}

// withPython merges Python frames into the native ones that out has from an index on; kinds
// are theirs.
func (s *Session) withPython(out []*stack.Location, from int, raw *rawRound, words []uint64, cut bool) []*stack.Location {
	s.python = s.python[:0]
	for i := 0; i+1 < len(words); i += pythonWords {
		s.python = append(s.python, pythonLoc{s.pythonFrame(raw.interpreters.codes[words[i]], uint32(words[i+1])), words[i+1]&pythonEntry != 0})
	}
	s.native = append(s.native[:0], out[from:]...)
	return mergePython(out[:from], s.native, s.kinds, s.python, cut)
}

// pythonIn is CPython in a file, nil if none was found.
func (r *interpreters) pythonIn(id symtab.FileID) *pythonFile {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pythons[id]
}
