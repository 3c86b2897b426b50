package perfevent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Record is what a side-band record says. Exactly one of the fields besides Time
// is set.
type Record struct {
	Time uint64 // CLOCK_MONOTONIC, ns
	Mmap *Mmap
	Exec *Exec
	Lost uint64 // records that the ring had no room for
}

// Mmap says that a process mapped executable memory (PERF_RECORD_MMAP2).
type Mmap struct {
	PID, TID   uint32
	Start      uint64
	Length     uint64
	PageOffset uint64 // bytes
	Major      uint32
	Minor      uint32
	Inode      uint64
	Generation uint64
	Filename   string // "//anon", "[vdso]", … where there is no file
}

// Exec says that a process took up a new program: its old mappings are gone, and
// those that follow are the new program's (PERF_RECORD_COMM with
// PERF_RECORD_MISC_COMM_EXEC).
type Exec struct {
	PID  uint32
	Comm string
}

// Sideband is a dummy event of one CPU with its ring. It is not safe for
// concurrent use.
type Sideband struct {
	*Event
	ring []byte
	data []byte
	buf  []byte
}

// Bounds of what a record may say; the kernel writes paths of up to PATH_MAX.
const maxRecord = 64 << 10

// OpenSideband opens the side-band records of one CPU, of all processes, with a
// ring of the given size (a power of two, in bytes), and starts them. Requires
// CAP_PERFMON, or CAP_SYS_ADMIN before Linux 5.8.
func OpenSideband(cpu, size int) (*Sideband, error) {
	attr := unix.PerfEventAttr{
		Type:        unix.PERF_TYPE_SOFTWARE,
		Config:      unix.PERF_COUNT_SW_DUMMY,
		Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME,
		Bits: unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitComm | unix.PerfBitCommExec |
			unix.PerfBitSampleIDAll | unix.PerfBitUseClockID | unix.PerfBitWatermark,
		Wakeup:  1,
		Clockid: unix.CLOCK_MONOTONIC,
	}
	ev, err := open(&attr, cpu)
	if err != nil {
		return nil, err
	}
	page := os.Getpagesize()
	ring, err := unix.Mmap(ev.fd, 0, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the perf ring of CPU %d (%d bytes): %w", cpu, size, err), ev.Close())
	}
	s := &Sideband{Event: ev, ring: ring, data: ring[page:]}
	if err := ev.Enable(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close is idempotent.
func (s *Sideband) Close() error {
	if s.ring == nil {
		return nil
	}
	err := unix.Munmap(s.ring)
	s.ring, s.data = nil, nil
	if cerr := s.Event.Close(); err == nil {
		err = cerr
	}
	return err
}

// Offsets in struct perf_event_mmap_page (include/uapi/linux/perf_event.h).
const (
	offDataHead = 1024
	offDataTail = 1032
)

// Read calls f with each record that is in the ring and empties it. The ring is
// written by the kernel alone, yet each length is checked.
func (s *Sideband) Read(f func(Record)) error {
	if s.ring == nil {
		return os.ErrClosed
	}
	head := atomic.LoadUint64((*uint64)(unsafe.Pointer(&s.ring[offDataHead])))
	tailp := (*uint64)(unsafe.Pointer(&s.ring[offDataTail]))
	tail := atomic.LoadUint64(tailp)
	defer func() { atomic.StoreUint64(tailp, tail) }()

	for tail < head {
		var hdr [8]byte
		s.copyAt(hdr[:], tail)
		typ := binary.NativeEndian.Uint32(hdr[0:])
		misc := binary.NativeEndian.Uint16(hdr[4:])
		size := uint64(binary.NativeEndian.Uint16(hdr[6:]))
		if size < 8 || size > maxRecord || tail+size > head {
			tail = head
			return fmt.Errorf("perf ring of CPU %d: a record of %d bytes does not fit", s.cpu, size)
		}
		if cap(s.buf) < int(size) {
			s.buf = make([]byte, maxRecord)
		}
		body := s.buf[:size-8]
		s.copyAt(body, tail+8)
		tail += size
		if rec, ok := parse(typ, misc, body); ok {
			f(rec)
		}
	}
	return nil
}

func (s *Sideband) copyAt(dst []byte, pos uint64) {
	at := pos % uint64(len(s.data))
	n := copy(dst, s.data[at:])
	copy(dst[n:], s.data)
}

const (
	trailer  = 16 // struct sample_id: pid, tid, time
	mmapHead = 64 // PERF_RECORD_MMAP2 before the file name
)

// parse reads the body of one record, without its header
// (include/uapi/linux/perf_event.h, enum perf_event_type).
func parse(typ uint32, misc uint16, b []byte) (Record, bool) {
	if len(b) < trailer {
		return Record{}, false
	}
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	rec := Record{Time: u64(len(b) - 8)}
	end := len(b) - trailer

	switch typ {
	case unix.PERF_RECORD_MMAP2:
		if end < mmapHead {
			return Record{}, false
		}
		rec.Mmap = &Mmap{
			PID: u32(0), TID: u32(4), Start: u64(8), Length: u64(16), PageOffset: u64(24),
			Major: u32(32), Minor: u32(36), Inode: u64(40), Generation: u64(48),
			Filename: unix.ByteSliceToString(b[mmapHead:end]),
		}
	case unix.PERF_RECORD_COMM:
		if end < 8 || misc&unix.PERF_RECORD_MISC_COMM_EXEC == 0 {
			return Record{}, false
		}
		rec.Exec = &Exec{PID: u32(0), Comm: unix.ByteSliceToString(b[8:end])}
	case unix.PERF_RECORD_LOST:
		if end < 16 {
			return Record{}, false
		}
		rec.Lost = u64(8)
	default:
		return Record{}, false
	}
	return rec, true
}
