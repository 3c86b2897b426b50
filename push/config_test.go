package push

import (
	"strings"
	"testing"
	"time"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/internal/ledger"
)

func TestURLs(t *testing.T) {
	for in, want := range map[string]string{
		"http://pyroscope:4040":                "http://pyroscope:4040",
		"http://pyroscope:4040/":               "http://pyroscope:4040",
		"https://x.example/tenant/a":           "https://x.example/tenant/a",
		"https://x.example/tenant/a//":         "https://x.example/tenant/a",
		"https://x.example/a%2Fb/":             "https://x.example/a%2Fb",
		"http://x/push.v1.PusherService/Push":  "http://x",
		"http://x/push.v1.PusherService/Push/": "http://x",
		"http://x/base/push.v1.PusherService":  "http://x/base",
		"http://x/ingest":                      "http://x",
		"http://x/base/ingest/":                "http://x/base",
		"http://x/myingest":                    "http://x/myingest",
		"http://[::1]:4040":                    "http://[::1]:4040",
		"http://joe:pw@x:1/y":                  "http://x:1/y",
		"HTTP://x":                             "http://x",
		"http://x/" + strings.Repeat("a", 100) + "/push.v1.PusherService/Push///": "http://x/" + strings.Repeat("a", 100),
	} {
		ep, err := Endpoint{URL: in}.normalise()
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if ep.URL != want || ep.Name != want {
			t.Errorf("%s: URL %q, name %q, want %q", in, ep.URL, ep.Name, want)
		}
	}
}

func TestBadEndpoints(t *testing.T) {
	basic := promconfig.HTTPClientConfig{BasicAuth: &promconfig.BasicAuth{Username: "u"}}
	tests := []struct {
		name string
		ep   []Endpoint
		want string
	}{
		{"no URL", []Endpoint{{}}, "URL is missing"},
		{"no scheme", []Endpoint{{URL: "pyroscope:4040"}}, "begin with http"},
		{"host only", []Endpoint{{URL: "pyroscope"}}, "begin with http"},
		{"other scheme", []Endpoint{{URL: "grpc://x"}}, "begin with http"},
		{"no host", []Endpoint{{URL: "http://:4040"}}, "no host"},
		{"query", []Endpoint{{URL: "http://x/?token=hunter22"}}, "query"},
		{"fragment", []Endpoint{{URL: "http://x/#hunter22"}}, "fragment"},
		{"unparsable", []Endpoint{{URL: "http://joe:hunter22%@x"}}, "percent-encoded"},
		{"control character", []Endpoint{{URL: "http://x/\x7f"}}, "cannot be parsed"},
		{"other call", []Endpoint{{URL: "http://x/push.v1.PusherService/Pull"}}, "base URL"},
		{"two authentications", []Endpoint{{URL: "http://joe:hunter22@x", HTTP: basic}}, "keep one"},
		{"bad client", []Endpoint{{URL: "http://x", HTTP: promconfig.HTTPClientConfig{BearerToken: "a", BearerTokenFile: "b"}}}, "at most one"},
		{"missing CA", []Endpoint{{URL: "https://x", HTTP: promconfig.HTTPClientConfig{TLSConfig: promconfig.TLSConfig{CA: "hunter"}}}}, "HTTP client"},
		{"same name", []Endpoint{{URL: "http://x"}, {URL: "http://a:b@x/ingest"}}, "same name"},
		{"negative time-out", []Endpoint{{URL: "http://x", Timeout: -time.Second}}, "negative"},
		{"header name", []Endpoint{{URL: "http://x", Headers: map[string]string{"a b": "hunter22"}}}, "name is not valid"},
		{"header value", []Endpoint{{URL: "http://x", Headers: map[string]string{"A": "hunter22\n"}}}, "value is not valid"},
		{"protocol header", []Endpoint{{URL: "http://x", Headers: map[string]string{"content-type": "hunter22"}}}, "belongs to the protocol"},
		{"host header", []Endpoint{{URL: "http://x", Headers: map[string]string{"host": "hunter22"}}}, "belongs to the protocol"},
		{"header twice", []Endpoint{{URL: "http://x", Headers: map[string]string{"a": "hunter22", "A": "hunter22"}}}, "twice"},
		{"long name", []Endpoint{{URL: "http://x", Name: strings.Repeat("n", 1000)}}, "longer than"},
		{"second is bad", []Endpoint{{URL: "http://x"}, {URL: "y"}}, "endpoint 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(nil, nil, ledger.New(), tt.ep, Options{})
			if err == nil {
				t.Fatal("it was accepted")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter22") {
				t.Errorf("error %q holds a secret", err)
			}
		})
	}
	for name, o := range map[string]Options{"negative": {Workers: -1}, "back-off": {MinBackoff: time.Minute, MaxBackoff: time.Second}} {
		if _, err := New(nil, nil, ledger.New(), nil, o); err == nil {
			t.Errorf("%s options were accepted", name)
		}
	}
}

// TestAuthorizationIsNotWrittenTo: the caller's configuration stays as it is.
func TestAuthorizationIsNotWrittenTo(t *testing.T) {
	a := &promconfig.Authorization{Credentials: "abcd"}
	ep := Endpoint{URL: "http://x", HTTP: promconfig.HTTPClientConfig{Authorization: a}}
	n, err := ep.normalise()
	if err != nil {
		t.Fatal(err)
	}
	if a.Type != "" || n.HTTP.Authorization.Type != "Bearer" {
		t.Errorf("types = %q and %q", a.Type, n.HTTP.Authorization.Type)
	}
}

func TestWireLabels(t *testing.T) {
	ls := labels.FromStrings("__name__", "process_cpu", "service_name", "a", "k8s.pod", "p", "k8s_pod", "q", "9x", "n", "é", "u")
	got := map[string]string{}
	last := ""
	for _, l := range wireLabels(ls) {
		if l.Name <= last {
			t.Errorf("%q comes after %q", l.Name, last)
		}
		last = l.Name
		got[l.Name] = l.Value
	}
	want := map[string]string{"__name__": "process_cpu", "service_name": "a", "k8s_pod": "p", "_x": "n", "__": "u"}
	if len(got) != len(want) {
		t.Errorf("labels = %v, want %v", got, want)
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("label %s = %q, want %q", k, got[k], v)
		}
	}
}
