package symtab

import (
	"debug/elf"
	"sort"
	"sync"

	"github.com/spanflame/spanflame/internal/elffile"
)

// pltTable names the stubs of the procedure linkage table, "name@plt": symbol tables do
// not have them. Format: System V psABI x86-64, 5.2; each stub jumps through the slot that
// the dynamic linker fills, which a relocation ties to the name.
// It is read when a place is asked for that no symbol names.
type pltTable struct {
	file     *elffile.File
	sections map[string]elffile.Section // the file's headers are forgotten
	strs     elffile.Section            // names of .dynsym
	demangle func(string) string

	once  sync.Once
	stubs []pltStub
	names []string
}

type pltStub struct {
	addr VirtAddr
	size uint32
	name uint32 // index
}

const (
	maxPLT         = 4 << 20 // bytes of a section of stubs, or of relocations
	relaEntry      = 24
	relocGlobDat   = 6 // R_X86_64_GLOB_DAT
	relocJumpSlot  = 7 // R_X86_64_JUMP_SLOT
	symbolEntry    = 24
	maxStubSymbols = 1 << 17
)

// newPLT prepares the stubs of a program; nil if it has none that are understood.
func newPLT(f *elffile.File, demangle func(string) string) *pltTable {
	if f.Machine != elf.EM_X86_64 || f.Section(".plt") == nil && f.Section(".plt.got") == nil {
		return nil
	}
	t := &pltTable{file: f, sections: map[string]elffile.Section{}, demangle: demangle}
	for _, name := range []string{".plt", ".plt.sec", ".plt.got", ".rela.plt", ".rela.dyn"} {
		if s := f.Section(name); s != nil && s.HasData() {
			t.sections[name] = *s
		}
	}
	dyn := f.SectionOfType(elf.SHT_DYNSYM)
	if dyn == nil {
		return nil
	}
	strs := f.LinkedStrings(dyn)
	if strs == nil {
		return nil
	}
	t.sections[".dynsym"], t.strs = *dyn, *strs
	return t
}

// data is a section's content, nil if it cannot be had.
func (t *pltTable) data(name string) []byte {
	s, ok := t.sections[name]
	if !ok {
		return nil
	}
	b, err := t.file.Data(&s, maxPLT)
	if err != nil {
		return nil
	}
	return b
}

// load reads the stubs.
func (t *pltTable) load() {
	slots := t.slots()
	index := map[string]uint32{}
	for _, name := range []string{".plt", ".plt.sec", ".plt.got"} {
		s, b := t.sections[name], t.data(name)
		step := 16
		if s.EntSize == 8 {
			step = 8
		}
		for at := 0; at+step <= len(b) && len(slots) > 0; at += step {
			// jmp *displacement(%rip), behind an endbr64 or a bnd prefix or neither.
			for i := at; i+6 <= at+step; i++ {
				if b[i] != 0xff || b[i+1] != 0x25 {
					continue
				}
				next := uint64(s.Addr) + uint64(i) + 6
				if sym := slots[next+uint64(int64(int32(le.Uint32(b[i+2:]))))]; sym != "" {
					n, ok := index[sym]
					if !ok {
						n = uint32(len(t.names))
						t.names = append(t.names, t.demangle(sym)+"@plt")
						index[sym] = n
					}
					t.stubs = append(t.stubs, pltStub{s.Addr + VirtAddr(at), uint32(step), n})
				}
				break
			}
		}
	}
	sort.Slice(t.stubs, func(i, j int) bool { return t.stubs[i].addr < t.stubs[j].addr })
}

// slots are the names of the functions whose addresses the dynamic linker puts into
// slots, by the slot's address.
func (t *pltTable) slots() map[uint64]string {
	symbols := t.data(".dynsym")
	names, err := t.file.Data(&t.strs, maxPLT)
	if err != nil {
		return nil
	}
	slots := map[uint64]string{}
	for _, section := range []string{".rela.plt", ".rela.dyn"} {
		for b := t.data(section); len(b) >= relaEntry && len(slots) < maxStubSymbols; b = b[relaEntry:] {
			info := le.Uint64(b[8:])
			at := (info >> 32) * symbolEntry
			if kind := uint32(info); kind != relocGlobDat && kind != relocJumpSlot || at+symbolEntry > uint64(len(symbols)) {
				continue
			}
			if name := uint64(le.Uint32(symbols[at:])); name > 0 && name < uint64(len(names)) {
				slots[le.Uint64(b)] = string(cut(names[name:min(uint64(len(names)), name+maxName)]))
			}
		}
	}
	return slots
}

func (t *pltTable) frames(p position) ([]Frame, error) {
	t.once.Do(t.load)
	i := sort.Search(len(t.stubs), func(i int) bool { return t.stubs[i].addr > p.addr }) - 1
	if i < 0 || uint64(p.addr-t.stubs[i].addr) >= uint64(t.stubs[i].size) {
		return nil, nil
	}
	return []Frame{{Name: t.names[t.stubs[i].name]}}, nil
}

func (t *pltTable) count() int { return 0 } // they are no functions

// bytes is about the memory; the names of a program's stubs are few.
func (t *pltTable) bytes() int64 { return 1024 }

func (t *pltTable) openFiles() int { return 0 }

func (t *pltTable) close() {}
