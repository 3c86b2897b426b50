package harness

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
)

// Account is what `spanflame record --json` says of the samples: taken = profiled +
// the sum of those dropped.
type Account struct {
	Taken    uint64            `json:"taken"`
	Profiled uint64            `json:"profiled"`
	Dropped  map[string]uint64 `json:"dropped"`
	OffCPU   *OffCPUAccount    `json:"off_cpu"` // nil without OffCPUFlag
}

// Lost is the sum of the dropped samples, less those of processes that were not
// asked for.
func (a Account) Lost() uint64 {
	var n uint64
	for reason, v := range a.Dropped {
		if reason != "no_target" {
			n += v
		}
	}
	return n
}

// Recording is a running `spanflame record`.
type Recording struct {
	*Process
	file string
	took time.Duration
}

// StartRecord starts `spanflame record` for a time, with further arguments such as
// --pid N or --all.
func StartRecord(t TB, d time.Duration, args ...string) *Recording {
	t.Helper()
	NeedRoot(t)
	r := &Recording{file: filepath.Join(t.TempDir(), "record.pb.gz"), took: d}
	args = append([]string{"record", "--json", "--duration", d.String(), "-o", r.file}, args...)
	r.Process = Launch{Args: args}.Start(t)
	return r
}

// WaitBegun waits until samples are taken.
func (r *Recording) WaitBegun(t TB) {
	t.Helper()
	Eventually(t, 30*time.Second, "record takes samples", func() error {
		if !r.Running() {
			t.Fatalf("record ended with exit code %d", r.code)
		}
		if !strings.Contains(r.Stderr(), "recording ") {
			return errors.New("it says nothing of it")
		}
		return nil
	})
}

// Stop ends the recording before its time, which keeps what was recorded, and waits for it.
func (r *Recording) Stop(t TB) (*Profile, Account) {
	t.Helper()
	r.Signal(t, os.Interrupt)
	return r.Wait(t)
}

// Wait waits for the end and returns the profile and the account. It fails the test
// if the account does not add up to the sample, or is not that of the profile.
func (r *Recording) Wait(t TB) (*Profile, Account) {
	t.Helper()
	if code := r.Process.Wait(t, r.took+60*time.Second); code != 0 {
		t.Fatalf("record ended with exit code %d", code)
	}
	account, err := parseAccount(r.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	sum := account.Profiled
	for _, n := range account.Dropped {
		sum += n
	}
	if sum != account.Taken {
		t.Errorf("%d samples were taken, but %d profiled or dropped: %+v", account.Taken, sum, account)
	}
	p, err := NewProfile(readProfile(t, r.file))
	if err != nil {
		t.Fatal(err)
	}
	if account.OffCPU != nil {
		return p, account // it has the samples of both profiles
	}
	if n := p.Samples(nil); n < float64(account.Profiled)-0.01 || n > float64(account.Profiled)+0.01 {
		t.Errorf("the profile has %.2f samples, the account says %d", n, account.Profiled)
	}
	return p, account
}

// parseAccount finds the object with "taken" in what record printed.
func parseAccount(out string) (Account, error) {
	for i := strings.IndexByte(out, '{'); i >= 0; {
		var top struct {
			Account
			Samples *Account `json:"samples"`
		}
		if json.NewDecoder(strings.NewReader(out[i:])).Decode(&top) == nil {
			if top.Samples != nil && top.Samples.Taken > 0 {
				return *top.Samples, nil
			}
			if top.Taken > 0 {
				return top.Account, nil
			}
		}
		next := strings.IndexByte(out[i+1:], '{')
		if next < 0 {
			break
		}
		i += 1 + next
	}
	return Account{}, errors.New("record --json printed no account of the samples: " + tail(out))
}

func readProfile(t TB, file string) *pprof.Profile {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := pprof.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
