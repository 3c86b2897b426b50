package truth

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/spanflame/spanflame/test/harness"
)

// TestManyStacks has every sample of a round in a stack of its own, 25,000 and more
// of them: none may be lost, and none be counted under another's stack.
func TestManyStacks(t *testing.T) {
	harness.NeedRoot(t)
	path(t, "manystacks")
	const (
		want      = 25_000
		frequency = 997
		limit     = 32_768 // the default of symbols.max_stacks
	)
	// As long a round as the kernel's table has room for.
	perSecond := frequency * runtime.NumCPU()
	round := time.Duration(math.Floor(0.97*float64(limit)/float64(perSecond)*10)) * 100 * time.Millisecond
	a := harness.StartAgent(t, fmt.Sprintf(`
global: { push_interval: %dms }
profiles: { cpu: { enabled: true, frequency: %d } }
`, round.Milliseconds(), frequency)+harness.WorkloadTargets)

	// 65,000 stacks in turn: the same comes again only after more than a round.
	run := 2*round + 4*time.Second
	var ws []*harness.Workload
	for cpu := range runtime.NumCPU() {
		ws = append(ws, harness.StartWorkload(t, "manystacks", run.Seconds(), cpu, 65_000, 400))
	}
	from := time.Now().Add(-time.Minute)
	most := 0.0
	deadline := time.Now().Add(run)
	for time.Now().Before(deadline) {
		most = max(most, a.Metrics(t).Sum("spanflame_session_round_stacks"))
		time.Sleep(500 * time.Millisecond)
	}
	total := 0.0
	for _, w := range ws {
		total += w.Wait(t).Total
	}
	t.Logf("rounds of %s; the largest had %.0f stacks", round, most)
	if most < want {
		t.Errorf("the largest round had %.0f stacks: too few to show that %d are none too many", most, want)
	}

	// The round in which they ended is complete one round later.
	time.Sleep(round + 2*time.Second)
	m := a.Metrics(t)
	for _, reason := range []string{"stack_map_full", "counts_map_full", "unknown_process", "process_gone"} {
		if n := m.Sum("spanflame_samples_dropped_total", "reason", reason); n != 0 {
			t.Errorf("%.0f samples were dropped: %s", n, reason)
		}
	}
	if n := m.Sum("spanflame_session_accounting_mismatches_total"); n != 0 {
		t.Errorf("%.0f rounds did not add up", n)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	raw, err := a.MergeProfile(ctx, harness.CPUType, `{service_name="manystacks"}`, from, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p, err := harness.NewProfile(raw)
	if err != nil {
		t.Fatal(err)
	}
	var paths, wrong int
	for _, s := range p.Matching(harness.InFunction("path_leaf")) {
		steps := 0
		for _, f := range harness.Frames(s) {
			if f == "path_0" || f == "path_1" {
				steps++
			}
		}
		paths++
		if steps != 16 {
			wrong++
		}
	}
	if wrong > paths/100 {
		t.Errorf("%d of %d stacks have not their 16 steps\n%s", wrong, paths, p.Describe(nil))
	}
	harness.CheckTotal(t, "CPU time", p.Time(nil), seconds(total), run*time.Duration(len(ws)), time.Second/frequency)
}
