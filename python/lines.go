package python

// Line finds the line of an instruction of a code object: minor is the version 3.x, table is
// co_linetable (co_lnotab before 3.10), first is co_firstlineno, at is the offset of the
// instruction in bytes. It is 0 if the table does not say.
func Line(minor int, table []byte, first, at int) int {
	switch {
	case at < 0:
		return first
	case minor < 10:
		return lineOfLnotab(table, first, at)
	case minor == 10:
		return lineOf310(table, first, at)
	default:
		return lineOfLocations(table, first, at)
	}
}

// lineOfLnotab: Objects/lnotab_notes.txt. Pairs of an unsigned step of the offset and a
// signed one of the line.
func lineOfLnotab(table []byte, first, at int) int {
	line, addr := first, 0
	for ; len(table) >= 2; table = table[2:] {
		addr += int(table[0])
		if addr > at {
			break
		}
		line += int(int8(table[1]))
	}
	return line
}

// lineOf310: Objects/lnotab_notes.txt of 3.10 (PEP 626). Pairs of the length of a range and
// the step of the line before it; -128 says that it has none.
func lineOf310(table []byte, first, at int) int {
	line, end := first, 0
	for ; len(table) >= 2; table = table[2:] {
		end += int(table[0])
		step := int(int8(table[1]))
		if step != -128 {
			line += step
		}
		if at < end {
			if step == -128 {
				return 0
			}
			return line
		}
	}
	return 0
}

// lineOfLocations: Objects/locations.md (PEP 657), from 3.11 on. An entry begins with a byte
// whose top bit is set, and stands for one to eight units of code.
func lineOfLocations(table []byte, first, at int) int {
	line, end := first, 0
	for i := 0; i < len(table); {
		head := table[i]
		if head&0x80 == 0 {
			return 0 // not the beginning of an entry
		}
		i++
		end += (int(head&7) + 1) * 2
		none := false
		switch code := head >> 3 & 15; {
		case code == 15:
			none = true
		case code == 14, code == 13:
			var step int
			step, i = signedVarint(table, i)
			line += step
		case code >= 10:
			line += int(code) - 10
		}
		if at < end {
			if none {
				return 0
			}
			return line
		}
		for i < len(table) && table[i]&0x80 == 0 {
			i++ // columns
		}
	}
	return 0
}

// signedVarint reads six bits a byte, the lowest first; bit 6 says that there are more. The
// lowest bit of the number is its sign.
func signedVarint(b []byte, i int) (v, next int) {
	var u uint32
	for shift := 0; i < len(b); shift += 6 {
		c := b[i]
		i++
		if shift < 32 {
			u |= uint32(c&0x3f) << shift
		}
		if c&0x40 == 0 {
			break
		}
	}
	if u&1 != 0 {
		return -int(u >> 1), i
	}
	return int(u >> 1), i
}
