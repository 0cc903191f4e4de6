package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// checkSettingsFile checks the shape of a settings file: known keys only, each
// once, each with the kind of value its setting takes. Viper alone would drop
// an empty unknown key, ignore case, and make numbers of booleans. Bounds are
// checked later, with those of flags and environment. No error quotes a value:
// one put under a wrong key may be a secret.
func checkSettingsFile(path string, b []byte, table []setting) error {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, next yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // empty, or comments only
	} else if err != nil {
		return fmt.Errorf("%s: not YAML", path) // yaml's text may quote the file
	}
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: want one YAML document, not more", path)
	}
	c := fileCheck{path, make(map[string]setting, len(table))}
	for _, st := range table {
		c.known[st.key] = st
	}
	return c.mapping(doc.Content[0], "")
}

type fileCheck struct {
	path  string
	known map[string]setting
}

func (c fileCheck) errorf(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", c.path, n.Line, fmt.Sprintf(format, args...))
}

// mapping checks the members of n, whose own key and a dot are prefix.
func (c fileCheck) mapping(n *yaml.Node, prefix string) error {
	if n.Kind != yaml.MappingNode {
		if prefix == "" {
			return c.errorf(n, "want settings as key: value")
		}
		return c.errorf(n, "%s wants settings as key: value below it", strings.TrimSuffix(prefix, "."))
	}
	seen := make(map[string]bool)
	for pair := range slices.Chunk(n.Content, 2) {
		name, value := pair[0], pair[1]
		key := prefix + name.Value
		// A dot in a name would reach viper as a level of its own.
		plain := name.Kind == yaml.ScalarNode && !strings.Contains(name.Value, ".")
		st, known := c.known[key]
		var err error
		switch {
		case seen[key]:
			err = c.errorf(name, "%s is set twice", key)
		case plain && known:
			err = c.scalar(value, st)
		case plain && c.group(key+"."):
			err = c.mapping(value, key+".")
		default:
			err = c.errorf(name, "unknown key %.100q", key)
		}
		if err != nil {
			return err
		}
		seen[key] = true
	}
	return nil
}

// group reports whether some key begins with prefix.
func (c fileCheck) group(prefix string) bool {
	for key := range c.known {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

func (c fileCheck) scalar(n *yaml.Node, st setting) error {
	tags := map[kind][]string{
		text:   {"!!str"},
		number: {"!!int"},
		mode:   {"!!str", "!!int", "!!bool"},
	}[st.kind]
	if n.Kind != yaml.ScalarNode || !slices.Contains(tags, n.ShortTag()) {
		what := map[kind]string{text: "a text", number: "a whole number", mode: "a word"}[st.kind]
		return c.errorf(n, "%s wants %s: %s", st.key, what, st.want)
	}
	return nil
}
