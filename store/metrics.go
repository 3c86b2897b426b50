package store

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	reg prometheus.Registerer
	all []prometheus.Collector

	diskBytes, maxBytes, segments prometheus.Gauge
	profiles, failed              prometheus.Counter
	sampleBytes, symbolBytes      prometheus.Counter
	evictedSegments               *prometheus.CounterVec // reason: age, bytes
	damaged, seriesFull           prometheus.Counter
	queries                       *prometheus.HistogramVec // kind
	queriesCut                    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "spanflame_store_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "spanflame_store_" + name, Help: help})
	}
	m := &metrics{
		reg:         reg,
		diskBytes:   gauge("disk_bytes", "Bytes that the store's files take."),
		maxBytes:    gauge("max_bytes", "Bytes that the store's files may take."),
		segments:    gauge("segments", "Segment files of the store."),
		profiles:    counter("profiles_total", "Profiles stored."),
		sampleBytes: counter("sample_bytes_total", "Bytes of profiles stored, without their symbols."),
		symbolBytes: counter("symbol_bytes_total", "Bytes of symbols and stacks stored."),
		failed:      counter("profiles_failed_total", "Profiles that could not be stored."),
		damaged:     counter("damaged_segments_total", "Segments that were damaged and moved aside."),
		seriesFull:  counter("series_limit_total", "Profiles whose sample labels were not indexed, or that were refused, as the segment has too many series."),
		queriesCut:  counter("queries_cut_total", "Queries that reached a limit and were answered in part."),
		evictedSegments: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_store_evicted_segments_total", Help: "Segments deleted to keep within the store's age or size.",
		}, []string{"reason"}),
		queries: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spanflame_store_query_seconds", Help: "Duration of queries.", Buckets: []float64{.005, .02, .1, .3, 1, 3, 10, 30},
		}, []string{"kind"}),
	}
	m.all = []prometheus.Collector{m.diskBytes, m.maxBytes, m.segments, m.profiles, m.sampleBytes, m.symbolBytes, m.failed,
		m.damaged, m.seriesFull, m.queriesCut, m.evictedSegments, m.queries}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range m.all {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		m.unregister()
		return nil, err
	}
	return m, nil
}

// unregister makes room for the next store on the same registry (a reload).
func (m *metrics) unregister() {
	if m.reg == nil {
		return
	}
	for _, c := range m.all {
		m.reg.Unregister(c)
	}
}
