package harness

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is the agent, running with some sub-command.
type Process struct {
	PID     int
	Started time.Time

	cmd      *exec.Cmd
	out, err output
	done     chan struct{} // closed when it was waited for
	ended    time.Time
	code     int
}

// output keeps what a process says, up to a bound, while it can be read.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

const maxOutput = 4 << 20

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if room := maxOutput - o.buf.Len(); room > 0 {
		o.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Launch says how the agent is started.
type Launch struct {
	// Args follow the program's name.
	Args []string
	// Prefix is a program that executes the agent, with its arguments, e.g. setpriv.
	Prefix []string
	// Env is added to the environment.
	Env []string
	// Stdout, if not nil, gets what the agent prints besides.
	Stdout io.Writer
}

// Start starts the agent. It is killed when the test ends, if it still runs; what
// it said is logged if the test failed.
func (l Launch) Start(t TB) *Process {
	t.Helper()
	args := append(append([]string{}, l.Prefix...), AgentPath(t))
	args = append(args, l.Args...)
	p := &Process{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), l.Env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if l.Stdout != nil {
		p.cmd.Stdout = io.MultiWriter(&p.out, l.Stdout)
	}
	// Not in the group of the test: Ctrl-C is for the test to pass on.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.Started = time.Now()
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %v: %v", args, err)
	}
	p.PID = p.cmd.Process.Pid
	go func() {
		err := p.cmd.Wait()
		p.ended = time.Now()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit):
			p.code = exit.ExitCode()
		default:
			p.code = -1
		}
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%v said:\n%s%s", args[1:], tail(p.out.String()), tail(p.err.String()))
		}
	})
	return p
}

// tail is the end of a long text.
func tail(s string) string {
	const keep = 8000
	if len(s) > keep {
		return "…" + s[len(s)-keep:]
	}
	return s
}

// Stdout is what the process has printed so far.
func (p *Process) Stdout() string { return p.out.String() }

// Stderr is what the process has logged so far.
func (p *Process) Stderr() string { return p.err.String() }

// Signal sends a signal.
func (p *Process) Signal(t TB, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("send %s: %v", s, err)
	}
}

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait waits for the end and returns the exit code, -1 if a signal ended it.
func (p *Process) Wait(t TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.code
	case <-time.After(limit):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // the goroutines' stacks
		time.Sleep(time.Second)
		t.Fatalf("the agent does not end within %s", limit)
		return -1
	}
}

// RunAgent runs the agent to its end.
func RunAgent(t TB, limit time.Duration, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := Launch{Args: args}.Start(t)
	code = p.Wait(t, limit)
	return code, p.Stdout(), p.Stderr()
}

// Eventually waits until f returns nil.
func Eventually(t TB, limit time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		time.Sleep(25 * time.Millisecond)
	}
}
