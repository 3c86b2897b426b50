package unwind

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spanflame/spanflame/internal/elffile"
)

// skip skips a test for what the machine lacks; it fails with SPANFLAME_TEST_REQUIRE=1.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("SPANFLAME_TEST_REQUIRE") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// run runs a tool of the machine; one that is not there skips the test.
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		skip(t, "%s is needed to make test data: %v", name, err)
	}
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// compile compiles a source of testdata/src to a program.
func compile(t testing.TB, compiler, source string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	run(t, compiler, append([]string{"-w", "-o", out, filepath.Join("testdata", "src", source)}, flags...)...)
	return out
}

// openELF opens a file for as long as the test runs.
func openELF(t testing.TB, path string) *elffile.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	e, err := elffile.Open(f, size)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// read makes the table of a file.
func read(t testing.TB, path string) *Table {
	t.Helper()
	table, err := Read(openELF(t, path), nil, Options{})
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	checkTable(t, table)
	return table
}

// checkTable checks what every table promises.
func checkTable(t testing.TB, table *Table) {
	t.Helper()
	if len(table.Rules) == 0 || table.Rules[0] != (Rule{}) {
		t.Error("the first rule is not that of no code")
	}
	unsupported := 0
	for i, r := range table.Rows {
		if r.Rule >= uint32(len(table.Rules)) {
			t.Fatalf("row %d has rule %d of %d", i, r.Rule, len(table.Rules))
		}
		if table.Rules[r.Rule].CFA == CFAUnsupported {
			unsupported++
		}
		if i == 0 {
			continue
		}
		if prev := table.Rows[i-1]; prev.Addr >= r.Addr || prev.Rule == r.Rule {
			t.Fatalf("rows %d and %d: %v, %v", i-1, i, prev, r)
		}
	}
	if unsupported != table.Unsupported {
		t.Errorf("%d rows are unsupported, counted %d", unsupported, table.Unsupported)
	}
	if n := len(table.Rows); n > 0 && table.Rows[n-1].Rule != 0 {
		t.Errorf("the last row is %v", table.Rules[table.Rows[n-1].Rule])
	}
	seen := map[Rule]bool{}
	for _, r := range table.Rules {
		if seen[r] {
			t.Errorf("%v is there twice", r)
		}
		seen[r] = true
	}
}

// openBytes opens an ELF file in memory.
func openBytes(t testing.TB, b []byte) *elffile.File {
	t.Helper()
	f, err := elffile.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}
