// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/grafana/dskit/flagext"
	"github.com/grafana/dskit/kv"
	"github.com/grafana/dskit/ring"
	"github.com/grafana/dskit/services"
	"github.com/opentracing/opentracing-go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/grafana/pyroscope/api/gen/proto/go/ingester/v1/ingesterv1connect"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	connectapi "github.com/grafana/pyroscope/pkg/api/connect"
	"github.com/grafana/pyroscope/pkg/clientpool"
	"github.com/grafana/pyroscope/pkg/distributor"
	"github.com/grafana/pyroscope/pkg/ingester"
	"github.com/grafana/pyroscope/pkg/ingester/pyroscope"
	phlarecontext "github.com/grafana/pyroscope/pkg/phlare/context"
	"github.com/grafana/pyroscope/pkg/phlaredb"
	"github.com/grafana/pyroscope/pkg/tenant"
	"github.com/grafana/pyroscope/pkg/util"
	"github.com/grafana/pyroscope/pkg/validation"
)

// server holds Pyroscope's parts. They are started in the order in which they
// need each other and stopped the other way round.
type server struct {
	logger log.Logger
	mux    *http.ServeMux
	ring   *ring.Ring
	ing    *ingester.Ingester
	dist   *distributor.Distributor
}

func newServer(o options, addr *net.TCPAddr, logger log.Logger) (*server, error) {
	reg := prometheus.NewRegistry()
	host, port := addr.IP.String(), addr.Port

	// Multi-tenancy off means that the interceptor puts everybody under the
	// server's default tenant, as a plain Pyroscope does.
	auth := connect.WithInterceptors(tenant.NewAuthInterceptor(o.tenants))

	var limits validation.Limits
	flagext.DefaultValues(&limits)
	if o.rateMB > 0 {
		limits.IngestionRateMB = o.rateMB
	}
	if o.burstMB > 0 {
		limits.IngestionBurstSizeMB = o.burstMB
	}
	overrides, err := validation.NewOverrides(limits, nil)
	if err != nil {
		return nil, fmt.Errorf("set up limits: %w", err)
	}

	store := kv.Config{Store: "inmemory"}
	var ingCfg ingester.Config
	flagext.DefaultValues(&ingCfg)
	lc := &ingCfg.LifecyclerConfig
	lc.RingConfig.KVStore = store
	lc.RingConfig.ReplicationFactor = 1
	lc.NumTokens = 1
	lc.ID, lc.Addr, lc.Port, lc.ListenPort = "ingester", host, port, port
	lc.MinReadyDuration, lc.FinalSleep, lc.JoinAfter, lc.ObservePeriod = 0, 0, 0, 0

	var dbCfg phlaredb.Config
	flagext.DefaultValues(&dbCfg)
	dbCfg.DataPath = o.data
	dbCfg.DisableEnforcement = true // the test owns the directory

	phlarectx := phlarecontext.WithRegistry(phlarecontext.WithLogger(context.Background(), logger), reg)
	ing, err := ingester.New(phlarectx, ingCfg, dbCfg, nil, overrides, 0)
	if err != nil {
		return nil, fmt.Errorf("make the ingester: %w", err)
	}

	rng, err := ring.New(lc.RingConfig, "ingester", "ring", log.With(logger, "component", "ring"), prometheus.WrapRegistererWithPrefix("pyroscope_", reg))
	if err != nil {
		return nil, fmt.Errorf("make the ring: %w", err)
	}

	distCfg := distributor.Config{
		PushTimeout: 5 * time.Second,
		PoolConfig:  clientpool.PoolConfig{ClientCleanupPeriod: 15 * time.Second, RemoteTimeout: 5 * time.Second},
		DistributorRing: util.CommonRingConfig{
			KVStore:          store,
			InstanceID:       "distributor",
			InstanceAddr:     host,
			InstancePort:     port,
			ListenPort:       port,
			HeartbeatPeriod:  15 * time.Second,
			HeartbeatTimeout: time.Minute,
		},
	}
	dist, err := distributor.New(distCfg, rng, nil, overrides, reg, log.With(logger, "component", "distributor"), auth)
	if err != nil {
		return nil, fmt.Errorf("make the distributor: %w", err)
	}

	s := &server{logger: logger, mux: http.NewServeMux(), ring: rng, ing: ing, dist: dist}
	handler := append(connectapi.DefaultHandlerOptions(), auth)
	path, pusher := pushv1connect.NewPusherServiceHandler(dist, handler...)
	s.mux.Handle(path, withSpan(pusher))
	s.mux.Handle(ingesterv1connect.NewIngesterServiceHandler(ing, handler...))
	s.mux.Handle("/ingest", ingestTenant(o.tenants, withSpan(pyroscope.NewPyroscopeIngestHandler(dist, logger))))
	s.mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	s.mux.HandleFunc("/ready", s.serveReady)
	registerQueries(s.mux, "http://"+addr.String(), auth)
	return s, nil
}

// ingestTenant puts the tenant into the request's context, which for /ingest is
// the job of a middleware of the full server.
func ingestTenant(tenants bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := tenant.InjectTenantID(r.Context(), tenant.DefaultTenantID)
		if tenants {
			var err error
			if _, ctx, err = tenant.ExtractTenantIDFromHeaders(r.Context(), r.Header); err != nil {
				http.Error(w, err.Error(), http.StatusUnauthorized)
				return
			}
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// withSpan puts a (no-op) tracing span into the request's context. In the full
// server a middleware does that, and the distributor's client panics without it.
func withSpan(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		span, ctx := opentracing.StartSpanFromContext(r.Context(), r.URL.Path)
		defer span.Finish()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// start returns when a push can succeed: the ring must know the ingester.
func (s *server) start(ctx context.Context) error {
	for _, p := range []struct {
		name string
		svc  services.Service
	}{{"ring", s.ring}, {"ingester", s.ing}, {"distributor", s.dist}} {
		if err := services.StartAndAwaitRunning(ctx, p.svc); err != nil {
			s.stop()
			return fmt.Errorf("start the %s: %w", p.name, err)
		}
	}
	for {
		if set, err := s.ring.GetAllHealthy(ring.Write); err == nil && len(set.Instances) == 1 {
			return nil
		}
		select {
		case <-ctx.Done():
			s.stop()
			return fmt.Errorf("wait for the ring: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, svc := range []services.Service{s.dist, s.ing, s.ring} {
		if err := services.StopAndAwaitTerminated(ctx, svc); err != nil {
			_ = level.Warn(s.logger).Log("msg", "a part did not stop cleanly", "err", err)
		}
	}
}

func (s *server) serveReady(w http.ResponseWriter, r *http.Request) {
	if err := s.ing.CheckReady(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}
