package main

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
)

// writeSynthetic writes an ELF file with n functions of 16 to 300 bytes, whose
// symbols are in no order. The code itself is a hole.
func writeSynthetic(path string, n int) error {
	const base, header = 0x400000, 64 + 56
	r := rand.New(rand.NewPCG(5, 6))
	var strs strings.Builder
	strs.WriteByte(0)
	syms := make([]elf.Sym64, n)
	at := uint64(header)
	for i := range syms {
		size := 16 + r.Uint64N(285)
		syms[i] = elf.Sym64{Name: uint32(strs.Len()), Info: 0x12, Shndx: 1, Value: base + at, Size: size}
		fmt.Fprintf(&strs, "_ZN9synthetic8functionILi%dEEEvv\x00", i)
		at += (size + 15) &^ 15
	}
	r.Shuffle(n, func(i, j int) { syms[i], syms[j] = syms[j], syms[i] })
	names := "\x00.text\x00.symtab\x00.strtab\x00.shstrtab\x00"
	symAt := at
	strAt := symAt + uint64(n+1)*elf.Sym64Size
	namesAt := strAt + uint64(strs.Len())
	shAt := (namesAt + uint64(len(names)) + 7) &^ 7

	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: 64, Shoff: shAt,
		Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64, Shnum: 5, Shstrndx: 4}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	load := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Filesz: at, Memsz: at, Align: 4096}
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC | elf.SHF_EXECINSTR), Addr: base + header, Off: header, Size: at - header},
		{Name: 7, Type: uint32(elf.SHT_SYMTAB), Off: symAt, Size: strAt - symAt, Link: 3, Entsize: elf.Sym64Size},
		{Name: 15, Type: uint32(elf.SHT_STRTAB), Off: strAt, Size: namesAt - strAt},
		{Name: 23, Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: uint64(len(names))},
	}

	f, err := os.Create(path)
	if err != nil {
		return err
	}
	write := func(off uint64, parts ...any) {
		if err != nil {
			return
		}
		if _, err = f.Seek(int64(off), 0); err != nil {
			return
		}
		w := bufio.NewWriterSize(f, 1<<20)
		for _, p := range parts {
			if err = binary.Write(w, binary.LittleEndian, p); err != nil {
				return
			}
		}
		err = w.Flush()
	}
	write(0, h, load)
	write(symAt, elf.Sym64{}, syms, []byte(strs.String()), []byte(names))
	write(shAt, sections)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
