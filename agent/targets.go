package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/spanflame/spanflame/config"
	"github.com/spanflame/spanflame/internal/doctor"
	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/sd"
	"github.com/spanflame/spanflame/web"

	"github.com/spanflame/spanflame/ebpfspy"
)

// discoveryWait is what discovery may take to find its first targets.
const discoveryWait = 6 * time.Second

// ListTargets prints what each process would be profiled as, and why not if not.
func ListTargets(ctx context.Context, logger log.Logger, out io.Writer, cfg *config.Config, asJSON bool) error {
	m, err := sd.NewManager(logger, nil, sd.Options{UpdateInterval: time.Second, MaxTargets: cfg.Symbols.MaxTargets})
	if err != nil {
		return fmt.Errorf("start discovery: %w", err)
	}
	defer m.Close()
	if err := m.ApplyConfig(cfg.TargetConfigs, cfg.Global.ExternalLabels); err != nil {
		level.Warn(logger).Log("msg", "a part of discovery does not work; the rest does", "err", err)
	}
	if !onlyProcesses(cfg) {
		ctx, cancel := context.WithTimeout(ctx, discoveryWait)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		select {
		case <-m.Changed():
		case <-ctx.Done():
		}
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			return fmt.Errorf("discover targets: %w", err)
		}
	}
	processes, err := sd.ListProcesses("/proc")
	if err != nil {
		return fmt.Errorf("list the processes: %w", err)
	}
	boot := bootTime()
	page := web.TargetsPage{Unmatched: unmatched(m)}
	for _, p := range processes {
		t, why := m.FindTarget(p)
		page.Processes = append(page.Processes, pageProcess(p, t, why, boot, nil))
	}
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(page)
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PID\tCOMM\tSERVICE\tWHY")
	for _, p := range page.Processes {
		service := p.ServiceName
		if service == "" {
			service = "-"
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\n", p.PID, printable(p.Comm), printable(service), printable(p.Why))
	}
	for _, u := range page.Unmatched {
		fmt.Fprintf(tw, "-\t-\t-\tdiscovered by job %s: %s\n", u.Job, printable(u.Why))
	}
	return tw.Flush()
}

// onlyProcesses says whether all targets are processes themselves, which need no
// time to be discovered.
func onlyProcesses(cfg *config.Config) bool {
	for _, j := range cfg.TargetConfigs {
		for _, d := range j.Discovery {
			if _, ok := d.(*sd.ProcessSDConfig); !ok {
				return false
			}
		}
	}
	return true
}

// Examine runs the checks of `spanflame doctor`.
func Examine() []doctor.Finding { return doctor.Examine(trial) }

// trial samples this host for a moment.
func trial(logger log.Logger) (samples uint64, err error) {
	cfg := config.Default()
	m, err := sd.NewManager(logger, nil, sd.Options{})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	if err := m.ApplyConfig(cfg.TargetConfigs, cfg.Global.ExternalLabels); err != nil {
		return 0, err
	}
	s, err := ebpfspy.NewSession(logger, nil, ledger.New().Session(), m, sessionOptions(cfg))
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := s.Close(); err == nil {
			err = cerr
		}
	}()
	if err := s.Start(); err != nil {
		return 0, err
	}
	time.Sleep(time.Second)
	info, err := s.CollectProfiles(func(*ebpfspy.Sample) {})
	return info.Taken, err
}

// Doctor prints the checks and returns the exit code: 1 if nothing can be profiled.
func Doctor(out io.Writer) (code int, err error) {
	findings := Examine()
	if err := doctor.Write(out, findings); err != nil {
		return 1, err
	}
	if doctor.Worst(findings) == doctor.Broken {
		return 1, nil
	}
	return 0, nil
}
