package symtab

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/klauspost/compress/s2"

	"github.com/spanflame/spanflame/internal/elffile"
)

// kernelNames are the kernel's functions. Addresses are kept as 32-bit offsets, in
// regions, with their sizes; names in order of address, compressed in blocks.
type kernelNames struct {
	regions []kernelRegion
	blocks  []byte
	blockAt []uint32 // where each block of namesPerBlock names begins, and the end
	runs    []moduleRun
	modules []string
	count   int
	cache   frameCache // Frame.File is the module
}

// kernelRegion is a part of the address space less than 4 GiB long.
type kernelRegion struct {
	base  uint64
	first int // number of the first function
	table *table
}

// moduleRun is a run of functions of one module, up to the next run.
type moduleRun struct {
	first  uint32
	module uint16
}

const (
	namesPerBlock    = 128
	maxKernelRegions = 1024
	maxKernelNames   = 16 << 20 // bytes of names kept as strings
)

func (n *kernelNames) lookup(addr uint64) (name, module string, ok bool) {
	r := sort.Search(len(n.regions), func(i int) bool { return n.regions[i].base > addr }) - 1
	if r < 0 || addr-n.regions[r].base >= 1<<32 {
		return "", "", false
	}
	reg := &n.regions[r]
	i, ok := reg.table.find(uint32(addr - reg.base))
	if !ok {
		return "", "", false
	}
	i += reg.first
	fr, ok := n.cache.get(uint64(i))
	if !ok {
		f := Frame{Name: n.name(i), File: n.modules[n.moduleOf(i)]}
		fr = n.cache.put(uint64(i), []Frame{f}, int64(len(f.Name)))
	}
	return fr[0].Name, fr[0].File, true
}

// name decompresses a name.
func (n *kernelNames) name(i int) string {
	b := i / namesPerBlock
	text, err := s2.Decode(nil, n.blocks[n.blockAt[b]:n.blockAt[b+1]])
	if err != nil {
		return "" // cannot be: the block was made by this process
	}
	for range i % namesPerBlock {
		text = text[bytes.IndexByte(text, 0)+1:]
	}
	return string(cut(text))
}

func (n *kernelNames) moduleOf(i int) uint16 {
	k := sort.Search(len(n.runs), func(k int) bool { return int(n.runs[k].first) > i }) - 1
	return n.runs[k].module
}

func (n *kernelNames) bytes() int64 {
	sum := int64(cap(n.blocks)+4*cap(n.blockAt)+8*cap(n.runs)) + n.cache.bytes()
	for _, r := range n.regions {
		sum += r.table.bytes() + 32
	}
	return sum
}

// kernelSymbol is a line of /proc/kallsyms.
type kernelSymbol struct {
	addr   uint64
	name   uint32 // offset in text
	length uint16
	module uint16
	kind   byte // as nm(1) has it
}

func (s *kernelSymbol) function() bool {
	return s.kind == 't' || s.kind == 'T' || s.kind == 'w' || s.kind == 'W'
}

// kernelReader collects the lines of /proc/kallsyms.
type kernelReader struct {
	symbols   []kernelSymbol
	text      []byte // the names
	modules   []string
	moduleNum map[string]uint16
	lastName  string
	lastNum   uint16
	nonzero   bool
}

// readKallsyms reads /proc/kallsyms. Format: proc(5): address, type as of nm(1),
// name, and in brackets the module. While a piece is parsed, the next one is read:
// the kernel takes longer to print the list than it takes to read it.
func readKallsyms(in io.Reader, ends map[string]moduleRange) (*kernelNames, error) {
	r := &kernelReader{
		symbols: make([]kernelSymbol, 0, 1<<17), text: make([]byte, 0, 3<<20),
		modules: []string{""}, moduleNum: map[string]uint16{"": 0},
	}
	if err := r.readAll(in); err != nil {
		return nil, err
	}
	if len(r.symbols) == 0 {
		return nil, fmt.Errorf("no symbols: %w", elffile.ErrCorrupt)
	}
	if !r.nonzero {
		return nil, ErrKernelRestricted
	}
	return r.pack(ends)
}

// piece is what one read or several of them gave.
type piece struct {
	b   []byte
	err error
}

func (r *kernelReader) readAll(in io.Reader) error {
	const size = 128 << 10
	full, free := make(chan piece, 2), make(chan []byte, 3)
	for range 3 {
		free <- make([]byte, size)
	}
	stop := make(chan struct{})
	go func() {
		defer close(full)
		for buf := range free {
			n, err := io.ReadFull(in, buf)
			select {
			case full <- piece{buf[:n], err}:
			case <-stop:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	// The reader below has one buffer at most that is not in a channel, so putting a
	// buffer back never blocks. The goroutine has ended when full is closed.
	err := r.parsePieces(full, free)
	close(stop)
	close(free)
	for range full {
	}
	return err
}

func (r *kernelReader) parsePieces(full <-chan piece, free chan<- []byte) error {
	var rest []byte
	total := 0
	for p := range full {
		total += len(p.b)
		b := p.b
		if len(rest) > 0 { // finish the line that the last piece ended in
			end := bytes.IndexByte(b, '\n')
			if end < 0 {
				end = len(b) - 1
			}
			rest = append(rest, b[:end+1]...)
			b = b[end+1:]
			r.lines(rest)
			rest = rest[:0]
		}
		end := bytes.LastIndexByte(b, '\n') + 1
		r.lines(b[:end])
		rest = append(rest, b[end:]...)
		switch {
		case errors.Is(p.err, io.EOF) || errors.Is(p.err, io.ErrUnexpectedEOF):
			r.lines(append(rest, '\n'))
			return nil
		case p.err != nil:
			return p.err
		case total > maxKallsyms || len(r.symbols) > maxKernelSymbols:
			return fmt.Errorf("list of symbols: %w", elffile.ErrTooLarge)
		}
		free <- p.b[:cap(p.b)]
	}
	return nil
}

// lines parses whole lines.
func (r *kernelReader) lines(b []byte) {
	for len(b) > 0 {
		// address, blank, type, blank
		i, addr := 0, uint64(0)
		for i < len(b) {
			c := b[i]
			switch {
			case c >= '0' && c <= '9':
				c -= '0'
			case c >= 'a' && c <= 'f':
				c -= 'a' - 10
			default:
				c = 0xff
			}
			if c == 0xff {
				break
			}
			addr = addr<<4 | uint64(c)
			i++
		}
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			return
		}
		if i > 0 && i <= 16 && i+3 < end && b[i] == ' ' && b[i+2] == ' ' {
			r.line(addr, b[i+1], b[i+3:end])
		}
		b = b[end+1:]
	}
}

// line adds a symbol.
func (r *kernelReader) line(addr uint64, kind byte, name []byte) {
	if addr != 0 {
		r.nonzero = true
	}
	module := uint16(0)
	if n := len(name); name[n-1] == ']' {
		if open := bytes.LastIndexByte(name, '['); open > 0 {
			module = r.module(name[open+1 : n-1])
			name = bytes.TrimRight(name[:open], "\t ")
		}
	}
	// Addresses in the lower half are offsets (per-CPU data), and names with $ are
	// marks of the assembler.
	if addr>>63 == 0 && addr != 0 || len(name) == 0 || len(name) > 1024 || name[0] == '$' {
		return
	}
	s := kernelSymbol{addr: addr, kind: kind, module: module, name: uint32(len(r.text)), length: uint16(len(name))}
	if s.function() && endMarks[string(name)] {
		s.kind = endMark
	}
	if s.function() {
		r.text = append(append(r.text, name...), 0)
	}
	r.symbols = append(r.symbols, s)
}

// endMark is the kind of symbols that stand behind the last byte of a section.
const endMark = 'e'

var endMarks = map[string]bool{"_etext": true, "_einittext": true, "_end": true, "_edata": true}

// module numbers a module's name.
func (r *kernelReader) module(name []byte) uint16 {
	if string(name) == r.lastName {
		return r.lastNum
	}
	num, ok := r.moduleNum[string(name)]
	if !ok && len(r.modules) < 1<<16-1 {
		num = uint16(len(r.modules))
		r.modules = append(r.modules, string(name))
		r.moduleNum[string(name)] = num
	}
	r.lastName, r.lastNum = string(name), num
	return num
}

// nameOf is the name of a function.
func (r *kernelReader) nameOf(s *kernelSymbol) []byte {
	return r.text[s.name : s.name+uint32(s.length)]
}

// better says whether a names its address better than b: global before weak before
// local, then fewer leading underscores ("_text" and "_stext" begin with one), then
// the first.
func (r *kernelReader) better(a, b *kernelSymbol) bool {
	rank := func(s *kernelSymbol) int { return bytes.IndexByte([]byte("twWT"), s.kind) }
	if x, y := rank(a), rank(b); x != y {
		return x > y
	}
	under := func(s *kernelSymbol) int { n := r.nameOf(s); return len(n) - len(bytes.TrimLeft(n, "_")) }
	return under(a) < under(b)
}

// pack sorts the symbols, chooses one for each address, and packs them.
func (r *kernelReader) pack(ends map[string]moduleRange) (*kernelNames, error) {
	byAddr := func(a, b kernelSymbol) int { return cmp.Compare(a.addr, b.addr) }
	if !slices.IsSortedFunc(r.symbols, byAddr) {
		slices.SortStableFunc(r.symbols, byAddr)
	}
	n := &kernelNames{modules: r.modules}
	n.cache.budget = &budget{}
	n.cache.budget.limit.Store(maxKernelNames)
	p := &kernelPacker{out: n, scratch: make([]byte, 0, 8<<10)}
	n.blocks = make([]byte, 0, len(r.text)/2)
	syms := r.symbols
	for i := 0; i < len(syms); {
		best := -1
		j := i
		for ; j < len(syms) && syms[j].addr == syms[i].addr; j++ {
			if syms[j].function() && (best < 0 || r.better(&syms[j], &syms[best])) {
				best = j
			}
		}
		if best >= 0 && syms[i].addr != 0 {
			next := (*kernelSymbol)(nil)
			if j < len(syms) {
				next = &syms[j]
			}
			size := r.size(&syms[best], next, ends)
			if err := p.add(&syms[best], size, r.nameOf(&syms[best])); err != nil {
				return nil, err
			}
		}
		i = j
	}
	p.finish()
	return n, nil
}

const kernelPage = 4096

// size is how far a function reaches: to the next symbol, but not into another
// module nor over a gap where code ends.
func (r *kernelReader) size(s, next *kernelSymbol, ends map[string]moduleRange) uint32 {
	const maxFunction = 1 << 20
	end := s.addr + maxFunction + 1
	if next != nil {
		end = min(end, next.addr)
	}
	if m, ok := ends[r.modules[s.module]]; ok && s.addr >= m.start && s.addr-m.start < m.size {
		end = min(end, m.start+m.size)
	}
	foreign := next == nil || next.module != s.module
	if end-s.addr > maxFunction || foreign && end-s.addr > kernelPage {
		// The last function before a gap ends in the page that it begins in, as far
		// as one can tell.
		end = s.addr&^(kernelPage-1) + kernelPage
	}
	return uint32(end - s.addr)
}

// kernelPacker fills a kernelNames in order of address.
type kernelPacker struct {
	out     *kernelNames
	spans   []span
	base    uint64
	scratch []byte
	packed  []byte
}

func (p *kernelPacker) add(s *kernelSymbol, size uint32, name []byte) error {
	n := p.out
	if len(p.spans) == 0 || s.addr-p.base > 1<<32-1<<21 {
		p.endRegion()
		if len(n.regions) == maxKernelRegions {
			return fmt.Errorf("symbols all over the address space: %w", elffile.ErrTooLarge)
		}
		p.base = s.addr
	}
	if len(n.runs) == 0 || n.runs[len(n.runs)-1].module != s.module {
		n.runs = append(n.runs, moduleRun{uint32(n.count), s.module})
	}
	p.spans = append(p.spans, span{start: uint32(s.addr - p.base), size: size})
	p.scratch = append(append(p.scratch, name...), 0)
	n.count++
	if n.count%namesPerBlock == 0 {
		p.endBlock()
	}
	return nil
}

func (p *kernelPacker) endBlock() {
	if len(p.scratch) == 0 {
		return
	}
	n := p.out
	n.blockAt = append(n.blockAt, uint32(len(n.blocks)))
	if need := s2.MaxEncodedLen(len(p.scratch)); cap(p.packed) < need {
		p.packed = make([]byte, need)
	}
	n.blocks = append(n.blocks, s2.Encode(p.packed[:cap(p.packed)], p.scratch)...)
	p.scratch = p.scratch[:0]
}

func (p *kernelPacker) endRegion() {
	if len(p.spans) == 0 {
		return
	}
	n := p.out
	t := newTable(p.spans)
	t.names = nil // a name is found by the number of its function
	n.regions = append(n.regions, kernelRegion{p.base, n.count - len(p.spans), t})
	p.spans = p.spans[:0]
}

func (p *kernelPacker) finish() {
	p.endRegion()
	p.endBlock()
	n := p.out
	n.blockAt = append(n.blockAt, uint32(len(n.blocks)))
	n.blocks, n.blockAt, n.runs = slices.Clip(slices.Clone(n.blocks)), slices.Clone(n.blockAt), slices.Clone(n.runs)
}
