package pyroserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// startTimeout is how long the server may take until it takes pushes.
const startTimeout = 30 * time.Second

// process is the child. It exits by itself when its standard input closes, so
// that it does not outlive a test that is killed.
type process struct {
	bin, dir string
	opts     Options
	url      string // known after the first start

	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{} // closed when cmd was waited for
	said   *output

	killed  bool // by us
	crashed bool // it was found to have ended by itself
}

func (p *process) start() error {
	ready := filepath.Join(p.dir, "ready")
	if err := os.Remove(ready); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listen := "127.0.0.1:0"
	if p.url != "" {
		listen = strings.TrimPrefix(p.url, "http://")
	}
	args := []string{"-listen", listen, "-ready-file", ready, "-data", filepath.Join(p.dir, "data"), "-exit-with-stdin"}
	if p.opts.Tenant != "" {
		args = append(args, "-tenants")
	}
	if p.opts.RateMB > 0 {
		args = append(args, "-rate-mb", strconv.FormatFloat(p.opts.RateMB, 'f', -1, 64))
	}
	if p.opts.BurstMB > 0 {
		args = append(args, "-burst-mb", strconv.FormatFloat(p.opts.BurstMB, 'f', -1, 64))
	}

	p.cmd = exec.Command(p.bin, args...)
	p.said = &output{}
	p.cmd.Stderr = p.said
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	p.stdin = in
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", p.bin, err)
	}
	p.killed = false
	exited := make(chan struct{})
	p.exited = exited
	go func() {
		_ = p.cmd.Wait()
		close(exited)
	}()

	deadline := time.After(startTimeout)
	for {
		if b, err := os.ReadFile(ready); err == nil {
			p.url = string(b)
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("%s ended before it was ready: %s", p.bin, p.said.String())
		case <-deadline:
			p.kill()
			return fmt.Errorf("%s was not ready after %s: %s", p.bin, startTimeout, p.said.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends the child and waits for it. It may be called again.
func (p *process) kill() {
	if p.cmd == nil || p.cmd.Process == nil || p.killed {
		return
	}
	p.killed = true
	select {
	case <-p.exited: // by itself, which it never should
		p.crashed = true
	default:
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
	_ = p.stdin.Close()
}

// output keeps the beginning of what the child says.
type output struct {
	mu sync.Mutex
	b  []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const keep = 8192 // of the beginning, where a panic has its reason
	if room := keep - len(o.b); room > 0 {
		o.b = append(o.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(bytes.TrimSpace(o.b))
}
