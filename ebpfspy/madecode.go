package ebpfspy

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/internal/targetmem"
	"github.com/spanflame/spanflame/runtimes"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/symtab"
)

// Bounds of what is known of code that processes make.
const (
	maxMadeProcesses = 512
	maxMadeSource    = 16 << 20 // bytes of one source; a large service's map of 100,000 functions takes 10 MB
	maxTold          = 64
	maxMadeLocations = 8192     // of one process
	madeSlice        = 4 << 20  // bytes that are read at once: some 20 ms
	madeTurn         = 64 << 20 // in one turn of the watcher
	// A round waits no longer than this for what is new, all processes together.
	madeRoundBytes = 32 << 20
	madeRoundTime  = 200 * time.Millisecond
	// Who was evicted is left alone for so many rounds: ten minutes at the default interval.
	madeDenied = 40
	// How often to look for files, and for what is new in them.
	madeInterval      = time.Second
	madeYoungInterval = 100 * time.Millisecond
	madeYoung         = 3 * time.Second
)

// madeCode names the code that processes make at run time. It follows the programs that are
// sampled and have such code: while they live it opens what tells of it and reads it as it
// grows, so that it can be named when they have ended.
type madeCode struct {
	logger   log.Logger
	metrics  *metrics
	procfs   string
	maxBytes int64
	runtimes []madecode.Runtime
	alive    func(*madeProgram) bool // whether it runs that program still
	wake     chan struct{}

	// Of the round that runs.
	round      uint64
	roundBytes int64
	roundTime  time.Duration

	mu       sync.Mutex // guards programs, told, and what is said to be in madeProgram
	programs map[*image]*madeProgram
	told     map[string]bool // what was said once
}

// madeProgram is one program of a process that makes code.
type madeProgram struct {
	proc *process
	id   identity
	img  *image

	// Guarded by the madeCode's lock.
	maps    []mapping // executable ones, those of files and those of no file
	changed bool
	since   time.Time
	denied  uint64 // round when it was evicted
	used    uint64 // last round with a sample in it

	looked atomic.Bool

	// lookMu is held while it is looked at: files are opened and memory is read.
	lookMu sync.Mutex
	facts  *sd.Process
	tried  map[*madecode.Runtime]bool

	srcMu   sync.Mutex // guards the rest up to memory
	sources []madecode.Source
	perfMap *codeFile // of the sources
	dumps   map[*file]*codeFile
	closed  bool
	memory  *targetmem.Memory // nil if no runtime asked for it

	// Of the round that runs.
	mappings   map[madecode.Source]*stack.Mapping
	locations  map[madecode.Place]*stack.Location
	generation uint64
	fresh      uint64 // the round after that in which it was last brought up to date
}

func newMadeCode(logger log.Logger, m *metrics, procfs string, maxBytes int64) *madeCode {
	return &madeCode{
		logger: logger, metrics: m, procfs: procfs, maxBytes: maxBytes, runtimes: runtimes.All,
		wake: make(chan struct{}, 1), programs: map[*image]*madeProgram{}, told: map[string]bool{},
	}
}

// note says what a program has mapped. Those that have no code of their own, and no runtime
// that is known, are left out.
func (c *madeCode) note(p *process, img *image, maps *mappings) *madeProgram {
	if !makesCode(maps) && captureOf(maps.list).Slot == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	mp := c.programs[img]
	if mp == nil {
		if len(c.programs) >= maxMadeProcesses {
			c.metrics.madeRefused.WithLabelValues("too_many").Inc()
			return nil
		}
		mp = &madeProgram{proc: p, id: p.id, img: img, since: time.Now(), tried: map[*madecode.Runtime]bool{}, dumps: map[*file]*codeFile{}}
		c.programs[img] = mp
	}
	mp.maps, mp.changed = slices.Clone(maps.list), true
	nudge(c.wake)
	return mp
}

// makesCode says whether there is executable memory in which a process can have put code.
func makesCode(maps *mappings) bool {
	for i := range maps.list {
		if m := &maps.list[i]; m.made() {
			return true
		}
	}
	return false
}

// made says whether what is mapped may be code that the process made.
func (m *mapping) made() bool {
	if m.file == nil {
		return m.start < noAddress // not [vsyscall]
	}
	return isMade(m.file.path)
}

// watch looks at the programs until ctx ends.
func (c *madeCode) watch(ctx context.Context) {
	for ctx.Err() == nil {
		wait := madeInterval
		left := int64(madeTurn)
		for _, mp := range c.list() {
			if ctx.Err() != nil {
				return
			}
			if time.Since(mp.since) < madeYoung {
				wait = madeYoungInterval
			}
			if !c.alive(mp) {
				continue
			}
			c.look(mp)
			for more := true; more && left > 0; left -= madeSlice {
				more = mp.refresh(madeSlice)
			}
		}
		c.shrink()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-c.wake:
			// Not at once again and again: a process may map and unmap all the time.
			_ = sleep(ctx, madeYoungInterval/10)
		}
		timer.Stop()
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (c *madeCode) list() []*madeProgram {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*madeProgram, 0, len(c.programs))
	for _, mp := range c.programs {
		if mp.denied == 0 {
			out = append(out, mp)
		}
	}
	return out
}

// look finds out what tells of a program's code, while it runs.
func (c *madeCode) look(mp *madeProgram) {
	mp.lookMu.Lock()
	defer mp.lookMu.Unlock()
	c.mu.Lock()
	maps, changed := mp.maps, mp.changed
	mp.changed = false
	c.mu.Unlock()
	if mp.facts == nil {
		facts, err := sd.ReadProcess(c.procfs, sd.PID(mp.id.pid))
		if err != nil || facts.Start != mp.id.start || !c.alive(mp) {
			return
		}
		mp.facts = facts
	}
	mp.looked.Store(true)
	c.lookForPerfMap(mp)
	if !changed {
		return
	}
	for i := range maps {
		m := &maps[i]
		if m.file == nil {
			continue
		}
		if pid := dumpPID(m.file.path); pid != 0 && (pid == uint32(mp.facts.PIDInNS) || pid == mp.id.pid) {
			c.openDump(mp, m)
		}
		for j := range c.runtimes {
			if r := &c.runtimes[j]; !mp.tried[r] && r.Match(m.file.path) {
				c.attach(mp, r, m)
			}
		}
	}
}

// lookForPerfMap opens the perf map if there is one, or another one than before.
func (c *madeCode) lookForPerfMap(mp *madeProgram) {
	f, path, err := openPerfMap(c.procfs, mp.facts)
	if errors.Is(err, errOwner) {
		// It may have become another user since.
		if facts, ferr := sd.ReadProcess(c.procfs, sd.PID(mp.id.pid)); ferr == nil && facts.Start == mp.id.start && facts.UID != mp.facts.UID {
			mp.facts = facts
			f, path, err = openPerfMap(c.procfs, facts)
		}
	}
	if err != nil {
		c.refused(mp, path, err)
		return
	}
	var st unix.Stat_t
	old := mp.perfMap
	if unix.Fstat(int(f.Fd()), &st) != nil || old != nil && old.Is(&st) || !c.alive(mp) {
		_ = f.Close() // not even read from
		return
	}
	mp.perfMap = &codeFile{CodeFile: symtab.NewPerfMap(f, maxMadeSource), path: path}
	mp.replace(old, mp.perfMap)
}

func (c *madeCode) openDump(mp *madeProgram, m *mapping) {
	if mp.dumps[m.file] != nil || len(mp.dumps) >= 4 {
		return
	}
	f, err := openDump(c.procfs, mp.facts, m)
	if err != nil {
		c.refused(mp, m.file.path, err)
		return
	}
	d := &codeFile{CodeFile: symtab.NewJITDump(f, maxMadeSource), path: m.file.path}
	mp.dumps[m.file] = d
	mp.replace(nil, d)
}

// attach lets a runtime look at a process.
func (c *madeCode) attach(mp *madeProgram, r *madecode.Runtime, m *mapping) {
	of := *m
	if mp.memory == nil {
		memory, err := openMemory(c.procfs, mp.id, func() bool { return c.alive(mp) })
		if err != nil {
			c.refused(mp, "mem", err)
			return
		}
		mp.srcMu.Lock()
		mp.memory = memory
		mp.srcMu.Unlock()
	}
	src, err := r.Attach(&madecode.Process{
		PID: mp.id.pid, Memory: mp.memory, MaxBytes: maxMadeSource,
		Open: func(madecode.File) (*os.File, error) {
			f, err := openMapped(c.procfs, mp.id.pid, of.start, of.end)
			if err != nil {
				f, err = root{c.procfs, mp.id.pid}.Open(of.file.path)
			}
			return f, err
		},
	}, madecode.File{Start: m.start, End: m.end, Offset: m.offset, Path: m.file.path})
	if errors.Is(err, madecode.ErrNotYet) {
		c.mu.Lock()
		mp.changed = true // try again
		c.mu.Unlock()
		return
	}
	if err != nil {
		mp.tried[r] = true
		logger := level.Debug(c.logger)
		if c.firstTime(r.Name + " " + m.file.path) {
			logger = level.Info(c.logger)
		}
		logger.Log("msg", "code that a process makes has no names: its runtime is not known well enough", "runtime", r.Name,
			"pid", mp.id.pid, "file", m.file.path, "err", err)
		c.metrics.madeRefused.WithLabelValues("runtime").Inc()
		return
	}
	if src != nil {
		mp.tried[r] = true
		mp.replace(nil, src)
	}
}

// firstTime says whether something was not told yet.
func (c *madeCode) firstTime(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[what] || len(c.told) >= maxTold {
		return false
	}
	c.told[what] = true
	return true
}

// refused counts a file that is there and was not opened.
func (c *madeCode) refused(mp *madeProgram, path string, err error) {
	reason := "unreadable"
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, sd.ErrProcessGone) || errors.Is(err, unix.ESRCH):
		return
	case errors.Is(err, errOwner):
		reason = "owner"
	case errors.Is(err, errNotRegular) || errors.Is(err, unix.ELOOP):
		reason = "not_regular"
	}
	c.metrics.madeRefused.WithLabelValues(reason).Inc()
	level.Debug(c.logger).Log("msg", "a file that names a process's code is not read", "pid", mp.id.pid, "path", path, "err", err)
}

// replace puts a source in the place of another, or adds it. Runtimes come first: files say
// what was true when they were written.
func (mp *madeProgram) replace(old *codeFile, add madecode.Source) {
	mp.srcMu.Lock()
	defer mp.srcMu.Unlock()
	if mp.closed {
		add.Close()
		return
	}
	if old != nil {
		mp.sources = slices.DeleteFunc(mp.sources, func(s madecode.Source) bool { return s == madecode.Source(old) })
		old.Close()
	}
	if _, file := add.(*codeFile); file {
		mp.sources = append(mp.sources, add)
	} else {
		mp.sources = slices.Insert(mp.sources, 0, add)
	}
}

func (mp *madeProgram) list() []madecode.Source {
	mp.srcMu.Lock()
	defer mp.srcMu.Unlock()
	return slices.Clone(mp.sources)
}

// refresh reads what is new, limit bytes a source at most.
func (mp *madeProgram) refresh(limit int64) (more bool) {
	for _, s := range mp.list() {
		m, _ := s.Refresh(limit) // what cannot be read has no names
		more = more || m
	}
	return more
}

func (mp *madeProgram) bytes() (n int64) {
	for _, s := range mp.list() {
		n += s.Bytes()
	}
	return n
}

func (mp *madeProgram) close() {
	mp.srcMu.Lock()
	defer mp.srcMu.Unlock()
	mp.closed = true
	for _, s := range mp.sources {
		s.Close()
	}
	mp.sources = nil
	if mp.memory != nil {
		_ = mp.memory.Close() // only read from
	}
}

// shrink lets go of the programs that were not sampled for longest when all together take
// more memory than they may. Only the watcher calls it.
func (c *madeCode) shrink() {
	list := c.list()
	var sum int64
	sizes := map[*madeProgram]int64{}
	for _, mp := range list {
		sizes[mp] = mp.bytes() // waits for a source that is being read
		sum += sizes[mp]
		c.metrics.madeFlushed.Add(float64(mp.countFlushed()))
	}
	var evicted []*madeProgram
	c.mu.Lock()
	slices.SortFunc(list, func(a, b *madeProgram) int {
		return cmp.Or(cmp.Compare(a.used, b.used), -cmp.Compare(sizes[a], sizes[b]))
	})
	for _, mp := range list {
		if sum <= c.maxBytes {
			break
		}
		if sizes[mp] > 0 {
			sum -= sizes[mp]
			mp.denied = max(c.round, 1)
			evicted = append(evicted, mp)
		}
	}
	c.mu.Unlock()
	closeAll(evicted)
	c.metrics.madeEvicted.Add(float64(len(evicted)))
	c.metrics.madeBytes.Set(float64(sum))
	c.metrics.madePrograms.Set(float64(len(list)))
}

// closeAll closes programs. Nobody holds the lock of madeCode: a source may be being read.
func closeAll(list []*madeProgram) {
	for _, mp := range list {
		mp.close()
	}
}

// countFlushed returns how often its files were too much since it was last called.
func (mp *madeProgram) countFlushed() (n uint64) {
	for _, s := range mp.list() {
		if f, ok := s.(*codeFile); ok {
			now := f.Flushed()
			n += now - f.flushed
			f.flushed = now
		}
	}
	return n
}

// setMax bounds the memory of all names.
func (c *madeCode) setMax(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxBytes = n
}

// newRound begins to name the code of a round.
func (c *madeCode) newRound(round uint64) {
	c.mu.Lock()
	c.round = round
	c.mu.Unlock()
	c.roundBytes, c.roundTime = madeRoundBytes, madeRoundTime
}

// endRound lets go of programs that nobody runs and no round will ask for.
func (c *madeCode) endRound(kept func(*madeProgram) bool) {
	c.drop(func(mp *madeProgram) bool { return !kept(mp) || mp.denied != 0 && c.round-mp.denied > madeDenied })
}

func (c *madeCode) close() { c.drop(func(*madeProgram) bool { return true }) }

// drop forgets the programs of which which, called with the lock held, says so.
func (c *madeCode) drop(which func(*madeProgram) bool) {
	var dropped []*madeProgram
	c.mu.Lock()
	for img, mp := range c.programs {
		if which(mp) {
			dropped = append(dropped, mp)
			delete(c.programs, img)
		}
	}
	c.mu.Unlock()
	closeAll(dropped)
}

// forgetLocations lets all be resolved anew.
func (c *madeCode) forgetLocations() {
	for _, mp := range c.list() {
		mp.locations, mp.mappings = nil, nil
	}
}

// of returns what is known of a program's code, as it is now.
func (c *madeCode) of(sub *subject) *madeProgram {
	c.mu.Lock()
	mp := c.programs[sub.img]
	c.mu.Unlock()
	if mp == nil {
		if mp = c.note(sub.proc, sub.img, sub.maps); mp == nil {
			return nil
		}
	}
	c.mu.Lock()
	denied, round := mp.denied != 0, c.round
	mp.used = round
	c.mu.Unlock()
	if denied {
		return nil
	}
	if mp.fresh != round+1 {
		mp.fresh = round + 1
		begun := time.Now()
		if !mp.looked.Load() && c.roundTime > 0 && c.alive(mp) {
			c.look(mp)
		}
		for more := true; more && c.roundBytes > 0 && c.roundTime > time.Since(begun); c.roundBytes -= madeSlice {
			more = mp.refresh(madeSlice)
		}
		c.roundTime -= time.Since(begun)
	}
	return mp
}

// location returns the location of a place in a program's code, nil if nothing names it.
func (c *madeCode) location(mp *madeProgram, p madecode.Place) *stack.Location {
	sources := mp.list()
	var generation uint64
	for _, s := range sources {
		generation += s.Generation() + 1
	}
	if generation != mp.generation || mp.locations == nil || len(mp.locations) >= maxMadeLocations {
		mp.locations, mp.generation = map[madecode.Place]*stack.Location{}, generation
	}
	if loc, ok := mp.locations[p]; ok {
		return loc
	}
	var loc *stack.Location
	for _, s := range sources {
		frames := s.Frames(p)
		if len(frames) == 0 {
			continue
		}
		if mp.mappings == nil {
			mp.mappings = map[madecode.Source]*stack.Mapping{}
		}
		m := mp.mappings[s]
		if m == nil {
			m = &stack.Mapping{File: s.Name(), HasFunctions: true}
			mp.mappings[s] = m
		}
		loc = &stack.Location{Mapping: m, Address: p.Addr}
		for _, f := range frames {
			loc.Lines = append(loc.Lines, stack.Line{Function: f.Name, File: f.File, Line: f.Line})
		}
		break
	}
	mp.locations[p] = loc
	return loc
}

// openMemory opens the memory of a process while alive says that it runs: that of the program
// that it runs now, and never another's.
func openMemory(procfs string, id identity, alive func() bool) (*targetmem.Memory, error) {
	m, err := targetmem.Open(procfs, targetmem.Process{PID: id.pid, Start: uint64(id.start)})
	if err != nil {
		return nil, err
	}
	// The PID may have been another's by the time that it was opened.
	if start, err := sd.ReadStart(procfs, sd.PID(id.pid)); err != nil || start != id.start || !alive() {
		return nil, errors.Join(sd.ErrProcessGone, err, m.Close())
	}
	return m, nil
}

// captureOf returns what the kernel keeps of the frames of a process's own code: what the
// first runtime that it has mapped says.
func captureOf(list []mapping) madecode.Capture {
	for i := range list {
		f := list[i].file
		if f == nil {
			continue
		}
		for j := range runtimes.All {
			if r := &runtimes.All[j]; r.Capture.Slot > 0 && r.Match(f.path) {
				return r.Capture
			}
		}
	}
	return madecode.Capture{}
}
