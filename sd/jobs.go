package sd

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/model/labels"
)

// jobSet is a configuration made ready. It is immutable, but for its cache.
type jobSet struct {
	jobs      []*job
	processes []*job // those with process discovery
	external  labels.Labels
	maxTarget int
	verdicts  verdicts
}

// job is a configured job.
type job struct {
	rank    int
	config  JobConfig
	sets    []set  // its mechanisms other than process discovery, in order
	dropped string // why a target of it that relabelling drops is none
}

// set is one mechanism of a job, under a name that is its own.
type set struct {
	name   string
	config discovery.Config
}

// newJobSet checks the configuration of all jobs.
func newJobSet(configs []JobConfig, external labels.Labels, maxTargets int) (*jobSet, error) {
	if external.Has(ServiceNameLabel) {
		return nil, fmt.Errorf("external label %s: it belongs to each target; set it with relabel_configs", ServiceNameLabel)
	}
	js := &jobSet{external: external, maxTarget: maxTargets}
	js.verdicts.init()
	names := map[string]bool{}
	setNames := map[string]bool{}
	for i := range configs {
		c := configs[i]
		if err := c.Validate(); err != nil {
			return nil, fmt.Errorf("target_configs[%d]: %w", i, err)
		}
		if names[c.JobName] {
			return nil, fmt.Errorf("target_configs[%d]: job_name %q is used twice", i, c.JobName)
		}
		names[c.JobName] = true
		j := &job{rank: i, config: c, dropped: fmt.Sprintf("dropped by relabel_configs of job %q", c.JobName)}
		for _, d := range inOrder(c.Discovery) {
			if _, ok := d.(*ProcessSDConfig); ok {
				continue
			}
			name := c.JobName
			if len(j.sets) > 0 {
				name = fmt.Sprintf("%s#%d", c.JobName, len(j.sets)+1)
			}
			for setNames[name] {
				name += "'"
			}
			setNames[name] = true
			j.sets = append(j.sets, set{name, d})
		}
		js.jobs = append(js.jobs, j)
		if c.discoversProcesses() {
			js.processes = append(js.processes, j)
		}
	}
	return js, nil
}

// inOrder are the mechanisms of a job in the order in which their targets count:
// static ones, then the others by their names, each in the order of the file.
func inOrder(configs discovery.Configs) discovery.Configs {
	out := slices.Clone(configs)
	key := func(c discovery.Config) string {
		if c.Name() == "static" {
			return ""
		}
		return c.Name()
	}
	slices.SortStableFunc(out, func(a, b discovery.Config) int { return cmp.Compare(key(a), key(b)) })
	return out
}

func (js *jobSet) tooMany(j *job) string {
	return fmt.Sprintf("refused for job %q: there are more than %d targets with labels of their own", j.config.JobName, js.maxTarget)
}

// sets are the mechanisms of all jobs by name.
func (js *jobSet) sets() map[string]discovery.Config {
	out := map[string]discovery.Config{}
	for _, j := range js.jobs {
		for _, s := range j.sets {
			out[s.name] = s.config
		}
	}
	return out
}

// sameSet says whether a mechanism is configured the same in both.
func sameSet(a, b discovery.Config) bool { return reflect.DeepEqual(a, b) }

// droppedByAll joins what the jobs with process discovery said.
func droppedByAll(jobs []*job) string {
	const most = 5
	if len(jobs) == 1 {
		return jobs[0].dropped
	}
	var names []string
	for i, j := range jobs {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(jobs)-most))
			break
		}
		names = append(names, fmt.Sprintf("%q", j.config.JobName))
	}
	return "dropped by relabel_configs of jobs " + strings.Join(names, ", ")
}

// verdict is what process discovery of all jobs came to for one process.
type verdict struct {
	process Process
	order   order // of the job that kept it
	target  *Target
	why     string // if target is nil
	refused bool   // a job kept it, but its labels may not leave
}

// verdicts keeps verdicts by PID. It is bounded: what was not asked for during
// two turns is forgotten.
type verdicts struct {
	mu         sync.Mutex
	young, old map[PID]*verdict // guarded by mu
}

const maxVerdicts = 1 << 16 // of each age

func (v *verdicts) init() { v.young, v.old = map[PID]*verdict{}, map[PID]*verdict{} }

// get returns the verdict on exactly this process, or nil.
func (v *verdicts) get(p *Process) *verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.young[p.PID]
	if d == nil {
		if d = v.old[p.PID]; d != nil {
			delete(v.old, p.PID)
			v.putLocked(d)
		}
	}
	if d == nil || d.process != *p {
		return nil
	}
	return d
}

func (v *verdicts) put(d *verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.old, d.process.PID)
	v.putLocked(d)
}

func (v *verdicts) putLocked(d *verdict) {
	if len(v.young) >= maxVerdicts {
		v.turnLocked()
	}
	v.young[d.process.PID] = d
}

// turn ages all verdicts.
func (v *verdicts) turn() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.turnLocked()
}

func (v *verdicts) turnLocked() { v.old, v.young = v.young, make(map[PID]*verdict, len(v.young)/2) }
