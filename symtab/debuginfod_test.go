package symtab

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// bareProgram is one without symbols whose debug file only a server has.
type bareProgram struct {
	path  string
	id    string
	off   FileOffset // of shop::Cart::total, into which a function is inlined
	debug []byte
}

func newBareProgram(t *testing.T) bareProgram {
	t.Helper()
	prog := compile(t, "g++", "inlined.cc", "-O2", "-g", "-Wl,--build-id")
	dir := filepath.Dir(prog)
	run(t, dir, "objcopy", "--only-keep-debug", prog, prog+".debug")
	run(t, dir, "strip", "-o", prog+".stripped", prog)
	debug, err := os.ReadFile(prog + ".debug")
	if err != nil {
		t.Fatal(err)
	}
	s := bareProgram{path: prog + ".stripped", id: openELF(t, prog).GNUBuildID(), debug: debug}
	if s.id == "" {
		t.Fatal("the program has no build id")
	}
	off, ok := openELF(t, prog).OffsetOf(VirtAddr(textAddr(t, prog, "_ZN4shop4Cart5totalEl")))
	if !ok {
		t.Fatal("the function is not in the file")
	}
	s.off = off
	return s
}

// inlined says whether the program's functions have names, lines and what is inlined.
func (s bareProgram) inlined(m *Module) bool {
	hits := 0
	for i := range FileOffset(60) {
		var names []string
		for _, f := range m.Frames(s.off + i) {
			if !strings.HasSuffix(f.File, "/inlined.cc") || f.Line < 3 || f.Line > 11 {
				return false
			}
			names = append(names, f.Name)
		}
		if slices.Equal(names, []string{"shop::price(long)", "shop::Cart::total(long)"}) || slices.Equal(names, []string{"price", "shop::Cart::total(long)"}) {
			hits++
		}
	}
	return hits >= 10
}

func (s bareProgram) nameless(m *Module) bool {
	for i := range FileOffset(60) {
		if m.Frames(s.off+i) != nil {
			return false
		}
	}
	return true
}

// debuginfodServer answers by build id; a file that is not there is a 404.
func debuginfodServer(t *testing.T, files map[string][]byte) (url string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		b, ok := files[strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/buildid/"), "/debuginfo")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Write(b)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, asked
}

// waitFetch waits until a request has ended with a result.
func waitFetch(t *testing.T, c *Cache, result string, n float64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); testutil.ToFloat64(c.metrics.fetches.WithLabelValues(result)) < n; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no fetch was counted as %s", result)
		}
	}
}

// TestDebuginfod: the first answers are made of what is there; when the debug file has
// come, the next round has names, lines and inlined functions.
func TestDebuginfod(t *testing.T) {
	p := newBareProgram(t)
	url, asked := debuginfodServer(t, map[string][]byte{p.id: p.debug})
	dir := filepath.Join(t.TempDir(), "debuginfod")
	opts := Options{Inline: true, Debuginfod: Debuginfod{URLs: []string{url}, Dir: dir}}
	before := openFiles(t)
	reg := prometheus.NewPedanticRegistry()
	c := NewCache(nil, reg, opts)
	defer c.Close()

	// The program is deleted after its first use, as a short-lived one may be.
	path := filepath.Join(t.TempDir(), "prog")
	copyFile(t, p.path, path)
	m := moduleOf(t, c, path, dirRoot("/"))
	if !p.nameless(m) {
		t.Errorf("named before: %v", m.Frames(p.off))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	waitFetch(t, c, "found", 1)
	if !p.nameless(m) || m.Generation() != 0 {
		t.Error("the names changed within a round")
	}
	c.Expire(time.Now())
	if m.Generation() != 1 || !p.inlined(m) {
		t.Errorf("generation %d, %v, %v", m.Generation(), m.Frames(p.off), m.Err())
	}
	for range 3 {
		c.Expire(time.Now())
	}
	if m.Generation() != 1 || !p.inlined(m) || asked.Load() != 1 {
		t.Errorf("later: generation %d, %d requests", m.Generation(), asked.Load())
	}
	if s := c.Stats(); s.Tables != 1 {
		t.Errorf("%d tables", s.Tables)
	}
	if n := testutil.ToFloat64(c.metrics.evicted.WithLabelValues("debug_file")); n != 1 {
		t.Errorf("%v tables were replaced", n)
	}

	// Another copy of the program needs no request, and has all at once.
	m2 := moduleOf(t, c, p.path, nil)
	if !p.inlined(m2) || !p.inlined(m) {
		t.Error("a copy has no names, or its first reading took those of the other")
	}
	c.Close()
	if n := openFiles(t); n > before+4 { // connections of the server
		t.Errorf("%d files open, were %d", n, before)
	}

	// So has a later run, even if the server is gone.
	opts.Debuginfod.URLs = []string{"http://127.0.0.1:1"}
	c = newCache(t, opts)
	if m := moduleOf(t, c, p.path, nil); !p.inlined(m) || asked.Load() != 1 {
		t.Errorf("after a restart: %v", m.Frames(p.off))
	}
}

// TestDebuginfodRefused has what leaves a program as it is.
func TestDebuginfodRefused(t *testing.T) {
	p := newBareProgram(t)
	other := compile(t, "gcc", "c.c", "-g", "-Wl,--build-id")
	wrong, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		files  map[string][]byte
		opts   Debuginfod
		result string
	}{
		{"404", nil, Debuginfod{}, "not_found"},
		{"another build id", map[string][]byte{p.id: wrong}, Debuginfod{}, "invalid"},
		{"oversize", map[string][]byte{p.id: p.debug}, Debuginfod{MaxBytes: int64(len(p.debug)) - 1}, "too_large"},
		{"no folder", map[string][]byte{p.id: p.debug}, Debuginfod{Dir: filepath.Join(file, "cache")}, "not_kept"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked *atomic.Int32
			var url string
			url, asked = debuginfodServer(t, tt.files)
			tt.opts.URLs = []string{url}
			if tt.opts.Dir == "" {
				tt.opts.Dir = t.TempDir()
			}
			c := newCache(t, Options{Inline: true, Debuginfod: tt.opts})
			m := moduleOf(t, c, p.path, nil)
			if !p.nameless(m) {
				t.Error("named before")
			}
			waitFetch(t, c, tt.result, 1)
			for range 3 {
				c.Expire(time.Now())
			}
			if !p.nameless(m) || m.Generation() != 0 || asked.Load() > 1 {
				t.Errorf("generation %d, %d requests, %v", m.Generation(), asked.Load(), m.Frames(p.off))
			}
		})
	}
}

// TestDebuginfodHanging: nothing waits for a server.
func TestDebuginfodHanging(t *testing.T) {
	p := newBareProgram(t)
	end := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	defer srv.Close()
	defer close(end)
	c := newCache(t, Options{Inline: true, Debuginfod: Debuginfod{URLs: []string{srv.URL}, Dir: t.TempDir(), Timeout: time.Hour}})
	began := time.Now()
	for range 20 {
		path := filepath.Join(t.TempDir(), "prog")
		copyFile(t, p.path, path)
		if m := moduleOf(t, c, path, nil); !p.nameless(m) {
			t.Error("named")
		}
		c.Expire(time.Now())
	}
	c.SetOptions(Options{})
	c.Close()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("names, rounds and the end took %v", d)
	}
}

// TestDebuginfodWhen has which files are asked for.
func TestDebuginfodWhen(t *testing.T) {
	p := newBareProgram(t)
	whole := strings.TrimSuffix(p.path, ".stripped")
	dir := filepath.Dir(whole)
	run(t, dir, "strip", "-g", "-o", whole+".nodebug", whole)
	run(t, dir, "objcopy", "-S", "--add-gnu-debuglink="+whole+".debug", whole, whole+".linked")
	run(t, dir, "objcopy", "-S", "--remove-section=.note.gnu.build-id", whole, whole+".noid")
	for _, tt := range []struct {
		name, path string
		asked      int32
	}{
		{"stripped", p.path, 1},
		{"with symbols only", whole + ".nodebug", 1},
		{"with debugging information", whole, 0},
		{"with a debug file", whole + ".linked", 0},
		{"without a build id", whole + ".noid", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url, asked := debuginfodServer(t, map[string][]byte{p.id: p.debug})
			c := newCache(t, Options{Inline: true, Debuginfod: Debuginfod{URLs: []string{url}, Dir: t.TempDir()}})
			m := moduleOf(t, c, tt.path, dirRoot("/"))
			m.Frames(p.off)
			waitFetch(t, c, "found", float64(tt.asked))
			c.Expire(time.Now())
			if named := p.inlined(m); asked.Load() != tt.asked || named != (tt.name != "without a build id") {
				t.Errorf("%d requests, want %d; named %v", asked.Load(), tt.asked, named)
			}
		})
	}
}

// TestDebuginfodCommonFile: the common file that dwz made is fetched, too.
func TestDebuginfodCommonFile(t *testing.T) {
	if _, err := exec.LookPath("dwz"); err != nil {
		t.Skip("dwz is needed")
	}
	p := newBareProgram(t)
	whole := strings.TrimSuffix(p.path, ".stripped")
	dir := filepath.Dir(whole)
	a, b := whole+".dwz.debug", whole+".dwz2.debug"
	run(t, dir, "cp", whole+".debug", a)
	run(t, dir, "cp", whole+".debug", b)
	run(t, dir, "dwz", "-m", dir+"/common", "-M", "/nowhere/common", a, b)
	files := map[string][]byte{}
	for path, id := range map[string]string{a: p.id, dir + "/common": openELF(t, dir+"/common").GNUBuildID()} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[id] = data
	}
	if len(files) != 2 {
		t.Fatal("the common file has no build id of its own")
	}
	url, asked := debuginfodServer(t, files)
	c := newCache(t, Options{Inline: true, Debuginfod: Debuginfod{URLs: []string{url}, Dir: t.TempDir()}})
	m := moduleOf(t, c, p.path, dirRoot("/"))
	for n := range 2 {
		m.Frames(p.off)
		waitFetch(t, c, "found", float64(n+1))
		c.Expire(time.Now())
	}
	if !p.inlined(m) || asked.Load() != 2 {
		t.Errorf("%d requests, %v", asked.Load(), m.Frames(p.off))
	}
}

// TestDebuginfodOptions turns it on and off.
func TestDebuginfodOptions(t *testing.T) {
	p := newBareProgram(t)
	url, asked := debuginfodServer(t, map[string][]byte{p.id: p.debug})
	on := Options{Inline: true, Debuginfod: Debuginfod{URLs: []string{url}, Dir: filepath.Join(t.TempDir(), "cache")}}
	c := newCache(t, Options{Inline: true})
	m := moduleOf(t, c, p.path, nil)
	if !p.nameless(m) || asked.Load() != 0 {
		t.Error("asked though it is off")
	}
	c.SetOptions(on)
	if !p.nameless(m) {
		t.Error("named before")
	}
	waitFetch(t, c, "found", 1)
	c.Expire(time.Now())
	if !p.inlined(m) {
		t.Error("not named after it was turned on")
	}
	c.SetOptions(on)
	if c.Stats().Tables != 1 {
		t.Error("the same options took the tables away")
	}
	c.SetOptions(Options{Inline: true})
	if !p.nameless(m) {
		t.Error("named after it was turned off")
	}
	on.Debuginfod.Timeout = time.Minute
	c.SetOptions(on)
	if !p.inlined(m) || asked.Load() != 1 {
		t.Errorf("turned on again: %v, %d requests", m.Frames(p.off), asked.Load())
	}
}
