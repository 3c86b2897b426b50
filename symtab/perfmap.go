package symtab

import "bytes"

// maxPerfMapLine is how much is kept of a line; the rest of it is skipped.
const maxPerfMapLine = 4096

// perfMap reads what comes of a perf map, piece by piece. A map has a line for each
// function, in the order in which they were made; numbers are hexadecimal:
//
//	7fe5180062c0 298 JS:*checkout /srv/shop.js:3:22
//
// Source: Linux, tools/perf/Documentation/jit-interface.txt. Some runtimes write 0x before
// the numbers.
type perfMap struct {
	line []byte // the beginning of a line whose end has not come yet
}

func (p *perfMap) feed(m *codeMap, b []byte) error {
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			p.keep(b)
			return nil
		}
		if len(p.line) == 0 {
			p.entry(m, b[:min(end, maxPerfMapLine)])
		} else {
			p.keep(b[:end])
			p.entry(m, p.line)
			p.line = p.line[:0]
		}
		b = b[end+1:]
	}
	return nil
}

func (p *perfMap) keep(b []byte) {
	p.line = append(p.line, b[:min(len(b), maxPerfMapLine-len(p.line))]...)
}

// entry enters a line. What is none is left out: it says nothing of any code.
func (p *perfMap) entry(m *codeMap, line []byte) {
	start, line, ok := cutHex(line)
	if !ok {
		return
	}
	size, name, ok := cutHex(line)
	if !ok {
		return
	}
	m.add(start, size, codeFrame(name), linesOf{})
}

// cutHex cuts a hexadecimal number off that ends at a blank.
func cutHex(b []byte) (n uint64, rest []byte, ok bool) {
	b = bytes.TrimLeft(b, " \t")
	if len(b) > 2 && b[0] == '0' && (b[1] == 'x' || b[1] == 'X') {
		b = b[2:]
	}
	i := 0
	for ; i < len(b) && b[i] != ' ' && b[i] != '\t'; i++ {
		var d byte
		switch c := b[i]; {
		case c >= '0' && c <= '9':
			d = c - '0'
		case c >= 'a' && c <= 'f':
			d = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			d = c - 'A' + 10
		default:
			return 0, nil, false
		}
		if n >= 1<<60 {
			return 0, nil, false
		}
		n = n<<4 | uint64(d)
	}
	return n, b[i:], i > 0 && i < len(b)
}
