// Package web is the agent's HTTP server: its page, Pyroscope's query and push
// API over the embedded store, metrics, health and the agent's own profiles. It
// holds no state of its own and never samples.
//
// API: querier.v1 and push.v1 of github.com/grafana/pyroscope/api (Connect, gRPC
// and gRPC-Web, protobuf or JSON), /ingest and /pyroscope/render of Pyroscope's
// HTTP API (https://grafana.com/docs/pyroscope/latest/reference-server-api/).
package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/prometheus/client_golang/prometheus"
	toolkit "github.com/prometheus/exporter-toolkit/web"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	profilev1 "github.com/grafana/pyroscope/api/gen/proto/go/google/v1"

	"github.com/spanflame/spanflame/store"
)

// DefaultListenAddress is where the server listens if nothing is said.
const DefaultListenAddress = "127.0.0.1:4041"

// Bounds of the server.
const (
	maxConnections    = 256
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 60 * time.Second
	writeTimeout      = 90 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
	shutdownTimeout   = 5 * time.Second
	maxQueryBody      = 1 << 20
	maxPushBody       = 16 << 20
	maxPushesAtOnce   = 4 // each may hold a body in memory
)

// Store is what the API needs of the embedded store (*store.Store).
type Store interface {
	ProfileTypes(ctx context.Context, from, to time.Time) ([]string, error)
	LabelNames(ctx context.Context, matchers []*labels.Matcher, from, to time.Time) ([]string, store.Stats, error)
	LabelValues(ctx context.Context, name string, matchers []*labels.Matcher, from, to time.Time) ([]string, store.Stats, error)
	Series(ctx context.Context, matchers []*labels.Matcher, names []string, from, to time.Time) ([]labels.Labels, store.Stats, error)
	MergeTree(ctx context.Context, typeID string, matchers []*labels.Matcher, from, to time.Time, opts store.TreeOptions) (*store.Tree, store.Stats, error)
	MergeProfile(ctx context.Context, typeID string, matchers []*labels.Matcher, from, to time.Time) (*profilev1.Profile, store.Stats, error)
	SelectSeries(ctx context.Context, typeID string, matchers []*labels.Matcher, from, to time.Time, groupBy []string, step time.Duration, agg store.Aggregation, limit int) ([]store.TimeSeries, store.Stats, error)
	Ingest(ctx context.Context, pushed []labels.Label, id string, pprof []byte) error
	Bounds() (oldest, newest time.Time)
}

// Options of a server. Only Registry is needed; what a nil function would answer
// is answered with 501.
type Options struct {
	Logger        log.Logger
	Registry      *prometheus.Registry
	ListenAddress string // host:port; default DefaultListenAddress
	// ConfigFile is the exporter toolkit's web configuration (TLS, basic auth); ""
	// for none. It is read again at each request, as the toolkit does it.
	ConfigFile string
	Store      Store // nil (the interface itself) if the store is off
	Targets    func(ctx context.Context) TargetsPage
	Status     func() any // answered as JSON by /api/v1/status
	Reload     func(ctx context.Context) error
	Ready      func() error // nil error: ready
}

// Server is the HTTP server. Handler is safe for concurrent use; Listen and Serve
// are called once each, in this order.
type Server struct {
	opts     Options
	logger   log.Logger
	loopback bool
	handler  http.Handler
	listener net.Listener
	pushes   chan struct{}
	reload   sync.Mutex
	requests *prometheus.CounterVec
}

// New makes a server. It fails if the listen address or the web configuration is
// no good, or if the registry has the server's metrics already.
func New(opts Options) (*Server, error) {
	if opts.Logger == nil {
		opts.Logger = log.NewNopLogger()
	}
	if opts.Registry == nil {
		opts.Registry = prometheus.NewRegistry()
	}
	if opts.ListenAddress == "" {
		opts.ListenAddress = DefaultListenAddress
	}
	host, port, err := net.SplitHostPort(opts.ListenAddress)
	if err != nil {
		return nil, fmt.Errorf("server.listen_address %q: want host:port: %w", opts.ListenAddress, err)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return nil, fmt.Errorf("server.listen_address %q: %w", opts.ListenAddress, err)
	}
	if err := toolkit.Validate(opts.ConfigFile); err != nil {
		return nil, fmt.Errorf("server.web_config_file %s: %w", opts.ConfigFile, err)
	}
	s := &Server{
		opts: opts, logger: opts.Logger, loopback: isLoopback(host),
		pushes: make(chan struct{}, maxPushesAtOnce),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spanflame_http_requests_total", Help: "HTTP requests by route and status.",
		}, []string{"route", "code"}),
	}
	if err := opts.Registry.Register(s.requests); err != nil {
		return nil, fmt.Errorf("register the server's metrics: %w", err)
	}
	if s.handler, err = s.routes(); err != nil {
		opts.Registry.Unregister(s.requests)
		return nil, err
	}
	return s, nil
}

// Handler is the whole server without its listener, TLS and basic auth.
func (s *Server) Handler() http.Handler { return s.handler }

// Listen opens the port.
func (s *Server) Listen() error {
	l, err := net.Listen("tcp", s.opts.ListenAddress)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("listen on %s: the port is in use by another program; stop it, or set server.listen_address to another one: %w", s.opts.ListenAddress, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("listen on %s: this host has no such address; set server.listen_address to one it has: %w", s.opts.ListenAddress, err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("listen on %s: no permission for this port; set server.listen_address to a port above 1023: %w", s.opts.ListenAddress, err)
	case err != nil:
		return fmt.Errorf("listen on %s (server.listen_address): %w", s.opts.ListenAddress, err)
	}
	s.listener = netutil.LimitListener(l, maxConnections)
	return nil
}

// Addr is where the server listens, nil before Listen.
func (s *Server) Addr() net.Addr {
	if s.listener == nil {
		return nil
	}
	return s.listener.Addr()
}

// Close closes the listener of a server that was not served. It is idempotent.
func (s *Server) Close() error {
	if s.listener == nil {
		return nil
	}
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Serve answers requests until ctx ends. Requests that are under way then have 5
// seconds to end.
func (s *Server) Serve(ctx context.Context) error {
	if s.listener == nil {
		return errors.New("serve: Listen was not called")
	}
	defer s.opts.Registry.Unregister(s.requests)
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	srv := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          stdLogger(s.logger),
		Protocols:         new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true) // gRPC clients
	if s.opts.ConfigFile == "" && !s.loopback {
		level.Warn(s.logger).Log("msg", "the page is open to the network without TLS or password; set server.web_config_file or listen on 127.0.0.1", "address", s.listener.Addr())
	}
	level.Info(s.logger).Log("msg", "serving the page", "address", s.listener.Addr())
	done := make(chan error, 1)
	go func() {
		done <- toolkit.Serve(s.listener, srv, &toolkit.FlagConfig{WebConfigFile: &s.opts.ConfigFile}, slogLogger(s.logger))
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", s.listener.Addr(), err)
	case <-ctx.Done():
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := srv.Shutdown(wait)
	stop()
	if err != nil {
		level.Warn(s.logger).Log("msg", "requests were cut off", "err", err)
		_ = srv.Close() // what could not end in time
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
