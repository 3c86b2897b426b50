package python

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

type linesOf struct {
	Table []byte
	First int
	Lines []int // by unit of code
}

func readLines(t testing.TB, minor int) []linesOf {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("testdata/lines-3.%d.json", minor))
	if err != nil {
		t.Fatal(err)
	}
	var codes []linesOf
	if err := json.Unmarshal(b, &codes); err != nil {
		t.Fatal(err)
	}
	return codes
}

// TestLine compares with what each version says of its own tables.
func TestLine(t *testing.T) {
	for minor := Oldest; minor <= Newest; minor++ {
		t.Run(fmt.Sprintf("3.%d", minor), func(t *testing.T) {
			checked := 0
			for i, c := range readLines(t, minor) {
				for unit, want := range c.Lines {
					if got := Line(minor, c.Table, c.First, 2*unit); got != want {
						t.Fatalf("code %d: the instruction at %d is of line %d, want %d", i, 2*unit, got, want)
					}
					checked++
				}
			}
			if checked < 500 {
				t.Errorf("only %d instructions were compared", checked)
			}
		})
	}
}

func TestLineOfNothing(t *testing.T) {
	for minor := Oldest; minor <= Newest; minor++ {
		if got := Line(minor, nil, 7, -1); got != 7 {
			t.Errorf("3.%d: before the first instruction is line %d, want 7", minor, got)
		}
		Line(minor, []byte{0xff}, 7, 1<<30)
		Line(minor, []byte{0xf0, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f}, 7, 1<<30)
	}
}

func FuzzLine(f *testing.F) {
	for minor := Oldest; minor <= Newest; minor++ {
		for _, c := range readLines(f, minor) {
			f.Add(minor, c.Table, c.First, len(c.Lines))
		}
	}
	f.Fuzz(func(_ *testing.T, minor int, table []byte, first, at int) {
		Line(minor, table, first, at)
	})
}

func TestText(t *testing.T) {
	tests := []struct {
		name string
		b    []byte
		kind int
		want string
	}{
		{"none", nil, 1, ""},
		{"Latin-1", []byte("gr\xf6\xdfe"), 1, "größe"},
		{"two bytes", []byte{0x22, 0x6f, 0x57, 0x5b}, 2, "漢字"},
		{"four bytes", []byte{0x00, 0xf6, 0x01, 0x00, 'a', 0, 0, 0}, 4, "😀a"},
		{"half a pair", []byte{0x00, 0xd8}, 2, "\uFFFD"},
		{"no character", []byte{0xff, 0xff, 0xff, 0xff}, 4, "\uFFFD"},
		{"cut", []byte{'a', 0, 'b'}, 2, "a"},
		{"no kind", []byte("abc"), 3, ""},
		{"kind 0", []byte("abc"), 0, ""},
	}
	for _, tt := range tests {
		if got := Text(tt.b, tt.kind); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("gr\xf6\xdfe"), 1)
	f.Fuzz(func(_ *testing.T, b []byte, kind int) { Text(b, kind) })
}
