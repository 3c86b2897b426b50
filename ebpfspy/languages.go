package ebpfspy

import (
	"errors"

	"github.com/go-kit/log/level"

	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/symtab"
)

// interpreter is one as an executable file has it. Its frames are in the memory of
// the processes that map the file; the kernel programs read them.
type interpreter interface {
	// tell lets the kernel read the frames of a process that maps the file at bias, an
	// address less the offset in the file. main says that the process runs the language's own
	// program, and none that has it built in.
	tell(id identity, execID uint32, bias uint64, main bool) error
	// forget takes that back.
	forget(id identity)
}

// language is one whose frames are read.
type language struct {
	name string
	// detect looks for the language's interpreter in a file; errNoRuntime if there is none.
	detect func(r *interpreters, f *elffile.File) (interpreter, error)
}

// languages is all that are known. Another one is a line here, a package that knows its
// versions, and a header of bpf/c that walks its frames.
var languages = []language{
	{"python", detectPython},
}

var errNoRuntime = errors.New("no interpreter in the file")

// detect looks for an interpreter in a file that is about to be unwound; nil if there is none.
func (r *interpreters) detect(id symtab.FileID, path string, f *elffile.File) interpreter {
	if r == nil || r.disabled {
		return nil
	}
	for _, l := range languages {
		rt, err := l.detect(r, f)
		switch {
		case errors.Is(err, errNoRuntime):
			continue
		case err != nil:
			r.once(path, func() {
				level.Warn(r.logger).Log("msg", "an interpreter's functions will not be named; its native frames are shown", "language", l.name, "path", path, "reason", err)
			})
			return nil
		}
		if py, ok := rt.(*pythonFile); ok {
			r.mu.Lock()
			r.pythons[id] = py
			r.mu.Unlock()
		}
		level.Debug(r.logger).Log("msg", "reading the functions of an interpreter", "language", l.name, "path", path)
		return rt
	}
	return nil
}
