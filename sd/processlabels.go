package sd

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// Labels of discovered processes, and those that name processes.
const (
	ProcessPIDLabel          = "__process_pid__"
	ContainerIDLabel         = "__container_id__"
	dockerContainerIDLabel   = model.MetaLabelPrefix + "docker_container_id"
	dockerContainerNameLabel = model.MetaLabelPrefix + "docker_container_name"
	kubeContainerIDLabel     = model.MetaLabelPrefix + "kubernetes_pod_container_id"
	kubeContainerNameLabel   = model.MetaLabelPrefix + "kubernetes_pod_container_name"
	kubePodNameLabel         = model.MetaLabelPrefix + "kubernetes_pod_name"

	processPrefix           = model.MetaLabelPrefix + "process_"
	processCgroupLabel      = processPrefix + "cgroup_path"
	processCommLabel        = processPrefix + "comm"
	processCommandLineLabel = processPrefix + "commandline"
	processContainerLabel   = processPrefix + "container_id"
	processCwdLabel         = processPrefix + "cwd"
	processExeLabel         = processPrefix + "exe"
	processStartLabel       = processPrefix + "start_time"
	processUnitLabel        = processPrefix + "systemd_unit"
	processUIDLabel         = processPrefix + "uid"
	processUsernameLabel    = processPrefix + "username"
)

// processLabels are the labels of a process as process discovery finds it. Empty
// ones are left out.
func processLabels(b *labels.ScratchBuilder, p *Process, boot time.Time) labels.Labels {
	b.Reset()
	add := func(name, value string) {
		if value != "" {
			b.Add(name, value)
		}
	}
	add(processCgroupLabel, p.CgroupPath)
	add(processCommLabel, p.Comm)
	add(processCommandLineLabel, p.CommandLine)
	add(processContainerLabel, p.ContainerID)
	add(processCwdLabel, p.Cwd)
	add(processExeLabel, p.Exe)
	if !boot.IsZero() {
		const perTick = time.Second / ticksPerSecond
		start := boot.Add(time.Duration(min(uint64(p.Start), uint64(maxTicks))) * perTick)
		add(processStartLabel, strconv.FormatInt(start.Unix(), 10))
	}
	add(processUnitLabel, p.SystemdUnit)
	if p.UID >= 0 {
		add(processUIDLabel, strconv.FormatInt(p.UID, 10))
	}
	add(processUsernameLabel, p.Username)
	add(ProcessPIDLabel, strconv.Itoa(int(p.PID)))
	b.Sort()
	return b.Labels()
}

// ticksPerSecond is USER_HZ, by which procfs counts; it is 100 on all
// architectures that are supported.
const ticksPerSecond = 100

// maxTicks keeps a start time within what time.Duration can hold.
const maxTicks = int64(^uint64(0)>>1) / int64(time.Second/ticksPerSecond)

// bootTime reads when the host was started: btime of /proc/stat (proc(5)). The
// zero time stands for unknown.
func bootTime(procfs string) (time.Time, error) {
	path := filepath.Join(procfs, "stat")
	f, err := os.Open(path)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time of boot: %w", err)
	}
	defer f.Close()
	// The lines of interrupts before it are long on large hosts.
	sc := bufio.NewScanner(io.LimitReader(f, 4<<20))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if rest, ok := bytes.CutPrefix(sc.Bytes(), []byte("btime ")); ok {
			sec, err := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("read the time of boot from %s: %w", path, err)
			}
			return time.Unix(sec, 0), nil
		}
	}
	if err := sc.Err(); err != nil {
		return time.Time{}, fmt.Errorf("read the time of boot from %s: %w", path, err)
	}
	return time.Time{}, fmt.Errorf("read the time of boot from %s: no line begins with btime", path)
}
