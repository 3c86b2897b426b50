package sd

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

const hostJob = `
- job_name: host
  process_sd_configs: [{}]
`

func proc(pid PID, exe string) *Process {
	return &Process{PID: pid, Start: StartTicks(pid), Comm: "c" + strconv.Itoa(int(pid)), Exe: exe, UID: 0, Username: "root", CgroupPath: "/"}
}

// The rules of Prometheus, on processes.
func TestProcessRelabelling(t *testing.T) {
	nginx := &Process{PID: 10, Start: 500, Comm: "nginx", Exe: "/usr/sbin/nginx", Cwd: "/srv", CommandLine: "nginx -g x", UID: 33, Username: "www-data",
		CgroupPath: "/system.slice/nginx.service", SystemdUnit: "nginx.service"}
	for _, c := range []struct {
		name, rules string
		want        labels.Labels // empty: none
		why         string
	}{
		{"no rules", ``, labels.FromStrings("service_name", "nginx"), ""},
		{"keep", `[{source_labels: [__meta_process_comm], regex: nginx, action: keep}]`, labels.FromStrings("service_name", "nginx"), ""},
		{"keep others", `[{source_labels: [__meta_process_comm], regex: ngin, action: keep}]`, labels.EmptyLabels(), `dropped by relabel_configs of job "j"`},
		{"drop", `[{source_labels: [__meta_process_exe], regex: ".*/nginx", action: drop}]`, labels.EmptyLabels(), `dropped by relabel_configs of job "j"`},
		{"replace", `[{source_labels: [__meta_process_exe, __meta_process_uid], separator: "@", regex: ".*/(.*)@(.*)", target_label: service_name, replacement: "$1-$2"}]`,
			labels.FromStrings("service_name", "nginx-33"), ""},
		{"labelmap", `[{regex: __meta_process_(comm|username|cwd|commandline|systemd_unit|cgroup_path|start_time), action: labelmap}]`,
			labels.FromStrings("service_name", "nginx", "comm", "nginx", "username", "www-data", "cwd", "/srv", "commandline", "nginx -g x",
				"systemd_unit", "nginx.service", "cgroup_path", "/system.slice/nginx.service", "start_time", "1700000005"), ""},
		{"hashmod and keep", `[{source_labels: [__process_pid__], modulus: 1, target_label: __tmp, action: hashmod}, {source_labels: [__tmp], regex: "0", action: keep}]`,
			labels.FromStrings("service_name", "nginx"), ""},
		{"hashmod", `[{source_labels: [__process_pid__], modulus: 8, target_label: shard, action: hashmod}]`,
			labels.FromStrings("service_name", "nginx", "shard", "0"), ""}, // md5("10") ends in 20 (hexadecimal)
		{"labelkeep does not lose the process", `[{target_label: env, replacement: prod}, {regex: env, action: labelkeep}]`, labels.FromStrings("service_name", "nginx", "env", "prod"), ""},
		{"labeldrop", `[{target_label: a, replacement: b}, {regex: a, action: labeldrop}]`, labels.FromStrings("service_name", "nginx"), ""},
		{"uppercase", `[{source_labels: [__meta_process_comm], target_label: name, action: uppercase}]`, labels.FromStrings("service_name", "nginx", "name", "NGINX"), ""},
		{"UTF-8 name", `[{source_labels: [__meta_process_comm], target_label: my.name}]`, labels.FromStrings("service_name", "nginx", "my_name", "nginx"), ""},
		{"too long", `[{target_label: a, replacement: "` + strings.Repeat("x", 2049) + `"}]`, labels.EmptyLabels(), `refused for job "j": label a has a value of 2049 bytes; the limit is 2048`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := running(t, Options{ProcFS: fakeProc(t)}, "- job_name: j\n  process_sd_configs: [{}]\n  relabel_configs: "+c.rules+"\n")
			for range 2 { // the second answer is remembered
				got, why := m.FindTarget(nginx)
				if why != c.why {
					t.Errorf("reason %q, want %q", why, c.why)
				}
				if got == nil {
					if !c.want.IsEmpty() {
						t.Errorf("no target: %s", why)
					}
					continue
				}
				if !labels.Equal(got.Labels, c.want) {
					t.Errorf("got %v, want %v", got.Labels, c.want)
				}
				if got.Job != "j" || got.Discovered.Get(ProcessPIDLabel) != "10" {
					t.Errorf("got %+v", got)
				}
			}
		})
	}
}

// The first target that names a process counts, and the reason is told if none
// does.
func TestOrder(t *testing.T) {
	m := running(t, Options{ProcFS: fakeProc(t)}, `
- job_name: pids
  static_configs:
    - {targets: [x], labels: {__process_pid__: "1", service_name: first}}
    - {targets: [x], labels: {__process_pid__: "1", service_name: second}}
    - {targets: [x], labels: {__process_pid__: "2", drop: me}}
    - {targets: [x], labels: {__process_pid__: "3"}}
    - {targets: [x], labels: {__process_pid__: "8", service_name: `+strings.Repeat("x", 3000)+`}}
    - {targets: [x], labels: {__process_pid__: none}}
    - {targets: [x]}
    - {targets: ["a:http"]}
  relabel_configs:
    - {source_labels: [drop], regex: me, action: drop}
- job_name: containers
  static_configs:
    - {targets: [x], labels: {__container_id__: "`+idA[:12]+`", service_name: short}}
    - {targets: [x], labels: {__container_id__: "docker://`+idA+`", service_name: long}}
    - {targets: [x], labels: {__meta_docker_container_id: "`+idB+`", __meta_docker_container_name: /b}}
    - {targets: [x], labels: {__meta_kubernetes_pod_container_id: "cri-o://named", service_name: named}}
- job_name: some
  process_sd_configs: [{}]
  static_configs:
    - {targets: [x], labels: {__process_pid__: "5", service_name: static before processes}}
  relabel_configs:
    - {source_labels: [__meta_process_exe, __process_pid__], regex: ".*some;.*|;5", action: keep}
- job_name: late
  static_configs:
    - {targets: [x], labels: {__process_pid__: "6", service_name: late}}
    - {targets: [x], labels: {__process_pid__: "7", service_name: late}}
`)
	for deadline := 0; ; deadline++ {
		if _, total := m.Targets(0); total == 15 {
			break
		}
		if deadline > 1000 {
			t.Fatal("static targets are not found")
		}
		<-m.Changed()
	}
	inContainer := func(pid PID, path string) *Process {
		p := proc(pid, "/x")
		p.CgroupPath = path
		_, p.ContainerID = describeCgroup(path)
		return p
	}
	for _, c := range []struct {
		name    string
		p       *Process
		service string
		why     string
	}{
		{"the first of two", proc(1, "/x"), "first", ""},
		{"dropped", proc(2, "/x"), "", `dropped by relabel_configs of job "pids"; dropped by relabel_configs of job "some"`},
		{"inferred", proc(3, "/usr/bin/three"), "three", ""},
		{"by nothing", proc(4, "/x"), "", `dropped by relabel_configs of job "some"`},
		{"by its program", proc(4, "/some"), "some", ""},
		{"static before processes", proc(5, ""), "static before processes", ""},
		{"an earlier job's processes go before later targets", proc(6, "/some"), "some", ""},
		{"a later target", proc(7, "/x"), "late", ""},
		{"refused", proc(8, "/some"), "", `refused for job "pids": label service_name has a value of 3000 bytes; the limit is 2048`},
		{"container by a short id", inContainer(20, "/docker/"+idA), "short", ""},
		{"container by Docker's label", inContainer(21, "/system.slice/docker-"+idB+".scope"), "b", ""},
		{"the outer container", inContainer(22, "/docker/"+idB+"/kubepods/"+strings.Repeat("1", 64)), "b", ""},
		{"container with a name for an id", inContainer(23, "/x/named"), "named", ""},
		{"another container", inContainer(24, "/docker/"+strings.Repeat("2", 64)), "", `dropped by relabel_configs of job "some"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, why := m.FindTarget(c.p)
			if why != c.why {
				t.Errorf("reason %q, want %q", why, c.why)
			}
			if service := serviceOf(got); service != c.service {
				t.Errorf("service %q, want %q", service, c.service)
			}
		})
	}
	list, total := m.Targets(8)
	if len(list) != 8 || total != 15 {
		t.Fatalf("%d of %d targets", len(list), total)
	}
	for i, want := range []string{"pid 1", "pid 1", "pid 2", "pid 3", "pid 8",
		`(__process_pid__ is "none", which is no process id)`, `(its address "x" is not host:port)`,
		`(the port of its address "a:http" is not a number from 1 to 65535)`} {
		if list[i].Names != want {
			t.Errorf("target %d names %q, want %q", i, list[i].Names, want)
		}
	}
	if list[2].Why != `dropped by relabel_configs of job "pids"` {
		t.Errorf("target 2: %q", list[2].Why)
	}
}

func serviceOf(t *Target) string {
	if t == nil {
		return ""
	}
	return t.ServiceName()
}

func TestWithoutJobs(t *testing.T) {
	m := running(t, Options{ProcFS: fakeProc(t)}, "[]")
	if got, why := m.FindTarget(proc(1, "/x")); got != nil || why != "no job is configured" {
		t.Errorf("got %v, %q", got, why)
	}
}

// A verdict is on one process with all that is known of it, never on a PID.
func TestReusedPID(t *testing.T) {
	m := running(t, Options{ProcFS: fakeProc(t)}, hostJob)
	p := proc(1, "/a")
	q := *p
	q.Exe = "/b" // exec
	r := q
	r.Start++ // a successor
	r.Exe = "/c"
	for _, c := range []struct {
		p    *Process
		want string
	}{{p, "a"}, {&q, "b"}, {&r, "c"}, {p, "a"}} {
		if got, _ := m.FindTarget(c.p); serviceOf(got) != c.want {
			t.Errorf("got %q, want %q", serviceOf(got), c.want)
		}
	}
}

// Processes of one service are one target, also after a reload.
func TestSamePointer(t *testing.T) {
	m := running(t, Options{ProcFS: fakeProc(t)}, hostJob)
	a, _ := m.FindTarget(proc(1, "/bin/a"))
	b, _ := m.FindTarget(proc(2, "/usr/bin/a"))
	if a == nil || a != b {
		t.Errorf("%p and %p", a, b)
	}
	if err := m.ApplyConfig(jobs(t, hostJob), labels.EmptyLabels()); err != nil {
		t.Fatal(err)
	}
	if c, _ := m.FindTarget(proc(3, "/a")); c != a {
		t.Errorf("another target after a reload with the same configuration")
	}
	if err := m.ApplyConfig(jobs(t, hostJob), labels.FromStrings("host", "x")); err != nil {
		t.Fatal(err)
	}
	if c, _ := m.FindTarget(proc(3, "/a")); c == a || c.Labels.Get("host") != "x" {
		t.Errorf("external labels have no effect: %v", c.Labels)
	}
}

// The bound is on the targets in use; those that nobody holds are forgotten.
func TestMaxTargets(t *testing.T) {
	const most = 20
	in := newInterner(most)
	var held []*Target
	make1 := func(i int) (*Target, error) {
		return in.target("j", labels.FromStrings(ServiceNameLabel, strconv.Itoa(i)), labels.EmptyLabels())
	}
	for i := range most {
		target, err := make1(i)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, target)
	}
	if _, err := make1(most); err == nil {
		t.Error("one too many is accepted")
	}
	if again, err := make1(3); err != nil || again != held[3] {
		t.Errorf("a known one is refused: %v", err)
	}
	runtime.KeepAlive(held)
	runtime.GC()
	for i := range 10 * most {
		if _, err := make1(1000 + i); err != nil {
			runtime.GC() // they are only gone once they are collected
			if _, err = make1(1000 + i); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := in.len(); n > most {
		t.Errorf("%d targets are kept", n)
	}
}

func TestMaxTargetsIsTold(t *testing.T) {
	m := running(t, Options{ProcFS: fakeProc(t), MaxTargets: 1}, hostJob)
	a, _ := m.FindTarget(proc(1, "/a"))
	if got, why := m.FindTarget(proc(2, "/b")); got != nil || why != `refused for job "host": there are more than 1 targets with labels of their own` {
		t.Errorf("got %v, %q", got, why)
	}
	runtime.KeepAlive(a)
}

func TestVerdictsAreBounded(t *testing.T) {
	var v verdicts
	v.init()
	for i := range 3 * maxVerdicts {
		v.put(&verdict{process: Process{PID: PID(i)}})
	}
	if n := len(v.young) + len(v.old); n > 2*maxVerdicts {
		t.Errorf("%d verdicts", n)
	}
	last := &Process{PID: 3*maxVerdicts - 1}
	if v.get(last) == nil {
		t.Error("the last is forgotten")
	}
	v.turn()
	if v.get(last) == nil {
		t.Error("forgotten after one turn")
	}
	v.turn()
	v.turn()
	if v.get(last) != nil {
		t.Error("remembered after two turns without use")
	}
}

// Answers while the configuration changes are those of one or the other.
func TestConcurrent(t *testing.T) {
	m := running(t, Options{ProcFS: fakeProc(t)}, hostJob)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				p := proc(PID(i%100+1), "/bin/"+strconv.Itoa((i+g)%7))
				if got, why := m.FindTarget(p); got == nil || got.ServiceName() == "" {
					t.Errorf("no target: %s", why)
					return
				}
				m.Targets(10)
			}
		})
	}
	for i := range 50 {
		config := hostJob
		if i%2 == 0 {
			config = fmt.Sprintf("- job_name: other\n  static_configs: [{targets: [x], labels: {__process_pid__: '%d'}}]\n", i) + hostJob
		}
		if err := m.ApplyConfig(jobs(t, config), labels.FromStrings("i", strconv.Itoa(i%3))); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

func BenchmarkFindTarget(b *testing.B) {
	rules := `
  relabel_configs:
    - {source_labels: [__meta_process_comm], regex: "kworker.*", action: drop}
    - {source_labels: [__meta_process_username], target_label: user}
`
	static := "- job_name: containers\n  static_configs:\n"
	for i := range 1000 {
		static += fmt.Sprintf("    - {targets: [x], labels: {__container_id__: %064x, service_name: s%d}}\n", i, i)
	}
	for _, c := range []struct{ name, config string }{{"host", hostJob + rules}, {"1000 containers", static + hostJob + rules}} {
		m := running(b, Options{ProcFS: fakeProc(b)}, c.config)
		processes, err := ListProcesses("/proc")
		if err != nil {
			b.Fatal(err)
		}
		b.Run(c.name+", known", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				m.FindTarget(processes[i%len(processes)])
			}
		})
		b.Run(c.name+", new", func(b *testing.B) {
			b.ReportAllocs()
			p := *processes[len(processes)-1]
			p.PID = PID(os.Getpid())
			for b.Loop() {
				p.Start++
				m.FindTarget(&p)
			}
		})
	}
}
