package hotspot

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/spanflame/spanflame/internal/elffile"
	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/internal/targetmem"
)

// Bounds of the tables: OpenJDK 25 has 400 fields and 600 types.
const (
	maxEntries   = 16384
	maxEntrySize = 256
	maxTableName = 256
	maxNames     = 4 << 20 // bytes of the names of a library's dynamic symbols
)

// tables are what the virtual machine publishes of its structures for debuggers
// (src/hotspot/share/runtime/vmStructs.hpp).
type tables struct {
	fields map[string]field // by "Type::field"
	sizes  map[string]uint64
}

type field struct {
	offset  uint64 // in the structure
	address uint64 // of a static one
}

const prefix = "gHotSpotVM"

// readTables reads them from a process that has a libjvm.so mapped.
func readTables(p *madecode.Process, f madecode.File) (*tables, error) {
	symbols, err := exported(p, f)
	if err != nil {
		return nil, err
	}
	r := (&targetmem.Reader{Memory: p.Memory}).Cached()
	t := &tables{fields: map[string]field{}, sizes: map[string]uint64{}}
	word := func(name string) uint64 {
		v, werr := r.Uint64(symbols[prefix+name])
		if err == nil && werr != nil {
			err = fmt.Errorf("read %s: %w", name, werr)
		}
		return v
	}
	structs, stride := word("Structs"), word("StructEntryArrayStride")
	typeName, fieldName, isStatic := word("StructEntryTypeNameOffset"), word("StructEntryFieldNameOffset"), word("StructEntryIsStaticOffset")
	offset, address := word("StructEntryOffsetOffset"), word("StructEntryAddressOffset")
	types, typeStride := word("Types"), word("TypeEntryArrayStride")
	typeTypeName, typeSize := word("TypeEntryTypeNameOffset"), word("TypeEntrySizeOffset")
	if err != nil {
		return nil, err
	}
	if structs == 0 || types == 0 || stride == 0 {
		return nil, madecode.ErrNotYet // libjvm.so is not relocated yet
	}
	err = each(r, structs, stride, []uint64{typeName, fieldName, isStatic, offset, address}, func(e []byte) (bool, error) {
		u64 := func(at uint64) uint64 { return binary.LittleEndian.Uint64(e[at:]) }
		if u64(typeName) == 0 {
			return false, nil
		}
		of, err := r.Text(u64(typeName), maxTableName)
		if err != nil {
			return false, err
		}
		name, err := r.Text(u64(fieldName), maxTableName)
		if err != nil {
			return false, err
		}
		fd := field{offset: u64(offset)}
		if binary.LittleEndian.Uint32(e[isStatic:]) != 0 {
			fd = field{address: u64(address)}
		}
		t.fields[of+"::"+name] = fd
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the table of structures: %w", err)
	}
	err = each(r, types, typeStride, []uint64{typeTypeName, typeSize}, func(e []byte) (bool, error) {
		at := binary.LittleEndian.Uint64(e[typeTypeName:])
		if at == 0 {
			return false, nil
		}
		name, err := r.Text(at, maxTableName)
		t.sizes[name] = binary.LittleEndian.Uint64(e[typeSize:])
		return true, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the table of types: %w", err)
	}
	return t, nil
}

// each calls fn with each entry of a table, until it returns false. offsets are of what is
// read of an entry, at most a word each.
func each(r *targetmem.Reader, addr, stride uint64, offsets []uint64, fn func([]byte) (bool, error)) error {
	if stride > maxEntrySize {
		return fmt.Errorf("entries of %d bytes", stride)
	}
	for _, o := range offsets {
		if o > stride || o+8 > stride {
			return fmt.Errorf("offset %d in an entry of %d bytes", o, stride)
		}
	}
	b := make([]byte, stride)
	for range maxEntries {
		if err := r.Read(b, addr); err != nil {
			return err
		}
		more, err := fn(b)
		if err != nil || !more {
			return err
		}
		addr += stride
	}
	return errors.New("the table has no end")
}

// exported returns where the process has the symbols that begin with prefix.
func exported(p *madecode.Process, f madecode.File) (map[string]uint64, error) {
	file, err := p.Open(f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	return exportedIn(file, f)
}

func exportedIn(file *os.File, f madecode.File) (map[string]uint64, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	ef, err := elffile.Open(file, info.Size())
	if err != nil {
		return nil, err
	}
	start, ok := ef.AddrOf(elffile.FileOffset(f.Offset))
	dynamic := ef.SectionOfType(elf.SHT_DYNSYM)
	if !ok || dynamic == nil || !dynamic.HasData() {
		return nil, errors.New("it exports nothing")
	}
	strs := ef.LinkedStrings(dynamic)
	if strs == nil {
		return nil, errors.New("its symbols have no names")
	}
	names, err := ef.Data(strs, maxNames)
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	err = ef.EachSymbol(dynamic, nil, func(s elffile.Symbol) error {
		if s.Type() != elf.STT_OBJECT || uint64(s.Name) >= uint64(len(names)) || s.Section == elf.SHN_UNDEF {
			return nil
		}
		b := names[s.Name:]
		b = b[:min(len(b), 64)]
		for i, c := range b {
			if c == 0 {
				b = b[:i]
				break
			}
		}
		if len(b) > len(prefix) && string(b[:len(prefix)]) == prefix && len(out) < 256 {
			out[string(b)] = f.Start + uint64(s.Value) - uint64(start)
		}
		return nil
	})
	if err == nil && out[prefix+"Structs"] == 0 {
		err = errors.New("it does not export " + prefix + "Structs")
	}
	return out, err
}
