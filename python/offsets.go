package python

import "fmt"

// None stands for an offset of what a version does not have.
const None = ^uint32(0)

// Offsets are where the fields of CPython's structs are that are read, in bytes.
type Offsets struct {
	Interpreters      uint32 // _PyRuntimeState.interpreters.head
	InterpreterNext   uint32 // PyInterpreterState.next
	Threads           uint32 // PyInterpreterState.threads.head
	ThreadNext        uint32 // PyThreadState.next
	ThreadInterpreter uint32 // PyThreadState.interp
	ThreadID          uint32 // PyThreadState.thread_id
	// ThreadFrame is PyThreadState.frame, cframe or current_frame.
	ThreadFrame uint32
	// CFrameFrame is _PyCFrame.current_frame, None where there is no cframe.
	CFrameFrame uint32

	FrameCode uint32 // _PyInterpreterFrame.f_code or f_executable, PyFrameObject.f_code
	FrameBack uint32 // previous, f_back
	// FrameInstruction is prev_instr or instr_ptr, an address; f_lasti, a number, before 3.11.
	FrameInstruction uint32
	FrameOwner       uint32 // owner
	FrameIsEntry     uint32 // is_entry

	CodeFile          uint32 // PyCodeObject.co_filename
	CodeName          uint32 // co_name
	CodeQualifiedName uint32 // co_qualname
	CodeFirstLine     uint32 // co_firstlineno
	CodeLines         uint32 // co_linetable, co_lnotab
	CodeInstructions  uint32 // co_code_adaptive

	StringState   uint32 // PyASCIIObject.state
	StringLength  uint32 // PyASCIIObject.length
	StringASCII   uint32 // where the text of an ASCII string is: sizeof(PyASCIIObject)
	StringCompact uint32 // of another: sizeof(PyCompactUnicodeObject)
	BytesLength   uint32 // PyBytesObject.ob_size
	BytesData     uint32 // PyBytesObject.ob_sval
}

// Version is a version of CPython as PY_VERSION_HEX has it: 0x030b07f0 is 3.11.7.
type Version uint32

// Minor is x of 3.x.
func (v Version) Minor() int { return int(v >> 16 & 0xff) }

// Major is 3.
func (v Version) Major() int { return int(v >> 24) }

func (v Version) String() string {
	if v&0xffff == 0 {
		return fmt.Sprintf("%d.%d", v.Major(), v.Minor()) // only that is known
	}
	s := fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v>>8&0xff)
	// PY_RELEASE_LEVEL: alpha, beta, release candidate, final.
	if letters := map[Version]string{0xa: "a", 0xb: "b", 0xc: "rc"}[v>>4&0xf]; letters != "" {
		s += fmt.Sprintf("%s%d", letters, v&0xf)
	}
	return s
}
