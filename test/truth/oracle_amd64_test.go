package truth

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spanflame/spanflame/test/harness"
	"github.com/spanflame/spanflame/unwind"
)

// gdbStack prints the registers of the thread that was stopped, and where each of its
// frames is. Those that were inlined, or that gdb infers of jumps that were calls, have no
// place of their own on the stack.
const gdbStack = `
set pagination off
set confirm off
set debuginfod enabled off
set backtrace past-main on
set backtrace past-entry on
set auto-load off
handle SIGINT nopass
handle SIGINT stop
handle SIGALRM nostop noprint pass
handle SIGILL nostop noprint pass
handle SIGCHLD nostop noprint pass
handle SIGPIPE nostop noprint pass
python
def stack():
    f = gdb.newest_frame()
    print("REGS " + " ".join("%x" % (int(f.read_register(r)) & (2**64 - 1)) for r in "REGISTERS".split()), flush=True)
    n = 0
    while f is not None and n < 500:
        if f.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            print("FRAME %x" % f.pc())
        last, n = f, n + 1
        f = f.older()
    print("END " + gdb.frame_stop_reason_string(last.unwind_stop_reason()), flush=True)
end
python print("READY", flush=True)
`

// debugger is gdb with a process.
type debugger struct {
	in  io.Writer
	out *bufio.Scanner
	pid int
}

func startDebugger(t *testing.T, pid int) *debugger {
	t.Helper()
	cmd := exec.Command(harness.NeedTool(t, "gdb"), "-q", "-nx", "-p", strconv.Itoa(pid))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // its process is killed next
		_ = cmd.Wait()
	})
	d := &debugger{in: in, out: bufio.NewScanner(out), pid: pid}
	// A gdb that hangs is killed, which ends its output.
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { timer.Stop() })
	if err := d.say(strings.ReplaceAll(gdbStack, "REGISTERS", gdbRegisters)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.until("READY"); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *debugger) say(text string) error {
	_, err := io.WriteString(d.in, text)
	return err
}

// until returns the first line that begins so, without that.
func (d *debugger) until(prefix string) (string, error) {
	for d.out.Scan() {
		if _, rest, ok := strings.Cut(d.out.Text(), prefix); ok {
			return strings.TrimSpace(rest), nil
		}
	}
	return "", fmt.Errorf("gdb ended before %s: %w", prefix, errors.Join(d.out.Err(), io.ErrUnexpectedEOF))
}

// run lets the process run for a while and stops it.
func (d *debugger) run(long time.Duration) error {
	if err := d.say("continue\n"); err != nil {
		return err
	}
	if _, err := d.until("Continuing"); err != nil {
		return err
	}
	time.Sleep(long)
	return syscall.Kill(d.pid, syscall.SIGINT)
}

// step lets the process execute a number of instructions: the stops of run are seldom in
// the first ones of a function, or in the last.
func (d *debugger) step(n int) error { return d.say(fmt.Sprintf("stepi %d\n", n)) }

// stack returns the registers and the frames as gdb has them, the innermost first, and
// why it says there is no further one.
func (d *debugger) stack() (regs, frames []uint64, end string, err error) {
	if err = d.say("python stack()\n"); err != nil {
		return
	}
	line, err := d.until("REGS ")
	if err != nil {
		return
	}
	if regs, err = parseHex(strings.Fields(line)); err != nil {
		return
	}
	for d.out.Scan() {
		fields := strings.Fields(d.out.Text())
		switch {
		case len(fields) == 2 && fields[0] == "FRAME":
			at, err := parseHex(fields[1:])
			if err != nil {
				return nil, nil, "", err
			}
			frames = append(frames, at[0])
		case len(fields) > 0 && fields[0] == "END":
			return regs, frames, strings.Join(fields[1:], " "), nil
		}
	}
	return nil, nil, "", io.ErrUnexpectedEOF
}

// TestOracle stops programs at many points and walks their stacks by our tables, as the
// kernel program does: gdb must find the same frames.
func TestOracle(t *testing.T) {
	harness.NeedRoot(t)
	harness.NeedTool(t, "gdb")
	const runs, steps = 20, 4
	programs := []struct {
		name string
		args []string
	}{
		{"bash", []string{"bash", "-c", `f() { if (($1 > 0)); then f $(($1 - 1)); else x=${x//a/b}$1; x=${x:0:40}; fi; }; while :; do f 12; a=("${b[@]/x/y}"); done`}},
		{"python3", []string{"/usr/bin/python3", "-c", "import json, re\ndef f(n):\n  return [n] if n == 0 else f(n - 1) + [n]\nwhile True:\n  t = json.dumps(sorted([f(i % 20) for i in range(50)], key=len)); re.sub(r'(\\d+), (\\d+)', r'\\2', t); json.loads(t)"}},
		{"perl", []string{"/usr/bin/perl", "-e", `sub f { my $n = shift; $n ? f($n - 1) . $n : "x" } while (1) { my @l = sort { $a cmp $b } map { f($_ % 30) } 1 .. 100; my $t = join ",", @l; $t =~ s/(\d)(\d+)/$2$1/g; }`}},
		{"sort", []string{"sort", "-R", "--parallel=1", "/dev/stdin"}},
		{"gzip", []string{"gzip", "-9", "-c"}},
		{"deep", []string{path(t, "deep-nofp"), "60", "-1", "100"}},
		{"shapes", []string{path(t, "shapes-nofp"), "60", "-1"}},
		{"signals", []string{path(t, "signals-nofp"), "60", "-1", "alt"}},
	}
	all, same := 0, 0
	for _, tt := range programs {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := exec.LookPath(tt.args[0]); err != nil {
				harness.SkipOrFail(t, "%s is missing", tt.args[0])
			}
			cmd := exec.Command(tt.args[0], tt.args[1:]...)
			switch tt.name {
			case "sort":
				cmd.Stdin = io.LimitReader(&lines{}, 30<<20)
			case "gzip":
				cmd.Stdin = &lines{}
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // it was killed
			})
			time.Sleep(100 * time.Millisecond)
			a, s := compare(t, cmd.Process.Pid, runs, steps)
			all, same = all+a, same+s
		})
	}
	t.Logf("%d of %d stacks are as gdb has them", same, all)
}

// compare compares stacks: after each run, and after steps from there on.
func compare(t *testing.T, pid, runs, steps int) (all, same int) {
	t.Helper()
	d := startDebugger(t, pid)
	mem, err := os.Open("/proc/" + strconv.Itoa(pid) + "/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	known := tables{}
	frames, longest, astray := 0, 0, 0
	for i := range runs * (steps + 1) {
		if i%(steps+1) == 0 {
			err = d.run(time.Duration(rand.IntN(20_000)) * time.Microsecond)
		} else {
			err = d.step(1 + rand.IntN(9))
		}
		if err != nil {
			t.Fatal(err)
		}
		regs, theirs, why, err := d.stack()
		if err != nil {
			t.Fatal(err)
		}
		w := &walker{mem: mem, tables: known}
		if w.maps, err = mapsOf(pid); err != nil {
			t.Fatal(err)
		}
		w.set(regs)
		ours, end := w.walk()
		all++
		frames += len(ours)
		longest = max(longest, len(ours))
		n := 0
		for n < min(len(ours), len(theirs)) && ours[n] == theirs[n] {
			n++
		}
		switch {
		case errors.Is(end, errWhole) && slices.Equal(ours, theirs):
			same++
		case n < len(theirs) && w.astray(theirs[n:]) && (!errors.Is(end, errWhole) || w.inContext()):
			astray++ // gdb goes on through what is no code, and we know better or not the way either
		default:
			t.Errorf("%d frames are the same, then\nours   %s, %v\ngdb's  %s, %s", n, w.describe(ours[max(n-1, 0):]), end, w.describe(theirs[max(n-1, 0):]), why)
		}
	}
	t.Logf("%d of %d stacks as gdb has them; %d frames, at most %d in one; %d in which gdb goes on through what is no code", same, all, frames, longest, astray)
	return all - astray, same
}

// inContext says whether the last frame is glibc's __start_context, whose call frame
// information gdb believes.
func (w *walker) inContext() bool {
	rule, err := w.rule(w.ip - 1)
	return err == nil && rule.CFA == unwind.CFAEnd && rule.Signal
}

// astray says whether there is a frame in no code.
func (w *walker) astray(frames []uint64) bool {
	return slices.ContainsFunc(frames, func(at uint64) bool {
		return !slices.ContainsFunc(w.maps, func(m memoryMap) bool { return at >= m.start && at <= m.end })
	})
}

func (w *walker) describe(frames []uint64) string {
	var b strings.Builder
	for _, at := range frames[:min(len(frames), 5)] {
		place := "?"
		for _, m := range w.maps {
			if at >= m.start && at < m.end {
				place = fmt.Sprintf("%s+%#x", m.path, at-m.start+m.offset)
			}
		}
		fmt.Fprintf(&b, "%#x (%s) ", at, place)
	}
	return b.String()
}

// lines are numbers without an end.
type lines struct{ n int }

func (l *lines) Read(p []byte) (int, error) {
	out := p[:0]
	for len(out)+24 < len(p) {
		l.n++
		out = strconv.AppendInt(out, int64(l.n)*7919%1_000_003, 10)
		out = append(out, '\n')
	}
	return len(out), nil
}
