package sd

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/relabel"

	// The mechanisms register themselves under their names.
	_ "github.com/prometheus/prometheus/discovery/consul"
	_ "github.com/prometheus/prometheus/discovery/dns"
	_ "github.com/prometheus/prometheus/discovery/file"
	_ "github.com/prometheus/prometheus/discovery/http"
	_ "github.com/prometheus/prometheus/discovery/kubernetes"
	_ "github.com/prometheus/prometheus/discovery/moby" // docker and dockerswarm
)

func init() {
	discovery.RegisterConfig(&ProcessSDConfig{})
}

// JobConfig is one entry of target_configs.
type JobConfig struct {
	JobName string `yaml:"job_name"`
	// RelabelConfigs are applied to each discovered target, in this order.
	RelabelConfigs []*relabel.Config `yaml:"relabel_configs,omitempty"`
	// Discovery are the *_sd_configs and static_configs.
	Discovery discovery.Configs `yaml:"-"`
}

// UnmarshalYAML reads the job with its *_sd_configs, which are keys beside the
// others.
func (c *JobConfig) UnmarshalYAML(unmarshal func(any) error) error {
	*c = JobConfig{}
	return discovery.UnmarshalYAMLWithInlineConfigs(c, unmarshal)
}

// MarshalYAML is the inverse of UnmarshalYAML. Secrets are hidden.
func (c JobConfig) MarshalYAML() (any, error) {
	return discovery.MarshalYAMLWithInlineConfigs(&c)
}

// SetDirectory makes relative paths of files relative to dir.
func (c *JobConfig) SetDirectory(dir string) { c.Discovery.SetDirectory(dir) }

// FieldError is a mistake in a field of a configuration.
type FieldError struct {
	// Field is the path of the field, e.g. "relabel_configs[1].target_label".
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns what is wrong.
func (e *FieldError) Unwrap() error { return e.Err }

// Validate checks what a job says by itself and prepares its relabel_configs for
// use. Its error is a *FieldError.
func (c *JobConfig) Validate() error {
	if c.JobName == "" {
		return &FieldError{"job_name", errors.New("the name is missing; each job needs one of its own")}
	}
	if !model.LabelValue(c.JobName).IsValid() {
		return &FieldError{"job_name", errors.New("the name is no valid UTF-8")}
	}
	for i, r := range c.RelabelConfigs {
		field := fmt.Sprintf("relabel_configs[%d]", i)
		if r == nil {
			return &FieldError{field, errors.New("empty or null")}
		}
		if err := r.Validate(model.UTF8Validation); err != nil {
			return &FieldError{field, err}
		}
	}
	if len(c.Discovery) == 0 {
		return &FieldError{"job_name", fmt.Errorf("job %q discovers nothing: add process_sd_configs: [{}] for the processes of this host, or another of the *_sd_configs", c.JobName)}
	}
	for _, d := range c.Discovery {
		if d == nil {
			return &FieldError{"job_name", fmt.Errorf("job %q has an empty discovery", c.JobName)}
		}
	}
	return nil
}

// discoversProcesses says whether one of the mechanisms is process discovery.
func (c *JobConfig) discoversProcesses() bool {
	for _, d := range c.Discovery {
		if _, ok := d.(*ProcessSDConfig); ok {
			return true
		}
	}
	return false
}

// ProcessSDConfig is an entry of process_sd_configs: each process of this host is
// a target. It has no settings; relabel_configs choose among the processes.
type ProcessSDConfig struct {
	// given tells an entry without settings from one that is not there, which the
	// registry of discovery refuses.
	given bool
}

// DefaultProcessSDConfig finds all processes.
func DefaultProcessSDConfig() *ProcessSDConfig { return &ProcessSDConfig{given: true} }

// UnmarshalYAML accepts an empty mapping.
func (c *ProcessSDConfig) UnmarshalYAML(unmarshal func(any) error) error {
	*c = *DefaultProcessSDConfig()
	return unmarshal(&struct{}{})
}

// MarshalYAML writes an empty mapping.
func (c *ProcessSDConfig) MarshalYAML() (any, error) { return struct{}{}, nil }

// Name is "process".
func (*ProcessSDConfig) Name() string { return "process" }

// NewDiscoverer returns a discoverer of nothing: the processes are not listed but
// asked about one by one, see Manager.FindTarget.
func (*ProcessSDConfig) NewDiscoverer(discovery.DiscovererOptions) (discovery.Discoverer, error) {
	return idle{}, nil
}

// NewDiscovererMetrics returns no metrics.
func (*ProcessSDConfig) NewDiscovererMetrics(prometheus.Registerer, discovery.RefreshMetricsInstantiator) discovery.DiscovererMetrics {
	return &discovery.NoopDiscovererMetrics{}
}

type idle struct{}

func (idle) Run(ctx context.Context, _ chan<- []*targetgroup.Group) { <-ctx.Done() }
