// Package targetmem reads structures in the memory of another process, which is hostile:
// every read is bounded, and what was read may be anything.
package targetmem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// ErrNoText is returned for text that has no end within its bound.
var ErrNoText = errors.New("text without an end")

// MaxAddr is above all addresses of user space.
const MaxAddr = 1 << 56

// Reader reads little-endian values at addresses. The zero of an address is no address.
type Reader struct {
	Memory io.ReaderAt
	pages  map[uint64][]byte // nil: what is read is not kept
}

const (
	pageSize = 4096
	maxPages = 2048 // 8 MiB
)

// Cached returns a reader that reads each page once. It is for what does not change.
func (r *Reader) Cached() *Reader { return &Reader{Memory: r.Memory, pages: map[uint64][]byte{}} }

// Read fills b from an address.
func (r *Reader) Read(b []byte, addr uint64) error {
	if addr < pageSize || addr > MaxAddr || uint64(len(b)) > MaxAddr-addr {
		return errors.New("no address")
	}
	if r.pages == nil {
		_, err := r.Memory.ReadAt(b, int64(addr))
		return err
	}
	for len(b) > 0 {
		page, err := r.page(addr &^ (pageSize - 1))
		if err != nil {
			return err
		}
		n := copy(b, page[addr%pageSize:])
		b, addr = b[n:], addr+uint64(n)
	}
	return nil
}

func (r *Reader) page(at uint64) ([]byte, error) {
	if p := r.pages[at]; p != nil {
		return p, nil
	}
	p := make([]byte, pageSize)
	if _, err := r.Memory.ReadAt(p, int64(at)); err != nil {
		return nil, err
	}
	if len(r.pages) >= maxPages {
		clear(r.pages)
	}
	r.pages[at] = p
	return p, nil
}

// Uint64 reads a word.
func (r *Reader) Uint64(addr uint64) (uint64, error) {
	var b [8]byte
	err := r.Read(b[:], addr)
	return binary.LittleEndian.Uint64(b[:]), err
}

// Uint32 reads half a word.
func (r *Reader) Uint32(addr uint64) (uint32, error) {
	var b [4]byte
	err := r.Read(b[:], addr)
	return binary.LittleEndian.Uint32(b[:]), err
}

// Uint16 reads a quarter of a word.
func (r *Reader) Uint16(addr uint64) (uint16, error) {
	var b [2]byte
	err := r.Read(b[:], addr)
	return binary.LittleEndian.Uint16(b[:]), err
}

// Text reads what ends with a NUL, less than max bytes long.
func (r *Reader) Text(addr uint64, max int) (string, error) {
	var out []byte
	for len(out) < max {
		// Not beyond the page: the next one may not be there.
		b := make([]byte, min(64, pageSize-addr%pageSize))
		if err := r.Read(b, addr); err != nil {
			return "", err
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return string(append(out, b[:i]...)), nil
		}
		out = append(out, b...)
		addr += uint64(len(b))
	}
	return "", ErrNoText
}
