package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus/testutil"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/internal/ledger"
)

// childWrites is the child process of TestKill: it stores profiles and says so
// until it is killed.
func childWrites(dir string) {
	var tb testing.T
	s, err := Open(log.NewNopLogger(), nil, nil, Options{Path: dir})
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		p := entry(&tb, cpuProfile(&tb, time.Now(), map[string]int64{"main;a": 1e7}, nil), "shop")
		if err := s.Append(context.Background(), append(ps(), p)); err != nil {
			fmt.Println("append:", err)
			os.Exit(1)
		}
		fmt.Println("stored")
	}
}

func TestKill(t *testing.T) {
	dir := t.TempDir()
	said := 0
	for range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "STORE_TEST_CHILD="+dir)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		said += bytes.Count(out.Bytes(), []byte("stored\n"))
		if bytes.Contains(out.Bytes(), []byte(":")) {
			t.Fatalf("child: %s", out.Bytes())
		}
	}
	if said == 0 {
		t.Fatal("the children stored nothing")
	}
	s, _ := openStore(t, Options{Path: dir})
	tree, stats, err := s.MergeTree(context.Background(), cpuID, nil, time.Time{}, time.Time{}, TreeOptions{})
	if err != nil || stats.Cut != "" {
		t.Fatal(err, stats)
	}
	// Each child may have stored one more than it could say.
	if n := int(tree.Total() / 1e7); n < said || n > said+3 {
		t.Errorf("%d profiles after the kills, the children stored %d", n, said)
	}
	if v := testutil.ToFloat64(s.metrics.damaged); v != 0 {
		t.Errorf("%v segments damaged", v)
	}
}

// twoSegments makes a store of a sealed segment and a current one, with values
// 1 and 2, and returns their paths.
func twoSegments(t *testing.T, opts Options, clk *clock) []string {
	t.Helper()
	s, _ := openStore(t, opts)
	for i, n := range []int64{1, 2} {
		clk.set(t0.Add(time.Duration(i) * time.Hour))
		tickNow(t, s)
		for j := range 5 {
			appendAll(t, s, entry(t, cpuProfile(t, clk.now().Add(time.Duration(j)*time.Second), map[string]int64{"main;a": n * 2e6}, nil), "shop"))
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(opts.Path, "segment-*.bolt"))
	if err != nil || len(paths) != 2 {
		t.Fatalf("segments: %v, %v", paths, err)
	}
	return paths
}

func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"empty":       func(p string) error { return os.Truncate(p, 0) },
		"cut short":   func(p string) error { return os.Truncate(p, 8<<10) },
		"zeros":       func(p string) error { return overwrite(p, 0, make([]byte, 64<<10)) },
		"bad pages":   func(p string) error { return overwrite(p, 8<<10, bytes.Repeat([]byte{0xa5}, 256<<10)) },
		"a directory": func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"samples":     flip(bucketSamples),
		"symbols":     flip(bucketSymbols),
	} {
		for _, which := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s/%d", name, which), func(t *testing.T) {
				clk := newClock(t0)
				opts := Options{Path: t.TempDir(), now: clk.now}
				paths := twoSegments(t, opts, clk)
				if err := damage(paths[which]); err != nil {
					t.Fatal(err)
				}
				s, _ := openStore(t, opts)
				read := func() int64 {
					tree, _, err := s.MergeTree(context.Background(), cpuID, nil, time.Time{}, time.Time{}, TreeOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return tree.Total()
				}
				read() // may be what finds the damage
				tickNow(t, s)
				waitFor(t, func() bool { return testutil.ToFloat64(s.metrics.damaged) == 1 })
				if got, want := read(), int64(2-which)*1e7; got != want {
					t.Errorf("total = %d, want the other segment's %d", got, want)
				}
				appendAll(t, s, entry(t, cpuProfile(t, clk.now(), map[string]int64{"main;b": 5e7}, nil), "shop"))
				if got, want := read(), int64(2-which)*1e7+5e7; got != want {
					t.Errorf("total after an append = %d, want %d", got, want)
				}
				if entries, err := os.ReadDir(filepath.Join(opts.Path, "damaged")); err != nil || len(entries) != 1 {
					t.Errorf("moved aside: %v, %v", entries, err)
				}
			})
		}
	}
}

func overwrite(path string, off int64, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	b = b[:min(int64(len(b)), fi.Size()-off)]
	_, err = f.WriteAt(b, off)
	return errors.Join(err, f.Close())
}

// flip changes the last byte of every value of a bucket (its checksum).
func flip(bucket []byte) func(path string) error {
	return func(path string) error {
		db, err := bolt.Open(path, 0, nil)
		if err != nil {
			return err
		}
		err = db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucket)
			c := b.Cursor()
			changed := map[string][]byte{}
			for k, v := c.First(); k != nil; k, v = c.Next() {
				v = bytes.Clone(v)
				v[len(v)-1] ^= 0xff
				changed[string(k)] = v
			}
			for k, v := range changed {
				if err := b.Put([]byte(k), v); err != nil {
					return err
				}
			}
			return nil
		})
		return errors.Join(err, db.Close())
	}
}

func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timed out")
		}
	}
}

func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	clk := newClock(t0)
	s, account := openStore(t, Options{Path: dir, now: clk.now})
	filler := filepath.Join(dir, "filler")
	var failed, stored int64
	next := unlike(t, 200)
	store := func(i int) error {
		err := s.Append(context.Background(), append(ps(), next(t0.Add(time.Duration(i)*time.Second), "shop")))
		if err == nil {
			stored += 200e7
		}
		return err
	}
	if err := store(0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 400 && failed < 20; i++ {
		clk.set(t0.Add(time.Duration(i) * time.Second))
		if store(i) != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Fatal("the disk did not fill up")
	}
	b := account.Balance()
	if b.Pending() != 0 || b.Dropped[ledger.StoreFailed] == 0 {
		t.Errorf("account = %+v", b)
	}
	read := func() {
		t.Helper()
		tree, _, err := s.MergeTree(context.Background(), cpuID, nil, time.Time{}, time.Time{}, TreeOptions{})
		if err != nil || tree.Total() != stored {
			t.Errorf("total = %d, %v, want %d", tree.Total(), err, stored)
		}
	}
	read()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := store(1000 + i); err != nil {
			t.Fatalf("after the disk had room again: %v", err)
		}
	}
	clk.set(t0.Add(20 * time.Minute))
	read()
	if v := testutil.ToFloat64(s.metrics.damaged); v != 0 {
		t.Errorf("a full disk damaged %v segments", v)
	}
}
