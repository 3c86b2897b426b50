package debuginfod

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/log"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// elfFile is the smallest ELF file with a build id, and size bytes long.
func elfFile(t *testing.T, id string, size int) []byte {
	t.Helper()
	desc, err := hex.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	var note bytes.Buffer
	for _, v := range []uint32{4, uint32(len(desc)), 3} { // NT_GNU_BUILD_ID
		binary.Write(&note, binary.LittleEndian, v)
	}
	note.WriteString("GNU\x00")
	note.Write(desc)
	var b bytes.Buffer
	h := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	binary.Write(&b, binary.LittleEndian, h)
	binary.Write(&b, binary.LittleEndian, elf.Prog64{
		Type: uint32(elf.PT_NOTE), Off: 120, Filesz: uint64(note.Len()), Memsz: uint64(note.Len()), Align: 4,
	})
	b.Write(note.Bytes())
	if pad := size - b.Len(); pad > 0 {
		b.Write(make([]byte, pad))
	}
	return b.Bytes()
}

func buildID(n int) string { return fmt.Sprintf("%040x", n+1) }

// rig is a client, what it counted and its clock.
type rig struct {
	*Client
	dir string

	mu      sync.Mutex
	results map[string]int
	evicted int
	logged  bytes.Buffer
	ahead   atomic.Int64
}

func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }

func (r *rig) count(result string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.results[result]
}

func (r *rig) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logged.String()
}

func (r *rig) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logged.Write(b)
}

// start makes a client of servers. Its directory is that of opts, or a new one.
func start(t *testing.T, opts Options) *rig {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = filepath.Join(t.TempDir(), "cache")
	}
	if opts.Timeout == 0 {
		opts.Timeout = 10 * time.Second
	}
	r := &rig{dir: opts.Dir, results: map[string]int{}}
	c, err := newClient(log.NewLogfmtLogger(r), opts, Hooks{
		Result: func(result string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.results[result]++
		},
		Evicted: func() { r.evicted++ },
	}, r.now)
	if err != nil {
		t.Fatal(err)
	}
	r.Client = c
	t.Cleanup(c.Close)
	return r
}

// serve is a server whose answers are a function's.
func serve(t *testing.T, f func(w http.ResponseWriter, r *http.Request, id string)) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		if len(parts) != 4 || parts[1] != "buildid" || parts[3] != "debuginfo" || r.Method != http.MethodGet {
			t.Errorf("%s %s was asked for", r.Method, r.URL.Path)
			return
		}
		f(w, r, parts[2])
	}))
	t.Cleanup(s.Close)
	return s
}

func (r *rig) wait(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.mu.Lock()
			defer r.mu.Unlock()
			t.Fatalf("%s: not so; results %v, log:\n%s", what, r.results, r.logged.String())
		}
	}
}

// fetched asks for a file until its result is counted once more.
func (r *rig) fetched(t *testing.T, id, result string) {
	t.Helper()
	before := r.count(result)
	if r.Ask(id) {
		t.Fatalf("%s is here already", id)
	}
	r.wait(t, "counted as "+result, func() bool { return r.count(result) == before+1 })
}

// names are the files of the directory.
func (r *rig) names(t *testing.T) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestFetch(t *testing.T) {
	id := buildID(1)
	want := elfFile(t, id, 300<<10)
	var asked atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request, got string) {
		asked.Add(1)
		if got != id || r.Header.Get("X-DEBUGINFOD-MAXSIZE") != strconv.Itoa(DefaultMaxBytes) || !strings.HasPrefix(r.UserAgent(), "spanflame/") {
			t.Errorf("asked for %s with %v", got, r.Header)
		}
		w.Write(want)
	})
	r := start(t, Options{URLs: []string{s.URL}})
	if _, _, err := r.Open(id); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	r.wait(t, "found", func() bool { return r.count(Found) == 1 })
	f, release, err := r.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer release()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if st, err := os.Stat(r.dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", st.Mode(), err)
	}
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", st.Mode(), err)
	}
	if files, size := r.Stats(); files != 1 || size != onDisk(int64(len(want))) {
		t.Errorf("%d files, %d bytes", files, size)
	}

	// Another agent must not use the same directory.
	other := start(t, Options{URLs: []string{s.URL}, Dir: r.dir})
	if other.Ask(id) || other.count(NotKept) != 1 || !strings.Contains(other.log(), "another agent") {
		t.Errorf("a second client: %v", other.log())
	}

	// A later run finds the file; nobody is asked.
	r.Close()
	s.Close()
	again := start(t, Options{URLs: []string{s.URL}, Dir: r.dir})
	if !again.Ask(id) || asked.Load() != 1 {
		t.Errorf("after a restart: not found, or %d requests", asked.Load())
	}
}

// TestRefused has what must not be kept, and how it is counted. Nothing is left of it.
func TestRefused(t *testing.T) {
	id := buildID(1)
	good := elfFile(t, id, 100<<10)
	for _, tt := range []struct {
		name   string
		answer func(w http.ResponseWriter)
		want   string
		pauses bool
	}{
		{"404", func(w http.ResponseWriter) { http.Error(w, "no", http.StatusNotFound) }, NotFound, false},
		{"406", func(w http.ResponseWriter) { http.Error(w, "no", http.StatusNotAcceptable) }, TooLarge, false},
		{"500", func(w http.ResponseWriter) { http.Error(w, "no", http.StatusInternalServerError) }, Failed, true},
		{"401", func(w http.ResponseWriter) { http.Error(w, "no", http.StatusUnauthorized) }, Failed, true},
		{"another build id", func(w http.ResponseWriter) { w.Write(elfFile(t, buildID(2), 100<<10)) }, Invalid, false},
		{"no ELF file", func(w http.ResponseWriter) { w.Write([]byte("<html>sorry</html>")) }, Invalid, false},
		{"nothing", func(http.ResponseWriter) {}, Invalid, false},
		{"cut header", func(w http.ResponseWriter) { w.Write(good[:30]) }, Invalid, false},
		{"not the size it tells", func(w http.ResponseWriter) {
			w.Header().Set("X-DEBUGINFOD-SIZE", "102401")
			w.Write(good)
		}, Invalid, false},
		{"cut off", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "102401")
			w.Write(good)
		}, Failed, true},
		{"too large, as it tells", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "2000000")
			w.Write(good)
		}, TooLarge, false},
		{"endless", func(w http.ResponseWriter) {
			w.Write(good)
			for zeros := make([]byte, 64<<10); ; {
				if _, err := w.Write(zeros); err != nil {
					return
				}
			}
		}, TooLarge, false},
		{"redirected in a circle", func(w http.ResponseWriter) {
			w.Header().Set("Location", "/buildid/"+id+"/debuginfo")
			w.WriteHeader(http.StatusFound)
		}, Failed, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked atomic.Int32
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				asked.Add(1)
				tt.answer(w)
			})
			r := start(t, Options{URLs: []string{s.URL}, MaxBytes: 1 << 20})
			r.fetched(t, id, tt.want)
			if n := r.names(t); len(n) != 0 {
				t.Errorf("left behind: %v", n)
			}
			if _, size := r.Stats(); size != 0 {
				t.Errorf("%d bytes are counted", size)
			}
			if warned := strings.Contains(r.log(), "level=warn"); warned != tt.pauses {
				t.Errorf("log:\n%s", r.log())
			}
			// It is not asked for again at once.
			r.wait(t, "no longer waiting", func() bool {
				r.Client.mu.Lock()
				defer r.Client.mu.Unlock()
				return len(r.waiting) == 0
			})
			before := asked.Load()
			r.Ask(id)
			r.Client.mu.Lock()
			if len(r.waiting) != 0 {
				t.Error("asked for again at once")
			}
			r.Client.mu.Unlock()
			r.ahead.Add(int64(retryNotFound + time.Second))
			r.fetched(t, id, tt.want)
			if asked.Load() == before {
				t.Error("not asked for again later")
			}
		})
	}
}

// TestServers asks the second server when the first has not got it or fails, and a failing
// one less and less often.
func TestServers(t *testing.T) {
	var asked atomic.Int32
	bad := serve(t, func(w http.ResponseWriter, r *http.Request, id string) {
		asked.Add(1)
		if user, password, _ := r.BasicAuth(); user != "me" || password != "hunter2" {
			t.Errorf("as %s:%s", user, password)
		}
		if id == buildID(0) {
			http.NotFound(w, r)
			return
		}
		http.Error(w, "broken", http.StatusBadGateway)
	})
	good := serve(t, func(w http.ResponseWriter, _ *http.Request, id string) { w.Write(elfFile(t, id, 0)) })
	r := start(t, Options{URLs: []string{strings.Replace(bad.URL, "//", "//me:hunter2@", 1) + "/", good.URL}})
	for i := range 5 {
		r.fetched(t, buildID(i), Found)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("the failing server was asked %d times, want 2", n)
	}
	r.ahead.Add(int64(minPause + time.Second))
	r.fetched(t, buildID(5), Found)
	r.ahead.Add(int64(minPause + time.Second)) // now it is twice as long
	r.fetched(t, buildID(6), Found)
	if n := asked.Load(); n != 3 {
		t.Errorf("the failing server was asked %d times, want 3", n)
	}
	if l := r.log(); strings.Contains(l, "hunter2") || strings.Contains(l, "me@") || strings.Count(l, "level=warn") != 1 {
		t.Errorf("log:\n%s", l)
	}
}

// TestHanging: a server that hangs, before or in its answer, holds nobody up, and is left
// alone after the time-out.
func TestHanging(t *testing.T) {
	for _, part := range []int{0, 200, 150 << 10} {
		t.Run(strconv.Itoa(part), func(t *testing.T) {
			end := make(chan struct{})
			s := serve(t, func(w http.ResponseWriter, r *http.Request, id string) {
				if part > 0 {
					w.Write(elfFile(t, id, part))
					w.(http.Flusher).Flush()
				}
				select {
				case <-end:
				case <-r.Context().Done():
				}
			})
			defer close(end)
			r := start(t, Options{URLs: []string{s.URL}, Timeout: 300 * time.Millisecond})
			began := time.Now()
			for i := range 1000 {
				r.Ask(buildID(i))
			}
			if d := time.Since(began); d > 200*time.Millisecond {
				t.Errorf("asking took %v", d)
			}
			if n := r.count(QueueFull); n < 1000-maxWaiting-workers || n > 1000-maxWaiting {
				t.Errorf("%d did not fit into the queue", n)
			}
			r.wait(t, "failed", func() bool { return r.count(Failed) == workers })
			r.wait(t, "the queue is empty", func() bool {
				r.Client.mu.Lock()
				defer r.Client.mu.Unlock()
				return len(r.waiting) == 0
			})
			if r.count(Failed) != workers || !strings.Contains(r.log(), errStalled.Error()) {
				t.Errorf("%d failed; log:\n%s", r.count(Failed), r.log())
			}
			if n := r.names(t); len(n) != 0 {
				t.Errorf("left behind: %v", n)
			}
		})
	}
	// A client that is closed does not wait for the server.
	end := make(chan struct{})
	s := serve(t, func(_ http.ResponseWriter, _ *http.Request, _ string) { <-end })
	defer close(end)
	r := start(t, Options{URLs: []string{s.URL}, Timeout: time.Hour})
	r.Ask(buildID(0))
	time.Sleep(20 * time.Millisecond)
	began := time.Now()
	r.Close()
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("closing took %v", d)
	}
}

func TestBuildIDs(t *testing.T) {
	s := serve(t, func(_ http.ResponseWriter, _ *http.Request, id string) { t.Errorf("asked for %q", id) })
	r := start(t, Options{URLs: []string{s.URL}})
	for _, id := range []string{"", "ab", "abc", "ABCD", "../../../../etc/passwd", "ab/cd", "00zz", strings.Repeat("ab", 65), "abcd\n", "ab%2f"} {
		if r.Ask(id) {
			t.Errorf("%q is here", id)
		}
		if _, _, err := r.Open(id); err == nil {
			t.Errorf("%q was opened", id)
		}
	}
	if len(r.waiting) != 0 {
		t.Errorf("waiting for %v", r.waiting)
	}
	if !validBuildID(strings.Repeat("ab", 64)) || !validBuildID("0f3a") {
		t.Error("a good build id is refused")
	}
}

func TestEviction(t *testing.T) {
	const size = 100 << 10
	s := serve(t, func(w http.ResponseWriter, _ *http.Request, id string) { w.Write(elfFile(t, id, size)) })
	r := start(t, Options{URLs: []string{s.URL}, MaxBytes: 3*size + 50<<10})
	for i := range 3 {
		r.fetched(t, buildID(i), Found)
		r.ahead.Add(int64(time.Second))
	}
	// The first is used again, the second is in use.
	f, release, err := r.Open(buildID(0))
	if err != nil {
		t.Fatal(err)
	}
	before := modTime(t, f)
	if f2, release, err := r.Open(buildID(0)); err != nil || !modTime(t, f2).Equal(before) {
		t.Errorf("%v, or use changes the modification time, which stands for the content", err)
	} else {
		f2.Close()
		release()
	}
	release()
	f.Close()
	r.ahead.Add(int64(time.Second))
	f, release, err = r.Open(buildID(1))
	if err != nil {
		t.Fatal(err)
	}
	r.fetched(t, buildID(3), Found)
	r.ahead.Add(int64(time.Second))
	r.fetched(t, buildID(4), Found)
	here := r.Client.dir.has // Ask would fetch the others
	if here(buildID(2)) || here(buildID(0)) || !here(buildID(1)) || !here(buildID(3)) || !here(buildID(4)) {
		t.Errorf("kept: %v", r.names(t))
	}
	if _, err := os.Stat(f.Name()); err != nil {
		t.Errorf("the file in use: %v", err)
	}
	if _, bytes := r.Stats(); bytes > r.opts.MaxBytes {
		t.Errorf("%d bytes", bytes)
	}

	// When all is in use, nothing new is kept and nothing is lost.
	var all []func()
	for _, i := range []int{3, 4} {
		f, release, err := r.Open(buildID(i))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		all = append(all, release)
	}
	r.fetched(t, buildID(9), NotKept)
	if n := r.names(t); len(n) != 3 {
		t.Errorf("kept: %v", n)
	}
	release()
	for _, release := range all {
		release()
	}
	f.Close()
}

func modTime(t *testing.T, f *os.File) time.Time {
	t.Helper()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return st.ModTime()
}

// TestStart: what a killed run left is removed, what is not the client's stays, and the
// bound holds from the start, by last use.
func TestStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range 4 {
		name := filepath.Join(dir, buildID(i)+suffix)
		if err := os.WriteFile(name, elfFile(t, buildID(i), 400<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, now.Add(time.Duration(i-10)*time.Minute), now); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"fetch-123.tmp", "readme", "zz.debug"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "abcd.debug")); err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{URLs: []string{"http://127.0.0.1:1"}, Dir: dir, MaxBytes: 1 << 20})
	if got, want := fmt.Sprint(r.names(t)), fmt.Sprint([]string{buildID(2) + suffix, buildID(3) + suffix, "abcd.debug", "readme", "zz.debug"}); got != want {
		t.Errorf("left %v, want %v", got, want)
	}
	if r.evicted != 2 || r.Ask("abcd") {
		t.Errorf("%d evicted", r.evicted)
	}

	// A file that disappeared is asked for again.
	if err := os.Remove(filepath.Join(dir, buildID(2)+suffix)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Open(buildID(2)); !errors.Is(err, os.ErrNotExist) || r.Ask(buildID(2)) {
		t.Errorf("opened: %v", err)
	}
}

// TestDisk: a directory that cannot be used is told of once and tried again.
func TestDisk(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request, id string) { w.Write(elfFile(t, id, 200<<10)) })
	parent := t.TempDir()
	file := filepath.Join(parent, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{URLs: []string{s.URL}, Dir: filepath.Join(file, "cache")})
	if r.count(NotKept) != 1 || r.Ask(buildID(0)) || len(r.waiting) != 0 {
		t.Error("asked for a file that cannot be kept")
	}
	r.ahead.Add(int64(time.Minute))
	r.fetched(t, buildID(0), NotKept)
	if n := strings.Count(r.log(), "level=warn"); n != 1 {
		t.Errorf("log:\n%s", r.log())
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	r.ahead.Add(int64(2 * time.Minute))
	r.wait(t, "no longer waiting", func() bool {
		r.Client.mu.Lock()
		defer r.Client.mu.Unlock()
		return len(r.waiting) == 0
	})
	r.fetched(t, buildID(0), Found)

	open := filepath.Join(parent, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if r = start(t, Options{URLs: []string{s.URL}, Dir: open}); !strings.Contains(r.log(), "others may write") {
		t.Errorf("log:\n%s", r.log())
	}
}

func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Skipf("a small file system is needed, and root to mount it: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request, id string) {
		size := 1 << 20
		if id == buildID(1) {
			size = 50 << 10
		}
		w.Write(elfFile(t, id, size))
	})
	r := start(t, Options{URLs: []string{s.URL}, Dir: dir})
	r.fetched(t, buildID(0), NotKept)
	if !strings.Contains(r.log(), "no space left") || len(r.names(t)) != 0 {
		t.Errorf("left %v; log:\n%s", r.names(t), r.log())
	}
	if _, bytes := r.Stats(); bytes != 0 {
		t.Errorf("%d bytes are counted", bytes)
	}
	r.ahead.Add(int64(time.Minute))
	r.fetched(t, buildID(1), Found)
	r.Close()
}

func TestRefusedIsBounded(t *testing.T) {
	r := start(t, Options{URLs: []string{"http://127.0.0.1:1"}})
	for i := range maxRefused + 100 {
		r.refuse(buildID(i), time.Hour)
	}
	if n := len(r.refused); n > maxRefused {
		t.Errorf("%d are remembered", n)
	}
}

func TestRedirects(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request, id string) {
		if r.URL.RawQuery == "" {
			http.Redirect(w, r, r.URL.Path+"?there", http.StatusFound)
			return
		}
		w.Write(elfFile(t, id, 0))
	})
	r := start(t, Options{URLs: []string{s.URL}})
	r.fetched(t, buildID(0), Found)

	req := func(url string) *http.Request {
		q, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	if checkRedirect(req("http://a/"), []*http.Request{req("https://a/")}) == nil {
		t.Error("from https to http")
	}
	if err := checkRedirect(req("https://b/"), []*http.Request{req("http://a/")}); err != nil {
		t.Error(err)
	}
}
