package truth

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/spanflame/spanflame/test/harness"
)

// EnvPythons names further interpreters to test, as paths separated by colons.
const EnvPythons = "SPANFLAME_TEST_PYTHONS"

// interpreter is a CPython to test. With a root, it runs there as a container's would.
type interpreter struct{ name, path, root string }

// interpreters are those of Debian's suites that scripts/test-pythons.sh has unpacked, and
// those of EnvPythons.
func interpreters(t *testing.T) []interpreter {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	var out []interpreter
	for suite, version := range map[string]string{"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13", "sid": "3.14"} {
		out = append(out, interpreter{"debian-" + version, "/usr/bin/python" + version, filepath.Join(root, ".cache", "pythons", suite, "files")})
	}
	for _, path := range filepath.SplitList(os.Getenv(EnvPythons)) {
		out = append(out, interpreter{strings.Trim(strings.ReplaceAll(path, "/", "-"), "-"), path, ""})
	}
	return out
}

// program is a running Python program of test/truth/workloads/python.
type program struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

// start runs a program until it says that it is ready.
func (i interpreter) start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	if _, err := os.Stat(filepath.Join(i.root, i.path)); err != nil {
		harness.SkipOrFail(t, "%s is not there (scripts/test-pythons.sh): %v", i.name, err)
	}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(root, "test", "truth", "workloads", "python", name))
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), name)
	cmd := exec.Command(i.path, append([]string{"-X", "utf8", script}, args...)...)
	file := script
	if i.root != "" {
		script = "/" + name
		file = filepath.Join(i.root, name)
		cmd = exec.Command("chroot", append([]string{i.root, i.path, "-X", "utf8", script}, args...)...)
	}
	if err := os.WriteFile(file, source, 0o644); err != nil {
		t.Fatal(err)
	}
	return startProgram(t, cmd)
}

// startProgram runs a command until it says that it is ready.
func startProgram(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{cmd: cmd}
	cmd.Stderr = os.Stderr
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(stdout)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := p.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%s said %q: %v", cmd, line, err)
	}
	return p
}

// goOn lets it do its work.
func (p *program) goOn(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.stdin, "\n"); err != nil {
		t.Fatal(err)
	}
}

// says reads what it says of its work, when it is done.
func (p *program) says(t *testing.T, v any) {
	t.Helper()
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		t.Fatalf("the program said %.200s: %v", line, err)
	}
}

// pyFrame is a frame as the interpreter's own traceback has it: name, file, line.
type pyFrame struct {
	name, file string
	line       int64
}

func (f *pyFrame) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&f.name, &f.file, &f.line})
}

func (f pyFrame) String() string {
	return fmt.Sprintf("%.60s (%s:%d)", f.name, filepath.Base(f.file), f.line)
}

func pyFrames(s *pprof.Sample) []pyFrame {
	var out []pyFrame
	for _, l := range s.Location {
		for _, line := range l.Line {
			if l.Mapping != nil || line.Function.Filename == "" {
				continue // native, such as the modules in C that a coroutine is called by
			}
			out = append(out, pyFrame{line.Function.Name, line.Function.Filename, line.Line})
		}
	}
	return out
}

func same(a, b []pyFrame) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestPythonStacks compares stacks with what the interpreter itself says of them, at points
// of many kinds: generators, coroutines, threads, calls from C, names of all alphabets.
func TestPythonStacks(t *testing.T) {
	harness.NeedRoot(t)
	for _, i := range interpreters(t) {
		t.Run(i.name, func(t *testing.T) {
			p := i.start(t, "stacks.py", "0.7")
			rec := harness.StartRecord(t, 5*time.Minute, "--pid", strconv.Itoa(p.cmd.Process.Pid))
			rec.WaitBegun(t)
			p.goOn(t)
			var truth struct {
				Points map[string]struct {
					Frames []pyFrame
					CPU    float64
				}
				Version []int
				CPU     float64
			}
			p.says(t, &truth)
			profile, account := rec.Stop(t)
			if account.Lost() != 0 {
				t.Errorf("samples were dropped: %v", account.Dropped)
			}

			var all, cut, burning, wrong float64
			found := map[string]float64{}
			mistakes := map[string]float64{}
			rootless := map[string]float64{} // stacks whose root is native, by that
			for _, s := range profile.Sample {
				n := profile.Samples(func(o *pprof.Sample) bool { return o == s })
				all += n
				if harness.Cut(harness.Frames(s)) != "" {
					cut += n
				}
				if last := s.Location[len(s.Location)-1]; last.Mapping != nil || last.Line[0].Function.Filename == "" {
					rootless[last.Line[0].Function.Name] += n
				}
				frames := pyFrames(s)
				at := -1
				for k, f := range frames {
					if f.name == "burn" && strings.HasSuffix(f.file, "stacks.py") {
						at = k
						break
					}
				}
				if at < 0 {
					continue
				}
				burning += n
				known := false
				for name, point := range truth.Points {
					if same(frames[at+1:], point.Frames[1:]) {
						found[name] += n
						known = true
					}
				}
				if !known {
					wrong += n
					mistakes[fmt.Sprint(frames[at:])] += n
				}
			}
			t.Logf("version %v: %.0f samples, %.0f at known points, %.0f of them with another stack, %.0f not whole", truth.Version, all, burning, wrong, cut)
			if cut > all*0.005 {
				t.Errorf("%.0f of %.0f stacks are not whole: %v", cut, all, profile.Ends(nil))
			}
			if wrong > burning*0.005 {
				t.Errorf("%.0f of %.0f stacks are not what the interpreter says", wrong, burning)
				for m, n := range mistakes {
					t.Logf("%5.0f  %s", n, m)
				}
			}
			if len(rootless) > 0 {
				t.Errorf("stacks begin with native frames: %v", rootless)
			}
			for name, point := range truth.Points {
				harness.CheckShare(t, name, found[name], burning, point.CPU/sum(truth.Points))
				if found[name] == 0 {
					t.Logf("%s is %v", name, point.Frames)
				}
			}
		})
	}
}

func sum(points map[string]struct {
	Frames []pyFrame
	CPU    float64
}) float64 {
	var s float64
	for _, p := range points {
		s += p.CPU
	}
	return s
}

// TestPythonSplit profiles programs that burn 70 % of a CPU in one function and 30 % in
// another.
func TestPythonSplit(t *testing.T) {
	harness.NeedRoot(t)
	for _, i := range interpreters(t) {
		t.Run(i.name, func(t *testing.T) {
			p := i.start(t, "split.py", "10")
			rec := harness.StartRecord(t, time.Minute, "--pid", strconv.Itoa(p.cmd.Process.Pid))
			rec.WaitBegun(t)
			p.goOn(t)
			var truth struct {
				Functions map[string]float64
				Total     float64
			}
			p.says(t, &truth)
			profile, account := rec.Stop(t)
			if account.Lost() != 0 {
				t.Errorf("samples were dropped: %v", account.Dropped)
			}
			a, b := profile.Samples(harness.InFunction("burn_a")), profile.Samples(harness.InFunction("burn_b"))
			harness.CheckShare(t, "burn_a", a, a+b, truth.Functions["burn_a"]/(truth.Functions["burn_a"]+truth.Functions["burn_b"]))
			whole := profile.Ends(nil)[""]
			if all := profile.Samples(nil); whole < all*0.995 {
				t.Errorf("%.0f of %.0f stacks are whole: %v", whole, all, profile.Ends(nil))
			}
		})
	}
}

// TestPythonGone profiles programs that have ended before their functions' names are asked
// for.
func TestPythonGone(t *testing.T) {
	harness.NeedRoot(t)
	for _, i := range interpreters(t) {
		t.Run(i.name, func(t *testing.T) {
			p := i.start(t, "stacks.py", "1", "nested", "größe")
			rec := harness.StartRecord(t, time.Minute, "--pid", strconv.Itoa(p.cmd.Process.Pid))
			rec.WaitBegun(t)
			p.goOn(t)
			var truth struct {
				Points map[string]struct{ Frames []pyFrame }
			}
			p.says(t, &truth)
			_ = p.stdin.Close()
			if err := p.cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			profile, _ := rec.Stop(t)
			for name, point := range truth.Points {
				n := profile.Samples(func(s *pprof.Sample) bool {
					frames := pyFrames(s)
					return len(frames) > 0 && same(frames[1:], point.Frames[1:])
				})
				if n < 85 {
					t.Errorf("%s has %.0f samples in the second that it took", name, n)
				}
			}
			if t.Failed() {
				t.Log(profile.Describe(nil))
			}
		})
	}
}

// TestPythonWaits profiles the time that a thread is off its CPU, by its Python functions.
func TestPythonWaits(t *testing.T) {
	harness.NeedRoot(t)
	for _, i := range interpreters(t) {
		t.Run(i.name, func(t *testing.T) {
			p := i.start(t, "waits.py", "6")
			rec := harness.StartRecord(t, time.Minute, "--pid", strconv.Itoa(p.cmd.Process.Pid), harness.OffCPUFlag)
			rec.WaitBegun(t)
			p.goOn(t)
			var truth map[string]float64
			p.says(t, &truth)
			_, account := rec.Stop(t)
			off := rec.OffCPU(t)
			// Before 3.11, time.sleep is select without any files.
			for name, waits := range map[string][]string{"sleeping": {harness.WaitSleep, harness.WaitPoll}, "locked": {harness.WaitLock}} {
				got := off.Time(func(s *pprof.Sample) bool {
					frames := pyFrames(s)
					return len(frames) > 2 && frames[0].name == name && frames[1].name == "loop" &&
						len(s.Label[harness.WaitLabel]) == 1 && slices.Contains(waits, s.Label[harness.WaitLabel][0])
				})
				want := seconds(truth[name])
				sigma := harness.EstimateError(want, off.Time(nil), account.OffCPU.Sampled)
				harness.CheckNear(t, name, got, want, want/50+3*sigma)
			}
			if t.Failed() {
				for _, s := range off.Sample {
					t.Log(s.Value, s.Label, harness.Frames(s))
				}
			}
		})
	}
}

// TestPythonHostile profiles programs that have in their memory what no interpreter has.
func TestPythonHostile(t *testing.T) {
	harness.NeedRoot(t)
	fake, err := harness.WorkloadPath("fakepython")
	if err != nil {
		t.Fatal(err)
	}
	newer, err := harness.WorkloadPath("fakenewer")
	if err != nil {
		t.Fatal(err)
	}
	// A program that is called python and is none of it.
	named := filepath.Join(t.TempDir(), "python3.11")
	split, err := harness.WorkloadPath("split")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(split, named); err != nil {
		if err = os.Symlink(split, named); err != nil {
			t.Fatal(err)
		}
	}
	const native = "_PyEval_EvalFrameDefault main"
	tests := []hostile{
		{fake, "", "leaf root", ""},
		{fake, "cycle", "leaf root leaf", "broken_chain"},
		{fake, "self", "leaf", "broken_chain"},
		{fake, "long cycle", "", "broken_chain"},
		{fake, "endless", "", "too_deep"},
		{fake, "frame", "leaf root", "bad_memory"},
		{fake, "odd frame", "leaf root", "broken_chain"},
		{fake, "code", "leaf", "bad_memory"},
		{fake, "end of page", "leaf root", "bad_memory"},
		{fake, "threads", native, ""},
		{fake, "interpreters", native, ""},
		{fake, "length", "leaf [python]", ""},
		{fake, "large", "", ""},
		{fake, "kind", "leaf [python]", ""},
		{fake, "string", "leaf [python]", ""},
		{fake, "text", "", ""},
		{fake, "lines", "leaf root", ""},
		{newer, "", native, ""},
	}
	for _, tt := range tests {
		t.Run(filepath.Base(tt.program)+" "+tt.how, func(t *testing.T) {
			rec := tt.profile(t, 0.5)
			if said := strings.Count(rec.Stderr(), "CPython 3.16.0: only 3.8 to 3.14 can be read"); tt.program == newer && said != 1 {
				t.Errorf("it is said %d times that the version is not known:\n%s", said, rec.Stderr())
			}
		})
	}
	t.Run("named python", func(t *testing.T) {
		w := harness.StartProgram(t, named, "5", "0")
		profile, _ := harness.StartRecord(t, 2*time.Second, "--pid", strconv.Itoa(w.PID)).Wait(t)
		checkWhole(t, profile, harness.InFunction("main"))
		w.Kill()
	})
}

// hostile is a program that has in its memory what no interpreter has.
type hostile struct {
	program, how string
	want         string // its frames, innermost first; "": any
	end          string // why they are cut
}

// profile profiles the program while it burns CPU time.
func (tt hostile) profile(t *testing.T, seconds float64) *harness.Recording {
	t.Helper()
	p := startProgram(t, exec.Command(tt.program, tt.how, strconv.FormatFloat(seconds, 'f', -1, 64)))
	rec := harness.StartRecord(t, time.Minute, "--pid", strconv.Itoa(p.cmd.Process.Pid))
	rec.WaitBegun(t)
	p.goOn(t)
	p.says(t, &struct{}{})
	profile, account := rec.Stop(t)
	if account.Lost() != 0 {
		t.Errorf("samples were dropped: %v", account.Dropped)
	}
	ends := profile.Ends(nil)
	if all := profile.Samples(nil); all < 30 || ends[tt.end] < 0.9*all {
		t.Errorf("of %.0f stacks are cut: %v; want nearly all %q", all, ends, tt.end)
	}
	if tt.want == "" {
		return rec
	}
	good := profile.Samples(func(s *pprof.Sample) bool {
		return strings.Contains(" "+strings.Join(harness.Frames(s), " ")+" ", " "+tt.want+" ")
	})
	if good < 0.9*profile.Samples(nil) {
		t.Error(profile.Describe(nil))
	}
	return rec
}

// TestStaticPython profiles frames of Python's kind on kernels where there is no Python.
func TestStaticPython(t *testing.T) {
	harness.NeedRoot(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("Python frames are read on amd64 only")
	}
	fake, err := harness.WorkloadPath("fakepython-static")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []hostile{
		{fake, "", "leaf root", ""},
		{fake, "cycle", "leaf root leaf", "broken_chain"},
		{fake, "endless", "", "too_deep"},
		{fake, "frame", "leaf root", "bad_memory"},
		{fake, "interpreters", "_PyEval_EvalFrameDefault main", ""},
		{fake, "large", "", ""},
		{fake, "kind", "leaf [python]", ""},
	} {
		t.Run(tt.how, func(t *testing.T) { tt.profile(t, 3) })
	}
}
