package symtab

import (
	"bytes"
	"strconv"
)

// moduleRange is where a kernel module lies.
type moduleRange struct{ start, size uint64 }

// moduleEnds reads the places of modules from /proc/modules. A module may lie in
// several pieces; the kernel tells the first and the size of all. An unreadable
// list gives none: then only the next symbol ends a function.
func moduleEnds(procfs string) map[string]moduleRange {
	b, err := readModules(procfs)
	if err != nil {
		return nil
	}
	out := map[string]moduleRange{}
	eachModule(b, func(f [][]byte) {
		size, err1 := strconv.ParseUint(string(f[1]), 10, 64)
		start, err2 := strconv.ParseUint(string(bytes.TrimPrefix(f[5], []byte("0x"))), 16, 64)
		if err1 == nil && err2 == nil && start != 0 {
			out[string(f[0])] = moduleRange{start, size}
		}
	})
	return out
}

// loadedModules keeps what tells modules apart: name, size and address. The rest of
// a line changes with every use. Format: proc(5), /proc/modules: name, size,
// users, dependencies, state, address.
func loadedModules(b []byte) []byte {
	var out []byte
	eachModule(b, func(f [][]byte) {
		for _, k := range []int{0, 1, 4, 5} {
			out = append(append(out, f[k]...), ' ')
		}
		out = append(out, '\n')
	})
	return out
}

func eachModule(b []byte, fn func(fields [][]byte)) {
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) >= 6 {
			fn(f)
		}
	}
}
