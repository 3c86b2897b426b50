package ebpfspy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/go-kit/log/level"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/perfevent"
	"github.com/spanflame/spanflame/sd"
)

const (
	// Events are taken in at most this often: soon, so that the kernel knows what a new
	// process has mapped before it is sampled for the first time, but seldom when there
	// are many. A process that lives shorter is known from its events and from its parent
	// alone.
	pumpInterval     = time.Millisecond
	busyPumpInterval = 5 * time.Millisecond
	busyEvents       = 100 // in one pumpInterval
	// How often to look for CPUs that came or went.
	cpuInterval = time.Second
	// How often to compare the table of processes with /proc.
	repairInterval = time.Minute
	// Processes whose facts are read from /proc at once.
	maxReadsPerPump = 64
)

// timed is an event of either source.
type timed struct {
	time    uint64
	process *bpf.ProfileProcessEvent
	record  perfevent.Record
}

// monotonic is the kernel's CLOCK_MONOTONIC, in ns.
func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // cannot fail for this clock
	}
	return uint64(ts.Nano())
}

// pumpLoop takes in events as they come, until ctx ends.
func (s *Session) pumpLoop(ctx context.Context) {
	defer s.wg.Done()
	hurry()
	lastCPUs, lastRepair := time.Now(), time.Now()
	taken := 0
	for ctx.Err() == nil {
		err := s.waiter.wait(cpuInterval)
		if err != nil {
			level.Error(s.logger).Log("msg", "cannot wait for the kernel's events; they are polled", "err", err)
		}
		interval := pumpInterval
		if taken > busyEvents {
			interval = busyPumpInterval
		}
		// In this thread: the runtime's timers are another one's work, that has to wait for
		// its turn where every CPU is busy.
		nap := unix.NsecToTimespec(interval.Nanoseconds())
		_ = unix.Nanosleep(&nap, nil)
		if ctx.Err() != nil {
			return
		}
		taken = s.pump()
		if time.Since(lastCPUs) >= cpuInterval {
			lastCPUs = time.Now()
			s.followCPUs()
		}
		if s.lost.Swap(false) || time.Since(lastRepair) >= repairInterval {
			lastRepair = time.Now()
			s.repair()
		}
	}
}

// hurry raises the priority of the goroutine's thread, if that is allowed: where every
// CPU is busy, new processes would run for several clock ticks before the kernel is told
// what they have mapped. The thread takes little time; it ends with the goroutine.
func hurry() {
	const niceness = -20
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness)
}

// pump reads all that the rings hold and applies what is not newer than the
// reading, in the order of time: an event of one CPU may be read before an older
// one of another. It returns how many events that was.
func (s *Session) pump() int {
	s.pumpMu.Lock()
	defer s.pumpMu.Unlock()
	if s.kern == nil {
		return 0
	}
	n := s.pumpOnce()
	if len(s.pending)+len(s.asks) > 0 {
		n += s.pumpOnce() // what came while the rings were read is in order by now
	}
	return n
}

// pumpOnce applies the events that had happened before the rings were read, in order. The
// caller holds pumpMu.
func (s *Session) pumpOnce() int {
	now := monotonic()
	s.readRings()
	slices.SortStableFunc(s.pending, func(a, b timed) int {
		switch {
		case a.time < b.time:
			return -1
		case a.time > b.time:
			return 1
		}
		return 0
	})
	n := 0
	s.mu.Lock()
	for ; n < len(s.pending) && s.pending[n].time <= now; n++ {
		if e := s.pending[n]; e.process != nil {
			s.table.event(e.process)
			if bpf.ProfileProcessEventKind(e.process.Kind) == bpf.ProfileProcessEventKindPROCESS_EXEC {
				s.reconsider(e.process.Tgid)
			}
		} else {
			s.table.record(e.record)
		}
	}
	reads := s.table.toRead
	files := s.table.newFiles
	s.table.toRead, s.table.newFiles = nil, nil
	s.mu.Unlock()
	s.tellKernel(now)
	s.pending = append(s.pending[:0], s.pending[n:]...)
	if cap(s.pending) > 1<<16 {
		s.pending = slices.Clone(s.pending)
	}

	s.kern.interpreters.readSoon(s.newCodes, s.lives)
	s.newCodes = s.newCodes[:0]
	s.holdFiles(files)
	if len(reads) > maxReadsPerPump {
		reads = reads[len(reads)-maxReadsPerPump:]
	}
	for _, p := range reads {
		s.readFacts(p)
	}
	return n
}

func (s *Session) readRings() {
	for _, sb := range s.kern.sideband {
		err := sb.Read(func(r perfevent.Record) {
			if r.Lost > 0 {
				s.metrics.lostRecords.Add(float64(r.Lost))
				s.lost.Store(true)
				return
			}
			s.pending = append(s.pending, timed{time: r.Time, record: r})
		})
		if err != nil {
			s.lost.Store(true)
			level.Warn(s.logger).Log("msg", "reading mapping records failed; /proc is read instead", "err", err)
		}
	}
	if !s.kern.paused {
		s.kern.dropSidebands()
	}

	s.kern.ring.SetDeadline(time.Unix(1, 0)) // do not wait
	var rec ringbuf.Record
	for {
		if err := s.kern.ring.ReadInto(&rec); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, ringbuf.ErrClosed) {
				level.Warn(s.logger).Log("msg", "reading process events failed", "err", err)
			}
			break
		}
		if len(rec.RawSample) < int(unsafe.Sizeof(bpf.ProfileProcessEvent{})) {
			continue
		}
		e := decodeProcessEvent(rec.RawSample)
		switch bpf.ProfileProcessEventKind(e.Kind) {
		case bpf.ProfileProcessEventKindASK_PROCESS, bpf.ProfileProcessEventKindASK_FILE:
			s.asks = append(s.asks, e)
			continue
		case bpf.ProfileProcessEventKindASK_CODE:
			s.newCodes = append(s.newCodes, e.Address)
			continue
		}
		s.pending = append(s.pending, timed{time: e.Time, process: &e})
	}
	if n, err := s.kern.lostProcessEvents(); err == nil && n > s.lostEvents {
		s.metrics.lostProcessEvents.Add(float64(n - s.lostEvents))
		s.lostEvents = n
		s.lost.Store(true)
	}
}

func decodeProcessEvent(b []byte) bpf.ProfileProcessEvent {
	var e bpf.ProfileProcessEvent
	// The struct has no padding (checked by bpf2go's generated layout).
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e)), b)
	return e
}

func (k *kernelSide) lostProcessEvents() (uint64, error) {
	var perCPU []uint64
	if err := k.objs.LostProcessEvents.Lookup(uint32(0), &perCPU); err != nil {
		return 0, err
	}
	var n uint64
	for _, v := range perCPU {
		n += v
	}
	return n, nil
}

// holdFiles opens files that were never seen before, while a process maps them.
func (s *Session) holdFiles(files []newFile) {
	for _, n := range files {
		f, err := openMapped(s.procfs, n.pid, n.start, n.end)
		if err != nil {
			f, err = root{s.procfs, n.pid}.Open(n.f.path)
		}
		if err != nil {
			continue // a process that is gone already is normal
		}
		var st unix.Stat_t
		if unix.Fstat(int(f.Fd()), &st) != nil || st.Ino != n.f.id.Ino {
			f.Close()
			continue
		}
		h := hold(f)
		s.mu.Lock()
		if s.held < maxHeld && n.f.held == nil {
			n.f.held, h = h, nil
			n.f.heldSince = s.table.round
			s.held++
		}
		s.mu.Unlock()
		h.close()
	}
}

// releaseHeld closes the files that have been held for a whole round: what was
// sampled in them has its names by now.
func (s *Session) releaseHeld(round uint64) {
	var drop []*heldFile
	s.mu.Lock()
	for _, f := range s.table.files {
		if f.held != nil && f.heldSince < round {
			drop = append(drop, f.held)
			f.held = nil
			s.held--
		}
	}
	s.mu.Unlock()
	for _, h := range drop {
		h.close()
	}
}

// readFacts reads what /proc says of a process whose program is new.
func (s *Session) readFacts(p *process) {
	s.mu.Lock()
	img, id := p.current(), p.id
	done := img.hasRead
	img.hasRead = true
	s.mu.Unlock()
	if done {
		return
	}
	facts, err := sd.ReadProcess(s.procfs, sd.PID(id.pid))
	if err != nil || facts.Start != id.start {
		return // gone: what is known from its events has to do
	}
	s.mu.Lock()
	if p.current() == img {
		img.facts = facts
		img.targetEpoch = 0
	}
	s.mu.Unlock()
}

// scan enters the processes that were there before the session, and those whose
// events were lost.
func (s *Session) scan() error {
	pids, err := listPIDs(s.procfs)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := s.scanProcess(pid); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, sd.ErrProcessGone) && !errors.Is(err, unix.ESRCH) {
			level.Debug(s.logger).Log("msg", "cannot read a process", "pid", pid, "err", err)
		}
	}
	return nil
}

func (s *Session) scanProcess(pid uint32) error {
	at := monotonic()
	facts, err := sd.ReadProcess(s.procfs, sd.PID(pid))
	if err != nil {
		return err
	}
	maps, err := readMaps(s.procfs, pid)
	if err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	// A process whose mappings may not be read is profiled all the same: its frames
	// in the kernel are known, those of its own are not.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.scanned(facts, maps, at)
	return nil
}

// repair compares the table with /proc: a lost event must neither keep a process
// from being profiled nor keep one that has gone.
func (s *Session) repair() {
	pids, err := listPIDs(s.procfs)
	if err != nil {
		level.Warn(s.logger).Log("msg", "cannot list the processes", "err", err)
		return
	}
	s.metrics.repairs.Inc()
	alive := make(map[uint32]bool, len(pids))
	for _, pid := range pids {
		alive[pid] = true
		start, err := sd.ReadStart(s.procfs, sd.PID(pid))
		if err != nil {
			continue
		}
		s.mu.Lock()
		p := s.table.byID[identity{pid, start}]
		stale := p != nil && p.staleMaps
		s.mu.Unlock()
		if p == nil || stale {
			_ = s.scanProcess(pid) // it may have gone since
		}
	}
	now := monotonic()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.table.byID {
		if p.exited == 0 && !alive[p.id.pid] {
			p.exited = now
			if p.wanted {
				s.table.ended = append(s.table.ended, p.id)
			}
		}
	}
}

func (s *Session) followCPUs() {
	s.pumpMu.Lock()
	defer s.pumpMu.Unlock()
	if s.kern == nil || s.kern.paused {
		return
	}
	before := len(s.kern.clocks)
	s.kern.reviveCPUs()
	revived := len(s.kern.clocks) != before
	err := s.kern.syncCPUs()
	if err == nil {
		err = s.kern.enable()
	}
	if err != nil {
		level.Warn(s.logger).Log("msg", "cannot follow a change of the online CPUs; trying again", "err", err)
	}
	if revived {
		s.lost.Store(true) // records of the time between
	}
	if n := len(s.kern.clocks); n != before || revived {
		level.Info(s.logger).Log("msg", "the online CPUs changed", "before", before, "now", n)
		if err := s.waiter.watch(s.kern); err != nil {
			level.Warn(s.logger).Log("msg", "cannot watch the events of a new CPU; they are polled", "err", err)
		}
	}
}

func listPIDs(procfs string) ([]uint32, error) {
	d, err := os.Open(procfs)
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list the processes in %s: %w", procfs, err)
	}
	var pids []uint32
	for _, name := range names {
		var pid uint64
		for _, c := range []byte(name) {
			if c < '0' || c > '9' || pid > 1<<31 {
				pid = 0
				break
			}
			pid = pid*10 + uint64(c-'0')
		}
		if pid > 0 && pid <= 1<<31 {
			pids = append(pids, uint32(pid))
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// waiter sleeps until the kernel has events, or until it is woken.
type waiter struct {
	epoll, wakeup int
	watched       map[int]bool
}

func newWaiter() (*waiter, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	w := &waiter{epoll: ep, wakeup: ev, watched: map[int]bool{}}
	if err := w.add(ev); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *waiter) add(fd int) error {
	err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// watch adds the rings of the kernel side. Closed descriptors leave by themselves.
func (w *waiter) watch(k *kernelSide) error {
	errs := []error{w.add(k.objs.ProcessEvents.FD())}
	for _, s := range k.sideband {
		errs = append(errs, w.add(s.FD()))
	}
	return errors.Join(errs...)
}

func (w *waiter) wait(timeout time.Duration) error {
	var events [16]unix.EpollEvent
	n, err := unix.EpollWait(w.epoll, events[:], int(timeout.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		time.Sleep(timeout)
		return fmt.Errorf("epoll_wait: %w", err)
	}
	for _, e := range events[:n] {
		if int(e.Fd) == w.wakeup {
			var b [8]byte
			_, _ = unix.Read(w.wakeup, b[:])
		}
	}
	return nil
}

func (w *waiter) wake() {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	_, _ = unix.Write(w.wakeup, b[:]) // full means that it is awake
}

func (w *waiter) close() {
	unix.Close(w.epoll)
	unix.Close(w.wakeup)
}
