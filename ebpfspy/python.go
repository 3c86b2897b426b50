package ebpfspy

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/internal/targetmem"
	"github.com/spanflame/spanflame/python"
	"github.com/spanflame/spanflame/symtab"
)

// interpreters is what the session knows of interpreters, and of the functions that they run.
type interpreters struct {
	logger   log.Logger
	metrics  *metrics
	objs     *bpf.ProfileObjects
	procfs   string
	disabled bool

	mu      sync.Mutex // guards what follows; held over system calls on maps only
	pythons map[symtab.FileID]*pythonFile
	layouts map[bpf.ProfilePythonLayout]uint32
	// runtimes by the number of their layout.
	byLayout []*python.Runtime
	warned   map[string]bool
	told     map[identity]toldPython
	have     bool
	// early are functions that were read when they were seen for the first time.
	early  map[uint64]*pythonCode
	tables int // bytes of line tables

	// The rest is only used by the round that runs.
	codes    map[uint64]*pythonCode
	maxCodes int
	epoch    uint64
}

type toldPython struct {
	execID  uint32
	address uint64
}

func newInterpreters(logger log.Logger, m *metrics, objs *bpf.ProfileObjects, procfs string, disabled bool) *interpreters {
	return &interpreters{
		logger: logger, metrics: m, objs: objs, procfs: procfs, disabled: disabled,
		pythons: map[symtab.FileID]*pythonFile{}, layouts: map[bpf.ProfilePythonLayout]uint32{},
		warned: map[string]bool{}, told: map[identity]toldPython{},
		early: map[uint64]*pythonCode{},
		codes: map[uint64]*pythonCode{}, maxCodes: int(objs.PythonCodes.MaxEntries()), epoch: 1,
	}
}

// maxWarned bounds the files that something was said of.
const maxWarned = 1024

// once does something if it was not done for the same name.
func (r *interpreters) once(name string, f func()) {
	r.mu.Lock()
	first := !r.warned[name] && len(r.warned) < maxWarned
	if first {
		r.warned[name] = true
	}
	r.mu.Unlock()
	if first {
		f()
	}
}

// pythonFile is CPython in an executable file.
type pythonFile struct {
	of      *interpreters
	runtime *python.Runtime
	layout  uint32
	// delta is by how much addresses of the code exceed offsets in the file.
	delta uint64
	eval  []offsets // of the interpreter's main function
}

type offsets struct{ start, end uint64 }

// isEval says whether an offset is in the function that runs Python code.
func (p *pythonFile) isEval(offset uint64) bool {
	for _, r := range p.eval {
		if offset >= r.start && offset < r.end {
			return true
		}
	}
	return false
}

func detectPython(r *interpreters, f *elffile.File) (interpreter, error) {
	rt, err := python.Detect(f)
	if errors.Is(err, python.ErrNotPython) {
		return nil, errNoRuntime
	}
	if err != nil {
		return nil, err
	}
	p := &pythonFile{of: r, runtime: rt}
	for i := range f.Loads {
		if s := &f.Loads[i]; s.Flags&elf.PF_X != 0 {
			p.delta = uint64(s.Addr) - uint64(s.Off)
			break
		}
	}
	for _, e := range rt.Eval {
		lo, ok := f.OffsetOf(e.Start)
		hi, ok2 := f.OffsetOf(e.End - 1)
		if ok && ok2 && lo <= hi {
			p.eval = append(p.eval, offsets{uint64(lo), uint64(hi) + 1})
		}
	}
	p.layout, err = r.numberOf(rt)
	return p, err
}

// numberOf gives a layout its number in the kernel.
func (r *interpreters) numberOf(rt *python.Runtime) (uint32, error) {
	v, err := layoutOf(rt)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, ok := r.layouts[v]; ok {
		return n, nil
	}
	n := uint32(len(r.layouts))
	if n >= r.objs.PythonLayouts.MaxEntries() {
		return 0, errors.New("there is no room for the layout of another version")
	}
	if err := r.objs.PythonLayouts.Put(n, &v); err != nil {
		return 0, fmt.Errorf("tell the kernel a layout: %w", err)
	}
	r.layouts[v] = n
	r.byLayout = append(r.byLayout, rt)
	return n, nil
}

// readAtOnce is how much of a frame or a code object the kernel program reads at once.
const readAtOnce = 128

// layoutOf puts what is known of a version as the kernel program wants it.
func layoutOf(rt *python.Runtime) (bpf.ProfilePythonLayout, error) {
	o := &rt.Offsets
	v := bpf.ProfilePythonLayout{
		Interpreters: o.Interpreters, InterpreterNext: o.InterpreterNext, Threads: o.Threads,
		ThreadNext: o.ThreadNext, ThreadId: o.ThreadID, ThreadFrame: o.ThreadFrame, CframeFrame: o.CFrameFrame,
		FrameCode: o.FrameCode, FrameBack: o.FrameBack, FrameInstruction: o.FrameInstruction,
		FrameOwner: o.FrameOwner, FrameIsEntry: o.FrameIsEntry,
		CodeInstructions: o.CodeInstructions,
		StringState:      o.StringState, StringLength: o.StringLength, StringAscii: o.StringASCII, StringCompact: o.StringCompact,
	}
	v.FrameBytes = max(o.FrameCode+8, o.FrameBack+8, o.FrameInstruction+8)
	for _, f := range []uint32{o.FrameOwner, o.FrameIsEntry} {
		if f != python.None {
			v.FrameBytes = max(v.FrameBytes, f+1)
		}
	}
	switch minor := rt.Minor(); {
	case minor < 10:
		v.Instruction = uint32(bpf.ProfilePythonInstructionPYTHON_BYTES)
	case minor == 10:
		v.Instruction = uint32(bpf.ProfilePythonInstructionPYTHON_UNITS)
	default:
		v.Instruction = uint32(bpf.ProfilePythonInstructionPYTHON_ADDRESS)
	}
	// enum _frameowner: from this one on, frames are no functions'. 3.11 has none of these.
	v.ShimOwner = 3
	if o.FrameIsEntry != python.None {
		v.ShimOwner = 256
	}
	name := o.CodeName
	if o.CodeQualifiedName != python.None {
		name = o.CodeQualifiedName
	}
	v.CodeFrom = min(o.CodeFirstLine, o.CodeFile, name, o.CodeLines) &^ 7
	v.CodeBytes = max(o.CodeFirstLine+4, o.CodeFile+8, name+8, o.CodeLines+8) - v.CodeFrom
	v.CodeFile, v.CodeName = o.CodeFile-v.CodeFrom, name-v.CodeFrom
	v.CodeFirstLine, v.CodeLines = o.CodeFirstLine-v.CodeFrom, o.CodeLines-v.CodeFrom
	aligned := v.FrameCode | v.FrameBack | v.CodeFile | v.CodeName | v.CodeLines | o.FrameInstruction&3
	if v.FrameBytes > readAtOnce || v.CodeBytes > readAtOnce || aligned&7 != 0 {
		return v, fmt.Errorf("a frame takes %d bytes, a code object %d: unlike any version", v.FrameBytes, v.CodeBytes)
	}
	return v, nil
}

var errOtherMemory = errors.New("its memory is not what the file says")

func (p *pythonFile) tell(id identity, execID uint32, bias uint64, main bool) error {
	r := p.of
	own := uint32(0)
	if main {
		own = 1
	}
	load := bias - p.delta
	address := load + uint64(p.runtime.Address)
	r.mu.Lock()
	known := r.told[id] == toldPython{execID, address}
	r.mu.Unlock()
	if !known {
		if err := p.check(id, address); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v := bpf.ProfilePythonProcess{
		Start: uint64(id.start), Runtime: address, ExecId: execID, Layout: p.layout,
		Own:  own,
		Text: load + uint64(p.runtime.Text.Start), TextBytes: uint64(p.runtime.Text.End - p.runtime.Text.Start),
	}
	for i, e := range p.runtime.Eval {
		if i == len(v.Eval) {
			v.Own = 0 // not all frames of the function would be known
			break
		}
		v.Eval[i], v.EvalBytes[i] = load+uint64(e.Start), uint32(e.End-e.Start)
	}
	if err := r.objs.PythonProcesses.Put(id.pid, &v); err != nil {
		return fmt.Errorf("tell the kernel of the interpreter of process %d: %w", id.pid, err)
	}
	r.told[id] = toldPython{execID, address}
	if !r.have {
		if err := r.objs.HavePython.Set(true); err != nil {
			return err
		}
		r.have = true
	}
	return nil
}

// check compares a process's memory with what is known of the version: builds with options
// that nobody has may have their fields elsewhere. The interpreter may not have begun yet.
func (p *pythonFile) check(id identity, runtime uint64) error {
	memory, err := openMemory(p.of.procfs, id, func() bool { return true })
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }() // only read from
	mem := &targetmem.Reader{Memory: memory}
	b := make([]byte, len(p.runtime.Static))
	if err := mem.Read(b, runtime); err != nil {
		return fmt.Errorf("read _PyRuntime: %w", err)
	}
	if !bytes.Equal(b, p.runtime.Static) {
		return errOtherMemory
	}
	o := &p.runtime.Offsets
	interpreter, err := mem.Uint64(runtime + uint64(o.Interpreters))
	if err != nil || interpreter == 0 {
		return err
	}
	thread, err := mem.Uint64(interpreter + uint64(o.Threads))
	if err != nil {
		return fmt.Errorf("%w: %w", errOtherMemory, err)
	}
	if thread == 0 {
		return nil
	}
	if back, err := mem.Uint64(thread + uint64(o.ThreadInterpreter)); err != nil || back != interpreter {
		return errors.Join(errOtherMemory, err)
	}
	return nil
}

func (p *pythonFile) forget(id identity) {
	r := p.of
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.told[id]; !ok {
		return
	}
	delete(r.told, id)
	var now bpf.ProfilePythonProcess
	if err := r.objs.PythonProcesses.Lookup(id.pid, &now); err == nil && now.Start == uint64(id.start) {
		_ = r.objs.PythonProcesses.Delete(id.pid) // the kernel may have been faster
	}
}

// pythonCode is a Python function, as the kernel saw it.
type pythonCode struct {
	name, file string
	first      int
	minor      int
	table      []byte // line table; nil: not known
	seen       uint64 // round
	dropped    bool   // the kernel has it no more

	locs       map[uint32]*stack.Location // by instruction
	generation uint64                     // of the session's locations
}

// Bounds of what is read of functions.
const (
	maxLineTable   = 256 << 10
	maxLineTables  = 64 << 20 // all
	maxPythonName  = 4 << 10  // bytes of a name that the kernel could not keep whole
	maxPythonPlace = 4096     // instructions of one function that are remembered
)

// Bounds of the functions that are read at once when they are new; what is left out is read at
// the end of the round.
const (
	maxEarly     = 512
	maxEarlyTime = 50 * time.Millisecond
)

// maxLearnTime is how long a round waits for what it reads of processes' memory.
const maxLearnTime = 500 * time.Millisecond

// readSoon reads functions that are new while their processes live, and the memory has not
// been given to others: that of a module's code is free as soon as the module is there.
func (r *interpreters) readSoon(ids []uint64, alive func(identity) bool) {
	begun := time.Now()
	for _, id := range ids[:min(len(ids), maxEarly)] {
		r.mu.Lock()
		room := len(r.early) < r.maxCodes
		r.mu.Unlock()
		if !room || time.Since(begun) > maxEarlyTime {
			return
		}
		if c := r.read(id, alive); c != nil {
			r.mu.Lock()
			if old := r.early[id]; old != nil {
				r.tables -= len(old.table)
			}
			r.early[id] = c
			r.mu.Unlock()
		}
	}
}

// learn reads what a round's Python functions are called, those that are new. The processes
// may be gone; what the kernel has kept of them is enough, but for the lines. alive says
// whether one is known to live.
func (r *interpreters) learn(raw *rawRound, alive func(identity) bool) {
	r.mu.Lock()
	early := r.early
	r.early = map[uint64]*pythonCode{}
	r.mu.Unlock()
	defer func() {
		// Those that are not in this round are in the next one, or of no target.
		for id, c := range early {
			switch r.codes[id] {
			case nil:
				c.seen = raw.number
				r.codes[id] = c
			case c:
			default: // it was known from before the kernel forgot it
				r.giveTable(c)
			}
		}
	}()
	begun := time.Now()
	lives := func(id identity) bool { return time.Since(begun) < maxLearnTime && alive(id) }
	for i := range raw.keys {
		if raw.keys[i].PythonLen == 0 {
			continue
		}
		st, ok := raw.frames(i)
		if !ok {
			continue
		}
		for j := 0; j+1 < len(st.python); j += pythonWords {
			id := st.python[j]
			c := r.codes[id]
			if c == nil {
				if c = early[id]; c == nil {
					if c = r.read(id, lives); c == nil {
						continue
					}
				}
				r.codes[id] = c
			}
			c.seen = raw.number
		}
	}
	if n := raw.stats[bpf.ProfileRoundStatSTAT_PYTHON_FULL]; n > 0 {
		r.metrics.pythonFull.Add(float64(n))
	}
}

// read reads a function, nil if the kernel does not know it.
func (r *interpreters) read(id uint64, alive func(identity) bool) *pythonCode {
	var v bpf.ProfilePythonCode
	if err := r.objs.PythonCodes.Lookup(id, &v); err != nil {
		return nil
	}
	r.mu.Lock()
	var rt *python.Runtime
	if int(v.Layout) < len(r.byLayout) {
		rt = r.byLayout[v.Layout]
	}
	r.mu.Unlock()
	if rt == nil {
		return nil
	}
	c := &pythonCode{first: int(int32(v.FirstLine)), minor: rt.Minor()}
	kept := min(v.NameSize, uint32(len(v.NameText)))
	c.name = python.Text(v.NameText[:kept], int(v.NameKind))
	keptFile := min(v.FileSize, uint32(len(v.FileText)))
	c.file = python.Text(v.FileText[:keptFile], int(v.FileKind))
	cutName, cutFile := v.NameSize > kept, v.FileSize > keptFile
	if process := identityOf(v.Tgid, v.Start*nsPerTick); alive(process) {
		memory, err := openMemory(r.procfs, process, func() bool { return alive(process) })
		if err == nil {
			mem := pythonMemory{targetmem.Reader{Memory: memory}, &rt.Offsets}
			if m, err := mem.code(v.Code); err == nil && m.name == v.Name && m.lines == v.Lines && mem.inUse(v.Code) {
				c.table = r.readTable(&mem, m.lines)
				if cutName {
					if s := mem.text(m.name, v.NameSize, int(v.NameKind), v.NameText[:kept]); s != "" {
						c.name, cutName = s, false
					}
				}
				if cutFile {
					if s := mem.text(m.file, v.FileSize, int(v.FileKind), nil); s != "" {
						c.file, cutFile = s, false
					}
				}
			}
			_ = memory.Close() // only read from
		}
	}
	if cutName {
		c.name += "…"
	}
	if cutFile {
		c.file = "…" + c.file
	}
	return c
}

// pythonMemory is the memory of a process that runs CPython.
type pythonMemory struct {
	targetmem.Reader
	o *python.Offsets
}

// codeObject is what is read anew of one.
type codeObject struct{ name, file, lines uint64 }

func (m *pythonMemory) code(at uint64) (c codeObject, err error) {
	name := m.o.CodeName
	if m.o.CodeQualifiedName != python.None {
		name = m.o.CodeQualifiedName
	}
	for _, f := range []struct {
		to     *uint64
		offset uint32
	}{{&c.name, name}, {&c.file, m.o.CodeFile}, {&c.lines, m.o.CodeLines}} {
		if *f.to, err = m.Uint64(at + uint64(f.offset)); err != nil {
			return c, err
		}
	}
	return c, nil
}

// inUse says whether an object has not been given back, as far as one can see: where its
// count of references was, CPython's memory pools and the C library then have a pointer.
func (m *pythonMemory) inUse(at uint64) bool {
	if m.o.BytesLength != 16 {
		return true // objects begin otherwise: built without the lock
	}
	head, err := m.Uint64(at)
	if err != nil {
		return false
	}
	// From 3.14 on there are flags in the upper 16 bits; objects that live for ever have large
	// counts from 3.12 on.
	count, high := uint32(head), uint16(head>>32)
	return high == 0 && count != 0 && (count < 1<<22 || count >= 0x3fffffff)
}

// text reads a string that the kernel could not keep whole, "" if it cannot. begin is what it
// begins with.
func (m *pythonMemory) text(at uint64, size uint32, kind int, begin []byte) string {
	if size > maxPythonName {
		return ""
	}
	state, err := m.Uint32(at + uint64(m.o.StringState))
	if err != nil {
		return ""
	}
	from := at + uint64(m.o.StringCompact)
	if state&0x40 != 0 {
		from = at + uint64(m.o.StringASCII)
	}
	b := make([]byte, size)
	if m.Read(b, from) != nil || !bytes.HasPrefix(b, begin) {
		return ""
	}
	return python.Text(b, kind)
}

// readTable reads the line table of a function; nil if it cannot.
func (r *interpreters) readTable(m *pythonMemory, at uint64) []byte {
	n, err := m.Uint64(at + uint64(m.o.BytesLength))
	if err != nil {
		return nil
	}
	r.mu.Lock()
	room := n <= maxLineTable && r.tables+int(n) <= maxLineTables
	r.mu.Unlock()
	if !room {
		r.metrics.pythonLines.Inc()
		return nil
	}
	table := make([]byte, n)
	if m.Read(table, at+uint64(m.o.BytesData)) != nil || !m.inUse(at) {
		return nil
	}
	r.mu.Lock()
	r.tables += len(table)
	r.mu.Unlock()
	return table
}

// giveTable takes a line table that is forgotten off the account.
func (r *interpreters) giveTable(c *pythonCode) {
	r.mu.Lock()
	r.tables -= len(c.table)
	r.mu.Unlock()
}

// line is the line of an instruction; 0 if it is not known.
func (c *pythonCode) line(at uint32) int {
	if c.table == nil || int32(at) < 0 {
		return max(c.first, 0)
	}
	return max(python.Line(c.minor, c.table, c.first, int(at)), 0)
}

// pythonFrame is the location of an instruction of a function; nil is one that is not known.
func (s *Session) pythonFrame(c *pythonCode, at uint32) *stack.Location {
	if c == nil || c.name == "" {
		return s.locs.pythonUnknown
	}
	if c.generation != s.locs.generation || len(c.locs) >= maxPythonPlace {
		c.locs, c.generation = map[uint32]*stack.Location{}, s.locs.generation
	}
	loc := c.locs[at]
	if loc == nil {
		loc = s.locs.pythonAt(c.name, c.file, c.line(at))
		c.locs[at] = loc
	}
	return loc
}

// idleFunctions is for how many rounds a function is kept that is not seen.
const idleFunctions = 40

// expire takes functions out of the kernel's map that were not seen for long, or for a
// round if there is little room. What was seen in between is still known here.
func (r *interpreters) expire(round uint64) {
	kept := uint64(idleFunctions)
	if len(r.codes) > r.maxCodes*3/4 {
		kept = 1
	}
	dropped := false
	for id, c := range r.codes {
		switch {
		case c.dropped && c.seen+kept+2 < round:
			r.giveTable(c)
			delete(r.codes, id)
		case !c.dropped && c.seen+kept < round:
			_ = r.objs.PythonCodes.Delete(id) // only the agent deletes
			c.dropped, dropped = true, true
		case c.dropped && c.seen+kept >= round:
			c.dropped = false // in use again: the kernel keeps it anew
		}
	}
	if dropped {
		r.epoch++
		if err := r.objs.PythonEpoch.Set(r.epoch); err != nil {
			level.Debug(r.logger).Log("msg", "functions that were forgotten are not read anew", "err", err)
		}
	}
	r.metrics.pythonFunctions.Set(float64(len(r.codes)))
}
