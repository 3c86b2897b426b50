package unwind

// DWARF expressions, DWARF 5, 7.7.1.
const (
	xDeref      = 0x06
	xAnd        = 0x1a
	xPlus       = 0x22
	xPlusUconst = 0x23
	xShl        = 0x24
	xGe         = 0x2a
	xLit0       = 0x30
	xLit31      = 0x4f
	xBreg0      = 0x70
	xBreg31     = 0x8f
)

// block reads a block that begins with its length.
func (b *buf) block() []byte {
	n := b.uleb()
	if n > uint64(len(b.b)-b.at) {
		b.fail()
		return nil
	}
	return b.take(int(n))
}

// baseRegister reads "register plus offset", with which all that is understood begins.
func (b *buf) baseRegister() (reg uint8, off int64, ok bool) {
	op := b.u8()
	if op < xBreg0 || op > xBreg31 {
		return 0, 0, false
	}
	return op - xBreg0, b.sleb(), b.err == nil
}

// cfaExpression takes up what compilers and linkers write: a register plus an offset; a
// pointer kept on the stack (a realigned stack, a signal's frame); the linker's own for
// the procedure linkage table. Anything else is unsupported.
func (m *machine) cfaExpression(block []byte) {
	m.now.cfa = CFAUnsupported
	b := buf{b: block}
	reg, off, ok := b.baseRegister()
	if !ok {
		return
	}
	rest := b.b[b.at:]
	if len(rest) == 0 {
		m.defCFA(uint64(reg), off)
		return
	}
	if lit, ok := pltCondition(rest, m.arch.ra); ok && reg == m.arch.sp {
		m.now.cfa, m.now.off, m.now.deref, m.now.reg = CFAPLT, off, lit, 0
		return
	}
	if b.u8() != xDeref {
		return
	}
	var add int64
	if b.at < len(b.b) {
		if b.u8() != xPlusUconst {
			return
		}
		add = int64(b.uleb())
		if b.err != nil || b.at < len(b.b) || add < 0 {
			return
		}
	}
	switch reg {
	case m.arch.sp:
		m.now.cfa = CFASPDeref
	case m.arch.fp:
		m.now.cfa = CFAFPDeref
	default:
		return
	}
	m.now.off, m.now.deref, m.now.reg = add, off, 0
}

// pltCondition recognises "+ ((pc & 15) >= n) << 3", with which linkers on x86-64
// describe their tables: the index is pushed from byte n of each entry of 16 bytes on.
func pltCondition(b []byte, pc uint8) (n int64, ok bool) {
	if len(b) != 9 || b[0] != xBreg0+pc || b[1] != 0 || b[2] != xLit0+15 || b[3] != xAnd ||
		b[4] < xLit0 || b[4] > xLit0+15 || b[5] != xGe || b[6] != xLit0+3 || b[7] != xShl || b[8] != xPlus {
		return 0, false
	}
	return int64(b[4] - xLit0), true
}

// addressExpression takes up an address that is a register plus an offset.
func (m *machine) addressExpression(block []byte) place {
	b := buf{b: block}
	reg, off, ok := b.baseRegister()
	if ok && b.at == len(b.b) {
		switch reg {
		case m.arch.sp:
			return place{inSP, off}
		case m.arch.fp:
			return place{inFP, off}
		}
	}
	return place{kind: inUnknown}
}
