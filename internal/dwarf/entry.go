package dwarf

import (
	"fmt"

	"github.com/spanflame/spanflame/internal/elffile"
)

// Tags, attributes and forms: 7.5.
const (
	tagInlined    = 0x1d
	tagSubprogram = 0x2e

	atSibling        = 0x01
	atName           = 0x03
	atStmtList       = 0x10
	atLowPC          = 0x11
	atHighPC         = 0x12
	atCompDir        = 0x1b
	atAbstractOrigin = 0x31
	atSpecification  = 0x47
	atRanges         = 0x55
	atCallFile       = 0x58
	atCallLine       = 0x59
	atLinkageName    = 0x6e
	atStrOffsetsBase = 0x72
	atAddrBase       = 0x73
	atRnglistsBase   = 0x74
	atDwoName        = 0x76
	atMIPSLinkage    = 0x2007
	atGNUDwoName     = 0x2130
	atGNUDwoID       = 0x2131
	atGNURangesBase  = 0x2132
	atGNUAddrBase    = 0x2133

	formAddr          = 0x01
	formBlock2        = 0x03
	formBlock4        = 0x04
	formData2         = 0x05
	formData4         = 0x06
	formData8         = 0x07
	formString        = 0x08
	formBlock         = 0x09
	formBlock1        = 0x0a
	formData1         = 0x0b
	formFlag          = 0x0c
	formSdata         = 0x0d
	formStrp          = 0x0e
	formUdata         = 0x0f
	formRefAddr       = 0x10
	formRef1          = 0x11
	formRef2          = 0x12
	formRef4          = 0x13
	formRef8          = 0x14
	formRefUdata      = 0x15
	formIndirect      = 0x16
	formSecOffset     = 0x17
	formExprloc       = 0x18
	formFlagPresent   = 0x19
	formStrx          = 0x1a
	formAddrx         = 0x1b
	formRefSup4       = 0x1c
	formStrpSup       = 0x1d
	formData16        = 0x1e
	formLineStrp      = 0x1f
	formRefSig8       = 0x20
	formImplicitConst = 0x21
	formLoclistx      = 0x22
	formRnglistx      = 0x23
	formRefSup8       = 0x24
	formStrx1         = 0x25
	formStrx2         = 0x26
	formStrx3         = 0x27
	formStrx4         = 0x28
	formAddrx1        = 0x29
	formAddrx2        = 0x2a
	formAddrx3        = 0x2b
	formAddrx4        = 0x2c
	formGNUAddrIndex  = 0x1f01
	formGNUStrIndex   = 0x1f02
	formGNURefAlt     = 0x1f20
	formGNUStrpAlt    = 0x1f21
)

// abbrevTable is a set of abbreviations, by code: 7.5.3.
type abbrevTable struct {
	dense []abbrev          // codes from 1 on
	rest  map[uint64]abbrev // other codes
}

type abbrev struct {
	tag      uint32
	children bool
	known    bool
	attrs    []attrSpec
}

type attrSpec struct {
	attr, form uint32
	implicit   int64
}

const maxAbbrevs = 1 << 17

// bytes is about the memory of the table.
func (t *abbrevTable) bytes() int64 {
	n := int64(len(t.dense)+len(t.rest)) * 64
	for i := range t.dense {
		n += int64(cap(t.dense[i].attrs)) * 16
	}
	for _, a := range t.rest {
		n += int64(cap(a.attrs)) * 16
	}
	return n
}

func (t *abbrevTable) get(code uint64) *abbrev {
	if code-1 < uint64(len(t.dense)) {
		return &t.dense[code-1]
	}
	a := t.rest[code]
	return &a
}

// abbreviations reads the table at an offset in .debug_abbrev.
func (d *Data) abbreviations(off uint64) (*abbrevTable, error) {
	if t := d.abbrevs[off]; t != nil {
		return t, nil
	}
	var t *abbrevTable
	for n := uint64(16 << 10); ; n *= 16 {
		b, err := d.abbrev.some(off, n)
		if err == nil {
			err = d.spend(len(b))
		}
		if err != nil {
			return nil, err
		}
		whole := uint64(len(b)) < n || n >= maxUnit
		var ok bool
		if t, ok = parseAbbrevs(b); ok {
			break
		}
		if whole {
			return nil, fmt.Errorf("%w: abbreviations at %#x", elffile.ErrCorrupt, off)
		}
	}
	if len(d.abbrevs) >= 64 {
		clear(d.abbrevs)
	}
	d.abbrevs[off] = t
	return t, nil
}

func parseAbbrevs(raw []byte) (*abbrevTable, bool) {
	t := &abbrevTable{rest: map[uint64]abbrev{}}
	b := buf{b: raw}
	for n := 0; ; n++ {
		code := b.uleb()
		if b.bad || n > maxAbbrevs {
			return nil, false
		}
		if code == 0 {
			return t, true
		}
		a := abbrev{tag: uint32(b.uleb()), children: b.num(1) != 0, known: true}
		for {
			s := attrSpec{attr: uint32(b.uleb()), form: uint32(b.uleb())}
			if s.form == formImplicitConst {
				s.implicit = b.sleb()
			}
			if b.bad || len(a.attrs) > maxAttributes {
				return nil, false
			}
			if s.attr == 0 && s.form == 0 {
				break
			}
			a.attrs = append(a.attrs, s)
		}
		if code == uint64(len(t.dense))+1 {
			t.dense = append(t.dense, a)
		} else {
			t.rest[code] = a
		}
	}
}

// value is an attribute's value: a number, or where a string is.
type value struct {
	form uint32
	n    uint64
	s    string
}

// read reads a value, or passes over it.
func (h *unitHead) read(b *buf, s attrSpec, want bool) (v value) {
	form := s.form
	if form == formIndirect {
		form = uint32(b.uleb())
		if form == formIndirect || form == formImplicitConst {
			b.fail()
		}
	}
	v.form = form
	switch form {
	case formAddr:
		v.n = b.num(h.addrSize)
	case formData1, formRef1, formFlag, formStrx1, formAddrx1:
		v.n = b.num(1)
	case formData2, formRef2, formStrx2, formAddrx2:
		v.n = b.num(2)
	case formStrx3, formAddrx3:
		v.n = b.num(3)
	case formData4, formRef4, formRefSup4, formStrx4, formAddrx4:
		v.n = b.num(4)
	case formData8, formRef8, formRefSig8, formRefSup8:
		v.n = b.num(8)
	case formData16:
		b.skip(16)
	case formSdata:
		v.n = uint64(b.sleb())
	case formUdata, formRefUdata, formStrx, formAddrx, formLoclistx, formRnglistx, formGNUAddrIndex, formGNUStrIndex:
		v.n = b.uleb()
	case formStrp, formLineStrp, formSecOffset, formStrpSup, formGNURefAlt, formGNUStrpAlt:
		v.n = b.num(h.offSize)
	case formRefAddr:
		if h.version < 3 {
			v.n = b.num(h.addrSize)
		} else {
			v.n = b.num(h.offSize)
		}
	case formString:
		if want {
			v.s = b.str()
		} else {
			b.str()
		}
	case formBlock1:
		b.skip(b.num(1))
	case formBlock2:
		b.skip(b.num(2))
	case formBlock4:
		b.skip(b.num(4))
	case formBlock, formExprloc:
		b.skip(b.uleb())
	case formFlagPresent:
		v.n = 1
	case formImplicitConst:
		v.n = uint64(s.implicit)
	default:
		b.fail()
	}
	return v
}

// str is the string of a value.
func (d *Data) strOf(h *unitHead, v value) string {
	switch v.form {
	case formString:
		return v.s
	case formStrp:
		return d.str.str(v.n)
	case formLineStrp:
		return d.lineStr.str(v.n)
	case formStrpSup, formGNUStrpAlt:
		if d.alt != nil {
			return d.alt.str.str(v.n)
		}
	case formStrx, formStrx1, formStrx2, formStrx3, formStrx4, formGNUStrIndex:
		b, err := d.strOffsets.bytes(h.strBase+v.n*uint64(h.offSize), uint64(h.offSize))
		if err != nil || v.n > 1<<32 {
			return ""
		}
		in := buf{b: b}
		return d.str.str(in.num(h.offSize))
	}
	return ""
}

// addrOf is the address of a value.
func (d *Data) addrOf(h *unitHead, v value) (uint64, bool) {
	switch v.form {
	case formAddr:
		return v.n, true
	case formAddrx, formAddrx1, formAddrx2, formAddrx3, formAddrx4, formGNUAddrIndex:
		return d.indexed(h, v.n)
	}
	return 0, false
}

func (d *Data) indexed(h *unitHead, i uint64) (uint64, bool) {
	if i > 1<<32 {
		return 0, false
	}
	b, err := d.addr.bytes(h.addrBase+i*uint64(h.addrSize), uint64(h.addrSize))
	if err != nil {
		return 0, false
	}
	in := buf{b: b}
	return in.num(h.addrSize), true
}

// reference is the entry that a value names: an offset in .debug_info of this file or
// of the common one.
func (h *unitHead) reference(v value) (off uint64, alt, ok bool) {
	switch v.form {
	case formRef1, formRef2, formRef4, formRef8, formRefUdata:
		return h.off + v.n, false, v.n < h.end-h.off
	case formRefAddr:
		return v.n, false, true
	case formGNURefAlt, formRefSup4, formRefSup8:
		return v.n, true, true
	}
	return 0, false, false
}
