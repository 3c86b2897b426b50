package sd

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	idA = "3f4e7c8d9a0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d"
	idB = "aaaaaaaaaaaabbbbbbbbbbbbccccccccccccddddddddddddeeeeeeeeeeeeffff"
)

func TestDescribeCgroup(t *testing.T) {
	for _, c := range []struct{ name, path, unit, container string }{
		{"nothing", "", "", ""},
		{"root", "/", "", ""},
		{"service", "/system.slice/nginx.service", "nginx.service", ""},
		{"service with groups of its own", "/system.slice/foo.service/worker.service/x", "foo.service", ""},
		{"instance", "/system.slice/system-postgresql.slice/postgresql@15-main.service", "postgresql@15-main.service", ""},
		{"escaped dash", `/system.slice/my\x2dapp.service`, `my\x2dapp.service`, ""},
		{"escaped clash", "/system.slice/_cgroup.service", "cgroup.service", ""},
		{"session", "/user.slice/user-1000.slice/session-3.scope", "session-3.scope", ""},
		{"user manager", "/user.slice/user-1000.slice/user@1000.service/init.scope", "init.scope", ""},
		{"user service", "/user.slice/user-1000.slice/user@1000.service/app.slice/app-foo@autostart.service", "app-foo@autostart.service", ""},
		{"user service without slice", "/user.slice/user-0.slice/user@0.service/dbus.service", "dbus.service", ""},
		{"init", "/init.scope", "init.scope", ""},
		{"slice only", "/system.slice", "", ""},
		{"suffix only", "/system.slice/.service", "", ""},

		{"docker, cgroupfs", "/docker/" + idA, "", idA},
		{"docker, systemd", "/system.slice/docker-" + idA + ".scope", "docker-" + idA + ".scope", idA},
		{"docker, groups within", "/docker/" + idA + "/init", "", idA},
		{"podman", "/machine.slice/libpod-" + idA + ".scope/container", "libpod-" + idA + ".scope", idA},
		{"podman's monitor", "/machine.slice/libpod-conmon-" + idA + ".scope", "libpod-conmon-" + idA + ".scope", ""},
		{"podman, rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + idA + ".scope", "libpod-" + idA + ".scope", idA},
		{"cri-o", "/kubepods.slice/kubepods-pod1.slice/crio-" + idA + ".scope", "crio-" + idA + ".scope", idA},
		{"cri-o's monitor", "/kubepods.slice/kubepods-pod1.slice/crio-conmon-" + idA, "", ""},
		{"containerd, systemd", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-" + idA + ".scope", "cri-containerd-" + idA + ".scope", idA},
		{"kubelet, cgroupfs", "/kubepods/burstable/pod0a1b2c3d-1111-2222-3333-444455556666/" + idA, "", idA},
		{"containerd in its service", "/system.slice/containerd.service/kubepods-burstable-pod0a1b.slice:cri-containerd:" + idA, "", idA},
		{"kind: a container in a container", "/docker/" + idA + "/kubelet/kubepods/besteffort/pod1/" + idB, "", idB},
		{"systemd in a container", "/docker/" + idA + "/system.slice/nginx.service", "nginx.service", idA},
		{"seen from another cgroup namespace", "/../../docker/" + idA, "", idA},
		{"Fargate", "/ecs/0123456789abcdef0123456789abcdef/0123456789abcdef0123456789abcdef-1234567890", "", "0123456789abcdef0123456789abcdef-1234567890"},
		{"63 digits", "/docker/" + idA[1:], "", ""},
		{"65 digits", "/docker/0" + idA, "", ""},
		{"upper case", "/docker/" + strings.ToUpper(idA), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			unit, container := describeCgroup(c.path)
			if unit != c.unit || container != c.container {
				t.Errorf("got unit %q, container %q; want %q, %q", unit, container, c.unit, c.container)
			}
		})
	}
}

func TestParseCgroup(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"version 2", "0::/system.slice/nginx.service\n", "/system.slice/nginx.service"},
		{"version 1 with systemd", "12:cpu,cpuacct:/system.slice\n1:name=systemd:/system.slice/nginx.service\n", "/system.slice/nginx.service"},
		{"hybrid", "5:memory:/user.slice\n1:name=systemd:/user.slice/user-0.slice/session-1.scope\n0::/user.slice/user-0.slice/session-1.scope\n", "/user.slice/user-0.slice/session-1.scope"},
		{"hybrid, version 2 not used", "5:memory:/docker/" + idA + "\n1:name=systemd:/docker/" + idA + "\n0::/system.slice/containerd.service\n", "/docker/" + idA},
		{"version 1 without systemd", "3:cpu:/\n2:memory:/docker/" + idA + "\n", "/docker/" + idA},
		{"only a controller says something", "9:name=systemd:/\n4:memory:/mine\n0::/\n", "/mine"},
		{"root", "0::/\n", "/"},
		{"root of version 1", "1:cpu:/\n", "/"},
		{"colons", "0::/a:b:c\n", "/a:b:c"},
		{"deleted", "0::/gone (deleted)\n", "/gone"},
		{"no newline", "0::/a", "/a"},
		{"not UTF-8", "0::/a\xff\n", "/a\uFFFD"},
		{"nonsense", "x\n\n::\n1:2\n0::relative\n", ""},
		{"empty", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := parseCgroup([]byte(c.in)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEachContainer(t *testing.T) {
	var got []string
	eachContainer("/docker/"+idA+"/kubelet/crio-"+idB+".scope/x", func(id string) bool {
		got = append(got, id)
		return true
	})
	want := []string{"x", idB, "kubelet", idA, "docker"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSameContainer(t *testing.T) {
	for _, c := range []struct {
		given, id string
		want      bool
	}{
		{idA, idA, true}, {idA[:12], idA, true}, {idA[:20], idA, true}, {idA[:11], idA, false}, {idB, idA, false},
		{"web", "web", true}, {"web", "web2", false}, {"kubelet-long-name", "kubelet-long-name2", false}, {"", idA, false},
	} {
		if got := sameContainer(c.given, c.id); got != c.want {
			t.Errorf("%q names %q: %v", c.given, c.id, got)
		}
	}
	if got := normalContainerID("containerd://" + idA); got != idA {
		t.Errorf("got %q", got)
	}
}

func FuzzCgroup(f *testing.F) {
	f.Add([]byte("0::/system.slice/docker-" + idA + ".scope\n1:name=systemd:/user.slice/user@1.service/a.service\n"))
	f.Add([]byte("0::/" + idA + ":" + idA + "-" + idA + "/../" + idB))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := parseCgroup(b)
		if !utf8.ValidString(path) || (path != "" && path[0] != '/') {
			t.Errorf("path %q", path)
		}
		unit, container := describeCgroup(path)
		if unit != "" && (!isUnit(unit) || !strings.Contains(path, unit)) {
			t.Errorf("unit %q of %q", unit, path)
		}
		// The container that a process is said to be in is one that it is matched by.
		if container != "" {
			found := false
			eachContainer(path, func(id string) bool { found = found || id == container; return true })
			if !found || !sameContainer(container[:shortIDLen], container) && isHex(container) {
				t.Errorf("container %q of %q is not matched", container, path)
			}
		}
	})
}
