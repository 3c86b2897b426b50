// Package doctor finds out what of the agent works on this host, says it in words
// for people who have never heard of BPF, and says what to do about the rest. It
// changes nothing.
package doctor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/go-kit/log"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/internal/caps"
	"github.com/spanflame/spanflame/internal/cpus"
	"github.com/spanflame/spanflame/internal/perfevent"
)

// Status is how a check came out.
type Status string

// Statuses.
const (
	OK      Status = "ok"
	Limited Status = "limited" // profiling works, something is missing
	Broken  Status = "broken"  // nothing can be profiled
)

// Finding is the outcome of one check.
type Finding struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Found  string `json:"found"`          // what was found, in plain words
	Mend   string `json:"mend,omitempty"` // what to do about it
}

type check struct {
	name string
	run  func() Finding
}

func ok(found string) Finding            { return Finding{Status: OK, Found: found} }
func limited(found, mend string) Finding { return Finding{Status: Limited, Found: found, Mend: mend} }
func broken(found, mend string) Finding  { return Finding{Status: Broken, Found: found, Mend: mend} }

// TryRun starts a session and samples for a moment. It returns the number of
// samples taken.
type TryRun func(log.Logger) (samples uint64, err error)

// Examine runs all checks.
func Examine(try TryRun) []Finding {
	checks := []check{
		{"Linux version", kernelVersion},
		{"permissions", permissions},
		{"kernel type information", typeInformation},
		{"kernel lockdown", lockdown},
		{"kernel programs", programs},
		{"sampling clock", clock},
		{"switches of threads", switches},
		{"kernel function names", kernelNames},
		{"process information", processes},
		{"process ids", pidNamespace},
		{"deleted executables", mapFiles},
		{"open files", openFiles},
		{"tracing file system", tracing},
	}
	var out []Finding
	fatal := false
	for _, c := range checks {
		f := c.run()
		f.Name = c.name
		fatal = fatal || f.Status == Broken
		out = append(out, f)
	}
	if try != nil && !fatal {
		f := trial(try)
		f.Name = "a trial"
		out = append(out, f)
	}
	return out
}

// Worst is the worst status of all.
func Worst(fs []Finding) Status {
	worst := OK
	for _, f := range fs {
		if f.Status == Broken {
			return Broken
		}
		if f.Status == Limited {
			worst = Limited
		}
	}
	return worst
}

// Write prints the findings for a person.
func Write(w io.Writer, fs []Finding) error {
	var b strings.Builder
	b.WriteString("What spanflame needs, and what this host has:\n\n")
	sign := map[Status]string{OK: "  ok     ", Limited: "  LIMITED", Broken: "  BROKEN "}
	for _, f := range fs {
		fmt.Fprintf(&b, "%s  %-24s %s\n", sign[f.Status], f.Name, f.Found)
		if f.Mend != "" {
			fmt.Fprintf(&b, "           %-24s → %s\n", "", f.Mend)
		}
	}
	b.WriteString("\n")
	switch Worst(fs) {
	case OK:
		b.WriteString("Everything works. `spanflame run` profiles this host.\n")
	case Limited:
		b.WriteString("Profiling works here, with the limits named above.\n")
	case Broken:
		b.WriteString("Nothing can be profiled until what is BROKEN above is mended.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func kernelVersion() Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return broken("the kernel does not tell its version: "+err.Error(), "")
	}
	release := unix.ByteSliceToString(u.Release[:])
	machine := unix.ByteSliceToString(u.Machine[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return limited("Linux "+release+", whose number is not understood", "if something fails, compare with Linux 5.10")
	}
	if major < 5 || major == 5 && minor < 10 {
		return broken("Linux "+release+"; 5.10 is the oldest that works", "update the kernel (Debian 11, Ubuntu 22.04 and RHEL 9 have newer ones)")
	}
	if machine != "x86_64" && machine != "aarch64" {
		return broken("a "+machine+" processor; x86-64 and arm64 are supported", "")
	}
	return ok("Linux " + release + " on " + machine)
}

func permissions() Finding {
	set, err := caps.Effective()
	if err != nil {
		return broken(err.Error(), "run as root")
	}
	if missing := set.Missing(caps.Required...); len(missing) > 0 {
		return broken("this process lacks "+Join(missing), "run as root (sudo spanflame …), or give the service these capabilities")
	}
	for _, u := range caps.Useful {
		if !set.Has(u.Cap) {
			return limited(u.Cap.String()+" is missing: "+u.Lack, "run as root, or give the service "+u.Cap.String())
		}
	}
	return ok("this process may do all that it needs to")
}

// Join names capabilities as a list.
func Join(cs []caps.Capability) string {
	var s []string
	for _, c := range cs {
		s = append(s, c.String())
	}
	if len(s) > 1 {
		return strings.Join(s[:len(s)-1], ", ") + " and " + s[len(s)-1]
	}
	return strings.Join(s, "")
}

func typeInformation() Finding {
	if _, err := btf.LoadKernelSpec(); err != nil {
		return broken("the kernel does not describe its own data (no BTF in /sys/kernel/btf/vmlinux)", "use a distribution's kernel; one's own needs CONFIG_DEBUG_INFO_BTF=y")
	}
	return ok("the kernel describes its own data (BTF)")
}

func lockdown() Finding {
	b, err := os.ReadFile("/sys/kernel/security/lockdown")
	if err == nil && strings.Contains(string(b), "[confidentiality]") {
		return broken("the kernel is locked down (confidentiality): no program may look at others", "boot without lockdown=confidentiality; lockdown=integrity is fine")
	}
	return ok("not locked down against profiling")
}

func programs() Finding {
	if err := features.HaveProgramType(ebpf.PerfEvent); err != nil {
		return broken("the kernel refuses small programs that run at each sample (BPF): "+short(err), mendBPF(err))
	}
	if err := features.HaveMapType(ebpf.RingBuf); err != nil {
		return broken("the kernel lacks a way to report events (BPF ring buffer): "+short(err), mendBPF(err))
	}
	return ok("the kernel accepts small programs that run at each sample (BPF)")
}

func mendBPF(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "run as root; in a container, allow the bpf system call (no seccomp filter on it) and CAP_BPF"
	}
	return "use Linux 5.10 or newer with CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS"
}

func short(err error) string {
	s, _, _ := strings.Cut(err.Error(), "\n")
	return s
}

func clock() Finding {
	online, err := cpus.Online()
	if err != nil {
		return broken(err.Error(), "mount /sys")
	}
	for _, cpu := range online {
		ev, err := perfevent.OpenClock(cpu, time.Second)
		if err != nil {
			mend := "use a kernel with CONFIG_PERF_EVENTS"
			if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
				mend = "run as root or with CAP_PERFMON; in a container, allow the perf_event_open system call"
			}
			return broken(fmt.Sprintf("CPU %d cannot be sampled: %v", cpu, err), mend)
		}
		if err := ev.Close(); err != nil {
			return limited(err.Error(), "")
		}
	}
	return ok(fmt.Sprintf("each of the %d CPUs can be sampled", len(online)))
}

func switches() Finding {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "sched_switch", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return limited("time off the CPU cannot be profiled: "+short(err), mendBPF(err))
	}
	p.Close()
	return ok("time off the CPU can be profiled")
}

func kernelNames() Finding {
	b := make([]byte, 64)
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return limited("the kernel does not name its functions ("+err.Error()+")", "use a kernel with CONFIG_KALLSYMS")
	}
	defer f.Close()
	n, err := f.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		return limited("the kernel's function names cannot be read: "+err.Error(), "")
	}
	if strings.HasPrefix(string(b[:n]), "0000000000000000 ") {
		// On x86-64 the first symbol may really be at 0; the last ones are not.
		if all, err := os.ReadFile("/proc/kallsyms"); err == nil && zeroOnly(string(all)) {
			return limited("the kernel hides where its functions are", "sysctl kernel.kptr_restrict=1, and run with CAP_SYSLOG")
		}
	}
	return ok("the kernel names its functions")
}

func zeroOnly(kallsyms string) bool {
	for line := range strings.Lines(kallsyms) {
		if !strings.HasPrefix(line, "0000000000000000 ") {
			return false
		}
	}
	return true
}

func processes() Finding {
	d, err := os.Open("/proc")
	if err != nil {
		return broken("/proc cannot be read: "+err.Error(), "mount -t proc proc /proc")
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return broken("/proc cannot be read: "+err.Error(), "mount -t proc proc /proc")
	}
	all, hidden := 0, 0
	for _, n := range names {
		if n[0] < '0' || n[0] > '9' {
			continue
		}
		f, err := os.Open("/proc/" + n + "/maps")
		switch {
		case err == nil:
			f.Close()
			all++
		case errors.Is(err, os.ErrPermission):
			all++
			hidden++
		}
	}
	switch {
	case all == 0:
		return broken("/proc shows no process", "mount -t proc proc /proc")
	case hidden*2 > all:
		return limited(fmt.Sprintf("the memory layout of %d of %d processes cannot be read: their functions have no names", hidden, all),
			"run as root, or with CAP_SYS_PTRACE; in a container, share the host's /proc")
	case hidden > 0:
		return ok(fmt.Sprintf("/proc tells what the processes run (%d of %d keep their memory layout to themselves)", hidden, all))
	}
	return ok(fmt.Sprintf("/proc tells what the %d processes run", all))
}

// initPIDNamespace is the inode of the first PID namespace, PROC_PID_INIT_INO of
// include/linux/proc_ns.h.
const initPIDNamespace = "pid:[4026531836]"

func pidNamespace() Finding {
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return limited("the namespace of process ids cannot be read: "+err.Error(), "")
	}
	if link != initPIDNamespace {
		return limited("this is a container with process ids of its own: the kernel's do not match them", "share the host's process ids (docker run --pid=host, hostPID: true)")
	}
	return ok("the host's own process ids")
}

func mapFiles() Finding {
	entries, err := os.ReadDir("/proc/self/map_files")
	if err == nil {
		for _, e := range entries {
			if f, err := os.Open("/proc/self/map_files/" + e.Name()); err == nil {
				f.Close()
				return ok("executables can be read even after they were deleted")
			}
		}
	}
	return limited("executables that were deleted or replaced while they run cannot be read", "give the service CAP_CHECKPOINT_RESTORE (Linux 5.9), or run as root")
}

func openFiles() Finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return limited("the limit of open files cannot be read: "+err.Error(), "")
	}
	if l.Cur < 1024 {
		return limited(fmt.Sprintf("only %d files may be open at once", l.Cur), "ulimit -n 4096, or LimitNOFILE=4096 in the unit")
	}
	return ok(fmt.Sprintf("%d files may be open at once", l.Cur))
}

func tracing() Finding {
	for _, dir := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		if _, err := os.Stat(dir + "/events"); err == nil {
			return ok("mounted at " + dir)
		}
	}
	return limited("not mounted; profiling does not need it, tracing of requests will", "mount -t tracefs tracefs /sys/kernel/tracing")
}

func trial(try TryRun) Finding {
	n, err := try(log.NewNopLogger())
	if err != nil {
		return broken("starting the sampler failed: "+short(err), "please report it with this output")
	}
	if n == 0 {
		return limited("the sampler runs, and took no sample: the host was idle", "")
	}
	return ok(fmt.Sprintf("the sampler runs: %d samples in a moment", n))
}
