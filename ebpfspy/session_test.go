package ebpfspy

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-kit/log"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/sd"
)

// everything makes every process part of one target.
type everything struct{ t *sd.Target }

func (e everything) FindTarget(*sd.Process) (*sd.Target, string) { return e.t, "" }

func allTargets() everything {
	return everything{&sd.Target{Labels: labels.FromStrings("service_name", "all")}}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the kernel's programs need root")
	}
}

func newTestSession(t testing.TB, finder TargetFinder, opts Options) (*Session, *ledger.Account) {
	t.Helper()
	needRoot(t)
	account := ledger.New().Session()
	s, err := NewSession(log.NewLogfmtLogger(testWriter{t}), nil, account, finder, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return s, account
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func start(t testing.TB, s *Session) {
	t.Helper()
	if err := s.Start(); err != nil {
		var se *StartError
		if errors.As(err, &se) && se.VerifierLog != "" {
			t.Log(se.VerifierLog)
		}
		t.Fatal(err)
	}
}

// threadTime is the CPU time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // cannot fail
	return time.Duration(ts.Nano())
}

// burn uses d of CPU time in one thread, however busy the machine is, and returns how many
// samples can be taken of it. Where the clock jumps, a virtual machine's processor did not
// run: however long that was, the sampler's timer rings once behind it.
func burn(d, period time.Duration) (samples float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	for end := before + d; before < end; {
		for i, n := 0, 0; i < 1000; i++ {
			n ^= i
		}
		now := threadTime()
		samples += min(float64(now-before)/float64(period), 1)
		before = now
	}
	return samples
}

// defaultPeriod is that of the zero Options.
const defaultPeriod = time.Second / DefaultFrequency

// onThread keeps the test on a thread of its own, whose name it returns: what else the test
// process does, such as making unwind tables, is no part of what is measured.
func onThread(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test
	const name = "burner"
	if err := os.WriteFile("/proc/thread-self/comm", []byte(name), 0); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestSessionSamplesThisProcess(t *testing.T) {
	s, account := newTestSession(t, allTargets(), Options{Threads: true})
	start(t, s)
	thread, began := onThread(t), threadTime()
	low := burn(2*time.Second, defaultPeriod)
	high := float64(threadTime()-began) / float64(defaultPeriod)
	var own, all uint64
	info, err := s.CollectProfiles(func(sm *Sample) {
		all += sm.Count
		if sm.Thread == thread {
			own += sm.Count
			if sm.PID != sd.PID(os.Getpid()) {
				t.Errorf("the thread's process is %d", sm.PID)
			}
		}
		if len(sm.Stack) == 0 {
			t.Error("a sample without a frame")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := float64(own); n < 0.85*low || n > 1.15*high+1 {
		t.Errorf("samples of this thread = %d, want about %.0f to %.0f", own, low, high)
	}
	b := account.Balance()
	if b.In != all+b.Lost() || b.Out != all || info.Taken != b.In || info.Profiled != all {
		t.Errorf("balance %+v, delivered %d, info %+v", b, all, info)
	}
	if b.Pending() != 0 {
		t.Errorf("pending = %d", b.Pending())
	}
}

// bpfObjects counts the programs and maps of the kernel. Those of variables are
// mapped, and go when the collector has seen that nobody uses them.
func bpfObjects(t *testing.T) (n int) {
	t.Helper()
	runtime.GC()
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		n++
	}
	for id, err := ebpf.MapGetNextID(0); err == nil; id, err = ebpf.MapGetNextID(id) {
		n++
	}
	return n
}

// openFiles are the open files of this process.
func openFiles(t *testing.T) (names []string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil { // ReadDir's own is closed
			names = append(names, name)
		}
	}
	return names
}

func TestSessionLeavesNothingBehind(t *testing.T) {
	s, _ := newTestSession(t, allTargets(), Options{})
	start(t, s) // what is opened once and kept (BTF, kernel names) is open now
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	bpfObjects(t)
	time.Sleep(time.Second)
	goroutines, files, objects := runtime.NumGoroutine(), openFiles(t), bpfObjects(t)
	for i := 0; i < 5; i++ {
		start(t, s)
		if i%2 == 0 {
			if _, err := s.CollectProfiles(func(*Sample) {}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.Stop(); err != nil {
			t.Fatalf("second Stop: %v", err)
		}
	}
	if err := s.Close(); err != nil { // files whose symbols were read stay open until now
		t.Fatal(err)
	}
	// The kernel frees programs and maps after a grace period.
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) && bpfObjects(t) > objects {
		time.Sleep(50 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("goroutines: %d before, %d after", goroutines, n)
	}
	if now := openFiles(t); len(now) > len(files) {
		t.Errorf("files: %v before, %v after", files, now)
	}
	if n := bpfObjects(t); n > objects {
		t.Errorf("BPF programs and maps: %d before, %d after", objects, n)
	}
}

func TestSessionFromManyGoroutines(t *testing.T) {
	s, account := newTestSession(t, allTargets(), Options{})
	var wg sync.WaitGroup
	times := 12
	if testing.Short() {
		times = 5
	}
	run := func(f func(i int)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; i < times; i++ {
				f(i)
			}
		}()
	}
	run(func(int) {
		if err := s.Start(); err == nil {
			time.Sleep(20 * time.Millisecond)
		}
	})
	run(func(int) {
		time.Sleep(30 * time.Millisecond)
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	run(func(int) {
		if _, err := s.CollectProfiles(func(*Sample) {}); err != nil && !errors.Is(err, ErrStopped) {
			t.Error(err)
		}
	})
	run(func(i int) {
		if err := s.Update(Options{Frequency: 97 + i%2, Threads: i%3 == 0}); err != nil && !strings.Contains(err.Error(), "too many updates") {
			t.Error(err)
		}
	})
	run(func(int) { s.UpdateTargets(); _ = s.DebugInfo(); _ = s.Scale() })
	wg.Wait()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if p := account.Balance().Pending(); p != 0 {
		t.Errorf("pending = %d after Stop, %+v", p, account.Balance())
	}
}

func TestUpdateChangesWhatRuns(t *testing.T) {
	const slow, fast = 20 * time.Millisecond, 2 * time.Millisecond
	s, account := newTestSession(t, allTargets(), Options{Frequency: 50, Threads: true})
	start(t, s)
	thread, began := onThread(t), threadTime()
	lowSlow := burn(time.Second, slow)
	updating := threadTime()
	if err := s.Update(Options{Frequency: 500, Threads: true, CommFrame: true}); err != nil {
		t.Fatal(err)
	}
	updated := threadTime()
	if s.Scale() != fast {
		t.Errorf("Scale = %v", s.Scale())
	}
	lowFast := burn(time.Second, fast)
	if err := s.Update(Options{Frequency: 500, MaxStacks: 2048, Threads: true, DisableKernel: true}); err != nil {
		t.Fatal(err)
	}
	lowFast += burn(time.Second, fast)
	samples := map[time.Duration]uint64{}
	if _, err := s.CollectProfiles(func(sm *Sample) {
		if sm.Thread == thread {
			samples[sm.Period] += sm.Count
		}
	}); err != nil {
		t.Fatal(err)
	}
	// Each sample stands for its own period. What Update and CollectProfiles themselves do
	// in this thread may have been sampled or not: it is little, but for emulated processors.
	for _, tt := range []struct {
		period time.Duration
		low    float64
		used   time.Duration
	}{
		{slow, lowSlow, updated - began},
		{fast, lowFast, threadTime() - updating},
	} {
		n, high := float64(samples[tt.period]), float64(tt.used)/float64(tt.period)
		if n < 0.85*tt.low || n > 1.15*high+1 {
			t.Errorf("%.0f samples of %v, want about %.0f to %.0f", n, tt.period, tt.low, high)
		}
	}
	if len(samples) != 2 {
		t.Errorf("samples of other periods: %v", samples)
	}
	if p := account.Balance().Pending(); p != 0 {
		t.Errorf("pending = %d", p)
	}
}

// Four programs that are gone before the round ends are profiled like any other.
func TestShortLivedProcesses(t *testing.T) {
	s, account := newTestSession(t, allTargets(), Options{})
	start(t, s)
	pids := map[sd.PID]uint64{}
	for i := 0; i < 4; i++ {
		cmd := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done")
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		pids[sd.PID(cmd.ProcessState.Pid())] = 0
	}
	inShell := 0
	if _, err := s.CollectProfiles(func(sm *Sample) {
		if _, ok := pids[sm.PID]; !ok {
			return
		}
		pids[sm.PID] += sm.Count
		for _, l := range sm.Stack {
			if l.Mapping != nil && strings.Contains(l.Mapping.File, "sh") {
				inShell++
				break
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	for pid, n := range pids {
		if n < 3 {
			t.Errorf("process %d: %d samples", pid, n)
		}
	}
	if inShell == 0 {
		t.Error("no frame of the shell's file")
	}
	b := account.Balance()
	if lost := b.Dropped[ledger.ProcessGone] + b.Dropped[ledger.UnknownProcess]; lost*100 > b.In {
		t.Errorf("lost %d of %d: %+v", lost, b.In, b.Dropped)
	}
}

// A program is told apart from the one that its process ran before.
func TestExecWithinARound(t *testing.T) {
	s, _ := newTestSession(t, allTargets(), Options{})
	start(t, s)
	script := "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exec perl -e 'my $i=0; while ($i < 6000000) { $i++ }'"
	cmd := exec.Command("/bin/sh", "-c", script)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pid := sd.PID(cmd.ProcessState.Pid())
	files := map[string]uint64{}
	if _, err := s.CollectProfiles(func(sm *Sample) {
		if sm.PID != pid {
			return
		}
		for _, l := range sm.Stack {
			if l.Mapping != nil && strings.HasPrefix(l.Mapping.File, "/") {
				files[l.Mapping.File] += sm.Count
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	var sh, perl bool
	for f := range files {
		sh = sh || strings.HasSuffix(f, "/dash") || strings.HasSuffix(f, "/bash")
		perl = perl || strings.Contains(f, "perl")
	}
	if !sh || !perl {
		t.Errorf("files = %v, want those of both programs", files)
	}
}

type noTargets struct {
	mu    *sync.Mutex
	calls map[sd.PID]int
}

func newNoTargets() noTargets { return noTargets{new(sync.Mutex), map[sd.PID]int{}} }

func (n noTargets) FindTarget(p *sd.Process) (*sd.Target, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls[p.PID]++
	return nil, "none in this test"
}

func TestProcessesWithoutTarget(t *testing.T) {
	finder := newNoTargets()
	s, account := newTestSession(t, finder, Options{})
	start(t, s)
	for i := 0; i < 2; i++ {
		burn(500*time.Millisecond, defaultPeriod)
		if _, err := s.CollectProfiles(func(*Sample) { t.Error("a sample without a target") }); err != nil {
			t.Fatal(err)
		}
	}
	b := account.Balance()
	if b.In == 0 || b.Dropped[ledger.NoTarget] == 0 || b.Pending() != 0 {
		t.Errorf("balance = %+v", b)
	}
	finder.mu.Lock()
	calls := finder.calls[sd.PID(os.Getpid())]
	finder.mu.Unlock()
	if calls != 1 {
		t.Errorf("asked %d times for this process, want once", calls)
	}
	var pid uint32
	var ticks uint64
	n := 0
	for it := s.kern.objs.Excluded.Iterate(); it.Next(&pid, &ticks); n++ {
	}
	if n == 0 {
		t.Error("the kernel was not told")
	}
	s.UpdateTargets()
	n = 0
	for it := s.kern.objs.Excluded.Iterate(); it.Next(&pid, &ticks); n++ {
	}
	if n != 0 {
		t.Errorf("%d processes are still excluded after UpdateTargets", n)
	}

	// What nobody takes any more is not lost: nobody would have had it.
	burn(200*time.Millisecond, defaultPeriod)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if more := account.Balance(); more.In <= b.In || more.Dropped[ledger.RoundAbandoned] != 0 || more.Pending() != 0 {
		t.Errorf("balance after Stop = %+v", more)
	}
}

// TestNewProgramsWithoutTarget starts programs of no target: the kernel is told within the
// round, before they are sampled.
func TestNewProgramsWithoutTarget(t *testing.T) {
	s, _ := newTestSession(t, newNoTargets(), Options{})
	start(t, s)
	var pids []uint32
	for i := 0; i < 20; i++ {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		pids = append(pids, uint32(cmd.Process.Pid))
	}
	var ticks uint64
	for deadline := time.Now().Add(5 * time.Second); len(pids) > 0; {
		pids = slices.DeleteFunc(pids, func(pid uint32) bool { return s.kern.objs.Excluded.Lookup(pid, &ticks) == nil })
		if time.Now().After(deadline) {
			t.Fatalf("%d of 20 new programs are not excluded", len(pids))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestStartFailsWhole(t *testing.T) {
	needRoot(t)
	s, _ := newTestSession(t, allTargets(), Options{ProcFS: t.TempDir() + "/none"})
	files, objects := openFiles(t), bpfObjects(t)
	err := s.Start()
	var se *StartError
	if !errors.As(err, &se) || se.Step != "read the processes" {
		t.Fatalf("Start = %v, want the failed step", err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) && bpfObjects(t) > objects {
		time.Sleep(50 * time.Millisecond)
	}
	if now := openFiles(t); len(now) > len(files)+2 { // the runtime's own poller
		t.Errorf("files: %v before, %v after", files, now)
	}
	if n := bpfObjects(t); n > objects {
		t.Errorf("BPF objects: %d before, %d after", objects, n)
	}
	if _, err := s.CollectProfiles(func(*Sample) {}); !errors.Is(err, ErrStopped) {
		t.Errorf("CollectProfiles = %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, tc := range []struct {
		opts Options
		want string
	}{
		{Options{Frequency: 1001}, "frequency is 1001, want 1 to 1000"},
		{Options{Unknown: "x"}, "style of unknown symbols"},
		{Options{SidebandBytes: 100_000}, "a power of two"},
		{Options{ArenaBytes: 1}, "arena bytes"},
	} {
		_, err := NewSession(log.NewNopLogger(), nil, nil, nil, tc.opts)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.opts, err, tc.want)
		}
	}
	if _, err := (Options{}).withDefaults(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
}

// A CPU that goes and comes back is sampled again.
func TestCPUHotplug(t *testing.T) {
	needRoot(t)
	const online = "/sys/devices/system/cpu/cpu1/online"
	if err := os.WriteFile(online, []byte("1"), 0); err != nil {
		t.Skipf("CPU 1 cannot be switched: %v", err)
	}
	s, account := newTestSession(t, allTargets(), Options{Threads: true})
	start(t, s)
	sw := func(v string, want int) {
		t.Helper()
		if err := os.WriteFile(online, []byte(v), 0); err != nil {
			t.Skipf("CPU 1 cannot be switched: %v", err)
		}
		deadline := time.Now().Add(10 * time.Second)
		for {
			s.pumpMu.Lock()
			n := len(s.kern.clocks)
			s.pumpMu.Unlock()
			if n == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d samplers, want %d", n, want)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	all := len(s.kern.clocks)
	t.Cleanup(func() { _ = os.WriteFile(online, []byte("1"), 0) })
	sw("0", all-1)
	sw("1", all)
	// Once more, too fast to be noticed.
	for _, v := range []string{"0", "1"} {
		if err := os.WriteFile(online, []byte(v), 0); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2*cpuInterval + 500*time.Millisecond)
	if _, err := s.CollectProfiles(func(*Sample) {}); err != nil {
		t.Fatal(err)
	}
	// A burner that may run on CPU 1 alone.
	thread := onThread(t)
	var one unix.CPUSet
	one.Set(1)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	want := burn(2*time.Second, defaultPeriod)
	var n uint64
	if _, err := s.CollectProfiles(func(sm *Sample) {
		if sm.Thread == thread {
			n += sm.Count
		}
	}); err != nil {
		t.Fatal(err)
	}
	if float64(n) < want*0.7 {
		t.Errorf("%d samples on the CPU that came back, want about %.0f", n, want)
	}
	if p := account.Balance().Pending(); p != 0 {
		t.Errorf("pending = %d", p)
	}
}

// A process whose events were lost is profiled all the same, and one whose end was
// lost does not stay for ever.
func TestLostProcessEvents(t *testing.T) {
	s, account := newTestSession(t, allTargets(), Options{})
	start(t, s)
	own := uint32(os.Getpid())
	s.mu.Lock()
	s.table.remove(s.table.latest[own]) // as if nobody had told of it
	ghost := s.table.add(identity{1 << 30, 7})
	s.mu.Unlock()
	burn(500*time.Millisecond, defaultPeriod)
	var n uint64
	if _, err := s.CollectProfiles(func(sm *Sample) {
		if sm.PID == sd.PID(own) {
			n += sm.Count
		}
	}); err != nil {
		t.Fatal(err)
	}
	if n < DefaultFrequency/4 {
		t.Errorf("%d samples of the process that was not known", n)
	}
	if b := account.Balance(); b.Dropped[ledger.UnknownProcess] != 0 || b.Dropped[ledger.ProcessGone] != 0 {
		t.Errorf("dropped %v", b.Dropped)
	}
	s.repair()
	if _, err := s.CollectProfiles(func(*Sample) {}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table.byID[ghost.id] != nil {
		t.Error("a process that is gone is still followed")
	}
}

// Rings that are much too small lose records; the processes are profiled and the
// account adds up all the same.
func TestTinyRings(t *testing.T) {
	s, account := newTestSession(t, allTargets(), Options{SidebandBytes: 16 << 10, EventRingBytes: 16 << 10})
	start(t, s)
	processes := 400
	if testing.Short() {
		processes = 150
	}
	s.pumpMu.Lock() // nobody reads the rings
	for i := 0; i < processes; i++ {
		if err := exec.Command("/bin/true").Run(); err != nil {
			t.Error(err)
		}
	}
	cmd := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; sleep 5")
	if err := cmd.Start(); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	s.pumpMu.Unlock()
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var n uint64
	if _, err := s.CollectProfiles(func(sm *Sample) {
		if sm.PID == sd.PID(cmd.Process.Pid) {
			n += sm.Count
		}
	}); err != nil {
		t.Fatal(err)
	}
	s.pumpMu.Lock()
	if s.lostEvents == 0 {
		t.Error("no event was lost")
	}
	s.pumpMu.Unlock()
	if n == 0 {
		t.Error("the process that came while events were lost was not profiled")
	}
	if p := account.Balance().Pending(); p != 0 {
		t.Errorf("pending = %d", p)
	}
}
