// Package store is the agent's embedded profile store: it keeps profiles on disk
// for a bounded time in a bounded number of bytes and answers the queries of
// Pyroscope's query API (github.com/grafana/pyroscope/api, querier/v1). It never
// samples, never talks to the network and never interprets addresses.
//
// # Layout
//
// The folder holds segments: bbolt databases (go.etcd.io/bbolt) that are
// written one after the other and deleted whole, oldest first, so that retention
// by age and by bytes really gives the disk back. A segment has four buckets:
//
//	series  number            → types.v1.Labels (protobuf)
//	index   window, time, seq → varints: duration, samples, sizes, totals by series
//	pprof   window, time, seq → the profile (google.v1.Profile), zstd
//	merged  window, parent    → varint count of profiles; the window's merged profile, zstd
//
// A window is five minutes. When it has ended, the profiles of one parent (one
// set of pushed labels) are merged into one entry; a query takes the merged
// entry if its range covers all of the window's profiles, else the single ones.
// So answers are always exact to the profile.
//
// # Series
//
// As in Pyroscope, a profile becomes one series for each sample type and for each
// distinct set of string labels of its samples (but span_id, trace_id and
// profile_id, which stay on the sample). Matchers, label values and groupings
// work on all of them.
package store
