package ebpfspy

import (
	"cmp"
	"slices"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/sd"
)

// ProcessInfo is what the session knows of a process.
type ProcessInfo struct {
	Process  sd.Process
	Target   *sd.Target // nil if there is none, or if it was not looked up yet
	Why      string     // why there is no target
	LookedUp bool
	Mappings int
	Samples  uint64 // taken
	Dropped  uint64 // of these, not profiled
	// Stacks are the user stacks profiled, by how they ended: "whole" in their root
	// frame, or cut, and why.
	Stacks map[string]uint64
}

// DebugInfo is a picture of the session's state.
type DebugInfo struct {
	Running   bool
	Frequency int
	Processes []ProcessInfo // by PID
	Files     int
	Last      RoundInfo
}

// DebugInfo reads the state of the session.
func (s *Session) DebugInfo() DebugInfo {
	s.life.Lock()
	d := DebugInfo{Running: s.running, Frequency: s.opts.Frequency}
	s.life.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	d.Files, d.Last = len(s.table.files), s.last
	for _, p := range s.table.byID {
		if p.exited != 0 {
			continue
		}
		img := p.current()
		info := ProcessInfo{
			Process:  sd.Process{PID: sd.PID(p.id.pid), Start: p.id.start, Comm: p.comm, Exe: img.exe, UID: -1},
			LookedUp: img.targetEpoch == s.table.epoch,
			Mappings: len(img.maps.list),
			Samples:  p.samples, Dropped: p.dropped, Stacks: map[string]uint64{},
		}
		for e, n := range p.ends {
			if n > 0 && e != int(bpf.ProfileStackEndSTACK_NONE) {
				info.Stacks[endNames[e]] = n
			}
		}
		if img.facts != nil {
			info.Process = *img.facts
		}
		if info.LookedUp {
			info.Target, info.Why = img.target, img.why
		}
		d.Processes = append(d.Processes, info)
	}
	slices.SortFunc(d.Processes, func(a, b ProcessInfo) int { return cmp.Compare(a.Process.PID, b.Process.PID) })
	return d
}
