package push

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
)

// TestAccountUnderChaos lets a server do everything wrong while several callers
// push, and checks the account at every look. Its own count of what it said yes
// to is a lower bound of what is delivered, since it repeats no id after a yes.
func TestAccountUnderChaos(t *testing.T) {
	var mu sync.Mutex
	yes := map[string]bool{}
	var calm bool
	f := newFake(t, func(_ int, w http.ResponseWriter, r *http.Request) {})
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := read(r)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		n := rand.IntN(12)
		if calm {
			n = 11
		}
		if q.id[0] == '0' { // such a profile never gets another answer
			n = 2
		}
		switch n {
		case 0:
			http.Error(w, "", 503)
		case 1:
			connectError(w, 429, "resource_exhausted", "rate limit")
		case 2:
			connectError(w, 500, "internal", "oops")
		case 3:
			connectError(w, 400, "invalid_argument", "no")
		case 4:
			http.Error(w, "", 408)
		case 5, 6:
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = c.Close()
			}
		case 7:
			_, _ = w.Write([]byte("what?"))
		default:
			if yes[q.id] {
				t.Errorf("id %s came again after it was accepted", q.id)
			}
			yes[q.id] = true
			ok(w)
		}
	})
	opts := fast()
	opts.QueueMaxBytes, opts.QueueMaxAge = 100_000, 11*time.Second // some are dropped for each reason
	r := start(t, opts, Endpoint{Name: "a", URL: f.URL, Timeout: time.Second}, Endpoint{Name: "dead", URL: "http://127.0.0.1:1"})

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rand.IntN(1000)) * time.Microsecond):
				}
				r.Push([]*profile.Profile{testProfile("s", uint64(1+i), 1+rand.IntN(3000)), testProfile("t", 1, 5)})
			}
		}()
	}
	looks := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && !t.Failed(); looks++ {
		for _, s := range r.Status() {
			checkStatus(t, s)
			if s.QueueBytes > opts.QueueMaxBytes {
				t.Errorf("%s: %d bytes wait", s.Name, s.QueueBytes)
			}
		}
	}
	close(stop)
	wg.Wait()
	mu.Lock()
	calm = true
	mu.Unlock()
	waitFor(t, "the flush", func() bool { return r.Status()[0].QueueProfiles == 0 })
	s := r.Status()[0]
	_ = r.stop(0)
	for _, reason := range []ledger.Reason{ledger.RejectedByServer, ledger.RetriesExhausted} {
		if s.Account.Dropped[reason] == 0 {
			t.Errorf("nothing was dropped as %s: the test shows less than it should", reason)
		}
	}
	for name, b := range r.led.Sinks() {
		if b.Pending() != 0 || b.In == 0 {
			t.Errorf("%s after the stop: %+v", name, b)
		}
	}
	if d := r.led.Sinks()["dead"]; d.Dropped[ledger.QueueFull] == 0 || d.Out != 0 {
		t.Errorf("dead: %+v", d)
	}
	t.Logf("%d looks; %+v", looks, s.Account)
}
