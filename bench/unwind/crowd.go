package main

import (
	"fmt"
	"time"

	"github.com/spanflame/spanflame/test/harness"
)

// The crowd: that many processes of that many executables, each a file of its own, all of
// which want the CPU at the lowest priority.
const (
	crowdProcesses   = 500
	crowdExecutables = 100
	crowdGoal        = 200 << 20 // bytes, of the agent and of its kernel maps
	crowdRounds      = 4
)

var crowdProgram = program{name: "crowd", needs: []string{"bash", "renice", "perl", "mawk", "openssl", "/usr/bin/python3"}, script: fmt.Sprintf(`
run() { # kind file
	renice -n 19 $BASHPID >/dev/null # so that those to come can start, and the agent is no part of the crowd
	case $1 in
	bash) exec "$2" -c 'f() { if (($1 > 0)); then f $(($1 - 1)); fi; }; while :; do f 20; done' ;;
	perl) exec "$2" -e 'sub f { my $n = shift; $n ? f($n - 1) . $n : "x" } while (1) { f(20) }' ;;
	mawk) exec "$2" 'function f(n) { return n ? f(n - 1) n : "x" } BEGIN { while (1) f(20) }' ;;
	openssl) exec "$2" speed -seconds 3600 sha256 >/dev/null 2>&1 ;;
	python3) exec "$2" -c 'def f(n): return n and f(n - 1) + n
while True: f(20)' ;;
	esac
}
kinds=(bash perl mawk openssl python3)
for ((i = 0; i < %d; i++)); do
	kind=${kinds[i %% 5]}
	cp "$(readlink -f "$(PATH=/usr/bin:/bin command -v $kind)")" $kind-$i
	for ((j = 0; j < %d; j++)); do run $kind $PWD/$kind-$i & done
done
touch ready
wait`, crowdExecutables, crowdProcesses/crowdExecutables)}

// crowdFigures are what an agent took that profiled the crowd.
type crowdFigures struct {
	rss, peak int64
	mapBytes  uint64
	cpu       time.Duration
	took      time.Duration
	ends      map[string]float64
	rows      float64
	lost      float64
}

func measureCrowd() (f crowdFigures, err error) {
	r := &harness.Runner{}
	defer r.Stop()
	defer r.Catch(&err)
	r.Logf("%d processes of %d executables", crowdProcesses, crowdExecutables)
	crowdProgram.start(r)
	a := harness.StartAgent(r, "") // at its defaults, with page and store
	const round = 15 * time.Second
	time.Sleep(time.Until(a.Started.Add(round + 2*time.Second)))
	m0 := a.Metrics(r)
	cpu0, err := harness.CPUTime(a.PID)
	if err != nil {
		r.Fatal(err)
	}
	time.Sleep(crowdRounds * round)
	f.took = crowdRounds * round
	m1 := a.Metrics(r)
	cpu1, err := harness.CPUTime(a.PID)
	if err != nil {
		r.Fatal(err)
	}
	f.cpu = cpu1 - cpu0
	if f.rss, f.peak, err = harness.ResidentBytes(a.PID); err != nil {
		r.Fatal(err)
	}
	_, f.mapBytes = harness.KernelMapBytes(r, a.PID)
	const ends = "spanflame_session_user_stacks_total"
	f.ends = m1.By(ends, "end")
	for end, n := range m0.By(ends, "end") {
		f.ends[end] -= n
	}
	delete(f.ends, "none")
	f.rows = m1.Sum("spanflame_session_unwind_rows_loaded_total")
	for reason, n := range m1.By("spanflame_samples_dropped_total", "reason") {
		if reason != "no_target" {
			f.lost += n
		}
	}
	return f, nil
}

func (f crowdFigures) markdown() string {
	mib := func(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }
	reached := "yes"
	if f.rss+int64(f.mapBytes) > crowdGoal {
		reached = "**no**"
	}
	return fmt.Sprintf(`
## A crowd

%d processes of %d executables, all of which want the CPU at the lowest priority, under an agent at its defaults with page and store: copies of bash,
perl, mawk, openssl and python3, each a file of its own, with tables of its own. Measured after %d rounds.

| what | measured | goal | reached |
|---|--:|--:|---|
| resident memory and kernel maps | %s (%s and %s; resident at its peak: %s) | ≤ %s | %s |
| user stacks that are whole | %.2f %% of %.0f (the rest: %s) | | |
| rows of tables loaded | %.0f | | |
| samples lost | %.0f | | |
| the agent's own CPU time, of one core | %.2f %% | | |
`, crowdProcesses, crowdExecutables, crowdRounds+1, mib(f.rss+int64(f.mapBytes)), mib(f.rss), mib(int64(f.mapBytes)), mib(f.peak), mib(crowdGoal), reached,
		100*whole(f.ends), total(f.ends), figures{ends: f.ends}.rest(), f.rows, f.lost, 100*f.cpu.Seconds()/f.took.Seconds())
}
