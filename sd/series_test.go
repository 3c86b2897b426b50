package sd

import (
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

func TestSeriesLabels(t *testing.T) {
	for _, c := range []struct {
		name         string
		in, external labels.Labels
		want         labels.Labels
	}{
		{"reserved ones stay", labels.FromStrings("a", "1", "__b", "2", "__meta_x", "3", "__address__", "4"), labels.EmptyLabels(), labels.FromStrings("a", "1")},
		{"external ones do not override", labels.FromStrings("a", "1"), labels.FromStrings("a", "2", "b", "3", "__c", "4"), labels.FromStrings("a", "1", "b", "3")},
		{"names become valid", labels.FromStrings("a.b", "1", "9", "2", "é", "3", "..c", "4"), labels.EmptyLabels(), labels.FromStrings("a_b", "1", "_9", "2", "_", "3", "_c", "4")},
		{"valid names go before changed ones", labels.FromStrings("a.b", "1", "a_b", "2"), labels.EmptyLabels(), labels.FromStrings("a_b", "2")},
		{"values become UTF-8", labels.FromStrings("a", "x\xffy"), labels.EmptyLabels(), labels.FromStrings("a", "x\uFFFDy")},
		{"nothing", labels.EmptyLabels(), labels.EmptyLabels(), labels.EmptyLabels()},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b labels.ScratchBuilder
			if got := seriesLabels(&b, c.in, c.external); !labels.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestCheckSeries(t *testing.T) {
	many := map[string]string{}
	for i := range MaxLabels {
		many["l"+strings.Repeat("x", i)] = "v"
	}
	one := labels.FromMap(many)
	many["one_more"] = "v"
	for _, c := range []struct {
		in   labels.Labels
		want string // part of the reason
	}{
		{labels.FromStrings("a", strings.Repeat("v", MaxLabelValueBytes)), ""},
		{labels.FromStrings("a", strings.Repeat("v", MaxLabelValueBytes+1)), "label a has a value of 2049 bytes; the limit is 2048"},
		{labels.FromStrings(strings.Repeat("n", MaxLabelNameBytes), "v"), ""},
		{labels.FromStrings(strings.Repeat("n", MaxLabelNameBytes+1), "v"), "1025 bytes; the limit is 1024"},
		{one, ""},
		{labels.FromMap(many), "there are 29 labels; the limit is 28"},
	} {
		got := checkSeries(c.in)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func FuzzSanitizeLabelName(f *testing.F) {
	f.Add("a.b")
	f.Add("__x")
	f.Fuzz(func(t *testing.T, name string) {
		got := SanitizeLabelName(name)
		if got == "" || strings.HasPrefix(got, "__") || (got[0] >= '0' && got[0] <= '9') {
			t.Errorf("%q becomes %q", name, got)
		}
		for _, c := range got {
			if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
				t.Errorf("%q becomes %q", name, got)
			}
		}
	})
}

func TestInferServiceName(t *testing.T) {
	docker := labels.FromStrings(dockerContainerNameLabel, "/web")
	pod := labels.FromStrings(kubeContainerNameLabel, "app", kubePodNameLabel, "app-6f7d")
	for _, c := range []struct {
		name       string
		p          Process
		discovered labels.Labels
		want       string
	}{
		{"unit", Process{SystemdUnit: "nginx.service", Exe: "/usr/sbin/nginx"}, labels.EmptyLabels(), "nginx"},
		{"instance", Process{SystemdUnit: "postgresql@15-main.service"}, labels.EmptyLabels(), "postgresql@15-main"},
		{"escaped unit", Process{SystemdUnit: `my\x2dapp.service`}, labels.EmptyLabels(), "my-app"},
		{"bad escapes", Process{SystemdUnit: `a\x2gb\x00\xff\x2.service`}, labels.EmptyLabels(), `a\x2gb\x00` + "\uFFFD" + `\x2`},
		{"unit before container", Process{SystemdUnit: "nginx.service", ContainerID: idA}, docker, "nginx"},
		{"session", Process{SystemdUnit: "session-1.scope", Exe: "/bin/bash"}, labels.EmptyLabels(), "bash"},
		{"init", Process{SystemdUnit: "init.scope", Exe: "/usr/lib/systemd/systemd"}, labels.EmptyLabels(), "systemd"},
		{"user manager", Process{SystemdUnit: "user@1000.service", Exe: "/usr/lib/systemd/systemd"}, labels.EmptyLabels(), "systemd"},
		{"transient unit", Process{SystemdUnit: "run-u12.service", Exe: "/x/job"}, labels.EmptyLabels(), "job"},
		{"transient unit by id", Process{SystemdUnit: "run-r0123456789abcdef.service", Exe: "/x/job"}, labels.EmptyLabels(), "job"},
		{"not transient", Process{SystemdUnit: "run-report.service"}, labels.EmptyLabels(), "run-report"},
		{"docker", Process{SystemdUnit: "docker-" + idA + ".scope", ContainerID: idA, Exe: "/x"}, docker, "web"},
		{"pod", Process{ContainerID: idA}, pod, "app"},
		{"pod without container name", Process{ContainerID: idA}, labels.FromStrings(kubePodNameLabel, "app-6f7d"), "app-6f7d"},
		{"container", Process{ContainerID: idA, Exe: "/x"}, labels.EmptyLabels(), idA[:12]},
		{"program", Process{Exe: "/usr/bin/python3.11", Comm: "worker"}, labels.EmptyLabels(), "python3.11"},
		{"program in memory", Process{Exe: "/memfd:x-1234", Comm: "worker"}, labels.EmptyLabels(), "worker"},
		{"command", Process{Comm: "worker"}, labels.EmptyLabels(), "worker"},
		{"kernel", Process{Comm: "kswapd0", Kernel: true}, labels.EmptyLabels(), "kernel"},
		{"kernel's helper", Process{Comm: "modprobe", Exe: "/sbin/modprobe", Kernel: true}, labels.EmptyLabels(), "modprobe"},
		{"nothing known", Process{}, labels.EmptyLabels(), "unknown"},
		{"odd program", Process{Exe: "/"}, labels.EmptyLabels(), "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := inferServiceName(&c.p, c.discovered); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
