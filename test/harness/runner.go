package harness

import (
	"errors"
	"fmt"
	"os"
)

// Runner stands in for a test where a benchmark uses the helpers of the tests: what they
// start is stopped by it.
type Runner struct {
	cleanups []func()
	failed   bool
}

// stopped is what Fatalf unwinds the stack with.
type stopped struct{ text string }

func (r *Runner) Helper()          {}
func (r *Runner) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *Runner) Failed() bool     { return r.failed }

func (r *Runner) TempDir() string {
	dir, err := os.MkdirTemp("", "spanflame-bench-")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = os.RemoveAll(dir) }) // a folder for temporary files; there is nobody to tell
	return dir
}

func (r *Runner) Log(args ...any)              { fmt.Fprintln(os.Stderr, args...) }
func (r *Runner) Logf(f string, args ...any)   { fmt.Fprintf(os.Stderr, f+"\n", args...) }
func (r *Runner) Error(args ...any)            { r.failed = true; r.Log(args...) }
func (r *Runner) Errorf(f string, args ...any) { r.failed = true; r.Logf(f, args...) }
func (r *Runner) Fatal(args ...any)            { r.failed = true; panic(stopped{fmt.Sprint(args...)}) }
func (r *Runner) Fatalf(f string, args ...any) {
	r.failed = true
	panic(stopped{fmt.Sprintf(f, args...)})
}
func (r *Runner) Skipf(f string, args ...any) { r.Fatalf(f, args...) }

// Catch turns a Fatalf into an error.
func (r *Runner) Catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case stopped:
		*err = errors.New(p.text)
	default:
		panic(p)
	}
}

// Stop runs the clean-ups there are, the last first.
func (r *Runner) Stop() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}

// Finish stops what runs, and says whether anything has failed.
func (r *Runner) Finish() error {
	r.Stop()
	if r.failed {
		return errors.New("the figures are not good: see above")
	}
	return nil
}
