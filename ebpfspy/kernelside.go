package ebpfspy

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/cpus"
	"github.com/spanflame/spanflame/internal/perfevent"
)

// StartError says which step of the start failed, and what to do.
type StartError struct {
	Step string // e.g. "load the kernel programs"
	Hint string // what to do, "" if nothing is known to help
	// VerifierLog is what the kernel's verifier said, if it was the verifier that
	// refused. It is long, and not part of Error.
	VerifierLog string
	Err         error
}

func (e *StartError) Error() string {
	s := e.Step + ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

func (e *StartError) Unwrap() error { return e.Err }

func startError(step string, err error) *StartError {
	e := &StartError{Step: step, Err: err}
	var ve *ebpf.VerifierError
	switch {
	case errors.As(err, &ve):
		e.VerifierLog = fmt.Sprintf("%+v", ve)
		e.Hint = "the kernel refused the program: please report it with the output of `spanflame doctor`"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Hint = "this needs root, or the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE; `spanflame doctor` says which is missing"
	case errors.Is(err, ebpf.ErrNotSupported):
		e.Hint = "the kernel lacks what this needs: Linux 5.10 or newer with BTF; `spanflame doctor` says what works here"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		e.Hint = "raise the limit of open files (LimitNOFILE= in the unit, or ulimit -n)"
	}
	return e
}

// kernelSide is all that the kernel holds for the session: programs, maps, links
// and events. It is made whole or not at all, and closed whole.
type kernelSide struct {
	logger       log.Logger
	metrics      *metrics
	objs         bpf.ProfileObjects
	inner        [rounds]*ebpf.Map
	links        []link.Link
	offLinks     []link.Link // of the off-CPU sampler, while it runs
	waking       link.Link   // of its part that is called when threads are woken; nil: it is not
	waker        bool        // whether it is to be known by whom
	offCPU       bool        // whether there is one
	followed     []byte      // its counters of threads
	asleep       *link.Iter  // reads what is known of threads that sleep; nil: it cannot
	clocks       map[int]*clock
	sideband     map[int]*perfevent.Sideband
	ring         *ringbuf.Reader
	unwinder     *unwinder
	interpreters *interpreters
	// excludedEpoch is that of the kernel's; pumpMu guards it.
	excludedEpoch uint32
	chunks        int // a round
	opts          Options
	usePerf       bool // whether the kernel has perf links (Linux 5.15)
	paused        bool // the clocks were closed on purpose: nobody opens them anew
}

// clock is the sampler of one CPU.
type clock struct {
	event *perfevent.Event
	link  link.Link // nil where the program is attached by ioctl
	count uint64    // of the event when it was last looked at
}

// stopped says whether a clock that was enabled has stood still since it was last
// asked. So it does once its CPU has been offline, even if that is back.
func (c *clock) stopped() bool {
	n, err := c.event.Count()
	still := err != nil || n == c.count && n != 0
	c.count = n
	return still
}

func (c *clock) close() error {
	var err error
	if c.link != nil {
		err = c.link.Close()
	}
	return errors.Join(err, c.event.Close())
}

const rounds = 2

// chunkWords is CHUNK_WORDS of c/spanflame.h.
const chunkWords = len(bpf.ProfileChunk{}.Words)

const noChunk = ^uint32(0) // NO_CHUNK of c/spanflame.h

// openKernelSide loads and attaches everything. The clocks are not yet running.
func openKernelSide(logger log.Logger, m *metrics, opts Options) (k *kernelSide, err error) {
	k = &kernelSide{
		logger: logger, metrics: m, opts: opts, usePerf: true,
		excludedEpoch: 1,
		clocks:        map[int]*clock{}, sideband: map[int]*perfevent.Sideband{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
			k = nil
		}
	}()
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"raise the limit of locked memory", k.raiseMemlock},
		{"load the kernel programs", k.load},
		{"prepare the maps", k.prepare},
		{"follow processes", k.followProcesses},
		{"open the sampler on each CPU", k.syncCPUs},
	} {
		if err := s.do(); err != nil {
			return k, startError(s.name, err)
		}
	}
	return k, nil
}

// raiseMemlock is only needed before Linux 5.11, where maps counted as locked
// memory. cilium/ebpf finds out.
func (k *kernelSide) raiseMemlock() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		// The load will say if it really was needed.
		level.Debug(k.logger).Log("msg", "cannot raise the limit of locked memory", "err", err)
	}
	return nil
}

func (k *kernelSide) load() error {
	spec, err := bpf.LoadProfile()
	if err != nil {
		return fmt.Errorf("read the programs: %w", err)
	}
	k.chunks = int(k.opts.ArenaBytes) / (chunkWords * 8)

	inner := spec.Maps[bpf.ProfileMapCounts].InnerMap
	inner.MaxEntries = uint32(k.opts.MaxStacks)
	spec.Maps[bpf.ProfileMapArena].MaxEntries = uint32(rounds * k.chunks)
	spec.Maps[bpf.ProfileMapFreeChunks0].MaxEntries = uint32(k.chunks)
	spec.Maps[bpf.ProfileMapFreeChunks1].MaxEntries = uint32(k.chunks)
	spec.Maps[bpf.ProfileMapExcluded].MaxEntries = uint32(k.opts.MaxExcluded)
	spec.Maps[bpf.ProfileMapProcessEvents].MaxEntries = uint32(k.opts.EventRingBytes)
	spec.Maps[bpf.ProfileMapProcesses].MaxEntries = uint32(max(k.opts.MaxProcesses/2, 64))
	spec.Maps[bpf.ProfileMapPythonProcesses].MaxEntries = 64
	spec.Maps[bpf.ProfileMapPythonThreads].MaxEntries = 64
	spec.Maps[bpf.ProfileMapPythonCodes].MaxEntries = 64
	if !k.opts.Python.Disabled {
		spec.Maps[bpf.ProfileMapPythonProcesses].MaxEntries = uint32(max(k.opts.MaxProcesses/2, 64))
		spec.Maps[bpf.ProfileMapPythonThreads].MaxEntries = uint32(k.opts.Python.MaxThreads)
		spec.Maps[bpf.ProfileMapPythonCodes].MaxEntries = uint32(k.opts.Python.MaxFunctions)
	}
	segments := spec.Maps[bpf.ProfileMapSegments]
	segments.MaxEntries = uint32(max(k.opts.TableBytes/(int64(segments.InnerMap.MaxEntries)*nodeBytes), 1))

	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return fmt.Errorf("draw the hash seed: %w", err)
	}
	if err := spec.Variables[bpf.ProfileVarHashSeed].Set(binary.NativeEndian.Uint64(seed[:])); err != nil {
		return fmt.Errorf("set the hash seed: %w", err)
	}

	contents := make([]ebpf.MapKV, rounds)
	for i := range k.inner {
		m, err := ebpf.NewMap(inner.Copy())
		if err != nil {
			return fmt.Errorf("make the table of counts: %w", err)
		}
		k.inner[i] = m
		contents[i] = ebpf.MapKV{Key: uint32(i), Value: m}
	}
	spec.Maps[bpf.ProfileMapCounts].Contents = contents
	if k.offCPU = k.opts.OffCPU.Enabled; k.offCPU {
		spec.Maps[bpf.ProfileMapThreads].MaxEntries = uint32(k.opts.OffCPU.MaxThreads)
	} else {
		withoutOffCPU(spec)
	}
	err = spec.LoadAndAssign(&k.objs, nil)
	if err != nil && k.offCPU {
		// Is it only that?
		withoutOffCPU(spec)
		if spec.LoadAndAssign(&k.objs, nil) == nil {
			level.Warn(k.logger).Log("msg", "off-CPU profiles are not possible on this kernel; all others are", "err", err)
			k.offCPU, err = false, nil
		}
	}
	if err != nil {
		return err
	}
	if k.offCPU {
		if err := k.mapFollowed(); err != nil {
			return err
		}
	}
	k.interpreters = newInterpreters(k.logger, k.metrics, &k.objs, k.opts.ProcFS, k.opts.Python.Disabled)
	k.unwinder, err = newUnwinder(k.logger, k.metrics, &k.objs, k.interpreters, segments.InnerMap, segments.MaxEntries)
	return err
}

func (k *kernelSide) prepare() error {
	for r := uint32(0); r < rounds; r++ {
		if err := k.resetArena(r, k.allChunks(r)); err != nil {
			return err
		}
	}
	return k.setVariables(k.opts)
}

// setVariables changes what the running programs do.
func (k *kernelSide) setVariables(o Options) error {
	for _, v := range []struct {
		variable *ebpf.Variable
		value    bool
	}{
		{k.objs.WantUser, !o.DisableUser},
		{k.objs.WantKernel, !o.DisableKernel},
		{k.objs.WantTid, o.Threads},
		{k.objs.WantComm, o.CommFrame || o.Threads},
	} {
		if err := v.variable.Set(v.value); err != nil {
			return err
		}
	}
	return k.setOffCPU(o.OffCPU)
}

func (k *kernelSide) allChunks(r uint32) []uint32 {
	ids := make([]uint32, k.chunks)
	for i := range ids {
		ids[i] = r*uint32(k.chunks) + uint32(i)
	}
	return ids
}

// resetArena gives the chunks of a round back and lets no CPU go on in one of them.
func (k *kernelSide) resetArena(r uint32, ids []uint32) error {
	free := k.objs.FreeChunks0
	if r == 1 {
		free = k.objs.FreeChunks1
	}
	for _, id := range ids {
		if err := free.Put(nil, id); err != nil {
			return fmt.Errorf("give back chunk %d: %w", id, err)
		}
	}
	n, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	cursors := make([]bpf.ProfileChunkCursor, n)
	for i := range cursors {
		cursors[i].Chunk = noChunk
	}
	return k.objs.Cursors.Put(r, cursors)
}

func (k *kernelSide) followProcesses() error {
	for _, tp := range []struct {
		name string
		prog *ebpf.Program
	}{
		{"sched_process_fork", k.objs.ProcessFork},
		{"sched_process_exec", k.objs.ProcessExec},
		{"sched_process_exit", k.objs.ProcessExit},
	} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tp.name, Program: tp.prog})
		if err != nil {
			return fmt.Errorf("attach to the raw tracepoint %s: %w", tp.name, err)
		}
		k.links = append(k.links, l)
	}
	ring, err := ringbuf.NewReader(k.objs.ProcessEvents)
	if err != nil {
		return fmt.Errorf("open the ring of process events: %w", err)
	}
	k.ring = ring
	return nil
}

// reviveCPUs closes the events of CPUs that were offline for so short a time that
// nobody noticed; syncCPUs opens them anew.
func (k *kernelSide) reviveCPUs() {
	for cpu, c := range k.clocks {
		if !c.stopped() {
			continue
		}
		level.Info(k.logger).Log("msg", "the sampler of a CPU has stopped; opening it anew", "cpu", cpu)
		delete(k.clocks, cpu)
		if err := c.close(); err != nil {
			level.Warn(k.logger).Log("msg", "cannot close the sampler of a CPU", "cpu", cpu, "err", err)
		}
	}
	k.dropSidebands()
}

// syncCPUs opens events on the CPUs that have come online and closes those of the
// CPUs that have gone. The new ones are off until enable.
func (k *kernelSide) syncCPUs() error {
	online, err := cpus.Online()
	if err != nil {
		return err
	}
	on := make(map[int]bool, len(online))
	for _, cpu := range online {
		on[cpu] = true
		if k.sideband[cpu] == nil {
			s, err := perfevent.OpenSideband(cpu, k.opts.SidebandBytes)
			if err != nil {
				return fmt.Errorf("open the side-band: %w", err)
			}
			k.sideband[cpu] = s
		}
		if k.clocks[cpu] == nil {
			c, err := k.openClock(cpu)
			if err != nil {
				return err
			}
			k.clocks[cpu] = c
		}
	}
	for cpu, c := range k.clocks {
		if !on[cpu] {
			delete(k.clocks, cpu)
			if err := c.close(); err != nil {
				level.Warn(k.logger).Log("msg", "cannot close the sampler of a CPU that has gone", "cpu", cpu, "err", err)
			}
		}
	}
	return nil
}

// dropSidebands closes the rings of CPUs that have gone, once they have been read.
func (k *kernelSide) dropSidebands() {
	for cpu, s := range k.sideband {
		if k.clocks[cpu] == nil {
			delete(k.sideband, cpu)
			if err := s.Close(); err != nil {
				level.Warn(k.logger).Log("msg", "cannot close the side-band of a CPU that has gone", "cpu", cpu, "err", err)
			}
		}
	}
}

func (k *kernelSide) openClock(cpu int) (*clock, error) {
	ev, err := perfevent.OpenClock(cpu, k.opts.period())
	if err != nil {
		return nil, fmt.Errorf("open the clock: %w", err)
	}
	c := &clock{event: ev}
	if k.usePerf {
		l, err := link.AttachRawLink(link.RawLinkOptions{Target: ev.FD(), Program: k.objs.OnCpu, Attach: ebpf.AttachPerfEvent})
		switch {
		case err == nil:
			c.link = l
			return c, nil
		case errors.Is(err, unix.EPERM):
			return nil, errors.Join(fmt.Errorf("attach the sampler on CPU %d: %w", cpu, err), ev.Close())
		}
		k.usePerf = false
	}
	if err := ev.SetProgram(k.objs.OnCpu.FD()); err != nil {
		return nil, errors.Join(fmt.Errorf("attach the sampler: %w", err), ev.Close())
	}
	return c, nil
}

// enable starts the samplers, which may be running already.
func (k *kernelSide) enable() error {
	if !k.opts.DisableCPU {
		for _, c := range k.clocks {
			if err := c.event.Enable(); err != nil {
				return err
			}
		}
	}
	k.attachOffCPU()
	return nil
}

// closeClocks stops sampling until reopenClocks.
func (k *kernelSide) closeClocks() error {
	k.paused = true
	var errs []error
	for cpu, c := range k.clocks {
		errs = append(errs, c.close())
		delete(k.clocks, cpu)
	}
	return errors.Join(errs...)
}

// reopenClocks goes on, at the frequency of opts, after closeClocks.
func (k *kernelSide) reopenClocks(opts Options) error {
	k.opts = opts
	k.paused = false
	if err := k.syncCPUs(); err != nil {
		return err
	}
	return k.enable()
}

// close closes everything that was opened, whatever that is. It is idempotent.
func (k *kernelSide) close() error {
	errs := []error{k.closeClocks(), k.detachOffCPU()}
	for _, l := range k.links {
		errs = append(errs, l.Close())
	}
	k.links = nil
	for cpu, s := range k.sideband {
		errs = append(errs, s.Close())
		delete(k.sideband, cpu)
	}
	if k.ring != nil {
		if err := k.ring.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
		k.ring = nil
	}
	if k.unwinder != nil {
		errs = append(errs, k.unwinder.close())
	}
	if k.followed != nil {
		errs = append(errs, unix.Munmap(k.followed))
		k.followed = nil
	}
	errs = append(errs, k.objs.Close())
	for i, m := range k.inner {
		if m != nil {
			errs = append(errs, m.Close())
			k.inner[i] = nil
		}
	}
	return errors.Join(errs...)
}
