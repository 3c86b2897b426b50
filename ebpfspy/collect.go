package ebpfspy

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/symtab"
)

// Kind tells what a sample counts.
type Kind uint8

// The kinds of samples: enum sample_kind of c/spanflame.h.
const (
	// OnCPU counts how often a stack was running when the clock of its CPU struck.
	OnCPU = Kind(bpf.ProfileSampleKindSAMPLE_ON_CPU)
	// OffCPU adds up the time that threads were off their CPU, by the stack with which
	// they left it.
	OffCPU = Kind(bpf.ProfileSampleKindSAMPLE_OFF_CPU)
)

// Sample is a stack of a target, with how often it was seen in a round. It is only
// valid during the callback; the locations in Stack are not bound to it.
type Sample struct {
	Kind   Kind
	Target *sd.Target
	PID    sd.PID
	// Thread is the thread's name, "" unless Options.Threads.
	Thread string
	// Stack is the frames, the innermost first: kernel, then user, then markers.
	Stack []*stack.Location
	Count uint64 // samples
	// Time is what they stand for: OnCPU Count periods, OffCPU an estimate.
	Time time.Duration
	// Period is the time between the samples of OnCPU.
	Period time.Duration
	// Wait is why an OffCPU thread waited: one of the names of Waits, or "" if that is not
	// known.
	Wait string
	// Idle says that an OffCPU thread was waiting for work.
	Idle bool
	// Start and End are those of the round.
	Start, End time.Time
}

// RoundInfo says how a round went.
type RoundInfo struct {
	Start    time.Time                `json:"start"`
	Duration time.Duration            `json:"duration"`
	Taken    uint64                   `json:"taken"`
	Profiled uint64                   `json:"profiled"`
	Dropped  map[ledger.Reason]uint64 `json:"dropped"`
	Stacks   int                      `json:"stacks"`
	OffCPU   OffCPUInfo               `json:"off_cpu"`
	Spent    time.Duration            `json:"spent"` // from the first read to the last sample
}

// CollectProfiles ends the round and calls f with each sample of it. The samples
// count as profiled once f has returned; it must not call the session.
func (s *Session) CollectProfiles(f func(*Sample)) (RoundInfo, error) {
	s.life.Lock()
	defer s.life.Unlock()
	if !s.running {
		return RoundInfo{}, ErrStopped
	}
	raw, err := s.takeRound()
	work := s.carried
	s.carried = nil
	var info RoundInfo
	begun := time.Now()
	if raw != nil {
		work = append(work, raw)
		begun = raw.firstRead
	}
	for _, r := range work {
		s.deliver(r, f, &info)
	}
	info.Spent += time.Since(begun)
	s.afterRound(&info, work)
	return info, err
}

// takeRound ends the current round and reads it. It returns what it could read,
// with what went wrong. The caller holds life.
func (s *Session) takeRound() (*rawRound, error) {
	raw := &rawRound{start: s.started, startMono: s.startNS, period: s.opts.period(), number: s.round}
	raw.end, raw.endMono = time.Now(), monotonic()
	old, err := s.count.flip(raw.endMono)
	if err != nil {
		return nil, err
	}
	// By the clock as it is now: if it was set in the round, the later one is the better.
	raw.start = raw.end.Add(raw.start.Sub(raw.end))
	s.started, s.startNS = raw.end, raw.endMono
	s.round++
	s.pump() // all events of the round, before its samples
	s.kern.unwinder.newRound()
	s.mu.Lock()
	s.table.round = s.round
	s.mu.Unlock()
	raw.firstRead = time.Now()
	err = s.count.drain(old, raw)
	raw.interpreters = s.kern.interpreters
	raw.interpreters.learn(raw, s.lives)
	return raw, err
}

// lives says whether a process has not ended, as far as is known.
func (s *Session) lives(id identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.table.byID[id]
	return p != nil && p.exited == 0
}

// settleKernel enters what the kernel says it took and dropped, and checks that it
// adds up to what it counted.
func (s *Session) settleKernel(raw *rawRound) {
	st := raw.stats
	taken := st[bpf.ProfileRoundStatSTAT_TAKEN]
	dropped := st[bpf.ProfileRoundStatSTAT_NO_TARGET] + st[bpf.ProfileRoundStatSTAT_STACK_MAP_FULL] + st[bpf.ProfileRoundStatSTAT_COUNTS_MAP_FULL]
	if counted := raw.counted(); counted+dropped != taken {
		s.metrics.mismatches.Inc()
		level.Error(s.logger).Log("msg", "the samples of a round do not add up", "taken", taken, "counted", counted, "dropped", dropped)
		taken = counted + dropped
	}
	s.account.In(taken)
	s.account.Drop(ledger.NoTarget, st[bpf.ProfileRoundStatSTAT_NO_TARGET])
	s.account.Drop(ledger.StackMapFull, st[bpf.ProfileRoundStatSTAT_STACK_MAP_FULL])
	s.account.Drop(ledger.CountsMapFull, st[bpf.ProfileRoundStatSTAT_COUNTS_MAP_FULL])
}

// OffCPUInfo says what the off-CPU sampler saw: times that a thread was off its CPU.
type OffCPUInfo struct {
	Sampled   uint64 `json:"sampled"`   // under their stack
	LeftOut   uint64 `json:"left_out"`  // by the sampling rule: the sampled ones stand for them
	Untracked uint64 `json:"untracked"` // of threads that there was no room for
}

// Add adds what another round saw.
func (o *OffCPUInfo) Add(p OffCPUInfo) {
	o.Sampled += p.Sampled
	o.LeftOut += p.LeftOut
	o.Untracked += p.Untracked
}

// countOffCPU enters what the off-CPU sampler saw in a round.
func (s *Session) countOffCPU(raw *rawRound, info *RoundInfo) {
	o := OffCPUInfo{
		Sampled:   raw.stats[bpf.ProfileRoundStatSTAT_OFF_SAMPLED],
		LeftOut:   raw.stats[bpf.ProfileRoundStatSTAT_OFF_LEFT_OUT],
		Untracked: raw.stats[bpf.ProfileRoundStatSTAT_OFF_UNTRACKED],
	}
	info.OffCPU.Add(o)
	for result, n := range map[string]uint64{"sampled": o.Sampled, "left_out": o.LeftOut, "untracked": o.Untracked} {
		s.metrics.offCPU.WithLabelValues(result).Add(float64(n))
	}
}

// subject is one program of one process, as a round sees it.
type subject struct {
	proc   *process
	img    *image
	maps   *mappings
	target *sd.Target
	reason ledger.Reason // why its samples are dropped, "" if they are not

	samples, dropped uint64
	ends             ends
	made             *madeProgram
	madeLooked       bool // whether made was asked for in this round
}

type subjectKey struct {
	id     identity
	execID uint32
}

func subjectOf(key *bpf.ProfileSampleKey) subjectKey {
	return subjectKey{identityOf(key.Tgid, key.Start), key.ExecId}
}

// deliver resolves a round and hands its samples out.
func (s *Session) deliver(raw *rawRound, f func(*Sample), info *RoundInfo) {
	s.settleKernel(raw)
	if info.Dropped == nil {
		info.Start, info.Dropped = raw.start, map[ledger.Reason]uint64{}
	}
	for r, stat := range map[ledger.Reason]bpf.ProfileRoundStat{
		ledger.NoTarget:      bpf.ProfileRoundStatSTAT_NO_TARGET,
		ledger.StackMapFull:  bpf.ProfileRoundStatSTAT_STACK_MAP_FULL,
		ledger.CountsMapFull: bpf.ProfileRoundStatSTAT_COUNTS_MAP_FULL,
	} {
		if n := raw.stats[stat]; n > 0 {
			info.Dropped[r] += n
		}
	}
	info.Taken += raw.stats[bpf.ProfileRoundStatSTAT_TAKEN]
	info.Stacks += len(raw.keys)
	s.countOffCPU(raw, info)
	info.Duration += raw.end.Sub(raw.start)

	s.made.newRound(raw.number)
	subjects := s.subjects(raw)
	wakers := wakersOf(raw)
	sample := Sample{Start: raw.start, End: raw.end}
	var all ends
	var buf []*stack.Location
	for i := range raw.keys {
		key, n := &raw.keys[i], raw.values[i].Count
		if n == 0 {
			continue // a stack whose thread is still off its CPU, or came back too soon to count
		}
		sub := subjects[subjectOf(key)]
		sub.samples += n
		reason := sub.reason
		st, ok := raw.frames(i)
		if !ok && reason == "" {
			reason = ledger.RoundAbandoned
		}
		if reason != "" {
			sub.dropped += n
			s.account.Drop(reason, n)
			info.Dropped[reason] += n
			continue
		}
		var end bpf.ProfileStackEnd
		buf, end = s.resolve(buf[:0], raw, key, sub, st)
		all[end] += n
		sub.ends[end] += n
		sample.Target, sample.PID, sample.Stack, sample.Count = sub.target, sd.PID(key.Tgid), buf, n
		sample.Kind = Kind(key.Kind)
		switch sample.Kind {
		case OffCPU:
			sample.Period, sample.Time = 0, time.Duration(raw.values[i].Time)
			sample.Wait = waitOf(key.Wait, buf)
			if i, ok := wakers[key.Waker]; ok {
				sample.Stack = s.withWaker(buf, raw, i, subjects)
			}
			sample.Idle = s.opts.OffCPU.Idle != IdleKeep && isIdle(sample.Wait, buf, key.PythonLen > 0)
			if sample.Idle && s.opts.OffCPU.Idle == IdleDrop {
				sub.dropped += n
				s.account.Drop(ledger.Idle, n)
				info.Dropped[ledger.Idle] += n
				continue
			}
		default:
			sample.Period, sample.Time = raw.period, raw.period*time.Duration(n)
			sample.Wait, sample.Idle = "", false
		}
		sample.Thread = ""
		if key.Tid != 0 {
			sample.Thread = commString(key.Comm)
		}
		f(&sample)
		s.account.Out(n)
		info.Profiled += n
	}
	for e, n := range all {
		if n > 0 {
			s.metrics.stackEnds.WithLabelValues(endNames[e]).Add(float64(n))
		}
	}
	s.credit(subjects)
}

// endNames are the values of the label "end", and what a stack that is not whole
// is marked with. The order is that of enum stack_end.
var endNames = [bpf.ProfileStackEndSTACK_END_MAX]string{
	bpf.ProfileStackEndSTACK_NONE:            "none",
	bpf.ProfileStackEndSTACK_WHOLE:           "whole",
	bpf.ProfileStackEndSTACK_TOO_DEEP:        "too_deep",
	bpf.ProfileStackEndSTACK_BAD_MEMORY:      "bad_memory",
	bpf.ProfileStackEndSTACK_BROKEN_CHAIN:    "broken_chain",
	bpf.ProfileStackEndSTACK_UNSUPPORTED_ABI: "unsupported_abi",
	bpf.ProfileStackEndSTACK_NO_REGISTERS:    "no_registers",
	bpf.ProfileStackEndSTACK_NOT_LOADED:      "not_loaded_yet",
	bpf.ProfileStackEndSTACK_NO_MAPPING:      "no_mapping",
	bpf.ProfileStackEndSTACK_NO_TABLE:        "no_table",
	bpf.ProfileStackEndSTACK_NO_ROW:          "no_row",
	bpf.ProfileStackEndSTACK_UNSUPPORTED_ROW: "unsupported_row",
	bpf.ProfileStackEndSTACK_EXITING:         "exiting",
	bpf.ProfileStackEndSTACK_NOT_SAMPLED:     "not_sampled",
}

// interrupted is FRAME_INTERRUPTED of c/spanflame.h.
const interrupted = uint64(1) << 63

// hasWord is FRAME_WORD of c/spanflame.h: the next entry is a word of the frame.
const hasWord = uint64(1) << 62

// resolve turns the words of a stack into locations, and says how its user frames end.
func (s *Session) resolve(out []*stack.Location, raw *rawRound, key *bpf.ProfileSampleKey, sub *subject, st rawStack) ([]*stack.Location, bpf.ProfileStackEnd) {
	var inside map[string]bool
	if Kind(key.Kind) == OffCPU {
		inside = scheduler
	}
	out, end := s.resolveUser(s.resolveKernel(out, st.kernel, inside), raw, key, sub, st)
	if s.opts.CommFrame {
		out = append(out, s.locs.comm(commString(key.Comm)))
	}
	if len(out) == 0 {
		out = append(out, s.locs.noMapping)
	}
	return out, end
}

// resolveKernel appends the locations of kernel addresses to none, less the sampler's own
// inside of some functions.
func (s *Session) resolveKernel(out []*stack.Location, kernel []uint64, inside map[string]bool) []*stack.Location {
	for i, addr := range kernel {
		if i > 0 {
			addr-- // the call, not what it returns to
		}
		out = append(out, s.locs.kernelCode(addr))
	}
	return from(out, inside)
}

// resolveUser appends the locations of user addresses, and how the stack ends.
func (s *Session) resolveUser(out []*stack.Location, raw *rawRound, key *bpf.ProfileSampleKey, sub *subject, st rawStack) ([]*stack.Location, bpf.ProfileStackEnd) {
	cut := false
	from := len(out)
	interpreted := len(st.python) > 0
	s.kinds = s.kinds[:0]
	for i := 0; i < len(st.user); i++ {
		addr, first, word := st.user[i]&^hasWord, i == 0, uint64(0)
		if st.user[i]&hasWord != 0 && i+1 < len(st.user) {
			i++
			word = st.user[i]
		}
		kind := frameOther
		// The innermost address is exact also when the thread is in the kernel: it is
		// that of the instruction after the system call. Looking it up as it is finds
		// the function that made the call.
		at := addr &^ interrupted
		if !first && at == addr {
			at--
		}
		m, ambiguous := sub.maps.find(at, raw.number)
		switch {
		case m == nil && !first:
			cut = true
		case m == nil:
			out = append(out, s.locs.noMapping)
		case ambiguous:
			out = append(out, s.locs.ambiguous)
		case m.file == nil:
			loc := s.madeLocation(sub, madecode.Place{Addr: at, Word: word})
			if loc == nil {
				loc = s.locs.anonymous
			}
			out = append(out, loc)
		default:
			if word != 0 || isMade(m.file.path) {
				p := madecode.Place{Addr: at, Word: word}
				if !isMade(m.file.path) {
					p.InFile, p.Offset = true, at-m.start+m.offset
				}
				if loc := s.madeLocation(sub, p); loc != nil {
					out = append(out, loc)
					s.kinds = append(s.kinds, frameOther)
					continue
				}
			}
			m.file.seen = raw.number
			offset := at - m.start + m.offset
			if interpreted {
				kind = raw.interpreters.kindOf(sub, m.file, offset)
			}
			loc := m.file.locations[offset]
			if loc == nil {
				pid := sub.proc.id.pid
				loc = s.locs.user(m.file, offset, at, s.opener(pid, m), root{s.procfs, pid})
			}
			out = append(out, loc)
		}
		if cut {
			break
		}
		s.kinds = append(s.kinds, kind)
	}
	end := min(bpf.ProfileStackEnd(key.UserEnd), bpf.ProfileStackEndSTACK_END_MAX-1)
	if cut && end == bpf.ProfileStackEndSTACK_WHOLE {
		// What looked like a chain of frame pointers was none.
		end = bpf.ProfileStackEndSTACK_BROKEN_CHAIN
	}
	if interpreted {
		out = s.withPython(out, from, raw, st.python, end != bpf.ProfileStackEndSTACK_WHOLE)
		// The Python frames complete the native ones, and are less where they are cut.
		end = min(bpf.ProfileStackEnd(key.PythonEnd), bpf.ProfileStackEndSTACK_END_MAX-1)
	}
	if end != bpf.ProfileStackEndSTACK_WHOLE && end != bpf.ProfileStackEndSTACK_NONE {
		out = append(out, s.locs.marker(endNames[end]))
	}
	return out, end
}

// madeLocation returns the location of a place in code that a process made, nil if
// nothing names it.
func (s *Session) madeLocation(sub *subject, p madecode.Place) *stack.Location {
	if !sub.madeLooked {
		sub.madeLooked = true
		sub.made = s.made.of(sub)
	}
	var loc *stack.Location
	if sub.made != nil {
		loc = s.made.location(sub.made, p)
	}
	switch {
	case loc != nil:
		s.metrics.madeFrames.WithLabelValues("named").Inc()
	case !p.InFile:
		s.metrics.madeFrames.WithLabelValues("unnamed").Inc()
	}
	return loc
}

// runs says whether a process runs a program still, or has ended since.
func (s *Session) runs(mp *madeProgram) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return mp.proc.exited == 0 && mp.proc.current() == mp.img
}

// remembered says whether a round may have samples of a program. The caller holds mu.
func (s *Session) remembered(mp *madeProgram) bool {
	return s.table.byID[mp.id] == mp.proc && slices.Contains(mp.proc.images, mp.img)
}

// opener opens the file of a mapping: as the process has it mapped, as its path
// says, or as it was held when it was first seen.
func (s *Session) opener(pid uint32, m *mapping) symtab.Opener {
	start, end, path := m.start, m.end, m.file.path
	s.mu.Lock()
	held := m.file.held
	s.mu.Unlock()
	return func() (f *os.File, err error) {
		if f = held.open(); f != nil {
			return f, nil
		}
		if f, err = openMapped(s.procfs, pid, start, end); err == nil {
			return f, nil
		}
		return root{s.procfs, pid}.Open(path)
	}
}

// subjects finds the program of each entry of a round, and its target.
func (s *Session) subjects(raw *rawRound) map[subjectKey]*subject {
	subjects := map[subjectKey]*subject{}
	var unknown []subjectKey
	s.mu.Lock()
	for i := range raw.keys {
		k := subjectOf(&raw.keys[i])
		if subjects[k] != nil {
			continue
		}
		sub := &subject{}
		subjects[k] = sub
		if !s.fill(k, sub) {
			unknown = append(unknown, k)
		}
	}
	s.mu.Unlock()

	for _, k := range unknown {
		err := s.scanProcess(k.id.pid)
		s.mu.Lock()
		filled := s.fill(k, subjects[k])
		s.mu.Unlock()
		switch {
		case filled:
		case err != nil:
			subjects[k].reason = ledger.ProcessGone
		default:
			subjects[k].reason = ledger.UnknownProcess
		}
	}
	for _, sub := range subjects {
		if sub.reason == "" {
			s.findTarget(sub)
		}
	}
	return subjects
}

// fill looks a program up in the table; anyExec is the one that the process runs. The
// caller holds mu.
func (s *Session) fill(k subjectKey, sub *subject) bool {
	p := s.table.byID[k.id]
	if p == nil {
		return false
	}
	img := p.current()
	if k.execID != anyExec {
		img = p.imageOf(k.execID)
	}
	if img == nil {
		return false
	}
	sub.proc, sub.img, sub.maps = p, img, img.maps.share()
	return true
}

// findTarget asks for the target of a program, unless the answer is known.
func (s *Session) findTarget(sub *subject) {
	s.readFactsOf(sub)
	s.mu.Lock()
	img, epoch := sub.img, s.table.epoch
	facts := img.facts
	known := img.targetEpoch == epoch
	sub.target = img.target
	s.mu.Unlock()
	if !known {
		if facts == nil {
			facts = &sd.Process{PID: sd.PID(sub.proc.id.pid), Start: sub.proc.id.start, Comm: sub.proc.comm, Exe: strings.ToValidUTF8(img.exe, "\uFFFD"), UID: -1}
		}
		t, why := s.finder.FindTarget(facts)
		s.mu.Lock()
		img.target, img.why, img.targetEpoch = t, why, epoch
		s.mu.Unlock()
		sub.target = t
	}
	if sub.target == nil {
		sub.reason = ledger.NoTarget
	}
}

// readFactsOf reads /proc for a program that was not yet looked at.
func (s *Session) readFactsOf(sub *subject) {
	s.mu.Lock()
	current := !sub.img.hasRead && sub.proc.exited == 0 && sub.proc.current() == sub.img
	s.mu.Unlock()
	if current {
		s.readFacts(sub.proc)
	}
}

// credit adds a round's figures to the processes, and tells the kernel which of
// them are not to be sampled any more.
func (s *Session) credit(subjects map[subjectKey]*subject) {
	var exclude []identity
	s.mu.Lock()
	for k, sub := range subjects {
		if sub.proc == nil {
			continue
		}
		sub.proc.samples += sub.samples
		sub.proc.dropped += sub.dropped
		sub.proc.ends.add(&sub.ends)
		s.countEnds(sub.img.exe, &sub.ends)
		if sub.reason == ledger.NoTarget && sub.proc.exited == 0 && sub.proc.current() == sub.img {
			exclude = append(exclude, k.id)
		}
	}
	s.mu.Unlock()
	for _, id := range exclude {
		if !s.exclude(id) {
			break // full: they are dropped here, and counted as well
		}
	}
}

// maxExecutables bounds the executables with counters of their own; the rest is
// counted as "other".
const maxExecutables = 256

// countEnds adds to the counters of an executable. The caller holds mu.
func (s *Session) countEnds(exe string, e *ends) {
	exe = strings.ToValidUTF8(exe, "\uFFFD")
	if exe == "" || len(exe) > 256 || !s.executables[exe] && len(s.executables) >= maxExecutables {
		exe = "other"
	}
	for end, n := range e {
		if n > 0 && end != int(bpf.ProfileStackEndSTACK_NONE) {
			s.executables[exe] = true
			s.metrics.executableEnds.WithLabelValues(exe, endNames[end]).Add(float64(n))
		}
	}
}

// afterRound lets go of what is no longer needed.
func (s *Session) afterRound(info *RoundInfo, work []*rawRound) {
	s.metrics.roundSeconds.Observe(info.Spent.Seconds())
	s.metrics.roundStacks.Set(float64(info.Stacks))
	s.releaseHeld(s.round - 1)
	s.symbols.Expire(time.Now())
	if s.kernel != nil {
		if err := s.kernel.Refresh(); err != nil {
			level.Warn(s.logger).Log("msg", "cannot read the kernel's names anew", "err", err)
		}
		if g := s.kernel.Generation(); g != s.kernelGeneration {
			s.kernelGeneration = g
			s.locs.forgetKernel()
		}
	}
	s.locs.expire(s.round)
	s.kern.interpreters.expire(s.round)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(work) > 0 {
		s.table.expire(work[0].startMono, work[len(work)-1].endMono)
	}
	s.made.endRound(s.remembered)
	s.last = *info
	s.metrics.processes.Set(float64(len(s.table.byID)))
	s.metrics.files.Set(float64(len(s.table.files)))
	s.metrics.locations.Set(float64(s.locs.count))
	s.metrics.processOverflow.Set(float64(s.table.overflow))
}
