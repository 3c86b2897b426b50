package unwind

import (
	"runtime"
	"testing"
)

// TestContexts: who returns to __start_context was called by nobody, also where the byte
// before it is another function's.
func TestContexts(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		skip(t, "the code is that of x86-64")
	}
	p := compile(t, "gcc", "contexts.S", "-nostdlib", "-static")
	table := read(t, p)
	plain := Rule{CFA: CFASP, CFAOffset: 8, RA: SavedCFA, RAOffset: -8}
	inCaller := Rule{CFA: CFASP, CFAOffset: 32, RA: SavedCFA, RAOffset: -8}
	for _, tc := range []struct {
		function string
		at       int64 // from its start
		want     Rule
	}{
		{"behind_padding", -1, inContext},
		{"behind_padding", 0, inContext},
		{"behind_padding", 25, inContext},
		{"behind_call", -2, inCaller},
		{"behind_call", -1, inContext},
		{"behind_call", 0, inContext},
		{"behind_call", 25, inContext},
		{"caller", 14, inCaller},
		{"other_register", 0, plain},
		{"other_register", 25, plain},
	} {
		s := symbol(t, p, tc.function)
		if got := table.Find(VirtAddr(int64(s.Value) + tc.at)); got != tc.want {
			t.Errorf("%s%+d: %+v, want %+v", tc.function, tc.at, got, tc.want)
		}
	}
	libc := read(t, firstOf(t, "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"))
	found := 0
	for _, r := range libc.Rows {
		if libc.Rules[r.Rule] == inContext {
			found++
		}
	}
	if found != 1 {
		t.Errorf("__start_context was found %d times in the C library", found)
	}
}
