package targetmem

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Reading a page may take as long as a process wants: one that it has mapped from a file system
// of its own making (FUSE) is there when the process says so.
const (
	slowRead   = 20 * time.Millisecond  // more than this, and the process is left alone for a while
	maxRead    = 100 * time.Millisecond // for longer nobody waits
	barredFor  = 10 * time.Second
	maxBarred  = 1024
	maxWaiting = 32 // reads that nobody waits for any more
)

// Errors of Memory.ReadAt.
var (
	ErrSlow = errors.New("the process's memory takes too long to read")
	ErrBusy = errors.New("too many reads of other processes' memory take too long")
)

// Process is one whose memory is read: PIDs are used again.
type Process struct {
	PID   uint32
	Start uint64 // in clock ticks since boot
}

// Memory reads the memory of a process by address, that of the program that it ran when it was
// opened, and stops nothing. A read takes 100 ms at most; after a slow one the process is not
// read for 10 s. It is safe for concurrent use.
type Memory struct {
	of     Process
	from   io.ReaderAt
	closer io.Closer
}

// Open opens the memory of a process (proc(5), /proc/PID/mem), which needs CAP_SYS_PTRACE.
// Whether the PID is still that process's must be looked up afterwards.
func Open(procfs string, of Process) (*Memory, error) {
	f, err := os.Open(filepath.Join(procfs, strconv.Itoa(int(of.PID)), "mem"))
	if err != nil {
		return nil, err
	}
	return &Memory{of, f, f}, nil
}

// Close does not wait for reads.
func (m *Memory) Close() error { return m.closer.Close() }

// barred are the processes whose memory is not read for now.
var barred = struct {
	sync.Mutex
	until   map[Process]time.Time
	waiting int
}{until: map[Process]time.Time{}}

// ReadAt fills b from an address.
func (m *Memory) ReadAt(b []byte, at int64) (int, error) {
	begun := time.Now()
	if err := admit(m.of, begun); err != nil {
		return 0, err
	}
	type result struct {
		b   []byte
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() { // ends with the read; maxWaiting bounds those that nobody waits for
		r := result{b: make([]byte, len(b))}
		r.n, r.err = m.from.ReadAt(r.b, at)
		done <- r
	}()
	timer := time.NewTimer(maxRead)
	defer timer.Stop()
	select {
	case r := <-done:
		if time.Since(begun) > slowRead {
			bar(m.of, nil)
		}
		return copy(b, r.b[:r.n]), r.err
	case <-timer.C:
		bar(m.of, func() { <-done })
		return 0, ErrSlow
	}
}

func admit(p Process, now time.Time) error {
	barred.Lock()
	defer barred.Unlock()
	if until, ok := barred.until[p]; ok {
		if now.Before(until) {
			return ErrSlow
		}
		delete(barred.until, p)
	}
	if barred.waiting >= maxWaiting {
		return ErrBusy
	}
	return nil
}

// bar leaves a process alone for a while, and until wait returns, if there is a read that nobody
// waits for.
func bar(p Process, wait func()) {
	barred.Lock()
	defer barred.Unlock()
	now := time.Now()
	if len(barred.until) >= maxBarred {
		for q, until := range barred.until {
			if now.After(until) {
				delete(barred.until, q)
			}
		}
	}
	if len(barred.until) < maxBarred {
		barred.until[p] = now.Add(barredFor)
	}
	if wait == nil {
		return
	}
	barred.waiting++
	go func() {
		wait()
		barred.Lock()
		barred.waiting--
		barred.Unlock()
	}()
}
