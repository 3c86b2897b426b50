package web

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/go-kit/log/level"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	"github.com/grafana/pyroscope/api/gen/proto/go/querier/v1/querierv1connect"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// TargetsPage is the answer of /api/v1/targets.
type TargetsPage struct {
	Processes []Process        `json:"processes"`
	Unmatched []UnmatchedEntry `json:"unmatched"`
}

// Process is a process of this host and the target it fell to.
type Process struct {
	PID         int32             `json:"pid"`
	StartTime   time.Time         `json:"start_time"`
	Comm        string            `json:"comm"`
	Exe         string            `json:"exe"`
	ServiceName string            `json:"service_name"` // "" if it is no target
	Job         string            `json:"job"`
	Labels      map[string]string `json:"labels"`
	Why         string            `json:"why"`     // why it fell to this target, or to none
	Samples     uint64            `json:"samples"` // taken of it so far
	Dropped     map[string]uint64 `json:"dropped"` // samples by reason
	Stacks      map[string]uint64 `json:"stacks"`  // user stacks by how they ended: "whole", or why they are cut
}

// UnmatchedEntry is a discovered target that no process of this host belongs to.
type UnmatchedEntry struct {
	Job    string            `json:"job"`
	Labels map[string]string `json:"labels"` // as discovered
	Why    string            `json:"why"`
}

// withoutNulls makes what is missing empty, so that the page need not ask.
func (t TargetsPage) withoutNulls() TargetsPage {
	out := TargetsPage{Processes: append([]Process{}, t.Processes...), Unmatched: append([]UnmatchedEntry{}, t.Unmatched...)}
	for i := range out.Processes {
		p := &out.Processes[i]
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		if p.Dropped == nil {
			p.Dropped = map[string]uint64{}
		}
		if p.Stacks == nil {
			p.Stacks = map[string]uint64{}
		}
	}
	for i := range out.Unmatched {
		if out.Unmatched[i].Labels == nil {
			out.Unmatched[i].Labels = map[string]string{}
		}
	}
	return out
}

func (s *Server) routes() (http.Handler, error) {
	mux := http.NewServeMux()
	page, err := newPage()
	if err != nil {
		return nil, err
	}
	mux.Handle("GET /", page)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.opts.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 30 * time.Second, ErrorLog: stdLogger(s.logger)}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "healthy") })
	mux.HandleFunc("GET /-/ready", s.ready)
	mux.HandleFunc("POST /-/reload", s.doReload)
	mux.HandleFunc("GET /api/v1/targets", func(w http.ResponseWriter, r *http.Request) {
		if s.opts.Targets == nil {
			text(w, http.StatusNotImplemented, "there is no list of targets")
			return
		}
		s.json(w, s.opts.Targets(r.Context()).withoutNulls())
	})
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, _ *http.Request) {
		if s.opts.Status == nil {
			text(w, http.StatusNotImplemented, "there is no status")
			return
		}
		s.json(w, s.opts.Status())
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", limitSeconds(pprof.Profile))
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", limitSeconds(pprof.Trace))
	mux.HandleFunc("GET /pyroscope/render", s.render)
	mux.Handle("POST /ingest", s.limitPushes(http.HandlerFunc(s.ingest)))

	path, h := querierv1connect.NewQuerierServiceHandler(&querier{store: s.opts.Store},
		connect.WithReadMaxBytes(maxQueryBody), connect.WithCompressMinBytes(1024))
	mux.Handle("POST "+path, bounded(h, maxQueryBody))
	path, h = pushv1connect.NewPusherServiceHandler(&pusher{store: s.opts.Store}, connect.WithReadMaxBytes(maxPushBody))
	mux.Handle("POST "+path, s.limitPushes(bounded(h, maxPushBody)))
	return s.protect(s.count(mux)), nil
}

// bounded limits the body before anything reads it.
func bounded(next http.Handler, limit int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > limit {
			http.Error(w, "the body is larger than "+strconv.FormatInt(limit, 10)+" bytes", http.StatusRequestEntityTooLarge)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		next.ServeHTTP(w, r)
	})
}

// limitPushes bounds the memory of bodies: pushes beyond a few at once wait.
func (s *Server) limitPushes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.pushes <- struct{}{}:
			defer func() { <-s.pushes }()
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}

// maxProfileSeconds keeps a profile of the agent itself within the write timeout.
const maxProfileSeconds = 60

func limitSeconds(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if v := r.URL.Query().Get("seconds"); v != "" {
			if n, err := strconv.ParseFloat(v, 64); err != nil || !(n > 0 && n <= maxProfileSeconds) {
				text(w, http.StatusBadRequest, "seconds must be a number above 0 and at most "+strconv.Itoa(maxProfileSeconds))
				return
			}
		}
		next(w, r)
	}
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.opts.Ready != nil {
		if err := s.opts.Ready(); err != nil {
			text(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
	}
	text(w, http.StatusOK, "ready")
}

func (s *Server) doReload(w http.ResponseWriter, r *http.Request) {
	if s.opts.Reload == nil {
		text(w, http.StatusNotImplemented, "there is no configuration file to read again")
		return
	}
	// One after the other; and a client that goes away must not leave a half
	// loaded configuration.
	s.reload.Lock()
	defer s.reload.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), readTimeout)
	defer cancel()
	if err := s.opts.Reload(ctx); err != nil {
		text(w, http.StatusInternalServerError, "reload failed, the configuration in use stays: "+err.Error())
		return
	}
	text(w, http.StatusOK, "reloaded")
}

func text(w http.ResponseWriter, code int, msg string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(msg + "\n")) // a client that is gone needs no answer
}

func (s *Server) json(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		level.Error(s.logger).Log("msg", "could not encode an answer", "err", err)
		text(w, http.StatusInternalServerError, "could not encode the answer")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(b) // a client that is gone needs no answer
}
