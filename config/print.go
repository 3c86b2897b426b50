package config

import (
	"fmt"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"
)

// String is the configuration as YAML, defaults and all. Secrets, headers and
// passwords in URLs are hidden. It is not what it was read from: environment
// variables are in place and paths made whole.
func (c *Config) String() string {
	var n yaml.Node
	if err := n.Encode(c); err != nil {
		return fmt.Sprintf("# the configuration cannot be printed: %s\n", cleanError(err))
	}
	redact(&n)
	b, err := yaml.Marshal(&n)
	if err != nil {
		return fmt.Sprintf("# the configuration cannot be printed: %s\n", cleanError(err))
	}
	return string(b)
}

// redact hides passwords in URLs, which some types of service discovery keep as
// plain text.
func redact(n *yaml.Node) {
	for _, child := range n.Content {
		redact(child)
	}
	if n.Kind != yaml.ScalarNode || !strings.Contains(n.Value, "@") || !strings.Contains(n.Value, "://") {
		return
	}
	u, err := url.Parse(n.Value)
	if err != nil {
		n.Value = "<secret>"
		return
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), "xxxxx")
		n.Value = u.String()
	}
}
