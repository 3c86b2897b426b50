package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size. In the file it is a whole number with a unit: B, KiB, MiB, GiB,
// TiB (powers of 1024) or kB, MB, GB, TB (powers of 1000). Without a unit it is
// bytes.
type Bytes int64

var byteUnits = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

// ParseBytes reads a size such as 512MiB.
func ParseBytes(s string) (Bytes, error) {
	number, size := s, int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			number, size = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && int64(n) > math.MaxInt64/size:
		return 0, fmt.Errorf("the size %q is too large", s)
	case err != nil:
		return 0, fmt.Errorf("%q is not a size", s)
	}
	return Bytes(int64(n) * size), nil
}

// String writes the size with the largest unit of which it is a whole number.
func (b Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// UnmarshalYAML reads a size.
func (b *Bytes) UnmarshalYAML(unmarshal func(any) error) error {
	var s string
	if err := unmarshal(&s); err != nil {
		return err
	}
	n, err := ParseBytes(s)
	if err != nil {
		return err
	}
	*b = n
	return nil
}

// MarshalYAML writes the size as text.
func (b Bytes) MarshalYAML() (any, error) { return b.String(), nil }
