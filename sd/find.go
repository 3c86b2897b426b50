package sd

import (
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
)

// FindTarget says which target a process belongs to: the first that names it, in
// the order of the jobs and, in a job, of its targets. If there is none, why says
// in plain words why not. The same target is the same pointer. It is safe for
// concurrent use and may be called for every process of the host; it reads from
// procfs only if a target is given by address and the process is new.
func (m *Manager) FindTarget(p *Process) (t *Target, why string) {
	s := m.state.Load()
	t, why = m.find(s, p)
	switch {
	case t != nil:
		m.metrics.found.Inc()
	default:
		m.metrics.notFound.Inc()
	}
	return t, why
}

func (m *Manager) find(s *state, p *Process) (*Target, string) {
	if len(s.jobs.jobs) == 0 {
		return nil, "no job is configured"
	}
	var b best
	if len(s.index.entries) > 0 {
		var addresses []string
		if len(s.index.byAddress) > 0 {
			addresses = m.listeners.of(p)
		}
		b = s.index.find(p, addresses)
	}
	var v *verdict
	if n := len(s.jobs.processes); n > 0 && (b.kept == nil || s.jobs.processes[0].rank < b.kept.order.job) {
		v = m.verdict(s.jobs, p)
		if (v.target != nil || v.refused) && (b.kept == nil || v.order.before(b.kept.order)) {
			return v.target, v.why
		}
	}
	if b.kept != nil {
		return m.targetOf(s.jobs, b.kept, p)
	}
	switch {
	case b.dropped != nil && v != nil:
		return nil, b.dropped.why + "; " + v.why
	case b.dropped != nil:
		return nil, b.dropped.why
	case v != nil:
		return nil, v.why
	case len(s.index.entries) == 0:
		return nil, "no target names this process: nothing has been discovered yet"
	}
	return nil, "no target names this process"
}

// targetOf makes the target that an entry is for a process.
func (m *Manager) targetOf(js *jobSet, e *entry, p *Process) (*Target, string) {
	if e.target != nil || e.refused {
		return e.target, e.why
	}
	var scratch labels.ScratchBuilder
	return m.named(js, e.job, &scratch, e.series, e.discovered, p)
}

// named adds the inferred service name.
func (m *Manager) named(js *jobSet, j *job, b *labels.ScratchBuilder, series, discovered labels.Labels, p *Process) (*Target, string) {
	if series.Get(ServiceNameLabel) == "" {
		series = withServiceName(b, series, inferServiceName(p, discovered))
	}
	if why := checkSeries(series); why != "" {
		return nil, fmt.Sprintf("refused for job %q: %s", j.config.JobName, why)
	}
	t, err := m.interned.target(j.config.JobName, series, discovered)
	if err != nil {
		return nil, js.tooMany(j)
	}
	return t, ""
}

// verdict relabels a process for each job with process discovery until one keeps
// it, or looks up how that went before.
func (m *Manager) verdict(js *jobSet, p *Process) *verdict {
	if v := js.verdicts.get(p); v != nil {
		return v
	}
	v := &verdict{process: *p}
	var scratch labels.ScratchBuilder
	discovered := processLabels(&scratch, p, m.boot)
	for _, j := range js.processes {
		lb := labels.NewBuilder(discovered)
		if !relabel.ProcessBuilder(lb, j.config.RelabelConfigs...) {
			continue
		}
		series := seriesLabels(&scratch, lb.Labels(), js.external)
		v.order = order{j.rank, lastOfJob}
		v.target, v.why = m.named(js, j, &scratch, series, discovered, p)
		v.refused = v.target == nil
		js.verdicts.put(v)
		return v
	}
	v.why = droppedByAll(js.processes)
	js.verdicts.put(v)
	return v
}

// TargetState is one discovered target, for display.
type TargetState struct {
	Job        string
	Discovered labels.Labels // before relabelling
	Labels     labels.Labels // those that leave, perhaps without service_name; none if Why is set
	// Names says what the target names processes by, e.g. "container 3f4e…" or
	// "address 10.0.0.1:80", or in brackets why it names none.
	Names string
	// Why says why nothing is profiled as this target, "" if nothing stands
	// against it.
	Why string
}

// Targets lists what discovery has found, but for process discovery, whose targets
// are the processes themselves: at most limit of them, in the order in which they
// are matched, and how many there are in all.
func (m *Manager) Targets(limit int) (list []TargetState, total int) {
	s := m.state.Load()
	for _, e := range s.index.entries[:min(max(limit, 0), len(s.index.entries))] {
		list = append(list, TargetState{Job: e.job.config.JobName, Discovered: e.discovered, Labels: e.series, Names: e.names, Why: e.why})
	}
	return list, len(s.index.entries)
}

// turnPeriod is how often verdicts age: what was not asked for during two periods
// is forgotten.
const turnPeriod = 5 * time.Minute
