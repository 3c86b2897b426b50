package ebpfspy

import (
	"errors"
	"os"
	"strconv"

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
}

// scheduler are the functions through which a thread leaves its CPU; what is inside of
// them is the sampler itself.
var scheduler = map[string]bool{"__schedule": true, "preempt_schedule_irq": true, "schedule": true}

// fromSchedule leaves out the frames of the sampler, inside of the scheduler.
func fromSchedule(kernel []*stack.Location) []*stack.Location {
	const deep = 16 // frames that the sampler may have
	for i, l := range kernel[:min(len(kernel), deep)] {
		if len(l.Lines) > 0 && scheduler[l.Lines[len(l.Lines)-1].Function] {
			return append(kernel[:0], kernel[i:]...)
		}
	}
	return kernel
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
// connection, or where pools park their threads.
func isIdle(wait string, frames []*stack.Location) bool {
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
			if parking[f] || wait == "network" && (f == "accept" || f == "accept4" || f == "inet_csk_accept") {
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
				return // no more than an estimate of what can be counted
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
