package config

import (
	"os"
	"strings"
	"testing"
)

// The examples of the documentation are configurations that are accepted.
func TestExamplesOfDocs(t *testing.T) {
	b, err := os.ReadFile("../docs/targets.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(b), "```yaml\n")[1:]
	if len(blocks) < 5 {
		t.Fatalf("%d examples", len(blocks))
	}
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		if !strings.Contains(text, "target_configs:") { // part of a job
			job := "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
			text = "target_configs:\n  - job_name: example\n" + job + "\n"
			if !strings.Contains(text, "_sd_configs:") && !strings.Contains(text, "static_configs:") {
				text += "    process_sd_configs: [{}]\n"
			}
		}
		if _, err := Parse([]byte(text), "targets.md"); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
}
