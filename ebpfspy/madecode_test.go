package ebpfspy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-kit/log"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/symtab"
)

// TestOpenPerfMap lays traps where a perf map should be.
func TestOpenPerfMap(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("owners can only be changed by root")
	}
	const nobody, other = 65534, 4711
	tests := []struct {
		name string
		make func(path string) error
		uid  int64
		want error // nil: it is opened
	}{
		{"own", func(p string) error { return own(p, nobody) }, nobody, nil},
		{"of root", func(p string) error { return own(p, 0) }, nobody, nil},
		{"of another", func(p string) error { return own(p, other) }, nobody, errOwner},
		{"of another, user not known", func(p string) error { return own(p, other) }, -1, errOwner},
		{"of a user, process of root", func(p string) error { return own(p, nobody) }, 0, errOwner},
		{"none", func(string) error { return nil }, 0, os.ErrNotExist},
		{"link", func(p string) error { return errors.Join(own(p+".x", 0), os.Symlink(p+".x", p)) }, 0, errNotRegular},
		{"link to a secret", func(p string) error { return os.Symlink("/etc/shadow", p) }, 0, errNotRegular},
		{"pipe", func(p string) error { return unix.Mkfifo(p, 0o644) }, 0, errNotRegular},
		{"device", func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) }, 0, errNotRegular},
		{"socket", func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o644, 0) }, 0, errNotRegular},
		{"folder", func(p string) error { return os.Mkdir(p, 0o755) }, 0, errNotRegular},
		{"folder that leads out", func(p string) error {
			outside := filepath.Join(filepath.Dir(p), "../../../outside")
			return errors.Join(os.Mkdir(outside, 0o755), own(filepath.Join(outside, filepath.Base(p)), 0), os.Remove(filepath.Dir(p)),
				os.Symlink("../../../outside", filepath.Dir(p)))
		}, 0, os.ErrNotExist},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			procfs := t.TempDir()
			dir := filepath.Join(procfs, "77", "root", "tmp")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tt.make(filepath.Join(dir, "perf-7.map")); err != nil {
				t.Fatal(err)
			}
			f, path, err := openPerfMap(procfs, &sd.Process{PID: 77, PIDInNS: 7, UID: tt.uid})
			if path != "/tmp/perf-7.map" {
				t.Errorf("path %q", path)
			}
			if f != nil {
				f.Close()
			}
			if !errors.Is(err, tt.want) || err == nil && tt.want != nil {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func own(path string, uid int) error {
	return errors.Join(os.WriteFile(path, []byte("1000 10 one\n"), 0o644), os.Chown(path, uid, 0))
}

func TestDumpPID(t *testing.T) {
	for path, want := range map[string]uint32{
		"/tmp/jit-12.dump": 12, "jit-7.dump": 7, "/tmp/jit-.dump": 0, "/tmp/jit-12.dump.x": 0, "/tmp/jit-1x.dump": 0,
		"/tmp/xjit-12.dump": 0, "/tmp/jit--1.dump": 0, "/tmp/jit-99999999999.dump": 0,
	} {
		if got := dumpPID(path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
}

// madeFixture is this very process as one that has made code.
type madeFixture struct {
	*madeCode
	sub   *subject
	path  string
	dead  bool
	round uint64
}

func newMadeFixture(t *testing.T, maxBytes int64) *madeFixture {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	facts, err := sd.ReadProcess("/proc", sd.PID(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	f := &madeFixture{madeCode: newMadeCode(log.NewNopLogger(), m, "/proc", maxBytes), path: fmt.Sprintf("/tmp/perf-%d.map", facts.PIDInNS)}
	f.alive = func(*madeProgram) bool { return !f.dead }
	t.Cleanup(f.close)
	t.Cleanup(func() { _ = os.Remove(f.path) })
	img := &image{}
	p := &process{id: identity{uint32(facts.PID), facts.Start}, images: []*image{img}}
	f.sub = &subject{proc: p, img: img, maps: &mappings{list: []mapping{{start: 0x1000, end: 0x100000}}}}
	return f
}

// write puts a new file under the path.
func (f *madeFixture) write(t *testing.T, text string) {
	t.Helper()
	_ = os.Remove(f.path)
	if err := os.WriteFile(f.path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (f *madeFixture) want(t *testing.T, addr uint64, name string) *stack.Location {
	t.Helper()
	f.newRound(f.round)
	f.round++
	var loc *stack.Location
	if mp := f.of(f.sub); mp != nil {
		loc = f.location(mp, madecode.Place{Addr: addr})
	}
	switch {
	case loc == nil && name != "":
		t.Errorf("nothing at %x, want %s", addr, name)
	case loc != nil && (loc.Lines[0].Function != name || loc.Mapping.File != f.path):
		t.Errorf("%+v in %s at %x, want %q", loc.Lines, loc.Mapping.File, addr, name)
	}
	return loc
}

// TestMadeCode follows a map that grows, and what replaces it, until after the process's end.
func TestMadeCode(t *testing.T) {
	f := newMadeFixture(t, 1<<20)
	f.want(t, 0x1000, "")
	f.write(t, "1000 10 one\n")
	turn(f)
	first := f.want(t, 0x1008, "one")
	if again := f.want(t, 0x1008, "one"); again != first {
		t.Error("another location of the same place")
	}
	f.write(t, "2000 10 two\n") // another file
	turn(f)
	f.want(t, 0x2000, "two")
	f.want(t, 0x1000, "")
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(file, "3000 10 three\n")
	f.want(t, 0x3000, "three") // at need
	f.dead = true
	fmt.Fprint(file, "4000 10 four\n")
	file.Close()
	_ = os.Remove(f.path)
	f.want(t, 0x4000, "four")
	f.endRound(func(*madeProgram) bool { return false })
	if len(f.programs) != 0 {
		t.Errorf("%d programs are kept", len(f.programs))
	}
}

// turn is what the watcher does.
func turn(f *madeFixture) {
	for _, mp := range f.list() {
		f.look(mp)
		mp.refresh(madeSlice)
	}
	f.shrink()
}

// TestMadeCodeEvicts has more names than there is room for: they are gone for a while.
func TestMadeCodeEvicts(t *testing.T) {
	f := newMadeFixture(t, 1000)
	f.write(t, "1000 10 one\n2000 10 two\n")
	f.want(t, 0x1000, "one")
	for range 20 {
		f.write(t, fmt.Sprintf("1000 10 %01000d\n3000 10 x\n", 1))
	}
	turn(f)
	f.want(t, 0x1000, "")
	if len(f.list()) != 0 {
		t.Error("it was not evicted")
	}
	f.write(t, "1000 10 one\n")
	f.round += madeDenied + 1
	f.newRound(f.round)
	f.endRound(func(*madeProgram) bool { return true })
	f.want(t, 0x1000, "one")
}

// TestMadeCodeBound follows no more programs than it may.
func TestMadeCodeBound(t *testing.T) {
	f := newMadeFixture(t, 1<<20)
	for range 2 * maxMadeProcesses {
		f.note(f.sub.proc, &image{}, f.sub.maps)
	}
	if len(f.programs) != maxMadeProcesses {
		t.Errorf("%d programs", len(f.programs))
	}
}

// TestRoundWaitsBriefly has a source that never has read all.
func TestRoundWaitsBriefly(t *testing.T) {
	f := newMadeFixture(t, 1<<20)
	f.want(t, 0x1000, "")
	endless := &endlessSource{}
	f.programs[f.sub.img].replace(nil, endless)
	begun := time.Now()
	f.want(t, 0x1000, "")
	if spent := time.Since(begun); spent > 5*madeRoundTime {
		t.Errorf("a round took %s", spent)
	}
	if endless.read == 0 || endless.read > madeRoundBytes {
		t.Errorf("%d bytes were read", endless.read)
	}
}

type endlessSource struct{ read int64 }

func (s *endlessSource) Name() string                         { return "[endless]" }
func (s *endlessSource) Frames(madecode.Place) []symtab.Frame { return nil }
func (s *endlessSource) Generation() uint64                   { return 0 }
func (s *endlessSource) Bytes() int64                         { return 0 }
func (s *endlessSource) Close()                               {}
func (s *endlessSource) Refresh(limit int64) (more bool, err error) {
	time.Sleep(10 * time.Millisecond)
	s.read += limit
	return true, nil
}
