// Package pyroserver gives tests a real Pyroscope: the binary of the nested
// module test/pyroscope, started as a child process, or any server named by
// SPANFLAME_TEST_PYROSCOPE_URL, which is asked by querier.v1.QuerierService. It
// is for tests only.
//
// A test that needs no more than pushes and merged profiles runs against
// both:
//
//	srv := pyroserver.Start(t)
//	// push to srv.PushURL()
//	p := srv.WaitProfile(t, typeID, `{service_name="x"}`, from, until, nil)
package pyroserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
)

// Environment variables.
const (
	EnvURL     = "SPANFLAME_TEST_PYROSCOPE_URL"     // base URL of a full server to use instead of the binary
	EnvTenant  = "SPANFLAME_TEST_PYROSCOPE_TENANT"  // its tenant, if it has tenants
	EnvBinary  = "SPANFLAME_TEST_PYROSCOPE_BINARY"  // the binary, if not bin/pyroscope-test of the module
	EnvRequire = "SPANFLAME_TEST_PYROSCOPE_REQUIRE" // if not empty, a missing server fails the test instead of skipping it
)

// ErrNoProfile is returned when no stored profile matches.
var ErrNoProfile = errors.New("no profile matches")

// Options change the server that is started. They do not apply to one named by
// SPANFLAME_TEST_PYROSCOPE_URL: with any of them set, the binary is started even
// then.
type Options struct {
	Tenant          string  // demand tenants, and query as this one
	RateMB, BurstMB float64 // ingestion limits; 0: Pyroscope's
}

// Server is a running server. Its methods are safe for concurrent use, but for
// Kill and Restart.
type Server struct {
	url    string
	tenant string
	proc   *process // nil for a server of others
	q      querier
}

// querier is what both kinds of server answer.
type querier interface {
	merge(ctx context.Context, typeID, selector string, from, until time.Time) ([]byte, error)
	series(ctx context.Context, selector string, from, until time.Time) ([]map[string]string, error)
	profileTypes(ctx context.Context, from, until time.Time) ([]string, error)
}

// Start starts a server with Pyroscope's defaults and stops it when the test
// ends. It skips the test if there is neither a binary nor a URL.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Options{})
}

// StartWith is Start with options.
func StartWith(t testing.TB, o Options) *Server {
	t.Helper()
	if u := os.Getenv(EnvURL); u != "" && o == (Options{}) {
		tenant := os.Getenv(EnvTenant)
		return &Server{url: u, tenant: tenant, q: newFull(u, tenant)}
	}
	bin, err := binary()
	if err != nil {
		if os.Getenv(EnvRequire) != "" {
			t.Fatalf("%v, and %s is set", err, EnvRequire)
		}
		t.Skipf("%v: build it with test/pyroscope/build.sh bin/pyroscope-test, or set %s", err, EnvURL)
	}
	p := &process{bin: bin, dir: t.TempDir(), opts: o}
	t.Cleanup(func() {
		p.kill()
		if p.crashed {
			t.Errorf("the Pyroscope of the tests crashed: %s", p.said)
		}
	})
	if err := p.start(); err != nil {
		t.Fatalf("start the Pyroscope of the tests: %v", err)
	}
	return &Server{url: p.url, tenant: o.Tenant, proc: p, q: small{url: p.url, tenant: o.Tenant}}
}

// binary finds bin/pyroscope-test beside the go.mod above the working directory.
func binary() (string, error) {
	if b := os.Getenv(EnvBinary); b != "" {
		_, err := os.Stat(b)
		return b, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			b := filepath.Join(dir, "bin", "pyroscope-test")
			if _, err := os.Stat(b); err != nil {
				return "", fmt.Errorf("no test server: %w", err)
			}
			return b, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no test server: not inside the module")
		}
		dir = up
	}
}

// PushURL is the server's base URL, for push.v1 and /ingest.
func (s *Server) PushURL() string { return s.url }

// Tenant is the tenant to push and query as; "" for none.
func (s *Server) Tenant() string { return s.tenant }

// Own reports whether the server is a child process of the test: only such a one
// can be killed, and knows Profiles. It begins empty.
func (s *Server) Own() bool { return s.proc != nil }

// MergeProfile returns the merge of all stored profiles of the type (e.g.
// "process_cpu:cpu:nanoseconds:cpu:nanoseconds") and selector (e.g.
// `{service_name="a"}`) between from and until. It returns ErrNoProfile if there
// is none. A full server shows a profile only seconds after it was pushed; see
// WaitProfile.
func (s *Server) MergeProfile(ctx context.Context, typeID, selector string, from, until time.Time) (*pprof.Profile, error) {
	b, err := s.q.merge(ctx, typeID, selector, from, until)
	if err != nil {
		return nil, fmt.Errorf("merge %s of %s: %w", typeID, selector, err)
	}
	p, err := pprof.ParseUncompressed(b)
	if err != nil {
		return nil, fmt.Errorf("merge %s of %s: parse the answer: %w", typeID, selector, err)
	}
	if len(p.Sample) == 0 {
		return nil, fmt.Errorf("merge %s of %s: %w", typeID, selector, ErrNoProfile)
	}
	return p, nil
}

// WaitProfile is MergeProfile, repeated for up to 30 s until a profile is there
// for which done (if not nil) is true. It fails the test if that never comes.
func (s *Server) WaitProfile(t testing.TB, typeID, selector string, from, until time.Time, done func(*pprof.Profile) bool) *pprof.Profile {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		p, err := s.MergeProfile(ctx, typeID, selector, from, until)
		if err == nil && (done == nil || done(p)) {
			return p
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited 30 s in vain for a profile of type %s, %s: last error %v", typeID, selector, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Series returns the label sets of the series that have profiles between from
// and until, those of the profile type included ("__type__" and so on).
func (s *Server) Series(ctx context.Context, selector string, from, until time.Time) ([]map[string]string, error) {
	out, err := s.q.series(ctx, selector, from, until)
	if err != nil {
		return nil, fmt.Errorf("series of %s: %w", selector, err)
	}
	return out, nil
}

// ProfileTypes returns the ids of the types between from and until.
func (s *Server) ProfileTypes(ctx context.Context, from, until time.Time) ([]string, error) {
	out, err := s.q.profileTypes(ctx, from, until)
	if err != nil {
		return nil, fmt.Errorf("profile types: %w", err)
	}
	return out, nil
}

// Stored is one profile that the server has taken.
type Stored struct {
	Time   time.Time // its time_nanos, in whole milliseconds
	Series string    // fingerprint of its series
}

// Profiles lists the stored profiles one by one. Only the test's own server can.
func (s *Server) Profiles(ctx context.Context, typeID, selector string, from, until time.Time) ([]Stored, error) {
	q, ok := s.q.(small)
	if !ok {
		return nil, fmt.Errorf("list profiles: a server named by %s cannot", EnvURL)
	}
	return q.profiles(ctx, typeID, selector, from, until)
}

// Kill ends the test's own server at once, as a crash would.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.proc == nil {
		t.Fatalf("a server named by %s cannot be killed", EnvURL)
	}
	s.proc.kill()
}

// Restart starts it again under the same URL, with the same data directory. What
// it had not yet cut into a block is lost: it has no write-ahead log.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if s.proc == nil {
		t.Fatalf("a server named by %s cannot be restarted", EnvURL)
	}
	if err := s.proc.start(); err != nil {
		t.Fatalf("restart the Pyroscope of the tests: %v", err)
	}
}
