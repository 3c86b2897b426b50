package symtab

import (
	"bytes"
	"debug/elf"
	"fmt"
)

// From Go 1.18 on, the function table is relative to the start of Go's code, and
// the inline trees to go:func.*. The header of the table has the former no longer
// (Go 1.26), or not in position-independent files; with cgo it is not the start of
// .text either. What the running program itself goes by is its moduledata
// (runtime/symtab.go), so that is looked for, and checked against the function table
// the way the runtime checks it at its start.

// Fields of moduledata, in words.
const (
	mdHeader  = 0
	mdFuncTab = 16
	mdFuncLen = 17
	mdMinPC   = 20
	mdMaxPC   = 21
	mdText    = 22
	mdGofunc  = 36 // go:func.* is one of the words from here on; which, depends on the release
	mdWords   = 48
)

// locate finds the start of Go's code, and go:func.* (0 if not found), and checks them.
func (g *goFuncs) locate(lay layout) (gofunc VirtAddr, err error) {
	if g.version < go118 {
		if !g.inCode(lay) {
			return 0, corrupt("functions outside the code")
		}
		return 0, nil
	}
	if md := g.findModuledata(); md != nil {
		g.base = VirtAddr(md[mdText])
		if !g.inCode(lay) {
			return 0, corrupt("functions outside the code")
		}
		return g.findGofunc(md[mdGofunc:]), nil
	}
	return 0, g.guessText(lay)
}

// findModuledata returns the words of moduledata, or nil.
func (g *goFuncs) findModuledata() []uint64 {
	if s := g.in.Section(".go.module"); s != nil { // Go 1.26
		if md := g.moduledataAt(s.Addr, nil); md != nil {
			return md
		}
	}
	var md []uint64
	for i := range g.in.Sections {
		s := &g.in.Sections[i]
		if s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_WRITE == 0 || s.Compressed() {
			continue
		}
		_ = eachChunk(g.in, s, g.ptr, func(pos uint64, b []byte) bool { // unreadable: not found
			var want [8]byte
			le.PutUint64(want[:], uint64(g.addr))
			for i := 0; i+g.ptr <= len(b); i++ {
				k := bytes.Index(b[i:], want[:g.ptr])
				if k < 0 {
					break
				}
				if i += k; i%g.ptr == 0 {
					if md = g.moduledataAt(s.Addr+VirtAddr(pos)+VirtAddr(i), nil); md != nil {
						return false
					}
				}
			}
			return true
		})
		if md != nil {
			return md
		}
	}
	return g.relocatedModuledata()
}

// moduledataAt reads moduledata at an address and checks it as the runtime does
// (moduledataverify1). relocs are values that the loader writes over the file's.
func (g *goFuncs) moduledataAt(addr VirtAddr, relocs map[VirtAddr]uint64) []uint64 {
	raw := make([]byte, mdWords*g.ptr)
	if err := g.in.ReadAddr(raw, addr); err != nil {
		return nil
	}
	md := make([]uint64, mdWords)
	for i := range md {
		md[i] = pointer(raw[i*g.ptr:], g.ptr)
		if v, ok := relocs[addr+VirtAddr(i*g.ptr)]; ok {
			md[i] = v
		}
	}
	text, n := md[mdText], len(g.starts)-1
	if md[mdHeader] != uint64(g.addr) || md[mdFuncTab] != uint64(g.addr)+g.funcTab || md[mdFuncLen] != uint64(n+1) ||
		md[mdMinPC] != text+uint64(g.starts[0]) || md[mdMaxPC] != text+uint64(g.starts[n]) {
		return nil
	}
	return md
}

// relocatedModuledata finds moduledata by the relocations that fill it: linkers
// need not store the values in the file, too.
func (g *goFuncs) relocatedModuledata() []uint64 {
	relative := map[elf.Machine]uint64{
		elf.EM_X86_64: uint64(elf.R_X86_64_RELATIVE), elf.EM_AARCH64: uint64(elf.R_AARCH64_RELATIVE),
	}[g.in.Machine]
	s := g.in.Section(".rela.dyn")
	if s == nil || relative == 0 || g.ptr != 8 || s.Compressed() || !s.HasData() {
		return nil
	}
	each := func(fn func(addr VirtAddr, value uint64)) {
		_ = eachChunk(g.in, s, 24, func(_ uint64, b []byte) bool { // unreadable: not found
			for ; len(b) >= 24; b = b[24:] {
				if le.Uint64(b[8:]) == relative {
					fn(VirtAddr(le.Uint64(b)), le.Uint64(b[16:]))
				}
			}
			return true
		})
	}
	const maxCandidates = 16
	var candidates []VirtAddr
	each(func(addr VirtAddr, value uint64) {
		if value == uint64(g.addr) && len(candidates) < maxCandidates {
			candidates = append(candidates, addr)
		}
	})
	for _, c := range candidates {
		relocs := map[VirtAddr]uint64{}
		each(func(addr VirtAddr, value uint64) {
			if addr >= c && addr < c+mdWords*8 {
				relocs[addr] = value
			}
		})
		if md := g.moduledataAt(c, relocs); md != nil {
			return md
		}
	}
	return nil
}

// inlineSample is the place of a function's inline tree, to test a base address by.
type inlineSample struct {
	tree uint64
	size uint32
}

// inlineSamples describes up to want functions that have an inline tree.
func (g *goFuncs) inlineSamples(want int) (out []inlineSample) {
	const most = 4096 // functions looked at
	step := max(1, len(g.offs)/most)
	for i := 0; i < len(g.offs) && len(out) < want; i += step {
		if f, err := g.describe(i); err == nil && f.hasInline {
			out = append(out, inlineSample{f.inlTree, f.size})
		}
	}
	return out
}

// findGofunc chooses the word that is the base of the inline trees: the one for
// which all trees looked at make sense.
func (g *goFuncs) findGofunc(words []uint64) VirtAddr {
	samples := g.inlineSamples(32)
	if len(samples) == 0 {
		return 0
	}
	for _, w := range words {
		good := w != 0
		for _, s := range samples {
			if !good {
				break
			}
			good = g.plausibleInline(VirtAddr(w+s.tree), s.size)
		}
		if good {
			return VirtAddr(w)
		}
	}
	return 0
}

// plausibleInline says whether an inline tree may be at an address: its first entry
// is called from within the function and has a name that begins where one does.
func (g *goFuncs) plausibleInline(addr VirtAddr, size uint32) bool {
	var b [20]byte
	err := g.in.ReadAddr(b[:g.inlLen()], addr)
	if err != nil {
		return false
	}
	c, ok := g.parseInlined(b[:])
	if !ok || c.parentPC >= size {
		return false
	}
	var name [2]byte // the byte before the name, unless it is the first, and its own first
	if c.name == 0 {
		err = g.read(name[1:], g.nameAt)
	} else {
		err = g.read(name[:], g.nameAt+uint64(c.name)-1)
	}
	return err == nil && name[0] == 0 && name[1] > ' '
}

// guessText chooses the start of Go's code without moduledata: what the header says,
// or the start of .text, if the code there looks as it must.
func (g *goFuncs) guessText(lay layout) error {
	candidates := []VirtAddr{g.text}
	if s := g.in.Section(".text"); s != nil {
		candidates = append(candidates, s.Addr)
	}
	for _, c := range candidates {
		g.base = c
		if c != 0 && g.inCode(lay) && g.looksLikeCode() {
			return nil
		}
	}
	return corrupt("the start of Go's code is not to be found")
}

// looksLikeCode says whether many functions begin with the check of the stack's
// size that the compiler begins most functions with.
func (g *goFuncs) looksLikeCode() bool {
	prologues := map[elf.Machine][][]byte{
		elf.EM_X86_64:  {{0x49, 0x3b, 0x66, 0x10}, {0x4c, 0x8d, 0x64, 0x24}, {0x4c, 0x8d, 0xa4, 0x24}}, // cmp rsp, [r14+16]; lea r12, [rsp+…]
		elf.EM_AARCH64: {{0x90, 0x0b, 0x40, 0xf9}},                                                     // ldr x16, [x28, #16]
	}[g.in.Machine]
	const want = 256
	step := max(1, len(g.offs)/want)
	seen, good := 0, 0
	for i := 0; i < len(g.offs); i += step {
		var b [4]byte
		if g.in.ReadAddr(b[:], g.base+VirtAddr(g.starts[i])) != nil {
			return false
		}
		seen++
		for _, p := range prologues {
			if bytes.Equal(b[:], p) {
				good++
			}
		}
	}
	return seen >= 8 && good*3 >= seen
}

// errGoTable says what is wrong with a table.
func errGoTable(err error) error {
	return fmt.Errorf("read Go's function table: %w", err)
}
