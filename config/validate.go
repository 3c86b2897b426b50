package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/net/http/httpguts"

	"github.com/spanflame/spanflame/sd"
)

// Validate checks a configuration that did not come from a file. Parse has done it
// for one that did. It also prepares relabel_configs for use.
func (c *Config) Validate() error {
	var errs []error
	for _, f := range c.problems() {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// checker collects mistakes.
type checker struct{ found []*sd.FieldError }

func (k *checker) add(field, format string, args ...any) {
	k.found = append(k.found, &sd.FieldError{Field: field, Err: fmt.Errorf(format, args...)})
}

// between checks the bounds of a number.
func between[T cmp.Ordered](k *checker, field string, v, low, high T) {
	if v < low || v > high {
		k.add(field, "is %v; expected %v to %v", v, low, high)
	}
}

// problems are all mistakes that the decoder cannot see.
func (c *Config) problems() []*sd.FieldError {
	k := &checker{}
	c.checkGlobal(k)
	c.checkServer(k)
	c.checkProfiles(k)
	c.checkSymbols(k)
	c.checkTargets(k)
	c.checkWrite(k)
	c.checkStore(k)
	if s := c.SelfProfiling; s.Enabled {
		checkURL(k, "self_profiling.url", s.URL)
	}
	checkHeaders(k, "self_profiling.headers", c.SelfProfiling.Headers)
	if !c.Store.Enabled && len(c.Write) == 0 {
		k.add("store.enabled", "profiles would go nowhere: enable the store, or add an endpoint under write")
	}
	return k.found
}

func (c *Config) checkGlobal(k *checker) {
	// Servers refuse profiles that are more than an hour old; a round that long
	// would also hold all its stacks in memory.
	between(k, "global.push_interval", c.Global.PushInterval, model.Duration(time.Second), model.Duration(10*time.Minute))
	c.Global.ExternalLabels.Range(func(l labels.Label) {
		field := "global.external_labels." + l.Name
		switch {
		case l.Name == sd.ServiceNameLabel:
			k.add(field, "the label belongs to each target, and all would be one service; set it with relabel_configs")
		case strings.HasPrefix(l.Name, model.ReservedLabelPrefix):
			k.add(field, "names that begin with %s are reserved", model.ReservedLabelPrefix)
		case !model.LegacyValidation.IsValidLabelName(l.Name):
			k.add(field, "not the name of a label; expected letters, digits and underscores, no digit first")
		case len(l.Name) > sd.MaxLabelNameBytes:
			k.add(field, "the name has %d bytes; the limit is %d", len(l.Name), sd.MaxLabelNameBytes)
		case len(l.Value) > sd.MaxLabelValueBytes:
			k.add(field, "the value has %d bytes; the limit is %d", len(l.Value), sd.MaxLabelValueBytes)
		case !utf8.ValidString(l.Value):
			k.add(field, "the value is no valid UTF-8")
		}
	})
	if n, most := c.Global.ExternalLabels.Len(), sd.MaxLabels-1; n > most {
		k.add("global.external_labels", "there are %d labels; a target may have %d besides %s", n, most, sd.ServiceNameLabel)
	}
}

func (c *Config) checkServer(k *checker) {
	const field = "server.listen_address"
	address := c.Server.ListenAddress
	if address == "" {
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		k.add(field, "expected host:port, such as 127.0.0.1:4041")
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || port == "" {
		k.add(field, "the port must be a number from 0 to 65535")
	} else if strings.ContainsAny(host, " /@") {
		k.add(field, "%q is not a host", host)
	} else if n == 0 && host == "" {
		k.add(field, "expected a host or a port")
	}
}

func (c *Config) checkProfiles(k *checker) {
	cpu, off := c.Profiles.CPU, c.Profiles.OffCPU
	between(k, "profiles.cpu.frequency", cpu.Frequency, 1, 1000)
	switch {
	case !cpu.Enabled && !off.Enabled:
		k.add("profiles.cpu.enabled", "nothing would be profiled: no profile type is enabled")
	case !cpu.User && !cpu.Kernel:
		k.add("profiles.cpu", "nothing would be profiled: at least one of user and kernel must be true")
	}
	between(k, "profiles.off_cpu.min_block", off.MinBlock, 0, model.Duration(time.Minute))
	between(k, "profiles.off_cpu.max_events_per_second", off.MaxEventsPerSecond, 10, 100_000)
	between(k, "profiles.off_cpu.max_threads", off.MaxThreads, 64, 1<<20)
	oneOf(k, "profiles.off_cpu.idle", off.Idle, "drop", "label", "keep")
}

func (c *Config) checkSymbols(k *checker) {
	s := c.Symbols
	oneOf(k, "symbols.demangle", s.Demangle, "none", "simplified", "templates", "full")
	oneOf(k, "symbols.unknown", s.Unknown, "module", "module_offset", "address")
	between(k, "symbols.cache_max_bytes", s.CacheMaxBytes, 1<<20, 64<<30)
	between(k, "symbols.cache_max_age", s.CacheMaxAge, model.Duration(time.Minute), model.Duration(7*24*time.Hour))
	between(k, "symbols.cache_max_files", s.CacheMaxFiles, 16, 1<<16)
	checkDebuginfod(k, s)
	between(k, "symbols.max_stacks", s.MaxStacks, 1024, 1<<20)
	between(k, "symbols.stack_bytes", s.StackBytes, 1<<20, 1<<30)
	between(k, "symbols.unwind_bytes", s.UnwindBytes, 1<<20, 4<<30)
	between(k, "symbols.jit_bytes", s.JITBytes, 1<<20, 4<<30)
	between(k, "symbols.max_processes", s.MaxProcesses, 64, 1<<20)
	between(k, "symbols.max_excluded", s.MaxExcluded, 64, 1<<20)
	between(k, "symbols.max_targets", s.MaxTargets, 1, 1<<20)
	between(k, "python.max_functions", c.Python.MaxFunctions, 1024, 1<<20)
	ring(k, "symbols.sideband_bytes", s.SidebandBytes, 16<<10, 16<<20)
	ring(k, "symbols.event_ring_bytes", s.EventRingBytes, 16<<10, 64<<20)
}

func checkDebuginfod(k *checker, s Symbols) {
	first := map[string]int{}
	for i, u := range s.DebuginfodURLs {
		field := fmt.Sprintf("symbols.debuginfod_urls[%d]", i)
		checkServerURL(k, field, u, "https://debuginfod.debian.net", "")
		if u.URL == nil {
			continue
		}
		plain := *u.URL
		plain.User = nil
		if other, dup := first[plain.String()]; dup {
			k.add(field, "is the same server as symbols.debuginfod_urls[%d]", other)
			continue
		}
		first[plain.String()] = i
	}
	if len(s.DebuginfodURLs) > 0 && s.DebuginfodCachePath == "" {
		k.add("symbols.debuginfod_cache_path", "the path is missing; expected a folder that the agent can write to")
	}
	between(k, "symbols.debuginfod_cache_bytes", s.DebuginfodCacheBytes, 16<<20, 64<<40)
	between(k, "symbols.debuginfod_timeout", s.DebuginfodTimeout, model.Duration(time.Second), model.Duration(10*time.Minute))
}

func oneOf(k *checker, field, v string, allowed ...string) {
	if !slices.Contains(allowed, v) {
		k.add(field, "is %.40q; expected one of: %s", v, strings.Join(allowed, ", "))
	}
}

func ring(k *checker, field string, v, low, high Bytes) {
	between(k, field, v, low, high)
	if v > 0 && v&(v-1) != 0 {
		k.add(field, "is %v; expected a power of two, such as %v", v, low)
	}
}

func (c *Config) checkTargets(k *checker) {
	if len(c.TargetConfigs) == 0 {
		k.add("target_configs", "nothing would be profiled: expected at least one job. Without the key all processes of this host are profiled")
	}
	first := map[string]int{}
	for i := range c.TargetConfigs {
		j := &c.TargetConfigs[i]
		field := fmt.Sprintf("target_configs[%d]", i)
		if err := j.Validate(); err != nil {
			var f *sd.FieldError
			if errors.As(err, &f) {
				k.found = append(k.found, &sd.FieldError{Field: field + "." + f.Field, Err: f.Err})
			} else {
				k.add(field, "%w", err)
			}
			continue
		}
		if other, dup := first[j.JobName]; dup {
			k.add(field+".job_name", "%q is also the name of target_configs[%d]; each job needs one of its own", j.JobName, other)
			continue
		}
		first[j.JobName] = i
	}
}

func (c *Config) checkWrite(k *checker) {
	first := map[string]int{}
	for i, w := range c.Write {
		field := fmt.Sprintf("write[%d]", i)
		if w == nil {
			k.add(field, "the entry of the list is empty")
			continue
		}
		checkURL(k, field+".url", w.URL)
		checkHeaders(k, field+".headers", w.Headers)
		between(k, field+".remote_timeout", w.RemoteTimeout, model.Duration(100*time.Millisecond), model.Duration(10*time.Minute))
		name, named := w.Name, field+".name"
		if name == "" && w.URL.URL != nil {
			plain := *w.URL.URL
			plain.User = nil
			name, named = plain.String(), field+".url"
		}
		switch other, dup := first[name]; {
		case len(name) > 512 || !utf8.ValidString(name):
			k.add(named, "the name is longer than 512 bytes or no valid UTF-8")
		case name != "" && dup:
			k.add(named, "write[%d] has the same name or URL; give each a name of its own", other)
		default:
			first[name] = i
		}
	}
}

// checkURL checks the URL of an endpoint for profiles.
func checkURL(k *checker, field string, u promconfig.URL) {
	checkServerURL(k, field, u, "http://pyroscope:4040", ". Tenants go into headers: {X-Scope-OrgID: …}")
}

// checkServerURL checks a URL that paths are added to. example and advice are for messages.
func checkServerURL(k *checker, field string, u promconfig.URL, example, advice string) {
	switch {
	case u.URL == nil || *u.URL == (url.URL{}):
		k.add(field, "the URL is missing; expected e.g. %s", example)
	case u.Scheme != "http" && u.Scheme != "https":
		k.add(field, "the URL must begin with http:// or https://")
	case u.Hostname() == "":
		k.add(field, "the URL has no host; expected e.g. %s", example)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		k.add(field, "the URL has a query (?…) or a fragment (#…); remove it%s", advice)
	}
}

func checkHeaders(k *checker, field string, headers map[string]promconfig.Secret) {
	for _, name := range sortedKeys(headers) {
		if !httpguts.ValidHeaderFieldName(name) {
			k.add(field, "%.80q is not the name of a header", name)
		} else if !httpguts.ValidHeaderFieldValue(string(headers[name])) {
			k.add(field+"."+name, "the value holds characters that a header cannot")
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for key := range m {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

func (c *Config) checkStore(k *checker) {
	if !c.Store.Enabled {
		return
	}
	if c.Store.Path == "" {
		k.add("store.path", "the path is missing; expected a folder that the agent can write to")
	}
	between(k, "store.retention", c.Store.Retention, model.Duration(5*time.Minute), model.Duration(365*24*time.Hour))
	between(k, "store.max_bytes", c.Store.MaxBytes, 8<<20, 64<<40)
}

// expand puts environment variables into the external labels.
func (c *Config) expand(env func(string) (string, bool)) []*sd.FieldError {
	k := &checker{}
	b := labels.NewScratchBuilder(c.Global.ExternalLabels.Len())
	c.Global.ExternalLabels.Range(func(l labels.Label) {
		value := os.Expand(l.Value, func(name string) string {
			if name == "$" {
				return "$"
			}
			v, ok := env(name)
			if !ok {
				k.add("global.external_labels."+l.Name, "the environment variable %.80q is not set; write $$ for a dollar", name)
			}
			return v
		})
		b.Add(l.Name, value)
	})
	b.Sort()
	c.Global.ExternalLabels = b.Labels()
	return k.found
}
