package push

import (
	"time"

	"github.com/spanflame/spanflame/internal/ledger"
)

// EndpointStatus is the state of one endpoint at one moment. It holds no secret.
type EndpointStatus struct {
	Name string `json:"name"`
	URL  string `json:"url"` // without user information

	QueueProfiles int       `json:"queue_profiles"` // those in flight included, as in the next three
	QueueBytes    int64     `json:"queue_bytes"`
	QueueSamples  uint64    `json:"queue_samples"`
	Oldest        time.Time `json:"oldest,omitzero"` // start of the profile that waits longest
	InFlight      int       `json:"in_flight"`

	// Failures counts the endpoint's failures in a row; 0 is a good state.
	Failures    int       `json:"failures"`
	NextAttempt time.Time `json:"next_attempt,omitzero"` // while it backs off
	LastSuccess time.Time `json:"last_success,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`

	// Account is that of the endpoint's sink. Its pending samples are
	// QueueSamples.
	Account ledger.Balance `json:"account"`
}

func (e *endpoint) status() EndpointStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := EndpointStatus{
		Name:          e.name,
		URL:           e.client.cfg.URL,
		QueueProfiles: e.queue.len(),
		QueueBytes:    e.queue.bytes,
		QueueSamples:  e.queue.samples,
		InFlight:      e.inflight,
		Failures:      e.failures,
		LastSuccess:   e.lastSuccess,
		LastError:     e.lastError,
		LastErrorAt:   e.lastErrorAt,
		Account:       e.acct.Balance(),
	}
	if f := e.queue.all.Front(); f != nil {
		s.Oldest = f.Value.(*item).p.Start
	}
	if at, ok := e.dueLocked(); ok && at.After(time.Now()) {
		s.NextAttempt = at
	}
	return s
}
