package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Bounds of a selector: its text and its matchers are evaluated against every
// series.
const (
	maxSelectorBytes = 16 << 10
	maxMatchers      = 64
	maxSelectors     = 16
)

var selectorParser = parser.NewParser(parser.Options{})

// parseSelector reads a label selector such as {service_name="shop"}, in
// Prometheus's syntax. "" and {} match everything.
func parseSelector(s string) ([]*labels.Matcher, error) {
	s = strings.TrimSpace(s)
	if len(s) > maxSelectorBytes {
		return nil, fmt.Errorf("the label selector is longer than %d bytes", maxSelectorBytes)
	}
	if s == "" || strings.TrimSpace(strings.Trim(s, "{}")) == "" && len(s) <= 64 {
		return nil, nil
	}
	ms, err := selectorParser.ParseMetricSelector(s)
	if err != nil {
		return nil, fmt.Errorf("label selector %.200q: %w", s, err)
	}
	if len(ms) > maxMatchers {
		return nil, fmt.Errorf("the label selector has more than %d matchers", maxMatchers)
	}
	return ms, nil
}

// parseSelectors reads alternatives; none is one that matches everything.
func parseSelectors(list []string) ([][]*labels.Matcher, error) {
	if len(list) > maxSelectors {
		return nil, fmt.Errorf("more than %d label selectors", maxSelectors)
	}
	if len(list) == 0 {
		return [][]*labels.Matcher{nil}, nil
	}
	var out [][]*labels.Matcher
	for _, s := range list {
		ms, err := parseSelector(s)
		if err != nil {
			return nil, err
		}
		out = append(out, ms)
	}
	return out, nil
}

// msRange turns a request's milliseconds, both ends included, into the store's
// half-open range. Zero is open.
func msRange(start, end int64) (from, to time.Time, err error) {
	if start < 0 || end < 0 || start > maxMillis || end > maxMillis {
		return from, to, fmt.Errorf("start and end must be milliseconds since 1970")
	}
	if end != 0 && start > end {
		return from, to, fmt.Errorf("start is after end")
	}
	if start != 0 {
		from = time.UnixMilli(start)
	}
	if end != 0 {
		to = time.UnixMilli(end + 1)
	}
	return from, to, nil
}

// maxMillis is the year 2200, so that nanoseconds fit 64 bits.
const maxMillis = 7_258_118_400_000
