package symtab

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
)

// resolver names places in the code of one file. A module asks its resolvers in
// order; the first that knows a place names it.
type resolver interface {
	// frames returns the functions at a place, innermost first, or nil if it knows
	// none. An error that wraps errStale asks the module to read the file anew.
	frames(p position) ([]Frame, error)
	// count is the number of symbols that it has read.
	count() int
	// bytes is the memory it takes.
	bytes() int64
	// openFiles is the number of files that it opened for single questions and keeps.
	openFiles() int
	// close gives back files, and what it counted in shared budgets. It may be
	// called while frames is running, and more than once.
	close()
}

// symbolTable resolves by the symbol tables of a file, its MiniDebugInfo and its
// separate debug file. It may be made before they are read: then they are read when
// first asked.
type symbolTable struct {
	cache  *Cache
	main   elfSymbols
	path   string
	root   func() Root // of a target that maps it now; may return nil
	layout layout
	opts   *Options
	golang bool // the functions of Go are in another table
	got    atomic.Pointer[symbols]

	mu     sync.Mutex // guards the rest
	files  []*handle
	closed bool
}

// symbols is a table that was read.
type symbols struct {
	table    *table
	names    *names
	demangle func(string) string
	raw      bool // keep names as they are in the file
	cache    frameCache
	debug    *debugInfo // nil: there is none
	missing  []string   // build ids of debug files that may be fetched yet
}

// load reads the tables. There may be a table even if the error is not nil.
func (t *symbolTable) load(l *loader) error {
	root := t.root()
	fetched := remote{client: t.cache.debuginfod.Load()}
	files, opened, err := symbolFiles(t.main, t.path, root, t.opts, &fetched, t.golang)
	limit := int(t.opts.MaxBytes / 2 / symbolBytes)
	table, names, terr := l.symbols(t.layout, files, limit)
	if errors.Is(terr, ErrTableTooBig) {
		table = newTable(nil) // a part of a table would give the rest no names, for no visible reason
	}
	s := &symbols{table: table, names: names, demangle: demangler(t.opts.Demangle), raw: t.opts.Demangle == "none"}
	s.cache.budget = &t.cache.frames
	if !t.golang { // whose own table knows as much, and takes less
		var more []*handle
		splits := newSplitFiles(t.root, t.path, t.opts, t.cache.metrics)
		s.debug, more = newDebugInfo(files, root, splits, t.opts, &t.cache.frames, &fetched)
		opened = append(opened, more...)
	}
	s.missing = fetched.missing

	for _, f := range files[1:] {
		f.file.ForgetHeaders()
	}
	t.mu.Lock()
	if t.closed || !t.got.CompareAndSwap(nil, s) {
		t.mu.Unlock()
		closeHandles(opened)
		return err
	}
	t.files = opened
	t.mu.Unlock()
	return errors.Join(err, terr)
}

// symbolBytes is the memory of a symbol in a table, at most.
const symbolBytes = 12

func (t *symbolTable) frames(p position) ([]Frame, error) {
	s := t.got.Load()
	if s == nil {
		// Two goroutines may both read the tables; that is rare and does no harm.
		l := t.cache.loader()
		_ = t.load(l) // the functions of Go do have names; C code has those that could be read
		t.cache.give(l)
		if s = t.got.Load(); s == nil {
			return nil, errStale
		}
	}
	return s.frames(p)
}

func (s *symbols) frames(p position) ([]Frame, error) {
	if s.debug == nil {
		return s.function(p)
	}
	return s.debug.frames(p, s.demangle, s.function)
}

// function is the function of a place as the symbol table has it.
func (s *symbols) function(p position) ([]Frame, error) {
	i, ok := s.table.find(p.at)
	if !ok {
		return nil, nil
	}
	if fr, ok := s.cache.get(uint64(i)); ok {
		return fr, nil
	}
	name, err := s.names.choose(s.table, s.table.names[i])
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, nil
	}
	if !s.raw {
		// A version of the symbol ("name@@LIB_1.0") is not part of its name.
		if at := strings.IndexByte(name, '@'); at > 0 {
			name = name[:at]
		}
		name = s.demangle(name)
	}
	return s.cache.put(uint64(i), []Frame{{Name: name}}, int64(len(name))), nil
}

// count is the number of symbols that were read and are of use.
func (t *symbolTable) count() int {
	if s := t.got.Load(); s != nil {
		return s.table.symbols()
	}
	return 0
}

func (t *symbolTable) bytes() int64 {
	if s := t.got.Load(); s != nil {
		return s.table.bytes() + s.names.bytes() + s.cache.bytes() + s.debug.bytes()
	}
	return 0
}

func (t *symbolTable) openFiles() int {
	if s := t.got.Load(); s != nil {
		return s.debug.openFiles()
	}
	return 0
}

func (t *symbolTable) close() {
	t.mu.Lock()
	files := t.files
	t.files, t.closed = nil, true
	t.mu.Unlock()
	closeHandles(files)
	if s := t.got.Load(); s != nil {
		s.cache.close()
		s.debug.close()
	}
}

func closeHandles(hs []*handle) {
	for _, h := range hs {
		h.close()
	}
}
