// Package goburn is what the Go workloads of the truth tests share: burning a known
// amount of CPU. All time is that of the thread's own clock, so that the answer is
// known also on a busy machine.
package goburn

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// Begin reads the arguments SECONDS and CPU, pins the calling goroutine to a thread
// and that thread to the CPU (-1: any), and returns the monotonic time at which to
// end, in nanoseconds.
func Begin(args []string) int64 {
	if len(args) != 3 {
		fail(fmt.Errorf("usage: %s SECONDS CPU", args[0]))
	}
	seconds, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		fail(err)
	}
	cpu, err := strconv.Atoi(args[2])
	if err != nil {
		fail(err)
	}
	debug.SetGCPercent(-1) // nothing but the two functions is to run
	runtime.LockOSThread()
	if cpu >= 0 {
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			fail(fmt.Errorf("pin to CPU %d: %w", cpu, err))
		}
	}
	return Now() + int64(seconds*1e9)
}

// Burn spends ns nanoseconds of the thread's CPU time and returns how much it was.
func Burn(ns int64) int64 {
	start := clock(unix.CLOCK_THREAD_CPUTIME_ID)
	x := uint64(start) | 1
	now := start
	for now < start+ns {
		for range 10000 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		now = clock(unix.CLOCK_THREAD_CPUTIME_ID)
	}
	runtime.KeepAlive(x)
	return now - start
}

// Slice is 10 ms on average, from 5 to 15, so that it cannot beat with the sampling
// clock.
func Slice() int64 { return 5_000_000 + rand.Int64N(10_000_000) }

// Now is the monotonic time in nanoseconds.
func Now() int64 { return clock(unix.CLOCK_MONOTONIC) }

// Total is the CPU time that the process has used, in seconds.
func Total() float64 { return used(unix.RUSAGE_SELF) }

// ThreadTotal is that of the calling thread.
func ThreadTotal() float64 { return used(unix.RUSAGE_THREAD) }

func used(who int) float64 {
	var r unix.Rusage
	if err := unix.Getrusage(who, &r); err != nil {
		fail(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

func clock(id int32) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		fail(err)
	}
	return t.Nano()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
