package push

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	promconfig "github.com/prometheus/common/config"
	"golang.org/x/net/http/httpguts"
)

// maxNameBytes bounds an endpoint's name, which is a metric's label value.
const maxNameBytes = 512

// Endpoint is where profiles go. Only URL is required.
type Endpoint struct {
	// Name identifies the endpoint in metrics, logs and the ledger, and across
	// Update. The default is the URL without user information.
	Name string
	// URL is the server's base URL, e.g. "http://pyroscope:4040". A path is kept;
	// the names of the push API at its end are removed. User information becomes
	// basic authentication. A query or fragment is an error.
	URL string
	// Headers are sent with each request, e.g. X-Scope-OrgID.
	Headers map[string]string
	// HTTP configures authentication, TLS, proxy and redirects. A redirect is
	// only ever followed within the same scheme and host, or from http to https
	// on the same host name.
	HTTP promconfig.HTTPClientConfig
	// Timeout is that of one request, DefaultTimeout if zero. A short one does
	// harm: a server may count a profile twice when its answer came too late.
	Timeout time.Duration
}

// pushPaths are ends of a URL that name the API instead of the server. All of
// the server's APIs lie beside each other, so what is before them is the base.
var pushPaths = []string{"/push.v1.PusherService/Push", "/push.v1.PusherService", "/ingest"}

// normaliseAll validates the endpoints, fills in defaults and puts every URL and
// name into its final form. Errors name the endpoint and hold no secret.
func normaliseAll(endpoints []Endpoint) ([]Endpoint, error) {
	out := make([]Endpoint, len(endpoints))
	seen := map[string]int{}
	for i, ep := range endpoints {
		n, err := ep.normalise()
		if err != nil {
			return nil, fmt.Errorf("push endpoint %d: %w", i+1, err)
		}
		if first, dup := seen[n.Name]; dup {
			return nil, fmt.Errorf("push endpoints %d and %d have the same name %q: give each its own name", first+1, i+1, n.Name)
		}
		seen[n.Name] = i
		out[i] = n
	}
	return out, nil
}

func (e Endpoint) normalise() (Endpoint, error) {
	u, err := parseURL(e.URL)
	if err != nil {
		return e, err
	}
	if u.User != nil {
		if e.HTTP.BasicAuth != nil || e.HTTP.Authorization != nil || e.HTTP.OAuth2 != nil || e.HTTP.BearerToken != "" || e.HTTP.BearerTokenFile != "" {
			return e, errors.New("user information in the URL and another authentication are both configured: keep one")
		}
		password, _ := u.User.Password()
		e.HTTP.BasicAuth = &promconfig.BasicAuth{Username: u.User.Username(), Password: promconfig.Secret(password)}
		u.User = nil
	}
	e.URL = u.String()
	if e.Name == "" {
		e.Name = e.URL
	}
	if len(e.Name) > maxNameBytes || !utf8.ValidString(e.Name) {
		return e, fmt.Errorf("the name is longer than %d bytes or no UTF-8", maxNameBytes)
	}
	if e.Timeout < 0 {
		return e, fmt.Errorf("%s: the time-out %s is negative", e.Name, e.Timeout)
	}
	if e.Timeout == 0 {
		e.Timeout = DefaultTimeout
	}
	if e.Headers, err = checkHeaders(e.Headers); err != nil {
		return e, fmt.Errorf("%s: %w", e.Name, err)
	}
	if a := e.HTTP.Authorization; a != nil { // Validate writes into it
		c := *a
		e.HTTP.Authorization = &c
	}
	if err := e.HTTP.Validate(); err != nil {
		return e, fmt.Errorf("%s: HTTP client: %w", e.Name, err)
	}
	return e, nil
}

func parseURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, errors.New("the URL is missing")
	}
	u, err := url.Parse(s)
	if err != nil {
		// The error of url.Parse quotes the whole URL, user information and all.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		if strings.Contains(s, "@") {
			return nil, errors.New("the URL cannot be parsed (special characters in a user name or password are to be percent-encoded)")
		}
		return nil, fmt.Errorf("the URL cannot be parsed: %w", err)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("the URL must begin with http:// or https://, e.g. http://pyroscope:4040")
	case u.Hostname() == "":
		return nil, errors.New("the URL has no host; write it like http://pyroscope:4040")
	case u.RawQuery != "" || u.ForceQuery:
		return nil, errors.New("the URL has a query, which the push API does not know: tenants go into the header X-Scope-OrgID, credentials into basic_auth or authorization")
	case u.Fragment != "":
		return nil, errors.New("the URL has a fragment (#…): remove it")
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	for _, end := range pushPaths {
		if rest, ok := strings.CutSuffix(path, end); ok {
			path = strings.TrimRight(rest, "/")
			break
		}
	}
	if strings.Contains(path, "/push.v1.") {
		return nil, errors.New("the URL names another call of the push API: give the server's base URL, e.g. http://pyroscope:4040")
	}
	base := url.URL{Scheme: u.Scheme, Host: u.Host, User: u.User, RawPath: path}
	// Not url.Parse: a path that begins with two slashes would be a host to it.
	if base.Path, err = url.PathUnescape(path); err != nil {
		return nil, fmt.Errorf("the URL's path cannot be parsed: %w", err)
	}
	return &base, nil
}

// checkHeaders returns the headers under their canonical names.
func checkHeaders(h map[string]string) (map[string]string, error) {
	if len(h) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(h))
	for name, value := range h {
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, fmt.Errorf("header %q: the name is not valid", name)
		}
		if !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("header %q: the value is not valid", name)
		}
		c := http.CanonicalHeaderKey(name)
		if slices.Contains(protocolHeaders, c) || strings.HasPrefix(c, "Connect-") || strings.HasPrefix(c, "Content-") {
			return nil, fmt.Errorf("header %q belongs to the protocol and cannot be set", name)
		}
		if _, dup := out[c]; dup {
			return nil, fmt.Errorf("header %q is given twice", name)
		}
		out[c] = value
	}
	return out, nil
}

var protocolHeaders = []string{"Accept-Encoding", "Connection", "Expect", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}
