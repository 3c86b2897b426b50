package ebpfspy

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/python"
	"github.com/spanflame/spanflame/symtab"
	"github.com/spanflame/spanflame/unwind"
)

// Shapes of spaces: SPACE_ENTRIES, SPACE_NODES and NO_ADDRESS of c/spanflame.h.
const (
	spaceEntries = len(bpf.ProfileSpaceNode{}.Start) - 1 // the last is the generation
	spaceNodes   = len(bpf.ProfileProcessSpace{}.Node)
	noAddress    = uint64(1) << 62
)

// Numbers of the rules that are always there.
const (
	ruleNone        = 0 // CFA_NONE
	ruleUnsupported = 1
	ruleGoChain     = 2
	ruleChain       = 3
	firstRule       = 4
)

// anyExec is ANY_EXEC of c/spanflame.h.
const anyExec = ^uint32(0)

// anonymousFile is the number of the file that stands for memory without one.
const anonymousFile = 0

// maxTableFile bounds the files that tables are made of.
const maxTableFile = 4 << 30

// Bounds of one table: the agent needs some 100 bytes a row while it makes it. A browser
// of 250 MB has 3 million.
const (
	maxTableSection = 64 << 20
	maxTableRows    = 4 << 20
)

// unwinder keeps the kernel's tables: which process has what mapped where, and how
// the code of each file is unwound. Everything is loaded when a sample asks for it.
type unwinder struct {
	logger  log.Logger
	metrics *metrics
	objs    *bpf.ProfileObjects

	nodes *nodes

	interpreters *interpreters // nil: none are looked for

	rulesMu  sync.Mutex
	rules    map[bpf.ProfileUnwindRule]uint16
	maxRules int

	mu        sync.Mutex // guards the rest; held over system calls, but not while a table is made
	maxFiles  int
	files     map[symtab.FileID]*unwindFile
	bySlot    []*unwindFile
	freeSlots []uint32
	spaces    map[*mappings]*space
	pushed    map[identity]*pushed
	epoch     uint32
	gen       uint64 // of spaces
	tableGen  uint32
	queue     []*unwindFile
	large     []*unwindFile // of the queue, those that take long
	loading   int
	garbage   int // rows made since memory was given back
	closed    bool

	wake, wakeLarge chan struct{}
	cancel          context.CancelFunc
	loaders         sync.WaitGroup
}

// unwindFile is a file that a space of the kernel names.
type unwindFile struct {
	id     symtab.FileID
	slot   uint32
	path   string
	state  bpf.ProfileUnwindFileState
	tree   tree // without nodes: there is none
	stamp  stamp
	spaces int    // that name it
	idle   uint32 // epoch since when none does
	from   origin
	queued bool
	denied bool // there was no room, or the file could not be read
	// runtime is the interpreter in it, nil if there is none, or the file was not read yet.
	runtime interpreter
	// launcher says that it is the program of an interpreter that is in a library.
	launcher bool
}

// origin is where a file and its separate debug file can be had.
type origin struct {
	open symtab.Opener
	// debug is symtab.Cache.DebugFile for the file; nil if there can be none.
	debug func(f *elffile.File, wanted func(*elffile.File) bool) (*elffile.File, io.Closer, error)
}

// stamp tells whether a file is still the one that was read: an inode number may be
// another file's by the next time.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// space is the mappings of one or more processes, in nodes.
type space struct {
	of         *mappings
	version    uint64
	generation uint64
	nodes      []uint32
	files      []*unwindFile
	bias       []uint64 // of each file: address less offset where it is first mapped
	processes  int
	value      bpf.ProfileProcessSpace // but for the process
}

// pushed is what the kernel was told of a process.
type pushed struct {
	space  *space
	execID uint32
}

func newUnwinder(logger log.Logger, m *metrics, objs *bpf.ProfileObjects, interpreters *interpreters, inner *ebpf.MapSpec, maxSegments uint32) (*unwinder, error) {
	u := &unwinder{
		logger: logger, metrics: m, objs: objs, interpreters: interpreters,
		nodes:    newNodes(objs.Segments, inner, maxSegments),
		rules:    map[bpf.ProfileUnwindRule]uint16{},
		maxRules: int(objs.Rules.MaxEntries()), maxFiles: int(objs.Files.MaxEntries()),
		files: map[symtab.FileID]*unwindFile{}, spaces: map[*mappings]*space{}, pushed: map[identity]*pushed{},
		bySlot: []*unwindFile{nil},
		wake:   make(chan struct{}, 1), wakeLarge: make(chan struct{}, 1),
	}
	for number, cfa := range map[uint32]bpf.ProfileCfaKind{
		ruleNone: bpf.ProfileCfaKindCFA_NONE, ruleUnsupported: bpf.ProfileCfaKindCFA_UNSUPPORTED, ruleGoChain: bpf.ProfileCfaKindCFA_GO_CHAIN,
		ruleChain: bpf.ProfileCfaKindCFA_CHAIN,
	} {
		if err := objs.Rules.Put(number, &bpf.ProfileUnwindRule{Cfa: uint8(cfa)}); err != nil {
			return nil, fmt.Errorf("write the unwind rules: %w", err)
		}
	}
	anonymous := bpf.ProfileUnwindFile{State: uint32(bpf.ProfileUnwindFileStateFILE_CHAIN)}
	if err := objs.Files.Put(uint32(anonymousFile), &anonymous); err != nil {
		return nil, fmt.Errorf("write the unwind tables: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	u.cancel = cancel
	u.loaders.Go(func() { u.nodes.replenish(ctx) })
	u.loaders.Go(func() {
		hurry()
		var r ration
		u.loadLoop(ctx, &u.queue, u.wake, func() { nudge(u.wakeLarge) }, func(f *unwindFile) int {
			begun := time.Now()
			if r.spent(begun) {
				u.apart(f)
				return 0
			}
			rows := u.load(f, largeFile)
			r.take(time.Since(begun))
			return rows
		})
	})
	u.loaders.Go(func() {
		u.loadLoop(ctx, &u.large, u.wakeLarge, u.tidy, func(f *unwindFile) int { return u.load(f, maxTableFile) })
	})
	return u, nil
}

// close waits for the load under way and lets go of the kernel's memory.
func (u *unwinder) close() error {
	u.cancel()
	u.loaders.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	u.closed = true
	return u.nodes.close()
}

// push tells the kernel the mappings of a program of a process. from says where the
// file of a mapping can be had, later.
func (u *unwinder) push(id identity, execID uint32, maps *mappings, from func(*mapping) origin) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	old := u.pushed[id]
	if old != nil && old.space.of == maps && old.space.version == maps.version && old.execID == execID {
		u.tellRuntimes(id, old)
		return u.putProcess(id, old) // the kernel may have lost it at an exec
	}
	s := u.spaces[maps]
	if s == nil || s.version != maps.version {
		var err error
		if s, err = u.newSpace(maps, from); err != nil {
			return err
		}
	}
	p := &pushed{space: s, execID: execID}
	u.tellRuntimes(id, p)
	if err := u.putProcess(id, p); err != nil {
		u.dropUnused(s)
		return err
	}
	s.processes++
	u.pushed[id] = p
	if old != nil {
		u.release(old.space)
	}
	return nil
}

// tellRuntimes lets the kernel read the frames of the interpreters that a process runs.
func (u *unwinder) tellRuntimes(id identity, p *pushed) {
	if len(p.space.files) == 0 {
		return
	}
	// The program is mapped below all libraries.
	program := p.space.files[0]
	for i, f := range p.space.files {
		if f.runtime == nil {
			continue
		}
		if err := f.runtime.tell(id, p.execID, p.space.bias[i], f == program || program.launcher); err != nil {
			level.Debug(u.logger).Log("msg", "the functions of an interpreter cannot be read", "pid", id.pid, "path", f.path, "err", err)
		}
	}
}

func (u *unwinder) putProcess(id identity, p *pushed) error {
	v := p.space.value
	v.Start, v.ExecId = uint64(id.start), p.execID
	if err := u.objs.Processes.Put(id.pid, &v); err != nil {
		return fmt.Errorf("tell the kernel the mappings of process %d: %w", id.pid, err)
	}
	return nil
}

// newSpace writes mappings into nodes. Those that there is no room for are left out:
// the stacks that run into them say that they know no mapping.
func (u *unwinder) newSpace(maps *mappings, from func(*mapping) origin) (*space, error) {
	list := maps.list
	for len(list) > 0 && list[len(list)-1].end >= noAddress {
		list = list[:len(list)-1] // [vsyscall]
	}
	if len(list) > spaceEntries*spaceNodes {
		list = list[:spaceEntries*spaceNodes]
	}
	ids, err := u.nodes.take((len(list) + spaceEntries - 1) / spaceEntries)
	if err != nil && errors.Is(err, errNoNodes) {
		if err = u.evict((len(list) + spaceEntries - 1) / spaceEntries); err == nil {
			ids, err = u.nodes.take((len(list) + spaceEntries - 1) / spaceEntries)
		}
	}
	if err != nil {
		return nil, err
	}
	u.gen++
	s := &space{of: maps, version: maps.version, generation: u.gen, nodes: ids}
	s.value.Generation = s.generation
	for i := range s.value.First {
		s.value.First[i] = noAddress
	}
	capture := captureOf(list)
	s.value.CaptureSlot, s.value.CaptureDeref, s.value.CaptureMarked = capture.Slot, capture.Deref, 0
	if capture.Marked {
		s.value.CaptureMarked = 1
	}
	seen := map[*unwindFile]bool{}
	var node bpf.ProfileSpaceNode
	for i, id := range ids {
		part := list[i*spaceEntries : min((i+1)*spaceEntries, len(list))]
		for j := range node.Start {
			node.Start[j] = noAddress
		}
		n := 0
		for j := range part {
			m := &part[j]
			slot := uint32(anonymousFile)
			if m.file != nil {
				f := u.fileOf(m, from)
				if f == nil {
					continue
				}
				if !seen[f] {
					seen[f] = true
					f.spaces++
					s.files = append(s.files, f)
					s.bias = append(s.bias, m.start-m.offset)
				}
				slot = f.slot
			}
			node.Start[n] = m.start
			node.Entry[n].End, node.Entry[n].Bias, node.Entry[n].File = m.end, m.start-m.offset, slot
			n++
		}
		node.Entry[spaceEntries].End = s.generation
		if err := u.nodes.put(id, &node); err != nil {
			u.dropSpace(s)
			return nil, err
		}
		s.value.First[i], s.value.Node[i] = part[0].start, id
	}
	u.spaces[maps] = s
	return s, nil
}

// fileOf returns the file of a mapping, with a number; nil if there are too many.
func (u *unwinder) fileOf(m *mapping, from func(*mapping) origin) *unwindFile {
	if f := u.files[m.file.id]; f != nil {
		if f.spaces == 0 {
			f.from = from(m)
			if len(f.tree.nodes) > 0 && !f.same() {
				u.forgetTable(f)
			}
		}
		return f
	}
	var slot uint32
	switch n := len(u.freeSlots); {
	case n > 0:
		slot = u.freeSlots[n-1]
		u.freeSlots = u.freeSlots[:n-1]
	case len(u.bySlot) < u.maxFiles:
		slot = uint32(len(u.bySlot))
		u.bySlot = append(u.bySlot, nil)
	default:
		return nil
	}
	f := &unwindFile{id: m.file.id, slot: slot, path: m.file.path, from: from(m)}
	u.files[f.id], u.bySlot[slot] = f, f
	u.setFile(f, &bpf.ProfileUnwindFile{})
	return f
}

func (u *unwinder) setFile(f *unwindFile, v *bpf.ProfileUnwindFile) {
	v.Seen = u.epoch
	f.state = bpf.ProfileUnwindFileState(v.State)
	if err := u.objs.Files.Put(f.slot, v); err != nil {
		level.Warn(u.logger).Log("msg", "cannot tell the kernel of a file", "path", f.path, "err", err)
	}
}

// forget takes back what the kernel was told of a process that has gone.
func (u *unwinder) forget(id identity) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var now bpf.ProfileProcessSpace
	if u.closed {
		return
	}
	if err := u.objs.Processes.Lookup(id.pid, &now); err == nil && now.Start == uint64(id.start) {
		_ = u.objs.Processes.Delete(id.pid)
	}
	if p := u.pushed[id]; p != nil {
		delete(u.pushed, id)
		for _, f := range p.space.files {
			if f.runtime != nil {
				f.runtime.forget(id)
			}
		}
		u.release(p.space)
	}
}

func (u *unwinder) release(s *space) {
	s.processes--
	u.dropUnused(s)
}

func (u *unwinder) dropUnused(s *space) {
	if s.processes == 0 {
		u.dropSpace(s)
	}
}

func (u *unwinder) dropSpace(s *space) {
	if u.spaces[s.of] == s {
		delete(u.spaces, s.of)
	}
	u.nodes.give(s.nodes)
	s.nodes = nil
	for _, f := range s.files {
		if f.spaces--; f.spaces == 0 {
			f.idle = u.epoch
		}
	}
}

// same says whether a file that nobody had mapped for a while is still the one that its
// table was made of.
func (f *unwindFile) same() bool {
	if f.id.Ino == 0 || f.id.Gen != 0 {
		return true
	}
	file, err := f.from.open()
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // not even read from
	now, err := stampOf(file)
	return err == nil && now == f.stamp
}

// forgetTable forgets a file's table; the next sample in it asks anew.
func (u *unwinder) forgetTable(f *unwindFile) {
	u.setFile(f, &bpf.ProfileUnwindFile{})
	u.nodes.give(f.tree.nodes)
	f.tree, f.denied, f.runtime = tree{}, false, nil
}

// unload forgets a file's table, and the file if nobody maps it.
func (u *unwinder) unload(f *unwindFile) {
	u.forgetTable(f)
	if f.spaces == 0 && !f.queued {
		delete(u.files, f.id)
		u.bySlot[f.slot] = nil
		u.freeSlots = append(u.freeSlots, f.slot)
	}
}

// evict makes room for a number of nodes, if there is not enough: the tables that were
// not used for longest go first, those of this round and the last one never.
func (u *unwinder) evict(want int) error {
	want -= u.nodes.room()
	type old struct {
		f    *unwindFile
		seen uint32
	}
	var can []old
	for _, f := range u.files {
		if len(f.tree.nodes) == 0 || f.queued {
			continue
		}
		var v bpf.ProfileUnwindFile
		if err := u.objs.Files.Lookup(f.slot, &v); err != nil {
			return err
		}
		if u.epoch-v.Seen > 1 {
			can = append(can, old{f, v.Seen})
		}
	}
	slices.SortFunc(can, func(a, b old) int { return -cmp.Compare(u.epoch-a.seen, u.epoch-b.seen) })
	for _, c := range can {
		if want <= 0 {
			break
		}
		want -= len(c.f.tree.nodes)
		u.unload(c.f)
		u.metrics.tablesEvicted.Inc()
	}
	if want > 0 {
		return errNoNodes
	}
	return nil
}

// asked queues the table of a file that a sample of a program ran into.
func (u *unwinder) asked(slot uint32, maps *mappings, from func(*mapping) origin) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slot >= uint32(len(u.bySlot)) || u.bySlot[slot] == nil {
		return
	}
	f := u.bySlot[slot]
	if f.denied || f.state != bpf.ProfileUnwindFileStateFILE_UNLOADED && f.state != bpf.ProfileUnwindFileStateFILE_ASKED {
		return // two CPUs have asked, and this is the second
	}
	for i := range maps.list {
		// Who told of the file first may be gone.
		if m := &maps.list[i]; m.file != nil && m.file.id == f.id {
			f.from = from(m)
			break
		}
	}
	u.enqueue(f)
}

// anticipate queues the tables that a program's next sample will need as well: that of
// the code that runs, and of its main program, which is mapped below all libraries.
func (u *unwinder) anticipate(maps *mappings, address uint64, from func(*mapping) origin) {
	u.mu.Lock()
	defer u.mu.Unlock()
	main := true
	for i := range maps.list {
		m := &maps.list[i]
		if m.file == nil || !main && (address < m.start || address >= m.end) {
			continue
		}
		main = false
		if f := u.files[m.file.id]; f != nil && f.state == bpf.ProfileUnwindFileStateFILE_UNLOADED && !f.denied {
			f.from = from(m)
			u.setFile(f, &bpf.ProfileUnwindFile{State: uint32(bpf.ProfileUnwindFileStateFILE_ASKED)})
			u.enqueue(f)
		}
	}
}

// preload queues the tables of the files that a space names, and returns when there are
// none to be loaded any more, or after a while.
func (u *unwinder) preload(wait time.Duration) {
	u.mu.Lock()
	for _, f := range u.files {
		if f.state == bpf.ProfileUnwindFileStateFILE_UNLOADED {
			u.setFile(f, &bpf.ProfileUnwindFile{State: uint32(bpf.ProfileUnwindFileStateFILE_ASKED)})
			u.enqueue(f)
		}
	}
	u.mu.Unlock()
	for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(time.Millisecond) {
		u.mu.Lock()
		busy := u.loading > 0 || len(u.queue) > 0 || len(u.large) > 0
		u.mu.Unlock()
		if !busy {
			return
		}
	}
}

func (u *unwinder) enqueue(f *unwindFile) {
	if f.queued || u.closed {
		return
	}
	f.queued = true
	u.queue = append(u.queue, f)
	nudge(u.wake)
}

func nudge(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// newRound ages the tables, and lets those be asked for again that there was no room
// for.
func (u *unwinder) newRound() {
	u.age()
	// Others go on meanwhile: it waits for the kernel.
	if err := u.nodes.settle(); err != nil {
		level.Debug(u.logger).Log("msg", "cannot free unwind tables", "err", err)
	}
}

func (u *unwinder) age() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return
	}
	u.epoch++
	if err := u.objs.UnwindEpoch.Set(u.epoch); err != nil {
		level.Debug(u.logger).Log("msg", "cannot age the unwind tables", "err", err)
	}
	for _, f := range u.files {
		if f.spaces == 0 && !f.queued && u.epoch-f.idle > idleRounds {
			u.unload(f)
			continue
		}
		if f.denied && !f.queued {
			f.denied = false
			u.setFile(f, &bpf.ProfileUnwindFile{})
		}
	}
	u.metrics.tableBytes.Set(float64(int64(u.nodes.inUse()) * nodeBytes))
	u.metrics.tables.Set(float64(len(u.files)))
}

// idleRounds is how long the table of a file is kept that nobody maps: ten minutes at
// the default interval.
const idleRounds = 40

const nodeBytes = int64(4 * leafRows)

// largeFile is from how many bytes on a file is loaded apart, so that the small ones, of
// which a table takes milliseconds, do not wait for it.
const largeFile = 8 << 20

// ration bounds what is done at a high priority, for targets have a say in how much there
// is to do: a tenth of the time, and 100 ms at once. What exceeds it is paid back.
type ration struct {
	debt time.Duration
	at   time.Time
}

const (
	rationShare = 10
	rationBurst = 100 * time.Millisecond
)

func (r *ration) spent(now time.Time) bool {
	r.debt = max(0, r.debt-now.Sub(r.at)/rationShare)
	r.at = now
	return r.debt > rationBurst
}

func (r *ration) take(d time.Duration) { r.debt += d }

// apart leaves a file to the loop that has the usual priority.
func (u *unwinder) apart(f *unwindFile) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.large = append(u.large, f)
	nudge(u.wakeLarge)
}

// loadLoop loads a queue's files. load returns how many rows were made; idle is called when
// there is nothing to do.
func (u *unwinder) loadLoop(ctx context.Context, queue *[]*unwindFile, wake <-chan struct{}, idle func(), load func(*unwindFile) int) {
	for ctx.Err() == nil {
		u.mu.Lock()
		var f *unwindFile
		if len(*queue) > 0 {
			f = (*queue)[0]
			*queue = (*queue)[1:]
			u.loading++
		}
		u.mu.Unlock()
		if f == nil {
			idle()
			select {
			case <-ctx.Done():
				return
			case <-wake:
			}
			continue
		}
		rows := load(f)
		u.mu.Lock()
		u.loading--
		u.garbage += rows
		u.mu.Unlock()
	}
}

// tidy gives back the memory that large tables were made in.
func (u *unwinder) tidy() {
	u.mu.Lock()
	much := u.garbage > manyRows
	if much {
		u.garbage = 0
	}
	u.mu.Unlock()
	if much {
		debug.FreeOSMemory()
	}
}

// manyRows is how many rows leave so much memory behind that it is worth giving back: some
// 10 MB.
const manyRows = 100_000

// load makes the table of a file and gives it to the kernel, or has it done apart if the
// file has max bytes or more. It returns how many rows were made.
func (u *unwinder) load(f *unwindFile, max int64) int {
	begun := time.Now()
	u.mu.Lock()
	from := f.from
	u.mu.Unlock()
	m := u.read(f, from, max)
	if m.large {
		u.apart(f)
		return 0
	}
	var t tree
	var full error
	if len(m.rows) > 0 {
		t, full = u.plant(m.rows)
	}
	if m.err != nil {
		level.Debug(u.logger).Log("msg", "the call frame information is not whole", "path", f.path, "rows", len(m.rows), "err", m.err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	f.queued = false
	f.runtime, f.launcher = m.runtime, m.launcher
	if (f.runtime != nil || f.launcher) && !u.closed {
		for id, p := range u.pushed {
			if slices.Contains(p.space.files, f) {
				u.tellRuntimes(id, p)
			}
		}
	}
	switch {
	case u.closed:
	case !m.readable:
		f.denied = true // its process may have gone while another has it
		u.metrics.tableErrors.Inc()
	case full != nil:
		// It stays asked for, so that no sample asks again before the next round.
		f.denied = true
		u.metrics.tablesDenied.Inc()
		level.Debug(u.logger).Log("msg", "cannot keep an unwind table", "path", f.path, "rows", len(m.rows), "err", full)
	case len(m.rows) == 0:
		if m.broken {
			u.metrics.tableErrors.Inc()
		}
		f.stamp = m.stamp
		state := bpf.ProfileUnwindFileStateFILE_NO_TABLE
		if m.made {
			state = bpf.ProfileUnwindFileStateFILE_CHAIN
		}
		u.setFile(f, &bpf.ProfileUnwindFile{State: uint32(state)})
	default:
		u.nodes.give(f.tree.nodes)
		u.tableGen++
		f.tree, f.stamp = t, m.stamp
		f.tree.generation = u.tableGen
		u.setLoaded(f)
		u.metrics.tableRows.Add(float64(len(m.rows)))
		u.metrics.tableSeconds.Observe(time.Since(begun).Seconds())
	}
	return len(m.rows)
}

// made is what was made of a file.
type made struct {
	rows     []row
	stamp    stamp
	readable bool  // now
	broken   bool  // no ELF file that can be read
	large    bool  // to be read apart
	made     bool  // code that a process made, in memory that has a name
	err      error // what is missing of the rows
	runtime  interpreter
	launcher bool
}

// read makes the rows of a file. It takes up to seconds.
func (u *unwinder) read(f *unwindFile, from origin, max int64) (m made) {
	ef, closer, now, err := openELF(f, from.open)
	if closer != nil {
		defer func() { _ = closer.Close() }() // only read from
	}
	m.stamp = now
	if now.size >= max && max < maxTableFile {
		m.large = true
		return m
	}
	if ef == nil {
		m.err = err
		m.broken = errors.Is(err, elffile.ErrNotELF) || errors.Is(err, elffile.ErrUnsupported) || errors.Is(err, elffile.ErrCorrupt)
		m.readable = m.broken
		if isMade(f.path) {
			m.made, m.readable, m.broken = true, true, false
		}
		return m
	}
	m.readable = true
	m.runtime = u.interpreters.detect(f.id, f.path, ef)
	m.launcher = m.runtime == nil && python.IsLauncher(ef)
	golang := isGo(ef)
	opts := unwind.Options{MaxSection: maxTableSection, MaxRows: maxTableRows, SkipDebugFrame: golang}
	table := readFrames(ef, from, opts, max < maxTableFile, &m)
	if m.large {
		return m
	}
	gap := uint16(ruleNone)
	if golang {
		gap = ruleGoChain
	} else if table == nil {
		return m
	}
	if table == nil {
		table = &unwind.Table{}
	}
	m.rows = rowsOf(ef, table, u.number, gap)
	if !golang {
		v8From, v8To, _ := symtab.V8Builtins(ef)
		lo, ok := ef.OffsetOf(v8From)
		hi, ok2 := ef.OffsetOf(v8To - 1)
		if v8From < v8To && ok && ok2 && lo <= hi && hi < 0xffffffff {
			m.rows = fill(m.rows, uint32(lo), uint32(hi)+1, ruleChain)
		}
		m.rows = u.withLeaves(m.rows, ef)
		return m
	}
	if m.rows, err = u.withGo(m.rows, ef); err != nil {
		m.err = err // Go's functions are unwound by frame pointers alone
	}
	return m
}

// readFrames reads the call frame information of a file, and for code of which it says
// nothing that of the separate debug file. That may be much to read, and to compute a
// checksum of: in a hurry it is left to be done apart.
func readFrames(ef *elffile.File, from origin, opts unwind.Options, hurried bool, m *made) *unwind.Table {
	note := func(err error) {
		if !errors.Is(err, unwind.ErrNoFrames) {
			m.err = errors.Join(m.err, err)
		}
	}
	table, err := unwind.Read(ef, nil, opts)
	none := errors.Is(err, unwind.ErrNoFrames)
	if opts.SkipDebugFrame || from.debug == nil || !none && (table == nil || !table.Lacks(ef)) {
		note(err)
		return table
	}
	debug, closer, derr := from.debug(ef, func(d *elffile.File) bool {
		has := unwind.HasDebugFrame(d)
		m.large = m.large || has && hurried
		return has && !hurried
	})
	note(derr)
	if debug != nil {
		defer func() { _ = closer.Close() }() // only read from
		table, err = unwind.Read(ef, debug, opts)
	}
	note(err)
	return table
}

// plant writes rows into nodes, for which it makes room if there is none.
func (u *unwinder) plant(rows []row) (tree, error) {
	t, err := u.nodes.plant(rows)
	if !errors.Is(err, errNoNodes) {
		return t, err
	}
	u.mu.Lock()
	err = u.evict(nodesFor(len(leavesOf(rows))))
	u.mu.Unlock()
	if err != nil {
		return tree{}, err
	}
	return u.nodes.plant(rows)
}

func (u *unwinder) setLoaded(f *unwindFile) {
	u.setFile(f, &bpf.ProfileUnwindFile{
		State: uint32(bpf.ProfileUnwindFileStateFILE_LOADED), Root: f.tree.root, Levels: f.tree.levels, Base: f.tree.base,
		Generation: f.tree.generation,
	})
}

func openELF(f *unwindFile, open symtab.Opener) (*elffile.File, io.Closer, stamp, error) {
	if f.id.Ino == 0 {
		ef, err := symtab.OwnVDSO()
		return ef, nil, stamp{}, err
	}
	file, err := open()
	if err != nil {
		return nil, nil, stamp{}, err
	}
	now, err := stampOf(file)
	if err != nil {
		return nil, file, stamp{}, err
	}
	ef, err := elffile.Open(file, min(now.size, maxTableFile))
	return ef, file, now, err
}

func stampOf(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return stamp{}, fmt.Errorf("%s is no regular file", f.Name())
	}
	return stamp{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}

// isGo says whether a file has code that the Go compiler made, which keeps frame
// pointers and has no call frame information of the usual kind.
func isGo(f *elffile.File) bool {
	return f.Section(".gopclntab") != nil || f.Section(".data.rel.ro.gopclntab") != nil || f.Section(".go.buildinfo") != nil
}

// number gives a rule its number in the kernel.
func (u *unwinder) number(r unwind.Rule) uint16 {
	if r.CFA == unwind.CFAUnsupported {
		return ruleUnsupported
	}
	v := bpf.ProfileUnwindRule{
		CfaOff: r.CFAOffset, Deref: r.Deref, FpOff: r.FPOffset, RaOff: r.RAOffset,
		Cfa: uint8(cfaKinds[r.CFA]), Fp: uint8(savedKinds[r.FP]), Ra: uint8(savedKinds[r.RA]), Reg: r.Reg,
	}
	if r.Signal {
		v.Signal = 1
	}
	return u.numberOf(v)
}

func (u *unwinder) numberOf(v bpf.ProfileUnwindRule) uint16 {
	u.rulesMu.Lock()
	defer u.rulesMu.Unlock()
	if n, ok := u.rules[v]; ok {
		return n
	}
	n := firstRule + len(u.rules)
	if n >= u.maxRules {
		return ruleUnsupported
	}
	if err := u.objs.Rules.Put(uint32(n), &v); err != nil {
		level.Warn(u.logger).Log("msg", "cannot write an unwind rule", "err", err)
		return ruleUnsupported
	}
	u.rules[v] = uint16(n)
	return uint16(n)
}

// withLeaves adds rows for functions that leave the stack as it was when they were called.
func (u *unwinder) withLeaves(rows []row, ef *elffile.File) []row {
	for _, r := range symtab.HotSpotLeaves(ef) {
		lo, ok := ef.OffsetOf(r.Start)
		hi, ok2 := ef.OffsetOf(r.End - 1)
		if ok && ok2 && lo <= hi && hi < 0xffffffff {
			leaf := unwind.Rule{CFA: unwind.CFASP, CFAOffset: 8, RA: unwind.SavedCFA, RAOffset: -8}
			rows = fill(rows, uint32(lo), uint32(hi)+1, u.number(leaf))
		}
	}
	return rows
}

// withGo lays rows for Go's functions over those of a file. Go's code keeps frame
// pointers; a function that runs, though, may not have set up its own, or may have
// none: there the distance of the stack pointer is what counts.
func (u *unwinder) withGo(rows []row, ef *elffile.File) ([]row, error) {
	var over []row
	var byDistance [4096]uint16 // rules, 0: not looked up yet
	end, err := symtab.GoFrames(ef, func(f symtab.GoFrame) {
		off, ok := ef.OffsetOf(f.Addr)
		if !ok || off > 0xffffffff || len(over) > 0 && uint32(off) < over[len(over)-1].offset {
			return
		}
		rule := uint16(ruleGoChain)
		switch {
		case f.Top:
			rule = u.number(unwind.Rule{CFA: unwind.CFAEnd})
		case f.SignalReturn:
			rule = u.number(unwind.SignalFrame)
		case f.Apart && f.Below >= 0:
			rule = u.number(unwind.Rule{CFA: unwind.CFASP, CFAOffset: f.Below + 8, RA: unwind.SavedCFA, RAOffset: -8})
		case f.Injected && f.Below >= 0 && ef.Machine == elf.EM_X86_64:
			rule = u.numberOf(bpf.ProfileUnwindRule{Cfa: uint8(bpf.ProfileCfaKindCFA_GO_CHAIN), CfaOff: f.Below + 8, Signal: 1})
		case f.Below >= 0 && ef.Machine == elf.EM_X86_64:
			var other uint16 // larger distances are rare
			slot := &other
			if f.Below%8 == 0 && f.Below/8 < int32(len(byDistance)) {
				slot = &byDistance[f.Below/8]
			}
			if *slot == 0 {
				*slot = u.numberOf(bpf.ProfileUnwindRule{Cfa: uint8(bpf.ProfileCfaKindCFA_GO_CHAIN), CfaOff: f.Below + 8})
			}
			rule = *slot
		}
		if n := len(over); n > 0 && over[n-1].rule == rule {
			return
		}
		if n := len(over); n > 0 && over[n-1].offset == uint32(off) {
			over = over[:n-1] // the byte before a function is part of what returns to it
		}
		over = append(over, row{uint32(off), rule})
	})
	last, ok := ef.OffsetOf(end - 1)
	if err != nil || len(over) == 0 || !ok || last >= 0xffffffff {
		return rows, err
	}
	return overlay(rows, over, uint32(last)+1), nil
}

var cfaKinds = map[unwind.CFA]bpf.ProfileCfaKind{
	unwind.CFAEnd:      bpf.ProfileCfaKindCFA_END,
	unwind.CFASP:       bpf.ProfileCfaKindCFA_SP,
	unwind.CFAFP:       bpf.ProfileCfaKindCFA_FP,
	unwind.CFARegister: bpf.ProfileCfaKindCFA_REGISTER,
	unwind.CFASPDeref:  bpf.ProfileCfaKindCFA_SP_DEREF,
	unwind.CFAFPDeref:  bpf.ProfileCfaKindCFA_FP_DEREF,
	unwind.CFAPLT:      bpf.ProfileCfaKindCFA_PLT,
}

var savedKinds = map[unwind.Saved]bpf.ProfileSavedKind{
	unwind.SavedSame: bpf.ProfileSavedKindSAVED_SAME,
	unwind.SavedLost: bpf.ProfileSavedKindSAVED_LOST,
	unwind.SavedCFA:  bpf.ProfileSavedKindSAVED_CFA,
	unwind.SavedSP:   bpf.ProfileSavedKindSAVED_SP,
	unwind.SavedFP:   bpf.ProfileSavedKindSAVED_FP,
	unwind.SavedReg:  bpf.ProfileSavedKindSAVED_REG,
}

// memory is what the segments take, in bytes.
func (u *unwinder) memory() int64 {
	return u.nodes.memory()
}
