package symtab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/spanflame/spanflame/internal/elffile"
)

// cProgram is the compiled C program and the offset of its global_fn.
func cProgram(t *testing.T) (string, FileOffset) {
	t.Helper()
	prog := compile(t, "gcc", "c.c")
	return prog, FileOffset(newOracle(t, prog).offset(symbolAddr(t, prog, "global_fn")))
}

// copyFile makes a copy under a new inode.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestErrors(t *testing.T) {
	prog, off := cProgram(t)
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\necho hello, this is no ELF file at all, but long enough\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut")
	copyFile(t, prog, cut)
	if err := os.Truncate(cut, 5000); err != nil {
		t.Fatal(err)
	}
	nameless := filepath.Join(dir, "nameless")
	run(t, ".", "strip", "-s", "-o", nameless, compile(t, "gcc", "c.c", "-static"))
	opener := func(path string) Opener { return func() (*os.File, error) { return os.Open(path) } }
	for _, tc := range []struct {
		name string
		id   FileID
		open Opener
		want error
	}{
		{"another inode", FileID{Ino: 1 << 60}, opener(prog), ErrReplaced},
		{"no file", FileID{}, opener(filepath.Join(dir, "none")), os.ErrNotExist},
		{"no opener", FileID{}, nil, ErrNoFile},
		{"opener without a file", FileID{}, func() (*os.File, error) { return nil, nil }, ErrNoFile},
		{"a script", FileID{}, opener(text), elffile.ErrNotELF},
		{"cut off", FileID{}, opener(cut), elffile.ErrCorrupt},
		{"no names", FileID{}, opener(nameless), ErrNoSymbols},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newCache(t, Options{}).Module(tc.id, "/x/"+tc.name, tc.open, nil)
			if fr := m.Frames(off); tc.name != "cut off" && fr != nil {
				t.Errorf("named %v", fr)
			}
			if err := m.Err(); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "/x/"+tc.name) {
				t.Errorf("error %v, want %v with the path", err, tc.want)
			}
			if errors.Is(tc.want, ErrNoSymbols) && m.HasFunctions() {
				t.Error("a file without names has functions")
			}
		})
	}
	t.Run("a directory", func(t *testing.T) {
		before := openFiles(t)
		m := newCache(t, Options{}).Module(FileID{}, dir, opener(dir), nil)
		if m.Err() == nil {
			t.Error("a directory was read")
		}
		if n := openFiles(t); n != before {
			t.Errorf("%d files open, were %d", n, before)
		}
	})
}

// TestIdentity: one table for a file, and none for another that took its place.
func TestIdentity(t *testing.T) {
	prog, off := cProgram(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "prog")
	copyFile(t, prog, path)
	c := newCache(t, Options{})
	m := moduleOf(t, c, path, nil)
	if m != moduleOf(t, c, path, nil) {
		t.Error("a second module for the same file")
	}
	if m != c.Module(m.key.id, "/elsewhere/prog"+deletedSuffix, nil, nil) {
		t.Error("a second module for the same file, deleted, in another root")
	}
	m = moduleOf(t, c, path, nil) // the call before took its opener away
	if fr := m.Frames(off); fr == nil || fr[0].Name != "global_fn" && fr[0].Name != "plain_alias" {
		t.Fatalf("frames %v", fr)
	}

	// An upgrade puts another file under the path; the mapped one is still open.
	other := compile(t, "g++", "cpp.cc")
	copyFile(t, other, filepath.Join(dir, "new"))
	if err := os.Rename(filepath.Join(dir, "new"), path); err != nil {
		t.Fatal(err)
	}
	c.Expire(time.Now())
	if m.Frames(off) == nil {
		t.Error("the file that is still mapped lost its names when it was unlinked")
	}
	c.Expire(time.Now().Add(24 * time.Hour))
	if fr := m.Frames(off); fr != nil || !errors.Is(m.Err(), ErrReplaced) {
		t.Errorf("named %v by the file that took its place; error %v", fr, m.Err())
	}
}

// TestChangeInPlace: a file that is written over gets its new names.
func TestChangeInPlace(t *testing.T) {
	prog, off := cProgram(t)
	path := filepath.Join(t.TempDir(), "prog")
	copyFile(t, prog, path)
	c := newCache(t, Options{})
	m := moduleOf(t, c, path, nil)
	if m.Frames(off) == nil {
		t.Fatal("no names")
	}
	rest := m.Frames(off + 1)
	copyFile(t, compile(t, "g++", "cpp.cc"), path)
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	c.Expire(time.Now())
	if fr := m.Frames(off + 1); fr != nil && fr[0].Name == rest[0].Name {
		t.Errorf("still named %v", fr)
	}
	o := newOracle(t, path)
	for _, s := range o.syms {
		if s.size > 0 && s.name == "main" {
			if fr := m.Frames(FileOffset(o.offset(s.start))); fr == nil || fr[0].Name != "main" {
				t.Errorf("main of the new content is named %v", fr)
			}
		}
	}

	// Without Expire, too, a name that was not read yet is not read from new content.
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	for a := off; a < off+4096; a++ {
		m.Frames(a)
	}
	if err := m.Err(); err == nil {
		t.Error("the truncated file is not told of")
	}
}

func TestEviction(t *testing.T) {
	prog, off := cProgram(t)
	dir := t.TempDir()
	sized := moduleOf(t, newCache(t, Options{}), prog, nil)
	sized.Frames(off)
	_, one := sized.Size()
	for _, tc := range []struct {
		name   string
		opts   Options
		after  time.Duration
		reason string
		keep   int
	}{
		{"age", Options{MaxAge: time.Minute}, 2 * time.Minute, "age", 0},
		{"files", Options{MaxFiles: 3}, time.Second, "files", 3},
		{"bytes", Options{MaxBytes: one * 5 / 2}, time.Second, "bytes", 2},
		{"within bounds", Options{}, time.Second, "age", 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := openFiles(t)
			reg := prometheus.NewPedanticRegistry()
			c := NewCache(nil, reg, tc.opts)
			var ms []*Module
			for i := range 8 {
				path := filepath.Join(dir, fmt.Sprintf("%s%d", tc.name, i))
				copyFile(t, prog, path)
				m := moduleOf(t, c, path, nil)
				if fr := m.Frames(off); fr == nil {
					t.Fatal(m.Err())
				}
				ms = append(ms, m)
			}
			c.Expire(time.Now().Add(tc.after))
			if n := c.Stats().Tables; n > tc.keep || n < tc.keep-1 {
				t.Errorf("%d tables, want %d", n, tc.keep)
			}
			if n := openFiles(t) - before; n != c.Stats().Tables {
				t.Errorf("%d files open for %d tables", n, c.Stats().Tables)
			}
			if got := testutil.ToFloat64(c.metrics.evicted.WithLabelValues(tc.reason)); got < float64(8-tc.keep) {
				t.Errorf("%v evictions counted", got)
			}
			if ms[0].Frames(off) == nil { // comes back when asked
				t.Error(ms[0].Err())
			}
			if _, err := reg.Gather(); err != nil {
				t.Error(err)
			}
			c.Close()
			c.Close()
			if n := openFiles(t); n != before {
				t.Errorf("%d files open after Close, were %d", n, before)
			}
			ms[1].Frames(off)
			if n := openFiles(t); n != before {
				t.Errorf("%d files open after use of a closed cache, were %d", n, before)
			}
			if used := c.frames.used.Load(); used != 0 {
				t.Errorf("%d bytes of frames still counted", used)
			}
		})
	}
}

// TestWarmRound: the same addresses cost no reading, demangling or memory again.
func TestWarmRound(t *testing.T) {
	prog := compile(t, "g++", "cpp.cc")
	o := newOracle(t, prog)
	c := newCache(t, Options{})
	m := moduleOf(t, c, prog, nil)
	var offs []FileOffset
	for _, s := range o.syms {
		if s.size > 0 {
			offs = append(offs, FileOffset(o.offset(s.start)))
		}
	}
	first := make([][]Frame, len(offs))
	for i, off := range offs {
		first[i] = m.Frames(off)
	}
	c.Expire(time.Now())
	if n := testing.AllocsPerRun(10, func() {
		for i, off := range offs {
			fr := m.Frames(off)
			if len(fr) > 0 && unsafe.StringData(fr[0].Name) != unsafe.StringData(first[i][0].Name) {
				t.Error("a name was made again")
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations in a warm round", n)
	}
}

// TestFrameBudget: looking everything up does not take more than the bound.
func TestFrameBudget(t *testing.T) {
	prog := goProgram(t, false)
	c := newCache(t, Options{Inline: true, MaxBytes: 1 << 20})
	m := moduleOf(t, c, prog, nil)
	text := newOracle(t, prog).file.Section(".text")
	for off := text.Offset; off < text.Offset+text.FileSize; off += 37 {
		m.Frames(FileOffset(off))
		if used := c.frames.used.Load(); used > 1<<19 {
			t.Fatalf("%d bytes of frames", used)
		}
	}
	if m.Frames(FileOffset(text.Offset)) == nil {
		t.Error(m.Err())
	}
}

func TestConcurrentUse(t *testing.T) {
	prog, off := cProgram(t)
	goProg := goProgram(t, true)
	goOff := FileOffset(newOracle(t, goProg).offset(textAddr(t, goProg, "main.Chain")))
	reg := prometheus.NewRegistry()
	c := NewCache(nil, reg, Options{Inline: true, MaxFiles: 2})
	stop := time.Now().Add(time.Second)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for i := 0; time.Now().Before(stop); i++ {
				path, at := prog, off
				if (g+i)%2 == 0 {
					path, at = goProg, goOff
				}
				m := c.Module(FileID{}, path+strings.Repeat("x", i%3), func() (*os.File, error) { return os.Open(path) }, nil)
				fr := m.Frames(at + FileOffset(i%8))
				if fr != nil && fr[len(fr)-1].Name != "main.Chain" && fr[0].Name != "global_fn" && fr[0].Name != "plain_alias" {
					t.Errorf("%s: %v", path, fr)
				}
				m.BuildID()
				c.VDSO().Frames(FileOffset(i))
			}
		})
	}
	wg.Go(func() {
		for i := 0; time.Now().Before(stop); i++ {
			c.Expire(time.Now().Add(time.Duration(i%2) * time.Hour))
			if i%16 == 0 {
				c.SetOptions(Options{Inline: i%32 == 0, MaxFiles: 2})
			}
			_, _ = reg.Gather()
			time.Sleep(time.Millisecond)
		}
	})
	wg.Wait()
	c.Close()
	if s := c.Stats(); s.Tables != 0 || c.frames.used.Load() != 0 {
		t.Errorf("after Close: %+v, %d bytes of frames", s, c.frames.used.Load())
	}
}
