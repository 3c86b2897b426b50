package unwind

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

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
	initial   state // after program
	section   *section
}

// fde is a Frame Description Entry.
type fde struct {
	start, end          VirtAddr
	cie                 int32
	order               int32  // in which it was read
	program, programEnd uint32 // in the section
}

// section is the bytes of a section of call frame information.
type section struct {
	buf
	addr    VirtAddr
	eh      bool
	endless bool // its size is not known: it ends with its terminator
}

// entry is a CIE or an FDE, read up to and with its id or CIE pointer.
type entry struct {
	section
	begin, idAt int
	id          uint64
	isCIE       bool
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
	if err := f.ReadAddr(head[:min(s.FileLen, uint64(len(head)))], s.Addr); err != nil {
		return fmt.Errorf("read .eh_frame_hdr: %w", err)
	}
	b := buf{b: head[:], at: 4}
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
			before := len(r.fdes)
			err = r.read(section{buf: buf{b: data}, addr: addr, eh: true, endless: true})
			if n, ok := headerCount(head[:]); ok && uint64(len(r.fdes)-before) >= n {
				return nil // all of it: what came then, without a terminator, is something else
			}
			return err
		}
	}
	return fmt.Errorf("%w: .eh_frame at %#x is in no segment", elffile.ErrCorrupt, addr)
}

// headerCount is the number of FDEs that .eh_frame_hdr states.
func headerCount(head []byte) (n uint64, ok bool) {
	b := buf{b: head, at: 4}
	b.pointer(head[1]&0x0f, 0)
	if head[2] == encOmit || head[2]&0xf0 != 0 {
		return 0, false
	}
	n = b.pointer(head[2], 0)
	return n, b.err == nil && n > 0
}

func debugFrameOf(f *elffile.File) *elffile.Section {
	if s := f.Section(".debug_frame"); s != nil {
		return s
	}
	return f.Section(".zdebug_frame") // GNU's older way of compression
}

func (r *reader) debugFrame(f *elffile.File) error {
	s := debugFrameOf(f)
	if s == nil || !s.HasData() {
		return nil
	}
	b, err := f.Data(s, r.opts.MaxSection)
	if err != nil {
		return fmt.Errorf("read .debug_frame: %w", err)
	}
	return r.read(section{buf: buf{b: b}})
}

// read goes through the entries of a section twice: an FDE may come before its CIE.
func (r *reader) read(s section) error {
	if uint64(len(s.b)) > math.MaxUint32 {
		return fmt.Errorf("call frame information of %d bytes: %w", len(s.b), elffile.ErrTooLarge)
	}
	cies := map[uint64]int32{} // where one begins -> its index
	n := 0
	err := s.each(func(e *entry) error {
		if e.isCIE {
			cies[uint64(e.begin)] = r.addCIE(e, &s)
			return nil
		}
		n++
		return nil
	})
	if room := r.opts.MaxRows - len(r.fdes); n > room {
		return fmt.Errorf("%d functions: %w of %d", n, ErrTooMany, r.opts.MaxRows)
	}
	r.fdes = slices.Grow(r.fdes, n)
	return errors.Join(s.each(func(e *entry) error {
		if e.isCIE {
			return nil
		}
		at := e.id
		if s.eh {
			at = uint64(e.idAt) - e.id
		}
		c, ok := cies[at]
		if !ok {
			return fmt.Errorf("%w: entry at %#x refers to no CIE", elffile.ErrCorrupt, e.begin)
		}
		r.addFDE(e, c)
		return nil
	}), err)
}

// each calls for every entry, until an error.
func (s section) each(do func(*entry) error) error {
	var e entry
	for s.at < len(s.b) {
		begin := s.at
		n, wide := s.length()
		if n == 0 && s.err == nil {
			if s.endless {
				return nil
			}
			continue // a terminator, maybe of one of the files that were linked
		}
		if s.err != nil || n > uint64(len(s.b)-s.at) {
			return fmt.Errorf("%w: entry at %#x of call frame information", elffile.ErrCorrupt, begin)
		}
		e = entry{section: s, begin: begin, idAt: s.at}
		s.at += int(n)
		e.b = s.b[:s.at]
		// In .eh_frame it has 4 bytes, of however many the length is.
		wide = wide && !s.eh
		e.id = e.section.id(wide)
		e.isCIE = e.id == cieID(s.eh, wide)
		if e.err != nil {
			return fmt.Errorf("%w: entry at %#x of call frame information", elffile.ErrCorrupt, begin)
		}
		if err := do(&e); err != nil {
			return err
		}
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

// addCIE reads a CIE from behind its id on. What is not understood makes it bad: its
// functions get rows that say so, or none if it is not known how to read where they are.
func (r *reader) addCIE(e *entry, in *section) int32 {
	s := &e.section
	c := cie{fdeEnc: encAbs, section: in}
	version := s.u8()
	augmentation := s.str()
	placed := version == 1 || version == 3 || version == 4
	if version == 4 {
		if address, segment := s.u8(), s.u8(); address != 8 || segment != 0 {
			placed = false
		}
	}
	c.codeAlign, c.dataAlign = s.uleb(), s.sleb()
	if version == 1 {
		c.ra = uint64(s.u8())
	} else {
		c.ra = s.uleb()
	}
	if augmentation != "" {
		placed = c.augment(s, augmentation) && placed
	}
	if s.err != nil || !placed {
		c.bad, c.fdeEnc = true, encOmit
	}
	c.bad = c.bad || c.ra != uint64(r.arch.ra)
	if !c.bad {
		c.program = s.b[s.at:]
	}
	r.cies = append(r.cies, c)
	return int32(len(r.cies) - 1)
}

// augment reads augmentation data. False: FDEs cannot be read. LSB Core 5.0, 10.6.1.1.1.
func (c *cie) augment(s *section, augmentation string) bool {
	if augmentation[0] != 'z' {
		return false
	}
	c.augmented = true
	n := s.uleb()
	if n > uint64(len(s.b)-s.at) {
		s.fail()
		return false
	}
	next := s.at + int(n)
	for i, a := range []byte(augmentation) {
		switch a {
		case 'z':
			if i > 0 {
				return false
			}
		case 'L':
			s.u8()
		case 'R':
			c.fdeEnc = s.u8()
		case 'P':
			if enc := s.u8(); enc != encOmit {
				s.pointer(enc&0x0f, 0) // only its length counts
			}
		case 'S':
			c.signal = true
		case 'B', 'G': // signed return addresses, tagged memory: nothing to do
		default:
			// How much data belongs to the letter is not known.
			c.bad = true
			known := !strings.Contains(augmentation[i:], "R")
			s.at = next
			return known
		}
	}
	if s.at > next {
		s.fail()
		return false
	}
	s.at = next
	return true
}

// addFDE reads an FDE from behind its CIE pointer on. One that makes no sense is left
// out.
func (r *reader) addFDE(e *entry, c int32) {
	s, cie := &e.section, &r.cies[c]
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
		program: uint32(s.at), programEnd: uint32(len(s.b)),
	})
}

// table evaluates what was read.
func (r *reader) table() (*Table, error) {
	entries := len(r.fdes)
	r.markEntry()
	if !slices.IsSortedFunc(r.fdes, byStart) {
		slices.SortFunc(r.fdes, byStart)
	}
	r.markContexts()
	b := newBuilder(r.opts.MaxRows, len(r.fdes))
	m := machine{arch: r.arch, out: b}
	for i := range r.cies {
		m.prepare(&r.cies[i])
	}
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
			return b.finish(last, entries), fmt.Errorf("%w of %d", ErrTooMany, r.opts.MaxRows)
		}
	}
	return b.finish(last, entries), nil
}

// entryLen is more than the code of an entry point takes that nothing describes.
const entryLen = 64

// markEntry ends stacks at the program's entry point, if nothing describes it: the
// kernel jumped there.
func (r *reader) markEntry() {
	entry := r.file.Entry
	end := entry + entryLen
	if entry == 0 || end < entry {
		return
	}
	for i := range r.fdes {
		d := &r.fdes[i]
		if d.start > entry {
			end = min(end, d.start)
		} else if entry < d.end {
			return
		}
	}
	program := []byte{opUndefined, r.arch.ra}
	r.cies = append(r.cies, cie{codeAlign: 1, program: program, section: &section{}})
	r.fdes = append(r.fdes, fde{start: entry, end: end, cie: int32(len(r.cies) - 1), order: int32(len(r.fdes))})
}

func byStart(a, b fde) int {
	if c := cmp.Compare(a.start, b.start); c != 0 {
		return c
	}
	return cmp.Compare(a.order, b.order)
}
