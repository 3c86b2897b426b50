package ebpfspy

import (
	"fmt"
	"path"

	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/symtab"
)

// maxLocations bounds the locations that are kept across rounds, over all files.
// At about 200 bytes each they take at most 40 MB; a busy host has 20,000.
const maxLocations = 200_000

// file is one executable file, shared by all processes that map it.
type file struct {
	id   symtab.FileID
	path string

	held      *heldFile // guarded by the session's lock, as is heldSince
	heldSince uint64    // round

	// The rest is only used by the round that runs.
	module    *symtab.Module
	mapping   *stack.Mapping
	locations map[uint64]*stack.Location
	names     uint64          // generation of the module's names in locations
	unnamed   *stack.Location // stands for all addresses without a name, if the style has one for them
	seen      uint64          // last round with a sample in it
	python    *pythonFile     // nil: none is known
}

// locations resolves offsets in files and addresses of the kernel, and keeps what
// it resolved across rounds. It is not safe for concurrent use.
type locations struct {
	style   UnknownStyle
	symbols *symtab.Cache
	kernel  *symtab.Kernel // nil if the kernel's names cannot be read
	count   int
	known   map[*file]struct{} // files with locations

	kernelLocations map[uint64]*stack.Location
	kernelMappings  map[string]*stack.Mapping
	anonymous       *stack.Location
	noMapping       *stack.Location
	ambiguous       *stack.Location
	truncated       map[string]*stack.Location
	comms           map[string]*stack.Location

	python        map[pythonKey]*stack.Location
	pythonUnknown *stack.Location
	generation    uint64 // counts reset
}

// pythonKey is a line of a Python function: all processes share its location.
type pythonKey struct {
	name, file string
	line       int
}

func newLocations(style UnknownStyle, symbols *symtab.Cache, kernel *symtab.Kernel) *locations {
	l := &locations{style: style, symbols: symbols, kernel: kernel}
	l.reset()
	return l
}

// reset forgets all locations.
func (l *locations) reset() {
	for f := range l.known {
		f.locations, f.unnamed, f.mapping = nil, nil, nil
	}
	l.count = 0
	l.known = map[*file]struct{}{}
	l.kernelLocations = map[uint64]*stack.Location{}
	l.kernelMappings = map[string]*stack.Mapping{}
	l.anonymous = stack.Pseudo("[anonymous code]")
	l.noMapping = stack.Pseudo("[unknown]")
	l.ambiguous = stack.Pseudo("[remapped code]")
	l.truncated = map[string]*stack.Location{}
	l.comms = map[string]*stack.Location{}
	l.python = map[pythonKey]*stack.Location{}
	l.pythonUnknown = stack.Pseudo("[python]")
	l.generation++
}

// forgetKernel forgets the locations of the kernel, whose modules have changed.
func (l *locations) forgetKernel() {
	l.count -= len(l.kernelLocations)
	l.kernelLocations = map[uint64]*stack.Location{}
	l.kernelMappings = map[string]*stack.Mapping{}
}

// user resolves an address that f maps at the given offset and that is not in
// f.locations. open opens the file if its names have not been read yet.
func (l *locations) user(f *file, offset, addr uint64, open symtab.Opener, files symtab.Root) *stack.Location {
	if f.module == nil {
		if f.path == "[vdso]" {
			f.module = l.symbols.VDSO()
		} else {
			f.module = l.symbols.Module(f.id, f.path, open, files)
		}
	}
	frames := f.module.Frames(symtab.FileOffset(offset))
	if f.locations == nil {
		f.locations = map[uint64]*stack.Location{}
		f.mapping = &stack.Mapping{File: f.path, BuildID: f.module.BuildID(), HasFunctions: f.module.HasFunctions()}
		f.names = f.module.Generation()
		l.known[f] = struct{}{}
	}
	if len(frames) == 0 && l.style == UnknownModule {
		if f.unnamed == nil {
			f.unnamed = &stack.Location{Mapping: f.mapping, Lines: []stack.Line{{Function: "[" + path.Base(f.path) + "]"}}}
		}
		l.keep(f.locations, offset, f.unnamed)
		return f.unnamed
	}
	loc := &stack.Location{Mapping: f.mapping, Address: offset}
	switch {
	case len(frames) > 0:
		for _, fr := range frames {
			loc.Lines = append(loc.Lines, stack.Line{Function: fr.Name, File: fr.File, Line: fr.Line})
		}
	case l.style == UnknownModuleOffset:
		loc.Lines = []stack.Line{{Function: fmt.Sprintf("[%s]+%#x", path.Base(f.path), offset)}}
	default:
		// The same offset is at another address in each process: not kept.
		loc.Lines = []stack.Line{{Function: fmt.Sprintf("%#x", addr)}}
		return loc
	}
	l.keep(f.locations, offset, loc)
	return loc
}

// kernelCode resolves an address of the kernel.
func (l *locations) kernelCode(addr uint64) *stack.Location {
	if loc, ok := l.kernelLocations[addr]; ok {
		return loc
	}
	name, module := "[kernel]", ""
	if l.kernel != nil {
		if n, m, ok := l.kernel.Lookup(addr); ok {
			name, module = n, m
		}
	}
	mapName := "[kernel.kallsyms]"
	if module != "" {
		mapName = "[" + module + "]"
	}
	m := l.kernelMappings[mapName]
	if m == nil {
		m = &stack.Mapping{File: mapName, HasFunctions: l.kernel != nil}
		l.kernelMappings[mapName] = m
	}
	loc := &stack.Location{Mapping: m, Address: addr, Lines: []stack.Line{{Function: name}}}
	l.keep(l.kernelLocations, addr, loc)
	return loc
}

func (l *locations) keep(in map[uint64]*stack.Location, at uint64, loc *stack.Location) {
	in[at] = loc
	l.count++
}

// pythonAt is the location of a line of a Python function.
func (l *locations) pythonAt(name, file string, line int) *stack.Location {
	k := pythonKey{name, file, line}
	loc := l.python[k]
	if loc == nil {
		loc = &stack.Location{Lines: []stack.Line{{Function: name, File: file, Line: line}}}
		l.python[k] = loc
		l.count++
	}
	return loc
}

// marker is the root of a stack that is not whole.
func (l *locations) marker(reason string) *stack.Location {
	loc := l.truncated[reason]
	if loc == nil {
		loc = stack.Pseudo("[truncated: " + reason + "]")
		l.truncated[reason] = loc
	}
	return loc
}

// comm is the root that bears a thread's name.
func (l *locations) comm(name string) *stack.Location {
	loc := l.comms[name]
	if loc == nil {
		if len(l.comms) >= 4096 {
			l.comms = map[string]*stack.Location{}
		}
		loc = stack.Pseudo(name)
		l.comms[name] = loc
	}
	return loc
}

// expire forgets all when there is too much, what no round has used lately, and what has
// other names by now.
func (l *locations) expire(round uint64) {
	if l.count > maxLocations {
		l.reset()
	}
	const rounds = 40 // ten minutes at the default interval
	for f := range l.known {
		old := f.seen+rounds < round
		if !old && f.names == f.module.Generation() {
			continue
		}
		l.count -= len(f.locations)
		f.locations, f.unnamed, f.mapping = nil, nil, nil
		if old {
			f.module = nil
		}
		delete(l.known, f)
	}
}
