package unwind

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"github.com/spanflame/spanflame/internal/elffile"
)

// frames builds call frame information, of .debug_frame or (eh) of .eh_frame.
type frames struct {
	b    []byte
	eh   bool
	wide bool // lengths of 64 bits
}

var le = binary.LittleEndian

// entry adds an entry and returns where it begins. id: as .debug_frame has it.
func (f *frames) entry(id uint64, isCIE bool, body ...byte) int {
	begin := len(f.b)
	at := begin + 4
	if f.wide {
		at += 8
	}
	var word []byte
	switch {
	case f.eh && isCIE:
		word = le.AppendUint32(nil, 0)
	case f.eh:
		word = le.AppendUint32(nil, uint32(uint64(at)-id))
	case f.wide:
		word = le.AppendUint64(nil, id)
	default:
		word = le.AppendUint32(nil, uint32(id))
	}
	body = append(word, body...)
	if f.wide {
		f.b = le.AppendUint64(append(f.b, 0xff, 0xff, 0xff, 0xff), uint64(len(body)))
	} else {
		f.b = le.AppendUint32(f.b, uint32(len(body)))
	}
	f.b = append(f.b, body...)
	return begin
}

// cie adds a CIE from behind its id on.
func (f *frames) cie(body ...byte) int { return f.entry(1<<64-1, true, body...) }

// plain adds a CIE as compilers write it: version 1, no augmentation, factors 1 and -8,
// rsp+8 and the return address at -8.
func (f *frames) plain(program ...byte) int {
	return f.cie(append([]byte{1, 0, 1, 0x78, 16, opDefCFA, 7, 8, opOffset | 16, 1}, program...)...)
}

func (f *frames) fde(cie int, start, size uint64, program ...byte) int {
	b := le.AppendUint64(le.AppendUint64(nil, start), size)
	return f.entry(uint64(cie), false, append(b, program...)...)
}

// evaluate makes the table of a section.
func (f *frames) evaluate(addr VirtAddr, opts Options) (*Table, error) {
	if opts.MaxRows == 0 {
		opts.MaxRows = defaultMaxRows
	}
	r := &reader{file: &elffile.File{}, arch: archs[elf.EM_X86_64], opts: opts}
	err := r.read(section{buf: buf{b: f.b}, addr: addr, eh: f.eh})
	t, terr := r.table()
	if err == nil {
		err = terr
	}
	return t, err
}

// program is an ELF file with .eh_frame, .eh_frame_hdr and .debug_frame. All of it is in
// one segment at 0x400000.
func program(ehFrame, debugFrame []byte, sections bool) []byte {
	const base, head = 0x400000, 64 + 2*56
	names := "\x00.eh_frame_hdr\x00.eh_frame\x00.debug_frame\x00.shstrtab\x00"
	header := []byte{1, 0x1b, 0x03, 0xff} // pcrel sdata4, udata4, no table
	header = le.AppendUint32(header, 8)   // to .eh_frame, which is 12 bytes on
	header = le.AppendUint32(header, 0)
	var body []byte
	var out bytes.Buffer
	headers := []elf.Section64{{}}
	name := uint32(1)
	for _, data := range [][]byte{header, ehFrame, debugFrame, []byte(names)} {
		off := uint64(head + len(body))
		headers = append(headers, elf.Section64{Name: name, Type: 1, Addr: base + off, Off: off, Size: uint64(len(data))})
		body = append(body, data...)
		name += uint32(bytes.IndexByte([]byte(names[name:]), 0)) + 1
	}
	size := uint64(head + len(body))
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Entry: 0x1000, Phoff: 64,
		Ehsize: 64, Phentsize: 56, Phnum: 2}
	if sections {
		h.Shoff, h.Shentsize, h.Shnum, h.Shstrndx = size, 64, uint16(len(headers)), uint16(len(headers)-1)
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = 2, 1, 1
	load := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: 5, Vaddr: base, Filesz: size, Memsz: size}
	eh := elf.Prog64{Type: uint32(elf.PT_GNU_EH_FRAME), Off: head, Vaddr: base + head, Filesz: 12, Memsz: 12}
	for _, v := range []any{h, load, eh, body, headers} {
		if err := binary.Write(&out, le, v); err != nil {
			panic(err)
		}
	}
	return out.Bytes()
}
