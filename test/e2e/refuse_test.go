package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/test/harness"
)

func execCommand(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return cmd
}

// TestBadConfig gives the agent every wrong configuration there is: it must say the
// file, the line, the key and what was expected, and end with exit code 1.
func TestBadConfig(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "config/testdata/bad/*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no wrong configurations: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(strings.TrimSuffix(file, ".yml") + ".want")
			if err != nil {
				t.Fatal(err)
			}
			args := [][]string{{"check-config", file}}
			if strings.HasPrefix(filepath.Base(file), "unknown") {
				args = append(args, []string{"run", "--config.file", file})
			}
			for _, arg := range args {
				code, stdout, stderr := harness.RunAgent(t, 20*time.Second, arg...)
				if code != 1 {
					t.Errorf("%v: exit code %d, want 1", arg, code)
				}
				for line := range strings.Lines(string(want)) {
					if text := file + ":" + strings.TrimSpace(line); !strings.Contains(stdout+stderr, text) {
						t.Errorf("%v: no %q in:\n%s%s", arg, text, stdout, stderr)
					}
				}
			}
		})
	}
}

// TestGoodConfig has the agent accept what is right.
func TestGoodConfig(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "config/testdata/good/*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no configurations: %v", err)
	}
	t.Setenv("SPANFLAME_TEST_HOST", "here") // one of them refers to it
	for _, file := range files {
		if code, stdout, stderr := harness.RunAgent(t, 20*time.Second, "check-config", file); code != 0 {
			t.Errorf("%s: exit code %d: %s%s", file, code, stdout, stderr)
		}
	}
	code, _, stderr := harness.RunAgent(t, 20*time.Second, "check-config", filepath.Join(t.TempDir(), "none.yml"))
	if code != 1 || !strings.Contains(stderr, "none.yml") {
		t.Errorf("a file that is not there: exit code %d: %s", code, stderr)
	}
}

// TestUsage has wrong flags end with exit code 2.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"run", "--no-such-flag"}, {"no-such-command"}, {"record", "--duration", "soon"},
		{"record", "--pid", "0"}, {"record", "--pid", "abc"}, {"record", "--pid", "-1"}, {"record", "--service="},
		{"record", "--frequency", "0"}, {"record", "--frequency", "1.5"}, {"record", "--frequency", "1001"},
	} {
		code, stdout, stderr := harness.RunAgent(t, 20*time.Second, args...)
		if code != 2 {
			t.Errorf("%v: exit code %d, want 2: %s%s", args, code, stdout, stderr)
		}
	}
}

// TestRecordOutput has record write to what is no file that it may replace, and refuse
// what it cannot write to before it records.
func TestRecordOutput(t *testing.T) {
	harness.NeedRoot(t)
	dir := t.TempDir()
	device, fifo, target, link := filepath.Join(dir, "device"), filepath.Join(dir, "fifo"), filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil { // as /dev/null
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	piped := make(chan []byte, 1)
	go func() {
		b, err := os.ReadFile(fifo)
		if err != nil {
			t.Error(err)
		}
		piped <- b
	}()
	isPprof := func(what string, b []byte) {
		t.Helper()
		if _, err := pprof.ParseData(b); err != nil {
			t.Errorf("%s: %d bytes that are no pprof: %v", what, len(b), err)
		}
	}
	record := func(path string) (int, string, string) {
		t.Helper()
		return harness.RunAgent(t, 30*time.Second, "record", "--all", "--duration", "1s", "-o", path)
	}
	for _, path := range []string{device, fifo, link} {
		if code, _, stderr := record(path); code != 0 {
			t.Errorf("%s: exit code %d: %s", path, code, stderr)
		}
	}
	for path, want := range map[string]os.FileMode{device: os.ModeDevice | os.ModeCharDevice, fifo: os.ModeNamedPipe, link: os.ModeSymlink} {
		if st, err := os.Lstat(path); err != nil || st.Mode().Type() != want {
			t.Errorf("%s is no longer what it was: %v, %v", path, st, err)
		}
	}
	isPprof("the pipe", <-piped)
	b, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	isPprof("the file that a link points to", b)
	code, stdout, stderr := record("-")
	if code != 0 || !strings.Contains(stderr, " of CPU in ") {
		t.Errorf("to the standard output: exit code %d: %s", code, stderr)
	}
	isPprof("the standard output", []byte(stdout))

	for _, path := range []string{filepath.Join(dir, "none", "file"), dir, "/dev"} {
		code, stdout, stderr := record(path)
		if code != 1 || strings.Contains(stdout, " of CPU in ") || !strings.Contains(stderr, path+":") || strings.Contains(stderr, ".spanflame-") {
			t.Errorf("%s: exit code %d: %s%s", path, code, stdout, stderr)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".spanflame-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestNoPermission runs the agent as nobody: one clear message that names what is
// missing, and exit code 1.
func TestNoPermission(t *testing.T) {
	harness.NeedRoot(t) // to become somebody else
	harness.NeedTool(t, "setpriv")
	// Where nobody may execute it, wherever this tree is.
	dir, err := os.MkdirTemp("", "spanflame-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data, err := os.ReadFile(harness.AgentPath(t))
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "spanflame")
	if err := os.WriteFile(bin, data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"run"}, {"record", "--all", "--duration", "1s", "-o", filepath.Join(dir, "f")}} {
		t.Run(args[0], func(t *testing.T) {
			cmd := exec.Command("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", bin}, args...)...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("exit code %d (%v), want 1", code, err)
			}
			text := strings.TrimSpace(string(out))
			for _, want := range []string{"CAP_BPF", "CAP_PERFMON"} {
				if !strings.Contains(text, want) {
					t.Errorf("%s is not named", want)
				}
			}
			complaints := 0
			for line := range strings.Lines(text) {
				if strings.Contains(line, "CAP_BPF") {
					complaints++
				}
			}
			if complaints != 1 {
				t.Errorf("%d lines name CAP_BPF, want 1", complaints)
			}
			if strings.Contains(text, "goroutine ") {
				t.Error("it panicked")
			}
			t.Logf("it says:\n%s", text)
		})
	}
}

// TestPortInUse has another program on the agent's port.
func TestPortInUse(t *testing.T) {
	harness.NeedRoot(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := harness.WriteConfig(t, "server: { listen_address: ADDRESS }\nstore: { path: DIR/store }\n", "ADDRESS", l.Addr().String(), "DIR", t.TempDir())
	p := harness.Launch{Args: []string{"run", "--config.file", file}}.Start(t)
	if code := p.Wait(t, 30*time.Second); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if text := p.Stderr(); !strings.Contains(text, l.Addr().String()) || !strings.Contains(text, "in use") {
		t.Errorf("it does not say that the port is in use: %s", text)
	}
}

// TestDeadEndpoints pushes to a port where nobody listens, to a server that takes
// connections and never answers, and to one that only fails: sampling goes on, the
// store has it all, and every sample is accounted for.
func TestDeadEndpoints(t *testing.T) {
	harness.NeedRoot(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	go func() {
		for {
			c, err := mute.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	failing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "down", http.StatusServiceUnavailable)
	})}
	go srv.Serve(failing)
	defer srv.Close()

	urls := []string{"http://" + harness.FreeAddress(t), "http://" + mute.Addr().String(), "http://" + failing.Addr().String()}
	var writes strings.Builder
	writes.WriteString("\nwrite:\n")
	for i, u := range urls {
		fmt.Fprintf(&writes, "  - { name: dead%d, url: %q, remote_timeout: 5s }\n", i, u)
	}
	a := harness.StartAgent(t, "global: { push_interval: 3s }\n"+harness.WorkloadTargets+writes.String())
	from := time.Now().Add(-time.Second)
	time.Sleep(time.Second)
	w := harness.StartWorkload(t, "split", 15, 0)
	truth := w.Wait(t)
	p := read(t, a, `{service_name="split"}`, from, time.Now().Add(time.Minute), atLeast(nil, seconds(0.95*truth.Total)))
	harness.CheckTotal(t, "total", p.Time(nil), seconds(truth.Total), w.Ended().Sub(w.Started), time.Duration(p.Period))
	checkAccounts(t, a)
	m := a.Metrics(t)
	if n := len(m.By("spanflame_sink_samples_accepted_total", "sink")); n != len(urls)+1 {
		t.Errorf("%d sinks, want the store and %d endpoints", n, len(urls))
	}

	began := time.Now()
	if code := a.Stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("with dead endpoints it took %s to stop", took)
	}
	lines := 0
	for line := range strings.Lines(a.Stderr()) {
		if strings.Contains(line, "dead") {
			lines++
		}
	}
	if lines == 0 || lines > 60 {
		t.Errorf("%d lines in the log about endpoints that are dead for 18 s", lines)
	}
}

// TestCommands runs the commands that say something and end.
func TestCommands(t *testing.T) {
	harness.NeedRoot(t)
	t.Run("version", func(t *testing.T) {
		code, stdout, _ := harness.RunAgent(t, 20*time.Second, "version")
		if code != 0 || !strings.Contains(stdout, "spanflame") {
			t.Errorf("exit code %d: %s", code, stdout)
		}
	})
	t.Run("doctor", func(t *testing.T) {
		code, stdout, stderr := harness.RunAgent(t, 60*time.Second, "doctor")
		if code != 0 || len(strings.Split(stdout, "\n")) < 8 {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
		t.Log(stdout)
	})
	t.Run("targets", func(t *testing.T) {
		w := harness.StartWorkload(t, "split", 20, 0)
		file := harness.WriteConfig(t, harness.WorkloadTargets)
		code, stdout, stderr := harness.RunAgent(t, 30*time.Second, "targets", "--config.file", file, "--json")
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		var page struct {
			Processes []struct {
				PID         int    `json:"pid"`
				ServiceName string `json:"service_name"`
				Why         string `json:"why"`
			} `json:"processes"`
		}
		if err := json.Unmarshal([]byte(stdout), &page); err != nil {
			t.Fatalf("%v in %s", err, stdout)
		}
		found := false
		for _, p := range page.Processes {
			switch {
			case p.PID == w.PID:
				found = true
				if p.ServiceName != "split" {
					t.Errorf("the workload is %+v", p)
				}
			case p.PID == os.Getpid():
				if p.ServiceName != "" || p.Why == "" {
					t.Errorf("this test is no target, and why is to be said: %+v", p)
				}
			}
		}
		if !found {
			t.Errorf("process %d is not among the %d processes", w.PID, len(page.Processes))
		}
		code, stdout, _ = harness.RunAgent(t, 30*time.Second, "targets", "--config.file", file)
		if code != 0 || !strings.Contains(stdout, "split") {
			t.Errorf("exit code %d: %s", code, stdout)
		}
	})
	t.Run("record", func(t *testing.T) {
		w := harness.StartWorkload(t, "split", 20, 0)
		out := filepath.Join(t.TempDir(), "f.pb.gz")
		code, stdout, stderr := harness.RunAgent(t, 30*time.Second, "record", "--pid", fmt.Sprint(w.PID), "--duration", "2s", "-o", out)
		if code != 0 || !strings.Contains(stdout, "burn_a") || !strings.Contains(stdout, "burn_b") {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
		top, err := exec.Command("go", "tool", "pprof", "-top", out).CombinedOutput()
		if err != nil || !strings.Contains(string(top), "burn_a") {
			t.Errorf("go tool pprof: %v: %s", err, top)
		}
	})
	t.Run("record of a service that is not there", func(t *testing.T) {
		code, stdout, stderr := harness.RunAgent(t, 30*time.Second, "record", "--service", "none-such", "--duration", "1s", "-o", filepath.Join(t.TempDir(), "f"))
		if code != 1 || !strings.Contains(stderr, "none-such") || !strings.Contains(stderr, "spanflame targets") {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
	})
	t.Run("record to a folder that is not there", func(t *testing.T) {
		began := time.Now()
		code, stdout, stderr := harness.RunAgent(t, 30*time.Second, "record", "--duration", "20s", "-o", "/nonexistent/f")
		if code != 1 || !strings.Contains(stderr, "/nonexistent/f") || time.Since(began) > 10*time.Second {
			t.Errorf("exit code %d after %s: %s%s", code, time.Since(began), stdout, stderr)
		}
	})
	t.Run("no command", func(t *testing.T) {
		if code, stdout, _ := harness.RunAgent(t, 20*time.Second); code != 2 || !strings.Contains(stdout, "record") {
			t.Errorf("exit code %d: %s", code, stdout)
		}
	})
	t.Run("record of a process that is not there", func(t *testing.T) {
		code, stdout, stderr := harness.RunAgent(t, 30*time.Second, "record", "--pid", "2000000000", "--duration", "1s", "-o", filepath.Join(t.TempDir(), "f"))
		if code != 1 || !strings.Contains(stdout+stderr, "2000000000") {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
	})
}

// TestHostileNames runs a program whose file and threads have names that are no
// text: it is profiled, and the API goes on to answer for all.
func TestHostileNames(t *testing.T) {
	harness.NeedRoot(t)
	a := harness.StartAgent(t, "global: { push_interval: 1s }\nprofiles: { cpu: { thread: true, comm_frame: true } }\n")
	dir := filepath.Join(t.TempDir(), "we\nird\x1b[31m\xff\xfe\"dir")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "hostile\n\x1b\xff")
	if err := os.WriteFile(bin, sh, 0o755); err != nil {
		t.Fatal(err)
	}
	from := time.Now().Add(-time.Second)
	if out, err := exec.Command(bin, "-c", "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	read(t, a, `{service_name=~"(?s)hostile.*"}`, from, time.Now().Add(time.Minute), nil)
	for _, name := range []string{"service_name", "thread"} {
		body := fmt.Sprintf(`{"name":%q,"start":"%d","end":"%d"}`, name, from.UnixMilli(), time.Now().Add(time.Minute).UnixMilli())
		resp, err := http.Post(a.URL+"/querier.v1.QuerierService/LabelValues", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var values struct {
			Names []string `json:"names"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&values); err != nil || resp.StatusCode != http.StatusOK || len(values.Names) == 0 {
			t.Errorf("%s: %d, %v, %v", name, resp.StatusCode, values.Names, err)
		}
		resp.Body.Close()
	}
}
