package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/spanflame/spanflame/sd"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 4 << 20

// maxErrors bounds how many mistakes are told at once.
const maxErrors = 10

// Error is a mistake in a configuration file.
type Error struct {
	File   string // as it was given
	Line   int    // from 1; 0 if not known
	Column int
	Key    string // path of the key, e.g. "write[0].url"; "" for the file as a whole
	Msg    string // what is wrong and what was expected
}

func (e *Error) Error() string {
	s := e.Msg
	if e.Key != "" {
		s = e.Key + ": " + s
	}
	switch {
	case e.Line > 0 && e.Column > 0:
		return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, s)
	case e.Line > 0:
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, s)
	}
	return e.File + ": " + s
}

// Load reads the file at path. Its errors are those of Parse, or say that the file
// cannot be read.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(b, path)
}

// Parse reads the contents of a file. Relative paths in it are taken to be
// relative to the folder of filename. What a file does not say is as in Default. An
// error is one *Error, or several that are joined (errors.Join), in the order of
// the file; none holds a secret.
func Parse(b []byte, filename string) (*Config, error) {
	p := &parser{file: filename}
	if len(b) > maxFileBytes {
		return nil, p.fail(0, 0, "", "the file is larger than %d MiB", maxFileBytes>>20)
	}
	c := Default()
	root, err := p.document(b)
	if err != nil {
		return nil, err
	}
	if root != nil {
		if err := p.decode(root, c); err != nil {
			return nil, err
		}
	}
	problems := c.expand(os.LookupEnv)
	if len(problems) == 0 {
		problems = c.problems()
	}
	if len(problems) > 0 {
		return nil, p.join(p.place(root, problems))
	}
	if filename != "" {
		c.SetDirectory(filepath.Dir(filename))
	}
	return c, nil
}

// parser holds what all steps need.
type parser struct {
	file  string
	nodes int // looked at so far
}

func (p *parser) fail(line, column int, key, format string, args ...any) *Error {
	return &Error{File: p.file, Line: line, Column: column, Key: key, Msg: fmt.Sprintf(format, args...)}
}

// document reads the one document of the file; nil if it is empty.
func (p *parser) document(b []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, p.syntax(err)
	}
	var second yaml.Node
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, p.syntax(err)
	default:
		return nil, p.fail(second.Line, second.Column, "", "a second YAML document begins here; the file must be one")
	}
	if len(doc.Content) != 1 || isNull(doc.Content[0]) {
		return nil, nil
	}
	return doc.Content[0], nil
}

// syntax turns an error of the YAML parser, "yaml: line 3: …", into one of ours.
func (p *parser) syntax(err error) *Error {
	line, msg := 0, strings.TrimPrefix(err.Error(), "yaml: ")
	if _, scanErr := fmt.Sscanf(msg, "line %d:", &line); scanErr == nil {
		_, msg, _ = strings.Cut(msg, ": ")
	}
	return p.fail(line, 0, "", "not valid YAML: %s", msg)
}

// decode fills c from the document.
func (p *parser) decode(root *yaml.Node, c *Config) error {
	t := reflect.TypeFor[Config]()
	if found := p.check(root, t, "", 0); len(found) > 0 {
		return p.join(found)
	}
	if err := root.Decode(c); err != nil {
		if e := p.locate(root, t, ""); e != nil {
			return e
		}
		return p.syntax(err)
	}
	return nil
}

// place finds the lines of problems.
func (p *parser) place(root *yaml.Node, problems []*sd.FieldError) []*Error {
	out := make([]*Error, 0, len(problems))
	for _, f := range problems {
		line, column := position(root, f.Field)
		out = append(out, p.fail(line, column, f.Field, "%s", cleanError(f.Err)))
	}
	return out
}

// join makes one error of several.
func (p *parser) join(found []*Error) error {
	slices.SortStableFunc(found, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(found) == 1 {
		return found[0]
	}
	var errs []error
	for i, e := range found {
		if i == maxErrors {
			errs = append(errs, p.fail(0, 0, "", "and %d more mistakes", len(found)-maxErrors))
			break
		}
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}
