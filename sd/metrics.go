package sd

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	reg             prometheus.Registerer
	found, notFound prometheus.Counter
	updates         prometheus.Counter
	scanSeconds     prometheus.Histogram
	all             []prometheus.Collector
}

func newMetrics(reg prometheus.Registerer, m *Manager) (*metrics, error) {
	lookups := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spanflame_target_lookups_total",
		Help: "Processes that were looked up, by whether a target was found.",
	}, []string{"result"})
	x := &metrics{
		reg:   reg,
		found: lookups.WithLabelValues("found"), notFound: lookups.WithLabelValues("none"),
		updates: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spanflame_target_updates_total",
			Help: "Updates that service discovery sent.",
		}),
		scanSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "spanflame_target_listener_scan_seconds",
			Help:    "Time to find the processes that listen on the addresses of targets.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
	}
	discovered := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spanflame_targets_discovered",
		Help: "Targets that service discovery has found, without processes.",
	}, func() float64 { return float64(len(m.state.Load().index.entries)) })
	interned := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spanflame_targets_in_use",
		Help: "Targets with labels of their own that are known, with some that were in use until lately.",
	}, func() float64 { return float64(m.interned.len()) })
	x.all = []prometheus.Collector{lookups, x.updates, x.scanSeconds, discovered, interned}
	if reg == nil {
		return x, nil
	}
	for i, c := range x.all {
		if err := reg.Register(c); err != nil {
			for _, done := range x.all[:i] {
				reg.Unregister(done)
			}
			return nil, err
		}
	}
	return x, nil
}

func (x *metrics) unregister() {
	if x.reg == nil {
		return
	}
	for _, c := range x.all {
		x.reg.Unregister(c)
	}
}
