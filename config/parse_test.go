package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/file"
	"github.com/prometheus/prometheus/model/labels"
)

// Each file of testdata/bad has one mistake (but for several.yml) and beside it
// what is said of it.
func TestBadFiles(t *testing.T) {
	paths, err := filepath.Glob("testdata/bad/*.yml")
	if err != nil || len(paths) == 0 {
		t.Fatal("no files", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			want, err := os.ReadFile(strings.TrimSuffix(path, ".yml") + ".want")
			if err != nil {
				t.Fatal(err)
			}
			c, err := Load(path)
			if err == nil {
				t.Fatalf("accepted: %v", c)
			}
			var lines []string
			for line := range strings.Lines(string(want)) {
				lines = append(lines, path+":"+strings.TrimSpace(line))
			}
			if got := err.Error(); got != strings.Join(lines, "\n") {
				t.Errorf("got  %s\nwant %s", got, strings.Join(lines, "\n"))
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Error("the message tells a secret")
			}
			var e *Error
			if !errors.As(err, &e) || e.Line == 0 || e.File != path {
				t.Errorf("no *Error with a line: %#v", e)
			}
		})
	}
}

func loadGood(t *testing.T, name string) *Config {
	t.Helper()
	t.Setenv("SPANFLAME_TEST_HOST", "node1")
	c, err := Load(filepath.Join("testdata/good", name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What is printed can be read again, says the same, and tells no secret.
func TestGoodFiles(t *testing.T) {
	paths, err := filepath.Glob("testdata/good/*.yml")
	if err != nil || len(paths) == 0 {
		t.Fatal("no files", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c := loadGood(t, filepath.Base(path))
			if err := c.Validate(); err != nil {
				t.Errorf("validated again: %v", err)
			}
			printed := c.String()
			if strings.Contains(printed, "hunter2") {
				t.Errorf("a secret is printed:\n%s", printed)
			}
			again, err := Parse([]byte(strings.ReplaceAll(printed, "5$", "5$$")), "")
			if err != nil {
				t.Fatalf("%v in\n%s", err, printed)
			}
			if again.String() != printed {
				t.Errorf("printed\n%s\nread and printed again\n%s", printed, again)
			}
		})
	}
}

func TestFull(t *testing.T) {
	c := loadGood(t, "full.yml")
	check := func(name string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	check("push_interval", c.Global.PushInterval, model.Duration(30*time.Second))
	check("external_labels", c.Global.ExternalLabels.String(), labels.FromStrings("host", "node1", "price", "5$").String())
	check("web_config_file", c.Server.WebConfigFile, "testdata/good/web.yml")
	check("cpu", c.Profiles.CPU, CPU{Enabled: true, Frequency: 19, User: true, Thread: true, CommFrame: true})
	check("min_block", c.Profiles.OffCPU.MinBlock, model.Duration(5*time.Millisecond))
	check("cache_max_bytes", c.Symbols.CacheMaxBytes, Bytes(128<<20))
	check("debuginfod_urls", c.Symbols.DebuginfodURLs[0].String(), "https://user:hunter2@debuginfod.example.com/base/")
	check("debuginfod_cache_path", c.Symbols.DebuginfodCachePath, "testdata/good/data/debuginfod")
	check("debuginfod_timeout", c.Symbols.DebuginfodTimeout, model.Duration(30*time.Second))
	check("python", c.Python, Python{MaxFunctions: 2048})
	check("store", c.Store, Store{Enabled: true, Path: "testdata/good/data/store", Retention: model.Duration(24 * time.Hour), MaxBytes: 2e9})
	check("jobs", len(c.TargetConfigs), 2)
	check("mechanisms", len(c.TargetConfigs[1].Discovery), 10)
	var files *file.SDConfig
	for _, d := range c.TargetConfigs[1].Discovery {
		if f, ok := d.(*file.SDConfig); ok {
			files = f
		}
	}
	check("file_sd_configs", files.Files[0], "testdata/good/targets/*.yml")
	check("first write", c.Write[0].RemoteTimeout, model.Duration(30*time.Second))
	check("first write follows redirects", c.Write[0].HTTPClientConfig.FollowRedirects, true)
	w := c.Write[1]
	check("url", w.URL.String(), "https://user:hunter2@profiles.example.com/base")
	check("header", w.HeaderValues()["X-Scope-OrgID"], "hunter2")
	check("ca_file", w.HTTPClientConfig.TLSConfig.CAFile, "testdata/good/ca.pem")
	check("follow_redirects", w.HTTPClientConfig.FollowRedirects, false)
	check("oauth2", string(c.Write[2].HTTPClientConfig.OAuth2.ClientSecret), "hunter2")
	check("self_profiling", c.SelfProfiling.HeaderValues()["X-Scope-OrgID"], "hunter2")
}

func TestDefault(t *testing.T) {
	c := Default()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	parsed, err := Parse(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if parsed.String() != c.String() {
		t.Errorf("an empty file is\n%s\nwant\n%s", parsed, c)
	}
	if len(c.TargetConfigs) != 1 || len(c.TargetConfigs[0].Discovery) != 1 || c.TargetConfigs[0].Discovery[0].Name() != "process" {
		t.Errorf("the default does not profile all processes: %+v", c.TargetConfigs)
	}
}

func TestAnchors(t *testing.T) {
	c := loadGood(t, "anchors.yml")
	var names []string
	for _, j := range c.TargetConfigs {
		names = append(names, j.JobName)
		if len(j.RelabelConfigs) != 1 || len(j.Discovery) != 1 {
			t.Errorf("job %q: %+v", j.JobName, j)
		}
	}
	if strings.Join(names, "") != "abc" {
		t.Errorf("jobs %v", names)
	}
}

func TestUnreadable(t *testing.T) {
	if _, err := Load("testdata/none.yml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := Load("testdata"); err == nil {
		t.Error("a folder is accepted")
	}
	if _, err := Parse(make([]byte, maxFileBytes+1), "f"); err == nil || !strings.Contains(err.Error(), "larger than 4 MiB") {
		t.Errorf("a large file: %v", err)
	}
}

// A small file must not become an endless one.
func TestAliases(t *testing.T) {
	var claims strings.Builder
	claims.WriteString("write:\n- url: http://a\n  oauth2:\n    claims:\n      a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 12 {
		fmt.Fprintf(&claims, "      a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 10))
	}
	for name, text := range map[string]string{
		"wide":   "target_configs:\n- {job_name: a, static_configs: [&g {targets: [a,a,a,a,a,a,a,a,a,a]}" + strings.Repeat(", *g", 50_000) + "]}\n",
		"nested": claims.String(),
		"cycle":  "write: [{url: http://a, oauth2: {claims: {a: &a [*a]}}}]\n",
		"deep":   "write: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			if _, err := Parse([]byte(text), "bomb.yml"); err == nil {
				t.Error("accepted")
			} else {
				t.Logf("%.200s", err)
			}
			if spent := time.Since(begun); spent > 10*time.Second {
				t.Errorf("took %s", spent)
			}
		})
	}
}

func TestBytes(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Bytes
		text string
	}{
		{"0", 0, "0B"}, {"512MiB", 512 << 20, "512MiB"}, {"1GiB", 1 << 30, "1GiB"}, {"1GB", 1e9, "1000000000B"},
		{"1536KiB", 1536 << 10, "1536KiB"}, {"7 B", 7, "7B"}, {"12", 12, "12B"}, {"8191PiB", -1, ""},
		{"-1", -1, ""}, {"1.5GiB", -1, ""}, {"", -1, ""}, {"MiB", -1, ""}, {"8388608TiB", -1, ""}, {"9223372036854775808", -1, ""}, {"9223372036854775807", 1<<63 - 1, "9223372036854775807B"},
	} {
		got, err := ParseBytes(c.in)
		if c.want < 0 {
			if err == nil {
				t.Errorf("%q is accepted as %d", c.in, got)
			}
			continue
		}
		if err != nil || got != c.want || got.String() != c.text {
			t.Errorf("%q is %d (%v), %v; want %d (%s)", c.in, got, got, err, c.want, c.text)
		}
	}
}

func TestStateDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		if got := stateDirectory(); got != "/var/lib/spanflame" {
			t.Errorf("got %s for root", got)
		}
		return
	}
	t.Setenv("XDG_STATE_HOME", "/x")
	if got := stateDirectory(); got != "/x/spanflame" {
		t.Errorf("got %s", got)
	}
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "/home/me")
	if got := stateDirectory(); got != "/home/me/.local/state/spanflame" {
		t.Errorf("got %s", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yml", "testdata/bad/*.yml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b, "fuzz.yml")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz.yml:") {
				t.Errorf("the error names no file: %v", err)
			}
			return
		}
		_ = c.String()
	})
}
