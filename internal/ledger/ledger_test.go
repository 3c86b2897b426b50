package ledger

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestBalanceAddsUp(t *testing.T) {
	l := New()
	var wg sync.WaitGroup
	for i := 0; i < 8; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := 0; j < 1000; j++ {
				l.Session().In(3)
				l.Session().Out(1)
				l.Session().Drop(NoTarget, 1)
				l.Session().Drop(ProcessGone, 1)
				l.Sink("store").In(1)
			}
		}()
	}
	wg.Wait()
	b := l.Session().Balance()
	if b.In != 24000 || b.Out != 8000 || b.Dropped[NoTarget] != 8000 || b.Pending() != 0 {
		t.Fatalf("balance = %+v", b)
	}
	if p := l.Sinks()["store"].Pending(); p != 8000 {
		t.Fatalf("pending = %d, want 8000", p)
	}
}

func TestCollect(t *testing.T) {
	l := New()
	l.Session().In(2)
	l.Session().Drop(StackMapFull, 2)
	l.Sink("a").In(1)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(l)
	n, err := testutil.GatherAndCount(reg)
	if err != nil {
		t.Fatal(err)
	}
	if n != 6 {
		t.Fatalf("metrics = %d, want 6", n)
	}
}
