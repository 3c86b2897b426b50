package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process has the store's folder open.
var ErrLocked = errors.New("the store is in use by another process")

// lockDir takes the folder's lock, which ends with the returned file.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the store's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		holder := ""
		b := make([]byte, 16)
		if n, _ := f.ReadAt(b, 0); n > 0 {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
				holder = fmt.Sprintf(" (PID %d)", pid)
			}
		}
		return nil, fmt.Errorf("lock %s: %w%s; stop it, or give this one another store.path", path, ErrLocked, holder)
	}
	// The PID is for the message above only; without it the lock holds as well.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return f, nil
}
