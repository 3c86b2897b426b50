// Package sd decides which process belongs to which target: it runs
// Prometheus's service discovery, relabels what it finds exactly as Prometheus
// does, and matches the result against the processes of this host. It never
// profiles and never changes a process.
//
// The labels are described in docs/targets.md.
package sd

import (
	"github.com/prometheus/prometheus/model/labels"
)

// PID is a process id (the kernel's tgid) in the agent's PID namespace.
type PID int32

// StartTicks is a process's start time in clock ticks (1/100 s) since boot,
// field 22 of /proc/PID/stat (proc(5)). A PID is only ever trusted together with
// it.
type StartTicks uint64

// Process is what is known of one process. Fields that could not be read are
// empty: a process may be gone before it was looked at.
type Process struct {
	PID         PID
	Start       StartTicks
	Parent      PID
	Comm        string
	Exe         string // path in the process's own root
	Cwd         string
	CommandLine string // arguments joined by a blank, bounded
	UID         int64  // effective user id, -1 if unknown
	Username    string
	CgroupPath  string
	SystemdUnit string
	ContainerID string // of the innermost container
	NetNS       uint64 // inode of the network namespace, 0 if unknown
	PIDInNS     PID    // PID in its innermost PID namespace
	// Kernel says that the kernel made the process as a thread of its own
	// (PF_KTHREAD). See IsKernelThread.
	Kernel bool
}

// IsKernelThread says whether the process runs no program but the kernel's code.
// A helper that the kernel started and that has executed a program since is none.
func (p *Process) IsKernelThread() bool { return p.Kernel && p.Exe == "" }

// Target is what a process is profiled as. It is immutable. Targets with the same
// job and the same labels are one and the same pointer for as long as anybody
// holds it.
type Target struct {
	// Labels are the series labels without __name__: after relabelling, without
	// "__…" labels, with service_name (never empty) and the external labels.
	Labels labels.Labels
	Job    string
	// Discovered are the labels before relabelling. When several discovered
	// targets come to the same labels, as the processes of one service do, they
	// are those of the first that was seen.
	Discovered labels.Labels
}

// ServiceName is the label service_name.
func (t *Target) ServiceName() string { return t.Labels.Get(ServiceNameLabel) }

// ServiceNameLabel is the label that every target has.
const ServiceNameLabel = "service_name"
