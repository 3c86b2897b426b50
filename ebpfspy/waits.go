package ebpfspy

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/go-kit/log/level"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/sd"
)

// Waits are the names of why a thread is off its CPU. The order is that of enum
// wait_cause of c/spanflame.h.
var Waits = [bpf.ProfileWaitCauseWAIT_MAX]string{
	bpf.ProfileWaitCauseWAIT_OTHER:      "other",
	bpf.ProfileWaitCauseWAIT_LOCK:       "lock",
	bpf.ProfileWaitCauseWAIT_DISK:       "disk",
	bpf.ProfileWaitCauseWAIT_NETWORK:    "network",
	bpf.ProfileWaitCauseWAIT_SLEEP:      "sleep",
	bpf.ProfileWaitCauseWAIT_PIPE:       "pipe",
	bpf.ProfileWaitCauseWAIT_POLL:       "poll",
	bpf.ProfileWaitCauseWAIT_PAGE_FAULT: "page_fault",
	bpf.ProfileWaitCauseWAIT_RUN_QUEUE:  "run_queue",
	bpf.ProfileWaitCauseWAIT_RESTARTED:  "", // one of the others
}

// waitOf is the name of a cause. A system call that a signal interrupted, and that the
// kernel restarts with the time that is left, has lost its number (restart_syscall(2)): the
// functions of the kernel that it is in tell what it was, or nothing does.
func waitOf(cause uint8, frames []*stack.Location) string {
	if cause != uint8(bpf.ProfileWaitCauseWAIT_RESTARTED) {
		return Waits[min(cause, uint8(len(Waits)-1))]
	}
	for _, l := range frames {
		if l.Mapping == nil || !strings.HasPrefix(l.Mapping.File, "[") {
			break // not the kernel's
		}
		f := l.Lines[0].Function
		switch {
		case strings.Contains(f, "nanosleep"), strings.Contains(f, "nsleep"):
			return "sleep"
		case strings.HasPrefix(f, "futex_"):
			return "lock"
		case f == "do_restart_poll", f == "do_sys_poll", f == "do_poll":
			return "poll"
		}
	}
	return "other"
}

// scheduler are the functions through which a thread leaves its CPU; what is inside of
// them is the sampler itself.
var scheduler = map[string]bool{"__schedule": true, "preempt_schedule_irq": true, "schedule": true}

// waking are functions in which a thread wakes another; what is inside of them is the
// sampler itself.
var waking = map[string]bool{"try_to_wake_up": true, "ttwu_do_activate": true, "ttwu_state_match": true, "wake_up_process": true, "default_wake_function": true}

// from leaves out the frames of the sampler, inside of the first of some functions.
func from(kernel []*stack.Location, functions map[string]bool) []*stack.Location {
	const deep = 16 // frames that the sampler may have
	for i, l := range kernel[:min(len(kernel), deep)] {
		if len(l.Lines) > 0 && functions[l.Lines[len(l.Lines)-1].Function] {
			return append(kernel[:0], kernel[i:]...)
		}
	}
	return kernel
}

// wakersOf finds the stacks of those who woke threads, by their number.
func wakersOf(raw *rawRound) map[uint64]int {
	var wakers map[uint64]int
	for i := range raw.keys {
		if bpf.ProfileSampleKind(raw.keys[i].Kind) == bpf.ProfileSampleKindSAMPLE_WAKER {
			if wakers == nil {
				wakers = map[uint64]int{}
			}
			wakers[raw.keys[i].Waker] = i
		}
	}
	return wakers
}

// maxWakerFrames bounds the frames of a waker, for both stacks must fit in a profile.
const maxWakerFrames = 127

// withWaker puts the stack of the one who woke a thread above that of the thread: its
// frames in reverse, so that the two meet, and its name at the top. An interrupt has no
// thread: who was interrupted has nothing to do with it.
func (s *Session) withWaker(sleeper []*stack.Location, raw *rawRound, i int, subjects map[subjectKey]*subject) []*stack.Location {
	key := &raw.keys[i]
	st, ok := raw.frames(i)
	if !ok {
		return sleeper
	}
	name := commString(key.Comm)
	in := s.resolveKernel(nil, st.kernel, waking)
	interrupted := slices.IndexFunc(in, isInterrupt)
	switch sub := subjects[subjectOf(key)]; {
	case interrupted >= 0:
		in, name = in[:interrupted+1], "[interrupt]"
	case sub != nil && sub.maps != nil:
		in, _ = s.resolveUser(in, raw, key, sub, st)
	}
	in = in[:min(len(in), maxWakerFrames)]
	slices.Reverse(in)
	out := append([]*stack.Location{s.locs.comm(name)}, in...)
	return append(append(out, s.locs.comm("[woken by]")), sleeper...)
}

// isInterrupt says whether a function of the kernel is where an interrupt begins.
func isInterrupt(l *stack.Location) bool {
	if len(l.Lines) == 0 {
		return false
	}
	f := l.Lines[len(l.Lines)-1].Function
	for _, prefix := range []string{"sysvec_", "asm_sysvec_", "asm_common_interrupt", "common_interrupt", "__do_softirq", "handle_softirqs", "el1_interrupt", "el0_interrupt", "gic_handle_irq", "do_idle"} {
		if strings.HasPrefix(f, prefix) {
			return true
		}
	}
	return false
}

// parking are functions in which threads wait for work to be given to them, and not for
// others to finish some.
var parking = map[string]bool{
	// A condition, of which the pools of threads are made.
	"pthread_cond_wait": true, "pthread_cond_timedwait": true, "pthread_cond_clockwait": true,
	"___pthread_cond_wait": true, "___pthread_cond_timedwait64": true, "___pthread_cond_clockwait64": true, "__pthread_cond_wait": true,
	"pthread_cond_wait@@GLIBC_2.3.2": true, "pthread_cond_timedwait@@GLIBC_2.3.2": true,
	// Go's threads without a goroutine to run, and its monitor.
	"runtime.findRunnable": true, "runtime.findrunnable": true, "runtime.stopm": true, "runtime.sysmon": true,
	"runtime.templateThread": true, "runtime.stoplockedm": true,
	// Java's threads without a task.
	"Unsafe_Park": true,
}

// isIdle says whether a thread waits for work: for any of several events, for a
// connection, or where pools park their threads. A thread that is in a Python function is in no
// pool of the kind: it waits for the interpreter's lock, or for what the function called.
func isIdle(wait string, frames []*stack.Location, python bool) bool {
	switch wait {
	case "poll":
		return true
	case "lock", "sleep", "network":
	default:
		return false
	}
	for _, l := range frames {
		for i := range l.Lines {
			f := l.Lines[i].Function
			if parking[f] && !python || wait == "network" && (f == "accept" || f == "accept4" || f == "inet_csk_accept") {
				return true
			}
		}
	}
	return false
}

// enterSleepers finds the threads of targets that sleep already. The caller holds life.
func (s *Session) enterSleepers() {
	now := s.startNS
	var subs []*subject
	s.mu.Lock()
	for _, p := range s.table.byID {
		if p.exited == 0 {
			subs = append(subs, &subject{proc: p, img: p.current(), maps: p.current().maps})
		}
	}
	s.mu.Unlock()
	for _, sub := range subs {
		if s.findTarget(sub); sub.reason == ledger.NoTarget || len(sub.maps.list) == 0 {
			continue // a thread of the kernel has no mappings
		}
		id := sub.proc.id
		dir := s.procfs + "/" + strconv.FormatUint(uint64(id.pid), 10) + "/task"
		asleep := func(tid uint32) bool {
			t, err := sd.ReadThread(s.procfs, sd.PID(id.pid), int(tid))
			return err == nil && t.Asleep
		}
		tids, err := listPIDs(dir)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				level.Debug(s.logger).Log("msg", "cannot see which threads sleep already", "pid", id.pid, "err", err)
			}
			continue
		}
		var sleeping []sleeper
		for _, tid := range tids {
			if t, err := sd.ReadThread(s.procfs, sd.PID(id.pid), int(tid)); err == nil && t.Asleep {
				sleeping = append(sleeping, sleeper{tid, t.Comm})
			}
		}
		s.kern.enterSleepers(id, sleeping, now, asleep)
	}
}
