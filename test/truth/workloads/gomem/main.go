// Command gomem burns by turns in copies of large memory (copyLarge), in clearing it
// (clearLarge), and in making garbage (makeGarbage), which makes the runtime's own
// threads work: gomem SECONDS CPU (-1 for any CPU).
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spanflame/spanflame/test/truth/workloads/goburn"
)

type node struct {
	left, right *node
	weight      int
}

var (
	src, dst = make([]byte, 32<<20), make([]byte, 32<<20)
	kept     int
)

//go:noinline
func copyLarge() int { return copy(dst, src) }

//go:noinline
func clearLarge() { clear(dst) }

//go:noinline
func tree(depth int) *node {
	if depth == 0 {
		return &node{weight: 1}
	}
	n := &node{left: tree(depth - 1), right: tree(depth - 1)}
	n.weight = n.left.weight + n.right.weight
	return n
}

//go:noinline
func makeGarbage() {
	kept += tree(15).weight
}

func main() {
	end := goburn.Begin(os.Args)
	debug.SetGCPercent(10) // so that the collector has something to do
	live := tree(18)
	var inCopy, inClear, inGarbage int64
	for i := 0; goburn.Now() < end; i++ {
		t0 := goburn.Now()
		copyLarge()
		t1 := goburn.Now()
		clearLarge()
		t2 := goburn.Now()
		makeGarbage()
		inCopy, inClear, inGarbage = inCopy+t1-t0, inClear+t2-t1, inGarbage+goburn.Now()-t2
	}
	// Wall time: only the order of the three is of use.
	fmt.Printf("{\"functions\":{\"main.copyLarge\":%.6f,\"main.clearLarge\":%.6f,\"main.makeGarbage\":%.6f},\"total\":%.6f}\n",
		float64(inCopy)/1e9, float64(inClear)/1e9, float64(inGarbage)/1e9, goburn.Total())
	fmt.Fprintln(os.Stderr, kept+live.weight, "nodes were made")
}
