package harness

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// KernelObjects are the BPF objects that a process holds, by id.
type KernelObjects struct {
	Programs, Maps, Links []uint32
	// PerfEvents is how many perf events it has open.
	PerfEvents int
}

// HeldKernelObjects reads from /proc/PID/fdinfo what BPF objects a process holds.
// Only its own are found, whatever else on the host uses BPF.
func HeldKernelObjects(t TB, pid int) KernelObjects {
	t.Helper()
	var o KernelObjects
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if err != nil {
			continue // closed since
		}
		switch {
		case strings.HasPrefix(to, "anon_inode:bpf") || strings.HasPrefix(to, "anon_inode:[bpf"):
			ids, err := fdIDs(filepath.Join(proc, "fdinfo", fd.Name()))
			if err != nil {
				continue
			}
			// A link names its program, too.
			if id, ok := ids["link_id"]; ok {
				o.Links = append(o.Links, id)
			} else if id, ok := ids["prog_id"]; ok {
				o.Programs = append(o.Programs, id)
			} else if id, ok := ids["map_id"]; ok {
				o.Maps = append(o.Maps, id)
			}
		case strings.Contains(to, "perf_event"):
			o.PerfEvents++
		}
	}
	return o
}

func fdIDs(path string) (map[string]uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]uint32{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if !ok || !strings.HasSuffix(name, "_id") {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32); err == nil {
			out[name] = uint32(n)
		}
	}
	return out, lines.Err()
}

// CheckGone tests that the kernel has freed the objects. It does so after a grace
// period, so this waits for up to 10 s.
func (o KernelObjects) CheckGone(t TB) {
	t.Helper()
	if len(o.Programs) == 0 || len(o.Maps) == 0 {
		t.Errorf("the agent held no BPF programs or maps: %+v", o)
	}
	Eventually(t, 10*time.Second, "the agent's BPF objects are gone", func() error {
		for _, id := range o.Programs {
			if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
				p.Close()
				return fmt.Errorf("program %d is there", id)
			}
		}
		for _, id := range o.Maps {
			if m, err := ebpf.NewMapFromID(ebpf.MapID(id)); err == nil {
				m.Close()
				return fmt.Errorf("map %d is there", id)
			}
		}
		return nil
	})
}

// Threads and open files of a process.
func Threads(t TB, pid int) int { return count(t, pid, "task") }

// OpenFiles is how many file descriptors a process has open.
func OpenFiles(t TB, pid int) int { return count(t, pid, "fd") }

func count(t TB, pid int, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), dir))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// ResidentBytes is the resident memory of a process (VmRSS) and its highest so far
// (VmHWM), from /proc/PID/status.
func ResidentBytes(pid int) (now, peak int64, err error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		if name != "VmRSS" && name != "VmHWM" {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/%d/status: %s: %w", pid, name, err)
		}
		if name == "VmRSS" {
			now = kb << 10
		} else {
			peak = kb << 10
		}
	}
	return now, peak, nil
}
