package symtab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/spanflame/spanflame/internal/elffile"
)

// goVersion is a format of Go's function table, named by the release that
// introduced it.
type goVersion int

const (
	go12 goVersion = iota
	go116
	go118
	go120 // still in use in 1.26
)

// Magic numbers, from internal/abi/symtab.go.
var goMagics = map[uint32]goVersion{
	0xfffffffb: go12, 0xfffffffa: go116, 0xfffffff0: go118, 0xfffffff1: go120,
}

// goHeader is the header of .gopclntab. Offsets are from the start of the table.
// Format: golang.org/s/go12symtab; runtime/symtab.go (pcHeader); debug/gosym.
type goHeader struct {
	version  goVersion
	quantum  uint32 // smallest instruction, in bytes
	ptr      int    // size of a pointer
	funcs    uint64 // number of functions
	text     VirtAddr
	nameAt   uint64
	cuAt     uint64
	fileAt   uint64
	pcAt     uint64
	funcAt   uint64 // what offsets of functions are relative to
	funcTab  uint64
	fieldLen int // of the function table
}

// goFuncs is Go's function table, read as far as it must be kept: 8 bytes a function.
type goFuncs struct {
	goHeader
	in   *elffile.File
	addr VirtAddr   // of the table
	off  FileOffset // of the table
	size uint64
	// starts are the functions' entries relative to base, and the end of the last
	// function; offs are where each function is described.
	base   VirtAddr
	starts []uint32
	offs   []uint32
}

const (
	maxGoFuncs   = 4 << 20
	maxGoScan    = 64 << 20
	goHeaderSize = 8 + 8*8
)

// findGoTable finds the table: by its section; in a Go program that the system's
// linker made position independent before Go 1.26, it is somewhere in .data.rel.ro.
// False if there is none.
func findGoTable(f *elffile.File) (addr VirtAddr, off FileOffset, size uint64, ok bool) {
	for _, name := range []string{".gopclntab", ".data.rel.ro.gopclntab"} {
		if s := f.Section(name); s != nil && s.HasData() && !s.Compressed() {
			return s.Addr, s.Off, s.Len, true
		}
	}
	if f.Section(".go.buildinfo") == nil && f.Section(".note.go.buildid") == nil {
		return 0, 0, 0, false
	}
	for _, name := range []string{".data.rel.ro", ".rodata"} {
		s := f.Section(name)
		if s == nil || !s.HasData() || s.Compressed() {
			continue
		}
		var at uint64
		found := false
		_ = eachChunk(f, s, 16, func(pos uint64, b []byte) bool {
			for i := 0; i+8 <= len(b); i += 16 {
				if _, known := goMagics[le.Uint32(b[i:])]; known && b[i+4] == 0 && b[i+5] == 0 &&
					(b[i+6] == 1 || b[i+6] == 2 || b[i+6] == 4) && (b[i+7] == 4 || b[i+7] == 8) {
					at, found = pos+uint64(i), true
					return false
				}
			}
			return true
		})
		if found {
			return s.Addr + VirtAddr(at), s.Off + FileOffset(at), s.Len - at, true
		}
	}
	return 0, 0, 0, false
}

var le = binary.LittleEndian

// eachChunk reads a section in chunks whose length is a multiple of unit, until fn
// returns false or maxGoScan bytes are read.
func eachChunk(f *elffile.File, s *elffile.Section, unit int, fn func(pos uint64, b []byte) bool) error {
	buf := make([]byte, (256<<10)/unit*unit)
	for pos := uint64(0); pos < min(s.Len, maxGoScan); {
		b := buf[:min(uint64(len(buf)), s.Len-pos)]
		if err := f.ReadFull(b, s.Off+FileOffset(pos)); err != nil {
			return err
		}
		if !fn(pos, b) {
			return nil
		}
		pos += uint64(len(b))
	}
	return nil
}

// readGoFuncs reads the header and the function table.
func readGoFuncs(f *elffile.File, addr VirtAddr, off FileOffset, size uint64) (*goFuncs, error) {
	g := &goFuncs{in: f, addr: addr, off: off, size: size}
	var head [goHeaderSize]byte
	n := min(uint64(len(head)), size)
	if err := f.ReadFull(head[:n], off); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	if err := g.parse(head[:]); err != nil {
		return nil, err
	}
	return g, g.readTable()
}

// parse reads the header.
func (h *goHeader) parse(b []byte) error {
	version, ok := goMagics[le.Uint32(b)]
	if !ok || b[4] != 0 || b[5] != 0 {
		return fmt.Errorf("%w: header % x", elffile.ErrUnsupported, b[:8])
	}
	h.version, h.quantum, h.ptr = version, uint32(b[6]), int(b[7])
	if (h.quantum != 1 && h.quantum != 2 && h.quantum != 4) || (h.ptr != 4 && h.ptr != 8) {
		return corrupt("header % x", b[:8])
	}
	word := func(i int) uint64 { return pointer(b[8+i*h.ptr:], h.ptr) }
	h.funcs, h.fieldLen = word(0), h.ptr
	switch version {
	case go12:
		h.funcTab = uint64(8 + h.ptr)
	case go116:
		h.nameAt, h.cuAt, h.fileAt, h.pcAt, h.funcAt = word(2), word(3), word(4), word(5), word(6)
		h.funcTab = h.funcAt
	default:
		h.text = VirtAddr(word(2))
		h.nameAt, h.cuAt, h.fileAt, h.pcAt, h.funcAt = word(3), word(4), word(5), word(6), word(7)
		h.funcTab, h.fieldLen = h.funcAt, 4
	}
	return nil
}

func pointer(b []byte, size int) uint64 {
	if size == 4 {
		return uint64(le.Uint32(b))
	}
	return le.Uint64(b)
}

// readTable reads the pairs of (entry, offset) and checks that they ascend.
func (g *goFuncs) readTable() error {
	if g.funcs == 0 || g.funcs > maxGoFuncs {
		return corrupt("%d functions", g.funcs)
	}
	n := int(g.funcs)
	if need := uint64(2*n+1)*uint64(g.fieldLen) + 4; g.funcTab > g.size || need > g.size-g.funcTab+4 {
		return corrupt("%d functions in a table of %d bytes", n, g.size)
	}
	raw := make([]byte, (2*n+1)*g.fieldLen)
	if g.version == go12 {
		raw = make([]byte, len(raw)+4) // the offset of the file table follows
	}
	if err := g.read(raw, g.funcTab); err != nil {
		return fmt.Errorf("read function table: %w", err)
	}
	if g.version == go12 {
		g.fileAt = uint64(le.Uint32(raw[len(raw)-4:]))
	}
	if g.version < go118 {
		g.base = VirtAddr(pointer(raw, g.ptr))
	}
	g.starts, g.offs = make([]uint32, n+1), make([]uint32, n)
	last := uint64(0)
	for i := range n + 1 {
		start := pointer(raw[2*i*g.fieldLen:], g.fieldLen) - uint64(g.base)
		if start < last || start > math.MaxUint32 {
			return corrupt("function %d starts before the one before it", i)
		}
		last = start
		g.starts[i] = uint32(start)
		if i < n {
			off := pointer(raw[(2*i+1)*g.fieldLen:], g.fieldLen)
			if off > math.MaxUint32 {
				return corrupt("function %d is described at %#x", i, off)
			}
			g.offs[i] = uint32(off)
		}
	}
	return nil
}

// read fills b from an offset in the table.
func (g *goFuncs) read(b []byte, at uint64) error {
	if at > g.size || uint64(len(b)) > g.size-at {
		return corrupt("%d bytes at %#x of a function table of %d bytes", len(b), at, g.size)
	}
	return g.in.ReadFull(b, g.off+FileOffset(at))
}

// readString reads a string that ends with a NUL.
func (g *goFuncs) readString(at uint64) (string, error) {
	if at >= g.size {
		return "", corrupt("string at %#x of a function table of %d bytes", at, g.size)
	}
	var small [128]byte
	b := small[:min(uint64(len(small)), g.size-at)]
	if err := g.read(b, at); err != nil {
		return "", err
	}
	if bytes.IndexByte(b, 0) < 0 && len(b) == len(small) {
		b = make([]byte, min(maxName, g.size-at))
		if err := g.read(b, at); err != nil {
			return "", err
		}
	}
	return string(cut(b)), nil
}

// goFunc is a function's description (_func of runtime/runtime2.go).
type goFunc struct {
	entry     VirtAddr
	size      uint32 // to the next function, padding included
	name      uint32
	pcsp      uint32
	pcfile    uint32
	pcln      uint32
	cu        uint32
	inlIndex  uint32 // table of indices in the inline tree, 0 if there is none
	inlTree   uint64 // where the tree is: an offset from go:func.*, or an address
	hasInline bool
}

// Indices in pcdata and funcdata, from internal/abi/symtab.go. Before Go 1.12 they
// were others, and the number of funcdata had four bytes, of which the last, zero, is
// taken for it here: inlined functions of such programs are not told.
const (
	pcdataInlTreeIndex = 2
	funcdataInlTree    = 3
	funcdataInlTree12  = 4 // Go 1.12 to 1.15
	maxFuncData        = 64
)

// describe reads the description of function i.
func (g *goFuncs) describe(i int) (goFunc, error) {
	f := goFunc{entry: g.base + VirtAddr(g.starts[i]), size: g.starts[i+1] - g.starts[i]}
	at := g.funcAt + uint64(g.offs[i])
	n := g.fixedLen()
	// Most descriptions fit, with what follows them, in one read.
	var buf [160]byte
	b := buf[:]
	if at < g.size {
		b = b[:min(uint64(len(b)), g.size-at)]
	}
	if len(b) < n {
		return f, corrupt("function %d is described at %#x of %#x", i, at, g.size)
	}
	if err := g.read(b, at); err != nil {
		return f, err
	}
	first := g.ptr
	if g.version >= go118 {
		first = 4
	}
	w := func(k int) uint32 { return le.Uint32(b[first+4*k:]) } // nameOff is word 0
	entry := pointer(b, first)
	if want := uint64(g.starts[i]); entry != want && (g.version >= go118 || entry != uint64(f.entry)) {
		return f, corrupt("function %d: its description is that of another", i)
	}
	f.name, f.pcsp, f.pcfile, f.pcln = w(0), w(3), w(4), w(5)
	pcdata := w(6)
	funcdata := uint32(b[n-1])
	inlTree := uint32(funcdataInlTree)
	if g.version == go12 {
		inlTree = funcdataInlTree12
	} else {
		f.cu = w(7)
	}
	if pcdata <= pcdataInlTreeIndex || funcdata <= inlTree || pcdata > maxFuncData {
		return f, nil
	}
	// pcdata [n]uint32, then funcdata [n]uint32, before Go 1.18 [n]uintptr and aligned.
	width := 4
	fdAt := uint64(n) + 4*uint64(pcdata)
	if g.version < go118 {
		width = g.ptr
		if abs := uint64(g.addr) + at + fdAt; abs%uint64(width) != 0 {
			fdAt += uint64(width) - abs%uint64(width)
		}
	}
	indexAt, treeAt := uint64(n)+4*pcdataInlTreeIndex, fdAt+uint64(inlTree)*uint64(width)
	if treeAt+uint64(width) > uint64(len(b)) {
		b = make([]byte, treeAt+uint64(width))
		if err := g.read(b, at); err != nil {
			return f, err
		}
	}
	f.inlIndex = le.Uint32(b[indexAt:])
	f.inlTree = pointer(b[treeAt:], width)
	if g.version >= go118 {
		f.hasInline = f.inlIndex != 0 && f.inlTree != math.MaxUint32
	} else {
		f.hasInline = f.inlIndex != 0 && f.inlTree != 0
	}
	return f, nil
}

// fixedLen is the length of the part of a description that all functions have.
func (g *goFuncs) fixedLen() int {
	switch g.version {
	case go12:
		return g.ptr + 8*4 // up to nfuncdata
	case go116:
		return g.ptr + 9*4
	case go118:
		return 10 * 4
	default:
		return 11 * 4
	}
}

// inlLen is the length of an entry of an inline tree (runtime/symtabinl.go).
func (g *goFuncs) inlLen() int {
	if g.version < go120 {
		return 20
	}
	return 16
}

// inlinedCall is an entry of an inline tree.
type inlinedCall struct {
	name     uint32
	parentPC uint32 // an instruction at the call site, from the function's entry
}

// parseInlined reads an entry. False if it cannot be one: its padding is not zero.
func (g *goFuncs) parseInlined(b []byte) (inlinedCall, bool) {
	if g.version < go120 { // parent int16, funcID, _ byte; file, line, func, parentPc int32
		return inlinedCall{name: le.Uint32(b[12:]), parentPC: le.Uint32(b[16:])}, b[3] == 0
	}
	// funcID byte, _ [3]byte; nameOff, parentPc, startLine int32
	return inlinedCall{name: le.Uint32(b[4:]), parentPC: le.Uint32(b[8:])}, b[1] == 0 && b[2] == 0 && b[3] == 0
}

// inCode says whether all functions lie in an executable segment.
func (g *goFuncs) inCode(lay layout) bool {
	at, _, ok := lay.ofAddr(g.base + VirtAddr(g.starts[0]))
	end, _, ok2 := lay.ofAddr(g.base + VirtAddr(g.starts[len(g.starts)-1]) - 1)
	return ok && ok2 && end >= at
}

// simplifyGo replaces type arguments with "...", as runtime.Frame does.
func simplifyGo(name string) string {
	i := strings.IndexByte(name, '[')
	j := strings.LastIndexByte(name, ']')
	if i < 0 || j <= i {
		return name
	}
	return name[:i] + "[...]" + name[j+1:]
}
