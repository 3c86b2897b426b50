package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestReference loads the file of docs/configuration.md, which is to have every key
// with its default.
func TestReference(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, yaml, _ := strings.Cut(string(text), "```yaml\n")
	yaml, _, found := strings.Cut(yaml, "```")
	if !found {
		t.Fatal("there is no configuration in it")
	}
	file := filepath.Join(t.TempDir(), "spanflame.yml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Store.Path = got.Store.Path // the user's
	want.Symbols.DebuginfodCachePath = got.Symbols.DebuginfodCachePath
	for i := range reflect.TypeFor[Config]().NumField() {
		name := reflect.TypeFor[Config]().Field(i).Name
		g, w := reflect.ValueOf(*got).Field(i).Interface(), reflect.ValueOf(*want).Field(i).Interface()
		if name == "Write" && len(got.Write) == 0 || name == "TargetConfigs" {
			continue
		}
		if name == "SelfProfiling" {
			if got.SelfProfiling.Enabled || len(got.SelfProfiling.Headers) > 0 {
				t.Errorf("%s: %+v", name, g)
			}
			continue
		}
		if !reflect.DeepEqual(g, w) {
			t.Errorf("%s: %+v, the defaults are %+v", name, g, w)
		}
	}
	if len(got.TargetConfigs) != 1 || got.TargetConfigs[0].JobName != want.TargetConfigs[0].JobName {
		t.Errorf("target_configs: %+v", got.TargetConfigs)
	}
	for _, key := range keysOf(reflect.TypeFor[Config]()) {
		if !strings.Contains(yaml, key+":") {
			t.Errorf("the key %s is not described", key)
		}
	}
}

// keysOf are the keys of a struct and of those in it, as far as they are this package's.
func keysOf(t reflect.Type) (keys []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "" || key == "-" {
			continue
		}
		keys = append(keys, key)
		if f.Type.Kind() == reflect.Struct && f.Type.PkgPath() == t.PkgPath() {
			keys = append(keys, keysOf(f.Type)...)
		}
	}
	return keys
}
