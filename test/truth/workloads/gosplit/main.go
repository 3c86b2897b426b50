// Command gosplit burns 70 % of a CPU in burnA and 30 % in burnB, and prints how
// much it was: gosplit SECONDS CPU (-1 for any CPU).
package main

import (
	"fmt"
	"os"

	"github.com/spanflame/spanflame/test/truth/workloads/goburn"
)

//go:noinline
func burnA(ns int64) int64 { return goburn.Burn(ns) }

//go:noinline
func burnB(ns int64) int64 { return goburn.Burn(ns) }

func main() {
	end := goburn.Begin(os.Args)
	var a, b int64
	for goburn.Now() < end {
		slice := goburn.Slice()
		a += burnA(slice * 7 / 10)
		b += burnB(slice * 3 / 10)
	}
	fmt.Printf("{\"functions\":{\"main.burnA\":%.6f,\"main.burnB\":%.6f},\"total\":%.6f}\n",
		float64(a)/1e9, float64(b)/1e9, goburn.Total())
}
