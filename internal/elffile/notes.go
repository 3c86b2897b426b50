package elffile

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"strings"
)

const (
	maxNotes       = 1 << 20
	maxBuildID     = 64
	maxGoBuildID   = 512
	noteGNUBuildID = 3 // NT_GNU_BUILD_ID
	noteGoBuildID  = 4 // ELF_NOTE_GOBUILDID_TAG of cmd/internal/buildid
)

// BuildID returns the GNU build id in hexadecimal; if there is none, Go's own build
// id as it is; if there is none either, "".
func (f *File) BuildID() string {
	goID := ""
	gnuID := ""
	f.notes(func(name string, kind uint32, desc []byte) bool {
		switch {
		case name == "GNU" && kind == noteGNUBuildID && len(desc) > 0 && len(desc) <= maxBuildID:
			gnuID = hex.EncodeToString(desc)
			return false
		case name == "Go" && kind == noteGoBuildID && len(desc) <= maxGoBuildID:
			goID = string(desc)
		}
		return true
	})
	if gnuID != "" {
		return gnuID
	}
	return goID
}

// GNUBuildID returns the GNU build id in hexadecimal, "" if there is none.
func (f *File) GNUBuildID() string {
	id := f.BuildID()
	if _, err := hex.DecodeString(id); err != nil {
		return ""
	}
	return id
}

// notes calls fn with each note until it returns false. The segments are asked
// first: they are there in files without section headers, too.
func (f *File) notes(fn func(name string, kind uint32, desc []byte) bool) {
	left := uint64(maxNotes)
	for i := range f.Segments {
		if s := &f.Segments[i]; s.Type == elf.PT_NOTE && !f.notesAt(s.Off, s.FileLen, s.Align, &left, fn) {
			return
		}
	}
	for i := range f.Sections {
		if s := &f.Sections[i]; s.Type == elf.SHT_NOTE && !f.notesAt(s.Off, s.Len, s.Align, &left, fn) {
			return
		}
	}
}

// notesAt: System V ABI, "Note Section". Unreadable notes are passed over: they
// are of use, not of need.
func (f *File) notesAt(off FileOffset, n, align uint64, left *uint64, fn func(string, uint32, []byte) bool) bool {
	if n > *left {
		return true
	}
	*left -= n
	b, err := f.Bytes(off, n, maxNotes)
	if err != nil {
		return true
	}
	pad := uint64(3)
	if align == 8 {
		pad = 7
	}
	for len(b) >= 12 {
		nameLen, descLen, kind := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		descAt := (12 + nameLen + pad) &^ pad
		next := (descAt + descLen + pad) &^ pad
		if descAt+descLen > uint64(len(b)) {
			return true
		}
		name := string(bytes.TrimRight(b[12:12+nameLen], "\x00"))
		if !fn(name, kind, b[descAt:descAt+descLen]) {
			return false
		}
		if next > uint64(len(b)) {
			return true
		}
		b = b[next:]
	}
	return true
}

// DebugLink returns what .gnu_debuglink says: the name of the separate debug file
// and the CRC-32 (IEEE) of all its bytes. False if there is no such section, or if
// the name is not a plain file name. Source: GDB manual, "Separate Debug Files".
func (f *File) DebugLink() (name string, crc uint32, ok bool) {
	s := f.Section(".gnu_debuglink")
	if s == nil {
		return "", 0, false
	}
	b, err := f.Data(s, 4096)
	if err != nil {
		return "", 0, false
	}
	end := bytes.IndexByte(b, 0)
	if end <= 0 {
		return "", 0, false
	}
	at := (end + 1 + 3) &^ 3
	if at+4 > len(b) {
		return "", 0, false
	}
	name = string(b[:end])
	if strings.ContainsRune(name, '/') || name == "." || name == ".." {
		return "", 0, false
	}
	return name, le.Uint32(b[at:]), true
}

// String describes the file in a few words, for log lines.
func (f *File) String() string {
	return fmt.Sprintf("%v %v %v, %d sections", f.Class, f.Type, f.Machine, len(f.Sections))
}
