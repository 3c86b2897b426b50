// Package caps tells which capabilities (capabilities(7)) the agent has.
package caps

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Capability is a capability's number, include/uapi/linux/capability.h.
type Capability uint

// The capabilities that matter to the agent.
const (
	DACReadSearch     Capability = 2
	SysPtrace         Capability = 19
	SysAdmin          Capability = 21
	SysResource       Capability = 24
	Syslog            Capability = 34
	Perfmon           Capability = 38
	BPF               Capability = 39
	CheckpointRestore Capability = 40
)

var names = map[Capability]string{
	DACReadSearch: "CAP_DAC_READ_SEARCH", SysPtrace: "CAP_SYS_PTRACE", SysAdmin: "CAP_SYS_ADMIN",
	SysResource: "CAP_SYS_RESOURCE", Syslog: "CAP_SYSLOG", Perfmon: "CAP_PERFMON", BPF: "CAP_BPF",
	CheckpointRestore: "CAP_CHECKPOINT_RESTORE",
}

func (c Capability) String() string {
	if n, ok := names[c]; ok {
		return n
	}
	return "capability " + strconv.Itoa(int(c))
}

// Set is a set of capabilities.
type Set uint64

// Has says whether c is in the set, or a capability that includes it:
// CAP_SYS_ADMIN stands for CAP_BPF, CAP_PERFMON, CAP_CHECKPOINT_RESTORE and
// CAP_SYSLOG.
func (s Set) Has(c Capability) bool {
	if s&(1<<c) != 0 {
		return true
	}
	switch c {
	case BPF, Perfmon, CheckpointRestore, Syslog:
		return s&(1<<SysAdmin) != 0
	}
	return false
}

// Missing lists those of the capabilities that are not in the set.
func (s Set) Missing(want ...Capability) []Capability {
	var out []Capability
	for _, c := range want {
		if !s.Has(c) {
			out = append(out, c)
		}
	}
	return out
}

// Effective reads the capabilities that are in effect for this process.
func Effective() (Set, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read the agent's capabilities: %w", err)
	}
	return parse(b)
}

func parse(status []byte) (Set, error) {
	sc := bufio.NewScanner(bytes.NewReader(status))
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("read the agent's capabilities: CapEff is %q", v)
			}
			return Set(n), nil
		}
	}
	return 0, fmt.Errorf("read the agent's capabilities: no CapEff in /proc/self/status")
}

// Required are those without which nothing can be profiled.
var Required = []Capability{BPF, Perfmon, SysPtrace}

// Useful are those without which something is missing, each with what.
var Useful = []struct {
	Cap  Capability
	Lack string
}{
	{DACReadSearch, "executables that only their owner may read have no function names"},
	{CheckpointRestore, "executables that were deleted or replaced while they run have no function names"},
	{Syslog, "the kernel's functions have no names where kernel.kptr_restrict is set"},
}
