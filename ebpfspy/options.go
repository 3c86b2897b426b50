package ebpfspy

import (
	"fmt"
	"time"

	"github.com/spanflame/spanflame/symtab"
)

// UnknownStyle says what stands for a frame whose function is not known.
type UnknownStyle string

// Styles of frames without a name.
const (
	UnknownModule       UnknownStyle = "module"        // [libc.so.6]
	UnknownModuleOffset UnknownStyle = "module_offset" // [libc.so.6]+0x1f3a
	UnknownAddress      UnknownStyle = "address"       // 0x7f12a4001f3a: each process's own
)

// Options of a session. The zero value works.
type Options struct {
	Frequency     int  // samples a second and CPU; 0: DefaultFrequency
	DisableCPU    bool // no on-CPU samples
	DisableUser   bool
	DisableKernel bool
	// CommFrame puts the thread's name above the root of each stack.
	CommFrame bool
	// Threads keeps threads apart; their names are Sample.Thread.
	Threads bool
	Unknown UnknownStyle // "": UnknownModule
	// Preload lets Start wait until the kernel has the mappings and the unwind tables of
	// the targets' processes, for PreloadWait at most; else the first samples ask for them.
	Preload bool
	Symbols symtab.Options
	OffCPU  OffCPUOptions
	Python  PythonOptions

	// Sizes of what one round can hold, of which the kernel keeps two.
	MaxStacks  int   // distinct (process, stack) pairs; 0: DefaultMaxStacks
	ArenaBytes int64 // memory of their frames; 0: DefaultArenaBytes

	TableBytes int64 // memory of unwind tables in the kernel; 0: DefaultTableBytes

	JITBytes int64 // memory of the names of code that processes make; 0: DefaultJITBytes

	MaxProcesses   int // followed at once; 0: DefaultMaxProcesses
	MaxExcluded    int // processes that the kernel knows to be no targets; 0: DefaultMaxExcluded
	SidebandBytes  int // ring of mapping records, a CPU; 0: DefaultSidebandBytes
	EventRingBytes int // ring of process events; 0: DefaultEventRingBytes

	ProcFS string // "": /proc
}

// PythonOptions say whether and how far Python functions are read of the memory of
// processes.
type PythonOptions struct {
	Disabled     bool // the interpreter's own frames are shown
	MaxFunctions int  // whose names are kept in the kernel; 0: DefaultMaxFunctions
	MaxThreads   int  // whose state is remembered; 0: DefaultPythonThreads
}

// Defaults of Options.
const (
	DefaultFrequency      = 97
	MaxFrequency          = 1000
	DefaultMaxStacks      = 32768
	DefaultArenaBytes     = 8 << 20
	DefaultTableBytes     = 128 << 20
	DefaultJITBytes       = 64 << 20
	PreloadWait           = 3 * time.Second
	DefaultMaxProcesses   = 16384
	DefaultMaxExcluded    = 4096
	DefaultMaxFunctions   = 16384
	DefaultPythonThreads  = 8192
	DefaultSidebandBytes  = 128 << 10
	DefaultEventRingBytes = 256 << 10
)

// withDefaults fills in what is zero and rejects what is out of bounds.
func (o Options) withDefaults() (Options, error) {
	set := func(v *int, def, min, max int, name string) error {
		if *v == 0 {
			*v = def
		}
		if *v < min || *v > max {
			return fmt.Errorf("%s is %d, want %d to %d", name, *v, min, max)
		}
		return nil
	}
	if o.ArenaBytes == 0 {
		o.ArenaBytes = DefaultArenaBytes
	}
	if o.ArenaBytes < 1<<20 || o.ArenaBytes > 1<<30 {
		return o, fmt.Errorf("arena bytes is %d, want 1 MiB to 1 GiB", o.ArenaBytes)
	}
	if o.TableBytes == 0 {
		o.TableBytes = DefaultTableBytes
	}
	if o.TableBytes < 1<<20 || o.TableBytes > 4<<30 {
		return o, fmt.Errorf("table bytes is %d, want 1 MiB to 4 GiB", o.TableBytes)
	}
	if o.JITBytes == 0 {
		o.JITBytes = DefaultJITBytes
	}
	if o.JITBytes < 1<<20 || o.JITBytes > 4<<30 {
		return o, fmt.Errorf("JIT bytes is %d, want 1 MiB to 4 GiB", o.JITBytes)
	}
	if o.Unknown == "" {
		o.Unknown = UnknownModule
	}
	switch o.Unknown {
	case UnknownModule, UnknownModuleOffset, UnknownAddress:
	default:
		return o, fmt.Errorf("style of unknown symbols is %q, want module, module_offset or address", o.Unknown)
	}
	if o.ProcFS == "" {
		o.ProcFS = "/proc"
	}
	for _, err := range []error{
		set(&o.Frequency, DefaultFrequency, 1, MaxFrequency, "frequency"),
		set(&o.MaxStacks, DefaultMaxStacks, 1024, 1<<20, "max stacks"),
		set(&o.MaxProcesses, DefaultMaxProcesses, 64, 1<<20, "max processes"),
		set(&o.MaxExcluded, DefaultMaxExcluded, 64, 1<<20, "max excluded"),
		set(&o.OffCPU.MaxEvents, DefaultMaxEvents, windowsASecond, MaxMaxEvents, "max events"),
		set(&o.OffCPU.MaxThreads, DefaultMaxThreads, 64, 1<<20, "max threads"),
		set(&o.Python.MaxFunctions, DefaultMaxFunctions, 1024, 1<<20, "max functions of Python"),
		set(&o.Python.MaxThreads, DefaultPythonThreads, 1024, 1<<20, "max threads of Python"),
		set(&o.SidebandBytes, DefaultSidebandBytes, 16<<10, 16<<20, "side-band bytes"),
		set(&o.EventRingBytes, DefaultEventRingBytes, 16<<10, 64<<20, "event ring bytes"),
	} {
		if err != nil {
			return o, err
		}
	}
	if o.OffCPU.Idle == "" {
		o.OffCPU.Idle = IdleLabel
	}
	switch o.OffCPU.Idle {
	case IdleLabel, IdleKeep, IdleDrop:
	default:
		return o, fmt.Errorf("idle is %q, want label, keep or drop", o.OffCPU.Idle)
	}
	if o.OffCPU.MinBlock < 0 || o.OffCPU.MinBlock > time.Minute {
		return o, fmt.Errorf("min block is %s, want 0 to 1m", o.OffCPU.MinBlock)
	}
	for name, v := range map[string]int{"side-band bytes": o.SidebandBytes, "event ring bytes": o.EventRingBytes} {
		if v&(v-1) != 0 {
			return o, fmt.Errorf("%s is %d, want a power of two", name, v)
		}
	}
	return o, nil
}

// period is the time that one sample stands for.
func (o Options) period() time.Duration {
	return time.Second / time.Duration(o.Frequency)
}

// sameKernelSide says whether the kernel's maps and rings need no change.
func (o Options) sameKernelSide(p Options) bool {
	return o.Python == p.Python && o.OffCPU.Enabled == p.OffCPU.Enabled && o.OffCPU.MaxThreads == p.OffCPU.MaxThreads && o.DisableCPU == p.DisableCPU &&
		o.MaxStacks == p.MaxStacks && o.ArenaBytes == p.ArenaBytes && o.TableBytes == p.TableBytes && o.MaxProcesses == p.MaxProcesses && o.MaxExcluded == p.MaxExcluded &&
		o.SidebandBytes == p.SidebandBytes && o.EventRingBytes == p.EventRingBytes
}
