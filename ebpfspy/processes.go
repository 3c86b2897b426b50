package ebpfspy

import (
	"slices"
	"strings"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/perfevent"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/symtab"
)

// nsPerTick converts the kernel's start times to clock ticks: USER_HZ is 100.
const nsPerTick = 10_000_000

// identity tells a process from all others since boot. A PID alone does not.
type identity struct {
	pid   uint32
	start sd.StartTicks
}

func identityOf(tgid uint32, startNS uint64) identity {
	return identity{tgid, sd.StartTicks(startNS / nsPerTick)}
}

// image is one program that a process runs or ran: what an exec begins.
type image struct {
	execID  uint32
	known   bool // whether execID is
	since   uint64
	maps    *mappings
	exe     string // the first file that it mapped
	facts   *sd.Process
	hasRead bool // whether facts were read from /proc, or that was given up

	target      *sd.Target
	why         string // why there is no target
	targetEpoch uint64 // of the table's when target was looked up; 0: never
}

// process is one process, alive or gone since the round began.
type process struct {
	id     identity
	parent identity
	comm   string
	images []*image // oldest first; the last is the current one
	exited uint64   // time of its end, 0 while it lives
	scanAt uint64   // when /proc was read for it; older records say nothing new
	// staleMaps says that a program was taken up whose mappings were not told.
	staleMaps bool
	// wanted says that the kernel is told of the mappings as they change.
	wanted bool

	samples uint64 // taken
	dropped uint64 // of these, not profiled
	ends    ends   // of user stacks
}

// ends counts user stacks by how they ended.
type ends [bpf.ProfileStackEndSTACK_END_MAX]uint64

func (e *ends) add(more *ends) {
	for i, n := range more {
		e[i] += n
	}
}

func (p *process) current() *image { return p.images[len(p.images)-1] }

// table follows the processes of the host. The caller holds the session's lock.
type table struct {
	max      int
	round    uint64
	epoch    uint64 // counts UpdateTargets
	byID     map[identity]*process
	latest   map[uint32]*process // the last that had the PID
	files    map[symtab.FileID]*file
	overflow uint64 // processes and mappings that there was no room for
	mappings int    // entries of all lists, counted at each expire and added to since
	toRead   []*process
	newFiles []newFile
	changed  []*process // wanted ones whose mappings or programs are new
	ended    []identity
}

// newFile is a file that was seen for the first time, with a process that maps it.
type newFile struct {
	f          *file
	pid        uint32
	start, end uint64
}

// Files that are opened at once, lest they be gone before their names are needed.
const maxHeld = 128

func newTable(max int) *table {
	return &table{
		max: max, epoch: 1,
		byID: map[identity]*process{}, latest: map[uint32]*process{}, files: map[symtab.FileID]*file{},
	}
}

// add enters a process. It returns nil if there is no room.
func (t *table) add(id identity) *process {
	if len(t.byID) >= t.max {
		t.overflow++
		return nil
	}
	p := &process{id: id, images: []*image{{maps: &mappings{}}}}
	t.byID[id] = p
	t.latest[id.pid] = p
	return p
}

// remove forgets a process, but never its successor under the same PID.
func (t *table) remove(p *process) {
	if p.wanted {
		t.ended = append(t.ended, p.id)
	}
	delete(t.byID, p.id)
	if t.latest[p.id.pid] == p {
		delete(t.latest, p.id.pid)
	}
}

// fileOf returns the file of an identity. Special mappings and anonymous memory
// have no inode: those with a name such as [vdso] are files of their own.
func (t *table) fileOf(id symtab.FileID, path string) (f *file, fresh bool) {
	if id.Ino == 0 {
		if path != "[vdso]" {
			return nil, false
		}
		id = symtab.FileID{}
	}
	f = t.files[id]
	if f != nil {
		return f, false
	}
	if len(path) > 4096 {
		path = path[:4096]
	}
	f = &file{id: id, path: path}
	t.files[id] = f
	return f, id.Ino != 0
}

// scanned enters what /proc/PID/maps said of a process at the given time.
func (t *table) scanned(facts *sd.Process, maps []mapsEntry, at uint64) *process {
	id := identity{uint32(facts.PID), facts.Start}
	p := t.byID[id]
	if p == nil {
		if p = t.add(id); p == nil {
			return nil
		}
	}
	p.scanAt = at
	p.staleMaps = false
	p.comm = facts.Comm
	img := p.current()
	img.facts, img.hasRead, img.exe = facts, true, facts.Exe
	m := &mappings{}
	for _, e := range maps {
		f, _ := t.fileOf(e.id, e.path)
		if len(m.list) > 0 && m.list[len(m.list)-1].end > e.start {
			continue // not sorted: not from a kernel
		}
		m.list = append(m.list, mapping{start: e.start, end: e.end, offset: e.offset, file: f})
	}
	m.replaced = slices.Clone(img.maps.replaced)
	t.mappings += len(m.list)
	img.maps = m
	if p.wanted {
		t.changed = append(t.changed, p)
	}
	return p
}

// event applies what the kernel program said of a process.
func (t *table) event(e *bpf.ProfileProcessEvent) {
	id := identityOf(e.Tgid, e.Start)
	p := t.byID[id]
	switch bpf.ProfileProcessEventKind(e.Kind) {
	case bpf.ProfileProcessEventKindPROCESS_FORK:
		if p != nil {
			return // /proc was faster
		}
		if p = t.add(id); p == nil {
			return
		}
		p.comm = commString(e.Comm)
		p.parent = identityOf(e.Parent, e.ParentStart)
		img := p.current()
		img.execID, img.known, img.since = e.ExecId, true, e.Time
		if parent := t.byID[p.parent]; parent != nil {
			from := parent.current()
			img.maps, img.exe = from.maps.share(), from.exe
			if parent.wanted {
				t.want(p) // the kernel has done the same
			}
			img.facts = inherit(from.facts, p, from.exe)
		} else {
			t.toRead = append(t.toRead, p)
		}
	case bpf.ProfileProcessEventKindPROCESS_EXEC:
		if p == nil {
			if p = t.add(id); p == nil {
				return
			}
			p.parent = identityOf(e.Parent, e.ParentStart)
		}
		img := p.current()
		if img.known && img.execID != e.ExecId {
			// The side-band did not say that the program changed: its mappings are
			// not to be trusted.
			img = &image{maps: &mappings{}, since: e.Time, facts: img.facts}
			p.images = append(p.images, img)
			p.staleMaps = true
		}
		p.comm = commString(e.Comm)
		img.execID, img.known = e.ExecId, true
		t.want(p)
		img.facts, img.hasRead = inherit(img.facts, p, img.exe), false
		t.toRead = append(t.toRead, p)
	case bpf.ProfileProcessEventKindPROCESS_EXIT:
		if p != nil {
			p.exited = max(e.Time, 1)
			if p.wanted {
				t.ended = append(t.ended, id)
			}
		}
	}
}

// want lets the kernel be told of a process's mappings, now and when they change.
func (t *table) want(p *process) {
	p.wanted = true
	t.changed = append(t.changed, p)
}

// record applies what the perf side-band said.
func (t *table) record(r perfevent.Record) {
	switch {
	case r.Exec != nil:
		p := t.latest[r.Exec.PID]
		if p == nil || r.Time < p.scanAt {
			return
		}
		p.images = append(p.images, &image{maps: &mappings{}, since: r.Time, facts: p.current().facts})
		if len(p.images) > maxImages {
			p.images = p.images[1:]
		}
	case r.Mmap != nil:
		m := r.Mmap
		p := t.latest[m.PID]
		if p == nil || m.Start+m.Length < m.Start {
			return
		}
		id := symtab.FileID{Dev: uint64(m.Major)<<32 | uint64(m.Minor), Ino: m.Inode, Gen: m.Generation}
		f, fresh := t.fileOf(id, m.Filename)
		img := p.current()
		if img.exe == "" && f != nil {
			img.exe = m.Filename
			if img.facts != nil && !img.hasRead {
				img.facts = inherit(img.facts, p, img.exe)
			}
		}
		if p.wanted {
			t.changed = append(t.changed, p)
		}
		t.mapped(img, mapping{start: m.Start, end: m.Start + m.Length, offset: m.PageOffset, file: f})
		if fresh && len(t.newFiles) < maxHeld {
			t.newFiles = append(t.newFiles, newFile{f, m.PID, m.Start, m.Start + m.Length})
		}
	}
}

// mapped enters a mapping of a program, within the bound of all.
func (t *table) mapped(img *image, m mapping) {
	if img.maps.shared {
		if t.mappings+len(img.maps.list) > maxAllMappings {
			t.overflow++
			return
		}
		img.maps = img.maps.clone()
		t.mappings += len(img.maps.list)
	}
	if t.mappings >= maxAllMappings {
		t.overflow++
		return
	}
	t.mappings += img.maps.insert(m, t.round)
}

// maxImages bounds the programs that are remembered of one process in a round.
const maxImages = 64

// inherit makes what is known of a process before /proc was read for it, or when
// that came too late: where it lives is its parent's, or its former program's; its
// name and its program are its own.
func inherit(from *sd.Process, p *process, exe string) *sd.Process {
	exe = strings.ToValidUTF8(exe, "\uFFFD")
	facts := sd.Process{UID: -1}
	if from != nil {
		facts = *from
	}
	facts.PID, facts.Start, facts.Parent = sd.PID(p.id.pid), p.id.start, sd.PID(p.parent.pid)
	facts.Comm, facts.PIDInNS = p.comm, 0
	if exe != facts.Exe {
		facts.Exe, facts.CommandLine = exe, ""
	}
	return &facts
}

// imageOf finds the program that a sample was taken in.
func (p *process) imageOf(execID uint32) *image {
	for i := len(p.images) - 1; i >= 0; i-- {
		if img := p.images[i]; img.known && img.execID == execID {
			return img
		}
	}
	// Only what was there before the session began has no exec id yet. Ids rise, so
	// a lower one than all that are known is its own.
	first := p.images[0]
	if first.known {
		return nil
	}
	for _, img := range p.images[1:] {
		if img.known && img.execID <= execID {
			return nil
		}
	}
	first.execID, first.known = execID, true
	return first
}

// expire forgets the processes that ended before the round did, the programs that
// were replaced before it began, and the files that nobody maps and nobody holds.
func (t *table) expire(roundStart, roundEnd uint64) {
	used := make(map[*file]struct{}, len(t.files))
	counted := make(map[*mappings]struct{}, len(t.byID))
	t.mappings = 0
	for _, p := range t.byID {
		if p.exited != 0 && p.exited < roundEnd {
			t.remove(p)
			continue
		}
		for len(p.images) > 1 && p.images[1].since < roundStart {
			p.images = p.images[1:]
		}
		for _, img := range p.images {
			if _, again := counted[img.maps]; again {
				continue
			}
			counted[img.maps] = struct{}{}
			t.mappings += len(img.maps.list)
			for i := range img.maps.list {
				if f := img.maps.list[i].file; f != nil {
					used[f] = struct{}{}
				}
			}
		}
	}
	for id, f := range t.files {
		if _, ok := used[f]; !ok && f.held == nil && f.seen+2 < t.round {
			delete(t.files, id)
		}
	}
}

func commString(c [16]int8) string {
	var b [16]byte
	n := 0
	for ; n < len(c) && c[n] != 0; n++ {
		b[n] = byte(c[n])
	}
	return strings.ToValidUTF8(string(b[:n]), "\uFFFD")
}
