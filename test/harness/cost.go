package harness

import (
	"errors"
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

// ProgramCost is what a BPF program has cost so far. The kernel counts it while its
// statistics are switched on (ebpf.EnableStats).
type ProgramCost struct {
	Type    ebpf.ProgramType
	Runs    uint64
	RunTime time.Duration
}

// ProgramCosts are those of the programs that a process holds, by name. Programs of the same
// name are added up.
func ProgramCosts(t TB, pid int) map[string]ProgramCost {
	t.Helper()
	out, seen := map[string]ProgramCost{}, map[uint32]bool{}
	for _, id := range HeldKernelObjects(t, pid).Programs {
		if seen[id] {
			continue
		}
		seen[id] = true
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err != nil {
			continue
		}
		stats, err := p.Stats()
		info, err2 := p.Info()
		kind := p.Type()
		_ = p.Close() // only read from
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		c := out[info.Name]
		c.Type = kind
		c.Runs += stats.RunCount
		c.RunTime += stats.Runtime
		out[info.Name] = c
	}
	return out
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
