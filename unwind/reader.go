package unwind

import (
	"cmp"
	"debug/elf"
	"fmt"
	"math"
	"slices"

	"github.com/spanflame/spanflame/internal/elffile"
)

// Pointer encodings, LSB Core 5.0, 10.5.1.
const (
	encAbs   = 0x00
	encULEB  = 0x01
	encU2    = 0x02
	encU4    = 0x03
	encU8    = 0x04
	encSLEB  = 0x09
	encS2    = 0x0a
	encS4    = 0x0b
	encS8    = 0x0c
	encPCRel = 0x10
	encOmit  = 0xff
)

// reader collects the descriptions of a file's functions.
type reader struct {
	file *elffile.File
	arch arch
	opts Options
	cies []cie
	fdes []fde
}

// cie is a Common Information Entry, DWARF 5, 6.4.1.
type cie struct {
	codeAlign uint64
	dataAlign int64
	ra        uint64
	fdeEnc    byte
	augmented bool // FDEs have augmentation data
	signal    bool
	bad       bool // nothing that refers to it is understood
	program   []byte
}

// fde is a Frame Description Entry.
type fde struct {
	start, end VirtAddr
	cie        int32
	order      int32 // in which it was read
	program    []byte
	at         VirtAddr // address of program, for pointers relative to themselves
}

// section is the bytes of a section of call frame information.
type section struct {
	buf
	addr VirtAddr
	eh   bool
}

// ehFrame reads .eh_frame, found by its section header or by PT_GNU_EH_FRAME.
func (r *reader) ehFrame(f *elffile.File) error {
	if s := f.Section(".eh_frame"); s != nil {
		if !s.HasData() {
			return nil // a separate debug file
		}
		b, err := f.Data(s, r.opts.MaxSection)
		if err != nil {
			return fmt.Errorf("read .eh_frame: %w", err)
		}
		return r.read(section{buf: buf{b: b}, addr: s.Addr, eh: true})
	}
	for i := range f.Segments {
		if s := &f.Segments[i]; s.Type == elf.PT_GNU_EH_FRAME {
			return r.ehFrameOfHeader(f, s)
		}
	}
	return nil
}

// ehFrameOfHeader follows .eh_frame_hdr to .eh_frame, which then ends with its
// terminator, or with its segment at the latest. LSB Core 5.0, 10.6.2.
func (r *reader) ehFrameOfHeader(f *elffile.File, s *elffile.Segment) error {
	var head [16]byte
	if err := f.ReadAddr(head[:12], s.Addr); err != nil {
		return fmt.Errorf("read .eh_frame_hdr: %w", err)
	}
	b := buf{b: head[:12], at: 4}
	addr := VirtAddr(b.pointer(head[1], s.Addr+4))
	if head[0] != 1 || b.err != nil {
		return fmt.Errorf("%w: .eh_frame_hdr of version %d", elffile.ErrCorrupt, head[0])
	}
	for _, l := range f.Loads {
		if addr >= l.Addr && uint64(addr-l.Addr) < l.FileLen {
			n := min(l.FileLen-uint64(addr-l.Addr), uint64(r.opts.MaxSection))
			data, err := f.Bytes(l.Off+elffile.FileOffset(addr-l.Addr), n, r.opts.MaxSection)
			if err != nil {
				return fmt.Errorf("read .eh_frame: %w", err)
			}
			return r.read(section{buf: buf{b: data}, addr: addr, eh: true})
		}
	}
	return fmt.Errorf("%w: .eh_frame at %#x is in no segment", elffile.ErrCorrupt, addr)
}

func (r *reader) debugFrame(f *elffile.File) error {
	s := f.Section(".debug_frame")
	if s == nil || !s.HasData() {
		return nil
	}
	b, err := f.Data(s, r.opts.MaxSection)
	if err != nil {
		return fmt.Errorf("read .debug_frame: %w", err)
	}
	return r.read(section{buf: buf{b: b}})
}

// read goes through the entries of a section.
func (r *reader) read(s section) error {
	known := map[int]int32{} // where a CIE begins -> its index
	r.fdes = slices.Grow(r.fdes, len(s.b)/48)
	for s.at < len(s.b) {
		begin := s.at
		n, wide := s.length()
		if n == 0 && s.eh {
			return s.err // the terminator
		}
		if s.err != nil || n > uint64(len(s.b)-s.at) {
			return fmt.Errorf("%w: entry at %#x of call frame information", elffile.ErrCorrupt, begin)
		}
		entry := section{buf: buf{b: s.b[:s.at+int(n)], at: s.at}, addr: s.addr, eh: s.eh}
		idAt := s.at
		s.at += int(n)
		id := entry.id(wide)
		if id == cieID(s.eh, wide) {
			known[begin] = r.addCIE(&entry)
			continue
		}
		cieAt := id
		if s.eh {
			cieAt = uint64(idAt) - id
		}
		if cieAt >= uint64(len(s.b)) {
			return fmt.Errorf("%w: entry at %#x refers to no CIE", elffile.ErrCorrupt, begin)
		}
		c, ok := known[int(cieAt)]
		if !ok {
			// The CIE comes later, or was not met: read it where it is.
			if c, ok = r.cieAt(s, int(cieAt)); !ok {
				return fmt.Errorf("%w: entry at %#x refers to no CIE", elffile.ErrCorrupt, begin)
			}
			known[int(cieAt)] = c
		}
		r.addFDE(&entry, c)
	}
	return nil
}

func cieID(eh, wide bool) uint64 {
	switch {
	case eh:
		return 0
	case wide:
		return math.MaxUint64
	}
	return math.MaxUint32
}

func (r *reader) cieAt(s section, at int) (int32, bool) {
	s.at = at
	n, wide := s.length()
	if s.err != nil || n > uint64(len(s.b)-s.at) {
		return 0, false
	}
	s.b = s.b[:s.at+int(n)]
	if s.id(wide) != cieID(s.eh, wide) || s.err != nil {
		return 0, false
	}
	return r.addCIE(&s), true
}

// addCIE reads a CIE from behind its id on. What is not understood makes it bad: its
// functions get rows that say so.
func (r *reader) addCIE(s *section) int32 {
	c := cie{fdeEnc: encAbs}
	version := s.u8()
	augmentation := s.str()
	if version == 4 {
		if address, segment := s.u8(), s.u8(); address != 8 || segment != 0 {
			c.bad = true
		}
	}
	c.codeAlign, c.dataAlign = s.uleb(), s.sleb()
	if version == 1 {
		c.ra = uint64(s.u8())
	} else {
		c.ra = s.uleb()
	}
	if version != 1 && version != 3 && version != 4 {
		c.bad = true
	}
	if augmentation != "" {
		if augmentation[0] != 'z' {
			c.bad = true
		} else {
			c.augmented = true
			end := s.uleb()
			if end > uint64(len(s.b)-s.at) {
				s.fail()
			}
			next := s.at + int(min(end, uint64(len(s.b)-s.at)))
			for _, a := range augmentation[1:] {
				switch a {
				case 'L':
					s.u8()
				case 'R':
					c.fdeEnc = s.u8()
				case 'P':
					s.pointer(s.u8(), s.here())
				case 'S':
					c.signal = true
				case 'B', 'G': // signed return addresses, tagged memory: nothing to do
				default:
					c.bad = true
				}
			}
			s.at = next
		}
	}
	c.bad = c.bad || s.err != nil || c.ra != uint64(r.arch.ra)
	if s.err == nil {
		c.program = s.b[s.at:]
	}
	r.cies = append(r.cies, c)
	return int32(len(r.cies) - 1)
}

// addFDE reads an FDE from behind its CIE pointer on. One that makes no sense is left
// out.
func (r *reader) addFDE(s *section, c int32) {
	cie := &r.cies[c]
	start := s.pointer(cie.fdeEnc, s.here())
	size := s.pointer(cie.fdeEnc&0x0f, 0)
	if cie.augmented {
		s.skip(s.uleb())
	}
	if s.err != nil || size == 0 || start+size < start || start == 0 {
		return // start 0: code that the linker has dropped
	}
	r.fdes = append(r.fdes, fde{
		start: VirtAddr(start), end: VirtAddr(start + size), cie: c, order: int32(len(r.fdes)),
		program: s.b[s.at:], at: s.here(),
	})
}

// table evaluates what was read.
func (r *reader) table() (*Table, error) {
	if !slices.IsSortedFunc(r.fdes, byStart) {
		slices.SortFunc(r.fdes, byStart)
	}
	b := newBuilder(r.opts.MaxRows, len(r.fdes))
	m := machine{arch: r.arch, out: b}
	var last VirtAddr // end of what is described so far
	for i := range r.fdes {
		d := &r.fdes[i]
		if d.start < last {
			if d.end <= last {
				continue // described already
			}
			// Where two overlap the first to begin keeps what it has.
			m.from = last
		} else {
			m.from = d.start
			if last != 0 && d.start-last >= padding {
				b.add(last, Rule{})
			}
		}
		m.run(&r.cies[d.cie], d)
		last = d.end
		if b.full() {
			return b.finish(last, len(r.fdes)), fmt.Errorf("%w of %d", ErrTooMany, r.opts.MaxRows)
		}
	}
	t := b.finish(last, len(r.fdes))
	b.markEntry(r.file.Entry)
	return t, nil
}

func byStart(a, b fde) int {
	if c := cmp.Compare(a.start, b.start); c != 0 {
		return c
	}
	return cmp.Compare(a.order, b.order)
}
