package symtab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestKernelItself checks every function of the running kernel.
func TestKernelItself(t *testing.T) {
	k, err := LoadKernel(nil, Options{})
	if errors.Is(err, ErrKernelRestricted) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if b := float64(k.Bytes()) / float64(k.Symbols()); b > 24 {
		t.Errorf("%.1f bytes a symbol", b)
	}
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	names := map[uint64][]string{}
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		w := strings.Fields(sc.Text())
		addr, err := strconv.ParseUint(w[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains("tTwW", w[1]) && addr>>63 == 1 && !endMarks[w[2]] {
			names[addr] = append(names[addr], w[2])
		}
	}
	if len(names) < 10000 {
		t.Fatalf("only %d functions", len(names))
	}
	var starts []uint64
	for a := range names {
		starts = append(starts, a)
	}
	slices.Sort(starts)
	for i, a := range starts {
		name, _, ok := k.Lookup(a)
		if !ok || !slices.Contains(names[a], name) {
			t.Errorf("%#x: %q %v, want one of %q", a, name, ok, names[a])
		}
		if i+1 == len(starts) {
			break
		}
		for _, at := range []uint64{a + (starts[i+1]-a)/2, starts[i+1] - 1} {
			if name, _, ok := k.Lookup(at); ok && !slices.Contains(names[a], name) {
				t.Errorf("%#x: %q, want one of %q", at, name, names[a])
			}
		}
	}
	for _, at := range []uint64{0, 1, 0x400000, 1<<63 - 1, starts[0] - 1, starts[len(starts)-1] + 1<<20, ^uint64(0)} {
		if name, _, ok := k.Lookup(at); ok {
			t.Errorf("%#x: %q", at, name)
		}
	}
	if n := k.cur.Load().cache.bytes(); n > maxKernelNames {
		t.Errorf("%d bytes of names that were looked up", n)
	}
}

// fakeProc makes a /proc with the two files.
func fakeProc(t *testing.T, kallsyms, modules string) string {
	t.Helper()
	dir := t.TempDir()
	writeProc(t, dir, kallsyms, modules)
	return dir
}

func writeProc(t *testing.T, dir, kallsyms, modules string) {
	t.Helper()
	for name, text := range map[string]string{"kallsyms": kallsyms, "modules": modules} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const x86Symbols = `0000000000000000 A fixed_percpu_data
0000000000001000 A cpu_debug_store
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000040 t secondary_startup_64
ffffffff81000100 t local_name
ffffffff81000100 W weak_name
ffffffff81000100 T __global_name
ffffffff81000100 T global_name
ffffffff81000180 t $x
ffffffff81000200 T last_of_core
ffffffff81000280 T _etext
ffffffff82000000 D some_data
ffffffffc0402000 t mod_b_second	[mod_b]
ffffffffc0401000 t mod_b_first	[mod_b]
ffffffffc0300010 t mod_a_only	[mod_a]
ffffffffc0403000 d mod_b_data	[mod_b]
ffffffffc0500000 t bpf_prog_6deef7357e7b4530_prog	[bpf]
`

const x86Modules = `mod_b 16384 1 mod_a, Live 0xffffffffc0401000 (OE)
mod_a 4096 0 - Live 0xffffffffc0300000
`

func TestKernelLookup(t *testing.T) {
	k, err := LoadKernel(nil, Options{ProcFS: fakeProc(t, x86Symbols, x86Modules)})
	if err != nil {
		t.Fatal(err)
	}
	type answer struct{ name, module string }
	for addr, want := range map[uint64]answer{
		0:                  {},
		0x1000:             {},
		0xffffffff80ffffff: {},
		0xffffffff81000000: {"startup_64", ""},
		0xffffffff8100003f: {"startup_64", ""},
		0xffffffff81000040: {"secondary_startup_64", ""},
		0xffffffff81000100: {"global_name", ""},
		0xffffffff81000180: {"global_name", ""},
		0xffffffff8100027f: {"last_of_core", ""},
		0xffffffff81000280: {}, // _etext
		0xffffffff82000000: {},
		0xffffffffc0300010: {"mod_a_only", "mod_a"},
		0xffffffffc0300ffe: {"mod_a_only", "mod_a"},
		0xffffffffc0301000: {}, // behind the module
		0xffffffffc0401000: {"mod_b_first", "mod_b"},
		0xffffffffc0401fff: {"mod_b_first", "mod_b"},
		0xffffffffc0402fff: {"mod_b_second", "mod_b"},
		0xffffffffc0403000: {},
		0xffffffffc0500010: {"bpf_prog_6deef7357e7b4530_prog", "bpf"},
		0xffffffffc0501000: {},
	} {
		name, module, ok := k.Lookup(addr)
		if ok != (want.name != "") || name != want.name || module != want.module {
			t.Errorf("%#x: %q of %q, %v; want %+v", addr, name, module, ok, want)
		}
	}
}

// TestKernelLayouts: modules below the kernel (arm64), among it, and far from it.
func TestKernelLayouts(t *testing.T) {
	for name, module := range map[string]uint64{
		"below": 0xffff800001000000, "among": 0xffff800008000800, "far": 0xfff8000000000000, "far above": 0xffffff0000000000,
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			for i := range uint64(64) {
				fmt.Fprintf(&b, "%016x T core_%d\n", 0xffff800008000000+i*0x100, i)
			}
			for i := range uint64(64) {
				fmt.Fprintf(&b, "%016x t mod_%d\t[mod]\n", module+(63-i)*0x20+0x10, 63-i)
			}
			k, err := LoadKernel(nil, Options{ProcFS: fakeProc(t, b.String(), "")})
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(64) {
				a := 0xffff800008000000 + i*0x100
				if got, mod, _ := k.Lookup(a + 1); got != fmt.Sprintf("core_%d", i) || mod != "" {
					t.Errorf("%#x: %q of %q", a+1, got, mod)
				}
				a = module + i*0x20 + 0x10
				if name == "among" && a&0xff == 0 {
					continue
				}
				if got, mod, _ := k.Lookup(a); got != fmt.Sprintf("mod_%d", i) || mod != "mod" {
					t.Errorf("%#x: %q of %q", a, got, mod)
				}
			}
		})
	}
}

func TestKernelRestricted(t *testing.T) {
	hidden := "0000000000000000 T _text\n0000000000000000 T foo\n0000000000000000 t bar\t[mod]\n"
	for name, tc := range map[string]struct {
		text string
		want error
	}{
		"hidden": {hidden, ErrKernelRestricted},
		"empty":  {"", nil},
		"junk":   {"what is this\n\n[x]\n", nil},
	} {
		k, err := LoadKernel(nil, Options{ProcFS: fakeProc(t, tc.text, "")})
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, %v", name, k, err)
		}
	}
	if _, err := LoadKernel(nil, Options{ProcFS: t.TempDir()}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no kallsyms: %v", err)
	}
}

func TestKernelRefresh(t *testing.T) {
	proc := fakeProc(t, x86Symbols, x86Modules)
	k, err := LoadKernel(nil, Options{ProcFS: proc})
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(0xffffffffc0600000)
	more := x86Symbols + "ffffffffc0600000 t mod_c_fn\t[mod_c]\n"
	lookup := func() string { n, _, _ := k.Lookup(at); return n }
	gen := k.Generation()

	writeProc(t, proc, more, strings.Replace(x86Modules, "mod_b 16384 1", "mod_b 16384 7", 1))
	if err := k.Refresh(); err != nil || lookup() != "" || k.Generation() != gen {
		t.Errorf("a use count made it read again: %v", err)
	}
	writeProc(t, proc, more, x86Modules+"mod_c 4096 0 - Live 0xffffffffc0600000\n")
	if err := k.Refresh(); err != nil || lookup() != "mod_c_fn" || k.Generation() == gen {
		t.Errorf("the new module is not known: %v", err)
	}
	// BPF programs leave no trace in /proc/modules.
	writeProc(t, proc, more+"ffffffffc0700000 t bpf_prog_1\t[bpf]\n", x86Modules+"mod_c 4096 0 - Live 0xffffffffc0600000\n")
	at = 0xffffffffc0700000
	if lookup() != "" {
		t.Error("known before it was read")
	}
	if err := k.Refresh(); err != nil || lookup() != "" {
		t.Errorf("read again at once: %v", err)
	}
	k.loaded = time.Now().Add(-2 * reloadAfter)
	if err := k.Refresh(); err != nil || lookup() != "bpf_prog_1" {
		t.Errorf("not read again after a minute: %v", err)
	}
}
