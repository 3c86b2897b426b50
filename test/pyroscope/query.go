// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"

	ingesterv1 "github.com/grafana/pyroscope/api/gen/proto/go/ingester/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/ingester/v1/ingesterv1connect"
	typesv1 "github.com/grafana/pyroscope/api/gen/proto/go/types/v1"
	connectapi "github.com/grafana/pyroscope/pkg/api/connect"
	phlaremodel "github.com/grafana/pyroscope/pkg/model"
	"github.com/grafana/pyroscope/pkg/tenant"
)

// queries is the query surface. The querier of v1.7.1 does not build, so the
// ingester is asked directly, by ingester.v1 over loopback:
//
//	GET /test/profiletypes                        → ["process_cpu:cpu:…", …]
//	GET /test/series?selector=S                   → [{"service_name":"a", …}, …]
//	GET /test/profiles?type=T&selector=S          → [{"timestamp_ms":…, "fingerprint":"…"}, …]
//	GET /test/merge?type=T&selector=S             → the merged pprof, uncompressed
//
// All take from and until in Unix milliseconds (default: 2 h ago to 1 h ahead).
// A selector is a Pyroscope one, e.g. {service_name="a"}; the default is {}. The
// tenant is taken from X-Scope-OrgID. Errors are plain text; no profile is 404.
type queries struct {
	client ingesterv1connect.IngesterServiceClient
}

func registerQueries(mux *http.ServeMux, url string, auth connect.Option) {
	h2cClient := &http.Client{Transport: &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
	}}
	q := &queries{client: ingesterv1connect.NewIngesterServiceClient(h2cClient, url, append(connectapi.DefaultClientOptions(), auth)...)}
	mux.HandleFunc("GET /test/profiletypes", serve(q.profileTypes))
	mux.HandleFunc("GET /test/series", serve(q.series))
	mux.HandleFunc("GET /test/profiles", serve(q.profiles))
	mux.HandleFunc("GET /test/merge", serve(q.merge))
}

var errNoProfile = errors.New("no profile matches")

type badRequest struct{ err error }

func (e badRequest) Error() string { return e.err.Error() }

type params struct {
	typ         *typesv1.ProfileType // nil if none was given
	selector    string
	from, until int64 // Unix milliseconds
}

func parse(r *http.Request) (params, error) {
	now := time.Now()
	p := params{selector: "{}", from: now.Add(-2 * time.Hour).UnixMilli(), until: now.Add(time.Hour).UnixMilli()}
	v := r.URL.Query()
	if s := v.Get("selector"); s != "" {
		p.selector = s
	}
	for _, t := range []struct {
		name string
		to   *int64
	}{{"from", &p.from}, {"until", &p.until}} {
		if s := v.Get(t.name); s != "" {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return p, fmt.Errorf("%s: want Unix milliseconds: %w", t.name, err)
			}
			*t.to = n
		}
	}
	if s := v.Get("type"); s != "" {
		t, err := phlaremodel.ParseProfileTypeSelector(s)
		if err != nil {
			return p, fmt.Errorf("type: %w", err)
		}
		p.typ = t
	}
	return p, nil
}

// serve answers with bytes as they are and with anything else as JSON.
func serve[T any](f func(context.Context, params) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if id := r.Header.Get("X-Scope-OrgID"); id != "" {
			ctx = tenant.InjectTenantID(ctx, id)
		}
		p, err := parse(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		res, err := f(ctx, p)
		var bad badRequest
		switch {
		case errors.As(err, &bad):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case errors.Is(err, errNoProfile):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadGateway)
		default:
			if b, ok := any(res).([]byte); ok {
				w.Header().Set("Content-Type", "application/octet-stream")
				_, _ = w.Write(b)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(res)
		}
	}
}

func (q *queries) profileTypes(ctx context.Context, p params) ([]string, error) {
	res, err := q.client.ProfileTypes(ctx, connect.NewRequest(&ingesterv1.ProfileTypesRequest{Start: p.from, End: p.until}))
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, t := range res.Msg.ProfileTypes {
		out = append(out, t.ID)
	}
	return out, nil
}

func (q *queries) series(ctx context.Context, p params) ([]map[string]string, error) {
	res, err := q.client.Series(ctx, connect.NewRequest(&ingesterv1.SeriesRequest{
		Matchers: []string{p.selector}, Start: p.from, End: p.until,
	}))
	if err != nil {
		return nil, err
	}
	out := []map[string]string{}
	for _, set := range res.Msg.LabelsSet {
		m := make(map[string]string, len(set.Labels))
		for _, l := range set.Labels {
			m[l.Name] = l.Value
		}
		out = append(out, m)
	}
	return out, nil
}

// storedProfile is one profile that the server has taken.
type storedProfile struct {
	TimestampMS int64  `json:"timestamp_ms"`
	Fingerprint string `json:"fingerprint"` // of its series
}

func (q *queries) profiles(ctx context.Context, p params) ([]storedProfile, error) {
	stored, _, err := q.selectMerge(ctx, p)
	return stored, err
}

func (q *queries) merge(ctx context.Context, p params) ([]byte, error) {
	stored, pprof, err := q.selectMerge(ctx, p)
	if err == nil && len(stored) == 0 {
		err = errNoProfile
	}
	return pprof, err
}

// selectMerge speaks the ingester's merge protocol: it sends lists of profiles
// until an empty one, and wants each answered with what to keep of it (all, here);
// then it sends the merged pprof.
func (q *queries) selectMerge(ctx context.Context, p params) ([]storedProfile, []byte, error) {
	if p.typ == nil {
		return nil, nil, badRequest{errors.New("type is missing")}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := q.client.MergeProfilesPprof(ctx)
	defer func() {
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
	}()

	err := stream.Send(&ingesterv1.MergeProfilesPprofRequest{Request: &ingesterv1.SelectProfilesRequest{
		LabelSelector: p.selector, Type: p.typ, Start: p.from, End: p.until,
	}})
	// A failed send says only io.EOF; the reason comes with the next receive.
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("send the merge request: %w", err)
	}
	stored := []storedProfile{}
	for {
		res, err := stream.Receive()
		if err != nil {
			return nil, nil, fmt.Errorf("receive profiles to merge: %w", err)
		}
		set := res.SelectedProfiles
		if set == nil || len(set.Profiles) == 0 {
			break
		}
		keep := make([]bool, len(set.Profiles))
		for i, sp := range set.Profiles {
			keep[i] = true
			fp := ""
			if int(sp.LabelIndex) < len(set.Fingerprints) {
				fp = strconv.FormatUint(set.Fingerprints[sp.LabelIndex], 16)
			}
			stored = append(stored, storedProfile{TimestampMS: sp.Timestamp, Fingerprint: fp})
		}
		if err := stream.Send(&ingesterv1.MergeProfilesPprofRequest{Profiles: keep}); err != nil {
			return nil, nil, fmt.Errorf("send the selection: %w", err)
		}
	}
	res, err := stream.Receive()
	if err != nil {
		return nil, nil, fmt.Errorf("receive the merged profile: %w", err)
	}
	return stored, res.Result, nil
}
