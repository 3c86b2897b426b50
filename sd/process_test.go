package sd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestReadFakeProcess(t *testing.T) {
	proc := fakeProc(t,
		fakeProcess{pid: 12, parent: 1, start: 99, comm: "nginx", vsize: 1, uid: 0, exe: "/usr/sbin/nginx (deleted)", cwd: "/srv",
			args: []string{"nginx:", "master", "process"}, cgroup: "0::/system.slice/docker-" + idA + ".scope\n", netns: 4026531840, nsPIDs: "12\t3"},
		fakeProcess{pid: 13, parent: 2, comm: "kswapd0", flags: pfKernelThread, cgroup: "0::/\n"},
		fakeProcess{pid: 14, parent: 2, comm: "modprobe", flags: pfKernelThread, vsize: 1, exe: "/sbin/modprobe", withoutStatus: true},
	)
	got, err := ListProcesses(proc)
	if err != nil {
		t.Fatal(err)
	}
	want := []Process{
		{PID: 12, Start: 99, Parent: 1, Comm: "nginx", Exe: "/usr/sbin/nginx", Cwd: "/srv", CommandLine: "nginx: master process", UID: 0, Username: "root",
			CgroupPath: "/system.slice/docker-" + idA + ".scope", SystemdUnit: "docker-" + idA + ".scope", ContainerID: idA, NetNS: 4026531840, PIDInNS: 3},
		{PID: 13, Parent: 2, Comm: "kswapd0", UID: 0, Username: "root", CgroupPath: "/", PIDInNS: 13, Kernel: true},
		{PID: 14, Parent: 2, Comm: "modprobe", Exe: "/sbin/modprobe", UID: -1, Kernel: true},
	}
	if len(got) != len(want) {
		t.Fatalf("%d processes", len(got))
	}
	for i := range want {
		if *got[i] != want[i] {
			t.Errorf("got  %+v\nwant %+v", *got[i], want[i])
		}
	}
	if got[0].IsKernelThread() || !got[1].IsKernelThread() || got[2].IsKernelThread() {
		t.Error("kernel threads are not told from programs")
	}
}

func TestReadBounds(t *testing.T) {
	proc := fakeProc(t, fakeProcess{pid: 5, start: 1, comm: "x", vsize: 1, args: []string{strings.Repeat("é", maxCommandLine)}, cgroup: "0::/" + strings.Repeat("a", 2*maxCgroupBytes)})
	p, err := ReadProcess(proc, 5)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.CommandLine); n > MaxLabelValueBytes || n < maxCommandLine-4 {
		t.Errorf("%d bytes of the command line", n)
	}
	if n := len(p.CgroupPath); n > maxCgroupBytes {
		t.Errorf("%d bytes of the control group", n)
	}
}

func TestReadRealProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.Dir = "/usr"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := PID(cmd.Process.Pid)
	var p *Process
	for deadline := time.Now().Add(10 * time.Second); ; {
		var err error
		if p, err = ReadProcess("/proc", pid); err != nil {
			t.Fatal(err)
		}
		if p.CommandLine == "sleep 60" || time.Now().After(deadline) { // before exec it is this test, and during it nothing
			break
		}
		time.Sleep(time.Millisecond)
	}
	exe, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		t.Fatal(err)
	}
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if p.Comm != "sleep" || p.Exe != exe || p.Cwd != "/usr" || p.CommandLine != "sleep 60" || p.Parent != PID(os.Getpid()) ||
		p.UID != int64(os.Geteuid()) || p.Kernel || p.NetNS != namespaceInode([]byte(ns)) || p.PIDInNS == 0 {
		t.Errorf("got %+v", p)
	}
	if start, err := ReadStart("/proc", pid); err != nil || start != p.Start {
		t.Errorf("started at %d (%v), want %d", start, err, p.Start)
	}
	boot, err := bootTime("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if started := boot.Add(time.Duration(p.Start) * time.Second / ticksPerSecond); time.Since(started).Abs() > time.Minute {
		t.Errorf("started at %v", started)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if _, err := ReadProcess("/proc", pid); !errors.Is(err, ErrProcessGone) {
		t.Errorf("after its end: %v", err)
	}
	if _, err := ReadStart("/proc", pid); !errors.Is(err, ErrProcessGone) {
		t.Errorf("the start after its end: %v", err)
	}
}

// The descriptor of a process's directory must not lead to a successor.
func TestDirectoryIsOfOneProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s := new(scratch)
	if _, err := readStat(int(dir.Fd()), s); !errors.Is(err, ErrProcessGone) {
		t.Errorf("got %v", err)
	}
}

// Every process of this host can be read, and nothing is left open.
func TestListRealProcesses(t *testing.T) {
	before := openFiles(t)
	processes, err := ListProcesses("/proc")
	if err != nil {
		t.Fatal(err)
	}
	self := false
	for i, p := range processes {
		self = self || p.PID == PID(os.Getpid())
		if i > 0 && processes[i-1].PID >= p.PID {
			t.Error("not in order")
		}
		if p.Comm == "" {
			t.Errorf("process %d has no name", p.PID)
		}
	}
	if !self {
		t.Error("this process is not among them")
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files open before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "passwd")
	u := &users{path: path}
	if got := u.name(0); got != "" {
		t.Errorf("without a file: %q", got)
	}
	write(t, path, "root:x:0:0:root:/root:/bin/sh\nbroken\nme:x:1000:1000::/:/bin/sh\nalias:x:1000:1:::\nnone:x:-1:0:::\n")
	if got := u.name(1000); got != "" {
		t.Errorf("the file was read again at once: %q", got)
	}
	u.checked = time.Now().Add(-2 * passwdCheckPeriod)
	for uid, want := range map[int64]string{0: "root", 1000: "me", 7: "", -1: ""} {
		if got := u.name(uid); got != want {
			t.Errorf("user %d is %q, want %q", uid, got, want)
		}
	}
	write(t, path, "you:x:1000:1000::/home/you:/bin/sh\n")
	u.checked = time.Now().Add(-2 * passwdCheckPeriod)
	if got := u.name(1000); got != "you" {
		t.Errorf("after a change: %q", got)
	}
}

func BenchmarkReadProcess(b *testing.B) {
	b.ReportAllocs()
	pid := PID(os.Getpid())
	for b.Loop() {
		if _, err := ReadProcess("/proc", pid); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadStart(b *testing.B) {
	b.ReportAllocs()
	pid := PID(os.Getpid())
	for b.Loop() {
		if _, err := ReadStart("/proc", pid); err != nil {
			b.Fatal(err)
		}
	}
}
