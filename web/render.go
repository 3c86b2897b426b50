package web

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/spanflame/spanflame/store"
)

// flamebearer is the JSON of Pyroscope's GET /pyroscope/render.
type flamebearer struct {
	Version     int `json:"version"`
	Flamebearer struct {
		Names    []string  `json:"names"`
		Levels   [][]int64 `json:"levels"`
		NumTicks int64     `json:"numTicks"`
		MaxSelf  int64     `json:"maxSelf"`
	} `json:"flamebearer"`
	Metadata struct {
		Format     string `json:"format"`
		SpyName    string `json:"spyName"`
		SampleRate uint32 `json:"sampleRate"`
		Units      string `json:"units"`
		Name       string `json:"name"`
	} `json:"metadata"`
	Timeline *timeline      `json:"timeline"`
	Groups   map[string]any `json:"groups"`
	Heatmap  any            `json:"heatmap"`
}

type timeline struct {
	StartTime     int64          `json:"startTime"` // s
	Samples       []uint64       `json:"samples"`
	DurationDelta int64          `json:"durationDelta"` // s
	Watermarks    map[string]any `json:"watermarks"`
}

// timelineSteps is about how many values a timeline has.
const timelineSteps = 300

// render answers GET /pyroscope/render?query=TYPE{…}&from=now-15m&until=now.
func (s *Server) render(w http.ResponseWriter, r *http.Request) {
	if s.opts.Store == nil {
		text(w, http.StatusServiceUnavailable, "the embedded store is off (store.enabled)")
		return
	}
	params := r.URL.Query()
	if f := params.Get("format"); f != "" && f != "json" {
		text(w, http.StatusBadRequest, "only the format json is supported")
		return
	}
	typeID, selector, _ := strings.Cut(params.Get("query"), "{")
	if strings.Contains(params.Get("query"), "{") {
		selector = "{" + selector
	}
	pt, err := parseTypeID(strings.TrimSpace(typeID))
	if err != nil {
		text(w, http.StatusBadRequest, "query: "+err.Error())
		return
	}
	matchers, err := parseSelector(selector)
	if err != nil {
		text(w, http.StatusBadRequest, "query: "+err.Error())
		return
	}
	now := time.Now()
	from, err1 := parseTime(params.Get("from"), now, now.Add(-time.Hour))
	until, err2 := parseTime(params.Get("until"), now, now)
	if err := errors.Join(err1, err2); err != nil {
		text(w, http.StatusBadRequest, err.Error())
		return
	}
	if !from.Before(until) {
		text(w, http.StatusBadRequest, "from is not before until")
		return
	}
	maxNodes := int64(0)
	for _, name := range []string{"max-nodes", "maxNodes"} {
		if v := params.Get(name); v != "" {
			if maxNodes, err = strconv.ParseInt(v, 10, 64); err != nil {
				text(w, http.StatusBadRequest, name+" is no number")
				return
			}
		}
	}
	tree, stats, err := s.opts.Store.MergeTree(r.Context(), pt.ID, matchers, from, until, store.TreeOptions{})
	if err != nil {
		s.renderError(w, err)
		return
	}
	step := max(15*time.Second, until.Sub(from)/timelineSteps).Round(time.Second)
	series, _, err := s.opts.Store.SelectSeries(r.Context(), pt.ID, matchers, from, until, nil, step, store.Sum, 0)
	if err != nil {
		s.renderError(w, err)
		return
	}
	if stats.Cut != "" {
		w.Header().Set(partialHeader, stats.Cut)
	}
	fg := flameGraph(tree, nodeLimit(maxNodes))
	out := flamebearer{Version: 1, Timeline: timelineOf(series, from, until, step)}
	out.Flamebearer.Names, out.Flamebearer.Levels = fg.Names, intLevels(fg.Levels)
	out.Flamebearer.NumTicks, out.Flamebearer.MaxSelf = fg.Total, fg.MaxSelf
	out.Metadata.Format, out.Metadata.Name = "single", pt.SampleType
	out.Metadata.Units, out.Metadata.SampleRate = pt.SampleUnit, 100
	if pt.SampleType == "cpu" {
		out.Metadata.Units, out.Metadata.SampleRate = "samples", 1_000_000_000
	}
	s.json(w, out)
}

func (s *Server) renderError(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch connect.CodeOf(queryError(err)) {
	case connect.CodeUnavailable:
		code = http.StatusServiceUnavailable
	case connect.CodeDeadlineExceeded:
		code = http.StatusGatewayTimeout
	}
	if errors.Is(err, store.ErrRange) {
		code = http.StatusBadRequest
	}
	text(w, code, err.Error())
}

func timelineOf(series []store.TimeSeries, from, until time.Time, step time.Duration) *timeline {
	n := int(until.Sub(from)/step) + 1
	t := &timeline{StartTime: from.Unix(), Samples: make([]uint64, n), DurationDelta: int64(step / time.Second)}
	if len(series) == 0 {
		return t
	}
	for _, p := range series[0].Points {
		if i := int(p.Time.Sub(from) / step); i >= 0 && i < n && p.Value > 0 {
			t.Samples[i] = uint64(p.Value)
		}
	}
	return t
}

// parseTime reads now, now-15m (s, m, h, d, w), or a Unix time in seconds,
// milliseconds, microseconds or nanoseconds.
func parseTime(s string, now, byDefault time.Time) (time.Time, error) {
	if s == "" {
		return byDefault, nil
	}
	if rest, ok := strings.CutPrefix(s, "now"); ok {
		if rest == "" {
			return now, nil
		}
		if len(rest) < 3 || rest[0] != '-' && rest[0] != '+' {
			return time.Time{}, fmt.Errorf("time %.50q: want now-15m", s)
		}
		n, err := strconv.ParseInt(rest[:len(rest)-1], 10, 32)
		if err != nil {
			return time.Time{}, fmt.Errorf("time %.50q: want now-15m", s)
		}
		unit, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}[rest[len(rest)-1]]
		if limit := int64(100 * 365 * 24 * time.Hour / max(unit, time.Second)); !ok || n > limit || n < -limit {
			return time.Time{}, fmt.Errorf("time %.50q: want now-15m", s)
		}
		t := now.Add(time.Duration(n) * unit)
		if t.Before(time.Unix(1, 0)) {
			return time.Time{}, fmt.Errorf("time %.50q is before 1970", s)
		}
		return t, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}, fmt.Errorf("time %.50q: want now, now-15m or a Unix time", s)
	}
	// Until the year 5000 the number of digits tells the unit.
	unit := int64(1)
	switch {
	case n < 1e11:
		unit = 1e9
	case n < 1e14:
		unit = 1e6
	case n < 1e17:
		unit = 1e3
	}
	if n > maxMillis*1e6/unit {
		return time.Time{}, fmt.Errorf("time %s is too far ahead", s)
	}
	return time.Unix(0, n*unit), nil
}
