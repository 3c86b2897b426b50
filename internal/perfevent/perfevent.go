// Package perfevent opens the kernel's perf events that the agent needs
// (perf_event_open(2)): the clock that drives the sampler, and the side-band
// records that tell which files a process maps. It never samples into a ring.
//
// A short glossary, for the kernel's terms are muddled here:
//
//	event     what perf_event_open returns a descriptor of; counts something
//	dummy     a software event that never counts; it exists for its records
//	side-band records that are written when a process maps, forks, execs or exits,
//	          whether or not the event counts (PERF_RECORD_MMAP2, _COMM, …)
package perfevent

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Event is an open perf event. It is not safe for concurrent use.
type Event struct {
	fd  int
	cpu int
}

// OpenClock opens the software event cpu-clock on one CPU, for all processes but
// the idle task, with a fixed period. It is off until Enable. Requires
// CAP_PERFMON, or CAP_SYS_ADMIN before Linux 5.8.
func OpenClock(cpu int, period time.Duration) (*Event, error) {
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Sample: uint64(period.Nanoseconds()),
		Bits:   unix.PerfBitDisabled | unix.PerfBitExcludeIdle,
	}
	return open(&attr, cpu)
}

func open(attr *unix.PerfEventAttr, cpu int) (*Event, error) {
	attr.Size = uint32(unix.PERF_ATTR_SIZE_VER5)
	fd, err := unix.PerfEventOpen(attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("perf_event_open on CPU %d: %w", cpu, err)
	}
	return &Event{fd: fd, cpu: cpu}, nil
}

// CPU is the CPU that the event is on.
func (e *Event) CPU() int { return e.cpu }

// FD is the event's descriptor; the event keeps it.
func (e *Event) FD() int { return e.fd }

// Enable starts the event.
func (e *Event) Enable() error { return e.ioctl("enable", unix.PERF_EVENT_IOC_ENABLE, 0) }

// Disable stops the event. It may be enabled again.
func (e *Event) Disable() error { return e.ioctl("disable", unix.PERF_EVENT_IOC_DISABLE, 0) }

// SetProgram attaches the BPF program with the given descriptor until the event
// is closed. It is the way before perf links (Linux 5.15).
func (e *Event) SetProgram(fd int) error {
	return e.ioctl("set the program of", unix.PERF_EVENT_IOC_SET_BPF, fd)
}

func (e *Event) ioctl(what string, req uint, value int) error {
	if err := unix.IoctlSetInt(e.fd, req, value); err != nil {
		return fmt.Errorf("%s the perf event on CPU %d: %w", what, e.cpu, err)
	}
	return nil
}

// Count reads the event: for a clock, the nanoseconds that it has run.
func (e *Event) Count() (uint64, error) {
	var b [8]byte
	n, err := unix.Read(e.fd, b[:])
	if err != nil || n != len(b) {
		return 0, fmt.Errorf("read the perf event on CPU %d (%d bytes): %w", e.cpu, n, err)
	}
	return binary.NativeEndian.Uint64(b[:]), nil
}

// Close is idempotent.
func (e *Event) Close() error {
	if e.fd < 0 {
		return nil
	}
	err := unix.Close(e.fd)
	e.fd = -1
	return err
}
