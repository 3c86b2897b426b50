package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/config"
	"github.com/spanflame/spanflame/ebpfspy"
	"github.com/spanflame/spanflame/internal/ledger"
	"github.com/spanflame/spanflame/profile"
	"github.com/spanflame/spanflame/sd"
)

// RecordOptions say what to record, once.
type RecordOptions struct {
	PID       int           // one process, with those that it forks; 0: by Service
	Service   string        // the processes of one service; "": all
	Duration  time.Duration // how long
	Frequency int           // samples a second and CPU
	Threads   bool
	OffCPU    bool          // the time off the CPU as well
	Waker     bool          // who woke the thread
	MinBlock  time.Duration // from which length on all of it is sampled
	MaxEvents int           // stacks taken of it, a second and CPU
	Output    string        // file of the pprof, "" for none, "-" for the standard output
	JSON      bool          // print the account as JSON instead of the top
}

// MaxFrequency is the highest that can be recorded at, in samples a second and CPU.
const MaxFrequency = ebpfspy.MaxFrequency

// How many stacks are taken of the time off the CPU, a second and CPU.
const (
	DefaultMaxEvents = ebpfspy.DefaultMaxEvents
	MaxMaxEvents     = ebpfspy.MaxMaxEvents
)

// roundLength bounds how much a recording keeps in the kernel.
const roundLength = 5 * time.Second

// topLines is how many functions are printed.
const topLines = 20

// chooser takes the processes that are asked for as one target each service.
type chooser struct {
	opts RecordOptions
	host *sd.Manager
	one  *sd.Target
}

// FindTarget implements ebpfspy.TargetFinder.
func (c *chooser) FindTarget(p *sd.Process) (*sd.Target, string) {
	if c.opts.PID != 0 {
		if int(p.PID) == c.opts.PID || int(p.Parent) == c.opts.PID {
			return c.one, ""
		}
		return nil, "not the process that was asked for"
	}
	t, why := c.host.FindTarget(p)
	if t == nil {
		return nil, why
	}
	if c.opts.Service != "" && t.ServiceName() != c.opts.Service {
		return nil, "not the service that was asked for"
	}
	return c.one, ""
}

// Record profiles for a while, prints the functions that took most, and writes the
// pprof. Progress goes to progress; if the pprof goes to out, so does what is printed.
func Record(ctx context.Context, logger log.Logger, out, progress io.Writer, opts RecordOptions) (err error) {
	if err := checkCapabilities(); err != nil {
		return err
	}
	if opts.PID != 0 {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", opts.PID)); err != nil {
			return fmt.Errorf("record process %d: there is no such process", opts.PID)
		}
	}
	cfg := config.Default()
	host, err := sd.NewManager(logger, nil, sd.Options{})
	if err != nil {
		return fmt.Errorf("start discovery: %w", err)
	}
	defer host.Close()
	if err := host.ApplyConfig(cfg.TargetConfigs, cfg.Global.ExternalLabels); err != nil {
		return fmt.Errorf("start discovery: %w", err)
	}
	if opts.Service != "" {
		if err := anyOf(host, opts.Service); err != nil {
			return err
		}
	}
	var file, offFile *output
	var offPath string
	if opts.Output != "" {
		// Now, for it would be a pity to find out afterwards.
		if file, err = createOutput(opts.Output, out); err != nil {
			return err
		}
		if opts.Output == "-" {
			out = progress
		}
		defer func() { err = errors.Join(err, file.discard()) }()
		if opts.OffCPU {
			offPath = offCPUPath(opts.Output)
			if offFile, err = createOutput(offPath, out); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, offFile.discard()) }()
		}
	}
	name := opts.Service
	if name == "" {
		name = "all"
		if opts.PID != 0 {
			name = fmt.Sprintf("process %d", opts.PID)
		}
	}
	finder := &chooser{opts: opts, host: host, one: &sd.Target{Labels: labels.FromStrings(sd.ServiceNameLabel, name)}}
	sopts := sessionOptions(cfg)
	sopts.Frequency, sopts.Threads = opts.Frequency, opts.Threads
	sopts.Preload = true
	sopts.OffCPU.Enabled, sopts.OffCPU.MinBlock, sopts.OffCPU.Waker = opts.OffCPU, opts.MinBlock, opts.Waker
	sopts.OffCPU.MaxEvents = opts.MaxEvents
	account := ledger.New().Session()
	session, err := ebpfspy.NewSession(logger, nil, account, finder, sopts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	if err := session.Start(); err != nil {
		return fmt.Errorf("start profiling: %w", err)
	}

	builder := profile.NewBuilder(profile.CPU, finder.one.Labels, session.Scale())
	offCPU := profile.NewBuilder(profile.OffCPU, finder.one.Labels, 0)
	tops := topTable{}
	waits := waitTable{}
	begun := time.Now()
	builder.Cover(begun, begun)
	sampled := begun // until when samples were taken
	var off ebpfspy.OffCPUInfo
	collect := func() error {
		info, err := session.CollectProfiles(func(s *ebpfspy.Sample) {
			if s.Kind == ebpfspy.OffCPU {
				offCPU.Add(profileSample(s))
				waits.add(s)
				return
			}
			builder.Add(profileSample(s))
			tops.add(s, s.Time.Nanoseconds())
		})
		off.Add(info.OffCPU)
		if err == nil {
			sampled = info.Start.Add(info.Duration)
		}
		return err
	}
	end := time.NewTimer(opts.Duration)
	defer end.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	lastRound := begun
wait:
	for {
		select {
		case <-end.C:
			break wait
		case <-ctx.Done():
			break wait // what was recorded so far is what there is
		case <-tick.C:
			fmt.Fprintf(progress, "\rrecording %s: %d of %.0f s", name, int(time.Since(begun).Seconds()), opts.Duration.Seconds())
			if time.Since(lastRound) >= roundLength {
				lastRound = time.Now()
				if err := collect(); err != nil {
					return err
				}
			}
		}
	}
	if err := collect(); err != nil {
		return err
	}
	fmt.Fprintf(progress, "\r%60s\r", "")
	builder.Cover(begun, sampled)
	offCPU.Cover(begun, sampled)
	if file != nil {
		if err := file.write(builder); err != nil {
			return err
		}
	}
	if offFile != nil {
		if err := offFile.write(offCPU); err != nil {
			return err
		}
	}
	b := account.Balance()
	if opts.JSON {
		said := map[string]any{
			"taken": b.In, "profiled": b.Out, "dropped": b.Dropped, "file": opts.Output,
			"duration_seconds": sampled.Sub(begun).Seconds(),
		}
		if opts.OffCPU {
			said["off_cpu"], said["off_cpu_file"] = off, offPath
		}
		return json.NewEncoder(out).Encode(said)
	}
	if err := tops.print(out, name, b, sampled.Sub(begun), opts.Output); err != nil || !opts.OffCPU {
		return err
	}
	return waits.print(out, name, off, offPath)
}

// offCPUPath is the file of the time off the CPU beside that of the CPU's:
// NAME.off_cpu.pb.gz.
func offCPUPath(path string) string {
	for _, ext := range []string{".pb.gz", ".pprof", ".gz", ".pb"} {
		if name, ok := strings.CutSuffix(path, ext); ok {
			return name + ".off_cpu" + ext
		}
	}
	return path + ".off_cpu"
}

// waitTable adds up the time off the CPU by why.
type waitTable map[string]time.Duration

func (t waitTable) add(s *ebpfspy.Sample) {
	why := cmp.Or(s.Wait, "unknown")
	if s.Idle {
		why += " (idle)"
	}
	t[why] += s.Time
}

func (t waitTable) print(w io.Writer, name string, off ebpfspy.OffCPUInfo, file string) error {
	whys := slices.Sorted(maps.Keys(t))
	slices.SortStableFunc(whys, func(a, b string) int { return cmp.Compare(t[b], t[a]) })
	var total time.Duration
	for _, d := range t {
		total += d
	}
	fmt.Fprintf(w, "threads of %s were off their CPU for %s\n", name, total.Round(time.Millisecond))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, why := range whys {
		if t[why] < time.Millisecond/2 {
			continue // it would be a line of zeros
		}
		fmt.Fprintf(tw, "%s\t%.1f %%\t  %s\n", t[why].Round(time.Millisecond), 100*t[why].Seconds()/total.Seconds(), why)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d times, of which %d were sampled and stand for the others\n", off.Sampled+off.LeftOut, off.Sampled)
	if off.Untracked > 0 {
		fmt.Fprintf(w, "%d times of threads that there was no room for were left out\n", off.Untracked)
	}
	if file != "" {
		fmt.Fprintf(w, "their profile is in %s\n", file)
	}
	return nil
}

// anyOf fails if no process of this host is of the service.
func anyOf(host *sd.Manager, service string) error {
	processes, err := sd.ListProcesses("/proc")
	if err != nil {
		return fmt.Errorf("list the processes: %w", err)
	}
	for _, p := range processes {
		if t, _ := host.FindTarget(p); t != nil && t.ServiceName() == service {
			return nil
		}
	}
	return fmt.Errorf("record service %q: no process of this host belongs to it; `spanflame targets` lists what there is", service)
}

// output is where a profile goes: a file that is written whole or not at all, or what
// can only be written to, such as a pipe.
type output struct {
	path string
	to   io.Writer
	file *os.File // to be closed; nil: none
	name string   // of a temporary file that takes path's place, "" if there is none
	mode os.FileMode
}

// createOutput makes sure that a profile can be written before it is recorded.
func createOutput(path string, stdout io.Writer) (*output, error) {
	o := &output{path: path, mode: 0o644}
	if path == "-" {
		o.to = stdout
		return o, nil
	}
	fail := func(err error) (*output, error) {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err // it names the temporary file
		}
		return nil, fmt.Errorf("write the profile to %s: %w", path, err)
	}
	place := path
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		place = resolved
	}
	switch st, err := os.Stat(place); {
	case err == nil && st.IsDir():
		return fail(unix.EISDIR)
	case err == nil && !st.Mode().IsRegular():
		// A device or a pipe: written to, never replaced.
		f, err := os.OpenFile(place, os.O_WRONLY, 0)
		if err != nil {
			return fail(err)
		}
		o.to, o.file = f, f
		return o, nil
	case err == nil:
		o.mode = st.Mode().Perm()
	case !errors.Is(err, os.ErrNotExist):
		return fail(err)
	}
	f, err := os.CreateTemp(filepath.Dir(place), ".spanflame-*")
	if err != nil {
		return fail(err)
	}
	o.path, o.to, o.file, o.name = place, f, f, f.Name()
	return o, nil
}

func (o *output) write(b *profile.Builder) error {
	raw, err := b.Merged()
	if err == nil {
		_, err = o.to.Write(raw)
	}
	if o.name != "" {
		err = errors.Join(err, o.file.Chmod(o.mode))
	}
	if o.file != nil {
		err = errors.Join(err, o.file.Close())
		o.file = nil
	}
	if err == nil && o.name != "" {
		if err = os.Rename(o.name, o.path); err == nil {
			o.name = ""
		}
	}
	if err != nil {
		return fmt.Errorf("write the profile to %s: %w", o.path, err)
	}
	return nil
}

// discard removes what was not written.
func (o *output) discard() error {
	if o.file != nil {
		o.file.Close() // nothing of worth is in it
	}
	if o.name == "" {
		return nil
	}
	return os.Remove(o.name)
}

// topTable adds up what each function took.
type topTable map[string]*topEntry

type topEntry struct {
	name       string
	self, full int64
}

func (t topTable) add(s *ebpfspy.Sample, value int64) {
	seen := map[string]bool{}
	leaf := true
	for _, loc := range s.Stack {
		for i := range loc.Lines {
			name := loc.Lines[i].Function
			e := t[name]
			if e == nil {
				e = &topEntry{name: name}
				t[name] = e
			}
			if leaf {
				e.self += value
				leaf = false
			}
			if !seen[name] {
				seen[name] = true
				e.full += value
			}
		}
	}
}

func (t topTable) print(w io.Writer, name string, b ledger.Balance, took time.Duration, file string) error {
	list := make([]*topEntry, 0, len(t))
	var total int64
	for _, e := range t {
		list = append(list, e)
		total += e.self
	}
	slices.SortFunc(list, func(a, b *topEntry) int {
		return cmp.Or(cmp.Compare(b.self, a.self), cmp.Compare(b.full, a.full), cmp.Compare(a.name, b.name))
	})
	fmt.Fprintf(w, "%s used %s of CPU in %s (%d samples)\n", name, time.Duration(total).Round(10*time.Millisecond), took.Round(100*time.Millisecond), b.Out)
	if total > 0 {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(tw, "self\tself %%\ttotal\ttotal %%\t  function\n")
		for _, e := range list[:min(topLines, len(list))] {
			fmt.Fprintf(tw, "%s\t%.1f\t%s\t%.1f\t  %s\n",
				time.Duration(e.self).Round(time.Millisecond), 100*float64(e.self)/float64(total),
				time.Duration(e.full).Round(time.Millisecond), 100*float64(e.full)/float64(total), printable(e.name))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	for r, n := range b.Dropped {
		if r != ledger.NoTarget {
			fmt.Fprintf(w, "%d samples were dropped: %s\n", n, r)
		}
	}
	if file != "" && file != "-" {
		fmt.Fprintf(w, "the profile is in %s (go tool pprof %s)\n", file, file)
	}
	return nil
}

// printable keeps what a target named from driving the terminal.
func printable(s string) string {
	out := []rune(s)
	for i, r := range out {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			out[i] = '?'
		}
	}
	if len(out) > 200 {
		return string(out[:200]) + "…"
	}
	return string(out)
}
