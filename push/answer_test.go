package push

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

// TestAnswers goes through the table of retries: the server gives the answer
// once or always, and what matters is how often it is asked and where the
// samples end.
func TestAnswers(t *testing.T) {
	const always = 1 << 30
	type answerFunc = func(w http.ResponseWriter, r *http.Request)
	plain := func(status int, body string) answerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, status) }
	}
	connectErr := func(status int, code, msg string) answerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { connectError(w, status, code, msg) }
	}
	hijack := func(f func(net.Conn)) answerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			f(c)
			_ = c.Close()
		}
	}
	raw := func(s string) answerFunc {
		return hijack(func(c net.Conn) { _, _ = c.Write([]byte(s)) })
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

	tests := []struct {
		name     string
		answer   answerFunc
		times    int // how often it is given; ok after that
		requests int
		out      uint64
		dropped  ledger.Reason
		code     string // of the metric
		says     string // in LastError
	}{
		{name: "408", answer: plain(408, "slow"), times: 3, requests: 4, out: 7, code: "408"},
		{name: "429", answer: connectErr(429, "resource_exhausted", "rate limit"), times: 3, requests: 4, out: 7, code: "429", says: "rate limit"},
		{name: "502", answer: plain(502, "<html>bad gateway</html>"), times: 3, requests: 4, out: 7, code: "502", says: "bad gateway"},
		{name: "503", answer: connectErr(503, "unavailable", "no ingester"), times: 3, requests: 4, out: 7, code: "503", says: "no ingester"},
		{name: "504", answer: plain(504, ""), times: 3, requests: 4, out: 7, code: "504"},
		{name: "closed before the answer", answer: hijack(func(net.Conn) {}), times: 3, requests: 4, out: 7, code: "transport"},
		{name: "reset", answer: hijack(func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }), times: 3, requests: 4, out: 7, code: "transport"},
		{name: "no HTTP", answer: raw("SSH-2.0-OpenSSH_9.2\r\n\r\n"), times: 2, requests: 3, out: 7, code: "transport"},
		{name: "no answer in time", answer: hang, times: 2, requests: 3, out: 7, code: "timeout", says: "no answer within 300ms"},

		{name: "500 twice", answer: connectErr(500, "internal", "oops"), times: 2, requests: 3, out: 7, code: "500", says: "oops"},
		{name: "500 always", answer: connectErr(500, "internal", "oops"), times: always, requests: 3, dropped: ledger.RetriesExhausted, code: "500"},
		{name: "501 always", answer: plain(501, ""), times: always, requests: 3, dropped: ledger.RetriesExhausted, code: "501"},
		{name: "unknown 599 always", answer: plain(599, ""), times: always, requests: 3, dropped: ledger.RetriesExhausted, code: "other"},
		{name: "200 of another protocol always", answer: plain(200, "<html>please log in</html>"), times: always, requests: 3, dropped: ledger.RetriesExhausted, code: "200", says: "content-type"},
		{name: "204 always", answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, times: always, requests: 3, dropped: ledger.RetriesExhausted, code: "204"},
		{name: "200 with a body that is no message", answer: func(w http.ResponseWriter, _ *http.Request) {
			ok(w)
			_, _ = w.Write([]byte("\xff\xff\xff garbage"))
		}, times: always, requests: 3, dropped: ledger.RetriesExhausted, code: "200"},
		{name: "200 with an endless body", answer: func(w http.ResponseWriter, r *http.Request) {
			ok(w)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		}, times: always, requests: 3, dropped: ledger.RetriesExhausted, code: "200"},
		{name: "500 with an endless body", answer: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		}, times: always, requests: 3, dropped: ledger.RetriesExhausted, code: "500"},

		// The status line of a 200 is the server's word; repeating would store twice.
		{name: "200 cut in the body", answer: raw("HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 100\r\n\r\nx"), times: always, requests: 1, out: 7, code: "200"},
		{name: "200 with 1 byte/s", answer: drip(200, "application/proto"), times: always, requests: 1, out: 7, code: "200"},

		{name: "429 of a message's size", answer: connectErr(429, "resource_exhausted", "Message Size 5000000 exceeds the limit"), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "429"},
		{name: "400", answer: connectErr(400, "invalid_argument", "profile is too old"), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "400", says: "profile is too old"},
		{name: "400 with 1 byte/s", answer: drip(400, "text/plain"), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "400"},
		{name: "401", answer: plain(401, "who are you"), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "401", says: "who are you"},
		{name: "403", answer: plain(403, ""), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "403"},
		{name: "404", answer: plain(404, "not here"), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "404"},
		{name: "413", answer: plain(413, ""), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "413"},
		{name: "415", answer: plain(415, ""), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "415"},
		{name: "422", answer: plain(422, ""), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "422"},
		{name: "400 with broken JSON", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			_, _ = w.Write([]byte(`{"code":`))
		}, times: always, requests: 1, dropped: ledger.RejectedByServer, code: "400"},
		{name: "400 with an empty Connect error", answer: connectErr(400, "", ""), times: always, requests: 1, dropped: ledger.RejectedByServer, code: "400"},
		{name: "302 to another host", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://user:pw@login.example/?secret=1")
			w.WriteHeader(302)
		}, times: always, requests: 1, dropped: ledger.RejectedByServer, code: "302", says: "to https://login.example,"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, func(n int, w http.ResponseWriter, r *http.Request) {
				if n <= tt.times {
					tt.answer(w, r)
					return
				}
				ok(w)
			})
			r := start(t, fast(), Endpoint{Name: "a", URL: f.URL, Timeout: 300 * time.Millisecond})
			r.Push([]*profile.Profile{testProfile("s", 7, 100)})
			s := r.settled(t)

			reqs := f.requests()
			if len(reqs) != tt.requests {
				t.Errorf("requests = %d, want %d", len(reqs), tt.requests)
			}
			for _, q := range reqs {
				if q.id != reqs[0].id || len(q.id) != 36 {
					t.Errorf("id %q of a repetition, want the first's %q", q.id, reqs[0].id)
				}
			}
			if s.Account.Out != tt.out {
				t.Errorf("delivered = %d, want %d", s.Account.Out, tt.out)
			}
			if tt.dropped != "" && s.Account.Dropped[tt.dropped] != 7 {
				t.Errorf("dropped = %v, want 7 under %s", s.Account.Dropped, tt.dropped)
			}
			if !strings.Contains(s.LastError, tt.says) {
				t.Errorf("last error = %q, want %q in it", s.LastError, tt.says)
			}
			if n := testutil.ToFloat64(r.metrics.requests.WithLabelValues("a", tt.code)); n == 0 {
				t.Errorf("no request was counted under code %q", tt.code)
			}
			if n := testutil.ToFloat64(r.metrics.retries.WithLabelValues("a")); int(n) != tt.requests-1 {
				t.Errorf("retries = %v, want %d", n, tt.requests-1)
			}
			if tt.dropped == ledger.RejectedByServer {
				waitFor(t, "a log line", func() bool { return strings.Contains(r.logs.String(), "rejected a profile") })
			}
			if err := r.stop(time.Second); err != nil {
				t.Error(err)
			}
			if l := r.logs.String(); strings.Contains(l, "pw@") || strings.Contains(l, "secret=") {
				t.Errorf("a secret was logged: %s", l)
			}
		})
	}
}

// drip answers with headers and then a byte a second.
func drip(status int, contentType string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Length", "3600")
		w.WriteHeader(status)
		for {
			if _, err := w.Write([]byte{' '}); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(time.Second):
			}
		}
	}
}

// TestRetryAfter: neither the profile nor another one is sent before the time
// that the server asked for, though the back-off would allow it.
func TestRetryAfter(t *testing.T) {
	for _, form := range []string{"seconds", "date"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n > 1 {
					ok(w)
					return
				}
				v := "1"
				if form == "date" { // whole seconds: between one and two of them
					v = time.Now().Add(2 * time.Second).UTC().Format(http.TimeFormat)
				}
				w.Header().Set("Retry-After", v)
				connectError(w, 429, "resource_exhausted", "slow down")
			})
			opts := fast()
			opts.Workers = 1
			r := start(t, opts, Endpoint{URL: f.URL})
			r.Push([]*profile.Profile{testProfile("s", 1, 10), testProfile("s", 1, 10)})
			s := r.settled(t)
			if s.Account.Out != 2 {
				t.Fatalf("delivered = %d, want 2", s.Account.Out)
			}
			reqs := f.requests()
			if wait := reqs[1].at.Sub(reqs[0].at); wait < 950*time.Millisecond {
				t.Errorf("the next request came after %s, want 1 s at least", wait)
			}
		})
	}
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Duration{
		"": 0, "x": 0, "-5": 0, "0": 0, "7": 7 * time.Second,
		"99999999999999":                 24 * time.Hour,
		"99999999999999999999":           0,
		"Tue, 01 Dec 2026 12:00:09 GMT":  9 * time.Second,
		"Tue, 01 Dec 2026 11:00:00 GMT":  0,
		"Tue, 01 Dec 2026 12:00:09 CEST": 0,
	} {
		if got := parseRetryAfter(s, now); got != want {
			t.Errorf("parseRetryAfter(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestClean(t *testing.T) {
	if got := clean("a\x00b\n\t c \x1b[31mred\u2028x"); got != "a b c [31mred x" {
		t.Errorf("clean = %q", got)
	}
	if got := clean(strings.Repeat("ü", 1000)); len(got) > maxWordsBytes+len("…") || strings.ContainsRune(got, '\uFFFD') {
		t.Errorf("clean left %d bytes: %q", len(got), got)
	}
	if got := clean("\xff\xfe"); got != "?" {
		t.Errorf("clean = %q", got)
	}
}

// TestJitter: each wait is random between nothing and a bound that doubles.
func TestJitter(t *testing.T) {
	o := Options{MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second}
	for n, ms := range map[int]int{1: 100, 2: 200, 3: 400, 4: 800, 5: 1000, 6: 1000, 1 << 30: 1000} {
		bound := time.Duration(ms) * time.Millisecond
		low, high := bound, time.Duration(0)
		for range 500 {
			d := jitter(o, n)
			low, high = min(low, d), max(high, d)
		}
		if high > bound || high < bound*9/10 || low <= 0 || low > bound/10 {
			t.Errorf("after %d failures: from %s to %s, want all up to %s", n, low, high, bound)
		}
	}
}

func TestSecretsAreRemovedFromEchoes(t *testing.T) {
	f := newFake(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Error(w, fmt.Sprintf("headers: %v", r.Header), 400)
	})
	r := start(t, fast(), Endpoint{
		URL:     strings.Replace(f.URL, "http://", "http://joe:hunter22@", 1),
		Headers: map[string]string{"X-Api-Key": "topsecret-1", "x-scope-orgid": "tenant-a"},
	})
	r.Push([]*profile.Profile{testProfile("s", 1, 10)})
	s := r.settled(t)
	if err := r.stop(time.Second); err != nil {
		t.Fatal(err)
	}
	q := f.requests()[0]
	if u, pw, _ := (&http.Request{Header: q.header}).BasicAuth(); u != "joe" || pw != "hunter22" {
		t.Errorf("basic auth = %q %q", u, pw)
	}
	if q.header.Get("X-Api-Key") != "topsecret-1" || q.header.Get("X-Scope-OrgID") != "tenant-a" {
		t.Errorf("headers = %v", q.header)
	}
	all := r.logs.String() + s.LastError + s.Name + s.URL
	for _, secret := range []string{"topsecret-1", "hunter22", "am9lOmh1bnRlcjIy"} {
		if strings.Contains(all, secret) {
			t.Errorf("%q came out: %s", secret, all)
		}
	}
	if !strings.Contains(all, "redacted") {
		t.Errorf("the server's words are missing: %s", all)
	}
}
