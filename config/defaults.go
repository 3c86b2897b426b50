package config

import (
	"os"
	"path/filepath"
	"strconv"
	"time"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/sd"
)

// Default is the configuration without a file, and what a file begins from: all
// processes of this host, on-CPU, kept in the agent's own store and shown on its
// page.
func Default() *Config {
	return &Config{
		Global: Global{
			PushInterval:   model.Duration(15 * time.Second),
			ExternalLabels: labels.EmptyLabels(),
		},
		Server: Server{ListenAddress: "127.0.0.1:4041"},
		Profiles: Profiles{
			CPU:    CPU{Enabled: true, Frequency: 97, User: true, Kernel: true},
			OffCPU: OffCPU{MinBlock: model.Duration(time.Millisecond), MaxEventsPerSecond: 250, MaxThreads: 16384, Idle: "label"},
		},
		Symbols: Symbols{
			Demangle:      "full",
			Inline:        true,
			Unknown:       "module",
			CacheMaxBytes: 64 << 20,
			CacheMaxAge:   model.Duration(10 * time.Minute),
			CacheMaxFiles: 1024,

			DebuginfodURLs:       []promconfig.URL{},
			DebuginfodCachePath:  filepath.Join(stateDirectory(), "debuginfod"),
			DebuginfodCacheBytes: 1 << 30,
			DebuginfodTimeout:    model.Duration(90 * time.Second),

			MaxStacks:      32768,
			StackBytes:     8 << 20,
			UnwindBytes:    128 << 20,
			JITBytes:       64 << 20,
			MaxProcesses:   16384,
			MaxExcluded:    4096,
			SidebandBytes:  128 << 10,
			EventRingBytes: 256 << 10,
			MaxTargets:     sd.DefaultMaxTargets,
		},
		Python: Python{Enabled: true, MaxFunctions: 16384},
		TargetConfigs: []sd.JobConfig{{
			JobName:   "host",
			Discovery: discovery.Configs{sd.DefaultProcessSDConfig()},
		}},
		Store: Store{
			Enabled:   true,
			Path:      filepath.Join(stateDirectory(), "store"),
			Retention: model.Duration(6 * time.Hour),
			MaxBytes:  1 << 30,
		},
	}
}

// defaultWrite is what an endpoint begins from.
func defaultWrite() Write {
	return Write{
		RemoteTimeout:    model.Duration(30 * time.Second),
		HTTPClientConfig: promconfig.DefaultHTTPClientConfig,
	}
}

// stateDirectory is where the agent keeps data: /var/lib/spanflame for root, else
// the folder of the XDG base directory specification, $XDG_STATE_HOME/spanflame or
// ~/.local/state/spanflame; for a user without a home one of its own in the folder
// for temporary files.
func stateDirectory() string {
	const name = "spanflame"
	uid := os.Geteuid()
	if uid == 0 {
		return filepath.Join("/var/lib", name)
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) { // others are to be ignored
		return filepath.Join(dir, name)
	}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return filepath.Join(home, ".local/state", name)
	}
	return filepath.Join(os.TempDir(), name+"-"+strconv.Itoa(uid))
}
