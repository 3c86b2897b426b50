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

const (
	maxRemembered = 256
	// maxSteps bounds the instructions of one function.
	maxSteps = 1 << 20
)

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
	fp, ra place
}

// machine runs call frame programs.
type machine struct {
	arch    arch
	out     *builder
	from    VirtAddr // rows before are not wanted
	now     state
	initial state
	stack   []state
	steps   int
	cie     *cie
}

// run adds the rows of one function.
func (m *machine) run(c *cie, d *fde) {
	if c.bad {
		m.out.add(m.from, Rule{CFA: CFAUnsupported})
		return
	}
	m.cie, m.steps, m.stack = c, 0, m.stack[:0]
	m.now = state{cfa: CFAUnsupported}
	if !m.arch.linkReg {
		m.now.ra = place{kind: inUnknown}
	}
	m.initial = m.now
	loc := d.start
	if !m.exec(c.program, 0, &loc, d.end) {
		m.out.add(m.from, Rule{CFA: CFAUnsupported})
		return
	}
	m.initial = m.now
	loc = d.start
	if !m.exec(d.program, d.at, &loc, d.end) {
		m.emit(loc, state{cfa: CFAUnsupported})
		return
	}
	m.emit(loc, m.now)
}

// exec runs a program until its end or until the function's. False: it is corrupt.
func (m *machine) exec(program []byte, at VirtAddr, loc *VirtAddr, end VirtAddr) bool {
	b := buf{b: program}
	for b.at < len(b.b) {
		if m.steps++; m.steps > maxSteps {
			return false
		}
		op := b.u8()
		switch op & 0xc0 {
		case opAdvanceLoc:
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
			if b.err != nil || to < *loc {
				return false
			}
			m.emit(*loc, m.now)
			if *loc = to; to >= end {
				return true
			}
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
			m.save(b.uleb(), place{kind: inSame})
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
			m.defCFA(b.uleb(), m.now.off)
		case opDefCFAOffset:
			m.cfaOffset(int64(b.uleb()))
		case opDefCFAOffsetSF:
			m.cfaOffset(b.sleb() * m.cie.dataAlign)
		case opDefCFAExpression:
			m.cfaExpression(b.block())
		case opExpression:
			r := b.uleb()
			m.save(r, m.addressExpression(b.block()))
		case opValOffset, opValOffsetSF:
			r := b.uleb()
			b.uleb()
			m.save(r, place{kind: inUnknown})
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
		if step != 0 && !m.advance(loc, step, end) {
			return true
		}
	}
	return b.err == nil
}

// advance ends the row that holds at loc. False: the function is over.
func (m *machine) advance(loc *VirtAddr, step uint64, end VirtAddr) bool {
	hi := step * m.cie.codeAlign
	if step != 0 && hi/step != m.cie.codeAlign || hi >= uint64(end-*loc) {
		m.emit(*loc, m.now)
		*loc = end - 1
		return false
	}
	if hi != 0 {
		m.emit(*loc, m.now)
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
	}
}

func (m *machine) restore(r uint64) {
	switch r {
	case uint64(m.arch.fp):
		m.now.fp = m.initial.fp
	case uint64(m.arch.ra):
		m.now.ra = m.initial.ra
	}
}

func (m *machine) defCFA(r uint64, off int64) {
	m.now.off, m.now.deref, m.now.reg = off, 0, 0
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

func (m *machine) cfaOffset(off int64) {
	switch m.now.cfa {
	case CFASP, CFAFP, CFARegister:
		m.now.off = off
	default:
		m.now.cfa = CFAUnsupported // only of a register (DWARF 5, 6.4.2.2)
	}
}

// emit adds the row of a state.
func (m *machine) emit(at VirtAddr, s state) {
	if at < m.from {
		// Only the last of the rows before counts, from there on.
		at = m.from
	}
	m.out.add(at, m.rule(&s))
}

// rule expresses a state, or says that it cannot be.
func (m *machine) rule(s *state) Rule {
	if s.ra.kind == inUndefined {
		return Rule{CFA: CFAEnd}
	}
	r := Rule{CFA: s.cfa, Reg: s.reg, Signal: m.cie.signal}
	ok := fits(s.off, &r.CFAOffset) && fits(s.deref, &r.Deref) &&
		saved(s.fp, &r.FP, &r.FPOffset) && saved(s.ra, &r.RA, &r.RAOffset)
	switch {
	case !ok, r.CFA == CFAUnsupported, r.RA == SavedLost, r.RA == SavedSame && !m.arch.linkReg:
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
