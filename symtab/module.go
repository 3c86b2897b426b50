package symtab

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log/level"

	"github.com/spanflame/spanflame/internal/elffile"
)

var errClosed = errors.New("the cache is closed")

// Module is a mapped file. It is safe for concurrent use, and may be kept for as
// long as the caller likes: when its table has been evicted, the next question
// brings it back.
type Module struct {
	cache *Cache
	key   moduleKey
	path  string
	open  atomic.Pointer[source]
	used  atomic.Int64 // unix nanoseconds, as coarse as the rounds
	state atomic.Pointer[state]

	generation atomic.Uint64

	mu      sync.Mutex // guards loading
	loading *load      // the load under way; nil if there is none
}

// load is a file being read. st is set before done is closed.
type load struct {
	done chan struct{}
	st   *state
}

// source is where the bytes of a module come from.
type source struct {
	open Opener
	root Root
	vdso bool
}

// state is what was read of a file. It does not change, but for its caches.
type state struct {
	err       error
	retry     int64 // when to read the file again, in unix nanoseconds; 0 for never
	layout    layout
	resolvers []resolver
	handles   []*handle
	main      *elffile.File
	buildID   string
	isGo      bool
	table     *symbolTable // whether it is of use or not; nil if the file could not be read
	outdated  atomic.Bool  // the file is to be read again, with a debug file that has come
}

// Frames returns the functions at an offset in the file, the innermost inlined one
// first; nil if they are not known. For a return address, the caller passes an
// offset inside the call instruction (the address less one). The slice is shared and
// must not be changed.
func (m *Module) Frames(off FileOffset) []Frame {
	// A file that is replaced while it is asked is read anew, once.
	for range 2 {
		st := m.ready()
		p, ok := st.layout.ofOffset(off)
		if !ok {
			return nil
		}
		fr, err := st.frames(p)
		if err == nil {
			return fr
		}
		if !errors.Is(err, errStale) {
			return nil
		}
		m.cache.forget(m, st)
	}
	return nil
}

func (st *state) frames(p position) ([]Frame, error) {
	for _, r := range st.resolvers {
		fr, err := r.frames(p)
		if fr != nil || err != nil {
			return fr, err
		}
	}
	// What nothing names may be known by its code.
	if st.main != nil {
		if k := st.main.KnownAt(p.addr); k != nil {
			return []Frame{{Name: k.Name}}, nil
		}
	}
	return nil, nil
}

// Path is the file's path, as the mapping has it.
func (m *Module) Path() string { return m.path }

// BuildID is the GNU build id in hexadecimal, or else Go's, or "".
func (m *Module) BuildID() string { return m.ready().buildID }

// IsGo says whether the file has a function table of Go.
func (m *Module) IsGo() bool { return m.ready().isGo }

// Generation changes when answers that were given may no longer be the right or the best
// ones: the file has changed, or its debug file was fetched. It changes in Cache.Expire.
func (m *Module) Generation() uint64 { return m.generation.Load() }

// HasFunctions says whether the file has function names.
func (m *Module) HasFunctions() bool { return len(m.ready().resolvers) > 0 }

// Size is the number of functions that the file's tables name, and the memory that
// the tables take with the names that were asked for. A table that was not needed yet
// counts for nothing.
func (m *Module) Size() (functions int, bytes int64) {
	st := m.ready()
	for _, r := range st.resolvers {
		functions += r.count()
	}
	return functions, st.bytes()
}

// Err says why there are no names, or why some are missing: it wraps ErrNoSymbols,
// ErrReplaced, ErrNoFile, ErrTableTooBig, an error of internal/elffile, or that of
// the opener.
func (m *Module) Err() error { return m.ready().err }

// ready returns the module's state and loads it if there is none.
func (m *Module) ready() *state {
	if now := m.cache.clock.Load(); m.used.Load() != now {
		m.used.Store(now)
	}
	st := m.state.Load()
	if st != nil && !st.outdated.Load() && (st.retry == 0 || time.Now().UnixNano() < st.retry) {
		return st
	}
	return m.load(st)
}

// load reads the file in the place of an old state, or waits for another goroutine
// that does.
func (m *Module) load(old *state) *state {
	m.mu.Lock()
	if l := m.loading; l != nil {
		m.mu.Unlock()
		<-l.done
		return l.st
	}
	if st := m.state.Load(); st != nil && st != old {
		m.mu.Unlock()
		return st // another goroutine was faster
	}
	l := &load{done: make(chan struct{})}
	m.loading = l
	m.mu.Unlock()

	var main *os.File
	switch {
	case old == nil:
	case old.outdated.Load():
		main = old.reopen() // it stays in use until it is replaced
	default:
		m.cache.forget(m, old)
	}
	l.st = m.cache.adopt(m, m.read(main))

	m.mu.Lock()
	m.loading = nil
	m.mu.Unlock()
	close(l.done)
	return l.st
}

// read opens the file, if it is not given, and reads it. It always returns a state.
func (m *Module) read(file *os.File) *state {
	c := m.cache
	l := c.loader()
	start := time.Now()
	c.mu.Lock()
	opts := c.opts
	c.mu.Unlock()
	st := &state{}
	if err := st.read(m, file, l, &opts); err != nil {
		st.err = fmt.Errorf("names of %s: %w", m.path, err)
	}
	if len(st.resolvers) == 0 && !errors.Is(st.err, ErrNoSymbols) {
		st.close()
		st.handles, st.retry = nil, start.Add(retryAfter).UnixNano()
	}
	c.give(l)

	c.metrics.seconds.Add(time.Since(start).Seconds())
	result := "ok"
	switch {
	case st.err != nil && errors.Is(st.err, ErrNoSymbols):
		result = "nameless"
	case st.err != nil:
		result = "error"
		level.Debug(c.logger).Log("msg", "names of a file could not be read, or not all", "file", m.path, "err", st.err)
	}
	c.metrics.loads.WithLabelValues(result).Inc()
	return st
}

// read fills the state. If the error is not nil, there may still be resolvers.
func (st *state) read(m *Module, file *os.File, l *loader, opts *Options) error {
	src := m.open.Load()
	main, err := st.openFile(m, src, file)
	if err != nil {
		return err
	}
	if st.layout, err = newLayout(main.file); err != nil {
		return err
	}
	st.buildID = main.file.BuildID()

	root := func() Root { return m.open.Load().root }
	table := &symbolTable{cache: m.cache, main: main, path: m.path, root: root, layout: st.layout, opts: opts}
	st.table = table
	plt := newPLT(main.file, demangler(opts.Demangle))
	golang, goErr := newGoTable(main, st.layout, opts, &m.cache.frames)
	var symErr error
	if golang != nil {
		table.golang = true
		// The functions of Go are in their own table. The symbols are read only
		// when code is asked for that is not in it: C code, under cgo.
		st.isGo = true
		st.resolvers = append(st.resolvers, golang, table)
	} else {
		if symErr = table.load(l); table.count() > 0 {
			st.resolvers = append(st.resolvers, table)
		} else {
			table.close()
		}
		symErr = errors.Join(symErr, main.file.SectionsErr)
		main.file.ForgetHeaders()
	}
	if plt != nil {
		st.resolvers = append(st.resolvers, plt)
	}
	st.main = main.file
	if main.handle != nil {
		if err := main.handle.fresh(); err != nil { // it changed while it was read
			st.close()
			st.resolvers = nil
			return err
		}
	}
	if err := errors.Join(goErr, symErr); err != nil || len(st.resolvers) > 0 {
		return err
	}
	return ErrNoSymbols
}

// openFile opens the module's file, if it is not given, and checks that it is the mapped one.
func (st *state) openFile(m *Module, src *source, file *os.File) (elfSymbols, error) {
	if src.vdso {
		f, err := OwnVDSO()
		return elfSymbols{file: f}, err
	}
	if file == nil {
		if src.open == nil {
			return elfSymbols{}, ErrNoFile
		}
		var err error
		if file, err = src.open(); err != nil {
			return elfSymbols{}, fmt.Errorf("open: %w", err)
		}
	}
	if file == nil {
		return elfSymbols{}, ErrNoFile
	}
	h, err := newHandle(file)
	if err != nil {
		return elfSymbols{}, err
	}
	st.handles = append(st.handles, h)
	// The device is not compared: on btrfs and overlayfs the one that stat tells is
	// not the one that mappings tell.
	if m.key.id.Ino != 0 && h.id.ino != m.key.id.Ino {
		return elfSymbols{}, fmt.Errorf("%w: inode %d, mapped %d", ErrReplaced, h.id.ino, m.key.id.Ino)
	}
	f, err := elffile.Open(h, h.id.size)
	return elfSymbols{file: f, handle: h}, err
}

// reopen opens the file of a state once more: its process may be gone, and it deleted. Nil
// if that fails.
func (st *state) reopen() *os.File {
	if len(st.handles) == 0 {
		return nil
	}
	f, err := st.handles[0].reopen()
	if err != nil {
		return nil
	}
	return f
}

// changed says whether the content of a file has changed since it was read.
func (st *state) changed() bool {
	for _, h := range st.handles {
		if h.fresh() != nil {
			return true
		}
	}
	return false
}

func (st *state) bytes() int64 {
	const fixed = 256
	sum := int64(fixed)
	if st.main != nil {
		sum += st.main.Footprint()
	}
	for _, r := range st.resolvers {
		sum += r.bytes()
	}
	return sum
}

// files is the number of files it counts for: one, and those it opened later.
func (st *state) files() int {
	n := 1
	for _, r := range st.resolvers {
		n += r.openFiles()
	}
	return n
}

func (st *state) close() {
	for _, r := range st.resolvers {
		r.close()
	}
	for _, h := range st.handles {
		h.close()
	}
}
