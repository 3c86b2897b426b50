package symtab

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spanflame/spanflame/internal/elffile"
)

// maxName bounds the length of a name in a file; what is longer is cut.
const maxName = 16 << 10

// names reads names by 32-bit references. The references of several string tables
// follow upon each other. Tables in files are read by pread, a name at a time, and
// only once, as frames are kept.
type names struct {
	sources []nameSource
	total   uint64
}

// nameSource is a string table: in memory, or in a file.
type nameSource struct {
	base, size uint32
	mem        []byte
	in         *elffile.File
	off        FileOffset
	file       *handle
}

// add appends a string table and returns the reference of its offset 0. file is
// nil if f is in memory; the table is then copied.
func (n *names) add(f *elffile.File, file *handle, s *elffile.Section) (base uint32, err error) {
	if s.Len > aliasBit-n.total {
		return 0, fmt.Errorf("string tables of 2 GiB: %w", ErrTableTooBig)
	}
	src := nameSource{base: uint32(n.total), size: uint32(s.Len), in: f, off: s.Off, file: file}
	if file == nil || s.Compressed() {
		if src.mem, err = f.Data(s, maxMemoryNames); err != nil {
			return 0, err
		}
		if uint64(len(src.mem)) > aliasBit-n.total {
			return 0, ErrTableTooBig
		}
		src.size, src.in = uint32(len(src.mem)), nil
	} else if s.Off+FileOffset(s.Len) < s.Off || uint64(s.Off)+s.Len > uint64(f.Size()) {
		return 0, fmt.Errorf("%w: string table %q lies outside the file", elffile.ErrCorrupt, s.Name)
	}
	n.sources = append(n.sources, src)
	n.total += uint64(src.size)
	return src.base, nil
}

// maxMemoryNames bounds a string table that must be kept in memory.
const maxMemoryNames = 32 << 20

func (n *names) source(ref uint32) (*nameSource, uint32, bool) {
	for i := range n.sources {
		s := &n.sources[i]
		if ref >= s.base && ref-s.base < s.size {
			return s, ref - s.base, true
		}
	}
	return nil, 0, false
}

// read returns the name of a reference. An error wraps errStale if the file has
// changed or was closed since the table was made.
func (n *names) read(ref uint32) (string, error) {
	s, off, ok := n.source(ref)
	if !ok {
		return "", fmt.Errorf("%w: name outside the string table", elffile.ErrCorrupt)
	}
	if s.mem != nil {
		return string(cut(s.mem[off:min(uint64(s.size), uint64(off)+maxName)])), nil
	}
	if err := s.file.fresh(); err != nil {
		return "", err
	}
	var small [256]byte
	b := small[:min(uint32(len(small)), s.size-off)]
	if err := s.readFull(b, off); err != nil {
		return "", err
	}
	if bytes.IndexByte(b, 0) < 0 && len(b) == len(small) {
		b = make([]byte, min(maxName, s.size-off))
		if err := s.readFull(b, off); err != nil {
			return "", err
		}
	}
	return string(cut(b)), nil
}

func (s *nameSource) readFull(b []byte, off uint32) error {
	if err := s.in.ReadFull(b, s.off+FileOffset(off)); err != nil {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	return nil
}

// cut ends b at its first NUL.
func cut(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}

// bytes is the memory that the names take.
func (n *names) bytes() int64 {
	sum := int64(0)
	for i := range n.sources {
		sum += int64(cap(n.sources[i].mem))
	}
	return sum
}

// choose reads the name of a table's reference. Of aliases it takes the one with the
// fewest leading underscores, then the first.
func (n *names) choose(t *table, ref uint32) (string, error) {
	if ref&aliasBit == 0 {
		return n.read(ref)
	}
	c := t.aliases[ref&^aliasBit]
	a, err := n.choose(t, c.a)
	if err != nil {
		return "", err
	}
	b, err := n.choose(t, c.b)
	if err != nil {
		return "", err
	}
	if leadingUnderscores(b) < leadingUnderscores(a) {
		return b, nil
	}
	return a, nil
}

func leadingUnderscores(s string) int { return len(s) - len(strings.TrimLeft(s, "_")) }
