package pyroserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	querierv1 "github.com/grafana/pyroscope/api/gen/proto/go/querier/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/querier/v1/querierv1connect"
	"google.golang.org/protobuf/proto"
)

// client keeps no connection, so that a test's look for leaks finds none of ours.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// small asks the test server by its own query surface (test/pyroscope/README.md).
type small struct{ url, tenant string }

func (q small) get(ctx context.Context, path string, v url.Values) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.url+path+"?"+v.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if q.tenant != "" {
		req.Header.Set("X-Scope-OrgID", q.tenant)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return b, nil
	case http.StatusNotFound:
		return nil, ErrNoProfile
	default:
		return nil, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
}

func values(typeID, selector string, from, until time.Time) url.Values {
	v := url.Values{"from": {strconv.FormatInt(from.UnixMilli(), 10)}, "until": {strconv.FormatInt(until.UnixMilli(), 10)}}
	if typeID != "" {
		v.Set("type", typeID)
	}
	if selector != "" {
		v.Set("selector", selector)
	}
	return v
}

func (q small) merge(ctx context.Context, typeID, selector string, from, until time.Time) ([]byte, error) {
	return q.get(ctx, "/test/merge", values(typeID, selector, from, until))
}

func (q small) json(ctx context.Context, path string, v url.Values, to any) error {
	b, err := q.get(ctx, path, v)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

func (q small) series(ctx context.Context, selector string, from, until time.Time) (out []map[string]string, err error) {
	err = q.json(ctx, "/test/series", values("", selector, from, until), &out)
	return out, err
}

func (q small) profileTypes(ctx context.Context, from, until time.Time) (out []string, err error) {
	err = q.json(ctx, "/test/profiletypes", values("", "", from, until), &out)
	return out, err
}

func (q small) profiles(ctx context.Context, typeID, selector string, from, until time.Time) ([]Stored, error) {
	var raw []struct {
		TimestampMS int64  `json:"timestamp_ms"`
		Fingerprint string `json:"fingerprint"`
	}
	if err := q.json(ctx, "/test/profiles", values(typeID, selector, from, until), &raw); err != nil {
		return nil, fmt.Errorf("list profiles %s of %s: %w", typeID, selector, err)
	}
	out := make([]Stored, len(raw))
	for i, r := range raw {
		out[i] = Stored{Time: time.UnixMilli(r.TimestampMS), Series: r.Fingerprint}
	}
	return out, nil
}

// full asks any Pyroscope by querier.v1.
type full struct {
	client querierv1connect.QuerierServiceClient
	tenant string
}

func newFull(url, tenant string) full {
	return full{client: querierv1connect.NewQuerierServiceClient(client, url), tenant: tenant}
}

func request[T any](q full, msg *T) *connect.Request[T] {
	r := connect.NewRequest(msg)
	if q.tenant != "" {
		r.Header().Set("X-Scope-OrgID", q.tenant)
	}
	return r
}

func (q full) merge(ctx context.Context, typeID, selector string, from, until time.Time) ([]byte, error) {
	res, err := q.client.SelectMergeProfile(ctx, request(q, &querierv1.SelectMergeProfileRequest{
		ProfileTypeID: typeID, LabelSelector: selector, Start: from.UnixMilli(), End: until.UnixMilli(),
	}))
	if err != nil {
		if connect.CodeOf(err) == connect.CodeNotFound {
			return nil, ErrNoProfile
		}
		return nil, err
	}
	if len(res.Msg.Sample) == 0 {
		return nil, ErrNoProfile
	}
	return proto.Marshal(res.Msg)
}

func (q full) series(ctx context.Context, selector string, from, until time.Time) ([]map[string]string, error) {
	res, err := q.client.Series(ctx, request(q, &querierv1.SeriesRequest{
		Matchers: []string{selector}, Start: from.UnixMilli(), End: until.UnixMilli(),
	}))
	if err != nil {
		return nil, err
	}
	var out []map[string]string
	for _, set := range res.Msg.LabelsSet {
		m := map[string]string{}
		for _, l := range set.Labels {
			m[l.Name] = l.Value
		}
		out = append(out, m)
	}
	return out, nil
}

func (q full) profileTypes(ctx context.Context, from, until time.Time) ([]string, error) {
	res, err := q.client.ProfileTypes(ctx, request(q, &querierv1.ProfileTypesRequest{Start: from.UnixMilli(), End: until.UnixMilli()}))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range res.Msg.ProfileTypes {
		out = append(out, t.ID)
	}
	return out, nil
}
