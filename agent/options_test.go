package agent

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/spanflame/spanflame/config"
	"github.com/spanflame/spanflame/ebpfspy"
	"github.com/spanflame/spanflame/store"
	"github.com/spanflame/spanflame/symtab"
	"github.com/spanflame/spanflame/web"
)

// The configuration may not import the packages whose defaults it shows, and so
// declares them again: they must be the same.
func TestDefaultsAgree(t *testing.T) {
	c := config.Default()
	o := sessionOptions(c)
	for _, tc := range []struct {
		key       string
		got, want any
	}{
		{"frequency", o.Frequency, ebpfspy.DefaultFrequency},
		{"max_stacks", o.MaxStacks, ebpfspy.DefaultMaxStacks},
		{"stack_bytes", o.ArenaBytes, int64(ebpfspy.DefaultArenaBytes)},
		{"max_processes", o.MaxProcesses, ebpfspy.DefaultMaxProcesses},
		{"max_excluded", o.MaxExcluded, ebpfspy.DefaultMaxExcluded},
		{"sideband_bytes", o.SidebandBytes, ebpfspy.DefaultSidebandBytes},
		{"event_ring_bytes", o.EventRingBytes, ebpfspy.DefaultEventRingBytes},
		{"unknown", o.Unknown, ebpfspy.UnknownModule},
		{"demangle", o.Symbols.Demangle, symtab.DefaultDemangle},
		{"cache_max_bytes", o.Symbols.MaxBytes, int64(symtab.DefaultMaxBytes)},
		{"cache_max_age", o.Symbols.MaxAge, symtab.DefaultMaxAge},
		{"cache_max_files", o.Symbols.MaxFiles, symtab.DefaultMaxFiles},
		{"debuginfod_urls", len(o.Symbols.Debuginfod.URLs), 0},
		{"debuginfod_cache_bytes", o.Symbols.Debuginfod.MaxBytes, int64(symtab.DefaultDebuginfodBytes)},
		{"debuginfod_timeout", o.Symbols.Debuginfod.Timeout, symtab.DefaultDebuginfodTimeout},
		{"retention", time.Duration(c.Store.Retention), store.DefaultRetention},
		{"max_bytes", int64(c.Store.MaxBytes), int64(store.DefaultMaxBytes)},
		{"listen_address", c.Server.ListenAddress, web.DefaultListenAddress},
		{"kernel and user", [2]bool{o.DisableKernel, o.DisableUser}, [2]bool{}},
	} {
		if tc.got != tc.want {
			t.Errorf("%s is %v, and %v where it is used", tc.key, tc.got, tc.want)
		}
	}
}

func TestDebuginfodOptions(t *testing.T) {
	c, err := config.Parse([]byte("symbols: {debuginfod_urls: [\"https://me:secret@a.example.com/x\"], debuginfod_cache_path: /d}"), "")
	if err != nil {
		t.Fatal(err)
	}
	o := sessionOptions(c).Symbols.Debuginfod
	if len(o.URLs) != 1 || o.URLs[0] != "https://me:secret@a.example.com/x" || o.Dir != "/d" {
		t.Errorf("%+v", o)
	}
}

func TestReloadRefusesWhatNeedsARestart(t *testing.T) {
	for _, tc := range []struct {
		key    string
		change func(*config.Config)
	}{
		{"server", func(c *config.Config) { c.Server.ListenAddress = "127.0.0.1:1" }},
		{"store", func(c *config.Config) { c.Store.Path = "/elsewhere" }},
		{"self_profiling", func(c *config.Config) { c.SelfProfiling.Enabled = true }},
		{"symbols.max_targets", func(c *config.Config) { c.Symbols.MaxTargets++ }},
	} {
		next := config.Default()
		tc.change(next)
		if err := needsRestart(config.Default(), next); err == nil || !strings.Contains(err.Error(), tc.key+" has changed") {
			t.Errorf("%s: %v", tc.key, err)
		}
	}
	if err := needsRestart(config.Default(), config.Default()); err != nil {
		t.Errorf("nothing changed: %v", err)
	}
}

// What an agent opened before it failed is closed: the store's lock is free.
func TestNewClosesWhatItOpened(t *testing.T) {
	if err := checkCapabilities(); err != nil {
		t.Skipf("needs root: %v", err)
	}
	cfg := config.Default()
	cfg.Store.Path = filepath.Join(t.TempDir(), "store")
	cfg.Server.ListenAddress = "192.0.2.1:80" // not an address of this host
	for range 2 {
		if _, err := New(log.NewNopLogger(), cfg, ""); err == nil || !strings.Contains(err.Error(), "192.0.2.1:80") {
			t.Fatalf("New = %v, want the address named", err)
		}
	}
	cfg.Server.ListenAddress = "127.0.0.1:0"
	a, err := New(log.NewNopLogger(), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := a.Run(ctx); err != nil {
		t.Fatal(err)
	}
	b := a.ledger.Session().Balance()
	s := a.ledger.Sinks()["store"]
	if b.Pending() != 0 || s.In != b.Out || s.Out != s.In {
		t.Errorf("session %+v, store %+v", b, s)
	}
}

func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[31mb\u009bc"); got != "a?[31mb?c" {
		t.Errorf("%q", got)
	}
	if got := printable(strings.Repeat("x", 300)); len([]rune(got)) != 201 {
		t.Errorf("%d runes", len(got))
	}
}
