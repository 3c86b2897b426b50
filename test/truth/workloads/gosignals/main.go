// Command gosignals burns in a function without a frame while a timer rings all the time:
// the runtime's handler of its signal interrupts it anywhere: gosignals SECONDS CPU (-1
// for any CPU).
package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/test/truth/workloads/goburn"
)

// leaf calls nothing and needs no frame: the frame pointer is its caller's.
//
//go:noinline
func leaf(x uint64) uint64 {
	for range 10_000 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

//go:noinline
func interrupted(x uint64) uint64 {
	for range 1000 {
		x = leaf(x)
	}
	return x
}

func main() {
	end := goburn.Begin(os.Args)
	// Nobody asked for the signal: the handler looks what it is, and returns.
	every := unix.Timeval{Usec: 10}
	if _, err := unix.Setitimer(unix.ItimerReal, unix.Itimerval{Interval: every, Value: every}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	x := uint64(1)
	for goburn.Now() < end {
		x = interrupted(x)
	}
	fmt.Printf("{\"total\":%.6f}\n", goburn.Total())
	fmt.Fprintln(os.Stderr, x)
}
