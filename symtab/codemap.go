package symtab

import (
	"cmp"
	"container/heap"
	"slices"
	"sort"
)

// Bounds of one code entry, as a process states it.
const (
	maxCodeSize  = 1 << 30 // bytes; HotSpot's largest blob is its interpreter, of some 100 KB
	maxCodeAddr  = 1 << 62
	codeSpanSize = 24 // of codeSpan in memory
)

// codeSpan is a range of addresses with one function. Spans of a codeMap are sorted and
// do not overlap.
type codeSpan struct {
	start, end uint64
	code       uint32 // number of its description; 0: nothing is there any more
	lines      uint32 // number of its line table; 0: none
}

// codeLine is a row of a line table: it holds until the next one.
type codeLine struct {
	offset uint32 // from the beginning of the code
	line   uint32
	file   uint32 // number of its text
}

// codeLines are the lines of one piece of code, sorted by offset.
type codeLines struct {
	base uint64
	rows []codeLine
}

// linesOf are the lines of one piece of code as they were read; file is a place in files.
type linesOf struct {
	rows  []codeLine
	files []string
}

// codeMap is which function is where in the memory of a process, by what was said last:
// newer code replaces older code where they overlap. When it is full, it forgets all that it
// knew: what it says is never what is true no more. It is not safe for concurrent use.
type codeMap struct {
	max   int64 // bytes
	spans []codeSpan
	fresh []codeSpan // not yet merged, in the order of time

	codes   []Frame // by number; 0 is none
	numbers map[Frame]uint32
	texts   []string // by number; 0 is ""
	textNo  map[string]uint32
	tables  []codeLines // by number; 0 is none
	bytes   int64       // of codes, texts and tables
	flushed uint64      // how often it was full
}

func newCodeMap(max int64) *codeMap {
	m := &codeMap{max: max}
	m.reset()
	return m
}

// reset forgets all.
func (m *codeMap) reset() {
	*m = codeMap{
		max: m.max, flushed: m.flushed, codes: make([]Frame, 1), numbers: map[Frame]uint32{},
		texts: make([]string, 1), textNo: map[string]uint32{"": 0}, tables: make([]codeLines, 1),
	}
}

// size is the memory that the map takes, in bytes.
func (m *codeMap) size() int64 {
	return m.bytes + codeSpanSize*int64(cap(m.spans)+cap(m.fresh))
}

// maxFresh is how many entries wait to be merged.
const maxFresh = 1 << 16

// Memory of what is kept, beside the texts themselves: entries and their tables of numbers.
const (
	codeBytes      = 40 + 64
	textBytes      = 16 + 32
	codeLineBytes  = 12
	codeTableBytes = 32
)

// add enters code. It returns false if it is none.
func (m *codeMap) add(start, size uint64, f Frame, lines linesOf) bool {
	if size == 0 || size > maxCodeSize || start > maxCodeAddr || f.Name == "" {
		return false
	}
	more := int64(codeBytes+textBytes+codeTableBytes+len(f.Name)+len(f.File)) + codeLineBytes*int64(len(lines.rows))
	for _, file := range lines.files {
		more += textBytes + int64(len(file))
	}
	if !m.room(more) {
		return false
	}
	m.fresh = append(m.fresh, codeSpan{start: start, end: start + size, code: m.number(f), lines: m.table(start, lines)})
	return true
}

// remove says that nothing is in a range any more.
func (m *codeMap) remove(start, size uint64) {
	if size > 0 && size <= maxCodeSize && start <= maxCodeAddr && m.room(0) {
		m.fresh = append(m.fresh, codeSpan{start: start, end: start + size})
	}
}

// room makes room for one more span, and for so many bytes beside it.
func (m *codeMap) room(more int64) bool {
	more += codeSpanSize
	if len(m.fresh) == cap(m.fresh) {
		more += codeSpanSize * int64(max(2*cap(m.fresh), 16)-cap(m.fresh))
	}
	if len(m.fresh) < maxFresh && m.size()+more <= m.max {
		return true
	}
	m.merge()
	if m.size()+more > m.max/8*7 {
		m.reset()
		m.flushed++
	}
	return m.size()+more <= m.max
}

// number returns the number of a description.
func (m *codeMap) number(f Frame) uint32 {
	if n, ok := m.numbers[f]; ok {
		return n
	}
	f.File = m.texts[m.text(f.File)] // shared by the functions of a file
	n := uint32(len(m.codes))
	m.codes = append(m.codes, f)
	m.numbers[f] = n
	m.bytes += codeBytes + int64(len(f.Name))
	return n
}

// text returns the number of a text.
func (m *codeMap) text(s string) uint32 {
	if n, ok := m.textNo[s]; ok {
		return n
	}
	n := uint32(len(m.texts))
	m.texts = append(m.texts, s)
	m.textNo[s] = n
	m.bytes += textBytes + int64(len(s))
	return n
}

// table keeps a line table, and returns its number; 0 if it has no rows.
func (m *codeMap) table(base uint64, lines linesOf) uint32 {
	if len(lines.rows) == 0 {
		return 0
	}
	rows := make([]codeLine, len(lines.rows))
	for i, r := range lines.rows {
		r.file = m.text(lines.files[r.file])
		rows[i] = r
	}
	n := uint32(len(m.tables))
	m.tables = append(m.tables, codeLines{base, rows})
	m.bytes += codeTableBytes + codeLineBytes*int64(len(rows))
	return n
}

// merge lays what is new over what was there, and lets go of what nothing names any more.
func (m *codeMap) merge() {
	if len(m.fresh) == 0 {
		return
	}
	m.spans = overlayCode(m.spans, newestCode(m.fresh))
	m.fresh = nil
	if len(m.codes) > 2*len(m.spans)+1024 || len(m.tables) > 2*len(m.spans)+1024 || m.size() > m.max*3/4 {
		m.compact()
	}
}

// compact keeps the descriptions and tables of the spans only.
func (m *codeMap) compact() {
	old := *m
	m.reset()
	m.spans = slices.Clip(old.spans)
	codes := make([]uint32, len(old.codes))
	tables := make([]uint32, len(old.tables))
	for i := range m.spans {
		s := &m.spans[i]
		if codes[s.code] == 0 {
			codes[s.code] = m.number(old.codes[s.code])
		}
		s.code = codes[s.code]
		if s.lines == 0 {
			continue
		}
		if tables[s.lines] == 0 {
			t := old.tables[s.lines]
			tables[s.lines] = m.table(t.base, linesOf{t.rows, old.texts})
		}
		s.lines = tables[s.lines]
	}
}

// find returns the function at an address.
func (m *codeMap) find(addr uint64) (Frame, bool) {
	m.merge()
	i := sort.Search(len(m.spans), func(i int) bool { return m.spans[i].end > addr })
	if i == len(m.spans) || m.spans[i].start > addr {
		return Frame{}, false
	}
	s := &m.spans[i]
	f := m.codes[s.code]
	if t := &m.tables[s.lines]; addr >= t.base {
		j := sort.Search(len(t.rows), func(j int) bool { return uint64(t.rows[j].offset) > addr-t.base })
		// Lines of functions that were inlined from another file are not this one's.
		if j > 0 {
			row := &t.rows[j-1]
			if file := m.texts[row.file]; f.File == "" || f.File == file {
				f.File, f.Line = file, int(row.line)
			}
		}
	}
	return f, true
}

// newestCode makes entries in the order of time disjoint and sorted: of those that overlap
// the last one counts.
func newestCode(in []codeSpan) []codeSpan {
	order := make([]int, len(in))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(in[a].start, in[b].start) })
	out := make([]codeSpan, 0, len(in))
	var open newestFirst
	var at uint64
	last := -1 // entry of the last span
	for i := 0; i < len(order) || len(open) > 0; {
		next := ^uint64(0)
		if i < len(order) {
			next = in[order[i]].start
		}
		for len(open) > 0 && at < next {
			top := open[0]
			end := min(in[top].end, next)
			if end <= at {
				heap.Pop(&open)
				continue
			}
			if n := len(out); last == top && out[n-1].end == at {
				out[n-1].end = end
			} else {
				s := in[top]
				s.start, s.end = at, end
				out = append(out, s)
				last = top
			}
			at = end
		}
		if i == len(order) {
			break
		}
		at = next
		for ; i < len(order) && in[order[i]].start == next; i++ {
			heap.Push(&open, order[i])
		}
	}
	return out
}

// newestFirst is a heap of numbers, the largest first.
type newestFirst []int

func (h newestFirst) Len() int           { return len(h) }
func (h newestFirst) Less(i, j int) bool { return h[i] > h[j] }
func (h newestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *newestFirst) Push(x any)        { *h = append(*h, x.(int)) }
func (h *newestFirst) Pop() any {
	n := len(*h) - 1
	x := (*h)[n]
	*h = (*h)[:n]
	return x
}

// overlayCode lays spans over others; both are sorted and disjoint, and so is what comes
// out, without those that say that there is nothing.
func overlayCode(base, over []codeSpan) []codeSpan {
	out := make([]codeSpan, 0, len(base)+len(over))
	put := func(s codeSpan) {
		if s.code != 0 && s.start < s.end {
			out = append(out, s)
		}
	}
	i := 0
	var rest codeSpan // of base[i-1], behind what was laid over it
	for _, o := range over {
		if rest.start < rest.end {
			before := rest
			before.end = min(before.end, o.start)
			put(before)
			rest.start = max(rest.start, o.end)
		}
		for ; i < len(base) && base[i].start < o.end; i++ {
			before := base[i]
			before.end = min(before.end, o.start)
			put(before)
			if base[i].end > o.end {
				rest = base[i]
				rest.start = max(rest.start, o.end)
			}
		}
		put(o)
	}
	put(rest)
	for ; i < len(base); i++ {
		put(base[i])
	}
	return out
}
