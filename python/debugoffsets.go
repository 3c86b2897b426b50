package python

import (
	"encoding/binary"
	"fmt"

	"github.com/spanflame/spanflame/internal/elffile"
)

const (
	cookie     = "xdebugpy"
	staticSize = 8 * 80
)

// stated is where _Py_DebugOffsets has an offset, in words of 8 bytes: as
// Include/internal/pycore_debug_offsets.h of 3.13 and 3.14 declares it. Fields that 3.14 has
// added move the later ones.
type stated struct {
	interpreters, interpreterNext, threads                                                int
	threadSize, threadNext, threadInterpreter, threadFrame, threadID                      int
	frameBack, frameCode, frameInstruction, frameOwner                                    int
	codeFile, codeName, codeQualifiedName, codeLines, codeFirstLine, codeInstructions     int
	bytesLength, bytesData, stringSize, stringState, stringLength, stringASCII, wordsUsed int
}

var statedBy = map[int]stated{
	13: {
		interpreters: 5, interpreterNext: 8, threads: 9,
		threadSize: 19, threadNext: 21, threadInterpreter: 22, threadFrame: 23, threadID: 24,
		frameBack: 29, frameCode: 30, frameInstruction: 31, frameOwner: 33,
		codeFile: 35, codeName: 36, codeQualifiedName: 37, codeLines: 38, codeFirstLine: 39, codeInstructions: 43,
		bytesLength: 65, bytesData: 66, stringSize: 67, stringState: 68, stringLength: 69, stringASCII: 70, wordsUsed: 71,
	},
	14: {
		interpreters: 5, interpreterNext: 8, threads: 9,
		threadSize: 22, threadNext: 24, threadInterpreter: 25, threadFrame: 26, threadID: 27,
		frameBack: 32, frameCode: 33, frameInstruction: 34, frameOwner: 36,
		codeFile: 40, codeName: 41, codeQualifiedName: 42, codeLines: 43, codeFirstLine: 44, codeInstructions: 48,
		bytesLength: 75, bytesData: 76, stringSize: 77, stringState: 78, stringLength: 79, stringASCII: 80, wordsUsed: 81,
	},
}

// readOffsets reads what a build states of itself.
func (r *Runtime) readOffsets(f *elffile.File) error {
	at, ok := statedBy[r.Minor()]
	if !ok {
		return &UnsupportedError{r.Version, "where it has its fields is not known"}
	}
	b := make([]byte, 8*at.wordsUsed)
	if err := f.ReadAddr(b, r.Address); err != nil {
		return fmt.Errorf("read _Py_DebugOffsets: %w", err)
	}
	if string(b[:8]) != cookie {
		return &UnsupportedError{r.Version, "_PyRuntime does not begin with " + cookie}
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	if v := Version(word(1)); v != r.Version {
		return &UnsupportedError{r.Version, fmt.Sprintf("_Py_DebugOffsets is of %s", v)}
	}
	r.FreeThreaded = word(2) != 0
	r.Static = b[:24]
	o := &r.Offsets
	o.CFrameFrame, o.FrameIsEntry = None, None
	for _, f := range []struct {
		to    *uint32
		index int
		max   uint64
	}{
		{&o.Interpreters, at.interpreters, 64 << 20}, {&o.InterpreterNext, at.interpreterNext, 64 << 20},
		{&o.Threads, at.threads, 64 << 20}, {&o.ThreadNext, at.threadNext, 1 << 16},
		{&o.ThreadInterpreter, at.threadInterpreter, 1 << 16}, {&o.ThreadID, at.threadID, 1 << 16},
		{&o.ThreadFrame, at.threadFrame, 1 << 16},
		{&o.FrameCode, at.frameCode, 1 << 10}, {&o.FrameBack, at.frameBack, 1 << 10},
		{&o.FrameInstruction, at.frameInstruction, 1 << 10}, {&o.FrameOwner, at.frameOwner, 1 << 10},
		{&o.CodeFile, at.codeFile, 1 << 10}, {&o.CodeName, at.codeName, 1 << 10},
		{&o.CodeQualifiedName, at.codeQualifiedName, 1 << 10}, {&o.CodeFirstLine, at.codeFirstLine, 1 << 10},
		{&o.CodeLines, at.codeLines, 1 << 10}, {&o.CodeInstructions, at.codeInstructions, 1 << 10},
		{&o.StringState, at.stringState, 1 << 10}, {&o.StringLength, at.stringLength, 1 << 10},
		{&o.StringASCII, at.stringASCII, 1 << 10}, {&o.StringCompact, at.stringSize, 1 << 10},
		{&o.BytesLength, at.bytesLength, 1 << 10}, {&o.BytesData, at.bytesData, 1 << 10},
	} {
		v := word(f.index)
		if v > f.max {
			return &UnsupportedError{r.Version, fmt.Sprintf("_Py_DebugOffsets says %d in word %d", v, f.index)}
		}
		*f.to = uint32(v)
	}
	o.StringCompact -= 8 // PyUnicodeObject is PyCompactUnicodeObject and a pointer
	return nil
}
