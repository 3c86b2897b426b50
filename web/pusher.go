package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/store"
)

// maxProfilesOfPush bounds one push request.
const maxProfilesOfPush = 1000

// pusher answers push.v1.PusherService: other agents can use this one's store.
type pusher struct {
	store Store
}

// Push stores all profiles of a request. If some are refused the others are
// stored nevertheless, as Pyroscope does it, and the error names the first.
func (p *pusher) Push(ctx context.Context, req *connect.Request[pushv1.PushRequest]) (*connect.Response[pushv1.PushResponse], error) {
	if p.store == nil {
		return nil, errStoreOff
	}
	n := 0
	for _, s := range req.Msg.Series {
		n += len(s.GetSamples())
	}
	if n > maxProfilesOfPush {
		return nil, badRequest(fmt.Errorf("%d profiles in a push, at most %d", n, maxProfilesOfPush))
	}
	var first error
	for _, s := range req.Msg.Series {
		ls := make([]labels.Label, 0, len(s.GetLabels()))
		for _, l := range s.GetLabels() {
			ls = append(ls, labels.Label{Name: l.GetName(), Value: l.GetValue()})
		}
		for _, smp := range s.GetSamples() {
			if err := p.store.Ingest(ctx, ls, smp.GetID(), smp.GetRawProfile()); err != nil && first == nil {
				first = err
			}
		}
	}
	if first != nil {
		return nil, ingestError(first)
	}
	return connect.NewResponse(&pushv1.PushResponse{}), nil
}

// ingestError gives the error of a refused profile its code: the client's fault
// is not to be tried again, the store's is.
func ingestError(err error) error {
	switch {
	case errors.Is(err, store.ErrMalformed), errors.Is(err, store.ErrRejected):
		return badRequest(err)
	case errors.Is(err, store.ErrFull):
		return connect.NewError(connect.CodeResourceExhausted, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return queryError(err)
	}
	return connect.NewError(connect.CodeUnavailable, err)
}

// ingest answers Pyroscope's older POST /ingest for pprof: as the body with
// format=pprof, or as the multipart field "profile". The query parameter name is
// the application, with labels in braces.
func (s *Server) ingest(w http.ResponseWriter, r *http.Request) {
	if s.opts.Store == nil {
		text(w, http.StatusServiceUnavailable, "the embedded store is off (store.enabled)")
		return
	}
	q := r.URL.Query()
	ls, err := parseAppName(q.Get("name"))
	if err != nil {
		text(w, http.StatusBadRequest, err.Error())
		return
	}
	if f := q.Get("format"); f != "" && f != "pprof" {
		text(w, http.StatusUnprocessableEntity, "only the format pprof is supported")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxPushBody)
	body, err := ingestBody(r)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		text(w, http.StatusRequestEntityTooLarge, "the body is too large")
		return
	}
	if err != nil {
		text(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	ls = append(ls, labels.Label{Name: store.LabelName, Value: profileName(body)})
	err = s.opts.Store.Ingest(r.Context(), ls, "", body)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, store.ErrMalformed), errors.Is(err, store.ErrRejected):
		text(w, http.StatusUnprocessableEntity, err.Error())
	case errors.Is(err, store.ErrFull):
		text(w, http.StatusTooManyRequests, err.Error())
	default:
		text(w, http.StatusServiceUnavailable, err.Error())
	}
}

func ingestBody(r *http.Request) ([]byte, error) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "multipart/form-data" {
		return io.ReadAll(r.Body)
	}
	mr, err := r.MultipartReader()
	if err != nil {
		return nil, fmt.Errorf("read the form: %w", err)
	}
	for range 16 { // fields; pyroscope-go sends three
		part, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the form: %w", err)
		}
		if part.FormName() == "profile" {
			return io.ReadAll(part)
		}
	}
	return nil, errors.New("the form has no field \"profile\"")
}

// parseAppName reads name{key=value,…}.
func parseAppName(s string) ([]labels.Label, error) {
	if s == "" {
		return nil, errors.New("the parameter name is missing")
	}
	if len(s) > maxSelectorBytes {
		return nil, errors.New("the parameter name is too long")
	}
	name, rest, braces := strings.Cut(s, "{")
	name = strings.TrimSpace(name)
	if name == "" {
		return nil, errors.New("the parameter name has no application")
	}
	out := []labels.Label{{Name: store.LabelService, Value: name}}
	if !braces {
		return out, nil
	}
	rest, ok := strings.CutSuffix(strings.TrimSpace(rest), "}")
	if !ok {
		return nil, errors.New("the parameter name has no closing brace")
	}
	for _, kv := range strings.Split(rest, ",") {
		if strings.TrimSpace(kv) == "" {
			continue
		}
		k, v, ok := strings.Cut(kv, "=")
		k, v = strings.TrimSpace(k), strings.Trim(strings.TrimSpace(v), `"`)
		if !ok || k == "" {
			return nil, errors.New("the parameter name has a label without a value")
		}
		switch k {
		case store.LabelService:
			out[0].Value = v
		case store.LabelName: // derived from the profile
		default:
			out = append(out, labels.Label{Name: k, Value: v})
		}
	}
	return out, nil
}

// profileName derives __name__ from a profile's sample types, as the /ingest of
// Pyroscope does, but for types that it does not know, which keep their own name.
func profileName(body []byte) string {
	types, err := store.SampleTypes(body)
	if err != nil || len(types) == 0 {
		return "process_cpu" // Ingest will refuse it with its reason
	}
	for _, t := range types {
		switch {
		case t == "cpu" || t == "samples":
			return "process_cpu"
		case strings.HasPrefix(t, "alloc_"), strings.HasPrefix(t, "inuse_"):
			return "memory"
		case t == "goroutine", t == "goroutines":
			return "goroutines"
		case t == "contentions", t == "delay":
			return "mutex"
		}
	}
	return types[0]
}
