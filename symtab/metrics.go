package symtab

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spanflame/spanflame/internal/debuginfod"
)

// metrics of a cache.
type metrics struct {
	loads   *prometheus.CounterVec
	seconds prometheus.Counter
	evicted *prometheus.CounterVec
	splits  *prometheus.CounterVec

	fetches      *prometheus.CounterVec
	debugEvicted prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, c *Cache) *metrics {
	m := &metrics{
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_symtab_loads_total", Help: "Files whose names were read, by result.",
		}, []string{"result"}),
		seconds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spanflame_symtab_load_seconds_total", Help: "Time spent reading the names of files.",
		}),
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_symtab_evictions_total", Help: "Symbol tables that were forgotten, by reason.",
		}, []string{"reason"}),
		splits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_symtab_split_units_total", Help: "Split units (.dwo, .dwp) that were read or looked for, by result.",
		}, []string{"result"}),
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_symtab_debuginfod_fetches_total", Help: "Debug files that debuginfod servers were to be asked for, by result.",
		}, []string{"result"}),
		debugEvicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spanflame_symtab_debuginfod_evictions_total", Help: "Fetched debug files that were removed to make room for others.",
		}),
	}
	for _, v := range debuginfod.Results {
		m.fetches.WithLabelValues(v)
	}
	for _, v := range []string{"ok", "nameless", "error"} {
		m.loads.WithLabelValues(v)
	}
	for _, v := range []string{"age", "bytes", "files", "changed", "debug_file"} {
		m.evicted.WithLabelValues(v)
	}
	for _, v := range []string{"read", "missing", "other_build", "error"} {
		m.splits.WithLabelValues(v)
	}
	if reg == nil {
		return m
	}
	m.loads = register(reg, m.loads)
	m.seconds = register(reg, m.seconds)
	m.evicted = register(reg, m.evicted)
	m.splits = register(reg, m.splits)
	m.fetches = register(reg, m.fetches)
	m.debugEvicted = register(reg, m.debugEvicted)
	register(reg, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spanflame_symtab_debuginfod_cache_bytes", Help: "Disk space of fetched debug files.",
	}, func() float64 {
		if d := c.debuginfod.Load(); d != nil {
			_, bytes := d.Stats()
			return float64(bytes)
		}
		return 0
	}))
	register(reg, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spanflame_symtab_tables", Help: "Files whose names are held.",
	}, func() float64 { return float64(c.Stats().Tables) }))
	register(reg, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spanflame_symtab_bytes", Help: "Memory of symbol tables and names.",
	}, func() float64 { return float64(c.Stats().Bytes) }))
	return m
}

// register registers a collector, or takes the one that an earlier cache registered.
func register[T prometheus.Collector](reg prometheus.Registerer, col T) T {
	err := reg.Register(col)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if old, ok := already.ExistingCollector.(T); ok {
			return old
		}
	}
	return col
}
