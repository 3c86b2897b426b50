// Package cpus tells which CPUs are online (Documentation/admin-guide/cputopology.rst
// of the kernel).
package cpus

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const onlineFile = "/sys/devices/system/cpu/online"

// max is more than any kernel is built for (CONFIG_NR_CPUS).
const max = 8192

// Online lists the CPUs that are online, in rising order.
func Online() ([]int, error) {
	b, err := os.ReadFile(onlineFile)
	if err != nil {
		return nil, fmt.Errorf("list the online CPUs: %w", err)
	}
	list, err := Parse(string(b))
	if err != nil {
		return nil, fmt.Errorf("list the online CPUs from %s: %w", onlineFile, err)
	}
	return list, nil
}

// Parse reads the kernel's list format, e.g. "0-3,6".
func Parse(s string) ([]int, error) {
	var out []int
	for _, part := range strings.Split(strings.TrimSpace(s), ",") {
		first, last, isRange := strings.Cut(part, "-")
		lo, err := strconv.Atoi(first)
		if err != nil {
			return nil, fmt.Errorf("%q is no CPU", part)
		}
		hi := lo
		if isRange {
			if hi, err = strconv.Atoi(last); err != nil {
				return nil, fmt.Errorf("%q is no range of CPUs", part)
			}
		}
		if lo < 0 || hi < lo || hi >= max {
			return nil, fmt.Errorf("%q is no range of CPUs", part)
		}
		for c := lo; c <= hi; c++ {
			out = append(out, c)
		}
		if len(out) > max {
			return nil, fmt.Errorf("%q names more than %d CPUs", s, max)
		}
	}
	return out, nil
}
