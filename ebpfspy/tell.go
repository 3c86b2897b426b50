package ebpfspy

import (
	"io"
	"os"
	"slices"

	"github.com/go-kit/log/level"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/internal/ledger"
)

// maxAsked bounds the questions that are answered at once; what is left out is asked
// again by a later sample, or found by the repair.
const maxAsked = 256

// maxDeclined bounds the processes of no target that are remembered, to be asked for again
// when targets change.
const maxDeclined = 1 << 16

// tellKernel gives the kernel the mappings and tables that it had asked for by now, and
// those that have changed. Later questions are of processes whose exec may not be known
// yet. The caller holds pumpMu.
func (s *Session) tellKernel(now uint64) {
	u := s.kern.unwinder
	var sampled []sampledAt
	answered := 0
	s.asks = slices.DeleteFunc(s.asks, func(e bpf.ProfileProcessEvent) bool {
		if e.Time > now {
			return false
		}
		if answered++; answered <= maxAsked {
			if maps := s.answer(&e); maps != nil {
				sampled = append(sampled, sampledAt{e.Tgid, e.Address, maps})
			}
		}
		return true
	})
	type news struct {
		subject
		execID uint32
	}
	var list []news
	s.mu.Lock()
	seen := map[*process]bool{}
	for _, p := range s.table.changed {
		img := p.current()
		if seen[p] || p.exited != 0 {
			continue
		}
		seen[p] = true
		execID := img.execID
		if !img.known {
			if img != p.images[0] {
				continue // the event of its exec is on its way
			}
			execID = anyExec // there before the session was
		}
		list = append(list, news{subject{proc: p, img: img, maps: img.maps}, execID})
	}
	ended := s.table.ended
	s.table.changed, s.table.ended = nil, nil
	s.mu.Unlock()
	for i := range list {
		n, id := &list[i], list[i].proc.id
		if s.findTarget(&n.subject); n.reason == ledger.NoTarget {
			// Told of its mappings, the kernel would never ask.
			s.mu.Lock()
			n.proc.wanted = false
			s.mu.Unlock()
			s.decline(&n.subject)
			continue
		}
		// Mappings change in this goroutine only, or are replaced whole.
		if err := u.push(id, n.execID, n.maps, s.originOf(id.pid)); err != nil {
			level.Debug(s.logger).Log("msg", "the stacks of a process will be cut", "pid", id.pid, "err", err)
		}
		s.made.note(n.proc, n.img, n.maps)
	}
	for _, p := range sampled {
		u.anticipate(p.maps, p.address, s.originOf(p.pid))
	}
	for _, id := range ended {
		u.forget(id)
	}
}

// sampledAt is where a process ran when the kernel asked for its mappings.
type sampledAt struct {
	pid     uint32
	address uint64
	maps    *mappings
}

// answer marks the process as wanted that the kernel asked for, and returns its
// mappings; or queues the table.
func (s *Session) answer(e *bpf.ProfileProcessEvent) *mappings {
	id := identityOf(e.Tgid, e.Start)
	sub := &subject{}
	s.mu.Lock()
	known := s.fill(subjectKey{id, e.ExecId}, sub)
	s.mu.Unlock()
	if !known {
		if s.scanProcess(id.pid) != nil {
			return nil // gone
		}
		s.mu.Lock()
		known = s.fill(subjectKey{id, e.ExecId}, sub)
		s.mu.Unlock()
		if !known {
			return nil
		}
	}
	if bpf.ProfileProcessEventKind(e.Kind) == bpf.ProfileProcessEventKindASK_FILE {
		s.kern.unwinder.asked(e.Parent, sub.maps, s.originOf(id.pid))
		return nil
	}
	if s.findTarget(sub); sub.reason == ledger.NoTarget {
		s.decline(sub)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.proc.current() != sub.img {
		return nil
	}
	s.table.want(sub.proc)
	return sub.img.maps
}

// decline lets the kernel leave out a process that asked for its mappings and is no target,
// as long as it runs this program. The caller holds pumpMu.
func (s *Session) decline(sub *subject) {
	id := sub.proc.id
	if len(s.declined) >= maxDeclined {
		clear(s.declined)
	}
	s.declined[id.pid] = struct{}{}
	s.mu.Lock()
	current := sub.proc.exited == 0 && sub.proc.current() == sub.img
	s.mu.Unlock()
	if current {
		s.exclude(id)
	}
}

// exclude tells the kernel that a process belongs to no target. False if there is no room:
// its samples are then dropped by the agent.
func (s *Session) exclude(id identity) bool {
	if s.kern.objs.Excluded.Put(id.pid, uint64(id.start)) != nil {
		return false
	}
	if err := s.kern.objs.HaveExcluded.Set(true); err != nil {
		level.Debug(s.logger).Log("msg", "the kernel goes on to sample processes of no target", "err", err)
	}
	return true
}

// reconsider lets a process be sampled again that was declined, for it runs another
// program. The kernel has done the same at its exec, maybe before it was told to exclude
// it. The caller holds pumpMu.
func (s *Session) reconsider(pid uint32) {
	if _, ok := s.declined[pid]; ok {
		delete(s.declined, pid)
		_ = s.kern.objs.Excluded.Delete(pid)
		_ = s.kern.objs.Processes.Delete(pid) // so that it asks again
		s.kern.forgetExcluded()
	}
}

// forgetExcluded lets the kernel look up anew who is excluded.
func (k *kernelSide) forgetExcluded() {
	k.excludedEpoch++
	if err := k.objs.ExcludedEpoch.Set(k.excludedEpoch); err != nil {
		level.Debug(k.logger).Log("msg", "processes that have become targets are not sampled", "err", err)
	}
}

// originOf says where the files that a process has mapped can be had.
func (s *Session) originOf(pid uint32) func(*mapping) origin {
	return func(m *mapping) origin {
		of, path := *m, m.file.path
		return origin{
			open: func() (*os.File, error) { return s.opener(pid, &of)() },
			debug: func(f *elffile.File, wanted func(*elffile.File) bool) (*elffile.File, io.Closer, error) {
				return s.symbols.DebugFile(f, path, root{s.procfs, pid}, wanted)
			},
		}
	}
}

// maxPreloaded bounds the processes that are told of before they are sampled.
const maxPreloaded = 512

// preload tells the kernel the mappings of the targets' processes, and waits for the
// tables of their files. An exec takes them back in the kernel; the events of those that
// came before are still in the ring.
func (s *Session) preload() {
	var subs []*subject
	s.mu.Lock()
	for _, p := range s.table.byID {
		subs = append(subs, &subject{proc: p, img: p.current(), maps: p.current().maps.share()})
	}
	s.mu.Unlock()
	told := 0
	for _, sub := range subs {
		if s.findTarget(sub); sub.reason == ledger.NoTarget || len(sub.maps.list) == 0 {
			continue
		}
		if told++; told > maxPreloaded {
			break
		}
		s.mu.Lock()
		sub.proc.wanted = true
		s.mu.Unlock()
		id := sub.proc.id
		if err := s.kern.unwinder.push(id, anyExec, sub.maps, s.originOf(id.pid)); err != nil {
			level.Debug(s.logger).Log("msg", "the stacks of a process will be cut", "pid", id.pid, "err", err)
		}
		s.made.note(sub.proc, sub.img, sub.maps)
	}
	s.kern.unwinder.preload(PreloadWait)
}
