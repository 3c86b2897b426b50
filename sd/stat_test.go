package sd

import (
	"strings"
	"testing"
)

func statLine(comm string, flags string) string {
	return "7 (" + comm + ") S 3 7 7 0 -1 " + flags + " 1 2 3 4 5 6 7 8 20 0 1 0 4242 8192 9 0\n"
}

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     stat
		bad      bool
	}{
		{"plain", statLine("cat", "4194304"), stat{comm: "cat", parent: 3, start: 4242, vsize: 8192, state: 'S'}, false},
		{"blanks and parentheses", statLine("a) S (b", "0"), stat{comm: "a) S (b", parent: 3, start: 4242, vsize: 8192, state: 'S'}, false},
		{"newline and number", statLine("x\n) 1 2 (", "0"), stat{comm: "x\n) 1 2 (", parent: 3, start: 4242, vsize: 8192, state: 'S'}, false},
		{"no UTF-8", statLine("\xff", "0"), stat{comm: "\uFFFD", parent: 3, start: 4242, vsize: 8192, state: 'S'}, false},
		{"empty name", statLine("", "0"), stat{parent: 3, start: 4242, vsize: 8192, state: 'S'}, false},
		{"kernel thread", statLine("kthreadd", "2129984"), stat{comm: "kthreadd", parent: 3, start: 4242, vsize: 8192, state: 'S', kernel: true}, false},
		{"worker", statLine("kworker/0:1-events_unbound", "69238880"), stat{comm: "kworker/0:1", parent: 3, start: 4242, vsize: 8192, state: 'S', kernel: true}, false},
		{"rescuer", statLine("kworker/R-rcu_gp", "69238880"), stat{comm: "kworker/R-rcu_gp", parent: 3, start: 4242, vsize: 8192, state: 'S', kernel: true}, false},
		{"a program named like a worker", statLine("kworker/0:1-x", "0"), stat{comm: "kworker/0:1-x", parent: 3, start: 4242, vsize: 8192, state: 'S'}, false},
		{"cut", "7 (cat) S 3 7", stat{}, true},
		{"empty", "", stat{}, true},
		{"no end", "7 (cat S 3 7 7 0 -1", stat{}, true},
		{"start is no number", strings.Replace(statLine("cat", "0"), "4242", "x", 1), stat{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseStat([]byte(c.in))
			if (err != nil) != c.bad {
				t.Fatalf("error %v", err)
			}
			if err == nil && got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte(statLine("cat", "0")), "a) (b")
	f.Fuzz(func(t *testing.T, b []byte, comm string) {
		_, _ = parseStat(b)
		// Whatever the name is, the rest is found.
		got, err := parseStat([]byte(statLine(comm, "0")))
		if err != nil || got.start != 4242 || got.parent != 3 || got.comm != strings.ToValidUTF8(comm, "\uFFFD") {
			t.Errorf("%q: %+v, %v", comm, got, err)
		}
	})
}

func TestParseStatus(t *testing.T) {
	for _, c := range []struct {
		in   string
		uid  int64
		inNS PID
	}{
		{"Name:\tcat\nUid:\t0\t1000\t2\t3\nNSpid:\t77\t5\t1\nVmPeak:\t1 kB\n", 1000, 1},
		{"Uid:\t0\t4294967294\t2\t3\n", 4294967294, 0},
		{"Uid:\t0\n", -1, 0},
		{"Uid:\tx\ty\nNSpid:\t-4\n", -1, 0},
		{"NSpid:", -1, 0},
		{"", -1, 0},
	} {
		uid, inNS := parseStatus([]byte(c.in))
		if uid != c.uid || inNS != c.inNS {
			t.Errorf("%q: user %d, PID %d; want %d, %d", c.in, uid, inNS, c.uid, c.inNS)
		}
	}
}
