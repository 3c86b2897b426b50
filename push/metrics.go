package push

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of all endpoints, by the label "endpoint".
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	sent     *prometheus.CounterVec
	retries  *prometheus.CounterVec
	bytes    *prometheus.GaugeVec
	profiles *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	ep := []string{"endpoint"}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_push_requests_total",
			Help: "Push requests that ended, by HTTP status, or timeout, transport (no answer), cancelled (at a stop), other.",
		}, []string{"endpoint", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "spanflame_push_request_duration_seconds",
			Help:    "Time from the start of a push request to the end of its answer.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, ep),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_push_bytes_total",
			Help: "Bytes of compressed profiles in push requests, repetitions included.",
		}, ep),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_push_retries_total",
			Help: "Push requests that repeated an earlier one.",
		}, ep),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spanflame_push_queue_bytes",
			Help: "Bytes that wait for the endpoint, those in flight included.",
		}, ep),
		profiles: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spanflame_push_queue_profiles",
			Help: "Profiles that wait for the endpoint, those in flight included.",
		}, ep),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.sent, m.retries, m.bytes, m.profiles} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the push metrics: %w", err)
		}
	}
	return m, nil
}

// forget removes what belongs to an endpoint that is gone.
func (m *metrics) forget(endpoint string) {
	l := prometheus.Labels{"endpoint": endpoint}
	m.requests.DeletePartialMatch(l)
	m.duration.DeletePartialMatch(l)
	m.sent.DeletePartialMatch(l)
	m.retries.DeletePartialMatch(l)
	m.bytes.DeletePartialMatch(l)
	m.profiles.DeletePartialMatch(l)
}
