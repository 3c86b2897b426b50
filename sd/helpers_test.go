package sd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/prometheus/model/labels"
	"go.yaml.in/yaml/v3"
)

// fakeProcess is one process of a proc file system that a test makes up.
type fakeProcess struct {
	pid, parent   int
	start         uint64
	comm          string
	flags, vsize  uint64
	uid           int
	exe, cwd      string
	args          []string
	cgroup        string
	netns         uint64
	nsPIDs        string            // of NSpid; "": its pid
	sockets       []uint64          // inodes of open sockets
	net           map[string]string // files of its net folder
	withoutStatus bool
}

// fakeProc writes a proc file system and returns its folder.
func fakeProc(t testing.TB, processes ...fakeProcess) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "stat"), "cpu 1 2 3\nbtime 1700000000\n")
	for _, p := range processes {
		addFake(t, dir, p)
	}
	return dir
}

func addFake(t testing.TB, procfs string, p fakeProcess) {
	t.Helper()
	dir := filepath.Join(procfs, strconv.Itoa(p.pid))
	for _, sub := range []string{"ns", "fd", "net"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "stat"), fmt.Sprintf("%d (%s) S %d 1 1 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 %d %d 100\n", p.pid, p.comm, p.parent, p.flags, p.start, p.vsize))
	if p.nsPIDs == "" {
		p.nsPIDs = strconv.Itoa(p.pid)
	}
	if !p.withoutStatus {
		write(t, filepath.Join(dir, "status"), fmt.Sprintf("Name:\t%s\nUid:\t1\t%d\t2\t3\nGid:\t0\t0\t0\t0\nNSpid:\t%s\n", p.comm, p.uid, p.nsPIDs))
	}
	write(t, filepath.Join(dir, "cgroup"), p.cgroup)
	write(t, filepath.Join(dir, "cmdline"), strings.Join(p.args, "\x00")+"\x00")
	link(t, fmt.Sprintf("net:[%d]", p.netns), filepath.Join(dir, "ns/net"))
	if p.exe != "" {
		link(t, p.exe, filepath.Join(dir, "exe"))
	}
	if p.cwd != "" {
		link(t, p.cwd, filepath.Join(dir, "cwd"))
	}
	for i, inode := range p.sockets {
		link(t, fmt.Sprintf("socket:[%d]", inode), filepath.Join(dir, "fd", strconv.Itoa(i+3)))
	}
	for name, text := range p.net {
		write(t, filepath.Join(dir, "net", name), text)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t testing.TB, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

// jobs reads target_configs as they stand in a configuration file.
func jobs(t testing.TB, text string) []JobConfig {
	t.Helper()
	var out []JobConfig
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// testLog writes to the test's log, and not any more once the test is over:
// discovery libraries may log late.
func testLog(t testing.TB) log.Logger {
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return log.NewSyncLogger(log.LoggerFunc(func(keyvals ...any) error {
		select {
		case <-over:
		default:
			t.Log(keyvals...)
		}
		return nil
	}))
}

// running starts a manager with fast intervals, and stops it when the test ends.
func running(t testing.TB, opts Options, config string) *Manager {
	t.Helper()
	if opts.UpdateInterval == 0 {
		opts.UpdateInterval = 20 * time.Millisecond
	}
	if opts.ListenInterval == 0 {
		opts.ListenInterval = 20 * time.Millisecond
	}
	m, err := NewManager(testLog(t), nil, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	if err := m.ApplyConfig(jobs(t, config), labels.EmptyLabels()); err != nil {
		t.Fatal(err)
	}
	return m
}

// eventually asks for a process's target, each time that the manager says that
// something has changed, until it is the service that is wanted ("" for none).
func eventually(t testing.TB, m *Manager, p *Process, service string) *Target {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		target, why := m.FindTarget(p)
		got := ""
		if target != nil {
			got = target.ServiceName()
		}
		if got == service {
			return target
		}
		select {
		case <-m.Changed():
		case <-deadline:
			list, _ := m.Targets(20)
			t.Fatalf("process %d is %q (%s), want %q; targets: %v", p.PID, got, why, service, list)
		}
	}
}
