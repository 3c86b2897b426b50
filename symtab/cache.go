package symtab

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spanflame/spanflame/internal/debuginfod"
)

// deletedSuffix is what the kernel adds to the path of a mapped file that was
// unlinked.
const deletedSuffix = " (deleted)"

// maxLoads is how many tables may be made at a time: each takes scratch memory.
const maxLoads = 2

// retryAfter is how long a file that could not be read is left alone.
const retryAfter = 30 * time.Second

// Cache holds the symbol tables of the files that processes map, within bounds of
// memory, files and age. It is safe for concurrent use.
type Cache struct {
	logger  log.Logger
	metrics *metrics
	loads   chan *loader // as many loaders as may run
	clock   atomic.Int64 // time of the last Expire, unix nanoseconds
	frames  budget

	debuginfod atomic.Pointer[debuginfod.Client] // nil if no server is to be asked

	mu      sync.Mutex // guards the rest
	opts    Options
	modules map[moduleKey]*Module
	loaded  map[*Module]struct{} // those with a table, or with an error
	vdso    *Module
	closed  bool
}

// moduleKey tells files apart. The name is part of it because on btrfs, files of
// two subvolumes may share both numbers.
type moduleKey struct {
	id   FileID
	name string
}

// NewCache makes an empty cache. The registerer may be nil. Close gives back its files.
func NewCache(logger log.Logger, reg prometheus.Registerer, opts Options) *Cache {
	if logger == nil {
		logger = log.NewNopLogger()
	}
	c := &Cache{
		logger:  logger,
		loads:   make(chan *loader, maxLoads),
		modules: map[moduleKey]*Module{},
		loaded:  map[*Module]struct{}{},
	}
	for range maxLoads {
		c.loads <- nil
	}
	c.clock.Store(time.Now().UnixNano())
	c.opts = opts.withDefaults()
	c.frames.limit.Store(c.opts.MaxBytes / 2)
	c.metrics = newMetrics(reg, c)
	c.startDebuginfod(c.opts.Debuginfod)
	return c
}

// SetOptions changes the options. Tables made under other options for names are
// forgotten. It must not be called by two goroutines at a time, nor while Close is.
func (c *Cache) SetOptions(opts Options) {
	opts = opts.withDefaults()
	c.mu.Lock()
	old := c.opts
	c.opts = opts
	c.frames.limit.Store(opts.MaxBytes / 2)
	servers := !old.Debuginfod.Equal(opts.Debuginfod)
	var drop []*state
	if old.Demangle != opts.Demangle || old.Inline != opts.Inline || !slices.Equal(old.DebugDirs, opts.DebugDirs) || servers {
		for m := range c.loaded {
			drop = append(drop, c.dropLocked(m))
		}
	}
	closed := c.closed
	c.mu.Unlock()
	closeStates(drop)
	if servers && !closed {
		c.startDebuginfod(opts.Debuginfod)
	}
}

// Module returns the module of a mapped file. It does not open the file: that
// happens when names are first asked for. open, and root if it is not nil, must stay
// usable until the next call for the same file replaces them; root is where separate
// debug files are looked for.
func (c *Cache) Module(id FileID, path string, open Opener, root Root) *Module {
	if id.Ino == 0 && path == "[vdso]" {
		return c.VDSO()
	}
	key := keyOf(id, path)
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.modules[key]
	if m == nil {
		m = &Module{cache: c, key: key, path: path}
		m.used.Store(c.clock.Load())
		if !c.closed {
			c.modules[key] = m
		}
	}
	m.open.Store(&source{open: open, root: root})
	return m
}

func keyOf(id FileID, file string) moduleKey {
	file = strings.TrimSuffix(file, deletedSuffix)
	if id.Ino != 0 {
		file = path.Base(file)
	}
	return moduleKey{id, file}
}

// VDSO returns the vDSO that the kernel gives 64-bit processes. It is read from the
// agent's own memory. File offsets in it are offsets from the start of the mapping.
func (c *Cache) VDSO() *Module {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vdso == nil {
		c.vdso = &Module{cache: c, path: "[vdso]", key: moduleKey{name: "[vdso]"}}
		c.vdso.open.Store(&source{vdso: true})
	}
	return c.vdso
}

// Expire evicts what was not used for Options.MaxAge before now, then the least
// recently used until memory and files are within bounds, and forgets tables whose
// file has changed, or whose debug file has come since they were made. It is to be called
// once a round.
func (c *Cache) Expire(now time.Time) {
	c.clock.Store(now.UnixNano())
	c.mu.Lock()
	age := c.opts.MaxAge
	var drop []*state
	var check []*Module
	for m := range c.loaded {
		if now.UnixNano()-m.used.Load() > int64(age) {
			drop = append(drop, c.dropLocked(m))
			c.metrics.evicted.WithLabelValues("age").Inc()
		} else {
			check = append(check, m)
		}
	}
	for key, m := range c.modules {
		if m.state.Load() == nil && now.UnixNano()-m.used.Load() > int64(age) {
			delete(c.modules, key)
		}
	}
	drop = append(drop, c.shrinkLocked(nil)...)
	c.mu.Unlock()
	closeStates(drop)
	c.relax()

	client := c.debuginfod.Load()
	for _, m := range check {
		st := m.state.Load()
		switch {
		case st == nil:
		case st.changed():
			c.forget(m, st)
			m.generation.Add(1)
			c.metrics.evicted.WithLabelValues("changed").Inc()
		case st.awaited(client) && !st.outdated.Swap(true):
			m.generation.Add(1)
			c.metrics.evicted.WithLabelValues("debug_file").Inc()
		}
	}
}

// Close closes all files. Modules go on without names.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	var drop []*state
	for m := range c.loaded {
		drop = append(drop, c.dropLocked(m))
	}
	clear(c.modules)
	c.mu.Unlock()
	closeStates(drop)
	c.startDebuginfod(Debuginfod{})
}

// Stats is what the cache holds.
type Stats struct {
	Tables int   // files with a table
	Bytes  int64 // memory of tables and frames
}

// Stats returns what the cache holds.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	var s Stats
	for m := range c.loaded {
		if st := m.state.Load(); st != nil {
			s.Tables++
			s.Bytes += st.bytes()
		}
	}
	return s
}

// adopt makes a state that was loaded the module's own, and makes room for it. It
// returns the state to use.
func (c *Cache) adopt(m *Module, st *state) *state {
	c.mu.Lock()
	if c.closed {
		// Without this a module would hold a file that nobody closes any more.
		c.mu.Unlock()
		st.close()
		st = &state{err: errClosed}
		m.state.Store(st)
		return st
	}
	replaced := m.state.Swap(st)
	m.used.Store(c.clock.Load())
	c.loaded[m] = struct{}{}
	drop := append(c.shrinkLocked(m), replaced)
	c.mu.Unlock()
	closeStates(drop)
	return st
}

// forget takes a state from a module, if it still has it.
func (c *Cache) forget(m *Module, st *state) {
	c.mu.Lock()
	same := m.state.CompareAndSwap(st, nil)
	if same {
		delete(c.loaded, m)
	}
	c.mu.Unlock()
	if same {
		st.close()
	}
}

// dropLocked takes the state from a module; the caller closes it.
func (c *Cache) dropLocked(m *Module) *state {
	delete(c.loaded, m)
	return m.state.Swap(nil)
}

// shrinkLocked drops the least recently used tables, but not keep, until all is
// within bounds, and returns them to be closed.
func (c *Cache) shrinkLocked(keep *Module) (drop []*state) {
	total, excess := int64(0), -c.opts.MaxFiles
	all := make([]*Module, 0, len(c.loaded))
	for m := range c.loaded {
		if st := m.state.Load(); st != nil {
			total += st.bytes()
			excess += st.files()
			if m != keep {
				all = append(all, m)
			}
		}
	}
	if total <= c.opts.MaxBytes && excess <= 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *Module) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
	for _, m := range all {
		reason := "bytes"
		if total <= c.opts.MaxBytes {
			if excess <= 0 {
				break
			}
			reason = "files"
		}
		st := c.dropLocked(m)
		total -= st.bytes()
		excess -= st.files()
		drop = append(drop, st)
		c.metrics.evicted.WithLabelValues(reason).Inc()
	}
	return drop
}

// loader takes a loader; give takes it back. There are maxLoads.
func (c *Cache) loader() *loader {
	l := <-c.loads
	if l == nil {
		l = newLoader()
	}
	l.used = true
	return l
}

func (c *Cache) give(l *loader) {
	if l.scratch() > maxScratch {
		l = nil
	}
	c.loads <- l
}

// relax lets go of buffers that were not used since the last round.
func (c *Cache) relax() {
	for range maxLoads {
		select {
		case l := <-c.loads:
			if l != nil && !l.used {
				l = nil
			}
			if l != nil {
				l.used = false
			}
			c.loads <- l
		default: // at work
		}
	}
}

func closeStates(states []*state) {
	for _, st := range states {
		if st != nil {
			st.close()
		}
	}
}
