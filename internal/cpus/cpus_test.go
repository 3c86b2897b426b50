package cpus

import (
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want []int
		bad  bool
	}{
		{in: "0\n", want: []int{0}},
		{in: "0-3,6\n", want: []int{0, 1, 2, 3, 6}},
		{in: "", bad: true},
		{in: "3-1", bad: true},
		{in: "-1", bad: true},
		{in: "0-99999999999", bad: true},
		{in: "0-8191,0-8191", bad: true},
		{in: "a", bad: true},
	} {
		got, err := Parse(tc.in)
		if (err != nil) != tc.bad || !slices.Equal(got, tc.want) {
			t.Errorf("Parse(%q) = %v, %v; want %v, bad %v", tc.in, got, err, tc.want, tc.bad)
		}
	}
}

func TestOnline(t *testing.T) {
	list, err := Online()
	if err != nil || len(list) == 0 {
		t.Fatalf("Online() = %v, %v", list, err)
	}
}
