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
	namesPerBlock    = 256
	maxKernelRegions = 1024
	maxKernelNames   = 4 << 20 // bytes of names kept as strings: some 25,000 functions
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

// kernelReader reads the lines of /proc/kallsyms and packs the functions. The kernel
// lists its own symbols in order of address; they are packed as they come. Those of
// modules and BPF programs are in no order; they are sorted and packed at the end.
type kernelReader struct {
	pack      *kernelPacker
	streaming bool
	last      uint64 // highest address that was packed as it came
	symbols   []kernelSymbol
	text      []byte // names of symbols
	modules   []string
	moduleNum map[string]uint16
	lastName  string
	lastNum   uint16
	lines     int
	nonzero   bool
	err       error
}

// errInterleaved says that modules lie among the kernel's own symbols, so that all
// must be sorted.
var errInterleaved = errors.New("symbols of modules among those of the kernel")

// readKallsyms reads /proc/kallsyms. Format: proc(5): address, type as of nm(1),
// name, and in brackets the module. While a piece is parsed, the next one is read:
// the kernel takes longer to print the list than it takes to parse it. The error is
// errInterleaved only if inOrder is set; then it is to be read again without.
func readKallsyms(in io.Reader, ends map[string]moduleRange, inOrder bool) (*kernelNames, error) {
	r := &kernelReader{streaming: inOrder, modules: []string{""}, moduleNum: map[string]uint16{"": 0}}
	r.pack = newKernelPacker(ends)
	if err := r.readAll(in); err != nil {
		return nil, err
	}
	if r.lines == 0 {
		return nil, fmt.Errorf("no symbols: %w", elffile.ErrCorrupt)
	}
	if !r.nonzero {
		return nil, ErrKernelRestricted
	}
	return r.finish()
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
			r.parse(rest)
			rest = rest[:0]
		}
		end := bytes.LastIndexByte(b, '\n') + 1
		r.parse(b[:end])
		rest = append(rest, b[end:]...)
		switch {
		case errors.Is(p.err, io.EOF) || errors.Is(p.err, io.ErrUnexpectedEOF):
			r.parse(append(rest, '\n'))
			return r.err
		case p.err != nil:
			return p.err
		case r.err != nil:
			return r.err
		case total > maxKallsyms || r.lines > maxKernelSymbols:
			return fmt.Errorf("list of symbols: %w", elffile.ErrTooLarge)
		}
		free <- p.b[:cap(p.b)]
	}
	return nil
}

// parse parses whole lines.
func (r *kernelReader) parse(b []byte) {
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

// line takes a symbol.
func (r *kernelReader) line(addr uint64, kind byte, name []byte) {
	r.lines++
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
	if addr>>63 == 0 || len(name) == 0 || len(name) > maxKernelName || name[0] == '$' {
		return
	}
	s := kernelSymbol{addr: addr, kind: kind, module: module, length: uint16(len(name))}
	if name[0] == '_' && s.function() && endMarks[string(name)] {
		s.kind = endMark
	}
	if r.streaming && module == 0 && addr >= r.last {
		r.last = addr
		if err := r.pack.next(&s, name); err != nil && r.err == nil {
			r.err = err
		}
		return
	}
	if s.function() {
		s.name = uint32(len(r.text))
		r.text = append(r.text, name...)
	} else {
		s.length = 0
	}
	r.symbols = append(r.symbols, s)
}

const maxKernelName = 1024 // the kernel's own limit is 512

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
		r.pack.ends = append(r.pack.ends, r.pack.byName[string(name)])
		r.moduleNum[string(name)] = num
	}
	r.lastName, r.lastNum = string(name), num
	return num
}

// finish packs what was not packed as it came.
func (r *kernelReader) finish() (*kernelNames, error) {
	slices.SortStableFunc(r.symbols, func(a, b kernelSymbol) int { return cmp.Compare(a.addr, b.addr) })
	p := r.pack
	if n := len(r.symbols); n > 0 && p.started {
		switch {
		case r.symbols[n-1].addr < p.lowest: // the modules lie below the kernel
			if err := p.flush(nil); err != nil {
				return nil, err
			}
			p.endRegion()
		case r.symbols[0].addr <= r.last:
			return nil, errInterleaved
		}
	}
	for i := range r.symbols {
		s := &r.symbols[i]
		if err := p.next(s, r.text[s.name:s.name+uint32(s.length)]); err != nil {
			return nil, err
		}
	}
	if err := p.flush(nil); err != nil {
		return nil, err
	}
	p.finish()
	p.out.modules = r.modules
	return p.out, nil
}
