package harness

import (
	"time"

	"github.com/cilium/ebpf"
)

// SamplerCost is what an agent's program that takes samples has cost so far, and over how
// many runs. The kernel counts it while its statistics are switched on (ebpf.EnableStats).
func SamplerCost(t TB, pid int) (time.Duration, uint64) {
	t.Helper()
	for _, id := range HeldKernelObjects(t, pid).Programs {
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err != nil {
			continue
		}
		info, err := p.Stats()
		kind := p.Type()
		_ = p.Close() // only read from
		if err != nil {
			t.Fatal(err)
		}
		if kind == ebpf.PerfEvent {
			return info.Runtime, info.RunCount
		}
	}
	t.Fatal("the agent has no program for perf events")
	return 0, 0
}

// KernelMapBytes is how many BPF maps a process holds, and what they take of the kernel's
// memory.
func KernelMapBytes(t TB, pid int) (n int, bytes uint64) {
	t.Helper()
	seen := map[uint32]bool{}
	for _, id := range HeldKernelObjects(t, pid).Maps {
		if seen[id] {
			continue
		}
		seen[id] = true
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Info()
		_ = m.Close() // only read from
		if err != nil {
			t.Fatal(err)
		}
		if b, ok := info.Memlock(); ok {
			bytes += b
			n++
		}
	}
	return n, bytes
}
