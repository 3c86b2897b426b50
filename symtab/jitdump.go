package symtab

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Numbers of the jitdump format, version 1. Source: Linux,
// tools/perf/Documentation/jitdump-specification.txt and tools/perf/util/jitdump.h.
const (
	jitMagic      = 0x4A695444 // "JiTD" by a writer of the reader's byte order
	jitVersion    = 1
	jitHeaderSize = 40
	jitPrefixSize = 16

	jitCodeLoad  = 0
	jitCodeMove  = 1
	jitDebugInfo = 2
	jitCodeClose = 3

	jitLoadFixed = jitPrefixSize + 40 // its name and its code follow
	jitMoveSize  = jitPrefixSize + 48
	jitDebugHead = jitPrefixSize + 16 // its entries follow
)

// Bounds of what is read of a record. Debug information that is larger is skipped.
const (
	maxJITHeader    = 64 << 10
	maxJITDebugInfo = 1 << 20
	maxJITIndexes   = 1 << 14 // codes that are known by their index, for moves: V8 makes none
)

var errJITDump = errors.New("no jitdump file that can be read")

// jitDump reads what comes of a jitdump file, piece by piece.
type jitDump struct {
	order binary.ByteOrder // nil: the header has not come yet
	buf   []byte           // the beginning of a record whose end has not come yet
	skip  uint64           // bytes of a record that say nothing of interest
	ended bool

	// Of the last debug information, which comes before the code that it is of.
	lines    linesOf
	linesAt  uint64
	numbered map[uint64]Frame // by the index of the code, for moves
}

// feed takes further bytes of the file. After an error nothing can be read any more.
func (d *jitDump) feed(m *codeMap, b []byte) error {
	for !d.ended {
		if d.skip > 0 {
			n := min(d.skip, uint64(len(b)))
			b = b[n:]
			if d.skip -= n; d.skip > 0 {
				return nil
			}
		}
		if len(d.buf) == 0 {
			n, err := d.record(m, b)
			if err != nil {
				return err
			}
			if n > 0 {
				b = b[min(n, len(b)):]
				continue
			}
		}
		if len(b) == 0 {
			return nil
		}
		// Not enough for a record: a little more at a time.
		n := min(len(b), max(jitLoadFixed+maxCodeName, len(d.buf)))
		d.buf = append(d.buf, b[:n]...)
		b = b[n:]
		used, err := d.record(m, d.buf)
		if err != nil {
			return err
		}
		if used > 0 {
			if used < len(d.buf) {
				b = slices.Concat(d.buf[used:], b)
			}
			d.buf = nil
		}
	}
	return nil
}

// record takes one record off b, or the header, and returns how much of b it has used: 0
// if there has to be more of it. What is to be skipped behind it is in skip.
func (d *jitDump) record(m *codeMap, b []byte) (int, error) {
	if d.order == nil {
		return d.header(b)
	}
	if len(b) < jitPrefixSize {
		return 0, nil
	}
	id, size := d.order.Uint32(b), int(d.order.Uint32(b[4:]))
	if size < jitPrefixSize {
		return 0, fmt.Errorf("%w: a record of %d bytes", errJITDump, size)
	}
	want := jitPrefixSize
	switch id {
	case jitCodeLoad:
		// Behind the name, which may end there, is the code, which nobody needs.
		want = min(size, jitLoadFixed+maxCodeName+1)
	case jitCodeMove:
		want = min(size, jitMoveSize)
	case jitDebugInfo:
		if size <= maxJITDebugInfo {
			want = size
		}
	case jitCodeClose:
		d.ended = true
	}
	if len(b) < want {
		return 0, nil
	}
	d.skip = uint64(size - want)
	switch id {
	case jitCodeLoad:
		d.load(m, b[:want])
	case jitCodeMove:
		d.move(m, b[:want])
	case jitDebugInfo:
		if want == size {
			d.debugInfo(b[:want])
		}
	}
	return want, nil
}

func (d *jitDump) header(b []byte) (int, error) {
	if len(b) < jitHeaderSize {
		return 0, nil
	}
	var order binary.ByteOrder
	switch {
	case binary.LittleEndian.Uint32(b) == jitMagic:
		order = binary.LittleEndian
	case binary.BigEndian.Uint32(b) == jitMagic:
		order = binary.BigEndian
	default:
		return 0, fmt.Errorf("%w: magic %x", errJITDump, b[:4])
	}
	version, size := order.Uint32(b[4:]), order.Uint32(b[8:])
	if version != jitVersion || size < jitHeaderSize || size > maxJITHeader {
		return 0, fmt.Errorf("%w: version %d, header of %d bytes", errJITDump, version, size)
	}
	d.order, d.skip = order, uint64(size-jitHeaderSize)
	return jitHeaderSize, nil
}

func (d *jitDump) load(m *codeMap, b []byte) {
	if len(b) < jitLoadFixed {
		return
	}
	fields := b[jitPrefixSize:] // pid, tid, vma, code_addr, code_size, code_index
	addr, size, index := d.order.Uint64(fields[16:]), d.order.Uint64(fields[24:]), d.order.Uint64(fields[32:])
	name, _, _ := bytes.Cut(fields[40:], []byte{0})
	f := codeFrame(name)
	var lines linesOf
	if d.linesAt == addr {
		lines = d.lines
		if kind, _, _ := bytes.Cut(name, []byte(":")); isV8Function(string(kind)) {
			lessELFHeader(lines.rows)
		}
	}
	d.lines, d.linesAt = linesOf{}, 0
	if m.add(addr, size, f, lines) && len(d.numbered) < maxJITIndexes {
		if d.numbered == nil {
			d.numbered = map[uint64]Frame{}
		}
		d.numbered[index] = f
	}
}

// lessELFHeader takes off what V8 adds to all addresses of its lines: the size of the
// header of the ELF file that perf makes of the code (kElfHeaderSize, src/diagnostics/
// perf-jit.cc).
func lessELFHeader(rows []codeLine) {
	const elfHeaderSize = 0x40
	for i := range rows {
		rows[i].offset -= min(rows[i].offset, elfHeaderSize)
	}
}

func (d *jitDump) move(m *codeMap, b []byte) {
	if len(b) < jitMoveSize {
		return
	}
	fields := b[jitPrefixSize:] // pid, tid, vma, old_code_addr, new_code_addr, code_size, code_index
	from, to, size, index := d.order.Uint64(fields[16:]), d.order.Uint64(fields[24:]), d.order.Uint64(fields[32:]), d.order.Uint64(fields[40:])
	f, ok := d.numbered[index]
	m.remove(from, size)
	if ok {
		m.add(to, size, f, linesOf{}) // its lines are not kept for this
	} else {
		m.remove(to, size)
	}
}

// debugInfo keeps the lines of the code that comes next. A name of 0xff means that of the
// entry before. V8 11 writes the address of the name in the place of its text: what does not
// add up is not believed.
func (d *jitDump) debugInfo(b []byte) {
	if len(b) < jitDebugHead {
		return
	}
	d.lines, d.linesAt = linesOf{}, 0
	addr, n := d.order.Uint64(b[16:]), d.order.Uint64(b[24:])
	b = b[jitDebugHead:]
	l := linesOf{rows: make([]codeLine, 0, min(n, uint64(len(b)/17))), files: []string{""}}
	numbers := map[string]uint32{"": 0}
	var file uint32
	for ; n > 0 && len(b) >= 17; n-- {
		at, line := d.order.Uint64(b), d.order.Uint32(b[8:])
		name, rest, ok := bytes.Cut(b[16:], []byte{0})
		if !ok {
			break
		}
		b = rest
		if !bytes.Equal(name, []byte{0xff}) {
			text := cleanText(name)
			if file, ok = numbers[text]; !ok {
				file = uint32(len(l.files))
				l.files = append(l.files, text)
				numbers[text] = file
			}
		}
		if at >= addr && at-addr < maxCodeSize && line < 1<<31 {
			l.rows = append(l.rows, codeLine{offset: uint32(at - addr), line: line, file: file})
		}
	}
	if n > 0 || len(b) >= 8 { // records are padded
		return
	}
	slices.SortStableFunc(l.rows, func(a, b codeLine) int { return cmp.Compare(a.offset, b.offset) })
	d.lines, d.linesAt = l, addr
}
