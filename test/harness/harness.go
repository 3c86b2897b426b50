// Package harness is what the tests of the whole agent share: it builds the agent
// and the workloads, starts and stops them as processes of their own, asks the
// agent's HTTP server, and reads profiles. It is for tests and benchmarks only.
package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Environment variables.
const (
	// EnvBinary names an agent to test instead of the one of this tree.
	EnvBinary = "SPANFLAME_BIN"
	// EnvWorkloads names a folder of workloads that are built already, for a machine that
	// has neither a compiler nor this tree.
	EnvWorkloads = "SPANFLAME_TEST_WORKLOADS"
	// EnvRequire, if not empty, makes a test fail that would be skipped because
	// something is missing on this machine.
	EnvRequire = "SPANFLAME_TEST_REQUIRE"
)

// SkipOrFail skips the test for the reason, or fails it if EnvRequire is set.
func SkipOrFail(t TB, format string, args ...any) {
	t.Helper()
	if os.Getenv(EnvRequire) != "" {
		t.Fatalf(format+", and "+EnvRequire+" is set", args...)
	}
	t.Skipf(format, args...)
}

// NeedRoot skips the test, or fails it, if it does not run as root.
func NeedRoot(t TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		SkipOrFail(t, "this profiles the host, which takes root")
	}
}

// NeedTool skips the test, or fails it, if a program is not in PATH.
func NeedTool(t TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		SkipOrFail(t, "the program %s is missing (make test-deps): %v", name, err)
	}
	return path
}

// Root is the folder of the module.
var Root = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("not inside the module")
		}
		dir = up
	}
})

// Build is a set of programs that were built of this tree, kept in bin/test.
type Build struct {
	Dir   string // "" if SPANFLAME_BIN names the agent
	Agent string
}

// Built builds the agent, unless SPANFLAME_BIN names one. It does so once a process.
var Built = sync.OnceValues(func() (Build, error) {
	if agent := os.Getenv(EnvBinary); agent != "" {
		path, err := filepath.Abs(agent)
		if err != nil {
			return Build{}, err
		}
		if _, err := os.Stat(path); err != nil {
			return Build{}, fmt.Errorf("%s: %w", EnvBinary, err)
		}
		return Build{Agent: path}, nil
	}
	root, err := Root()
	if err != nil {
		return Build{}, err
	}
	dir := filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Build{}, err
	}
	b := Build{Dir: dir, Agent: filepath.Join(dir, "spanflame")}
	return b, b.locked(func() error {
		return command(root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", b.Agent, "./cmd/agent")
	})
})

// locked keeps test binaries that run at the same time from building at once.
func (b Build) locked(f func() error) error {
	lock, err := os.OpenFile(filepath.Join(b.Dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	for {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	runtime.KeepAlive(lock)
	return f()
}

// AgentPath is the agent to test.
func AgentPath(t TB) string {
	t.Helper()
	b, err := Built()
	if err != nil {
		t.Fatalf("build the agent: %v", err)
	}
	return b.Agent
}

func command(dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}
