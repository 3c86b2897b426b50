package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spanflame/spanflame/test/harness"
)

// program is what is measured, and what makes it work.
type program struct {
	name   string
	exe    string   // regular expression of the executables that count
	needs  []string // paths, or programs of PATH
	script string   // of bash, in a folder of its own; $PORT is free. It ends when it is killed
	jit    bool     // code made at run time is part of it
}

// ready is the file that a script makes when its load is about to begin.
const ready = "ready"

const debianPostgres = "/usr/lib/postgresql/*/bin"

// programs are as Debian has them, but for those that are compiled here.
var programs = []program{
	{name: "bash", exe: ".*/bash", needs: []string{"bash"}, script: `touch ready
f() { local i=$1; if ((i > 0)); then f $((i - 1)); else x=${x//a/b}$i; x=${x:0:50}; fi; }
while :; do for i in {1..200}; do f 10; a[i]="$x $i"; done; b=("${a[@]/x/y}"); done`},
	{name: "python3", exe: ".*/python3[.0-9]*", needs: []string{"/usr/bin/python3"}, script: `cat >p.py <<'END'
import json, re
def walk(n): return [n] if n == 0 else walk(n - 1) + [n]
while True:
    text = json.dumps([{str(i): walk(i % 20)} for i in range(200)], sort_keys=True)
    sorted(json.loads(text), key=lambda d: -int(max(d)))
    len(re.sub(r"(\d+), (\d+)", r"\2 \1", text))
END
touch ready; exec /usr/bin/python3 p.py`},
	{name: "perl", exe: ".*/perl", needs: []string{"/usr/bin/perl"}, script: `touch ready
exec /usr/bin/perl -e 'sub f { my $n = shift; $n ? f($n - 1) . $n : "x" }
while (1) { my %h = map { $_ => f($_ % 30) } 1 .. 300; my $t = join ",", sort { $h{$a} cmp $h{$b} } keys %h; $t =~ s/(\d)(\d+)/$2$1/g; }'`},
	{name: "gcc", exe: ".*/(cc1plus|as|ld.*|collect2|.*g\\+\\+.*)", needs: []string{"g++"}, script: `
printf '#include <map>\n#include <regex>\n#include <string>\nint main(int n, char **v) { std::map<std::string, std::regex> m; m[v[0]] = "a|b"; return m.size(); }\n' >a.cc
touch ready; while :; do g++ -O2 -o a.out a.cc; done`},
	{name: "nginx", exe: ".*/nginx", needs: []string{"nginx", "curl"}, script: `mkdir www; seq 1 20000 >www/index.html; chmod -R a+rX .
cat >nginx.conf <<END
daemon off; pid $PWD/pid; error_log $PWD/error.log; worker_processes 1;
events {}
http { access_log off; client_body_temp_path $PWD/body; proxy_temp_path $PWD/proxy; fastcgi_temp_path $PWD/fcgi; uwsgi_temp_path $PWD/uwsgi; scgi_temp_path $PWD/scgi;
gzip on; gzip_min_length 1; gzip_types *; server { listen 127.0.0.1:$PORT; root $PWD/www; } }
END
nginx -e $PWD/error.log -c $PWD/nginx.conf & sleep 1; touch ready
while :; do curl -sf -H 'Accept-Encoding: gzip' -o /dev/null "http://127.0.0.1:$PORT/index.html?[1-500]" || sleep 1; done`},
	{name: "postgres", exe: ".*/postgres", needs: []string{debianPostgres + "/initdb", debianPostgres + "/pgbench", "runuser"}, script: `
PATH=$(echo ` + debianPostgres + ` | tr ' ' '\n' | tail -1):$PATH; chown postgres .
as() { runuser -u postgres -- "$@"; }
as initdb -D $PWD/pg -A trust >log 2>&1
as postgres -D $PWD/pg -p $PORT -k $PWD -c listen_addresses= >>log 2>&1 &
until as pg_isready -q -h $PWD -p $PORT; do sleep 0.2; done
as pgbench -q -i -s 3 -h $PWD -p $PORT postgres >>log 2>&1; touch ready
while :; do as pgbench -c 2 -T 5 -h $PWD -p $PORT postgres; as pgbench -S -c 2 -T 5 -h $PWD -p $PORT postgres; done >>log 2>&1`},
	{name: "redis", exe: ".*/redis-(server|check-rdb)", needs: []string{"redis-server", "redis-benchmark"}, script: `
redis-server --port $PORT --bind 127.0.0.1 --save '' --dir $PWD >log & sleep 1; touch ready
exec redis-benchmark -p $PORT -l -q -n 20000 -t set,get,lpush,lrange_100,zadd,sadd >/dev/null`},
	{name: "openssl", exe: ".*/openssl", needs: []string{"openssl"}, script: `touch ready
while openssl speed -seconds 2 rsa2048 ecdsap256 sha256 && openssl speed -seconds 2 -evp aes-128-gcm; do :; done >/dev/null 2>&1`},
	{name: "xz", exe: ".*/xz", needs: []string{"xz"}, script: `seq 1 400000 >data; touch ready; while :; do xz -6 -k -c data >data.xz; xz -d -c data.xz >/dev/null; done`},
	{name: "zstd", exe: ".*/zstd", needs: []string{"zstd"}, script: `seq 1 2000000 >data; touch ready; while :; do zstd -q -12 -f data; zstd -q -d -f -o out data.zst; done`},
	{name: "sort and gzip", exe: ".*/(sort|gzip)", needs: []string{"sort", "gzip"}, script: `seq 1 300000 >data; touch ready; while :; do LC_ALL=C.UTF-8 sort -R data | gzip -9 >/dev/null; done`},
	{name: "C++, -O2", exe: ".*/cxx", needs: []string{"g++"}, script: `cat >a.cc <<'END'
#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>
static int depth(int n) { if (n == 0) throw std::runtime_error("end"); return depth(n - 1) + 1; }
int main() {
	for (unsigned round = 0;; round++) {
		std::map<std::string, std::vector<int>> m;
		std::ostringstream text;
		for (unsigned i = 0; i < 2000; i++) m[std::to_string(i * 7919 % 1009)].push_back(i ^ round);
		for (auto &e : m) { std::sort(e.second.begin(), e.second.end(), [](int a, int b) { return a % 13 < b % 13; }); text << e.first << e.second.size(); }
		try { depth(20); } catch (const std::exception &e) { text << e.what(); }
		if (text.str().empty()) return 1;
	}
}
END
g++ -O2 -o cxx a.cc && touch ready && exec $PWD/cxx`},
	{name: "Rust, -O", exe: ".*/rusty", needs: []string{"rustc"}, script: `cat >a.rs <<'END'
use std::collections::{BTreeMap, HashMap};
fn fold(n: u32, s: &str) -> String { if n == 0 { s.to_uppercase() } else { let mut t = fold(n - 1, s); t.push_str(&n.to_string()); t } }
fn main() {
    let mut round = 0u64;
    loop {
        round += 1;
        let mut m: HashMap<String, Vec<u64>> = HashMap::new();
        for i in 0..2000u64 { m.entry(format!("{}", i * 7919 % 1009)).or_default().push(i ^ round); }
        let b: BTreeMap<String, usize> = m.iter().map(|(k, v)| (fold(k.len() as u32 + 10, k), v.len())).collect();
        let mut v: Vec<_> = b.into_iter().collect();
        v.sort_by_key(|e| std::cmp::Reverse(e.1));
        if v.is_empty() { return; }
    }
}
END
rustc -O -o rusty a.rs && touch ready && exec $PWD/rusty`},
	// The threads of its pool have no JavaScript in their stacks.
	{name: "node", exe: ".*/node", needs: []string{"node"}, jit: true, script: `cat >a.js <<'END'
const crypto = require("crypto"), zlib = require("zlib");
let text = "x";
function work() {
	const o = [];
	for (let i = 0; i < 3000; i++) o.push({ k: "x" + i, v: [i, i * 2] });
	text = JSON.stringify(o);
	JSON.parse(text).sort((a, b) => a.k < b.k ? 1 : -1);
	text.replace(/(\d+),(\d+)/g, "$2 $1");
	setTimeout(work, 10);
}
function hash() { crypto.pbkdf2("secret", "salt", 20000, 64, "sha512", hash); }
function pack() { zlib.gzip(text.repeat(10), pack); }
for (const f of [work, hash, hash, pack, pack]) f();
END
touch ready; exec node a.js`},
	{name: "java", exe: ".*/java", needs: []string{"java", "javac"}, jit: true, script: `cat >A.java <<'END'
import java.util.*;
public class A {
	static Object keep;
	public static void main(String[] a) {
		for (long round = 0;; round++) {
			Map<String, List<Long>> m = new HashMap<>();
			for (long i = 0; i < 200000; i++) m.computeIfAbsent("k" + i % 5003, k -> new ArrayList<>()).add(i ^ round);
			keep = m;
		}
	}
}
END
javac A.java && touch ready && exec java -Xmx256m -XX:+UseParallelGC A`},
}

// lacks says what the machine lacks for a program.
func (p program) lacks() string {
	for _, need := range p.needs {
		if strings.Contains(need, "/") {
			if found, err := filepath.Glob(need); err != nil || len(found) == 0 {
				return need + " is missing"
			}
			continue
		}
		if _, err := exec.LookPath(need); err != nil {
			return need + " is missing"
		}
	}
	return ""
}

// start runs the script in a process group of its own, which is killed in the end, and
// waits until the load begins.
func (p program) start(r *harness.Runner) {
	dir := r.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // servers change their user
		r.Fatal(err)
	}
	_, port, _ := strings.Cut(harness.FreeAddress(r), ":")
	cmd := exec.Command("bash", "-c", p.script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PORT="+port)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(done)
	}()
	r.Cleanup(func() {
		group := -cmd.Process.Pid
		_ = syscall.Kill(group, syscall.SIGTERM)
		for range 30 { // servers end their own processes
			if syscall.Kill(group, 0) != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		_ = syscall.Kill(group, syscall.SIGKILL)
		<-done
	})
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, ready)); err == nil {
			return
		}
		select {
		case <-done:
			r.Fatalf("%s has ended: %s", p.name, cmd.ProcessState)
		default:
		}
		if time.Since(began) > time.Minute {
			r.Fatalf("%s is not ready", p.name)
		}
	}
}
