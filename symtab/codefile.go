package symtab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Bounds of a file that a process writes of its code.
const (
	// maxCodeFile is how much of one is read. Runtimes append; a process that makes code
	// for weeks may come to it, and what it makes from then on has no names.
	maxCodeFile = 1 << 30
	codeChunk   = 256 << 10
	codeMarkLen = 64
)

// errCodeFileTooBig is returned for what is behind maxCodeFile.
var errCodeFileTooBig = errors.New("the file is larger than what is read of one")

// CodeFile follows a file in which a process says what code it makes: a perf map or a
// jitdump. It is safe for concurrent use.
type CodeFile struct {
	file *os.File
	dump bool

	mu     sync.Mutex // guards the rest; held while a bounded piece is read
	codes  *codeMap
	parser interface {
		feed(m *codeMap, b []byte) error
	}
	offset int64
	stat   fileStat
	head   []byte // what the file began with
	tail   []byte // what was read last
	err    error  // why nothing more is read
	buf    []byte

	generation atomic.Uint64
	size       atomic.Int64
}

// NewPerfMap follows a perf map, which it owns from now on. It takes no more than max bytes
// of memory. Nothing is read yet.
func NewPerfMap(f *os.File, max int64) *CodeFile { return newCodeFile(f, max, false) }

// NewJITDump follows a jitdump, as NewPerfMap does.
func NewJITDump(f *os.File, max int64) *CodeFile { return newCodeFile(f, max, true) }

func newCodeFile(f *os.File, max int64, dump bool) *CodeFile {
	c := &CodeFile{file: f, dump: dump, codes: newCodeMap(max)}
	c.restart()
	return c
}

func (c *CodeFile) restart() {
	c.codes.reset()
	if c.dump {
		c.parser = &jitDump{}
	} else {
		c.parser = &perfMap{}
	}
	c.offset, c.head, c.tail, c.err = 0, nil, nil, nil
}

// Refresh reads what the file has become longer by, limit bytes at most, or all of it if it
// was written anew. more says that there is more to read.
func (c *CodeFile) Refresh(limit int64) (more bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return false, os.ErrClosed
	}
	now, err := statOf(c.file)
	if err != nil {
		return false, err
	}
	if now == c.stat && now.size == c.offset {
		return false, c.err
	}
	if c.rewritten(now) {
		c.restart()
		c.generation.Add(1)
	}
	c.stat = now
	if c.err != nil {
		return false, c.err
	}
	return c.read(min(now.size, c.offset+limit), now.size)
}

// rewritten says whether what was read is not in the file any more.
func (c *CodeFile) rewritten(now fileStat) bool {
	if c.offset == 0 || now == c.stat {
		return false
	}
	if now.size < c.offset {
		return true
	}
	return !c.has(c.head, 0) || !c.has(c.tail, c.offset-int64(len(c.tail)))
}

func (c *CodeFile) has(want []byte, at int64) bool {
	b := make([]byte, len(want))
	_, err := c.file.ReadAt(b, at)
	return err == nil && bytes.Equal(b, want)
}

// read reads up to an offset. The caller holds mu.
func (c *CodeFile) read(end, size int64) (more bool, err error) {
	if c.buf == nil {
		c.buf = make([]byte, codeChunk)
	}
	defer func() { c.buf = nil }()
	for c.offset < end {
		if c.offset >= maxCodeFile {
			c.err = errCodeFileTooBig
			return false, c.err
		}
		n, err := c.file.ReadAt(c.buf[:min(int64(len(c.buf)), end-c.offset)], c.offset)
		if n == 0 {
			if errors.Is(err, io.EOF) {
				return false, nil // it has become shorter meanwhile
			}
			return false, fmt.Errorf("read %s: %w", c.file.Name(), err)
		}
		b := c.buf[:n]
		if c.offset == 0 {
			c.head = bytes.Clone(b[:min(n, codeMarkLen)])
		}
		c.tail = bytes.Clone(b[n-min(n, codeMarkLen):])
		c.offset += int64(n)
		c.generation.Add(1)
		if err := c.parser.feed(c.codes, b); err != nil {
			c.err = fmt.Errorf("read %s: %w", c.file.Name(), err)
			break
		}
	}
	c.size.Store(c.codes.size())
	return c.err == nil && c.offset < size, c.err
}

// Frames returns the function at an address, nil if the file names none.
func (c *CodeFile) Frames(addr uint64) []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.codes.find(addr)
	c.size.Store(c.codes.size())
	if !ok {
		return nil
	}
	return []Frame{f}
}

// Generation counts the changes of what Frames may say.
func (c *CodeFile) Generation() uint64 { return c.generation.Load() }

// Bytes is the memory that it takes.
func (c *CodeFile) Bytes() int64 { return c.size.Load() }

// Flushed counts how often there was no room, and all that was known was forgotten.
func (c *CodeFile) Flushed() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.codes.flushed
}

// Is says whether it is the file that f describes.
func (c *CodeFile) Is(st *unix.Stat_t) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return false
	}
	var own unix.Stat_t
	return unix.Fstat(int(c.file.Fd()), &own) == nil && own.Dev == st.Dev && own.Ino == st.Ino
}

// Close lets go of the file and of what was read.
func (c *CodeFile) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		_ = c.file.Close() // only read from
		c.file = nil
	}
	c.codes.reset()
	c.size.Store(0)
}
