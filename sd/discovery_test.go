package sd

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

// inContainer is a process in a container.
func inContainer(pid PID, id string) *Process {
	p := proc(pid, "/x")
	p.CgroupPath = "/docker/" + id
	p.ContainerID = id
	return p
}

func TestFileDiscovery(t *testing.T) {
	path := filepath.Join(t.TempDir(), "targets.yml")
	write(t, path, "- targets: [x]\n  labels: {__process_pid__: '1', service_name: one}\n")
	m := running(t, Options{ProcFS: fakeProc(t)}, fmt.Sprintf("- job_name: j\n  file_sd_configs: [{files: [%q]}]\n", path))
	eventually(t, m, proc(1, "/x"), "one")
	// A change is noticed without waiting for the next refresh, which is minutes
	// away.
	next := path + ".next"
	write(t, next, "- targets: [x]\n  labels: {__process_pid__: '1', service_name: two}\n")
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	eventually(t, m, proc(1, "/x"), "two")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, m, proc(1, "/x"), "")
}

func TestHTTPDiscovery(t *testing.T) {
	var service atomic.Value
	service.Store("one")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `[{"targets": ["x"], "labels": {"__process_pid__": "1", "service_name": %q}}]`, service.Load())
	}))
	defer server.Close()
	m := running(t, Options{ProcFS: fakeProc(t)}, fmt.Sprintf(`
- job_name: j
  http_sd_configs:
    - url: %s
      refresh_interval: 1s
      basic_auth: {username: me, password: secret}
`, server.URL))
	eventually(t, m, proc(1, "/x"), "one")
	service.Store("two")
	eventually(t, m, proc(1, "/x"), "two")
	// A server that is away for a while does not end profiling.
	server.Close()
	if got, why := m.FindTarget(proc(1, "/x")); serviceOf(got) != "two" {
		t.Errorf("got %q (%s)", serviceOf(got), why)
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// Docker's API on a socket, with one container.
func TestDockerDiscovery(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var filters atomic.Value
	filters.Store("")
	mux := http.NewServeMux()
	mux.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Api-Version", "1.44")
		fmt.Fprint(w, "OK")
	})
	mux.HandleFunc("/{version}/containers/json", func(w http.ResponseWriter, r *http.Request) {
		filters.Store(r.URL.Query().Get("filters"))
		answer(w, []map[string]any{{
			"Id": idA, "Names": []string{"/web"}, "Image": "nginx", "Labels": map[string]string{"com.example/team": "blue"},
			"Ports":      []map[string]any{{"PrivatePort": 80, "Type": "tcp"}},
			"HostConfig": map[string]any{"NetworkMode": "bridge"},
			"NetworkSettings": map[string]any{"Networks": map[string]any{
				"bridge": map[string]any{"NetworkID": "n1", "IPAddress": "172.17.0.2"},
			}},
		}})
	})
	mux.HandleFunc("/{version}/networks", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, []map[string]any{{"Name": "bridge", "Id": "n1", "Scope": "local"}})
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()

	m := running(t, Options{ProcFS: fakeProc(t)}, fmt.Sprintf(`
- job_name: j
  docker_sd_configs:
    - host: unix://%s
      filters: [{name: status, values: [running]}]
  relabel_configs:
    - {regex: __meta_docker_container_label_com_example_(.+), action: labelmap}
`, socket))
	got := eventually(t, m, inContainer(1, idA), "web")
	if team := got.Labels.Get("team"); team != "blue" {
		t.Errorf("labels %v", got.Labels)
	}
	if other, why := m.FindTarget(inContainer(2, idB)); other != nil || why != "no target names this process" {
		t.Errorf("another container: %v, %q", other, why)
	}
	if f := filters.Load().(string); !strings.Contains(f, "running") {
		t.Errorf("the filter was not sent: %q", f)
	}
}

// Kubernetes' API with one pod.
func TestKubernetesDiscovery(t *testing.T) {
	pod := map[string]any{
		"metadata": map[string]any{"name": "shop-6f7d", "namespace": "prod", "uid": "u", "resourceVersion": "1", "labels": map[string]string{"app": "shop"}},
		"spec": map[string]any{"nodeName": "node1", "containers": []any{
			map[string]any{"name": "app", "image": "shop:1", "ports": []any{map[string]any{"containerPort": 8080, "protocol": "TCP"}}},
		}},
		"status": map[string]any{"phase": "Running", "podIP": "10.0.0.5", "hostIP": "192.0.2.1", "containerStatuses": []any{
			map[string]any{"name": "app", "ready": true, "containerID": "containerd://" + idA},
		}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case r.URL.Path != "/api/v1/pods":
			http.NotFound(w, r)
		case q.Get("sendInitialEvents") == "true": // as an older server: list, then watch
			w.WriteHeader(http.StatusUnprocessableEntity)
			answer(w, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422})
		case q.Get("watch") != "":
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			answer(w, map[string]any{"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{pod}})
		}
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	m := running(t, Options{ProcFS: fakeProc(t)}, fmt.Sprintf(`
- job_name: pods
  kubernetes_sd_configs: [{role: pod, api_server: %q}]
  relabel_configs:
    - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
`, server.URL))
	p := proc(1, "/x")
	p.CgroupPath = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + idA + ".scope"
	p.SystemdUnit, p.ContainerID = describeCgroup(p.CgroupPath)
	got := eventually(t, m, p, "app")
	if ns := got.Labels.Get("namespace"); ns != "prod" {
		t.Errorf("labels %v", got.Labels)
	}
}

func TestConsulDiscovery(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/agent/self", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"Config": map[string]any{"Datacenter": "dc1"}})
	})
	mux.HandleFunc("/v1/health/service/web", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") == "7" { // nothing new
			<-r.Context().Done()
			return
		}
		w.Header().Set("X-Consul-Index", "7")
		answer(w, []any{map[string]any{
			"Node":    map[string]any{"Node": "node1", "Address": "127.0.0.1", "Datacenter": "dc1"},
			"Service": map[string]any{"ID": "web1", "Service": "web", "Address": "127.0.0.1", "Port": port, "Tags": []string{"blue"}},
			"Checks":  []any{},
		}})
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	defer server.CloseClientConnections()
	m := running(t, Options{}, fmt.Sprintf(`
- job_name: j
  consul_sd_configs: [{server: %q, services: [web]}]
  relabel_configs:
    - {source_labels: [__meta_consul_service], target_label: service_name}
`, strings.TrimPrefix(server.URL, "http://")))
	// This very process listens on the address of the service.
	eventually(t, m, read(t, PID(os.Getpid())), "web")
}

const dnsHelper = "SPANFLAME_TEST_DNS"

// DNS discovery asks the servers of /etc/resolv.conf at port 53: the test runs again
// in namespaces of its own, where both are its own.
func TestDNSDiscovery(t *testing.T) {
	if os.Getenv(dnsHelper) != "" {
		testDNSDiscovery(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: namespaces are made")
	}
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	write(t, resolv, "nameserver 127.0.0.1\n")
	if out, err := exec.Command("unshare", "--net", "--mount", "sh", "-c", `ip link set lo up && mount --bind "$0" /etc/resolv.conf`, resolv).CombinedOutput(); err != nil {
		t.Skipf("no namespaces with a resolv.conf of their own can be made here: %v: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--net", "--mount", "sh", "-c",
		`ip link set lo up && mount --bind "$0" /etc/resolv.conf && exec "$1" -test.run '^TestDNSDiscovery$' -test.v`, resolv, self)
	cmd.Env = append(os.Environ(), dnsHelper+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestDNSDiscovery") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func testDNSDiscovery(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg)
		a.SetReply(q)
		name := q.Question[0].Name
		switch {
		case name == "_http._tcp.example.com." && q.Question[0].Qtype == dns.TypeSRV:
			a.Answer = append(a.Answer, &dns.SRV{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeSRV, Class: dns.ClassINET, Ttl: 1}, Port: 8080, Target: "web.example.com."})
		case name == "web.example.com." && q.Question[0].Qtype == dns.TypeA:
			a.Answer = append(a.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)})
		}
		_ = w.WriteMsg(a)
	})}
	go func() { _ = server.ActivateAndServe() }()
	defer func() { _ = server.Shutdown() }()
	// The target is web.example.com:8080, whose address is asked for in turn.
	m := running(t, Options{}, `
- job_name: j
  dns_sd_configs: [{names: [_http._tcp.example.com]}]
  relabel_configs:
    - {source_labels: [__meta_dns_name], target_label: service_name}
`)
	eventually(t, m, read(t, PID(os.Getpid())), "_http._tcp.example.com")
}
