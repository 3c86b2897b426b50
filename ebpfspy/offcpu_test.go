package ebpfspy

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/bpf"
	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/internal/stack"
	"github.com/spanflame/spanflame/sd"
)

const ms = uint64(time.Millisecond)

// everyStack of longer waits is taken, whatever else goes on.
var everyStack = OffCPUOptions{Enabled: true, MaxEvents: MaxMaxEvents, MinBlock: time.Millisecond}

func TestPartOf(t *testing.T) {
	for _, tt := range []struct {
		name           string
		b              bpf.ProfileBlock
		start, border  uint64
		waited, queued uint64
	}{
		{"within the round", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms, Chance: chanceOne}, 50 * ms, 300 * ms, 200 * ms, 0},
		{"since before the round", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms, Chance: chanceOne}, 250 * ms, 300 * ms, 50 * ms, 0},
		{"woken in the round", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms, Woken: 280 * ms, Chance: chanceOne}, 250 * ms, 300 * ms, 30 * ms, 20 * ms},
		{"woken before the round", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms, Woken: 200 * ms, Chance: chanceOne}, 250 * ms, 300 * ms, 0, 50 * ms},
		{"woken after the round", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms, Woken: 310 * ms, Chance: chanceOne}, 250 * ms, 300 * ms, 50 * ms, 0},
		{"preempted", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms, Woken: 100 * ms, Chance: chanceOne}, 50 * ms, 300 * ms, 0, 200 * ms},
		{"drawn by a chance of a quarter", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms, Woken: 290 * ms, Chance: chanceOne / 4}, 50 * ms, 300 * ms, 760 * ms, 40 * ms},
		{"not drawn", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms}, 50 * ms, 300 * ms, 0, 0},
		{"long, not drawn", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms}, 900 * ms, 1200 * ms, 300 * ms, 0},
		{"long, drawn by a chance", bpf.ProfileBlock{Certain: 1000 * ms, Since: 100 * ms, Chance: 16}, 900 * ms, 1200 * ms, 300 * ms, 0},
	} {
		waited, queued := partOf(&tt.b, tt.start, tt.border)
		if waited != tt.waited || queued != tt.queued {
			t.Errorf("%s: waited %d, queued %d, want %d, %d", tt.name, waited, queued, tt.waited, tt.queued)
		}
	}
}

func TestBlockAt(t *testing.T) {
	const border = 1000
	for _, tt := range []struct {
		name  string
		state bpf.ProfileThreadState
		since uint64 // of the block found, 0: none
	}{
		{"on a CPU", bpf.ProfileThreadState{}, 0},
		{"off", bpf.ProfileThreadState{Now: bpf.ProfileBlock{Since: 900}}, 900},
		{"off since after the border", bpf.ProfileThreadState{Now: bpf.ProfileBlock{Since: 1100}}, 0},
		{"came back, and left again", bpf.ProfileThreadState{Now: bpf.ProfileBlock{Since: 1100}, Cut: bpf.ProfileBlock{Since: 800}, CutAt: border}, 800},
		{"came back", bpf.ProfileThreadState{Cut: bpf.ProfileBlock{Since: 800}, CutAt: border}, 800},
		{"cut at another border", bpf.ProfileThreadState{Cut: bpf.ProfileBlock{Since: 800}, CutAt: 900}, 0},
	} {
		var since uint64
		if b := blockAt(&tt.state, border); b != nil {
			since = b.Since
		}
		if since != tt.since {
			t.Errorf("%s: the block is since %d, want %d", tt.name, since, tt.since)
		}
	}
}

func frames(names ...string) []*stack.Location {
	var out []*stack.Location
	for _, n := range names {
		out = append(out, stack.Pseudo(n))
	}
	return out
}

func namesOf(s []*stack.Location) []string {
	var out []string
	for _, l := range s {
		out = append(out, l.Lines[0].Function)
	}
	return out
}

func TestFramesOfTheSampler(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"bpf_trace_run4 __traceiter_sched_switch __schedule schedule do_nanosleep", "__schedule schedule do_nanosleep"},
		{"schedule futex_wait", "schedule futex_wait"},
		{"vfs_read ksys_read", "vfs_read ksys_read"}, // not cut where the scheduler has no name
		{"", ""},
	} {
		got := strings.Join(namesOf(from(frames(strings.Fields(tt.in)...), scheduler)), " ")
		if got != tt.want {
			t.Errorf("%q became %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestIsIdle(t *testing.T) {
	for _, tt := range []struct {
		wait, stack string
		want        bool
	}{
		{"poll", "ep_poll epoll_wait main", true},
		{"lock", "futex_wait __lll_lock_wait pthread_mutex_lock work", false},
		{"lock", "futex_wait pthread_cond_wait worker", true},
		{"lock", "runtime.futex runtime.futexsleep runtime.notesleep runtime.stopm runtime.findRunnable", true},
		{"lock", "runtime.futex runtime.lock2 main.work", false},
		{"network", "inet_csk_accept accept4 server", true},
		{"network", "tcp_recvmsg recv client", false},
		{"disk", "pthread_cond_wait", false},
		{"run_queue", "epoll_wait", false},
		{"", "", false},
	} {
		if got := isIdle(tt.wait, frames(strings.Fields(tt.stack)...), false); got != tt.want {
			t.Errorf("%s in %s: idle is %v", tt.wait, tt.stack, got)
		}
	}
	// A thread that waits for the lock of Python's interpreter, in a function.
	if isIdle("lock", frames("futex_wait", "pthread_cond_timedwait", "work"), true) {
		t.Error("a thread in a Python function is idle")
	}
}

func TestWaitOf(t *testing.T) {
	kernel := &stack.Mapping{File: "[kernel.kallsyms]"}
	const restarted = uint8(bpf.ProfileWaitCauseWAIT_RESTARTED)
	for _, tt := range []struct {
		cause  uint8
		kernel string // its functions
		want   string
	}{
		{uint8(bpf.ProfileWaitCauseWAIT_LOCK), "hrtimer_nanosleep", "lock"},
		{restarted, "__schedule do_nanosleep hrtimer_nanosleep hrtimer_nanosleep_restart", "sleep"},
		{restarted, "__schedule futex_wait_queue futex_wait futex_wait_restart", "lock"},
		{restarted, "__schedule poll_schedule_timeout do_sys_poll do_restart_poll", "poll"},
		{restarted, "__schedule", "other"},
		{restarted, "", "other"},
		{restarted + 1, "", ""},
	} {
		var in []*stack.Location
		for _, l := range frames(strings.Fields(tt.kernel)...) {
			l.Mapping = kernel
			in = append(in, l)
		}
		// A function of the program may be named so, too.
		if got := waitOf(tt.cause, append(in, frames("futex_wait")...)); got != tt.want {
			t.Errorf("%d in %s: %q, want %q", tt.cause, tt.kernel, got, tt.want)
		}
	}
}

// isNap says whether a thread is in nap. Others may have inherited its name.
func isNap(sm *Sample) bool {
	return slices.ContainsFunc(namesOf(sm.Stack), func(f string) bool { return strings.Contains(f, "nanosleep") })
}

// offTimes adds up what a round says of threads that are off their CPU, by thread; of those
// named sleeper, their naps.
func offTimes(t *testing.T, s *Session, each func(*Sample)) (map[string]time.Duration, RoundInfo) {
	t.Helper()
	off := map[string]time.Duration{}
	info, err := s.CollectProfiles(func(sm *Sample) {
		if sm.Kind == OffCPU && (sm.Thread != "sleeper" || isNap(sm)) {
			off[sm.Thread] += sm.Time
		}
		if each != nil {
			each(sm)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return off, info
}

// goThread runs f in a thread of its own with a name; it is running when goThread returns.
func goThread(t *testing.T, wg *sync.WaitGroup, name string, f func()) {
	t.Helper()
	began := make(chan error)
	wg.Go(func() {
		runtime.LockOSThread() // for good
		began <- os.WriteFile("/proc/thread-self/comm", []byte(name), 0)
		f()
	})
	if err := <-began; err != nil {
		t.Fatal(err)
	}
}

// sleepUntilWoken runs a thread that is in nanosleep until the function that it returns is
// called.
func sleepUntilWoken(t *testing.T, wg *sync.WaitGroup, name string) (wake func()) {
	t.Helper()
	var woken atomic.Bool
	tids, ended := make(chan int, 1), make(chan struct{})
	goThread(t, wg, name, func() {
		defer close(ended)
		tids <- unix.Gettid()
		for !woken.Load() {
			_ = unix.Nanosleep(&unix.Timespec{Sec: 600}, nil)
		}
	})
	return func() {
		woken.Store(true)
		tid := <-tids
		for {
			select {
			case <-ended:
				return
			case <-time.After(10 * time.Millisecond): // it may be about to sleep
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
			}
		}
	}
}

func nap(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	for unix.Nanosleep(&ts, &ts) == unix.EINTR {
	}
}

func near(t *testing.T, what string, got, want, tolerance time.Duration) {
	t.Helper()
	if testing.Short() {
		tolerance *= 4 // an emulated processor is slow
	}
	if d := (got - want).Abs(); d > tolerance {
		t.Errorf("%s: %s, want %s to within %s", what, got, want, tolerance)
	}
}

func addsUp(t *testing.T, a *ledger.Account) {
	t.Helper()
	if b := a.Balance(); b.Pending() != 0 {
		t.Errorf("the samples do not add up: %+v", b)
	}
}

// A thread that sleeps is seen in each round, and all of its sleep once; also if it slept
// before the session began.
func TestOffCPUAcrossRounds(t *testing.T) {
	s, account := newTestSession(t, justMe(), Options{Threads: true, OffCPU: everyStack})
	var wg sync.WaitGroup
	defer wg.Wait()
	wake := sleepUntilWoken(t, &wg, "before")
	defer wake()
	time.Sleep(100 * time.Millisecond)
	start(t, s)
	began := time.Now()
	goThread(t, &wg, "sleeper", func() { nap(2500 * time.Millisecond) })
	const tolerance = 100 * time.Millisecond // to start a thread, on a busy machine
	var total time.Duration
	known := 0
	for round := 1; round <= 4; round++ {
		time.Sleep(time.Until(began.Add(time.Duration(round) * time.Second)))
		ends := map[string]bool{}
		off, info := offTimes(t, s, func(sm *Sample) {
			if sm.Kind == OffCPU && sm.Thread == "before" {
				ends[namesOf(sm.Stack[len(sm.Stack)-1:])[0]] = true
				if sm.Wait == "sleep" && strings.Contains(strings.Join(namesOf(sm.Stack), " "), "nanosleep") {
					known++
				}
			}
		})
		total += off["sleeper"]
		want := []time.Duration{time.Second, time.Second, 500 * time.Millisecond, 0}[round-1]
		if round < 3 {
			want = info.Duration // all of it
		}
		near(t, "sleeper", off["sleeper"], want, tolerance)
		near(t, "before", off["before"], info.Duration, tolerance)
		if !ends["[truncated: not_sampled]"] || len(ends) != 1 {
			t.Errorf("the stack of the thread that slept already ends in %v", ends)
		}
	}
	if known < 4 {
		t.Errorf("in %d of 4 rounds it is known that the thread that slept already sleeps", known)
	}
	near(t, "all rounds", total, 2500*time.Millisecond, 10*time.Millisecond)
	addsUp(t, account)
}

// justMe makes this process and its children a target.
func justMe() only {
	return only{allTargets().t, os.Getpid()}
}

type only struct {
	t   *sd.Target
	pid int
}

func (o only) FindTarget(p *sd.Process) (*sd.Target, string) {
	if int(p.PID) == o.pid || int(p.Parent) == o.pid {
		return o.t, ""
	}
	return nil, "not this process"
}

// A process that is killed in its sleep has slept until then.
func TestOffCPUKilledAsleep(t *testing.T) {
	s, account := newTestSession(t, justMe(), Options{Threads: true, OffCPU: everyStack})
	start(t, s)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	time.Sleep(1200 * time.Millisecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	slept := time.Since(began)
	off, _ := offTimes(t, s, nil)
	near(t, "sleep", off["sleep"], slept, 100*time.Millisecond)
	off, _ = offTimes(t, s, nil)
	near(t, "sleep, after its end", off["sleep"], 0, 0)
	addsUp(t, account)
}

// envExecAsleep has the test program run execAsleep.
const envExecAsleep = "SPANFLAME_TEST_EXEC_ASLEEP"

func TestMain(m *testing.M) {
	if os.Getenv(envExecAsleep) != "" {
		execAsleep()
	}
	os.Exit(m.Run())
}

// execAsleep becomes another program while a thread of it sleeps.
func execAsleep() {
	var wg sync.WaitGroup
	began := make(chan struct{})
	wg.Go(func() {
		runtime.LockOSThread()
		_ = os.WriteFile("/proc/thread-self/comm", []byte("asleep"), 0)
		close(began)
		nap(time.Hour)
	})
	<-began
	time.Sleep(700 * time.Millisecond)
	_ = syscall.Exec("/bin/sleep", []string{"sleep", "0.5"}, []string{})
	os.Exit(1)
}

// A thread that is asleep while its process becomes another program has slept until then,
// under the stack that it had.
func TestOffCPUExecWhileAsleep(t *testing.T) {
	s, account := newTestSession(t, justMe(), Options{Threads: true, OffCPU: everyStack})
	start(t, s)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envExecAsleep+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files := map[string]string{}
	off, _ := offTimes(t, s, func(sm *Sample) {
		if sm.Kind != OffCPU || int(sm.PID) != cmd.Process.Pid {
			return
		}
		for _, l := range sm.Stack {
			if l.Mapping != nil && strings.HasPrefix(l.Mapping.File, "/") {
				files[sm.Thread] = l.Mapping.File
			}
		}
	})
	near(t, "the thread that was asleep", off["asleep"], 700*time.Millisecond, 150*time.Millisecond)
	near(t, "the program after", off["sleep"], 500*time.Millisecond, 150*time.Millisecond)
	if !strings.HasSuffix(files["asleep"], ".test") || strings.HasSuffix(files["sleep"], ".test") {
		t.Errorf("the stacks are in %v", files)
	}
	addsUp(t, account)
}

// pingPong has two threads wake each other through pipes until stop is closed.
func pingPong(t *testing.T, wg *sync.WaitGroup, stop <-chan struct{}) {
	t.Helper()
	var there, back [2]int
	for _, p := range []*[2]int{&there, &back} {
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	goThread(t, wg, "pong", func() {
		b := make([]byte, 1)
		for {
			if n, _ := unix.Read(there[0], b); n == 0 {
				unix.Close(back[1])
				return
			}
			_, _ = unix.Write(back[1], b)
		}
	})
	goThread(t, wg, "ping", func() {
		b := make([]byte, 1)
		for {
			select {
			case <-stop:
				unix.Close(there[1])
				return
			default:
			}
			_, _ = unix.Write(there[1], b)
			_, _ = unix.Read(back[0], b)
		}
	})
}

// However often threads switch, what is sampled stays within the budget, says what it is,
// and stands for all.
func TestOffCPUBudget(t *testing.T) {
	const budget = 500
	s, account := newTestSession(t, justMe(), Options{Threads: true, OffCPU: OffCPUOptions{Enabled: true, MaxEvents: budget}})
	start(t, s)
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	pingPong(t, &wg, stop)
	time.Sleep(time.Second) // until the chances are right
	offTimes(t, s, nil)
	time.Sleep(4 * time.Second)
	on := map[string]time.Duration{}
	off, info := offTimes(t, s, func(sm *Sample) {
		if sm.Kind == OnCPU {
			on[sm.Thread] += sm.Time
		}
	})
	most := 1.5 * budget * info.Duration.Seconds() * float64(runtime.NumCPU())
	o := info.OffCPU
	t.Logf("%+v", o)
	if float64(o.Sampled) > most {
		t.Errorf("%d were sampled in %s, want %.0f at most", o.Sampled, info.Duration, most)
	}
	busy := uint64(20)
	if testing.Short() {
		busy = 4 // an emulated processor is slow
	}
	if o.Sampled < 20 || o.LeftOut < busy*o.Sampled {
		t.Errorf("%d were sampled, %d left out: that is no busy host", o.Sampled, o.LeftOut)
	}
	for _, thread := range []string{"ping", "pong"} {
		// The error of some hundred draws, of times of which a few are much longer.
		near(t, thread, on[thread]+off[thread], info.Duration, info.Duration/3)
	}
	addsUp(t, account)
}

func TestOffCPUIdle(t *testing.T) {
	for _, style := range []IdleStyle{IdleLabel, IdleKeep, IdleDrop} {
		t.Run(string(style), func(t *testing.T) {
			s, account := newTestSession(t, justMe(), Options{Threads: true, OffCPU: OffCPUOptions{Enabled: true, MaxEvents: MaxMaxEvents, Idle: style}})
			start(t, s)
			var wg sync.WaitGroup
			goThread(t, &wg, "poller", func() {
				_, _ = unix.Poll(nil, 500)
			})
			wg.Wait()
			var idle, busy time.Duration
			_, info := offTimes(t, s, func(sm *Sample) {
				switch {
				case sm.Kind != OffCPU || sm.Thread != "poller" || sm.Wait != "poll":
				case sm.Idle:
					idle += sm.Time
				default:
					busy += sm.Time
				}
			})
			want := map[IdleStyle][2]time.Duration{IdleLabel: {500 * time.Millisecond}, IdleKeep: {0, 500 * time.Millisecond}}[style]
			near(t, "idle", idle, want[0], 20*time.Millisecond)
			near(t, "not idle", busy, want[1], 20*time.Millisecond)
			if dropped := info.Dropped[ledger.Idle] > 0; dropped != (style == IdleDrop) {
				t.Errorf("dropped: %v", info.Dropped)
			}
			addsUp(t, account)
		})
	}
}

func TestOffCPUWaker(t *testing.T) {
	s, account := newTestSession(t, justMe(), Options{Threads: true, OffCPU: OffCPUOptions{Enabled: true, MaxEvents: MaxMaxEvents, Waker: true}})
	start(t, s)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	var wg sync.WaitGroup
	goThread(t, &wg, "reader", func() { _, _ = unix.Read(p[0], make([]byte, 1)) })
	goThread(t, &wg, "writer", func() {
		nap(300 * time.Millisecond)
		_, _ = unix.Write(p[1], []byte{1})
	})
	wg.Wait()
	var reader, writer []string
	offTimes(t, s, func(sm *Sample) {
		if sm.Kind == OffCPU && sm.Time > 200*time.Millisecond {
			switch sm.Thread {
			case "reader":
				reader = namesOf(sm.Stack)
			case "writer":
				writer = namesOf(sm.Stack)
			}
		}
	})
	at := slices.Index(reader, "[woken by]")
	if at < 0 || reader[0] != "writer" || !strings.Contains(strings.Join(reader[:at], " "), "pipe_write") ||
		!strings.Contains(strings.Join(reader[at:], " "), "pipe_read") {
		t.Errorf("the reader's stack: %v", reader)
	}
	// A timer woke the other.
	if at := slices.Index(writer, "[woken by]"); at < 0 || writer[0] != "[interrupt]" {
		t.Errorf("the writer's stack: %v", writer)
	}
	addsUp(t, account)
}

// A process that is stopped waits for none of what its system calls are for, and goes on to
// afterwards.
func TestOffCPUStopped(t *testing.T) {
	s, account := newTestSession(t, justMe(), Options{OffCPU: everyStack})
	start(t, s)
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = child.Process.Kill(), child.Wait() }()
	time.Sleep(300 * time.Millisecond) // it sleeps
	for _, tt := range []struct {
		signal syscall.Signal
		wait   string
	}{{0, "sleep"}, {syscall.SIGSTOP, "other"}, {syscall.SIGCONT, "sleep"}, {syscall.SIGSTOP, "other"}} {
		if err := child.Process.Signal(tt.signal); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		offTimes(t, s, nil)
		time.Sleep(500 * time.Millisecond)
		waits := map[string]time.Duration{}
		_, info := offTimes(t, s, func(sm *Sample) {
			if int(sm.PID) == child.Process.Pid && sm.Kind == OffCPU {
				waits[sm.Wait] += sm.Time
			}
		})
		if len(waits) != 1 {
			t.Errorf("%s: it waited for %v", tt.signal, waits)
		}
		near(t, tt.signal.String(), waits[tt.wait], info.Duration, 10*time.Millisecond)
	}
	addsUp(t, account)
}

// The time of day is set, ahead and back: what is waited, used and covered is right all the
// same, and a round's start is by the clock as it is at its end.
func TestClockSteps(t *testing.T) {
	if os.Getenv("SPANFLAME_TEST_SET_CLOCK") == "" {
		t.Skip("it sets the machine's clock: make test-kernels runs it in virtual machines")
	}
	s, account := newTestSession(t, justMe(), Options{Threads: true, OffCPU: everyStack})
	start(t, s)
	var wg sync.WaitGroup
	defer wg.Wait()
	wake := sleepUntilWoken(t, &wg, "sleeper")
	defer wake()
	var stop atomic.Bool
	defer stop.Store(true)
	goThread(t, &wg, "spinner", func() {
		for !stop.Load() {
		}
	})
	offTimes(t, s, nil)
	for _, step := range []time.Duration{time.Hour, -3 * time.Hour, 2 * time.Hour} {
		time.Sleep(500 * time.Millisecond)
		ts := unix.NsecToTimespec(time.Now().Add(step).UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		var spun time.Duration
		off, info := offTimes(t, s, func(sm *Sample) {
			if sm.Thread == "spinner" {
				spun += sm.Time // on a CPU, or waiting for one
			}
		})
		now := time.Now()
		near(t, "sleeper", off["sleeper"], info.Duration, 20*time.Millisecond)
		near(t, "spinner", spun, info.Duration, info.Duration/4) // some 100 samples
		near(t, "duration", info.Duration, 1500*time.Millisecond, 500*time.Millisecond)
		// Without their monotonic readings.
		near(t, "end by the wall clock", now.Round(0).Sub(info.Start.Round(0).Add(info.Duration)), 500*time.Millisecond, 500*time.Millisecond)
	}
	addsUp(t, account)
}

// Threads that there is no room for are counted.
func TestOffCPUUntracked(t *testing.T) {
	s, account := newTestSession(t, justMe(), Options{OffCPU: OffCPUOptions{Enabled: true, MaxThreads: 64}})
	start(t, s)
	var wg sync.WaitGroup
	const many = 100
	var started atomic.Int32
	for range many {
		goThread(t, &wg, "many", func() {
			started.Add(1)
			for started.Load() < many {
				nap(200 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	_, info := offTimes(t, s, nil)
	if info.OffCPU.Untracked == 0 {
		t.Errorf("%+v, want some that are not followed", info.OffCPU)
	}
	addsUp(t, account)
	// Their threads have ended: there is room again.
	goThread(t, &wg, "again", func() { nap(200 * time.Millisecond) })
	wg.Wait()
	if _, info := offTimes(t, s, nil); info.OffCPU.Sampled == 0 {
		t.Errorf("%+v, want some that are sampled", info.OffCPU)
	}
}

func TestOffCPUWithoutOnCPU(t *testing.T) {
	s, account := newTestSession(t, justMe(), Options{DisableCPU: true, OffCPU: everyStack})
	start(t, s)
	burn(200*time.Millisecond, defaultPeriod)
	time.Sleep(time.Second + cpuInterval) // a look at the CPUs must not start the clocks
	offTimes(t, s, func(sm *Sample) {
		if sm.Kind != OffCPU {
			t.Errorf("a sample of kind %d", sm.Kind)
		}
	})
	// Both, and neither, while it runs.
	if err := s.Update(Options{}); err != nil {
		t.Fatal(err)
	}
	offTimes(t, s, nil)
	burn(300*time.Millisecond, defaultPeriod)
	var onCPU uint64
	off, _ := offTimes(t, s, func(sm *Sample) {
		if sm.Kind == OnCPU {
			onCPU += sm.Count
		}
	})
	if len(off) != 0 || onCPU == 0 {
		t.Errorf("off CPU %v, %d samples on CPU", off, onCPU)
	}
	addsUp(t, account)
}

// A CPU that goes and comes back takes no more away than the waits that end while it goes: the
// kernel calls nobody for switches on a CPU that is not online.
func TestOffCPUHotplug(t *testing.T) {
	needRoot(t)
	const online = "/sys/devices/system/cpu/cpu1/online"
	if err := os.WriteFile(online, []byte("1"), 0); err != nil {
		t.Skipf("CPU 1 cannot be switched: %v", err)
	}
	t.Cleanup(func() { _ = os.WriteFile(online, []byte("1"), 0) })
	const each = 100 * time.Millisecond
	s, account := newTestSession(t, justMe(), Options{Threads: true, OffCPU: everyStack})
	start(t, s)
	var wg sync.WaitGroup
	var slept time.Duration
	goThread(t, &wg, "sleeper", func() {
		begun := time.Now()
		for range 20 {
			nap(each)
		}
		slept = time.Since(begun)
	})
	for _, v := range []string{"0", "1", "0", "1"} {
		time.Sleep(300 * time.Millisecond)
		if err := os.WriteFile(online, []byte(v), 0); err != nil {
			t.Skipf("CPU 1 cannot be switched: %v", err)
		}
	}
	wg.Wait()
	off, _ := offTimes(t, s, nil)
	near(t, "sleeper", off["sleeper"], slept-each, each+slept/50) // it goes twice
	addsUp(t, account)
}
