package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-kit/log/level"
	"github.com/grafana/pyroscope-go"
	promconfig "github.com/prometheus/common/config"

	"github.com/spanflame/spanflame/config"
)

type stopper interface{ Stop() error }

// selfName is the service that the agent's own profiles are under. It is another
// than that of its process, which the agent samples like any other: the same time
// is not to be counted twice.
const selfName = "spanflame-self"

// startSelfProfiling makes the agent push profiles of itself.
func (a *Agent) startSelfProfiling() error {
	sp := a.cfg.SelfProfiling
	if !sp.Enabled {
		return nil
	}
	p, err := pyroscope.Start(pyroscope.Config{
		ApplicationName: selfName,
		ServerAddress:   urlOf(sp.URL),
		HTTPHeaders:     sp.HeaderValues(),
		ProfileTypes: []pyroscope.ProfileType{
			pyroscope.ProfileCPU, pyroscope.ProfileAllocSpace, pyroscope.ProfileInuseSpace, pyroscope.ProfileGoroutines,
		},
	})
	if err != nil {
		return fmt.Errorf("profile the agent itself: %w", err)
	}
	a.self = p
	return nil
}

// Reload reads the configuration file and makes what it says what runs, or changes
// nothing and says why.
func (a *Agent) Reload(context.Context) error {
	if a.configFile == "" {
		return errors.New("reload: there is no configuration file (--config.file)")
	}
	cfg, err := config.Load(a.configFile)
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.cfg
	if err := needsRestart(old, cfg); err != nil {
		return err
	}
	if err := a.session.Update(sessionOptions(cfg)); err != nil {
		return fmt.Errorf("reload: change the session: %w", err)
	}
	if err := a.pusher.Update(endpoints(cfg)); err != nil {
		return errors.Join(fmt.Errorf("reload: change the endpoints: %w", err), a.session.Update(sessionOptions(old)))
	}
	if err := a.targets.ApplyConfig(cfg.TargetConfigs, cfg.Global.ExternalLabels); err != nil {
		level.Warn(a.logger).Log("msg", "a part of discovery does not work; the rest does", "err", err)
	}
	a.interval.Store(int64(cfg.Global.PushInterval))
	a.session.UpdateTargets()
	a.cfg = cfg
	level.Info(a.logger).Log("msg", "the configuration was read anew", "file", a.configFile)
	return nil
}

func urlOf(u promconfig.URL) string {
	if u.URL == nil {
		return ""
	}
	return u.URL.String()
}

// needsRestart refuses a change of what is only read at the start.
func needsRestart(old, cfg *config.Config) error {
	for _, c := range []struct {
		key     string
		changed bool
	}{
		{"server", old.Server != cfg.Server},
		{"store", old.Store != cfg.Store},
		{"self_profiling", old.SelfProfiling.Enabled != cfg.SelfProfiling.Enabled || urlOf(old.SelfProfiling.URL) != urlOf(cfg.SelfProfiling.URL)},
		{"symbols.max_targets", old.Symbols.MaxTargets != cfg.Symbols.MaxTargets},
	} {
		if c.changed {
			return fmt.Errorf("reload: %s has changed, which takes a restart; nothing was changed", c.key)
		}
	}
	return nil
}
