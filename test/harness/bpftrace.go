package harness

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

//go:embed offcpu.bt
var offCPUScript []byte

// Bpftrace is a running bpftrace that adds up the off-CPU time of a process's threads.
type Bpftrace struct {
	cmd      *exec.Cmd
	out, err output
	done     chan struct{} // closed when it was waited for
}

// BpftraceThread is what bpftrace says of a thread.
type BpftraceThread struct {
	OffCPU, RunQueue time.Duration
	Switches         int
}

// StartBpftrace starts bpftrace and waits until its probes are there. It skips the test if
// bpftrace is missing, or does not run on this kernel.
func StartBpftrace(t TB, pid int) *Bpftrace {
	t.Helper()
	NeedRoot(t)
	program := NeedTool(t, "bpftrace")
	script := filepath.Join(t.TempDir(), "offcpu.bt")
	if err := os.WriteFile(script, offCPUScript, 0o600); err != nil {
		t.Fatal(err)
	}
	b := &Bpftrace{cmd: exec.Command(program, "-f", "json", script, strconv.Itoa(pid)), done: make(chan struct{})}
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.err
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = b.cmd.Wait() // what it printed says whether it worked
		close(b.done)
	}()
	t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		<-b.done
	})
	began := time.Now()
	for !bytes.Contains([]byte(b.out.String()), []byte("attached_probes")) {
		select {
		case <-b.done:
			SkipOrFail(t, "bpftrace refuses: %s%s", tail(b.err.String()), tail(b.out.String()))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Since(began) > 20*time.Second {
			SkipOrFail(t, "bpftrace has attached nothing after 20 s: %s", tail(b.err.String()))
		}
	}
	time.Sleep(200 * time.Millisecond) // it says so before it does so
	return b
}

// Stop ends bpftrace and returns the sums by thread id.
func (b *Bpftrace) Stop(t TB) map[int]BpftraceThread {
	t.Helper()
	if err := b.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.done:
	case <-time.After(20 * time.Second):
		t.Fatal("bpftrace does not end")
	}
	maps := map[string]map[string]int64{}
	for _, line := range bytes.Split([]byte(b.out.String()), []byte("\n")) {
		var one struct {
			Data map[string]map[string]int64 `json:"data"`
		}
		if json.Unmarshal(line, &one) == nil { // else it is no map
			for name, data := range one.Data {
				maps[name] = data
			}
		}
	}
	out := map[int]BpftraceThread{}
	for tid, ns := range maps["@off_cpu"] {
		id, err := strconv.Atoi(tid)
		if err != nil {
			t.Fatalf("bpftrace printed the thread %q", tid)
		}
		out[id] = BpftraceThread{
			OffCPU: time.Duration(ns), RunQueue: time.Duration(maps["@run_queue"][tid]), Switches: int(maps["@switches"][tid]),
		}
	}
	if len(out) == 0 {
		t.Fatalf("bpftrace saw no thread: %s%s", tail(b.err.String()), tail(b.out.String()))
	}
	return out
}
