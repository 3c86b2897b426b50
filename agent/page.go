package agent

import (
	"context"
	"errors"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/common/version"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/config"
	"github.com/spanflame/spanflame/ebpfspy"
	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/push"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/web"
)

// maxUnmatched bounds the discovered targets that are listed.
const maxUnmatched = 1000

// listen opens the port of the page.
func (a *Agent) listen(cfg *config.Config) error {
	if cfg.Server.ListenAddress == "" {
		return nil
	}
	opts := web.Options{
		Logger: log.With(a.logger, "component", "web"), Registry: a.reg,
		ListenAddress: cfg.Server.ListenAddress, ConfigFile: cfg.Server.WebConfigFile,
		Targets: func(context.Context) web.TargetsPage { return a.targetsPage() },
		Status:  func() any { return a.status() },
		Reload:  a.Reload,
		Ready: func() error {
			if !a.ready.Load() {
				return errors.New("starting or stopping")
			}
			return nil
		},
	}
	if a.store != nil {
		opts.Store = a.store
	}
	s, err := web.New(opts)
	if err != nil {
		return err
	}
	a.server = s
	return s.Listen()
}

// targetsPage says of each process what it is profiled as, or why not.
func (a *Agent) targetsPage() web.TargetsPage {
	boot := bootTime()
	var page web.TargetsPage
	for _, p := range a.session.DebugInfo().Processes {
		t, why := p.Target, p.Why
		if !p.LookedUp {
			t, why = a.targets.FindTarget(&p.Process)
		}
		page.Processes = append(page.Processes, pageProcess(&p.Process, t, why, boot, &p))
	}
	page.Unmatched = unmatched(a.targets)
	return page
}

func pageProcess(p *sd.Process, t *sd.Target, why string, boot time.Time, info *ebpfspy.ProcessInfo) web.Process {
	out := web.Process{
		PID: int32(p.PID), Comm: p.Comm, Exe: p.Exe, Why: why,
		StartTime: boot.Add(time.Duration(p.Start) * 10 * time.Millisecond),
	}
	if info != nil {
		out.Samples, out.Stacks = info.Samples, info.Stacks
		if info.Dropped > 0 {
			out.Dropped = map[string]uint64{"dropped": info.Dropped}
		}
	}
	if t != nil {
		out.ServiceName, out.Job, out.Labels = t.ServiceName(), t.Job, map[string]string{}
		t.Labels.Range(func(l labels.Label) { out.Labels[l.Name] = l.Value })
		if out.Why == "" {
			out.Why = "job " + t.Job
		}
	}
	return out
}

func unmatched(m *sd.Manager) []web.UnmatchedEntry {
	var out []web.UnmatchedEntry
	states, _ := m.Targets(maxUnmatched)
	for _, s := range states {
		e := web.UnmatchedEntry{Job: s.Job, Labels: map[string]string{}, Why: s.Why}
		if e.Why == "" {
			e.Why = "names " + s.Names
		}
		s.Discovered.Range(func(l labels.Label) { e.Labels[l.Name] = l.Value })
		out = append(out, e)
	}
	return out
}

// bootTime is when the clock of process start times began.
func bootTime() time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(ts.Nano()))
}

// Status is what /api/v1/status answers.
type Status struct {
	Version       string                    `json:"version"`
	Revision      string                    `json:"revision"`
	Kernel        string                    `json:"kernel"`
	StartedAt     time.Time                 `json:"started_at"`
	UptimeSeconds float64                   `json:"uptime_seconds"`
	Session       ledger.Balance            `json:"session"`
	Sinks         map[string]ledger.Balance `json:"sinks"`
	LastRound     LastRound                 `json:"last_round"`
	Endpoints     []push.EndpointStatus     `json:"endpoints"`
}

// LastRound is how the last round went.
type LastRound struct {
	StartedAt       time.Time                `json:"started_at"`
	DurationSeconds float64                  `json:"duration_seconds"`
	SpentSeconds    float64                  `json:"spent_seconds"`
	Taken           uint64                   `json:"taken"`
	Profiled        uint64                   `json:"profiled"`
	Dropped         map[ledger.Reason]uint64 `json:"drops"`
	Stacks          int                      `json:"stacks"`
	Frequency       int                      `json:"frequency"`
	Processes       int                      `json:"processes"`
}

func (a *Agent) status() Status {
	d := a.session.DebugInfo()
	return Status{
		Version: version.Version, Revision: version.Revision, Kernel: kernelRelease(),
		StartedAt: a.started, UptimeSeconds: time.Since(a.started).Seconds(),
		Session: a.ledger.Session().Balance(), Sinks: a.ledger.Sinks(), Endpoints: a.pusher.Status(),
		LastRound: LastRound{
			StartedAt: d.Last.Start, DurationSeconds: d.Last.Duration.Seconds(), SpentSeconds: d.Last.Spent.Seconds(),
			Taken: d.Last.Taken, Profiled: d.Last.Profiled, Dropped: d.Last.Dropped, Stacks: d.Last.Stacks,
			Frequency: d.Frequency, Processes: len(d.Processes),
		},
	}
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
