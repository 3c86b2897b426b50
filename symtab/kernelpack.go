package symtab

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/spanflame/spanflame/internal/elffile"
)

// kernelPacker takes the kernel's symbols in order of address, chooses one function
// for each address, finds how far it reaches, and packs it.
type kernelPacker struct {
	out     *kernelNames
	ends    []moduleRange // by module, as far as known
	byName  map[string]moduleRange
	started bool
	lowest  uint64 // the first address

	// The best function at the address that is being collected.
	best     kernelSymbol
	bestName []byte
	have     bool

	spans   []span // of the region that is being filled
	base    uint64 // where it begins
	scratch []byte // names of the block that is being filled
	packed  []byte
}

func newKernelPacker(ends map[string]moduleRange) *kernelPacker {
	p := &kernelPacker{
		out: &kernelNames{blocks: make([]byte, 0, 2<<20)}, byName: ends,
		ends: make([]moduleRange, 1), spans: make([]span, 0, 1<<17), scratch: make([]byte, 0, 16<<10),
	}
	p.out.cache.budget = &budget{}
	p.out.cache.budget.limit.Store(maxKernelNames)
	return p
}

// next takes a symbol whose address is not below that of the one before, unless
// flush and endRegion were called in between. name is copied.
func (p *kernelPacker) next(s *kernelSymbol, name []byte) error {
	if !p.started {
		p.started, p.lowest = true, s.addr
	}
	if p.have && s.addr != p.best.addr {
		if err := p.flush(s); err != nil {
			return err
		}
	}
	if s.function() && (!p.have || betterKernel(s.kind, name, p.best.kind, p.bestName)) {
		p.best, p.bestName, p.have = *s, append(p.bestName[:0], name...), true
	}
	return nil
}

// betterKernel says whether symbol a names an address better than b, which came
// first: global before weak before local, then fewer leading underscores ("_text"
// and "_stext" begin with one).
func betterKernel(kindA byte, a []byte, kindB byte, b []byte) bool {
	if x, y := kernelRank(kindA), kernelRank(kindB); x != y {
		return x > y
	}
	return len(a)-len(bytes.TrimLeft(a, "_")) < len(b)-len(bytes.TrimLeft(b, "_"))
}

func kernelRank(kind byte) int {
	switch kind {
	case 'T':
		return 2
	case 'W', 'w':
		return 1
	}
	return 0
}

const kernelPage = 4096

// size is how far a function reaches: to the next symbol, but not into another
// module nor over a gap where code ends.
func (p *kernelPacker) size(s, next *kernelSymbol, ends moduleRange) uint32 {
	const maxFunction = 1 << 20
	end := s.addr + maxFunction + 1
	if end < s.addr {
		end = 1<<64 - 1
	}
	if next != nil {
		end = min(end, next.addr)
	}
	if ends.start != 0 && s.addr >= ends.start && s.addr-ends.start < ends.size {
		end = min(end, ends.start+ends.size)
	}
	foreign := next == nil || next.module != s.module
	if end-s.addr > maxFunction || foreign && end-s.addr > kernelPage {
		// The last function before a gap ends in the page that it begins in, as far
		// as one can tell.
		end = s.addr | (kernelPage - 1)
	}
	return uint32(end - s.addr)
}

// flush packs the function that was collected; next is the symbol after it.
func (p *kernelPacker) flush(next *kernelSymbol) error {
	if !p.have {
		return nil
	}
	p.have = false
	s, n := &p.best, p.out
	size := p.size(s, next, p.rangeOf(s.module))
	if size == 0 {
		return nil
	}
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
	p.scratch = append(append(p.scratch, p.bestName...), 0)
	n.count++
	if n.count%namesPerBlock == 0 {
		p.endBlock()
	}
	return nil
}

// rangeOf is where a module lies; zero if not known.
func (p *kernelPacker) rangeOf(module uint16) moduleRange {
	if int(module) < len(p.ends) {
		return p.ends[module]
	}
	return moduleRange{}
}

func (p *kernelPacker) endBlock() {
	if len(p.scratch) == 0 {
		return
	}
	n := p.out
	n.blockAt = append(n.blockAt, uint32(len(n.blocks)))
	if need := s2.MaxEncodedLen(len(p.scratch)); len(p.packed) < need {
		p.packed = make([]byte, need)
	}
	n.blocks = append(n.blocks, s2.Encode(p.packed, p.scratch)...)
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
	slices.SortFunc(n.regions, func(a, b kernelRegion) int { return cmp.Compare(a.base, b.base) })
	n.blocks, n.blockAt, n.runs = slices.Clip(slices.Clone(n.blocks)), slices.Clone(n.blockAt), slices.Clone(n.runs)
}
