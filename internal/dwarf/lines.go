package dwarf

import (
	"fmt"
	"path"
	"slices"
	"sort"

	"github.com/spanflame/spanflame/internal/elffile"
)

// lineTable is the lines of a unit's code: 6.2.
type lineTable struct {
	rows  []lineRow
	files []string // by the numbers that the program uses
}

type lineRow struct {
	addr uint64
	file uint32
	line uint32 // endOfSequence: no code
}

const endOfSequence = ^uint32(0)

func (t *lineTable) bytes() int64 {
	n := int64(len(t.rows)) * 16
	for _, f := range t.files {
		n += int64(len(f)) + 16
	}
	return n
}

// find returns the file and line of an address, 0 if they are not known.
func (t *lineTable) find(addr uint64) (file, line int) {
	i := sort.Search(len(t.rows), func(i int) bool { return t.rows[i].addr > addr }) - 1
	if i < 0 || t.rows[i].line == endOfSequence {
		return 0, 0
	}
	return int(t.rows[i].file), int(t.rows[i].line)
}

func (t *lineTable) name(file int) string {
	if file < 0 || file >= len(t.files) {
		return ""
	}
	return t.files[file]
}

// Opcodes: 7.22.
const (
	lnsCopy           = 1
	lnsAdvancePC      = 2
	lnsAdvanceLine    = 3
	lnsSetFile        = 4
	lnsSetColumn      = 5
	lnsNegateStmt     = 6
	lnsBasicBlock     = 7
	lnsConstAddPC     = 8
	lnsFixedAdvancePC = 9
	lnsPrologueEnd    = 10
	lnsEpilogueBegin  = 11
	lnsSetISA         = 12

	lneEndSequence = 1
	lneSetAddress  = 2
	lneDefineFile  = 3

	lnctPath = 1
	lnctDir  = 2
)

// lineProgram is a line table's program and what its head says.
type lineProgram struct {
	head      *unitHead // for the sizes of its forms
	version   int
	minInst   uint64
	lineBase  int64
	lineRange uint64
	opBase    uint64
	opLens    []byte
	table     *lineTable
	dirs      []string
}

// readLines reads the line table of a unit.
func (d *Data) readLines(h *unitHead) (t lineTable, err error) {
	at := h.lines - 1
	raw, err := d.line.some(at, 16)
	if err != nil {
		return t, err
	}
	b := &buf{b: raw}
	n, offSize := b.length()
	if b.bad || n > maxUnit {
		return t, fmt.Errorf("%w: line table of %d bytes", elffile.ErrCorrupt, n)
	}
	if raw, err = d.line.bytes(at+uint64(b.at), n); err != nil {
		return t, err
	}
	b = &buf{b: raw}
	p := lineProgram{table: &t}
	sizes := *h
	sizes.offSize = offSize
	p.head = &sizes
	p.version = int(b.num(2))
	if p.version < 2 || p.version > 5 {
		return t, fmt.Errorf("%w: line table of version %d", elffile.ErrUnsupported, p.version)
	}
	if p.version >= 5 {
		sizes.addrSize = int(b.num(1))
		b.skip(1) // size of segment selectors
	}
	headLen := b.num(offSize)
	program := b.at + int(min(headLen, uint64(len(b.b))))
	p.minInst = b.num(1)
	if p.version >= 4 {
		b.skip(1) // operations of an instruction: VLIW only
	}
	b.skip(1) // default_is_stmt
	p.lineBase = int64(int8(b.num(1)))
	p.lineRange, p.opBase = b.num(1), b.num(1)
	if b.bad || p.lineRange == 0 || p.opBase == 0 || program > len(b.b) {
		return t, fmt.Errorf("%w: head of a line table", elffile.ErrCorrupt)
	}
	p.opLens = b.take(p.opBase - 1)
	dir := d.strOf(h, h.dir)
	if p.version >= 5 {
		d.files5(&p, b)
	} else {
		p.files4(b, dir)
	}
	for i, f := range t.files {
		if f != "" && !path.IsAbs(f) && dir != "" {
			t.files[i] = path.Join(dir, f)
		}
	}
	if b.bad || program > len(b.b) {
		return t, fmt.Errorf("%w: files of a line table", elffile.ErrCorrupt)
	}
	b.at = program
	p.run(b)
	if !slices.IsSortedFunc(t.rows, byAddr) {
		t.sortSequences()
	}
	t.rows = slices.Clip(t.rows)
	return t, nil
}

func byAddr(a, b lineRow) int {
	switch {
	case a.addr < b.addr:
		return -1
	case a.addr > b.addr:
		return 1
	}
	return 0
}

// sortSequences puts the sequences in the order of their addresses. The end of one comes
// before the beginning of the next at the same address.
func (t *lineTable) sortSequences() {
	var seqs [][]lineRow
	from := 0
	for i := range t.rows {
		if t.rows[i].line == endOfSequence {
			seqs = append(seqs, t.rows[from:i+1])
			from = i + 1
		}
	}
	slices.SortStableFunc(seqs, func(a, b []lineRow) int { return byAddr(a[0], b[0]) })
	out := make([]lineRow, 0, len(t.rows))
	for _, s := range seqs {
		out = append(out, s...)
	}
	slices.SortStableFunc(out, byAddr) // sequences that overlap
	t.rows = out
}

// files4 reads directories and files as before version 5.
func (p *lineProgram) files4(b *buf, dir string) {
	p.dirs = append(p.dirs, dir)
	for !b.bad && len(p.dirs) < maxLineFiles {
		s := b.str()
		if s == "" {
			break
		}
		p.dirs = append(p.dirs, s)
	}
	p.table.files = append(p.table.files, "") // they count from 1
	for !b.bad && len(p.table.files) < maxLineFiles {
		s := b.str()
		if s == "" {
			break
		}
		i := b.uleb()
		b.uleb()
		b.uleb()
		p.table.files = append(p.table.files, p.join(i, s))
	}
}

func (p *lineProgram) join(dir uint64, name string) string {
	if path.IsAbs(name) || dir >= uint64(len(p.dirs)) || p.dirs[dir] == "" {
		return name
	}
	return path.Join(p.dirs[dir], name)
}

// files5 reads directories and files: 6.2.4.1.
func (d *Data) files5(p *lineProgram, b *buf) {
	for part := range 2 {
		type format struct {
			content uint64
			spec    attrSpec
		}
		var formats []format
		for range b.num(1) {
			formats = append(formats, format{b.uleb(), attrSpec{form: uint32(b.uleb())}})
		}
		for range min(b.uleb(), maxLineFiles) {
			if b.bad || len(formats) == 0 {
				return
			}
			var name string
			var dir uint64
			for _, f := range formats {
				v := p.head.read(b, f.spec, f.content == lnctPath)
				switch f.content {
				case lnctPath:
					name = d.strOf(p.head, v)
				case lnctDir:
					dir = v.n
				}
			}
			if part == 0 {
				if len(p.dirs) > 0 && !path.IsAbs(name) {
					name = path.Join(p.dirs[0], name)
				}
				p.dirs = append(p.dirs, name)
			} else {
				p.table.files = append(p.table.files, p.join(dir, name))
			}
		}
	}
}

// run runs the program: 6.2.5.
func (p *lineProgram) run(b *buf) {
	r := lineRow{file: 1, line: 1}
	start := 0 // of the sequence
	emit := func() {
		if n := len(p.table.rows); n > start && p.table.rows[n-1].addr == r.addr {
			p.table.rows[n-1] = r // the last of an address counts
			return
		}
		p.table.rows = append(p.table.rows, r)
	}
	for b.at < len(b.b) && len(p.table.rows) < maxLineRows {
		op := b.num(1)
		if op >= p.opBase {
			op -= p.opBase
			r.addr += op / p.lineRange * p.minInst
			r.line += uint32(p.lineBase + int64(op%p.lineRange))
			emit()
			continue
		}
		switch op {
		case 0:
			n := b.uleb()
			if n == 0 || n > uint64(len(b.b)-b.at) {
				return
			}
			next := b.at + int(n)
			switch b.num(1) {
			case lneEndSequence:
				r.line = endOfSequence
				p.end(start, r)
				start = len(p.table.rows)
				r = lineRow{file: 1, line: 1}
			case lneSetAddress:
				r.addr = b.num(min(int(n)-1, 8))
			case lneDefineFile:
				if len(p.table.files) < maxLineFiles {
					s := b.str()
					p.table.files = append(p.table.files, p.join(b.uleb(), s))
				}
			}
			b.bad, b.at = false, next
		case lnsCopy:
			emit()
		case lnsAdvancePC:
			r.addr += b.uleb() * p.minInst
		case lnsAdvanceLine:
			r.line += uint32(b.sleb())
		case lnsSetFile:
			r.file = uint32(b.uleb())
		case lnsSetColumn, lnsSetISA:
			b.uleb()
		case lnsNegateStmt, lnsBasicBlock, lnsPrologueEnd, lnsEpilogueBegin:
		case lnsConstAddPC:
			r.addr += (255 - p.opBase) / p.lineRange * p.minInst
		case lnsFixedAdvancePC:
			r.addr += b.num(2)
		default:
			for range p.opLens[op-1] {
				b.uleb()
			}
		}
		if b.bad {
			return
		}
	}
	p.table.rows = p.table.rows[:start] // a sequence without an end
}

// end closes a sequence. One of code that the linker dropped is left out.
func (p *lineProgram) end(start int, r lineRow) {
	rows := p.table.rows
	if start == len(rows) || rows[start].addr == 0 || r.addr <= rows[start].addr || !slices.IsSortedFunc(rows[start:], byAddr) {
		p.table.rows = rows[:start]
		return
	}
	rows = append(rows, r)
	p.table.rows = rows
}
