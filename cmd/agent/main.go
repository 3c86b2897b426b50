// Command spanflame profiles a Linux host: see `spanflame --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/prometheus/common/version"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/agent"
	"github.com/spanflame/spanflame/config"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	app := kingpin.New("spanflame", "A continuous profiler for Linux hosts: CPU time by function, of every process, with nothing changed or restarted.")
	app.HelpFlag.Short('h')
	app.Version(version.Print("spanflame"))
	app.UsageWriter(stdout).ErrorWriter(stderr)
	exited := -1
	app.Terminate(func(code int) { exited = code })
	logLevel := app.Flag("log.level", "Which messages to log: debug, info, warn or error.").Default("info").Enum("debug", "info", "warn", "error")
	logFormat := app.Flag("log.format", "How to log: logfmt or json.").Default("logfmt").Enum("logfmt", "json")

	runCmd := app.Command("run", "Profile this host until it is told to stop. With no configuration: all processes, a store of its own, and a page at http://127.0.0.1:4041.")
	runConfig := runCmd.Flag("config.file", "The configuration file.").PlaceHolder("FILE").String()

	record := app.Command("record", "Profile once, print the functions that took most, and write a pprof file.")
	var ro agent.RecordOptions
	var serviceSet bool
	record.Flag("pid", "One process, with its children.").PlaceHolder("N").SetValue(whole{"--pid", &ro.PID, 1, math.MaxInt32})
	record.Flag("service", "The processes of one service.").PlaceHolder("NAME").IsSetByUser(&serviceSet).StringVar(&ro.Service)
	all := record.Flag("all", "All processes of this host (the default).").Bool()
	record.Flag("duration", "How long.").Default("10s").DurationVar(&ro.Duration)
	record.Flag("frequency", "Samples a second and CPU.").Default("97").SetValue(whole{"--frequency", &ro.Frequency, 1, agent.MaxFrequency})
	record.Flag("threads", "Keep threads apart, under the label thread.").BoolVar(&ro.Threads)
	record.Flag("output", "The pprof file to write; - for the standard output.").Short('o').Default("spanflame.pb.gz").StringVar(&ro.Output)
	record.Flag("json", "Print the account of the samples as JSON.").BoolVar(&ro.JSON)
	record.Flag("off-cpu", "The time off the CPU as well: in a second file, NAME.off_cpu.pb.gz.").BoolVar(&ro.OffCPU)
	record.Flag("waker", "With --off-cpu: who woke the thread, above its stack.").BoolVar(&ro.Waker)
	record.Flag("min-block", "Sample each time off the CPU from this length on, and shorter ones in proportion to it.").Default("1ms").DurationVar(&ro.MinBlock)
	record.Flag("max-events", "With --off-cpu: how many stacks are taken, a second and CPU. They stand for all.").Default(strconv.Itoa(agent.DefaultMaxEvents)).SetValue(whole{"--max-events", &ro.MaxEvents, 10, agent.MaxMaxEvents})

	targets := app.Command("targets", "Say what each process would be profiled as, and why not if not.")
	targetsConfig := targets.Flag("config.file", "The configuration file.").PlaceHolder("FILE").String()
	targetsJSON := targets.Flag("json", "Print JSON.").Bool()

	check := app.Command("check-config", "Check a configuration file.")
	checkFile := check.Arg("file", "The configuration file.").Required().String()

	app.Command("doctor", "Say what works on this host, what does not, and what to do about it.")
	app.Command("version", "Print the version.")

	if len(args) == 0 {
		app.Usage(nil)
		return exitUsage
	}
	cmd, err := app.Parse(args)
	if exited >= 0 {
		return exited // --help
	}
	if err != nil {
		return usage(stderr, err)
	}
	logger := newLogger(stderr, *logFormat, *logLevel)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()

	switch cmd {
	case "run":
		err = runAgent(ctx, logger, *runConfig)
	case "record":
		if ro.Output == "" && slices.Contains(args, "-") {
			ro.Output = "-" // which kingpin takes for an empty value
		}
		switch {
		case ro.Output == "":
			return usage(stderr, errors.New("--output is empty"))
		case ro.OffCPU && ro.Output == "-":
			return usage(stderr, errors.New("--off-cpu writes two files, which the standard output cannot take: name one with --output"))
		case ro.MinBlock < 0 || ro.MinBlock > time.Minute:
			return usage(stderr, fmt.Errorf("--min-block is %s, want 0s to 1m", ro.MinBlock))
		case ro.Duration < 100*time.Millisecond || ro.Duration > time.Hour:
			return usage(stderr, fmt.Errorf("--duration is %s, want 100ms to 1h", ro.Duration))
		case serviceSet && ro.Service == "":
			return usage(stderr, errors.New("--service is empty; leave it out, or say --all, to record all processes"))
		case ro.PID != 0 && ro.Service != "" || *all && (ro.PID != 0 || ro.Service != ""):
			return usage(stderr, errors.New("--pid, --service and --all exclude one another"))
		}
		err = agent.Record(ctx, logger, stdout, stderr, ro)
	case "targets":
		err = withConfig(*targetsConfig, func(c *config.Config) error {
			return agent.ListTargets(ctx, logger, stdout, c, *targetsJSON)
		})
	case "check-config":
		if _, err = config.Load(*checkFile); err == nil {
			fmt.Fprintf(stdout, "%s is right\n", *checkFile)
		}
	case "doctor":
		return examine(stdout, stderr)
	case "version":
		fmt.Fprintln(stdout, version.Print("spanflame"))
	}
	if err != nil {
		fmt.Fprintf(stderr, "spanflame: %v\n", err)
		return exitFailed
	}
	return 0
}

// whole is a flag for a whole number within bounds.
type whole struct {
	name     string
	to       *int
	min, max int
}

func (w whole) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < w.min || n > w.max {
		return fmt.Errorf("%s is %.40q, want a whole number from %d to %d", w.name, s, w.min, w.max)
	}
	*w.to = n
	return nil
}

func (w whole) String() string { return strconv.Itoa(*w.to) }

func usage(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "spanflame: %v; try spanflame --help\n", err)
	return exitUsage
}

func examine(stdout, stderr io.Writer) int {
	code, err := agent.Doctor(stdout)
	if err != nil {
		fmt.Fprintf(stderr, "spanflame: %v\n", err)
		return exitFailed
	}
	return code
}

// withConfig calls f with the configuration, which is the default one without a file.
func withConfig(file string, f func(*config.Config) error) error {
	cfg := config.Default()
	if file != "" {
		var err error
		if cfg, err = config.Load(file); err != nil {
			return err
		}
	}
	return f(cfg)
}

func runAgent(ctx context.Context, logger log.Logger, file string) error {
	return withConfig(file, func(cfg *config.Config) error {
		a, err := agent.New(logger, cfg, file)
		if err != nil {
			return err
		}
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, unix.SIGHUP)
		defer signal.Stop(hup)
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-ctx.Done():
					return
				case <-hup:
					if err := a.Reload(ctx); err != nil {
						level.Error(logger).Log("msg", "the configuration was not changed", "err", err)
					}
				}
			}
		}()
		err = a.Run(ctx)
		cancel()
		<-done
		return err
	})
}

func newLogger(w io.Writer, format, lvl string) log.Logger {
	w = log.NewSyncWriter(w)
	l := log.NewLogfmtLogger(w)
	if format == "json" {
		l = log.NewJSONLogger(w)
	}
	l = level.NewFilter(l, level.Allow(level.ParseDefault(lvl, level.InfoValue())))
	return log.With(l, "ts", log.DefaultTimestampUTC)
}
