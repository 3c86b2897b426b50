package python

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spanflame/spanflame/internal/elffile"
)

// library builds a shared library of some C, and returns its bytes.
func library(t testing.TB, source string, flags ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skipf("gcc is missing: %v", err)
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "x.c"), filepath.Join(dir, "x.so")
	if err := os.WriteFile(in, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gcc", append([]string{"-shared", "-fPIC", "-O1", "-o", out, in}, flags...)...)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, msg)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func detect(b []byte) (*Runtime, error) {
	f, err := elffile.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, err
	}
	return Detect(f)
}

const evalFunction = "int _PyEval_EvalFrameDefault(int x) { return x + 1; }\n"

func TestDetect(t *testing.T) {
	const older = "int PyCode_NewWithPosOnlyArgs(void) { return 0; }\n"
	tests := []struct {
		name, source string
		flags        []string
		want         string // version, or what the error says
	}{
		{name: "no Python", source: evalFunction, want: "no CPython"},
		{name: "a name alone", source: evalFunction + `const char *name = "_PyRuntime";`, want: "no CPython"},
		{name: "a function of that name", source: evalFunction + "int _PyRuntime(void) { return 0; }", want: "no CPython"},
		{name: "3.7", source: evalFunction + "long _PyRuntime[10] = {1};", want: "older than 3.8"},
		{name: "3.8", source: evalFunction + older + "long _PyRuntime[10] = {1};", want: "3.8"},
		{name: "3.9", source: evalFunction + older + "int PyFrame_GetCode; long _PyRuntime[10] = {1};", want: "3.9"},
		{name: "3.10", source: evalFunction + older + "int PyFrame_GetCode, Py_NewRef; long _PyRuntime[10] = {1};", want: "3.10"},
		{name: "3.11", source: evalFunction + "long _PyRuntime[10]; const unsigned long Py_Version = 0x030b07f0;", want: "3.11.7"},
		{name: "not exported", source: evalFunction + "__attribute__((visibility(\"hidden\"))) long _PyRuntime[10]; const unsigned long Py_Version = 0x030b07f0; long *use(void) { return _PyRuntime; }", want: "3.11.7"},
		{name: "no eval function", source: "long _PyRuntime[10]; const unsigned long Py_Version = 0x030b07f0;", want: "_PyEval_EvalFrameDefault is not among the symbols"},
		{name: "3.15", source: evalFunction + "long _PyRuntime[10]; const unsigned long Py_Version = 0x030f00a1;", want: "CPython 3.15.0a1: only 3.8 to 3.14"},
		{name: "4.0", source: evalFunction + "long _PyRuntime[10]; const unsigned long Py_Version = 0x040000f0;", want: "CPython 4.0.0: only"},
		{name: "no cookie", source: evalFunction + "long _PyRuntime[100] = {1}; const unsigned long Py_Version = 0x030d00f0;", want: "does not begin with xdebugpy"},
		{name: "other version", source: evalFunction + `struct { char c[8]; long v[100]; } _PyRuntime = {"xdebugpy", {0x030e00f0}}; const unsigned long Py_Version = 0x030d00f0;`, want: "_Py_DebugOffsets is of 3.14.0"},
		{name: "absurd offsets", source: evalFunction + `struct { char c[8]; long v[100]; } _PyRuntime = {"xdebugpy", {0x030d00f0, 0, 0, 0, 1L << 60}}; const unsigned long Py_Version = 0x030d00f0;`, want: "in word 5"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := detect(library(t, tt.source, tt.flags...))
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("the error is %q, want %q", err, tt.want)
				}
				var u *UnsupportedError
				if !errors.Is(err, ErrNotPython) && !errors.As(err, &u) {
					t.Errorf("the error is a %T", err)
				}
				return
			}
			if r.Version.String() != tt.want {
				t.Errorf("the version is %s, want %s", r.Version, tt.want)
			}
		})
	}
}

// TestColdParts moves a part of the function elsewhere, as compilers do.
func TestColdParts(t *testing.T) {
	const source = `
long _PyRuntime[10];
const unsigned long Py_Version = 0x030b07f0;
__attribute__((cold, noinline)) int rare(int x);
int rare(int x) { __asm__ volatile(""); return x * 3; }
int _PyEval_EvalFrameDefault(int x, int y)
{
	for (int i = 0; i < x; i++) {
		if (__builtin_expect(i == y, 0)) { rare(i); rare(y); y += rare(x) * rare(i); }
		if (__builtin_expect(i == y * 7, 0)) { rare(i); y += rare(x) + 3 * rare(i); }
		if (__builtin_expect(i == y * 9, 0)) { rare(y); y += rare(x) + 4 * rare(i); }
		__asm__ volatile("" : "+r"(y));
	}
	return y;
}`
	b := library(t, source, "-O2", "-freorder-blocks-and-partition", "-s")
	r, err := detect(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Eval) != 2 {
		t.Errorf("the function is in %d parts, want 2: %x", len(r.Eval), r.Eval)
	}
}

func FuzzDetect(f *testing.F) {
	f.Add(library(f, evalFunction+"long _PyRuntime[10] = {1}; const unsigned long Py_Version = 0x030b07f0;", "-s"))
	f.Add(library(f, evalFunction+`struct { char c[8]; long v[100]; } _PyRuntime = {"xdebugpy", {0x030d00f0}}; const unsigned long Py_Version = 0x030d00f0;`, "-s"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = detect(b)
	})
}
