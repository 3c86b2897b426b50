package agent

import (
	"time"

	"github.com/spanflame/spanflame/config"
	"github.com/spanflame/spanflame/ebpfspy"
	"github.com/spanflame/spanflame/symtab"
)

// sessionOptions are the options that a configuration asks for.
func sessionOptions(c *config.Config) ebpfspy.Options {
	o := ebpfspy.Options{
		Frequency:     c.Profiles.CPU.Frequency,
		DisableCPU:    !c.Profiles.CPU.Enabled,
		DisableUser:   !c.Profiles.CPU.User,
		DisableKernel: !c.Profiles.CPU.Kernel,
		CommFrame:     c.Profiles.CPU.CommFrame,
		Threads:       c.Profiles.CPU.Thread,
		Unknown:       ebpfspy.UnknownStyle(c.Symbols.Unknown),
		Symbols: symtab.Options{
			Demangle: c.Symbols.Demangle,
			Inline:   c.Symbols.Inline,
			MaxBytes: int64(c.Symbols.CacheMaxBytes),
			MaxAge:   time.Duration(c.Symbols.CacheMaxAge),
			MaxFiles: c.Symbols.CacheMaxFiles,
			Debuginfod: symtab.Debuginfod{
				Dir:      c.Symbols.DebuginfodCachePath,
				MaxBytes: int64(c.Symbols.DebuginfodCacheBytes),
				Timeout:  time.Duration(c.Symbols.DebuginfodTimeout),
			},
		},
		OffCPU: ebpfspy.OffCPUOptions{
			Enabled:    c.Profiles.OffCPU.Enabled,
			MinBlock:   time.Duration(c.Profiles.OffCPU.MinBlock),
			MaxEvents:  c.Profiles.OffCPU.MaxEventsPerSecond,
			MaxThreads: c.Profiles.OffCPU.MaxThreads,
			Idle:       ebpfspy.IdleStyle(c.Profiles.OffCPU.Idle),
			Waker:      c.Profiles.OffCPU.Waker,
		},
		Python:         ebpfspy.PythonOptions{Disabled: !c.Python.Enabled, MaxFunctions: c.Python.MaxFunctions},
		MaxStacks:      c.Symbols.MaxStacks,
		ArenaBytes:     int64(c.Symbols.StackBytes),
		TableBytes:     int64(c.Symbols.UnwindBytes),
		JITBytes:       int64(c.Symbols.JITBytes),
		MaxProcesses:   c.Symbols.MaxProcesses,
		MaxExcluded:    c.Symbols.MaxExcluded,
		SidebandBytes:  int(c.Symbols.SidebandBytes),
		EventRingBytes: int(c.Symbols.EventRingBytes),
	}
	for _, u := range c.Symbols.DebuginfodURLs {
		o.Symbols.Debuginfod.URLs = append(o.Symbols.Debuginfod.URLs, urlOf(u))
	}
	return o
}
