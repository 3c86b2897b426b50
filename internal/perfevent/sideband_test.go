package perfevent

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/internal/cpus"
)

func FuzzParse(f *testing.F) {
	f.Add(uint32(unix.PERF_RECORD_MMAP2), uint16(0), make([]byte, 96))
	f.Add(uint32(unix.PERF_RECORD_COMM), uint16(unix.PERF_RECORD_MISC_COMM_EXEC), []byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Add(uint32(unix.PERF_RECORD_LOST), uint16(0), make([]byte, 32))
	f.Fuzz(func(t *testing.T, typ uint32, misc uint16, b []byte) {
		rec, ok := parse(typ, misc, b)
		if !ok {
			return
		}
		if rec.Time != binary.NativeEndian.Uint64(b[len(b)-8:]) {
			t.Fatal("time is not the trailer's")
		}
	})
}

// The records of a real process: it takes up a program and maps its file.
func TestSidebandOfRealProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("perf events of all processes need root")
	}
	online, err := cpus.Online()
	if err != nil {
		t.Fatal(err)
	}
	var all []*Sideband
	for _, c := range online {
		s, err := OpenSideband(c, 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		all = append(all, s)
	}
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pid := uint32(cmd.ProcessState.Pid())
	want, err := filepath.EvalSymlinks("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(want, &st); err != nil {
		t.Fatal(err)
	}
	var execTime, mapTime uint64
	for _, s := range all {
		err := s.Read(func(r Record) {
			switch {
			case r.Exec != nil && r.Exec.PID == pid:
				execTime = r.Time
				if r.Exec.Comm != "true" {
					t.Errorf("comm = %q", r.Exec.Comm)
				}
			case r.Mmap != nil && r.Mmap.PID == pid && r.Mmap.Filename == want:
				mapTime = r.Time
				if r.Mmap.Inode != st.Ino || unix.Mkdev(r.Mmap.Major, r.Mmap.Minor) != st.Dev {
					t.Errorf("file = %d:%d inode %d, want device %#x inode %d", r.Mmap.Major, r.Mmap.Minor, r.Mmap.Inode, st.Dev, st.Ino)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	if execTime == 0 || mapTime <= execTime || time.Duration(now.Nano()-int64(mapTime)) > time.Minute {
		t.Fatalf("exec at %d, mapped at %d, now %d", execTime, mapTime, now.Nano())
	}
	for _, s := range all {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatalf("second Close: %v", err)
		}
	}
}
