package symtab

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spanflame/spanflame/internal/dwarf"
	"github.com/spanflame/spanflame/internal/elffile"
)

// splitFiles opens the files with the split units of a program, in the root of a target
// that maps it now: they are asked for long after the program was.
type splitFiles struct {
	root    func() Root
	program string // its path
	dirs    []string
	units   *prometheus.CounterVec
}

// newSplitFiles returns nil if there is no root to look in.
func newSplitFiles(root func() Root, program string, opts *Options, m *metrics) dwarf.SplitFiles {
	if root() == nil {
		return nil
	}
	return &splitFiles{root: root, program: strings.TrimSuffix(program, deletedSuffix), dirs: opts.DebugDirs, units: m.splits}
}

// Package opens the program's package: beside it or, under the same path, in a debug
// directory. What is in it is compared by the units' ids. Source: GDB manual, "Separate
// Debug Files"; llvm-dwp(1).
func (s *splitFiles) Package() (*dwarf.SplitFile, error) {
	name := s.program + ".dwp"
	file, err := s.open(name, ".debug_cu_index")
	for _, dir := range s.dirs {
		if err == nil {
			break
		}
		var more error
		if file, more = s.open(path.Join(dir, name), ".debug_cu_index"); more == nil || !errors.Is(more, os.ErrNotExist) {
			err = more
		}
	}
	return file, err
}

// Unit opens the file of a split unit. A relative path begins where the program is: its
// compilation directory was mapped to something else (-ffile-prefix-map).
func (s *splitFiles) Unit(name string) (*dwarf.SplitFile, error) {
	if !path.IsAbs(name) {
		name = path.Join(path.Dir(s.program), name)
	}
	return s.open(name, ".debug_info.dwo")
}

func (s *splitFiles) open(name, section string) (*dwarf.SplitFile, error) {
	root := s.root()
	if root == nil || !path.IsAbs(name) {
		return nil, fmt.Errorf("open debug file %s: %w", name, os.ErrNotExist)
	}
	f, h, err := openDebugFile(root, name, func(f *elffile.File, _ *handle) error {
		if f.Section(section) == nil {
			return fmt.Errorf("%w: it has no %s", errNotItsDebugFile, section)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &dwarf.SplitFile{File: f, Fresh: h.fresh, Close: h.close}, nil
}

// Done counts the units.
func (s *splitFiles) Done(err error) {
	result := "read"
	switch {
	case errors.Is(err, os.ErrNotExist):
		result = "missing"
	case errors.Is(err, dwarf.ErrOtherBuild), errors.Is(err, errNotItsDebugFile):
		result = "other_build"
	case err != nil:
		result = "error"
	}
	s.units.WithLabelValues(result).Inc()
}
