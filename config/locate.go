package config

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// locate finds the innermost value that cannot be decoded by itself: the types of
// Prometheus say what is wrong, but not where. It returns nil if n can be.
func (p *parser) locate(n *yaml.Node, t reflect.Type, path string) *Error {
	if isNull(n) {
		return nil
	}
	err := n.Decode(reflect.New(t).Interface())
	if err == nil {
		return nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	at := n
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.SequenceNode:
		if t.Kind() != reflect.Slice {
			break
		}
		for i, item := range n.Content {
			if e := p.locate(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); e != nil {
				return e
			}
		}
	case yaml.MappingNode:
		s, ok := schemaOf(t)
		if !ok {
			break
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if vt := s.typeOf(key); vt != nil {
				if e := p.locate(n.Content[i+1], vt, join(path, key)); e != nil {
					return e
				}
			}
		}
	}
	return p.fail(at.Line, at.Column, path, "%s", decodeMessage(err, t, n))
}

// decodeMessage says why a value cannot be decoded, without telling the value.
func decodeMessage(err error, t reflect.Type, n *yaml.Node) string {
	var typeErr *yaml.TypeError
	if errors.As(err, &typeErr) {
		return fmt.Sprintf("expected %s, got %s", expected(t), given(n))
	}
	msg := cleanError(err)
	if n.Kind == yaml.ScalarNode {
		if want := expected(t); want != "text" && want != "a value" {
			msg += "; expected " + want
		}
	}
	return msg
}

// cleanError is an error's text. Errors about URLs quote them with user names and
// passwords: only what is wrong is kept.
func cleanError(err error) string {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		var escape url.EscapeError
		var host url.InvalidHostError
		if errors.As(urlErr.Err, &escape) || errors.As(urlErr.Err, &host) || strings.Contains(urlErr.Err.Error(), "invalid port") || strings.Contains(urlErr.Err.Error(), "userinfo") {
			return "the URL cannot be parsed (special characters in user names and passwords must be percent-encoded)"
		}
		return "the URL cannot be parsed: " + urlErr.Err.Error()
	}
	return strings.TrimPrefix(err.Error(), "yaml: ")
}

// given says in words what a node is.
func given(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "true or false"
	case "!!int", "!!float":
		return "a number"
	case "!!timestamp":
		return "a date"
	}
	return "text"
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// join appends a key to a path.
func join(path, key string) string {
	const longest = 80
	if len(key) > longest {
		key = strings.ToValidUTF8(key[:longest], "") + "…"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// position finds the key that a path such as "write[0].url" leads to, or as far
// of it as there is.
func position(n *yaml.Node, path string) (line, column int) {
	if n == nil {
		return 0, 0
	}
	line, column = n.Line, n.Column
	for part := range strings.SplitSeq(path, ".") {
		name, indexes, _ := strings.Cut(part, "[")
		key, value := lookup(n, name)
		if value == nil {
			return line, column
		}
		line, column, n = key.Line, key.Column, value
		for index := range strings.SplitSeq(indexes, "[") {
			i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
			if n = resolveAlias(n); err != nil || n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content) {
				break
			}
			n = n.Content[i]
			line, column = n.Line, n.Column
		}
	}
	return line, column
}

func lookup(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n = resolveAlias(n); n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
