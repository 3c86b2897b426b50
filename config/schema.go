package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v3"

	"github.com/spanflame/spanflame/sd"
)

// Bounds of a document, for aliases can make a small file endless.
const (
	maxNodes = 200_000
	maxDepth = 100
)

// schema is what a mapping may hold.
type schema struct {
	keys map[string]reflect.Type
	// others is the type of the values of all other keys; nil: there are none.
	others reflect.Type
}

// schemaOf says what a mapping that becomes a t may hold; ok is false if a t is
// none, or checks its keys itself.
func schemaOf(t reflect.Type) (s schema, ok bool) {
	switch t {
	case reflect.TypeFor[sd.JobConfig]():
		// The *_sd_configs are those that are registered.
		dynamic, err := sd.JobConfig{}.MarshalYAML()
		if err != nil {
			return s, false
		}
		t = reflect.TypeOf(dynamic).Elem()
	case reflect.TypeFor[targetgroup.Group]():
		return schema{keys: map[string]reflect.Type{
			"targets": reflect.TypeFor[[]string](),
			"labels":  reflect.TypeFor[map[string]string](),
		}}, true
	case reflect.TypeFor[labels.Labels]():
		return schema{others: reflect.TypeFor[string]()}, true
	}
	switch t.Kind() {
	case reflect.Map:
		return schema{others: t.Elem()}, true
	case reflect.Struct:
		s.keys = map[string]reflect.Type{}
		addFields(&s, t)
		return s, len(s.keys) > 0 || s.others != nil || t == reflect.TypeFor[sd.ProcessSDConfig]()
	}
	return s, false
}

func addFields(s *schema, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported(), name == "-":
		case strings.Contains(options, "inline"):
			in := f.Type
			if in.Kind() == reflect.Pointer {
				in = in.Elem()
			}
			if in.Kind() == reflect.Map {
				s.others = in.Elem()
			} else {
				addFields(s, in)
			}
		case name != "":
			s.keys[name] = f.Type
		}
	}
}

// names are the keys that are known, in order.
func (s schema) names() []string {
	var out []string
	for name := range s.keys {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// typeOf is the type of a key's value; nil if the key is not known.
func (s schema) typeOf(key string) reflect.Type {
	if t, ok := s.keys[key]; ok {
		return t
	}
	return s.others
}

// check looks for keys that are not known or given twice, and for lists with empty
// entries.
func (p *parser) check(n *yaml.Node, t reflect.Type, path string, depth int) []*Error {
	if p.nodes++; p.nodes > maxNodes || depth > maxDepth {
		if p.nodes > maxNodes+maxErrors { // said already
			return nil
		}
		p.nodes = maxNodes + maxErrors
		return []*Error{p.fail(n.Line, n.Column, path, "the file is nested too deep or, with its aliases, too large")}
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.AliasNode {
		return p.check(n.Alias, t, path, depth+1)
	}
	var found []*Error
	switch n.Kind {
	case yaml.SequenceNode:
		if t.Kind() != reflect.Slice {
			break
		}
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if isNull(item) {
				found = append(found, p.fail(item.Line, item.Column, at, "the entry of the list is empty; expected %s", expected(t.Elem())))
				continue
			}
			found = append(found, p.check(item, t.Elem(), at, depth+1)...)
		}
	case yaml.MappingNode:
		s, ok := schemaOf(t)
		if !ok {
			break
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			found = append(found, p.checkKey(n.Content[i], n.Content[i+1], s, t, path, depth, seen)...)
		}
	}
	return found
}

func (p *parser) checkKey(key, value *yaml.Node, s schema, t reflect.Type, path string, depth int, seen map[string]int) []*Error {
	if key.Tag == "!!merge" {
		// "<<": the keys of another mapping, or of several.
		if value.Kind == yaml.SequenceNode {
			var found []*Error
			for _, v := range value.Content {
				found = append(found, p.check(v, t, path, depth+1)...)
			}
			return found
		}
		return p.check(value, t, path, depth+1)
	}
	at := join(path, key.Value)
	if line, dup := seen[key.Value]; dup {
		return []*Error{p.fail(key.Line, key.Column, at, "the key is given twice; the first is on line %d", line)}
	}
	seen[key.Value] = key.Line
	vt := s.typeOf(key.Value)
	if vt == nil || key.Kind != yaml.ScalarNode {
		return []*Error{p.fail(key.Line, key.Column, at, "%s", unknownKey(key.Value, path, s.names()))}
	}
	return p.check(value, vt, at, depth+1)
}

// planned are keys of the design that belong to what the agent cannot do yet.
var planned = map[string]string{
	"spool":  "the spool on disk",
	"python": "naming of Python functions",
	"spans":  "profiles by request",
}

func unknownKey(key, path string, known []string) string {
	if what, ok := planned[key]; ok && path == "" {
		return fmt.Sprintf("%s is not built yet; remove the key", what)
	}
	msg := "unknown key; "
	if len(known) == 0 {
		return msg + "no keys are expected here"
	}
	if near := nearest(key, known); near != "" {
		msg += fmt.Sprintf("did you mean %s? ", near)
	}
	return msg + "Expected one of: " + strings.Join(known, ", ")
}

// nearest is the known key that a misspelled one most likely stands for.
func nearest(key string, known []string) string {
	if len(key) > 64 {
		return ""
	}
	best, bestDistance := "", min(3, (len(key)+1)/2)
	for _, k := range known {
		if d := distance(key, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance counts the letters that are to be inserted, removed or replaced
// (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// expected says in words what becomes a t.
func expected(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[model.Duration]():
		return "a duration such as 15s or 5m"
	case reflect.TypeFor[Bytes]():
		return "a size such as 512MiB"
	case reflect.TypeFor[promconfig.URL]():
		return "a URL such as http://pyroscope:4040"
	case reflect.TypeFor[relabel.Regexp]():
		return "a regular expression"
	}
	if _, ok := schemaOf(t); ok {
		return "a mapping (key: value)"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "text"
	case reflect.Slice, reflect.Array:
		return "a list (- item)"
	}
	return "a value"
}
