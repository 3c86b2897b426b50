package ebpfspy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/go-kit/log/level"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/bpf"
)

// OffCPUOptions of the off-CPU sampler. How it draws its samples is told in
// c/offcpu.h.
type OffCPUOptions struct {
	Enabled bool
	// MinBlock is from which length on each time off the CPU is sampled, as long as
	// MaxEvents allows; shorter ones are sampled in proportion to their length, and stand
	// for the others. 0: all.
	MinBlock time.Duration
	// MaxEvents bounds the stacks that are taken, a second and CPU, over a tenth of a
	// second; 0: DefaultMaxEvents.
	MaxEvents int
	// Idle says what becomes of threads that wait for work; "": IdleLabel.
	Idle IdleStyle
	// Waker adds who woke the thread, above the stack with which it went off its CPU.
	Waker bool
	// MaxThreads that are followed at once; 0: DefaultMaxThreads.
	MaxThreads int
}

// IdleStyle says what becomes of the time of threads that wait for work.
type IdleStyle string

// Styles of idle threads.
const (
	IdleLabel IdleStyle = "label" // it has a label of its own
	IdleKeep  IdleStyle = "keep"  // it is like all other time
	IdleDrop  IdleStyle = "drop"  // it is left out
)

// Defaults of OffCPUOptions.
const (
	DefaultMaxEvents  = 250
	MaxMaxEvents      = 100_000
	DefaultMaxThreads = 16384
)

// windowsASecond is 1 s / WINDOW_NS of c/offcpu.h.
const windowsASecond = 10

// chanceOne is CHANCE_ONE of c/spanflame.h.
const chanceOne = 1 << 24

// offCPUPrograms are the programs that are not needed when off-CPU is disabled.
var offCPUPrograms = []string{bpf.ProfileProgOffCpu, bpf.ProfileProgOffCpuWaking, bpf.ProfileProgOffCpuAsleep}

// withoutOffCPU takes the off-CPU programs' code away, so that a kernel that refuses them
// runs the others.
func withoutOffCPU(spec *ebpf.CollectionSpec) {
	for _, name := range offCPUPrograms {
		spec.Programs[name].Instructions = asm.Instructions{
			asm.Mov.Imm(asm.R0, 0).WithSymbol(name),
			asm.Return(),
		}
	}
	spec.Maps[bpf.ProfileMapThreads].MaxEntries = 1
	spec.Maps[bpf.ProfileMapSites].MaxEntries = 1
}

// attachOffCPU starts the off-CPU sampler, if it is wanted and not yet running. A kernel
// that refuses it has all other profiles.
func (k *kernelSide) attachOffCPU() {
	if !k.offCPU || len(k.offLinks) > 0 {
		return
	}
	l, err := attachTracing(k.objs.OffCpu)
	if err == nil {
		k.offLinks = append(k.offLinks, l)
		err = k.attachWaking()
	}
	if err != nil {
		level.Warn(k.logger).Log("msg", "off-CPU profiles are not possible on this kernel; all others are", "err", errors.Join(err, k.detachOffCPU()))
		k.offCPU = false
		return
	}
	it, err := link.AttachIter(link.IterOptions{Program: k.objs.OffCpuAsleep})
	if err != nil {
		// Threads that slept before have no stack and no reason then.
		level.Debug(k.logger).Log("msg", "cannot look at threads that sleep", "err", err)
		return
	}
	k.asleep = it
	k.offLinks = append(k.offLinks, it)
}

func attachTracing(p *ebpf.Program) (link.Link, error) {
	return link.AttachTracing(link.TracingOptions{Program: p, AttachType: ebpf.AttachTraceRawTp})
}

// attachWaking has the kernel call for each thread that is woken, which costs, if that is
// needed, and no longer if it is not.
func (k *kernelSide) attachWaking() error {
	if !k.waker && kernelKeepsQueued() {
		if k.waking == nil {
			return nil
		}
		err := k.waking.Close()
		k.waking = nil
		return err
	}
	if k.waking != nil {
		return nil
	}
	l, err := attachTracing(k.objs.OffCpuWaking)
	if err == nil {
		k.waking = l
	}
	return err
}

// kernelKeepsQueued says whether the kernel keeps the time when a thread came on its run
// queue, as has_queued of c/wait.h sees it. Before Linux 5.14 it may not, though it
// has the room: /proc then says "0 0 0" of all threads.
var kernelKeepsQueued = sync.OnceValue(func() bool {
	if b, err := os.ReadFile("/proc/self/schedstat"); err != nil || strings.TrimSpace(string(b)) == "0 0 0" {
		return false
	}
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	for _, f := range []struct{ of, name string }{
		{"task_struct", "sched_info"}, {"sched_info", "last_queued"}, {"sched_entity", "cfs_rq"}, {"cfs_rq", "rq"}, {"rq", "clock"},
	} {
		var of *btf.Struct
		if spec.TypeByName(f.of, &of) != nil || !slices.ContainsFunc(of.Members, func(m btf.Member) bool { return m.Name == f.name }) {
			return false
		}
	}
	return true
})

// detachOffCPU stops the off-CPU sampler for good: what it knows of threads is not true
// any more once it has missed a switch.
func (k *kernelSide) detachOffCPU() error {
	var errs []error
	for _, l := range k.offLinks {
		errs = append(errs, l.Close())
	}
	if k.waking != nil {
		errs = append(errs, k.waking.Close())
	}
	k.offLinks, k.waking, k.asleep = nil, nil, nil
	return errors.Join(errs...)
}

// setOffCPU changes what the running sampler does.
func (k *kernelSide) setOffCPU(o OffCPUOptions) error {
	k.waker = o.Waker
	var err error
	if len(k.offLinks) > 0 {
		err = k.attachWaking()
	}
	return errors.Join(err,
		k.objs.MaxFactor.Set((1<<40)/max(uint64(o.MinBlock.Nanoseconds())/1024, 1)),
		k.objs.WantWaker.Set(o.Waker),
		k.objs.KeepsQueued.Set(kernelKeepsQueued()),
		k.objs.MaxKept.Set(uint32(max(o.MaxEvents/windowsASecond, 1))),
	)
}

// framesKey tells stacks apart by their frames alone.
type framesKey struct {
	user, kernel         uint64
	userLen              uint16
	kernelLen, pythonLen uint8
}

func (k framesKey) words() int {
	return int(k.userLen) + pythonWords*int(k.pythonLen) + int(k.kernelLen)
}

func framesKeyOf(k *bpf.ProfileSampleKey) framesKey {
	return framesKey{k.UserHash, k.KernelHash, k.UserLen, k.KernelLen, k.PythonLen}
}

// parked keeps the stacks of threads that were off their CPU when a round ended: their
// frames are in that round's memory, their time goes on.
type parked struct {
	frames map[framesKey][]uint64
	asleep map[uint32]asleep // by thread: those whose stack was not kept
	keys   []uint32          // of the batch
	states []bpf.ProfileThreadState
}

// asleep is what is known of a block whose stack was not kept: where the thread entered the
// kernel, and its frames there.
type asleep struct {
	since uint64
	wait  uint8
	key   framesKey
}

// blockAt finds the block of a thread that the border fell into, the end of a round.
func blockAt(t *bpf.ProfileThreadState, border uint64) *bpf.ProfileBlock {
	switch {
	case t.Now.Since != 0 && t.Now.Since < border:
		return &t.Now
	case t.CutAt == border && t.Cut.Since != 0:
		return &t.Cut
	}
	return nil
}

// partOf is what a block adds to the round from start to border: estimated times waited
// and runnable, in ns. The rule is that of c/offcpu.h, with the border as the end.
func partOf(b *bpf.ProfileBlock, start, border uint64) (waited, queued uint64) {
	length := border - b.Since
	chance := uint64(b.Chance)
	if length >= b.Certain {
		chance = chanceOne
	}
	if chance == 0 {
		return 0, 0
	}
	from := max(b.Since, start)
	woken := border
	if b.Woken != 0 && b.Woken < border {
		woken = max(b.Woken, from)
	}
	scale := func(ns uint64) uint64 { return uint64(float64(ns) * chanceOne / float64(chance)) }
	return scale(woken - from), scale(border - woken)
}

// offCPUParts adds what the threads that were off their CPU at the end of a round have
// waited in it, and gives frames to the entries whose frames an earlier round had.
func (c *counter) offCPUParts(raw *rawRound) error {
	known := make(map[framesKey]int, len(raw.keys)) // entries with frames
	at := make(map[bpf.ProfileSampleKey]int)        // off-CPU entries
	for i := range raw.keys {
		k := &raw.keys[i]
		if raw.values[i].Chunk != noChunk {
			known[framesKeyOf(k)] = i
		}
		if bpf.ProfileSampleKind(k.Kind) == bpf.ProfileSampleKindSAMPLE_OFF_CPU {
			at[*k] = i
		}
	}
	if c.parked.frames == nil {
		c.parked.frames = map[framesKey][]uint64{}
	}
	still := map[framesKey]bool{}
	sleepers := map[uint32]asleep{}
	looked := false
	lookAt := func(tid uint32, since uint64) (asleep, bool) {
		a, ok := c.parked.asleep[tid]
		if (!ok || a.since != since) && !looked {
			looked = true
			c.kern.readAsleep(&c.parked)
			a, ok = c.parked.asleep[tid]
		}
		return a, ok && a.since == since
	}
	add := func(key *bpf.ProfileSampleKey, wait bpf.ProfileWaitCause, ns uint64) {
		if ns == 0 {
			return
		}
		k := *key
		k.Wait = uint8(wait)
		i, ok := at[k]
		if !ok {
			i = len(raw.keys)
			raw.keys = append(raw.keys, k)
			raw.values = append(raw.values, bpf.ProfileSampleValue{Chunk: noChunk})
			at[k] = i
		}
		raw.values[i].Count++
		raw.values[i].Time += ns
		raw.stats[bpf.ProfileRoundStatSTAT_TAKEN]++
	}
	err := c.eachThread(func(tid uint32, t *bpf.ProfileThreadState) {
		if t.Now.Since != 0 && t.Now.Chance != 0 {
			still[framesKeyOf(&t.Now.Key)] = true
		}
		b := blockAt(t, raw.endMono)
		if b == nil {
			return
		}
		// Was it read while the kernel wrote it? Then it has come back since.
		var again bpf.ProfileThreadState
		if b == &t.Now && c.kern.objs.Threads.Lookup(tid, &again) == nil && again.Now.Since != t.Now.Since {
			if b = blockAt(&again, raw.endMono); b == nil {
				return
			}
		}
		key := b.Key
		waited, queued := partOf(b, raw.startMono, raw.endMono)
		if b.Chance == 0 && waited+queued > 0 {
			key = bpf.ProfileSampleKey{
				Start: key.Start, Tgid: key.Tgid, Tid: key.Tid, Comm: key.Comm, Kind: key.Kind, ExecId: anyExec,
			}
			key.UserEnd = uint8(bpf.ProfileStackEndSTACK_NOT_SAMPLED)
			if a, ok := lookAt(tid, b.Since); ok {
				sleepers[tid] = a
				still[a.key] = true
				key.Wait, key.UserHash, key.KernelHash = a.wait, a.key.user, a.key.kernel
				key.UserLen, key.KernelLen = a.key.userLen, a.key.kernelLen
			}
		}
		wait := bpf.ProfileWaitCause(key.Wait)
		add(&key, wait, waited)
		add(&key, bpf.ProfileWaitCauseWAIT_RUN_QUEUE, queued)
	})

	// Frames: of this round, or of the one in which the thread went off its CPU.
	var words []uint64
	for i := range raw.keys {
		k, v := &raw.keys[i], &raw.values[i]
		n := framesKeyOf(k).words()
		if v.Chunk != noChunk || n == 0 {
			continue
		}
		if j, ok := known[framesKeyOf(k)]; ok {
			v.Chunk, v.Word = raw.values[j].Chunk, raw.values[j].Word
			continue
		}
		if frames := c.parked.frames[framesKeyOf(k)]; len(frames) == n {
			v.Chunk, v.Word = parkedChunk, uint32(len(words))
			words = append(words, frames...)
		}
	}
	raw.words[parkedChunk] = words

	next := make(map[framesKey][]uint64, len(still))
	for k := range still {
		if i, ok := known[k]; ok {
			v := &raw.values[i]
			n := uint32(k.words())
			if chunk := raw.words[v.Chunk]; uint64(v.Word)+uint64(n) <= uint64(len(chunk)) {
				next[k] = append([]uint64(nil), chunk[v.Word:v.Word+n]...)
			}
		} else if frames := c.parked.frames[k]; frames != nil {
			next[k] = frames
		}
	}
	c.parked.frames, c.parked.asleep = next, sleepers
	return err
}

// readAsleep reads what can be known of the threads that went off their CPU without their
// stack being kept. What cannot be read is not known.
func (k *kernelSide) readAsleep(p *parked) {
	p.asleep = map[uint32]asleep{}
	if k.asleep == nil {
		return
	}
	r, err := k.asleep.Open()
	if err != nil {
		level.Debug(k.logger).Log("msg", "cannot look at threads that sleep", "err", err)
		return
	}
	defer r.Close()
	in := bufio.NewReaderSize(r, 1<<16)
	for {
		var a bpf.ProfileAsleep
		b := unsafe.Slice((*byte)(unsafe.Pointer(&a)), unsafe.Sizeof(a))
		if _, err := io.ReadFull(in, b); err != nil {
			if !errors.Is(err, io.EOF) {
				level.Debug(k.logger).Log("msg", "cannot look at all threads that sleep", "err", err)
			}
			return
		}
		key := framesKey{user: a.UserHash, kernel: a.KernelHash, kernelLen: uint8(min(int(a.KernelLen), len(a.Kernel)))}
		var frames []uint64
		if a.UserHash != 0 {
			key.userLen = 1
			frames = append(frames, a.Ip)
		}
		p.asleep[a.Tid] = asleep{a.Since, a.Wait, key}
		if p.frames[key] == nil {
			p.frames[key] = append(frames, a.Kernel[:key.kernelLen]...)
		}
	}
}

// parkedChunk is where the frames are that no chunk of the round has.
const parkedChunk = noChunk - 1

// eachThread calls f with the state of each thread that the kernel follows, and forgets
// those that have ended. The kernel goes on meanwhile.
func (c *counter) eachThread(f func(tid uint32, t *bpf.ProfileThreadState)) error {
	p := &c.parked
	const size = 1024
	if p.keys == nil {
		p.keys, p.states = make([]uint32, size), make([]bpf.ProfileThreadState, size)
	}
	threads := c.kern.objs.Threads
	seen := map[uint32]bool{} // a bucket may be read twice
	var gone []uint32
	var cursor ebpf.MapBatchCursor
	for {
		n, err := threads.BatchLookup(&cursor, p.keys, p.states, nil)
		for i := range p.keys[:n] {
			if seen[p.keys[i]] {
				continue
			}
			seen[p.keys[i]] = true
			f(p.keys[i], &p.states[i])
			if p.states[i].Gone != 0 {
				gone = append(gone, p.keys[i])
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the threads that wait: %w", err)
		}
	}
	for _, tid := range gone {
		c.kern.unfollow(tid) // its number may be another thread's by now, which is seen at its next switch
	}
	return nil
}

// mapFollowed maps the counters of the threads that are followed into the agent's memory,
// for both it and the kernel add to them.
func (k *kernelSide) mapFollowed() error {
	size := int(k.objs.Followed.MaxEntries()) * 8
	b, err := unix.Mmap(k.objs.Followed.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the counters of threads: %w", err)
	}
	k.followed = b
	return nil
}

func (k *kernelSide) countFollowed(tid uint32, n int64) {
	slot := int(tid%k.objs.Followed.MaxEntries()) * 8
	atomic.AddInt64((*int64)(unsafe.Pointer(&k.followed[slot])), n)
}

// unfollow forgets a thread.
func (k *kernelSide) unfollow(tid uint32) {
	if k.objs.Threads.Delete(tid) == nil {
		k.countFollowed(tid, -1)
	}
}

// sleeper is a thread that sleeps.
type sleeper struct {
	tid  uint32
	comm string
}

// enterSleepers tells the kernel of the threads of a process that sleep since before it
// was asked to look: their time is counted from now on, their stack is not known.
func (k *kernelSide) enterSleepers(id identity, sleeping []sleeper, now uint64, asleep func(tid uint32) bool) {
	for _, s := range sleeping {
		tid := s.tid
		k.countFollowed(tid, 1)
		var t bpf.ProfileThreadState
		t.Now.Since = now
		t.Now.Key = bpf.ProfileSampleKey{
			Start: uint64(id.start) * nsPerTick, Tgid: id.pid, ExecId: anyExec,
			Kind: uint8(bpf.ProfileSampleKindSAMPLE_OFF_CPU),
		}
		if k.opts.Threads {
			t.Now.Key.Tid = tid
		}
		if k.opts.CommFrame || k.opts.Threads {
			for i := range min(len(s.comm), len(t.Now.Key.Comm)-1) {
				t.Now.Key.Comm[i] = int8(s.comm[i])
			}
		}
		if err := k.objs.Threads.Update(tid, &t, ebpf.UpdateNoExist); err != nil {
			k.countFollowed(tid, -1)
			if !errors.Is(err, ebpf.ErrKeyExist) {
				level.Debug(k.logger).Log("msg", "cannot follow a thread that sleeps", "pid", id.pid, "err", err)
				return
			}
			continue
		}
		if !asleep(tid) {
			// It woke in between, before or after it was entered.
			var now bpf.ProfileThreadState
			if k.objs.Threads.Lookup(tid, &now) == nil && now.Now.Since == t.Now.Since {
				k.unfollow(tid)
			}
		}
	}
}
