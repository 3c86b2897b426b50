package ebpfspy

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	lostRecords       prometheus.Counter
	lostProcessEvents prometheus.Counter
	repairs           prometheus.Counter
	mismatches        prometheus.Counter
	roundSeconds      prometheus.Histogram
	roundStacks       prometheus.Gauge
	stackEnds         *prometheus.CounterVec
	executableEnds    *prometheus.CounterVec
	offCPU            *prometheus.CounterVec
	processes         prometheus.Gauge
	files             prometheus.Gauge
	locations         prometheus.Gauge
	processOverflow   prometheus.Gauge
	mapBytes          prometheus.Gauge
	tables            prometheus.Gauge
	tableBytes        prometheus.Gauge
	tableRows         prometheus.Counter
	tableSeconds      prometheus.Histogram
	tablesEvicted     prometheus.Counter
	tablesDenied      prometheus.Counter
	tableErrors       prometheus.Counter
	madePrograms      prometheus.Gauge
	madeBytes         prometheus.Gauge
	madeEvicted       prometheus.Counter
	madeFlushed       prometheus.Counter
	madeRefused       *prometheus.CounterVec
	madeFrames        *prometheus.CounterVec
	pythonFunctions   prometheus.Gauge
	pythonFull        prometheus.Counter
	pythonLines       prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const ns = "spanflame_session_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: ns + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: ns + name, Help: help})
	}
	m := &metrics{
		lostRecords:       counter("lost_mapping_records_total", "Mapping records that the perf rings had no room for; /proc was read instead."),
		lostProcessEvents: counter("lost_process_events_total", "Process events that the ring had no room for; /proc was read instead."),
		repairs:           counter("repairs_total", "Comparisons of the table of processes with /proc."),
		mismatches:        counter("accounting_mismatches_total", "Rounds whose counts did not add up to the samples taken."),
		roundSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: ns + "round_seconds", Help: "Time from the first read of a round to its last sample.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5},
		}),
		roundStacks: gauge("round_stacks", "Distinct stacks of the last round."),
		stackEnds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "user_stacks_total", Help: "Samples by how their user stack ended.",
		}, []string{"end"}),
		executableEnds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "executable_user_stacks_total", Help: "Samples of an executable by how their user stack ended.",
		}, []string{"exe", "end"}),
		offCPU: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "off_cpu_blocks_total", Help: "Times that a thread was off its CPU, by what became of them: sampled, left_out by the sampling rule (the sampled ones stand for them), untracked (no room for the thread).",
		}, []string{"result"}),
		processes:       gauge("processes", "Processes that are followed."),
		files:           gauge("files", "Executable files that are mapped."),
		locations:       gauge("locations", "Resolved addresses that are kept."),
		processOverflow: gauge("process_overflow_total", "Processes and mappings that the table had no room for."),
		tables:          gauge("unwind_files", "Files whose unwind tables the kernel has or may ask for."),
		tableBytes:      gauge("unwind_table_bytes", "Memory of unwind tables and mappings in the kernel that is in use."),
		tableRows:       counter("unwind_rows_loaded_total", "Rows of unwind tables given to the kernel."),
		tablesEvicted:   counter("unwind_tables_evicted_total", "Unwind tables that made room for others."),
		tablesDenied:    counter("unwind_tables_denied_total", "Unwind tables that there was no room for."),
		tableErrors:     counter("unwind_table_errors_total", "Files that could not be read for their unwind tables."),
		tableSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: ns + "unwind_table_seconds", Help: "Time to make an unwind table and give it to the kernel.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		madePrograms: gauge("jit_programs", "Programs that are followed because they have code that they made themselves."),
		madeBytes:    gauge("jit_bytes", "Memory of the names of code that programs made."),
		madeEvicted:  counter("jit_evicted_total", "Programs whose names of code were forgotten because all together took too much memory."),
		madeFlushed:  counter("jit_flushed_total", "Times that what a file says of a program's code was too much to keep, and was forgotten."),
		madeRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "jit_refused_total", Help: "Times that what names a program's code was not read, by reason: owner (a file of another user), not_regular (a link, a pipe, a device), unreadable, runtime (a virtual machine of an unknown version), too_many (programs that are followed).",
		}, []string{"reason"}),
		madeFrames: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: ns + "jit_frames_total", Help: "Frames of stacks in code that programs made, by result: named, unnamed.",
		}, []string{"result"}),
		pythonFunctions: gauge("python_functions", "Python functions whose names are kept."),
		pythonFull:      counter("python_functions_full_total", "Frames of Python functions whose names the kernel had no room for."),
		pythonLines:     counter("python_lines_refused_total", "Python functions whose lines were not kept because all together took too much memory."),
		mapBytes:        gauge("kernel_map_bytes", "Memory of the kernel maps, as the kernel accounts it."),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.lostRecords, m.lostProcessEvents, m.repairs, m.mismatches, m.roundSeconds, m.roundStacks,
		m.stackEnds, m.executableEnds, m.processes, m.files, m.locations, m.processOverflow, m.mapBytes,
		m.offCPU, m.tables, m.tableBytes, m.tableRows, m.tableSeconds, m.tablesEvicted, m.tablesDenied, m.tableErrors,
		m.madePrograms, m.madeBytes, m.madeEvicted, m.madeFlushed, m.madeRefused, m.madeFrames,
		m.pythonFunctions, m.pythonFull, m.pythonLines,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
