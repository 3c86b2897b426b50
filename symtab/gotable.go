package symtab

import (
	"errors"
	"io"
	"io/fs"
	"sort"
	"sync"
)

// goTable resolves by Go's function table: functions, those inlined, files, lines.
// Of the table only the function index is kept in memory; the rest is read where it
// is needed, once for each address.
type goTable struct {
	funcs    *goFuncs
	file     *handle
	gofunc   VirtAddr // base of the inline trees; 0 if they cannot be read
	inline   bool
	simplify bool
	cache    frameCache

	mu      sync.Mutex // guards strings
	strings map[uint64]string
}

const (
	maxInlineDepth = 128
	maxGoStrings   = 1 << 16
	maxPCSteps     = 1 << 20
)

// newGoTable reads the table of a Go program. It returns nil if the program has
// none, or none that can be trusted; the error says why.
func newGoTable(main elfSymbols, lay layout, opts *Options, b *budget) (*goTable, error) {
	addr, off, size, ok := findGoTable(main.file)
	if !ok {
		return nil, nil
	}
	funcs, err := readGoFuncs(main.file, addr, off, size)
	if err != nil {
		return nil, errGoTable(err)
	}
	if int64(8*len(funcs.starts)) > opts.MaxBytes/2 {
		return nil, errGoTable(ErrTableTooBig)
	}
	t := &goTable{
		funcs: funcs, file: main.handle, inline: opts.Inline, simplify: opts.Demangle == "simplified",
		strings: map[uint64]string{},
	}
	t.cache.budget = b
	if t.gofunc, err = funcs.locate(lay); err != nil {
		return nil, errGoTable(err)
	}
	return t, nil
}

func (t *goTable) bytes() int64 { return int64(8*len(t.funcs.starts)) + t.cache.bytes() }

func (t *goTable) count() int { return len(t.funcs.offs) }

func (t *goTable) openFiles() int { return 0 }

func (t *goTable) close() { t.cache.close() }

func (t *goTable) frames(p position) ([]Frame, error) {
	if fr, ok := t.cache.get(uint64(p.at)); ok {
		return fr, nil
	}
	i, ok := t.find(p.addr)
	if !ok {
		return nil, nil
	}
	if t.file != nil {
		if err := t.file.fresh(); err != nil {
			return nil, err
		}
	}
	frames, fresh, err := t.resolve(i, p.addr)
	if errors.Is(err, fs.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.Join(errStale, err)
	}
	if err != nil || len(frames) == 0 {
		return nil, nil // that part of the table is broken: the symbols may know more
	}
	return t.cache.put(uint64(p.at), frames, fresh), nil
}

// find returns the function whose entry is the last at or before pc.
func (t *goTable) find(pc VirtAddr) (int, bool) {
	s := t.funcs.starts
	rel := uint64(pc - t.funcs.base)
	if pc < t.funcs.base || rel < uint64(s[0]) || rel >= uint64(s[len(s)-1]) {
		return 0, false
	}
	return sort.Search(len(s), func(i int) bool { return uint64(s[i]) > rel }) - 1, true
}

// resolve returns the frames at pc in function i, and the memory of strings that
// were read for them. No frames if pc is in the padding behind the function.
// Source: runtime/symtabinl.go (inlineUnwinder).
func (t *goTable) resolve(i int, pc VirtAddr) (frames []Frame, fresh int64, err error) {
	f, err := t.funcs.describe(i)
	if err != nil {
		return nil, 0, err
	}
	r := &pcReader{g: t.funcs}
	at := uint64(pc - f.entry)
	// The tables of values by address end with the function's last instruction.
	extent := f.pcln
	if extent == 0 {
		extent = f.pcsp
	}
	if _, ok, err := r.value(extent, at); err != nil || !ok {
		return nil, 0, err
	}
	for depth := 0; f.hasInline && depth < maxInlineDepth; depth++ {
		ix, ok, err := r.value(f.inlIndex, at)
		if err != nil || !ok || ix < 0 {
			break
		}
		call, ok := t.inlined(&f, ix)
		if !ok {
			break
		}
		if t.inline {
			fr, n, err := t.frame(r, &f, call.name, at)
			if err != nil {
				return nil, 0, err
			}
			frames, fresh = append(frames, fr), fresh+n
		}
		at = uint64(call.parentPC)
	}
	fr, n, err := t.frame(r, &f, f.name, at)
	if err != nil {
		return nil, 0, err
	}
	return append(frames, fr), fresh + n, nil
}

// inlined reads an entry of the function's inline tree.
func (t *goTable) inlined(f *goFunc, ix int32) (inlinedCall, bool) {
	base := VirtAddr(f.inlTree)
	if t.funcs.version >= go118 {
		if t.gofunc == 0 {
			return inlinedCall{}, false
		}
		base += t.gofunc
	}
	var b [20]byte
	n := t.funcs.inlLen()
	if err := t.funcs.in.ReadAddr(b[:n], base+VirtAddr(int(ix)*n)); err != nil {
		return inlinedCall{}, false
	}
	c, ok := t.funcs.parseInlined(b[:])
	return c, ok && c.parentPC < f.size
}

// frame makes the frame of a function, with the line at an address.
func (t *goTable) frame(r *pcReader, f *goFunc, name uint32, at uint64) (Frame, int64, error) {
	fr := Frame{}
	var fresh, n int64
	var err error
	fr.Name, fresh, err = t.text(t.funcs.nameAt+uint64(name), t.simplify)
	if err != nil {
		return fr, 0, err
	}
	line, ok, err := r.value(f.pcln, at)
	if err != nil || !ok || line <= 0 {
		return fr, fresh, nil
	}
	fileno, ok, err := r.value(f.pcfile, at)
	if err != nil || !ok || fileno < 0 {
		return fr, fresh, nil
	}
	where, ok := t.fileName(f, uint64(fileno))
	if !ok {
		return fr, fresh, nil
	}
	if fr.File, n, err = t.text(where, false); err != nil {
		return fr, fresh, nil
	}
	fr.Line = int(line)
	return fr, fresh + n, nil
}

// fileName returns where the name of a file is.
func (t *goTable) fileName(f *goFunc, fileno uint64) (uint64, bool) {
	g := t.funcs
	var b [4]byte
	if g.version == go12 {
		if g.read(b[:], g.fileAt+4*fileno) != nil {
			return 0, false
		}
		return uint64(le.Uint32(b[:])), true
	}
	if g.read(b[:], g.cuAt+4*(uint64(f.cu)+fileno)) != nil || le.Uint32(b[:]) == ^uint32(0) {
		return 0, false
	}
	return g.fileAt + uint64(le.Uint32(b[:])), true
}

// text reads a string once. fresh is the memory it took now.
func (t *goTable) text(at uint64, simplify bool) (s string, fresh int64, err error) {
	t.mu.Lock()
	s, ok := t.strings[at]
	t.mu.Unlock()
	if ok {
		return s, 0, nil
	}
	if s, err = t.funcs.readString(at); err != nil {
		return "", 0, err
	}
	if simplify {
		s = simplifyGo(s)
	}
	const entry = 48
	t.mu.Lock()
	defer t.mu.Unlock()
	if old, ok := t.strings[at]; ok {
		return old, 0, nil
	}
	if len(t.strings) >= maxGoStrings {
		clear(t.strings)
	}
	t.strings[at] = s
	return s, int64(len(s)) + entry, nil
}

// pcReader decodes tables of values by address (golang.org/s/go12symtab, "Tables").
type pcReader struct {
	g    *goFuncs
	from uint64
	have int
	buf  [2048]byte
}

func (r *pcReader) byte(at uint64) (byte, error) {
	if at-r.from >= uint64(r.have) || at < r.from {
		if at >= r.g.size {
			return 0, corrupt("table of values at %#x", at)
		}
		n := int(min(uint64(len(r.buf)), r.g.size-at))
		r.have = 0
		if err := r.g.read(r.buf[:n], at); err != nil {
			return 0, err
		}
		r.from, r.have = at, n
	}
	return r.buf[at-r.from], nil
}

func (r *pcReader) varint(at *uint64) (uint32, error) {
	v := uint32(0)
	for shift := 0; shift < 35; shift += 7 {
		b, err := r.byte(*at)
		if err != nil {
			return 0, err
		}
		*at++
		v |= uint32(b&0x7f) << shift
		if b&0x80 == 0 {
			return v, nil
		}
	}
	return 0, corrupt("number of more than 32 bits")
}

// value returns the value at an address, which counts from the function's entry.
// False if the table does not reach it.
func (r *pcReader) value(table uint32, target uint64) (int32, bool, error) {
	if table == 0 {
		return -1, false, nil
	}
	at := r.g.pcAt + uint64(table)
	val, pc := int32(-1), uint64(0)
	for step := range maxPCSteps {
		d, err := r.varint(&at)
		if err != nil {
			return -1, false, err
		}
		if d == 0 && step > 0 {
			return -1, false, nil
		}
		val += int32(-(d & 1) ^ d>>1)
		n, err := r.varint(&at)
		if err != nil {
			return -1, false, err
		}
		pc += uint64(n) * uint64(r.g.quantum)
		if target < pc {
			return val, true, nil
		}
	}
	return -1, false, corrupt("endless table of values")
}
