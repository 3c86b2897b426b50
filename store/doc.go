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
//	series   number           → types.v1.Labels (protobuf)
//	index    time, sequence   → varints: parent, duration, period, samples, totals by series
//	samples  time, sequence   → varints: the values of each stack, by stack number
//	symbols  parent, fragment → google.v1.Profile (protobuf, zstd): what is new in it
//
// A parent is one set of pushed labels with its sample types. Its names and stacks
// are kept once in a segment, so a profile is a few hundred bytes, and to merge
// profiles is to add numbers; only the stacks of the result are decoded. Values
// carry a checksum.
//
// A segment is opened only while it is read, and the pages that were mapped are
// given back after each query: what is resident does not grow with the store.
//
// # Series
//
// As in Pyroscope, a profile becomes one series for each sample type and for each
// distinct set of string labels of its samples (but span_id, trace_id and
// profile_id, which stay on the sample). Matchers, label values and groupings
// work on all of them.
package store
