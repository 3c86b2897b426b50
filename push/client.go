package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	typesv1 "github.com/grafana/pyroscope/api/gen/proto/go/types/v1"
	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/model/labels"
)

const (
	maxResponseBytes = 64 << 10 // of a body; a good answer has none
	maxRedirects     = 5
)

// client sends requests under one configuration of an endpoint. It outlives the
// configuration for as long as requests are in flight.
type client struct {
	cfg     Endpoint // normalised
	http    *http.Client
	rpc     pushv1connect.PusherServiceClient
	agent   string
	secrets *strings.Replacer

	users   int  // requests in flight; guarded by endpoint.mu
	retired bool // guarded by endpoint.mu
}

func newClient(cfg Endpoint, agent string) (*client, error) {
	hc, err := promconfig.NewClientFromConfig(cfg.HTTP, "push")
	if err != nil {
		return nil, fmt.Errorf("push endpoint %s: HTTP client: %w", cfg.Name, err)
	}
	if cfg.HTTP.FollowRedirects {
		hc.CheckRedirect = checkRedirect
	}
	c := &client{cfg: cfg, http: hc, agent: agent, secrets: redactor(cfg)}
	c.rpc = pushv1connect.NewPusherServiceClient(recorder{hc}, cfg.URL,
		connect.WithReadMaxBytes(maxResponseBytes),
		// A good answer is empty, so compression could only serve a bomb.
		connect.WithAcceptCompression("gzip", nil, nil),
		// Requests are not compressed: what they carry is compressed already.
	)
	return c, nil
}

// checkRedirect allows what keeps the method, the body and the party that sees
// the credentials. Everything else ends with the redirecting answer itself.
func checkRedirect(req *http.Request, via []*http.Request) error {
	from := via[0]
	sameOrigin := req.URL.Scheme == from.URL.Scheme && req.URL.Host == from.URL.Host
	upgrade := from.URL.Scheme == "http" && req.URL.Scheme == "https" && req.URL.Hostname() == from.URL.Hostname()
	if len(via) >= maxRedirects || req.Method != from.Method || !(sameOrigin || upgrade) {
		return http.ErrUseLastResponse
	}
	return nil
}

// send makes one attempt. It returns when the answer was read or the time-out
// has passed, whatever the server does.
func (c *client) send(ctx context.Context, it *item) answer {
	rec := &attempt{}
	callCtx, cancel := context.WithTimeout(context.WithValue(ctx, attemptKey{}, rec), c.cfg.Timeout)
	defer cancel()
	req := connect.NewRequest(&pushv1.PushRequest{Series: []*pushv1.RawProfileSeries{{
		Labels:  wireLabels(it.p.Labels),
		Samples: []*pushv1.RawSample{{RawProfile: it.p.Pprof, ID: it.id}},
	}}})
	for name, value := range c.cfg.Headers {
		req.Header().Set(name, value)
	}
	req.Header().Set("User-Agent", c.agent)
	_, err := c.rpc.Push(callCtx, req)

	a := rec.answer(err)
	switch {
	case a.verdict != delivered && ctx.Err() != nil:
		a = answer{verdict: cancelled, code: "cancelled"}
	case a.status == 0 && errors.Is(callCtx.Err(), context.DeadlineExceeded):
		a.code, a.words = "timeout", fmt.Sprintf("no answer within %s", c.cfg.Timeout)
	}
	a.words = clean(c.secrets.Replace(a.words))
	return a
}

// wireLabels converts series labels. Pyroscope refuses a whole profile for a
// label name outside [a-zA-Z_][a-zA-Z0-9_]*, so other characters become "_"; of
// names that thereby become equal the first is kept.
func wireLabels(ls labels.Labels) []*typesv1.LabelPair {
	out := make([]*typesv1.LabelPair, 0, ls.Len())
	changed := false
	ls.Range(func(l labels.Label) {
		name := wireName(l.Name)
		changed = changed || name != l.Name
		out = append(out, &typesv1.LabelPair{Name: name, Value: l.Value})
	})
	if changed {
		slices.SortStableFunc(out, func(a, b *typesv1.LabelPair) int { return strings.Compare(a.Name, b.Name) })
		out = slices.CompactFunc(out, func(a, b *typesv1.LabelPair) bool { return a.Name == b.Name })
	}
	return out
}

func wireName(s string) string {
	ok := func(i int, c byte) bool {
		return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || i > 0 && c >= '0' && c <= '9'
	}
	for i := range len(s) {
		if !ok(i, s[i]) {
			b := []byte(s)
			for j := range b {
				if !ok(j, b[j]) {
					b[j] = '_'
				}
			}
			return string(b)
		}
	}
	return s
}

// attempt records what the Connect client does not pass on: the status, some
// headers, and how the body ended.
type attempt struct {
	mu         sync.Mutex
	status     int
	location   string
	retryAfter string
	proto      bool   // the body is announced as a protobuf message
	text       []byte // the beginning of another body
	cut        bool   // the body could not be read to its end
}

type attemptKey struct{}

// recorder is the connect.HTTPClient that fills in the attempt of its context.
type recorder struct{ c *http.Client }

func (r recorder) Do(req *http.Request) (*http.Response, error) {
	resp, err := r.c.Do(req)
	rec, _ := req.Context().Value(attemptKey{}).(*attempt)
	if err != nil || rec == nil {
		return resp, err
	}
	rec.mu.Lock()
	rec.status = resp.StatusCode
	rec.location = resp.Header.Get("Location")
	rec.retryAfter = resp.Header.Get("Retry-After")
	rec.proto = resp.Header.Get("Content-Type") == "application/proto"
	rec.mu.Unlock()
	resp.Body = &recordedBody{body: resp.Body, limit: io.LimitReader(resp.Body, maxResponseBytes), rec: rec}
	return resp, nil
}

// recordedBody bounds the body and keeps its beginning.
type recordedBody struct {
	body  io.ReadCloser
	limit io.Reader
	rec   *attempt
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.limit.Read(p)
	b.rec.mu.Lock()
	defer b.rec.mu.Unlock()
	if room := 2*maxWordsBytes - len(b.rec.text); room > 0 {
		b.rec.text = append(b.rec.text, p[:min(n, room)]...)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.rec.cut = true
	}
	return n, err
}

// Close drains what the Connect client left, so that the connection can be used
// again; the limit and the request's time-out bound that.
func (b *recordedBody) Close() error {
	_, _ = io.Copy(io.Discard, b)
	return b.body.Close()
}

func (r *attempt) answer(err error) answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := answer{status: r.status, code: codeLabel(r.status), retryAfter: parseRetryAfter(r.retryAfter, time.Now())}
	switch {
	case err == nil && r.status == http.StatusOK:
		a.verdict = delivered
		return a
	case r.status == http.StatusOK && r.proto && r.cut:
		// The status line says that the server has taken the profile, and a good
		// answer's body is empty. To repeat would store it twice.
		a.verdict = delivered
		return a
	case r.status == 0:
		a.words = transportWords(err)
	default:
		a.words = serverWords(err, r)
	}
	a.verdict = judge(r.status, a.words)
	return a
}

// serverWords is the message of a Connect error, or the text of another answer.
func serverWords(err error, r *attempt) string {
	if r.status >= 300 && r.status < 400 {
		to := "elsewhere"
		if u, perr := url.Parse(r.location); perr == nil && u.Host != "" {
			to = "to " + u.Scheme + "://" + u.Host
		}
		return "redirected " + to + ", which is not followed: configure the server's own URL"
	}
	var ce *connect.Error
	switch isConnect := errors.As(err, &ce); {
	case isConnect && ce.Message() != "" && (connect.IsWireError(err) || r.status == http.StatusOK):
		return ce.Message()
	case len(r.text) > 0:
		return string(r.text)
	case err != nil:
		return err.Error()
	default:
		return http.StatusText(r.status)
	}
}

// transportWords leaves out the URL, which net/http puts first.
func transportWords(err error) string {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err.Error()
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}

// parseRetryAfter reads the header's two forms (RFC 9110, section 10.2.3); zero
// if it is absent or not valid.
func parseRetryAfter(s string, now time.Time) time.Duration {
	if s == "" {
		return 0
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(24*time.Hour/time.Second))) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(t.Sub(now), 0)
	}
	return 0
}
