package ebpfspy

import (
	"testing"
	"unicode/utf8"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/perfevent"
	"github.com/spanflame/spanflame/sd"
)

func processEvent(kind bpf.ProfileProcessEventKind, pid uint32, startTick, execID uint32, at uint64) *bpf.ProfileProcessEvent {
	e := &bpf.ProfileProcessEvent{Kind: uint32(kind), Tgid: pid, Start: uint64(startTick) * nsPerTick, ExecId: execID, Time: at}
	e.Comm[0] = 'p'
	return e
}

const (
	forked = bpf.ProfileProcessEventKindPROCESS_FORK
	execed = bpf.ProfileProcessEventKindPROCESS_EXEC
	exited = bpf.ProfileProcessEventKindPROCESS_EXIT
)

func mmapRecord(pid uint32, at, start uint64, ino uint64, path string) perfevent.Record {
	return perfevent.Record{Time: at, Mmap: &perfevent.Mmap{PID: pid, Start: start, Length: 0x1000, Inode: ino, Filename: path}}
}

func execRecord(pid uint32, at uint64) perfevent.Record {
	return perfevent.Record{Time: at, Exec: &perfevent.Exec{PID: pid, Comm: "p"}}
}

// The end of a process, told late, does not take its successor with it.
func TestReusedPIDKeepsItsSuccessor(t *testing.T) {
	tb := newTable(100)
	tb.event(processEvent(forked, 7, 100, 1, 10))
	tb.event(processEvent(forked, 7, 200, 1, 30))
	tb.event(processEvent(exited, 7, 100, 1, 20))
	tb.expire(0, 40)
	if tb.byID[identity{7, 100}] != nil {
		t.Error("the first process is still there")
	}
	second := tb.byID[identity{7, 200}]
	if second == nil || second.exited != 0 || tb.latest[7] != second {
		t.Fatalf("the second process: %+v, latest %+v", second, tb.latest[7])
	}
	tb.record(mmapRecord(7, 50, 0x1000, 5, "/bin/second"))
	if m, _ := second.current().maps.find(0x1000, 0); m == nil || m.file.path != "/bin/second" {
		t.Error("its mapping was lost")
	}
}

func TestExecKeepsBothPrograms(t *testing.T) {
	tb := newTable(100)
	tb.event(processEvent(forked, 7, 100, 4, 10))
	tb.record(mmapRecord(7, 11, 0x1000, 5, "/bin/first"))
	// As the kernel does it: the side-band tells the exec and the new mappings, then
	// the tracepoint says that it is done.
	tb.record(execRecord(7, 20))
	tb.record(mmapRecord(7, 21, 0x1000, 6, "/bin/second"))
	tb.event(processEvent(execed, 7, 100, 5, 22))
	p := tb.byID[identity{7, 100}]
	for execID, want := range map[uint32]string{4: "/bin/first", 5: "/bin/second"} {
		img := p.imageOf(execID)
		if img == nil {
			t.Fatalf("exec id %d: no image", execID)
		}
		if m, ambiguous := img.maps.find(0x1000, 0); m == nil || m.file.path != want || ambiguous {
			t.Errorf("exec id %d: %+v, want %s", execID, m, want)
		}
	}
	if p.imageOf(6) != nil || p.imageOf(3) != nil {
		t.Error("an exec id that never was has an image")
	}
	tb.expire(30, 40)
	if p.imageOf(4) != nil || p.imageOf(5) == nil {
		t.Error("only the program that was replaced before the round goes")
	}
}

// A process that was there before the session has no exec id until it is sampled.
func TestFirstProgramTakesTheFirstExecID(t *testing.T) {
	tb := newTable(100)
	p := tb.scanned(&sd.Process{PID: 7, Start: 100, Exe: "/bin/old"}, []mapsEntry{{start: 0x1000, end: 0x2000}}, 5)
	tb.record(execRecord(7, 4)) // older than the scan
	if len(p.images) != 1 {
		t.Fatal("an exec from before the scan was applied")
	}
	tb.record(execRecord(7, 20))
	tb.event(processEvent(execed, 7, 100, 9, 22))
	if p.imageOf(9) != p.images[1] || p.imageOf(8) != p.images[0] || p.imageOf(10) != nil {
		t.Error("exec ids are mixed up")
	}
}

func TestForkInheritsMappings(t *testing.T) {
	tb := newTable(100)
	tb.event(processEvent(forked, 7, 100, 4, 10))
	tb.record(mmapRecord(7, 11, 0x1000, 5, "/bin/p"))
	tb.byID[identity{7, 100}].current().facts = &sd.Process{PID: 7, CgroupPath: "/system.slice/shop.service", SystemdUnit: "shop.service", Exe: "/bin/p", CommandLine: "p -x"}
	child := processEvent(forked, 8, 120, 4, 20)
	child.Parent, child.ParentStart = 7, 100*nsPerTick
	tb.event(child)
	tb.record(mmapRecord(8, 21, 0x5000, 6, "/lib/only-child.so"))
	pc := tb.byID[identity{8, 120}]
	if m, _ := pc.current().maps.find(0x1000, 0); m == nil || m.file.path != "/bin/p" {
		t.Error("the child has not its parent's mapping")
	}
	if m, _ := tb.byID[identity{7, 100}].current().maps.find(0x5000, 0); m != nil {
		t.Error("the parent has its child's mapping")
	}
	f := pc.current().facts
	if f == nil || f.PID != 8 || f.Start != 120 || f.Parent != 7 || f.SystemdUnit != "shop.service" || f.CommandLine != "p -x" {
		t.Errorf("facts = %+v", f)
	}
	// What it then becomes still lives where its parent does.
	tb.record(execRecord(8, 30))
	tb.record(mmapRecord(8, 31, 0x1000, 9, "/bin/other"))
	tb.event(processEvent(execed, 8, 120, 5, 32))
	if f := pc.current().facts; f.SystemdUnit != "shop.service" || f.Exe != "/bin/other" || f.CommandLine != "" {
		t.Errorf("facts after exec = %+v", f)
	}
}

func TestTableIsBounded(t *testing.T) {
	tb := newTable(10)
	for i := uint32(1); i < 100; i++ {
		tb.event(processEvent(forked, i, i, 1, uint64(i)))
		tb.record(execRecord(i, uint64(i)))
		tb.event(processEvent(execed, i, i, 2, uint64(i)))
	}
	if len(tb.byID) != 10 || tb.overflow != 178 {
		t.Errorf("%d processes, overflow %d", len(tb.byID), tb.overflow)
	}
	for i := 0; i < 500; i++ {
		tb.record(execRecord(1, uint64(200+i)))
	}
	if n := len(tb.byID[identity{1, 1}].images); n > maxImages {
		t.Errorf("%d images", n)
	}
}

// An exec of which the side-band told nothing leaves no old mapping behind.
func TestExecWithoutSideband(t *testing.T) {
	tb := newTable(10)
	tb.event(processEvent(forked, 7, 100, 4, 10))
	tb.record(mmapRecord(7, 11, 0x1000, 5, "/bin/first"))
	tb.event(processEvent(execed, 7, 100, 5, 22))
	p := tb.byID[identity{7, 100}]
	if m, _ := p.imageOf(5).maps.find(0x1000, 0); m != nil {
		t.Errorf("mapping of the program before: %+v", m)
	}
	if !p.staleMaps {
		t.Error("not marked for repair")
	}
}

// What a process calls itself may be anything; labels are UTF-8.
func TestNamesBecomeUTF8(t *testing.T) {
	tb := newTable(10)
	e := processEvent(forked, 7, 100, 4, 10)
	e.Comm = [16]int8{'a', -1, 'b'}
	tb.event(e)
	tb.record(execRecord(7, 11))
	tb.record(mmapRecord(7, 12, 0x1000, 5, "/bin/\xff"))
	e = processEvent(execed, 7, 100, 5, 13)
	e.Comm = [16]int8{'c', -2}
	tb.event(e)
	f := tb.byID[identity{7, 100}].current().facts
	if !utf8.ValidString(f.Comm) || !utf8.ValidString(f.Exe) || f.Comm != "c\uFFFD" || f.Exe != "/bin/\uFFFD" {
		t.Errorf("facts = %+v", f)
	}
	// The file is still opened under its own name.
	if m, _ := tb.byID[identity{7, 100}].current().maps.find(0x1000, 0); m == nil || m.file.path != "/bin/\xff" {
		t.Errorf("mapping = %+v", m)
	}
}
