package main

import (
	"errors"
	"fmt"
	"os"
)

// runner stands in for a test: what the helpers of the tests start is stopped by it.
type runner struct {
	cleanups []func()
	failed   bool
}

// stopped is what Fatalf unwinds the stack with.
type stopped struct{ text string }

func (r *runner) Helper()          {}
func (r *runner) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *runner) Failed() bool     { return r.failed }

func (r *runner) TempDir() string {
	dir, err := os.MkdirTemp("", "spanflame-bench-offcpu-")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = os.RemoveAll(dir) }) // a folder for temporary files; there is nobody to tell
	return dir
}

func (r *runner) Log(args ...any)              { fmt.Fprintln(os.Stderr, args...) }
func (r *runner) Logf(f string, args ...any)   { fmt.Fprintf(os.Stderr, f+"\n", args...) }
func (r *runner) Error(args ...any)            { r.failed = true; r.Log(args...) }
func (r *runner) Errorf(f string, args ...any) { r.failed = true; r.Logf(f, args...) }
func (r *runner) Fatal(args ...any)            { r.failed = true; panic(stopped{fmt.Sprint(args...)}) }
func (r *runner) Fatalf(f string, args ...any) {
	r.failed = true
	panic(stopped{fmt.Sprintf(f, args...)})
}
func (r *runner) Skipf(f string, args ...any) { r.Fatalf(f, args...) }

// catch turns a Fatalf into an error.
func (r *runner) catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case stopped:
		*err = errors.New(p.text)
	default:
		panic(p)
	}
}

// stop runs the clean-ups there are, the last first.
func (r *runner) stop() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}
