package sd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const tcpHeader = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func tcpRow(local, state string, inode int) string {
	return fmt.Sprintf("   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 %d 1 0000000000000000 100 0 0 10 0\n", local, state, inode)
}

func TestParseListeners(t *testing.T) {
	in := tcpHeader + tcpRow("0100007F:1F90", "0A", 11) + "nonsense\n" + tcpRow("0100007F:ZZ", "0A", 12) + tcpRow("00000000:0050", "0A", 13) +
		tcpRow("0000000000000000FFFF00000100007F:01BB", "0A", 14) + tcpRow("00000000000000000000000000000000:0016", "0A", 15) +
		tcpRow("B80D0120000000000000000001000000:0019", "0A", 16) + tcpRow("0100007F:0001", "01", 17) + tcpRow("0100007F:0002", "0A", 18)
	var got []string
	if err := parseListeners(strings.NewReader(in), func(s socket) { got = append(got, fmt.Sprint(s.addr, " ", s.inode)) }); err != nil {
		t.Fatal(err)
	}
	want := []string{"127.0.0.1:8080 11", "0.0.0.0:80 13", "127.0.0.1:443 14", "[::]:22 15", "[2001:db8::1]:25 16"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParseAddresses(t *testing.T) {
	fib := `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 127.0.0.0
        /8 host LOCAL
        /31 link BROADCAST
     |-- 192.0.2.2
        /32 host LOCAL
     |-- bad
        /32 host LOCAL
     |-- 192.0.2.3
        /99 host LOCAL
`
	var got []string
	add := func(p netip.Prefix) { got = append(got, p.String()) }
	if err := parseFibTrie(strings.NewReader(fib), add); err != nil {
		t.Fatal(err)
	}
	if err := parseIfInet6(strings.NewReader("20010db8000000000000000000000001 04 40 00 82     eth0\nshort 1 2 3 4 5\n"), add); err != nil {
		t.Fatal(err)
	}
	if want := []string{"127.0.0.0/8", "192.0.2.2/32", "2001:db8::1/128"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// This host's own files can be read.
func TestReadOwnNamespace(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	self := netNSOf("/proc", PID(os.Getpid()))
	found := false
	if err := self.listeners(func(s socket) { found = found || s.addr.String() == l.Addr().String() }); err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Error("its listener is not found")
	}
	local, err := self.addresses()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(local, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr("127.0.0.1")) }) {
		t.Errorf("its addresses are %v", local)
	}
}

func FuzzNetFiles(f *testing.F) {
	f.Add([]byte(tcpHeader + tcpRow("0100007F:1F90", "0A", 11)))
	f.Add([]byte("|-- 1.2.3.4\n/32 host LOCAL\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := string(b)
		_ = parseListeners(strings.NewReader(in), func(s socket) {
			if !s.addr.IsValid() || s.inode == 0 {
				t.Errorf("got %+v", s)
			}
		})
		valid := func(p netip.Prefix) {
			if !p.IsValid() {
				t.Error("a range that is none")
			}
		}
		_ = parseFibTrie(strings.NewReader(in), valid)
		_ = parseIfInet6(strings.NewReader(in), valid)
	})
}

// Two namespaces: that of the host (1) and that of a container (2), which has an
// address of its own.
func TestListenTable(t *testing.T) {
	hostNet := map[string]string{
		"tcp":      tcpHeader + tcpRow("0100007F:0050", "0A", 100) + tcpRow("00000000:0051", "0A", 101) + tcpRow("020200C0:0052", "0A", 102),
		"tcp6":     tcpHeader + tcpRow("00000000000000000000000000000000:0053", "0A", 103),
		"fib_trie": "|-- 192.0.2.2\n/32 host LOCAL\n", "if_inet6": "20010db8000000000000000000000002 04 40 00 82 eth0\n",
	}
	containerNet := map[string]string{
		"tcp":      tcpHeader + tcpRow("0100007F:0050", "0A", 200) + tcpRow("00000000:1F90", "0A", 201),
		"fib_trie": "|-- 10.0.0.5\n/32 host LOCAL\n", "if_inet6": "",
	}
	proc := fakeProc(t,
		fakeProcess{pid: 1, start: 1, comm: "systemd", vsize: 1, netns: 1, net: hostNet, sockets: []uint64{100, 102}},
		fakeProcess{pid: 10, start: 10, comm: "a", vsize: 1, netns: 1, net: hostNet, sockets: []uint64{9, 100, 101}},
		fakeProcess{pid: 11, parent: 10, start: 11, comm: "a", vsize: 1, netns: 1, net: hostNet, sockets: []uint64{101, 103}},
		fakeProcess{pid: 20, start: 20, comm: "c", vsize: 1, netns: 2, net: containerNet, sockets: []uint64{200, 201}},
	)
	link(t, "1", filepath.Join(proc, "self"))
	lookups := 0
	l := newListeners(proc, func(_ context.Context, host string) ([]netip.Addr, error) {
		lookups++
		if host == "app.example.com" {
			return []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("::ffff:10.0.0.5")}, nil
		}
		return nil, errors.New("no such host")
	})
	addresses := []string{
		"127.0.0.1:80",         // of the host, though the container listens too
		"192.0.2.2:81",         // all addresses of the host
		"192.0.2.3:81",         // not an address of the host
		"192.0.2.2:82",         // only systemd
		"[2001:db8::2]:83",     // IPv6
		"192.0.2.2:83",         // IPv4 through IPv6
		"localhost:81",         //
		"app.example.com:8080", // a name of the container's address
		"none.example.com:8080",
		"10.0.0.5:80", // the container listens on its loopback only
		"nonsense",
	}
	changed, err := l.scan(context.Background(), addresses)
	if err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	of := func(pid PID) string {
		return strings.Join(l.of(&Process{PID: pid, Start: StartTicks(pid)}), " ")
	}
	for pid, want := range map[PID]string{
		1:  "192.0.2.2:82",
		10: "127.0.0.1:80 192.0.2.2:81 localhost:81",
		11: "192.0.2.2:81 192.0.2.2:83 [2001:db8::2]:83 localhost:81",
		20: "app.example.com:8080",
	} {
		if got := of(pid); got != want {
			t.Errorf("process %d listens on %q, want %q", pid, got, want)
		}
	}
	if changed, err = l.scan(context.Background(), addresses); err != nil || changed {
		t.Errorf("again: changed %v, %v", changed, err)
	}
	if lookups != 2 {
		t.Errorf("%d look-ups; they are to be remembered", lookups)
	}

	// A child that is newer than the scan has the sockets of its parent.
	addFake(t, proc, fakeProcess{pid: 12, parent: 10, start: 12, comm: "a", vsize: 1, netns: 1, sockets: []uint64{101}})
	if got, want := of(12), "192.0.2.2:81 localhost:81"; got != want {
		t.Errorf("the new process listens on %q, want %q", got, want)
	}
	if got := l.of(&Process{PID: 12, Start: 99}); got != nil {
		t.Errorf("a process that is gone listens on %v", got)
	}
	if changed, err = l.scan(context.Background(), nil); err != nil || !changed || l.any() {
		t.Errorf("without addresses: changed %v, %v", changed, err)
	}
}

// listenHelper is the environment variable by which this test binary becomes a
// server that listens and, when told to, starts a child with the same socket.
const listenHelper = "SPANFLAME_TEST_LISTEN"

func TestMain(m *testing.M) {
	if address := os.Getenv(listenHelper); address != "" {
		if err := serve(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve listens, prints its PID and address, and waits for its standard input to
// end. A line of input makes it fork as a prefork server does: a child with the
// socket.
func serve(address string) error {
	in := bufio.NewScanner(os.Stdin)
	if address == "inherited" {
		fmt.Println(os.Getpid(), "inherited")
		in.Scan()
		return nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println(os.Getpid(), l.Addr())
	for in.Scan() {
		file, err := l.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		child := exec.Command("/proc/self/exe")
		child.Env = append(os.Environ(), listenHelper+"=inherited")
		child.ExtraFiles = []*os.File{file}
		child.Stdout = os.Stdout
		child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		stdin, err := child.StdinPipe()
		if err != nil {
			return err
		}
		defer stdin.Close()
		if err := child.Start(); err != nil {
			return err
		}
		defer func() { _ = stdin.Close(); _ = child.Wait() }()
	}
	return nil
}

// server is a running serve.
type server struct {
	pid     PID
	address string
	stdin   interface{ Write([]byte) (int, error) }
	out     *bufio.Scanner
}

func startServer(t *testing.T, address string, wrap ...string) *server {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Concat(wrap, []string{self})
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), listenHelper+"="+address)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	s := &server{stdin: stdin, out: bufio.NewScanner(stdout)}
	s.pid, s.address = s.next(t)
	return s
}

// next reads the line that a server writes at its start.
func (s *server) next(t *testing.T) (PID, string) {
	t.Helper()
	if !s.out.Scan() {
		t.Fatal("the server does not start: ", s.out.Err())
	}
	pid, address, _ := strings.Cut(s.out.Text(), " ")
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	return PID(n), address
}

func read(t *testing.T, pid PID) *Process {
	t.Helper()
	p, err := ReadProcess("/proc", pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAddressOfRealServer(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::]:0", "0.0.0.0:0"} {
		t.Run(address, func(t *testing.T) {
			s := startServer(t, address)
			_, port, err := net.SplitHostPort(s.address)
			if err != nil {
				t.Fatal(err)
			}
			m := running(t, Options{}, fmt.Sprintf("- job_name: j\n  static_configs: [{targets: ['localhost:%s'], labels: {service_name: web}}]\n", port))
			target := eventually(t, m, read(t, s.pid), "web")
			if got, _ := m.FindTarget(read(t, PID(os.Getpid()))); got != nil {
				t.Errorf("this process, which does not listen, is %v", got.Labels)
			}
			// Prefork: the children that share the socket, at once.
			if _, err := s.stdin.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
			child, _ := s.next(t)
			if got, why := m.FindTarget(read(t, child)); got != target {
				t.Errorf("the child is %v (%s)", got, why)
			}
		})
	}
}

// A server that begins to listen after its target was found.
func TestLateListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // to know a port that is free
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	m := running(t, Options{}, fmt.Sprintf("- job_name: j\n  static_configs: [{targets: [%q], labels: {service_name: web}}]\n", address))
	eventually(t, m, read(t, PID(os.Getpid())), "web")
	_ = l.Close()
	eventually(t, m, read(t, PID(os.Getpid())), "")
	s := startServer(t, address)
	eventually(t, m, read(t, s.pid), "web")
}

func TestAddressInAnotherNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a network namespace is made")
	}
	for _, tool := range []string{"ip", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the command %s: %v", tool, err)
		}
	}
	script := `ip link set lo up && ip addr add 198.51.100.7/32 dev lo && exec "$0"`
	if out, err := exec.Command("unshare", "--net", "true").CombinedOutput(); err != nil {
		t.Skipf("no network namespace can be made here: %v: %s", err, out)
	}
	s := startServer(t, "0.0.0.0:8080", "unshare", "--net", "sh", "-c", script)
	p := read(t, s.pid)
	if own := read(t, PID(os.Getpid())); p.NetNS == own.NetNS || p.NetNS == 0 {
		t.Fatalf("the server is in namespace %d, this process in %d", p.NetNS, own.NetNS)
	}
	m := running(t, Options{}, `
- job_name: loopback
  static_configs: [{targets: ["127.0.0.1:8080"], labels: {service_name: wrong}}]
- job_name: another
  static_configs: [{targets: ["198.51.100.8:8080"], labels: {service_name: wrong}}]
- job_name: pod
  static_configs: [{targets: ["198.51.100.7:8080"], labels: {service_name: pod}}]
`)
	eventually(t, m, p, "pod")
}

func BenchmarkListenerScan(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	table := newListeners("/proc", lookupHost)
	for b.Loop() {
		if _, err := table.scan(context.Background(), []string{l.Addr().String()}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestResolverKeepsWhatItKnew(t *testing.T) {
	fail := false
	r := resolver{lookup: func(context.Context, string) ([]netip.Addr, error) {
		if fail {
			return nil, errors.New("no answer")
		}
		return []netip.Addr{netip.MustParseAddr("192.0.2.9")}, nil
	}}
	for range 2 {
		got := r.resolve(context.Background(), []string{"a.example.com:80", "a.example.com:x", "b"})
		if len(got) != 1 || len(got[80]) != 1 || got[80][0].addr.String() != "192.0.2.9" {
			t.Errorf("got %v", got)
		}
		fail = true
		known := r.known["a.example.com"]
		known.until = time.Now().Add(-time.Second)
		r.known["a.example.com"] = known
	}
}
