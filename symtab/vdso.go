package symtab

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/spanflame/spanflame/internal/elffile"
)

// atSysinfoEHDR is AT_SYSINFO_EHDR of the auxiliary vector (linux/auxvec.h).
const atSysinfoEHDR = 33

// maxVDSO bounds the vDSO; those of today have two or four pages.
const maxVDSO = 256 << 10

// OwnVDSO reads the vDSO out of the agent's own memory. Source: vdso(7), getauxval(3)
// (AT_SYSINFO_EHDR), proc(5) (/proc/self/mem).
func OwnVDSO() (*elffile.File, error) {
	aux, err := unix.Auxv()
	if err != nil {
		return nil, fmt.Errorf("find the vDSO: %w", err)
	}
	start := uintptr(0)
	for _, kv := range aux {
		if kv[0] == atSysinfoEHDR {
			start = kv[1]
		}
	}
	if start == 0 {
		return nil, fmt.Errorf("find the vDSO: the kernel mapped none: %w", ErrNoFile)
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	defer func() { _ = mem.Close() }() // only read from
	var image []byte
	page := make([]byte, os.Getpagesize())
	for len(image) < maxVDSO {
		// The mapping ends where reading fails.
		if n, err := mem.ReadAt(page, int64(start)+int64(len(image))); err != nil || n < len(page) {
			break
		}
		image = append(image, page...)
	}
	if len(image) == 0 {
		return nil, fmt.Errorf("read the vDSO at %#x: %w", start, ErrNoFile)
	}
	return elffile.Open(bytes.NewReader(image), int64(len(image)))
}
