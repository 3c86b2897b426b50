// Command gocgo burns 70 % of a CPU in a C function that cgoBurnA calls, and 30 % in
// the Go function cgoBurnB, and prints how much it was: gocgo SECONDS CPU.
package main

/*
#cgo CFLAGS: -O2 -fno-omit-frame-pointer -D_GNU_SOURCE -I${SRCDIR}/../c
#include "workload.h"

FRAME int64_t c_burn(int64_t ns)
{
	int64_t start = cpu_ns();
	burn_until(start + ns);
	return cpu_ns() - start;
}
*/
import "C"

import (
	"fmt"
	"os"

	"github.com/spanflame/spanflame/test/truth/workloads/goburn"
)

//go:noinline
func cgoBurnA(ns int64) int64 { return int64(C.c_burn(C.int64_t(ns))) }

//go:noinline
func cgoBurnB(ns int64) int64 { return goburn.Burn(ns) }

func main() {
	end := goburn.Begin(os.Args)
	var a, b int64
	for goburn.Now() < end {
		slice := goburn.Slice()
		a += cgoBurnA(slice * 7 / 10)
		b += cgoBurnB(slice * 3 / 10)
	}
	fmt.Printf("{\"functions\":{\"c_burn\":%.6f,\"main.cgoBurnB\":%.6f},\"total\":%.6f}\n",
		float64(a)/1e9, float64(b)/1e9, goburn.ThreadTotal())
}
