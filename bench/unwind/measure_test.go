package main

import (
	"testing"

	pprof "github.com/google/pprof/profile"
)

// TestLastPlace has stacks with inlined functions: they have fewer places than frames.
func TestLastPlace(t *testing.T) {
	lines := func(names ...string) (out []pprof.Line) {
		for _, n := range names {
			out = append(out, pprof.Line{Function: &pprof.Function{Name: n}})
		}
		return out
	}
	libc := &pprof.Mapping{File: "/lib/libc.so.6"}
	marker := &pprof.Location{Line: lines("[truncated: exiting]")}
	for want, last := range map[string]*pprof.Location{
		"exit of libc.so.6": {Mapping: libc, Line: lines("inlined", "inlined too", "exit")},
		"[libc.so.6]+0x10":  {Mapping: libc, Line: lines("[libc.so.6]+0x10")},
		"[anonymous code]":  {Line: lines("[anonymous code]")},
		"":                  {},
	} {
		leaf := &pprof.Location{Mapping: libc, Line: lines("a", "b", "c")}
		if got := lastPlace(&pprof.Sample{Location: []*pprof.Location{leaf, last, marker}}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
