// Package e2e tests the agent as it is used: a process of its own, with a
// configuration file, that pushes to a server and keeps profiles in its store. What
// is asked of the two is asked by the same functions. The server is the real
// Pyroscope of test/pyroserver, or the one that SPANFLAME_TEST_PYROSCOPE_URL names.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/spanflame/spanflame/test/harness"
	"github.com/spanflame/spanflame/test/pyroserver"
)

// source is where profiles can be read back from.
type source interface {
	MergeProfile(ctx context.Context, typeID, selector string, from, until time.Time) (*pprof.Profile, error)
}

// sources are both, by name.
func sources(a *harness.Agent, srv *pyroserver.Server) map[string]source {
	return map[string]source{"store": a, "pyroscope": srv}
}

// read waits until the source has a profile of the selector for which done is true.
func read(t *testing.T, s source, selector string, from, until time.Time, done func(*harness.Profile) error) *harness.Profile {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 70*time.Second)
	defer cancel()
	var p *harness.Profile
	harness.Eventually(t, 60*time.Second, "a profile of "+selector, func() error {
		raw, err := s.MergeProfile(ctx, harness.CPUType, selector, from, until)
		if err != nil {
			return err
		}
		if p, err = harness.NewProfile(raw); err != nil {
			t.Fatal(err)
		}
		if _, ours := s.(*harness.Agent); !ours { // a server makes up a period when it merges
			p.Period = int64(time.Second) / 97
		}
		if done != nil {
			return done(p)
		}
		return nil
	})
	return p
}

// atLeast is for read: until there is so much time of what matches.
func atLeast(m harness.Match, d time.Duration) func(*harness.Profile) error {
	return func(p *harness.Profile) error {
		if got := p.Time(m); got < d {
			return fmt.Errorf("%s so far, want %s", got, d)
		}
		return nil
	}
}

func write(url string) string { return fmt.Sprintf("\nwrite: [ { url: %q } ]\n", url) }

// external gives each test's profiles a label of its own, so that a server that
// others use, too, can be asked for them.
func external(t *testing.T, interval time.Duration) (yaml, value string) {
	value = fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano())
	return fmt.Sprintf("global: { push_interval: %s, external_labels: { test: %q } }\n", interval, value), value
}

// TestPushAndStore profiles a C and a Go program that end, and reads from the store
// and from a real Pyroscope what they did: the shares, the total to the sample, and
// what else a profile says.
func TestPushAndStore(t *testing.T) {
	harness.NeedRoot(t)
	srv := pyroserver.Start(t)
	global, label := external(t, 5*time.Second)
	a := harness.StartAgent(t, global+"profiles: { cpu: { thread: true } }\n"+harness.WorkloadTargets+write(srv.PushURL()))

	const run = 12 * time.Second
	from := time.Now().Add(-time.Second)
	time.Sleep(time.Second) // discovery may just be reading /proc
	c := harness.StartWorkload(t, "split", run.Seconds(), 0)
	g := harness.StartWorkload(t, "gosplit", run.Seconds(), 1)
	truthC, truthG := c.Wait(t), g.Wait(t)
	th := harness.StartWorkload(t, "threads", 8, 0)
	truthT := th.Wait(t)
	until := time.Now().Add(time.Minute)
	selector := func(service string, more string) string {
		return fmt.Sprintf("{service_name=%q, test=%q%s}", service, label, more)
	}

	for name, s := range sources(a, srv) {
		t.Run(name, func(t *testing.T) {
			for _, tt := range []struct {
				service, a, b string
				truth         harness.Truth
				w             *harness.Workload
			}{
				{"split", "burn_a", "burn_b", truthC, c},
				{"gosplit", "main.burnA", "main.burnB", truthG, g},
			} {
				t.Run(tt.service, func(t *testing.T) {
					p := read(t, s, selector(tt.service, ""), from, until, atLeast(nil, seconds(0.95*tt.truth.Total)))
					x, y := p.Samples(harness.InFunction(tt.a)), p.Samples(harness.InFunction(tt.b))
					harness.CheckShare(t, tt.a, x, x+y, tt.truth.Functions[tt.a]/(tt.truth.Functions[tt.a]+tt.truth.Functions[tt.b]))
					harness.CheckTotal(t, "total", p.Time(nil), seconds(tt.truth.Total), tt.w.Ended().Sub(tt.w.Started), time.Duration(p.Period))
					if n := p.Samples(harness.InFile(tt.service)); n < 0.98*p.Samples(nil) {
						t.Errorf("%.0f of %.0f samples have a frame of the file %s", n, p.Samples(nil), tt.service)
					}
					if t.Failed() {
						t.Log(p.Describe(nil))
					}
				})
			}
			t.Run("threads", func(t *testing.T) {
				all := read(t, s, selector("threads", ""), from, until, atLeast(nil, seconds(0.95*truthT.Total)))
				sum := truthT.Functions["thread_burn"]
				for thread, truth := range truthT.Threads {
					p := read(t, s, selector("threads", fmt.Sprintf(", thread=%q", thread)), from, until, nil)
					burn := harness.InFunction("thread_burn")
					harness.CheckShare(t, thread, p.Samples(burn), all.Samples(burn), truth.CPU/sum)
				}
			})
		})
	}

	t.Run("both have the same", func(t *testing.T) {
		for _, service := range []string{"split", "gosplit", "threads"} {
			var totals []time.Duration
			for _, s := range sources(a, srv) {
				totals = append(totals, read(t, s, selector(service, ""), from, until, nil).Time(nil))
			}
			if totals[0] != totals[1] {
				t.Errorf("%s: the store and the server have %v", service, totals)
			}
		}
	})
	t.Run("nobody else is a target", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		p, err := a.MergeProfile(ctx, harness.CPUType, fmt.Sprintf("{test=%q, service_name!~%q}", label, "split|gosplit|threads"), from, until)
		if !errors.Is(err, harness.ErrNoProfile) {
			t.Errorf("profiles of others: %v, %v", p, err)
		}
	})
	t.Run("accounts", func(t *testing.T) { checkAccounts(t, a) })
	if code := a.Stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// checkAccounts tests that all samples of the session, and all of each sink, are
// accounted for. Both only hold while no round is being drained, so this may try
// again.
func checkAccounts(t *testing.T, a *harness.Agent) {
	t.Helper()
	harness.Eventually(t, 15*time.Second, "the accounts add up", func() error {
		m := a.Metrics(t)
		taken, profiled, dropped := m.Sum("spanflame_samples_taken_total"), m.Sum("spanflame_samples_profiled_total"), m.Sum("spanflame_samples_dropped_total")
		if taken == 0 {
			return errors.New("no sample was taken")
		}
		if taken != profiled+dropped {
			return fmt.Errorf("%.0f samples taken, %.0f profiled and %.0f dropped", taken, profiled, dropped)
		}
		accepted := m.By("spanflame_sink_samples_accepted_total", "sink")
		if len(accepted) == 0 {
			return errors.New("no sink")
		}
		for sink, n := range accepted {
			out := m.Sum("spanflame_sink_samples_delivered_total", "sink", sink) +
				m.Sum("spanflame_sink_samples_dropped_total", "sink", sink) + m.Sum("spanflame_sink_samples_pending", "sink", sink)
			if n != out {
				return fmt.Errorf("sink %s accepted %.0f samples and accounts for %.0f", sink, n, out)
			}
			if n != profiled {
				return fmt.Errorf("%.0f samples were profiled, sink %s got %.0f", profiled, sink, n)
			}
		}
		return nil
	})
	if n := a.Metrics(t).Sum("spanflame_session_accounting_mismatches_total"); n != 0 {
		t.Errorf("%.0f rounds did not add up", n)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
