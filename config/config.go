// Package config is the configuration file: its types, defaults and validation.
// It reads nothing but that file, and starts nothing.
//
// The file is YAML and strict: a key that is not known is an error. Where Prometheus
// has a type for something, it is used: relabel_configs, *_sd_configs, the HTTP
// client, durations. Keys of what the agent cannot do are not accepted.
package config

import (
	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/sd"
)

// Config is the whole file. Its defaults are those of Default.
type Config struct {
	Global        Global         `yaml:"global"`
	Server        Server         `yaml:"server"`
	Profiles      Profiles       `yaml:"profiles"`
	Symbols       Symbols        `yaml:"symbols"`
	Python        Python         `yaml:"python"`
	TargetConfigs []sd.JobConfig `yaml:"target_configs"`
	Write         []*Write       `yaml:"write,omitempty"`
	Store         Store          `yaml:"store"`
	SelfProfiling SelfProfiling  `yaml:"self_profiling"`
}

// Global holds for all targets.
type Global struct {
	// PushInterval is the length of a round.
	PushInterval model.Duration `yaml:"push_interval"`
	// ExternalLabels are added to every target that has no label of that name.
	// $NAME and ${NAME} in values stand for environment variables, $$ for a dollar.
	ExternalLabels labels.Labels `yaml:"external_labels"`
}

// Server is the agent's page and API.
type Server struct {
	// ListenAddress is host:port; "" is no server.
	ListenAddress string `yaml:"listen_address"`
	// WebConfigFile is a file of the exporter toolkit: TLS and basic authentication.
	WebConfigFile string `yaml:"web_config_file,omitempty"`
}

// Profiles says what is profiled.
type Profiles struct {
	CPU    CPU    `yaml:"cpu"`
	OffCPU OffCPU `yaml:"off_cpu"`
}

// CPU is on-CPU profiling.
type CPU struct {
	Enabled   bool `yaml:"enabled"`
	Frequency int  `yaml:"frequency"` // samples a second and CPU
	User      bool `yaml:"user"`      // user stacks
	Kernel    bool `yaml:"kernel"`    // kernel stacks
	// Thread adds the sample label thread, the thread's name.
	Thread bool `yaml:"thread"`
	// CommFrame puts the thread's name above the root of each stack.
	CommFrame bool `yaml:"comm_frame"`
}

// OffCPU is profiling of the time that threads are off their CPU: waiting, or runnable
// while others run.
type OffCPU struct {
	Enabled bool `yaml:"enabled"`
	// MinBlock is from which length on each time off the CPU is sampled, as long as
	// MaxEventsPerSecond allows; shorter ones are sampled in proportion to their length.
	MinBlock model.Duration `yaml:"min_block"`
	// MaxEventsPerSecond bounds the stacks that are taken on each CPU. Those that are
	// taken stand for all.
	MaxEventsPerSecond int `yaml:"max_events_per_second"`
	MaxThreads         int `yaml:"max_threads"` // followed at once
	// Idle says what becomes of threads that wait for work: drop, label or keep.
	Idle string `yaml:"idle"`
	// Waker adds who woke the thread above its stack.
	Waker bool `yaml:"waker"`
}

// Symbols says how addresses become names, and bounds what that and the kernel's
// maps take.
type Symbols struct {
	// Demangle says how much of C++ and Rust names is kept: none (as in the file),
	// simplified, templates or full.
	Demangle string `yaml:"demangle"`
	// Inline adds a frame for each inlined function.
	Inline bool `yaml:"inline"`
	// Unknown says what stands for a frame without a name: module, module_offset or
	// address.
	Unknown string `yaml:"unknown"`

	CacheMaxBytes Bytes          `yaml:"cache_max_bytes"` // of all symbol tables
	CacheMaxAge   model.Duration `yaml:"cache_max_age"`   // of a table that is not used
	CacheMaxFiles int            `yaml:"cache_max_files"` // tables, and files held open

	// DebuginfodURLs are servers that are asked for debug files; none: nobody is asked.
	DebuginfodURLs       []promconfig.URL `yaml:"debuginfod_urls"`
	DebuginfodCachePath  string           `yaml:"debuginfod_cache_path"`
	DebuginfodCacheBytes Bytes            `yaml:"debuginfod_cache_bytes"` // of all files in it
	// DebuginfodTimeout is how long a server may take for its answer, and for each
	// further 100 KiB.
	DebuginfodTimeout model.Duration `yaml:"debuginfod_timeout"`

	MaxStacks      int   `yaml:"max_stacks"`       // distinct stacks of processes in a round
	StackBytes     Bytes `yaml:"stack_bytes"`      // of their frames; the kernel holds two such rounds
	UnwindBytes    Bytes `yaml:"unwind_bytes"`     // of unwind tables in the kernel, taken as needed
	JITBytes       Bytes `yaml:"jit_bytes"`        // of the names of code that processes make
	MaxProcesses   int   `yaml:"max_processes"`    // followed at once
	MaxExcluded    int   `yaml:"max_excluded"`     // processes that the kernel knows to be no targets
	SidebandBytes  Bytes `yaml:"sideband_bytes"`   // ring of mapping records of each CPU; a power of two
	EventRingBytes Bytes `yaml:"event_ring_bytes"` // ring of process events; a power of two
	MaxTargets     int   `yaml:"max_targets"`      // with labels of their own, at once
}

// Python says whether and how far the functions of Python programs are named.
type Python struct {
	Enabled bool `yaml:"enabled"`
	// MaxFunctions bounds those whose names the kernel keeps.
	MaxFunctions int `yaml:"max_functions"`
}

// Write is an endpoint that profiles are pushed to.
type Write struct {
	Name string         `yaml:"name,omitempty"`
	URL  promconfig.URL `yaml:"url"`
	// Headers are sent with each request; they are hidden when printed.
	Headers       map[string]promconfig.Secret `yaml:"headers,omitempty"`
	RemoteTimeout model.Duration               `yaml:"remote_timeout"` // of one request

	HTTPClientConfig promconfig.HTTPClientConfig `yaml:",inline"`
}

// UnmarshalYAML fills in the defaults of an endpoint.
func (w *Write) UnmarshalYAML(unmarshal func(any) error) error {
	*w = defaultWrite()
	type plain Write
	if err := unmarshal((*plain)(w)); err != nil {
		return err
	}
	// Not called for a struct that is inlined.
	return w.HTTPClientConfig.Validate()
}

// HeaderValues are the headers as they are sent.
func (w *Write) HeaderValues() map[string]string { return values(w.Headers) }

// Store is the store inside the agent.
type Store struct {
	Enabled   bool           `yaml:"enabled"`
	Path      string         `yaml:"path"`
	Retention model.Duration `yaml:"retention"`
	MaxBytes  Bytes          `yaml:"max_bytes"`
}

// SelfProfiling makes the agent push profiles of itself, by the Go runtime.
type SelfProfiling struct {
	Enabled bool                         `yaml:"enabled"`
	URL     promconfig.URL               `yaml:"url,omitempty"`
	Headers map[string]promconfig.Secret `yaml:"headers,omitempty"`
}

// HeaderValues are the headers as they are sent.
func (s *SelfProfiling) HeaderValues() map[string]string { return values(s.Headers) }

func values(secrets map[string]promconfig.Secret) map[string]string {
	if len(secrets) == 0 {
		return nil
	}
	out := make(map[string]string, len(secrets))
	for name, value := range secrets {
		out[name] = string(value)
	}
	return out
}

// SetDirectory makes relative paths of files relative to dir.
func (c *Config) SetDirectory(dir string) {
	c.Server.WebConfigFile = promconfig.JoinDir(dir, c.Server.WebConfigFile)
	c.Store.Path = promconfig.JoinDir(dir, c.Store.Path)
	c.Symbols.DebuginfodCachePath = promconfig.JoinDir(dir, c.Symbols.DebuginfodCachePath)
	for i := range c.TargetConfigs {
		c.TargetConfigs[i].SetDirectory(dir)
	}
	for _, w := range c.Write {
		if w != nil {
			w.HTTPClientConfig.SetDirectory(dir)
		}
	}
}
