// Package madecode says how code is named that a process makes at run time, and that no file
// on disk describes: what a just-in-time compiler writes, and what an interpreter runs.
//
// A Source answers for one process. Files in which runtimes say what they have made are
// sources (symtab.CodeFile), and so are readers of a runtime's own structures, of which
// package runtimes has the list.
package madecode

import (
	"errors"
	"io"
	"os"

	"github.com/spanflame/spanflame/symtab"
)

// Place is a frame that is in code of the process's own making.
type Place struct {
	// Addr is the address of the instruction; of a caller, that of the call.
	Addr uint64
	// Word is what Runtime.Capture said to take of the frame; 0 if nothing was taken.
	Word uint64
	// InFile says that the code is a file's, and not of the process's making: Offset is where
	// in the file it is. Only frames with a Word are asked for.
	InFile bool
	Offset uint64
}

// Source names the code of one process. Its methods may be called at the same time. All that
// it reads is written by the process, and it bounds what it believes, reads and keeps.
type Source interface {
	// Name is what stands for the file that the code is from, such as "[jit]".
	Name() string
	// Frames returns the functions at a place, inlined ones first; nil if it knows none. It
	// does not wait for more than some milliseconds.
	Frames(p Place) []symtab.Frame
	// Refresh looks for what is new, and reads limit bytes at most; more says that there is
	// more to read. After the process has ended it says what can still be known.
	Refresh(limit int64) (more bool, err error)
	// Generation changes when Frames may say something else of the same place.
	Generation() uint64
	// Bytes is the memory that it takes.
	Bytes() int64
	Close()
}

// File is an executable mapping of a file.
type File struct {
	Start, End uint64 // addresses, end exclusive
	Offset     uint64 // of Start in the file, bytes
	Path       string // in the process's own root
}

// Process is what a runtime is told of a process.
type Process struct {
	PID uint32
	// Memory reads the process's memory by address. It fails once the process has ended or
	// runs another program.
	Memory io.ReaderAt
	// Open opens a file that is mapped; a regular one, and the one that is mapped.
	Open func(File) (*os.File, error)
	// MaxBytes is how much memory its source may take.
	MaxBytes int64
}

// Runtime is a kind of virtual machine or interpreter.
type Runtime struct {
	Name string
	// Match says by its path whether a mapped file may be one.
	Match func(path string) bool
	// Attach reads what there is to know of a process that maps such a file. It returns nil
	// if it is none after all, and an error that says which version is not known.
	Attach func(p *Process, f File) (Source, error)
	// Capture says what the sampler keeps of each frame for Place.Word.
	Capture Capture
}

// Capture is a word of a frame that says what it runs: where the code is the interpreter's,
// its address does not.
type Capture struct {
	// Slot is where the word is: at the frame pointer less 8 × Slot. 0: there is none.
	Slot uint8
	// Deref: what is kept is not the word, but what is so many bytes behind where it points
	// to. 0: the word.
	Deref uint8
	// Marked: only frames have it that have an odd word, a pointer of V8's, at fp - 8.
	Marked bool
}

// ErrNotYet is returned by Attach when the runtime has not started so far that it can be
// told what it is.
var ErrNotYet = errors.New("the runtime has not started yet")
