// Command init is the first process of the virtual machines of test/kernels: it mounts
// what the tests need, runs them, says on the console how they ended, and switches the
// machine off.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// dir has the tests and what they need.
const dir = "/spanflame"

// tests are the binaries, and which of their tests are run, as a pattern.
var tests = []struct{ binary, pattern string }{
	{"ebpfspy.test", "."},
	{"truth.test", "^TestStatic"},
}

func main() {
	if err := run(); err != nil {
		fmt.Println("init: error", err)
	}
	fmt.Println("init: end")
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("init: error switch off:", err)
	}
}

func run() error {
	if err := mountAll(); err != nil {
		return err
	}
	if err := upLoopback(); err != nil {
		return err
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	fmt.Printf("init: kernel %s\n", bytes.TrimSpace(release))
	for _, test := range tests {
		// What follows "--" on the kernel's command line.
		if len(os.Args) > 1 {
			test.pattern = os.Args[1]
		}
		runTest(test.binary, test.pattern)
	}
	return printKernelLog()
}

func mountAll() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tracefs", "/sys/kernel/tracing"}, {"bpf", "/sys/fs/bpf"}, {"tmpfs", "/tmp"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return nil
}

// upLoopback lets programs connect to each other.
func upLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring the loopback interface up: %w", err)
	}
	return nil
}

// runTest runs a test binary. It is not in init's own process, because packages look at
// /proc while they are initialised. An emulated processor is slow: tests that do the same
// again and again do it less often (-test.short).
func runTest(binary, pattern string) {
	fmt.Println("init: run", binary)
	cmd := exec.Command(dir+"/"+binary, "-test.v", "-test.short", "-test.timeout=15m", "-test.run="+pattern)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "SPANFLAME_TEST_REQUIRE=1", "SPANFLAME_TEST_SET_CLOCK=1",
		"SPANFLAME_BIN=" + dir + "/spanflame", "SPANFLAME_TEST_WORKLOADS=" + dir,
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Println("init: error", err)
		return
	}
	fmt.Println("init: exit", cmd.ProcessState.ExitCode(), binary)
}

// printKernelLog prints the warnings and errors of the kernel, each with its level in
// front.
func printKernelLog() error {
	const readAll, size = 3, 1 << 20 // SYSLOG_ACTION_READ_ALL
	buf := make([]byte, size)
	n, err := unix.Klogctl(readAll, buf)
	if err != nil {
		return fmt.Errorf("read the kernel's log: %w", err)
	}
	for line := range strings.Lines(string(buf[:n])) {
		if len(line) > 2 && line[0] == '<' && line[1] <= '4' && line[2] == '>' {
			fmt.Print(line)
		}
	}
	return nil
}
