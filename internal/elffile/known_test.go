package elffile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"
)

// codeFile is a file whose only segment, at 0x1000, is code.
func codeFile(t *testing.T, machine elf.Machine, code []byte) *File {
	t.Helper()
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = 2, 1, 1
	n := uint64(len(code))
	load := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: 5, Off: 120, Vaddr: 0x1000, Filesz: n, Memsz: n}
	for _, v := range []any{h, load, code} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestKnownFunctions(t *testing.T) {
	endbr64 := []byte{0xf3, 0x0f, 0x1e, 0xfa}
	sigReturn := []byte{0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, 0x90}
	context := []byte{0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff, 0x74, 0x08,
		0xe8, 0x0f, 0xf6, 0xfe, 0xff, 0x48, 0x89, 0xc7, 0xe8, 0xa7, 0xcc, 0xfe, 0xff, 0xf4}
	other := bytes.Repeat([]byte{0x90}, 40)
	exit := slices.Replace(slices.Clone(sigReturn), 3, 4, 60)
	for _, tc := range []struct {
		name    string
		machine elf.Machine
		parts   [][]byte // the second is the function
		want    *KnownFunction
	}{
		{"signal return", elf.EM_X86_64, [][]byte{other, sigReturn, other}, SignalReturn},
		{"context", elf.EM_X86_64, [][]byte{other, context, other}, StartContext},
		{"with endbr64", elf.EM_X86_64, [][]byte{other, slices.Concat(endbr64, context), other}, StartContext},
		{"at the begin of the segment", elf.EM_X86_64, [][]byte{nil, context, other}, StartContext},
		{"at its end", elf.EM_X86_64, [][]byte{other, context, nil}, StartContext},
		{"nothing else", elf.EM_X86_64, [][]byte{nil, sigReturn, nil}, SignalReturn},
		{"another system call", elf.EM_X86_64, [][]byte{other, exit, other}, nil},
		{"cut off", elf.EM_X86_64, [][]byte{other, context[:25], nil}, nil},
		{"another machine", elf.EM_AARCH64, [][]byte{other, sigReturn, other}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := codeFile(t, tc.machine, slices.Concat(tc.parts...))
			start := 0x1000 + VirtAddr(len(tc.parts[0]))
			end := start + VirtAddr(len(tc.parts[1]))
			for at := VirtAddr(0xff0); at < end+60; at++ {
				want := tc.want
				if at < start || at >= end {
					want = nil
				}
				if got := f.KnownAt(at); got != want {
					t.Fatalf("%+d: %v, want %v", int64(at-start), got, want)
				}
				for _, k := range knownFunctions {
					may := k == tc.want && (at == start || at == start+VirtAddr(len(endBranch)))
					if is := k.Is(f, at, end); is && !may || !is && k == tc.want && at == start {
						t.Errorf("%+d: it is %s: %v", int64(at-start), k.Name, is)
					}
				}
			}
			if SignalReturn.Is(f, start, end+1) || StartContext.Is(f, start, end-1) {
				t.Error("it is known by a part, or with more")
			}
		})
	}
}
