package ebpfspy

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spanflame/spanflame/symtab"
)

// TestLocationsOfOldNames: locations of a file go when its names are others, and only then.
func TestLocationsOfOldNames(t *testing.T) {
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	symbols := symtab.NewCache(nil, nil, symtab.Options{})
	defer symbols.Close()
	l := newLocations(UnknownModule, symbols, nil)
	f := &file{path: path, seen: 1}
	open := func() (*os.File, error) { return os.Open(path) }
	first := l.user(f, 64, 0, open, nil)
	symbols.Expire(time.Now())
	l.expire(1)
	if f.locations[64] != first || l.count != 1 {
		t.Fatalf("forgotten although nothing changed: %v, %d", f.locations, l.count)
	}

	if err := os.WriteFile(path, append(b, 0), 0o700); err != nil {
		t.Fatal(err)
	}
	symbols.Expire(time.Now())
	l.expire(1)
	if f.locations != nil || l.count != 0 || len(l.known) != 0 {
		t.Errorf("kept: %v, %d", f.locations, l.count)
	}
	l.user(f, 64, 0, open, nil)
	symbols.Expire(time.Now())
	if l.expire(1); l.count != 1 || len(f.locations) != 1 {
		t.Errorf("the new ones: %v, %d", f.locations, l.count)
	}
}
