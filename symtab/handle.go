package symtab

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// handle is an open file with what fstat said of it. As long as it is open, its
// inode cannot be given to another file.
type handle struct {
	file    *os.File
	id      fileStat
	release func() // called when it is closed, if not nil; may be called more than once
}

// fileStat is what tells one content of a file from another.
type fileStat struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

// newHandle takes a file over; if it is no regular file, it is closed.
func newHandle(f *os.File) (*handle, error) {
	st, err := statOf(f)
	if err != nil {
		_ = f.Close() // the first error is the one to tell
		return nil, err
	}
	return &handle{file: f, id: st}, nil
}

func statOf(f *os.File) (fileStat, error) {
	fi, err := f.Stat()
	if err != nil {
		return fileStat{}, fmt.Errorf("stat: %w", err)
	}
	sys, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || !fi.Mode().IsRegular() {
		return fileStat{}, fmt.Errorf("%s is not a regular file", f.Name())
	}
	return fileStat{dev: sys.Dev, ino: sys.Ino, size: sys.Size, mtime: sys.Mtim, ctime: sys.Ctim}, nil
}

// ReadAt reads from the file.
func (h *handle) ReadAt(b []byte, off int64) (int, error) { return h.file.ReadAt(b, off) }

// fresh returns an error that wraps errStale if the file was closed or its content
// changed. The change time is left out: it also changes when the file is renamed
// or unlinked, as an upgrade does with a file that is in use.
func (h *handle) fresh() error {
	st, err := statOf(h.file)
	if err != nil {
		return fmt.Errorf("%w: %w", errStale, err)
	}
	if st.size != h.id.size || st.mtime != h.id.mtime || st.ino != h.id.ino {
		return fmt.Errorf("%w: size or modification time", errStale)
	}
	return nil
}

// close is safe to call more than once.
func (h *handle) close() {
	_ = h.file.Close() // only read from; there is nothing to lose
	if h.release != nil {
		h.release()
	}
}

// reopen opens the file once more, wherever it is by now, with a position of its own.
func (h *handle) reopen() (*os.File, error) {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, oerr := -1, error(nil)
	err = raw.Control(func(old uintptr) { // in which it cannot be closed
		fd, oerr = unix.Open("/proc/self/fd/"+strconv.Itoa(int(old)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err := errors.Join(err, oerr); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), h.file.Name()), nil
}
