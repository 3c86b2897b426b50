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
func findDebugFile(f *elffile.File, program string, root Root, dirs []string) (*elffile.File, *handle, error) {
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
				return nil
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
			return checkCRC(h, crc)
		})
		if err == nil {
			return d, h, nil
		}
		note(err)
	}
	return nil, nil, first
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
