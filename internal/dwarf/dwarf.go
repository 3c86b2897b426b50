// Package dwarf finds the functions and source lines of an address in the debugging
// information of an ELF file: the function, those inlined there, and for each its file
// and line. It reads what an address needs: the units' ranges once, and of a unit its
// entries and its line table, which are kept for a while.
//
// The information is hostile: what is corrupt yields an error or nothing, every size and
// depth has a bound, and no more is kept than MaxBytes.
//
// Format: DWARF Debugging Information Format, versions 2 to 5; section numbers are those
// of version 5. Of split units whose file is missing only lines are known.
package dwarf

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/spanflame/spanflame/internal/elffile"
)

// ErrNone says that a file has no debugging information.
var ErrNone = errors.New("the file has no debugging information")

// ErrClosed says that Close was called.
var ErrClosed = errors.New("the debugging information is closed")

// Bounds.
const (
	maxWork       = 512 << 20 // bytes of range lists and abbreviations that one look-up may read
	maxUnpacked   = 48 << 20  // of all compressed sections
	maxUnit       = 48 << 20  // bytes of a unit, or of a line table
	maxUnits      = 1 << 19
	maxRanges     = 1 << 20 // of all units, and of the scopes of one
	maxScopes     = 1 << 20 // of a unit
	maxDepth      = 1 << 10
	maxChain      = 16 // of references from an entry to the one that bears its name
	maxInlined    = 128
	maxString     = 16 << 10
	maxAttributes = 1 << 10 // of an abbreviation
	maxLineRows   = 4 << 20
	maxLineFiles  = 1 << 17
	maxSplitOpen  = 16 // files of split units
)

// Call is a function at an address.
type Call struct {
	Name    string // as in the source
	Linkage string // mangled; "" if there is none
	File    string // "" if not known
	Line    int    // 0 if not known
	// Split says that it is from a split unit. Ids of such units tell builds apart, but not
	// always: gcc's do not change with a constant in the code.
	Split bool
}

// Data is the debugging information of a file. It is safe for concurrent use.
type Data struct {
	// MaxBytes bounds what is kept of units; 0: 4 MiB.
	MaxBytes int64

	info, abbrev, ranges, rnglists, line, str, lineStr, addr, strOffsets *section
	alt                                                                  *Data // dwz's common file
	splits                                                               SplitFiles
	files                                                                atomic.Int32 // of split units, open
	held                                                                 atomic.Int64 // bytes, as Bytes tells them

	// Of split units:
	file  *SplitFile
	index *section // of a package

	mu      sync.Mutex // guards the rest
	closed  bool
	err     error
	scanned bool
	units   []unitHead
	spans   []span // of all units, sorted
	loaded  map[int]*unit
	order   []int // of loaded, the oldest first
	size    int64
	work    *int64 // left for this look-up; one with the files that belong to this one
	abbrevs map[uint64]*abbrevTable

	askedPackage bool
	pack         *Data
	packErr      error
}

// span is a range of addresses of a unit, or of a scope.
type span struct {
	lo, hi uint64
	of     int32
}

// Open prepares the reading of a file, which must stay readable. alt is dwz's common file
// (.gnu_debugaltlink), or nil. splits opens the files of split units; nil: they are not
// read. Close gives those back.
func Open(f, alt *elffile.File, splits SplitFiles) (*Data, error) {
	d := &Data{loaded: map[int]*unit{}, abbrevs: map[uint64]*abbrevTable{}, work: new(int64), splits: splits}
	var err error
	for name, to := range map[string]**section{
		".debug_info": &d.info, ".debug_abbrev": &d.abbrev, ".debug_ranges": &d.ranges, ".debug_rnglists": &d.rnglists,
		".debug_line": &d.line, ".debug_str": &d.str, ".debug_line_str": &d.lineStr, ".debug_addr": &d.addr,
		".debug_str_offsets": &d.strOffsets,
	} {
		if *to, err = newSection(f, f.Section(name)); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	if d.info.f == nil || d.abbrev.f == nil {
		return nil, ErrNone
	}
	if alt != nil {
		if d.alt, err = Open(alt, nil, nil); err != nil {
			return nil, fmt.Errorf("read the common file: %w", err)
		}
		d.alt.work = d.work
	}
	return d, nil
}

// Close closes the files of split units. It waits for a look-up that is running; later ones
// return ErrClosed. It may be called more than once.
func (d *Data) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for len(d.order) > 0 {
		d.evict()
	}
	if d.pack != nil {
		d.closeSplit(d.pack.file)
		d.pack = nil
	}
	d.held.Store(0)
}

// OpenFiles is the number of files of split units that are open.
func (d *Data) OpenFiles() int { return int(d.files.Load()) }

func (d *Data) sections() []*section {
	return []*section{d.info, d.abbrev, d.ranges, d.rnglists, d.line, d.str, d.lineStr, d.addr, d.strOffsets}
}

// Has says whether a file has debugging information.
func Has(f *elffile.File) bool {
	s := f.Section(".debug_info")
	return s != nil && s.HasData() && s.Len > 0
}

// Find returns the functions at an address, innermost first; nil if none is known. Of a
// split unit whose file is missing there is one function without a name, where the line
// is known: that of the innermost. The error is that of SplitFile.Fresh if it was told of a
// change.
func (d *Data) Find(addr elffile.VirtAddr) ([]Call, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	*d.work = maxWork
	if !d.scanned {
		d.scanned = true
		d.err = d.scan()
		d.held.Store(d.footprint())
	}
	i := sort.Search(len(d.spans), func(i int) bool { return d.spans[i].lo > uint64(addr) }) - 1
	// Units that overlap are rare: look at the nearest few.
	for n := 0; i >= 0 && n < 8; i, n = i-1, n+1 {
		if s := d.spans[i]; uint64(addr) < s.hi {
			u, err := d.unit(int(s.of))
			if err != nil {
				return nil, err
			}
			calls := d.calls(u, uint64(addr))
			if u.in.file != nil {
				// It is asked afterwards, so that nothing read from what changed is told.
				if err := u.in.file.Fresh(); err != nil {
					return nil, err
				}
			}
			if calls != nil {
				return calls, nil
			}
		}
	}
	return nil, d.err
}

// Bytes is about the memory that is held.
func (d *Data) Bytes() int64 {
	return d.held.Load() // and not under the lock, which a look-up holds while it reads files
}

// footprint is about the memory that is held. The caller holds mu, or that of the Data which
// this is the common file of.
func (d *Data) footprint() int64 {
	n := d.size + int64(len(d.units))*headBytes + int64(len(d.spans))*24
	for _, s := range d.sections() {
		n += int64(len(s.mem))
	}
	if d.alt != nil {
		n += d.alt.footprint()
	}
	if d.pack != nil {
		n += d.pack.splitBytes()
	}
	return n
}

// unit returns a unit, read if it is not there. The caller holds mu.
func (d *Data) unit(i int) (*unit, error) {
	if u := d.loaded[i]; u != nil {
		return u, nil
	}
	u, err := d.readUnit(&d.units[i])
	if err != nil {
		u = &unit{head: &d.units[i], in: d} // not read again and again
	}
	limit := d.MaxBytes
	if limit == 0 {
		limit = 4 << 20
	}
	u.bytes = u.footprint()
	if u.file != nil {
		u.bytes += u.in.splitBytes()
	}
	for len(d.order) > 0 && (d.size+u.bytes > limit || u.file != nil && d.files.Load() > maxSplitOpen) {
		d.evict()
	}
	d.loaded[i] = u
	d.order = append(d.order, i)
	d.size += u.bytes
	d.held.Store(d.footprint())
	return u, nil
}

// evict forgets the unit that was read first.
func (d *Data) evict() {
	u := d.loaded[d.order[0]]
	d.closeSplit(u.file)
	d.size -= u.bytes
	delete(d.loaded, d.order[0])
	d.order = d.order[1:]
}

// calls are the functions at an address of a unit.
func (d *Data) calls(u *unit, addr uint64) []Call {
	file, line := u.lines.find(addr)
	best := int32(-1)
	for i := range u.spans {
		// A scope comes behind those that it is in: the last is the innermost.
		if s := &u.spans[i]; addr >= s.lo && addr < s.hi && s.of > best {
			best = s.of
		}
	}
	if best < 0 {
		if u.missing && line > 0 {
			return []Call{{File: u.lines.name(file), Line: line}}
		}
		return nil
	}
	var out []Call
	for n := 0; n < maxInlined; n++ {
		s := &u.scopes[best]
		c := u.in.name(u.head, s.entry)
		c.File, c.Line, c.Split = u.lines.name(file), line, u.in != d
		out = append(out, c)
		if !s.inlined {
			return out
		}
		if s.parent < 0 {
			return nil // inlined into nothing
		}
		file, line = int(s.callFile), int(s.callLine)
		best = s.parent
	}
	return nil
}

// unitAt finds the unit that an offset in .debug_info lies in.
func (d *Data) unitAt(off uint64) *unitHead {
	i := sort.Search(len(d.units), func(i int) bool { return d.units[i].off > off }) - 1
	if i < 0 || off >= d.units[i].end {
		return nil
	}
	return &d.units[i]
}

// spend takes from the work that is left.
func (d *Data) spend(n int) error {
	if *d.work -= int64(n); *d.work < 0 {
		return fmt.Errorf("range lists and abbreviations: %w", elffile.ErrTooLarge)
	}
	return nil
}

// scan reads the heads and the ranges of all units. What comes before an error is kept.
func (d *Data) scan() error {
	left := int64(maxUnpacked)
	for _, s := range d.sections() {
		if err := s.unpack(&left); err != nil {
			return err
		}
	}
	for at := uint64(0); at < d.info.size; {
		h, err := d.head(at)
		if err != nil {
			return err
		}
		if len(d.units) >= maxUnits {
			return fmt.Errorf("%w: more than %d units", elffile.ErrTooLarge, maxUnits)
		}
		at = h.end
		d.units = append(d.units, h)
	}
	for i := range d.units {
		if err := d.root(&d.units[i], int32(i)); err != nil {
			return err
		}
	}
	slices.SortFunc(d.spans, func(a, b span) int {
		switch {
		case a.lo < b.lo:
			return -1
		case a.lo > b.lo:
			return 1
		}
		return 0
	})
	return nil
}
