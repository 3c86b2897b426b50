package dwarf

import (
	"fmt"

	"github.com/spanflame/spanflame/internal/elffile"
)

// Types of units: 7.5.1.
const (
	unitCompile  = 0x01
	unitType     = 0x02
	unitPartial  = 0x03
	unitSkeleton = 0x04
	unitSplit    = 0x05
	unitSplitTyp = 0x06
)

// unitHead is what the head and the root entry of a unit say.
type unitHead struct {
	off, end  uint64 // in .debug_info
	first     uint64 // its root entry
	abbrevs   uint64
	version   int
	kind      uint8
	addrSize  int
	offSize   int
	low       uint64 // what ranges are relative to
	strBase   uint64
	addrBase  uint64
	rangeBase uint64
	lines     uint64 // in .debug_line, plus 1; 0: none
	id        uint64 // of a split unit
	dir       value
}

const headBytes = 144 // of a unitHead

// scope is a function, or one inlined in another.
type scope struct {
	entry              uint64 // in .debug_info
	parent             int32  // -1: none
	callFile, callLine uint32
	inlined            bool
}

// unit is what was read of a unit.
type unit struct {
	head    *unitHead  // that of the split unit, if there is one
	in      *Data      // what its entries are in
	file    *SplitFile // to be closed with it; nil if there is none
	missing bool       // the split unit
	scopes  []scope
	spans   []span
	lines   lineTable
	bytes   int64
}

func (u *unit) footprint() int64 {
	return 256 + int64(len(u.scopes))*24 + int64(len(u.spans))*24 + u.lines.bytes()
}

// head reads the head of the unit at an offset: 7.5.1.1.
func (d *Data) head(at uint64) (unitHead, error) {
	raw, err := d.info.some(at, 64)
	if err != nil {
		return unitHead{}, err
	}
	b := buf{b: raw}
	h := unitHead{off: at, kind: unitCompile}
	n, offSize := b.length()
	begin := at + uint64(b.at)
	h.offSize = offSize
	h.version = int(b.num(2))
	if h.version >= 5 {
		h.kind = uint8(b.num(1))
		h.addrSize = int(b.num(1))
		h.abbrevs = b.num(offSize)
		switch h.kind {
		case unitSkeleton, unitSplit:
			h.id = b.num(8)
		case unitType, unitSplitTyp:
			b.skip(8 + uint64(offSize))
		}
	} else {
		h.abbrevs = b.num(offSize)
		h.addrSize = int(b.num(1))
	}
	h.first = at + uint64(b.at)
	h.end = begin + n
	if b.bad || n > d.info.size-begin || h.first > h.end {
		return h, fmt.Errorf("%w: unit at %#x of .debug_info", elffile.ErrCorrupt, at)
	}
	if h.version < 2 || h.version > 5 || h.addrSize != 8 && h.addrSize != 4 {
		h.kind = unitSplitTyp // passed over
	}
	return h, nil
}

// readable says whether a unit can have functions.
func (h *unitHead) readable() bool {
	return h.kind == unitCompile || h.kind == unitPartial || h.kind == unitSkeleton
}

// rootAttrs shows the attributes of a unit's root entry. False if they could not be read.
func (d *Data) rootAttrs(h *unitHead, see func(attr uint32, v value)) (bool, error) {
	t, err := d.abbreviations(h.abbrevs)
	if err != nil {
		return false, err
	}
	raw, err := d.info.some(h.first, min(h.end-h.first, 8<<10))
	if err != nil {
		return false, err
	}
	b := buf{b: raw}
	a := t.get(b.uleb())
	if !a.known {
		return false, nil
	}
	for _, s := range a.attrs {
		v := h.read(&b, s, true)
		if b.bad {
			return false, nil
		}
		see(s.attr, v)
	}
	return true, nil
}

// root reads the root entry of a unit, and its ranges.
func (d *Data) root(h *unitHead, number int32) error {
	if !h.readable() {
		return nil
	}
	var low, high, ranges value
	hasLow, hasHigh, hasRanges := false, false, false
	if ok, err := d.rootAttrs(h, func(attr uint32, v value) {
		switch attr {
		case atLowPC:
			low, hasLow = v, true
		case atHighPC:
			high, hasHigh = v, true
		case atRanges:
			ranges, hasRanges = v, true
		case atStmtList:
			h.lines = v.n + 1
		case atCompDir:
			h.dir = v
		case atStrOffsetsBase:
			h.strBase = v.n
		case atAddrBase, atGNUAddrBase:
			h.addrBase = v.n
		case atRnglistsBase, atGNURangesBase:
			h.rangeBase = v.n
		}
	}); err != nil || !ok {
		return err
	}
	if h.strBase == 0 && h.version >= 5 {
		h.strBase = 8 // behind the head of the only table
	}
	if hasLow {
		h.low, _ = d.addrOf(h, low)
	}
	var err error
	before := len(d.spans)
	switch {
	case hasRanges:
		d.spans, err = d.rangesOf(h, ranges, number, d.spans)
	case hasLow && hasHigh:
		if hi, ok := d.highOf(h, high, h.low); ok {
			d.spans = appendSpan(d.spans, h.low, hi, number)
		}
	}
	if len(d.spans) > maxRanges {
		d.spans = d.spans[:before]
		return fmt.Errorf("%w: more than %d ranges", elffile.ErrTooLarge, maxRanges)
	}
	return err
}

// highOf: an address, or a size (2.17.2).
func (d *Data) highOf(h *unitHead, v value, low uint64) (uint64, bool) {
	if hi, ok := d.addrOf(h, v); ok {
		return hi, true
	}
	switch v.form {
	case formData1, formData2, formData4, formData8, formUdata, formSdata, formImplicitConst:
		return low + v.n, true
	}
	return 0, false
}

func appendSpan(to []span, lo, hi uint64, of int32) []span {
	if lo == 0 || hi <= lo { // 0: dropped by the linker
		return to
	}
	return append(to, span{lo, hi, of})
}

// Range list entries: 7.25.
const (
	rleEnd          = 0
	rleBaseAddrx    = 1
	rleStartxEndx   = 2
	rleStartxLength = 3
	rleOffsetPair   = 4
	rleBase         = 5
	rleStartEnd     = 6
	rleStartLength  = 7
)

// rangesOf reads a range list: 2.17.3.
func (d *Data) rangesOf(h *unitHead, v value, of int32, to []span) ([]span, error) {
	sec, at := d.ranges, v.n
	if h.version >= 5 {
		sec = d.rnglists
		if v.form == formRnglistx {
			b, err := sec.bytes(h.rangeBase+v.n*uint64(h.offSize), uint64(h.offSize))
			if err != nil || v.n > 1<<32 {
				return to, err
			}
			in := buf{b: b}
			at = h.rangeBase + in.num(h.offSize)
		}
	} else if h.kind == unitSplit {
		at += h.rangeBase // not for the skeleton's own
	}
	for n := uint64(512); ; n *= 16 {
		b, err := sec.some(at, n)
		if err == nil {
			err = d.spend(len(b))
		}
		if err != nil {
			return to, err
		}
		out, done := d.rangeList(h, &buf{b: b}, of, to)
		if done {
			return out, nil
		}
		if uint64(len(b)) < n || n > maxUnit {
			return to, fmt.Errorf("%w: range list at %#x", elffile.ErrCorrupt, at)
		}
	}
}

// rangeList reads the entries. False: there is no end.
func (d *Data) rangeList(h *unitHead, b *buf, of int32, to []span) ([]span, bool) {
	base := h.low
	for len(to) <= maxRanges {
		if h.version < 5 {
			lo, hi := b.num(h.addrSize), b.num(h.addrSize)
			switch {
			case b.bad:
				return to, false
			case lo == 0 && hi == 0:
				return to, true
			case lo == 1<<(8*h.addrSize-1)<<1-1:
				base = hi
			default:
				to = appendSpan(to, base+lo, base+hi, of)
			}
			continue
		}
		kind := b.num(1)
		if b.bad {
			return to, false
		}
		var lo, hi uint64
		ok := true
		switch kind {
		case rleEnd:
			return to, true
		case rleBaseAddrx:
			base, _ = d.indexed(h, b.uleb())
			continue
		case rleBase:
			base = b.num(h.addrSize)
			continue
		case rleStartxEndx:
			var ok2 bool
			lo, ok = d.indexed(h, b.uleb())
			hi, ok2 = d.indexed(h, b.uleb())
			ok = ok && ok2
		case rleStartxLength:
			lo, ok = d.indexed(h, b.uleb())
			hi = lo + b.uleb()
		case rleOffsetPair:
			lo = base + b.uleb()
			hi = base + b.uleb()
		case rleStartEnd:
			lo, hi = b.num(h.addrSize), b.num(h.addrSize)
		case rleStartLength:
			lo = b.num(h.addrSize)
			hi = lo + b.uleb()
		default:
			return to, true // of a later version: what was read holds
		}
		if b.bad {
			return to, false
		}
		if ok {
			to = appendSpan(to, lo, hi, of)
		}
	}
	return to, true
}

// readUnit reads the functions of a unit and its lines. Those of a split unit are in the
// line table that the skeleton names, and so are the files it refers to: 3.1.3, 7.3.2.2.
func (d *Data) readUnit(h *unitHead) (*unit, error) {
	u, err := d.readSplit(h)
	if u == nil {
		u = &unit{head: h, in: d, missing: err != nil}
		if err := d.entries(u); err != nil {
			return nil, err
		}
	}
	if h.lines > 0 {
		// A split unit's functions are known without lines, too.
		if u.lines, err = d.readLines(h); err != nil && u.in == d {
			return nil, err
		}
	}
	return u, nil
}

// entries reads the functions of a unit.
func (d *Data) entries(u *unit) error {
	h := u.head
	t, err := d.abbreviations(h.abbrevs)
	if err != nil {
		return err
	}
	if h.end-h.first > maxUnit {
		return fmt.Errorf("unit of %d bytes: %w", h.end-h.first, elffile.ErrTooLarge)
	}
	raw, err := d.info.bytes(h.first, h.end-h.first)
	if err != nil {
		return err
	}
	b := &buf{b: raw}
	parents := make([]int32, 0, 64) // of the entries at each depth
	within := int32(-1)
	for b.at < len(b.b) {
		entry := h.first + uint64(b.at)
		code := b.uleb()
		if code == 0 {
			if len(parents) == 0 {
				break
			}
			within = parents[len(parents)-1]
			parents = parents[:len(parents)-1]
			if len(parents) == 0 {
				break // the root's children are over
			}
			continue
		}
		a := t.get(code)
		if !a.known || b.bad {
			break
		}
		self := within
		if a.tag == tagSubprogram || a.tag == tagInlined {
			self = d.scope(u, b, a, entry, within)
		} else {
			for _, s := range a.attrs {
				h.read(b, s, false)
			}
		}
		if b.bad || len(u.scopes) >= maxScopes || len(u.spans) >= maxRanges {
			break
		}
		if a.children {
			if len(parents) >= maxDepth {
				break
			}
			parents = append(parents, within)
			within = self
		} else if len(parents) == 0 {
			break
		}
	}
	return nil
}

// scope reads a function's entry. It returns what its children are in.
func (d *Data) scope(u *unit, b *buf, a *abbrev, entry uint64, within int32) int32 {
	h := u.head
	var low, high, ranges value
	hasLow, hasHigh, hasRanges := false, false, false
	s := scope{entry: entry, parent: within, inlined: a.tag == tagInlined}
	for _, spec := range a.attrs {
		v := h.read(b, spec, false)
		switch spec.attr {
		case atLowPC:
			low, hasLow = v, true
		case atHighPC:
			high, hasHigh = v, true
		case atRanges:
			ranges, hasRanges = v, true
		case atCallFile:
			s.callFile = uint32(v.n)
		case atCallLine:
			s.callLine = uint32(v.n)
		}
	}
	if b.bad {
		return within
	}
	number := int32(len(u.scopes))
	before := len(u.spans)
	switch {
	case hasRanges:
		spans, err := d.rangesOf(h, ranges, number, u.spans)
		if err == nil {
			u.spans = spans
		}
	case hasLow && hasHigh:
		if lo, ok := d.addrOf(h, low); ok {
			if hi, ok := d.highOf(h, high, lo); ok {
				u.spans = appendSpan(u.spans, lo, hi, number)
			}
		}
	}
	if len(u.spans) == before {
		if s.inlined {
			return within // no code is left of it
		}
		// A declaration, or what others are made of: its children are not in anything.
		return -1
	}
	if !s.inlined {
		s.parent = -1
	}
	u.scopes = append(u.scopes, s)
	return number
}

// name finds the names of an entry: its own, or those of what it was made of.
func (d *Data) name(h *unitHead, entry uint64) (c Call) {
	in := d
	for range maxChain {
		if h == nil {
			return c
		}
		t, err := in.abbreviations(h.abbrevs)
		if err != nil || entry < h.first || entry >= h.end {
			return c
		}
		raw, err := in.info.some(entry, min(h.end-entry, 2<<10))
		if err != nil {
			return c
		}
		b := buf{b: raw}
		a := t.get(b.uleb())
		var next value
		has := false
		for _, s := range a.attrs {
			v := h.read(&b, s, s.attr == atName || s.attr == atLinkageName || s.attr == atMIPSLinkage)
			if b.bad {
				break
			}
			switch s.attr {
			case atName:
				if c.Name == "" {
					c.Name = in.strOf(h, v)
				}
			case atLinkageName, atMIPSLinkage:
				if c.Linkage == "" {
					c.Linkage = in.strOf(h, v)
				}
			case atAbstractOrigin, atSpecification:
				next, has = v, true
			}
		}
		if c.Linkage != "" || !has {
			return c
		}
		off, alt, ok := h.reference(next)
		if !ok {
			return c
		}
		if alt {
			if in = in.alt; in == nil {
				return c
			}
			if len(in.units) == 0 && !in.scanned {
				in.scanned = true
				in.err = in.scan()
			}
		}
		if entry = off; alt || off < h.off || off >= h.end {
			h = in.unitAt(off)
		}
	}
	return c
}
