package symtab

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path"
	"strings"

	"github.com/spanflame/spanflame/internal/elffile"
)

// maxDebugFile bounds the debug file whose checksum must be computed.
const maxDebugFile = 4 << 30

// errNotItsDebugFile marks a debug file that belongs to another program.
var errNotItsDebugFile = errors.New("the debug file belongs to another build")

// findDebugFile looks in the target's root for the file that the symbols were split
// off into: by build id, then by .gnu_debuglink. It is taken only if the build id,
// or the checksum, is that of the program. Neither found nor wrong: nil, nil, nil.
// Source: GDB manual, "Separate Debug Files".
// wanted, if not nil, is asked before a checksum is computed; what it refuses is not found.
func findDebugFile(f *elffile.File, program string, root Root, dirs []string, wanted func(*elffile.File) bool) (*elffile.File, *handle, error) {
	var first error
	note := func(err error) {
		if err != nil && first == nil && !errors.Is(err, os.ErrNotExist) {
			first = err
		}
	}
	id := f.GNUBuildID()
	if len(id) > 2 {
		for _, dir := range dirs {
			name := path.Join(dir, ".build-id", id[:2], id[2:]+".debug")
			d, h, err := openDebugFile(root, name, func(d *elffile.File, _ *handle) error {
				if d.GNUBuildID() != id {
					return errNotItsDebugFile
				}
				return refused(d, wanted)
			})
			if err == nil {
				return d, h, nil
			}
			note(err)
		}
	}
	link, crc, ok := f.DebugLink()
	if !ok {
		return nil, nil, first
	}
	program = strings.TrimSuffix(program, deletedSuffix)
	dir := path.Dir(program)
	if !path.IsAbs(dir) {
		return nil, nil, first
	}
	candidates := []string{path.Join(dir, link), path.Join(dir, ".debug", link)}
	for _, d := range dirs {
		candidates = append(candidates, path.Join(d, dir, link))
	}
	for _, name := range candidates {
		if name == program {
			continue // a program whose link names itself
		}
		d, h, err := openDebugFile(root, name, func(d *elffile.File, h *handle) error {
			if other := d.GNUBuildID(); id != "" && other != "" && other != id {
				return errNotItsDebugFile
			}
			if err := refused(d, wanted); err != nil {
				return err
			}
			return checkCRC(h, crc)
		})
		if err == nil {
			return d, h, nil
		}
		note(err)
	}
	return nil, nil, first
}

// refused is os.ErrNotExist for a file that is not wanted.
func refused(d *elffile.File, wanted func(*elffile.File) bool) error {
	if wanted != nil && !wanted(d) {
		return os.ErrNotExist
	}
	return nil
}

// DebugFile opens the separate debug file of a program, by its build id or by
// .gnu_debuglink, in the target's root. It is taken only if it is the program's own, and if
// wanted says so, which is asked before anything that costs is done. Without one, all
// results are nil. Whoever is given a file closes it.
func (c *Cache) DebugFile(f *elffile.File, program string, root Root, wanted func(*elffile.File) bool) (*elffile.File, io.Closer, error) {
	c.mu.Lock()
	dirs := c.opts.DebugDirs
	c.mu.Unlock()
	d, h, err := findDebugFile(f, program, root, dirs, wanted)
	if d == nil {
		return nil, nil, err
	}
	return d, h.file, nil
}

// openDebugFile opens a file and keeps it if check agrees.
func openDebugFile(root Root, name string, check func(*elffile.File, *handle) error) (*elffile.File, *handle, error) {
	file, err := root.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("open debug file %s: %w", name, err)
	}
	h, err := newHandle(file)
	if err != nil {
		return nil, nil, fmt.Errorf("open debug file %s: %w", name, err)
	}
	f, err := elffile.Open(h, h.id.size)
	if err == nil {
		err = check(f, h)
	}
	if err != nil {
		h.close()
		return nil, nil, fmt.Errorf("debug file %s: %w", name, err)
	}
	return f, h, nil
}

func checkCRC(h *handle, want uint32) error {
	if h.id.size > maxDebugFile {
		return fmt.Errorf("checksum of %d bytes: %w", h.id.size, elffile.ErrTooLarge)
	}
	sum := crc32.NewIEEE()
	if _, err := io.CopyBuffer(struct{ io.Writer }{sum}, io.NewSectionReader(h, 0, h.id.size), make([]byte, 256<<10)); err != nil {
		return fmt.Errorf("compute checksum: %w", err)
	}
	if sum.Sum32() != want {
		return fmt.Errorf("%w: its checksum is %08x, not %08x", errNotItsDebugFile, sum.Sum32(), want)
	}
	return nil
}
