package dwarf

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/spanflame/spanflame/internal/elffile"
)

// Split units: of a unit only a skeleton is in the program. It says where the unit's code,
// lines and addresses are; all else is in a split unit of the same id, in a file of its own
// (.dwo) or in a package of many (.dwp): 3.1.2, 3.1.3, 7.3.2. Before version 5 it is GNU's
// extension: https://gcc.gnu.org/wiki/DebugFission.

// SplitFile is an open file with split units.
type SplitFile struct {
	File  *elffile.File
	Fresh func() error // an error if the content has changed since it was opened
	Close func()
}

// SplitFiles opens the files with the split units of a program. What it opens is closed
// with the Data at the latest. It is called while the Data is locked.
type SplitFiles interface {
	// Package opens the program's package. It is asked once.
	Package() (*SplitFile, error)
	// Unit opens the file of a unit. The name is a path, relative if the unit's
	// compilation directory is.
	Unit(name string) (*SplitFile, error)
	// Done is told of each split unit that was read, and of each that could not be.
	Done(err error)
}

// ErrOtherBuild says that a file has no split unit of the id that is looked for.
var ErrOtherBuild = errors.New("the file has no split unit of that id")

// readSplit reads the functions of the split unit that a skeleton stands for; nil if the
// unit is no skeleton, or the error says why the split unit is missing.
func (d *Data) readSplit(sk *unitHead) (*unit, error) {
	name, id, err := d.skeleton(sk)
	if err != nil || name == "" {
		return nil, err
	}
	if d.splits == nil {
		return nil, fs.ErrNotExist
	}
	var u *unit
	in, h, err := d.findSplit(sk, name, id)
	if err == nil {
		u = &unit{head: h, in: in}
		if in != d.pack {
			u.file = in.file
		}
		if err = in.entries(u); err != nil {
			d.closeSplit(u.file)
			u = nil
		}
	}
	d.splits.Done(err)
	return u, err
}

func (d *Data) findSplit(sk *unitHead, name string, id uint64) (*Data, *unitHead, error) {
	p, perr := d.packageOf()
	if p != nil {
		var h *unitHead
		if h, perr = p.packaged(sk, id); perr == nil {
			return p, h, nil
		}
	}
	file, err := d.splits.Unit(name)
	if err != nil {
		if p != nil {
			err = perr // there is a package, so there should be no file
		}
		return nil, nil, err
	}
	d.files.Add(1)
	in, err := d.newSplit(file)
	var h *unitHead
	if err == nil {
		h, err = in.unitOf(sk, id, contribution{end: in.info.size})
	}
	if err != nil {
		d.closeSplit(file)
		return nil, nil, err
	}
	return in, h, nil
}

// closeSplit closes a file, if there is one.
func (d *Data) closeSplit(f *SplitFile) {
	if f != nil {
		f.Close()
		d.files.Add(-1)
	}
}

// skeleton returns the file name and the id of the split unit of a skeleton; no name if
// the unit is none.
func (d *Data) skeleton(h *unitHead) (name string, id uint64, err error) {
	if h.version >= 5 && h.kind != unitSkeleton {
		return "", 0, nil
	}
	id = h.id
	hasID := h.kind == unitSkeleton
	_, err = d.rootAttrs(h, func(attr uint32, v value) {
		switch attr {
		case atDwoName, atGNUDwoName:
			name = d.strOf(h, v)
		case atGNUDwoID:
			id, hasID = v.n, true
		}
	})
	if err != nil || name == "" || !hasID {
		return "", 0, err
	}
	if !path.IsAbs(name) {
		name = path.Join(d.strOf(h, h.dir), name)
	}
	return name, id, nil
}

// newSplit prepares the reading of split units. Addresses, and ranges before version 5,
// are in the program.
func (d *Data) newSplit(file *SplitFile) (*Data, error) {
	none := &section{}
	in := &Data{
		file: file, work: d.work, abbrevs: map[uint64]*abbrevTable{},
		addr: d.addr, ranges: d.ranges, line: none, lineStr: none, info: none,
	}
	left := int64(maxUnpacked)
	for name, to := range map[string]**section{
		".debug_abbrev.dwo": &in.abbrev, ".debug_str.dwo": &in.str,
		".debug_str_offsets.dwo": &in.strOffsets, ".debug_rnglists.dwo": &in.rnglists, ".debug_cu_index": &in.index,
	} {
		var err error
		if *to, err = newSection(file.File, file.File.Section(name)); err == nil {
			err = (*to).unpack(&left)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	if err := in.findInfo(&left); err != nil {
		return nil, err
	}
	file.File.ForgetHeaders()
	return in, nil
}

// findInfo takes the section with the unit. With -fdebug-types-section, gcc makes one of
// the same name for each type.
func (d *Data) findInfo(left *int64) error {
	for i := range d.file.File.Sections {
		s := &d.file.File.Sections[i]
		if s.Name != ".debug_info.dwo" {
			continue
		}
		var err error
		if d.info, err = newSection(d.file.File, s); err == nil {
			err = d.info.unpack(left)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", s.Name, err)
		}
		if h, err := d.head(0); err != nil || h.kind != unitSplitTyp || d.index.f != nil {
			return err
		}
	}
	return ErrNone
}

// splitBytes is about the memory that a file of split units takes.
func (d *Data) splitBytes() int64 {
	n := int64(1024) + int64(len(d.units))*headBytes
	for _, s := range []*section{d.info, d.abbrev, d.str, d.strOffsets, d.rnglists, d.index} {
		n += int64(len(s.mem))
	}
	for _, t := range d.abbrevs {
		n += t.bytes()
	}
	return n
}

// contribution is where the parts of a unit are in the sections of a package. In a file of
// its own they begin at 0.
type contribution struct {
	info, end                    uint64 // in .debug_info.dwo
	abbrev, strOffsets, rnglists uint64
	packed                       bool
}

// unitOf finds the split unit of a skeleton. Other units of a file, of which there are some
// after optimization at link time, are kept: it may refer to them.
func (d *Data) unitOf(sk *unitHead, id uint64, c contribution) (*unitHead, error) {
	var found *unitHead
	n := 0
	for at := c.info; at < c.end && (found == nil || !c.packed); n++ {
		h, err := d.head(at)
		if err != nil {
			return nil, err
		}
		if n >= maxSplitUnits {
			return nil, fmt.Errorf("%w: more than %d split units", elffile.ErrTooLarge, maxSplitUnits)
		}
		at = h.end
		if !h.inherit(sk, c) {
			continue
		}
		if h.version < 5 {
			if _, err := d.rootAttrs(&h, func(attr uint32, v value) {
				if attr == atGNUDwoID {
					h.id = v.n
				}
			}); err != nil {
				return nil, err
			}
		}
		if h.id == id && found == nil {
			found = &h
		}
		if !c.packed {
			d.units = append(d.units, h)
		}
	}
	if found == nil {
		return nil, ErrOtherBuild
	}
	return found, nil
}

// inherit completes the head of a split unit: 3.1.3, 7.3.2.2. False if it is no split unit
// that the skeleton could stand for.
func (h *unitHead) inherit(sk *unitHead, c contribution) bool {
	switch {
	case h.version >= 5 != (sk.version >= 5), h.addrSize != sk.addrSize, h.end > c.end:
		return false
	case h.version >= 5 && h.kind != unitSplit, h.version < 5 && h.kind != unitCompile:
		return false
	}
	h.kind = unitSplit
	h.abbrevs += c.abbrev
	h.low, h.addrBase = sk.low, sk.addrBase
	if h.version < 5 {
		h.strBase, h.rangeBase = c.strOffsets, sk.rangeBase
		return true
	}
	// The bases are behind the heads of the only table: 7.26, 7.28.
	h.strBase, h.rangeBase = c.strOffsets+8, c.rnglists+rnglistHead
	if h.offSize == 8 {
		h.strBase, h.rangeBase = h.strBase+8, h.rangeBase+8
	}
	return true
}

const rnglistHead = 12 // in the 32-bit format

// packageOf opens the program's package, once. The caller holds mu.
func (d *Data) packageOf() (*Data, error) {
	if d.askedPackage {
		return d.pack, d.packErr
	}
	d.askedPackage = true
	file, err := d.splits.Package()
	if err == nil {
		d.files.Add(1)
		if d.pack, err = d.newSplit(file); err != nil {
			d.closeSplit(file)
		}
	}
	d.packErr = err
	return d.pack, err
}

// Sections in the index of a package: 7.3.5.3, table 7.1. Those of GNU's version 2 have the
// same numbers, but it has no range lists.
const (
	sectInfo       = 1
	sectAbbrev     = 3
	sectStrOffsets = 6
	sectRnglists   = 8
)

const (
	maxSplitUnits   = 1 << 14 // of a file
	maxIndexColumns = 16
	maxIndexProbes  = 1 << 12 // a third of the slots is empty
)

// packaged finds the split unit of a skeleton in a package.
func (d *Data) packaged(sk *unitHead, id uint64) (*unitHead, error) {
	raw, err := d.index.bytes(0, 16)
	if err != nil {
		return nil, fmt.Errorf("index of a package: %w", err)
	}
	head := buf{b: raw}
	version, columns, units, slots := head.num(4), head.num(4), head.num(4), head.num(4)
	// Version 5 is a number of 2 bytes, with 2 of padding.
	if version != 2 && version&0xffff != 5 {
		return nil, fmt.Errorf("%w: index of version %d", elffile.ErrUnsupported, version)
	}
	if columns == 0 || columns > maxIndexColumns || units > slots || slots&(slots-1) != 0 {
		return nil, fmt.Errorf("%w: index of a package", elffile.ErrCorrupt)
	}
	row, err := d.indexRow(id, slots)
	if err != nil {
		return nil, err
	}
	if row > units {
		return nil, fmt.Errorf("%w: row %d of %d in the index of a package", elffile.ErrCorrupt, row, units)
	}
	names := 16 + 12*slots
	offsets := names + 4*columns*row // row 1 is behind the names
	var parts [3]buf
	for i, at := range []uint64{names, offsets, offsets + 4*columns*units} {
		if parts[i].b, err = d.index.bytes(at, 4*columns); err != nil {
			return nil, fmt.Errorf("index of a package: %w", err)
		}
	}
	c := contribution{packed: true}
	for range columns {
		kind, off, size := parts[0].num(4), parts[1].num(4), parts[2].num(4)
		switch kind {
		case sectInfo:
			c.info, c.end = off, min(off+size, d.info.size)
		case sectAbbrev:
			c.abbrev = off
		case sectStrOffsets:
			c.strOffsets = off
		case sectRnglists:
			if version != 2 {
				c.rnglists = off
			}
		}
	}
	return d.unitOf(sk, id, c)
}

// indexRow looks up an id in the hash table of a package's index: 7.3.5.3.
func (d *Data) indexRow(id, slots uint64) (uint64, error) {
	mask := slots - 1
	slot, step := id&mask, id>>32&mask|1
	for range min(slots, maxIndexProbes) {
		sig, err := d.index.bytes(16+8*slot, 8)
		if err != nil {
			return 0, err
		}
		row, err := d.index.bytes(16+8*slots+4*slot, 4)
		if err != nil {
			return 0, err
		}
		s, r := buf{b: sig}, buf{b: row}
		n := r.num(4)
		if n == 0 {
			break
		}
		if s.num(8) == id {
			return n, nil
		}
		slot = (slot + step) & mask
	}
	return 0, ErrOtherBuild
}
