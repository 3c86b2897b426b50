package harness

// TB is what the helpers need of a test; *testing.T is one. Benchmarks that are
// programs of their own bring another.
type TB interface {
	Helper()
	Cleanup(func())
	TempDir() string
	Failed() bool
	Log(args ...any)
	Logf(format string, args ...any)
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}
