package unwind

import "math"

// Call frame instructions, DWARF 5, 7.24, and those of LSB Core 5.0, 10.5.2, and of
// "DWARF for the Arm 64-bit Architecture".
const (
	opAdvanceLoc           = 0x40 // high two bits
	opOffset               = 0x80
	opRestore              = 0xc0
	opNop                  = 0x00
	opSetLoc               = 0x01
	opAdvanceLoc1          = 0x02
	opAdvanceLoc2          = 0x03
	opAdvanceLoc4          = 0x04
	opOffsetExtended       = 0x05
	opRestoreExtended      = 0x06
	opUndefined            = 0x07
	opSameValue            = 0x08
	opRegister             = 0x09
	opRememberState        = 0x0a
	opRestoreState         = 0x0b
	opDefCFA               = 0x0c
	opDefCFARegister       = 0x0d
	opDefCFAOffset         = 0x0e
	opDefCFAExpression     = 0x0f
	opExpression           = 0x10
	opOffsetExtendedSF     = 0x11
	opDefCFASF             = 0x12
	opDefCFAOffsetSF       = 0x13
	opValOffset            = 0x14
	opValOffsetSF          = 0x15
	opValExpression        = 0x16
	opMIPSAdvanceLoc8      = 0x1d
	opNegateRAStateWithPC  = 0x2c
	opNegateRAState        = 0x2d // also GNU_window_save
	opGNUArgsSize          = 0x2e
	opGNUNegOffsetExtended = 0x2f
)

// maxRemembered bounds the states that a function remembers at a time.
const maxRemembered = 256

// place is where a register is, while a program runs.
type place struct {
	kind placeKind
	off  int64
}

type placeKind uint8

const (
	inSame placeKind = iota
	inUndefined
	inCFA
	inSP
	inFP
	inReg
	inUnknown // in what the tables cannot express
)

// state is a row of DWARF's own table, of the registers that matter.
type state struct {
	cfa    CFA
	reg    uint8 // of CFARegister
	off    int64
	deref  int64
	regOff int64 // off of the last rule that was a register
	fp, ra place
	sp     place // inSame: it is the CFA
}

// plainSP says whether the caller's stack pointer is the CFA, as tables take for granted.
func (s *state) plainSP() bool {
	switch s.sp.kind {
	case inSame:
		return true
	case inSP:
		return s.cfa == CFASPDeref && s.off == 0 && s.deref == s.sp.off
	case inFP:
		return s.cfa == CFAFPDeref && s.off == 0 && s.deref == s.sp.off
	}
	return false
}

// machine runs call frame programs.
type machine struct {
	arch  arch
	out   *builder
	from  VirtAddr // rows before are not wanted
	now   state
	stack []state
	cie   *cie
}

// prepare runs the program of a CIE, once for all its functions: many may share one.
func (m *machine) prepare(c *cie) {
	m.cie, m.stack = c, m.stack[:0]
	m.now = state{cfa: CFAUnsupported}
	if !m.arch.linkReg {
		m.now.ra = place{kind: inUnknown}
	}
	c.initial = m.now
	if !m.exec(c.program, 0, nil, 0) {
		c.bad = true
	}
	c.initial = m.now
}

// run adds the rows of one function.
func (m *machine) run(c *cie, d *fde) {
	if c.bad {
		m.out.add(m.from, Rule{CFA: CFAUnsupported})
		return
	}
	m.cie, m.stack, m.now = c, m.stack[:0], c.initial
	loc := d.start
	if !m.exec(c.section.b[d.program:d.programEnd], c.section.addr+VirtAddr(d.program), &loc, d.end) {
		m.now = state{cfa: CFAUnsupported}
	}
	m.emit(loc, &m.now)
}

// exec runs a program until its end or until the function's. False: it is corrupt. A
// CIE's has no loc, and cannot move it.
func (m *machine) exec(program []byte, at VirtAddr, loc *VirtAddr, end VirtAddr) bool {
	b := buf{b: program}
	for b.at < len(b.b) {
		op := b.u8()
		switch op & 0xc0 {
		case opAdvanceLoc:
			if loc == nil {
				return false
			}
			if !m.advance(loc, uint64(op&0x3f), end) {
				return true
			}
			continue
		case opOffset:
			m.save(uint64(op&0x3f), place{inCFA, m.factored(b.uleb())})
			continue
		case opRestore:
			m.restore(uint64(op & 0x3f))
			continue
		}
		var step uint64
		switch op {
		case opNop, opNegateRAState, opNegateRAStateWithPC:
		case opSetLoc:
			to := VirtAddr(b.pointer(m.cie.fdeEnc, at+VirtAddr(b.at)))
			if b.err != nil || loc == nil || to < *loc {
				return false
			}
			if to >= end {
				return true
			}
			m.emit(*loc, &m.now)
			*loc = to
		case opAdvanceLoc1:
			step = uint64(b.u8())
		case opAdvanceLoc2:
			step = uint64(b.u16())
		case opAdvanceLoc4:
			step = uint64(b.u32())
		case opMIPSAdvanceLoc8:
			step = b.u64()
		case opOffsetExtended:
			r := b.uleb()
			m.save(r, place{inCFA, m.factored(b.uleb())})
		case opOffsetExtendedSF:
			r := b.uleb()
			m.save(r, place{inCFA, b.sleb() * m.cie.dataAlign})
		case opGNUNegOffsetExtended:
			r := b.uleb()
			m.save(r, place{inCFA, -m.factored(b.uleb())})
		case opRestoreExtended:
			m.restore(b.uleb())
		case opUndefined:
			m.save(b.uleb(), place{kind: inUndefined})
		case opSameValue:
			m.sameValue(b.uleb())
		case opRegister:
			r, from := b.uleb(), b.uleb()
			p := place{kind: inUnknown}
			if from < uint64(m.arch.registers) {
				p = place{inReg, int64(from)}
			}
			m.save(r, p)
		case opRememberState:
			if len(m.stack) >= maxRemembered {
				return false
			}
			m.stack = append(m.stack, m.now)
		case opRestoreState:
			if len(m.stack) == 0 {
				return false
			}
			m.now = m.stack[len(m.stack)-1]
			m.stack = m.stack[:len(m.stack)-1]
		case opDefCFA:
			r := b.uleb()
			m.defCFA(r, int64(b.uleb()))
		case opDefCFASF:
			r := b.uleb()
			m.defCFA(r, b.sleb()*m.cie.dataAlign)
		case opDefCFARegister:
			m.defCFA(b.uleb(), m.now.regOff)
		case opDefCFAOffset:
			m.cfaOffset(int64(b.uleb()))
		case opDefCFAOffsetSF:
			m.cfaOffset(b.sleb() * m.cie.dataAlign)
		case opDefCFAExpression:
			m.cfaExpression(b.block())
		case opExpression:
			r := b.uleb()
			m.save(r, m.addressExpression(b.block()))
		case opValOffset:
			r := b.uleb()
			m.saveValue(r, m.factored(b.uleb()))
		case opValOffsetSF:
			r := b.uleb()
			m.saveValue(r, b.sleb()*m.cie.dataAlign)
		case opValExpression:
			r := b.uleb()
			b.block()
			m.save(r, place{kind: inUnknown})
		case opGNUArgsSize:
			b.uleb()
		default:
			return false
		}
		if b.err != nil {
			return false
		}
		if step != 0 {
			if loc == nil {
				return false
			}
			if !m.advance(loc, step, end) {
				return true
			}
		}
	}
	return b.err == nil
}

// advance ends the row that holds at loc. False: the function is over.
func (m *machine) advance(loc *VirtAddr, step uint64, end VirtAddr) bool {
	hi := step * m.cie.codeAlign
	if step != 0 && hi/step != m.cie.codeAlign || hi >= uint64(end-*loc) {
		return false
	}
	if hi != 0 {
		m.emit(*loc, &m.now)
		*loc += VirtAddr(hi)
	}
	return true
}

func (m *machine) factored(v uint64) int64 { return int64(v) * m.cie.dataAlign }

// save notes where a register is. Most are of no interest.
func (m *machine) save(r uint64, p place) {
	switch r {
	case uint64(m.arch.fp):
		m.now.fp = p
	case uint64(m.arch.ra):
		m.now.ra = p
	case uint64(m.arch.sp):
		m.now.sp = p
	}
}

// sameValue: the register was not changed. Of the stack pointer that says that it is
// not the CFA.
func (m *machine) sameValue(r uint64) {
	if r == uint64(m.arch.sp) {
		m.now.sp = place{kind: inUnknown}
		return
	}
	m.save(r, place{kind: inSame})
}

// saveValue: the register was CFA + off.
func (m *machine) saveValue(r uint64, off int64) {
	if r == uint64(m.arch.sp) && off == 0 {
		m.now.sp = place{}
		return
	}
	m.save(r, place{kind: inUnknown})
}

func (m *machine) restore(r uint64) {
	switch r {
	case uint64(m.arch.fp):
		m.now.fp = m.cie.initial.fp
	case uint64(m.arch.ra):
		m.now.ra = m.cie.initial.ra
	case uint64(m.arch.sp):
		m.now.sp = m.cie.initial.sp
	}
}

func (m *machine) defCFA(r uint64, off int64) {
	m.now.off, m.now.regOff, m.now.deref, m.now.reg = off, off, 0, 0
	switch {
	case r == uint64(m.arch.sp):
		m.now.cfa = CFASP
	case r == uint64(m.arch.fp):
		m.now.cfa = CFAFP
	case r < uint64(m.arch.registers):
		m.now.cfa, m.now.reg = CFARegister, uint8(r)
	default:
		m.now.cfa = CFAUnsupported
	}
}

// cfaOffset: DWARF 5, 6.4.2.2, has it follow a rule of a register only. After an expression
// it is kept for the next such rule, as libgcc does: libgcrypt's assembler relies on it.
func (m *machine) cfaOffset(off int64) {
	m.now.regOff = off
	switch m.now.cfa {
	case CFASP, CFAFP, CFARegister:
		m.now.off = off
	}
}

// emit adds the row of a state.
func (m *machine) emit(at VirtAddr, s *state) {
	if at < m.from {
		// Only the last of the rows before counts, from there on.
		at = m.from
	}
	m.out.add(at, m.rule(s))
}

// rule expresses a state, or says that it cannot be.
func (m *machine) rule(s *state) Rule {
	if s.ra.kind == inUndefined {
		return Rule{CFA: CFAEnd, Signal: m.cie.signal}
	}
	r := Rule{CFA: s.cfa, Reg: s.reg, Signal: m.cie.signal}
	ok := fits(s.off, &r.CFAOffset) && fits(s.deref, &r.Deref) &&
		saved(s.fp, &r.FP, &r.FPOffset) && saved(s.ra, &r.RA, &r.RAOffset)
	switch {
	case !ok, r.CFA == CFAUnsupported, r.RA == SavedLost, r.RA == SavedSame && !m.arch.linkReg, !s.plainSP():
		return Rule{CFA: CFAUnsupported}
	}
	return r
}

// saved expresses where a register is. That the frame pointer is lost is no error:
// most callers do not need it.
func saved(p place, kind *Saved, off *int32) bool {
	switch p.kind {
	case inSame:
		*kind = SavedSame
		return true
	case inCFA:
		*kind = SavedCFA
	case inSP:
		*kind = SavedSP
	case inFP:
		*kind = SavedFP
	case inReg:
		*kind = SavedReg
	default:
		*kind = SavedLost
		return true
	}
	return fits(p.off, off)
}

func fits(v int64, to *int32) bool {
	*to = int32(v)
	return v >= math.MinInt32 && v <= math.MaxInt32
}
