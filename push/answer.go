package push

import (
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	promconfig "github.com/prometheus/common/config"
)

const (
	maxWordsBytes = 256
	// maxBadAnswers is how often a 500 and its like are repeated: some servers say
	// 500 of a profile that they can never take.
	maxBadAnswers = 2
)

// verdict is what an attempt means for its profile and its endpoint.
type verdict int

const (
	delivered verdict = iota
	// endpointFailed: the endpoint is down, slow or overloaded; retry, and send
	// less to it until it answers.
	endpointFailed
	// badAnswer: the server answers, but not with sense; retry maxBadAnswers times.
	badAnswer
	// rejected: never to be repeated.
	rejected
	// cancelled: we broke it off ourselves.
	cancelled
)

type answer struct {
	verdict    verdict
	status     int    // HTTP status, 0 if there was none
	code       string // value of the metrics' label "code"
	retryAfter time.Duration
	words      string // the reason: bounded, printable, without secrets
}

// judge decides by the HTTP status (0: no answer) of an attempt that did not
// succeed.
func judge(status int, words string) verdict {
	switch {
	case status == 0:
		return endpointFailed
	case status == http.StatusTooManyRequests:
		// Pyroscope says so of a body over its limit: it will not shrink.
		if strings.Contains(strings.ToLower(words), "message size") {
			return rejected
		}
		return endpointFailed
	case status == http.StatusRequestTimeout,
		status == http.StatusBadGateway,
		status == http.StatusServiceUnavailable,
		status == http.StatusGatewayTimeout:
		return endpointFailed
	case status >= 500, status >= 200 && status < 300:
		return badAnswer
	default:
		return rejected
	}
}

// codeLabel keeps the values of the label few, whatever a server answers.
func codeLabel(status int) string {
	switch {
	case status == 0:
		return "transport"
	case http.StatusText(status) == "":
		return "other"
	default:
		return strconv.Itoa(status)
	}
}

// clean makes a server's words fit for a log line and a page.
func clean(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(s) > maxWordsBytes {
		s = strings.ToValidUTF8(s[:maxWordsBytes], "") + "…"
	}
	return s
}

// redactor removes the endpoint's secrets from words that a server might have
// echoed. Secrets kept in files are read by the HTTP client alone and cannot be
// recognised here.
func redactor(e Endpoint) *strings.Replacer {
	var pairs []string
	add := func(s string) {
		if len(s) >= 4 { // shorter ones would tear ordinary words
			pairs = append(pairs, s, "<redacted>")
		}
	}
	for name, v := range e.Headers {
		if name != "X-Scope-Orgid" { // a tenant's name is no secret and helps
			add(v)
		}
	}
	if b := e.HTTP.BasicAuth; b != nil {
		r := http.Request{Header: http.Header{}}
		r.SetBasicAuth(b.Username, string(b.Password))
		add(strings.TrimPrefix(r.Header.Get("Authorization"), "Basic "))
		add(string(b.Password))
	}
	if a := e.HTTP.Authorization; a != nil {
		add(string(a.Credentials))
	}
	if o := e.HTTP.OAuth2; o != nil {
		add(string(o.ClientSecret))
	}
	if h := e.HTTP.HTTPHeaders; h != nil {
		for _, v := range h.Headers {
			for _, s := range v.Secrets {
				add(string(s))
			}
		}
	}
	add(string(e.HTTP.BearerToken))
	add(proxyPassword(e.HTTP))
	return strings.NewReplacer(pairs...)
}

func proxyPassword(c promconfig.HTTPClientConfig) string {
	if c.ProxyURL.URL == nil || c.ProxyURL.User == nil {
		return ""
	}
	p, _ := c.ProxyURL.User.Password()
	return p
}
