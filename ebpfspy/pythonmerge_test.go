package ebpfspy

import (
	"strings"
	"testing"

	"github.com/spanflame/spanflame/internal/stack"
)

// TestMergePython merges stacks that are written as words, innermost first. Native frames
// begin with what they are: e the function that runs Python code, i the interpreter, s the C
// library, p the program, o another file. A Python frame with a | is one that the interpreter
// was entered with.
func TestMergePython(t *testing.T) {
	tests := []struct {
		name           string
		native, python string
		cut            bool
		want           string
	}{
		{"one run", "e i:Py_RunMain s:start i:_start", "f g m|", false, "f g m"},
		{"a frame each", "e:1 i e:2 i e:3 i s", "f| g| m|", false, "f g m"},
		{"called into C", "s:nanosleep i:time_sleep i:call e i s", "f m|", false, "s:nanosleep i:time_sleep f m"},
		{"the interpreter's own work", "i:dict_lookup i:call e i s", "f m|", false, "f m"},
		{"through C and back", "e o:numpy i:call e i s", "key| f m|", false, "key o:numpy f m"},
		{"through the interpreter", "e i:list_sort e i s", "key| f m|", false, "key f m"},
		{"just entered", "e i:call o:numpy e i s", "f m|", false, "o:numpy f m"},
		{"an eval frame that is not known as one", "e i i s", "key| f m|", false, "key f m"},
		{"none that is", "o:numpy i i s", "key| f m|", false, "o:numpy key f m"},
		{"a thread", "e i:thread_run s:start_thread s:clone", "work| boot|", false, "work boot"},
		{"cut", "o:numpy i e i", "f m| n|", true, "o:numpy f m n"},
		{"cut before the interpreter", "o:numpy", "f m|", true, "o:numpy f m"},
		{"a program that has it built in", "e i:PyObject_Call o:uwsgi o:main s:start o:_start", "f|", false, "f o:uwsgi o:main s:start o:_start"},
		{"its own program", "e i:Py_BytesMain p:main s:start p:_start", "f|", false, "f"},
		{"a large program", "e i:PyObject_Call p:request p:main s:start p:_start", "f|", false, "f p:request p:main s:start p:_start"},
		{"nothing native", "", "f m|", true, "f m"},
		{"more places than runs, cut", "e e e", "f|", true, "f"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var native []*stack.Location
			var kinds []frameKind
			for _, w := range strings.Fields(tt.native) {
				kinds = append(kinds, map[byte]frameKind{'e': frameEval, 'i': frameInterpreter, 's': frameSystem, 'p': frameProgram, 'o': frameOther}[w[0]])
				if n, ok := strings.CutPrefix(w, "i:"); ok && visible[n] {
					native = append(native, stack.Pseudo(n))
				} else {
					native = append(native, stack.Pseudo(w))
				}
			}
			var python []pythonLoc
			for _, w := range strings.Fields(tt.python) {
				name, entry := strings.CutSuffix(w, "|")
				python = append(python, pythonLoc{stack.Pseudo(name), entry})
			}
			got := strings.Join(namesOf(mergePython(nil, native, kinds, python, tt.cut)), " ")
			if want := strings.ReplaceAll(tt.want, "i:", ""); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// TestLineTablesAreGivenBack reads a function anew that the kernel had forgotten and the agent
// had not.
func TestLineTablesAreGivenBack(t *testing.T) {
	kept, again, other := &pythonCode{table: make([]byte, 100)}, &pythonCode{table: make([]byte, 100)}, &pythonCode{table: make([]byte, 10)}
	r := &interpreters{tables: 210, codes: map[uint64]*pythonCode{1: kept}, early: map[uint64]*pythonCode{1: again, 2: other}}
	r.learn(&rawRound{}, func(identity) bool { return false })
	if r.tables != 110 || r.codes[1] != kept || r.codes[2] != other {
		t.Errorf("%d bytes of tables, functions %v; want 110, the old one and the new one", r.tables, r.codes)
	}
}
