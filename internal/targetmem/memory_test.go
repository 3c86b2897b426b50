package targetmem

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stalled is memory that is there when the test says so.
type stalled struct {
	release chan struct{}
	reads   atomic.Int32
}

func (s *stalled) ReadAt(b []byte, _ int64) (int, error) {
	s.reads.Add(1)
	<-s.release
	return len(b), nil
}

func (s *stalled) Close() error { return nil }

func TestReadOfStalledMemory(t *testing.T) {
	s := &stalled{release: make(chan struct{})}
	m := &Memory{Process{PID: 1 << 30}, s, s}
	b := make([]byte, 8)
	begun := time.Now()
	for range 10 {
		if _, err := m.ReadAt(b, 4096); !errors.Is(err, ErrSlow) {
			t.Fatalf("error = %v, want ErrSlow", err)
		}
	}
	if took := time.Since(begun); took > 5*maxRead {
		t.Errorf("ten reads took %s: the process is to be left alone after the first", took)
	}
	if n := s.reads.Load(); n != 1 {
		t.Errorf("%d reads were begun, want 1", n)
	}

	// So many are waited for, and no more.
	for i := range 2 * maxWaiting {
		other := &Memory{Process{PID: 1<<30 + 1 + uint32(i)}, s, s}
		if _, err := other.ReadAt(b, 4096); i >= maxWaiting && !errors.Is(err, ErrBusy) {
			t.Fatalf("read %d: error = %v, want ErrBusy", i, err)
		}
	}
	close(s.release)
	fresh := &Memory{Process{PID: 1 << 29}, s, s}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if n, err := fresh.ReadAt(b, 4096); err == nil && n == len(b) {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("once they have ended: %d bytes, error = %v", n, err)
		}
	}
}

func TestReadOwnMemory(t *testing.T) {
	self := Process{PID: uint32(os.Getpid())}
	m, err := Open("/proc", self)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	value := uint64(0x1122334455667788)
	r := &Reader{Memory: m}
	if got, err := r.Uint64(uint64(uintptr(unsafe.Pointer(&value)))); err != nil || got != value {
		t.Errorf("read %#x, error = %v, want %#x", got, err, value)
	}

	// A page that is there when somebody else says so (userfaultfd(2)).
	page, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skipf("userfaultfd: %v", errno)
	}
	defer func() { _ = unix.Close(int(fd)) }() // lets go of whoever waits
	const uffdioAPI, uffdioRegister = 0xc018aa3f, 0xc020aa00
	api := [24]byte{0: 0xaa}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&api[0]))); errno != 0 {
		t.Skipf("UFFDIO_API: %v", errno)
	}
	at := uint64(uintptr(unsafe.Pointer(&page[0])))
	var reg [32]byte
	binary.LittleEndian.PutUint64(reg[:], at)
	binary.LittleEndian.PutUint64(reg[8:], pageSize)
	binary.LittleEndian.PutUint64(reg[16:], 1) // missing pages
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioRegister, uintptr(unsafe.Pointer(&reg[0]))); errno != 0 {
		t.Skipf("UFFDIO_REGISTER: %v", errno)
	}
	begun := time.Now()
	if got, err := r.Uint64(at); err == nil {
		t.Errorf("read %#x of a page that is not there", got)
	}
	if took := time.Since(begun); took > 5*maxRead {
		t.Errorf("it took %s", took)
	}
}
