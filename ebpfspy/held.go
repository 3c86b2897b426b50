package ebpfspy

import (
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// heldFile keeps an executable open from the moment that it is first seen mapped,
// so that it can still be named after it was deleted and its process ended.
type heldFile struct {
	mu sync.Mutex
	f  *os.File // guarded by mu; nil once closed
}

func hold(f *os.File) *heldFile { return &heldFile{f: f} }

// open returns a descriptor of its own, or nil if the file is no longer held.
func (h *heldFile) open() *os.File {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.f == nil {
		return nil
	}
	// Opened anew, not duplicated: the position in the file is not shared.
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(h.f.Fd())), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), h.f.Name())
}

func (h *heldFile) close() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.f != nil {
		h.f.Close()
		h.f = nil
	}
}
