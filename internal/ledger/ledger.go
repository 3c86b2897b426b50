// Package ledger keeps the exact account of every sample: what was taken in
// the kernel, what became part of a profile, what was dropped and why, and what
// each sink (an endpoint, the store) did with what it was handed.
//
// Two equations hold at any moment at which no call is in progress:
//
//	taken    = profiled + in flight + Σ dropped[reason]      (the session)
//	accepted = delivered + pending + Σ dropped[reason]       (each sink)
//
// The package only counts. It never logs and never decides.
package ledger

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Reason says why samples were dropped. The text is the value of the metric's
// label "reason" and is part of the interface of the agent.
type Reason string

// Reasons of the session.
const (
	UnknownProcess Reason = "unknown_process" // no process was known under the sampled identity
	NoTarget       Reason = "no_target"       // the process belongs to no target
	ProcessGone    Reason = "process_gone"    // the process ended before anything was learnt of it
	StackMapFull   Reason = "stack_map_full"  // the round's arena or stack index was full
	CountsMapFull  Reason = "counts_map_full" // the round's table of counts was full
	Idle           Reason = "idle"            // the thread waited for work, which the configuration leaves out
	RoundAbandoned Reason = "round_abandoned" // the session stopped or failed while it drained a round
	EncodeFailed   Reason = "encode_failed"   // the profile could not be encoded
)

// Reasons of a sink.
const (
	QueueFull        Reason = "queue_full"         // the sink's bounded queue was full, oldest out first
	SpoolFull        Reason = "spool_full"         // the spool was full, oldest out first
	TooOld           Reason = "too_old"            // the server would refuse the profile as too old
	RejectedByServer Reason = "rejected_by_server" // an answer that is not retried
	RetriesExhausted Reason = "retries_exhausted"  // retried as often as allowed
	Shutdown         Reason = "shutdown"           // not delivered when the agent stopped
	StoreFailed      Reason = "store_failed"       // the embedded store could not write
)

// Account is one side of a ledger: an amount that came in and where it went.
// The zero value is not usable; see New and Ledger.Sink. All methods are safe
// for concurrent use. Amounts are samples.
type Account struct {
	in, out atomic.Uint64

	mu      sync.Mutex
	dropped map[Reason]uint64 // guarded by mu
}

// In records n samples that came in (taken, or accepted by a sink).
func (a *Account) In(n uint64) { a.in.Add(n) }

// Out records n samples that left as they should (profiled, or delivered).
func (a *Account) Out(n uint64) { a.out.Add(n) }

// Drop records n samples that were lost for the reason r. Zero is no entry.
func (a *Account) Drop(r Reason, n uint64) {
	if n == 0 {
		return
	}
	a.mu.Lock()
	a.dropped[r] += n
	a.mu.Unlock()
}

// Balance is a reading of an account, in samples.
type Balance struct {
	In      uint64            `json:"in"`
	Out     uint64            `json:"out"`
	Dropped map[Reason]uint64 `json:"dropped"`
}

// Lost is the sum over all reasons.
func (b Balance) Lost() uint64 {
	var n uint64
	for _, v := range b.Dropped {
		n += v
	}
	return n
}

// Pending is what came in and has neither left nor been dropped.
func (b Balance) Pending() int64 { return int64(b.In) - int64(b.Out) - int64(b.Lost()) }

// Balance reads the account. While calls are in progress Pending may be off by
// what they move.
func (a *Account) Balance() Balance {
	b := Balance{Out: a.out.Load(), Dropped: map[Reason]uint64{}}
	a.mu.Lock()
	for r, n := range a.dropped {
		b.Dropped[r] = n
	}
	a.mu.Unlock()
	b.In = a.in.Load()
	return b
}

func newAccount() *Account { return &Account{dropped: map[Reason]uint64{}} }

// Ledger is the account of the session and those of the sinks behind it. It is
// a prometheus.Collector.
type Ledger struct {
	session *Account

	mu    sync.Mutex
	sinks map[string]*Account // guarded by mu
}

// New returns an empty ledger.
func New() *Ledger {
	return &Ledger{session: newAccount(), sinks: map[string]*Account{}}
}

// Session is the account of the sampler: In is taken, Out is profiled.
func (l *Ledger) Session() *Account { return l.session }

// Sink returns the account of the named sink and makes it at the first call: In
// is accepted, Out is delivered.
func (l *Ledger) Sink(name string) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.sinks[name]
	if !ok {
		a = newAccount()
		l.sinks[name] = a
	}
	return a
}

// Sinks reads the accounts of all sinks.
func (l *Ledger) Sinks() map[string]Balance {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]Balance, len(l.sinks))
	for name, a := range l.sinks {
		out[name] = a.Balance()
	}
	return out
}

var (
	descTaken     = prometheus.NewDesc("spanflame_samples_taken_total", "Samples taken in the kernel.", nil, nil)
	descProfiled  = prometheus.NewDesc("spanflame_samples_profiled_total", "Samples that became part of a profile.", nil, nil)
	descDropped   = prometheus.NewDesc("spanflame_samples_dropped_total", "Samples dropped before they were part of a profile.", []string{"reason"}, nil)
	descAccepted  = prometheus.NewDesc("spanflame_sink_samples_accepted_total", "Samples handed to a sink.", []string{"sink"}, nil)
	descDelivered = prometheus.NewDesc("spanflame_sink_samples_delivered_total", "Samples that a sink delivered or stored.", []string{"sink"}, nil)
	descSinkDrop  = prometheus.NewDesc("spanflame_sink_samples_dropped_total", "Samples that a sink dropped.", []string{"sink", "reason"}, nil)
	descPending   = prometheus.NewDesc("spanflame_sink_samples_pending", "Samples that wait in a sink.", []string{"sink"}, nil)
)

// Describe implements prometheus.Collector.
func (l *Ledger) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTaken, descProfiled, descDropped, descAccepted, descDelivered, descSinkDrop, descPending} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l *Ledger) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	b := l.session.Balance()
	counter(descTaken, b.In)
	counter(descProfiled, b.Out)
	for r, n := range b.Dropped {
		counter(descDropped, n, string(r))
	}
	for name, b := range l.Sinks() {
		counter(descAccepted, b.In, name)
		counter(descDelivered, b.Out, name)
		for r, n := range b.Dropped {
			counter(descSinkDrop, n, name, string(r))
		}
		ch <- prometheus.MustNewConstMetric(descPending, prometheus.GaugeValue, float64(b.Pending()), name)
	}
}
