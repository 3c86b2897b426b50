package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-kit/log"
)

func TestEveryFindingSaysWhatWasFound(t *testing.T) {
	fs := Examine(nil)
	if len(fs) < 10 {
		t.Fatalf("%d findings", len(fs))
	}
	for _, f := range fs {
		if f.Name == "" || f.Found == "" || f.Status == "" {
			t.Errorf("%+v", f)
		}
	}
	var b strings.Builder
	if err := Write(&b, fs); err != nil {
		t.Fatal(err)
	}
	for _, f := range fs {
		if !strings.Contains(b.String(), f.Found) {
			t.Errorf("%q is not printed", f.Found)
		}
	}
}

func TestTrial(t *testing.T) {
	for _, tc := range []struct {
		samples uint64
		err     error
		want    Status
	}{
		{12, nil, OK},
		{0, nil, Limited},
		{0, errors.New("no"), Broken},
	} {
		if f := trial(func(log.Logger) (uint64, error) { return tc.samples, tc.err }); f.Status != tc.want {
			t.Errorf("%+v: %+v", tc, f)
		}
	}
}

func TestWorst(t *testing.T) {
	for _, tc := range []struct {
		in   []Status
		want Status
		text string
	}{
		{nil, OK, "Everything works"},
		{[]Status{OK, Limited, OK}, Limited, "with the limits"},
		{[]Status{Limited, Broken}, Broken, "Nothing can be profiled"},
	} {
		var fs []Finding
		for _, s := range tc.in {
			fs = append(fs, Finding{Status: s})
		}
		var b strings.Builder
		if err := Write(&b, fs); err != nil || Worst(fs) != tc.want || !strings.Contains(b.String(), tc.text) {
			t.Errorf("%v: %v, %s", tc.in, Worst(fs), b.String())
		}
	}
}
