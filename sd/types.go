// Package sd decides which process belongs to which target: it runs
// Prometheus's service discovery, relabels what it finds exactly as Prometheus
// does, and matches the result against the processes of this host. It never
// profiles and never changes a process.
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
	UID         int64  // -1 if unknown
	Username    string
	CgroupPath  string
	SystemdUnit string
	ContainerID string
	NetNS       uint64 // inode of the network namespace, 0 if unknown
	PIDInNS     PID    // PID in its innermost PID namespace
}

// Target is what a process is profiled as.
type Target struct {
	// Labels are the series labels without __name__: after relabelling, without
	// "__…" labels, with service_name (never empty) and the external labels.
	Labels labels.Labels
	Job    string
	// Discovered are the labels before relabelling.
	Discovered labels.Labels
}

// ServiceName is the label service_name.
func (t *Target) ServiceName() string { return t.Labels.Get("service_name") }
