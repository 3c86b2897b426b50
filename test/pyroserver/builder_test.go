package pyroserver

import (
	"fmt"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/profile"
	"github.com/spanflame/spanflame/push"
)

// TestBuiltProfiles pushes what the profile package makes of more stacks than
// one profile may hold. The server must take each part, of the greatest size
// that the package makes, and count none as a double, though all have one time.
func TestBuiltProfiles(t *testing.T) {
	srv := Start(t)
	p, status := pusher(t, srv, push.Options{MinBackoff: 50 * time.Millisecond})
	service, at := unique("s"), time.Now().Add(-time.Minute).Truncate(time.Millisecond)

	const n = 20_000
	b := profile.NewBuilder(profile.CPU, labels.FromStrings("service_name", service), time.Duration(period))
	b.Cover(at, at.Add(10*time.Second))
	m := &stack.Mapping{File: "/bin/x", BuildID: "abcd", HasFunctions: true}
	root := &stack.Location{Mapping: m, Address: 1, Lines: []stack.Line{{Function: "main"}}}
	for i := range n {
		leaf := &stack.Location{Mapping: m, Address: uint64(0x1000 + i), Lines: []stack.Line{{
			Function: fmt.Sprintf("a_function_with_a_name_of_the_length_that_%d_others_have_too", i), File: "x.c", Line: i,
		}}}
		b.Add(&profile.Sample{Stack: []*stack.Location{leaf, root}, Value: period, Count: 1})
	}
	parts, lost, err := b.Profiles()
	if err != nil || lost != 0 {
		t.Fatalf("lost %d samples: %v", lost, err)
	}
	largest := 0
	for _, part := range parts {
		largest = max(largest, part.UncompressedBytes)
	}
	if len(parts) < 2 {
		t.Fatalf("parts = %d: the test shows less than it should", len(parts))
	}
	p.Push(parts)
	if s := settled(t, status); s.Account.Out != n || s.Account.Lost() != 0 {
		t.Fatalf("account = %+v, last error %q", s.Account, s.LastError)
	}
	from, until := window(at)
	got := srv.WaitProfile(t, profile.CPU.ID(), selector(service), from, until, func(p *pprof.Profile) bool {
		_, total := byLeaf(p)
		return total >= n*period
	})
	leaves, total := byLeaf(got)
	if total != n*period || len(leaves) != n {
		t.Errorf("%d functions, total %d, want %d and %d", len(leaves), total, n, n*period)
	}
	t.Logf("%d parts, the largest of %d bytes; last error %q", len(parts), largest, status().LastError)
}
