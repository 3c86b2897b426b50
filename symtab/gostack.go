package symtab

import (
	"debug/elf"
	"fmt"

	"github.com/spanflame/spanflame/internal/elffile"
)

// GoFrame says how far the stack pointer is from the return address, from an address
// of Go code on.
type GoFrame struct {
	Addr VirtAddr
	// Below is by how many bytes the stack pointer is below the return address; -1 if
	// that is not known, as in code that changes to another stack.
	Below int32
	// Top says that the function has no caller.
	Top bool
	// Apart says that the function leaves the frame pointer to its caller, and is not in
	// the chain of them.
	Apart bool
	// Injected says that the function is one that the runtime's handler of signals lets an
	// interrupted function call, before its next instruction.
	Injected bool
	// SignalReturn says that the kernel let a signal's handler return to here, whose
	// context is where the stack pointer is. It begins one byte before the code, which is
	// what is looked up for a return address.
	SignalReturn bool
}

// Functions of the runtime on x86-64 that its signal handlers begin and end in. The first
// is marked as one without a caller. Source: runtime/sys_linux_amd64.s.
const (
	goSigTramp  = "runtime.sigtramp"
	goSigReturn = "runtime.sigreturn__sigaction"

	maxSigReturn = 64 // bytes, with the padding
)

// Functions that the runtime injects calls of, as it knows them itself: internal/abi/symtab.go
// (FuncID), runtime/signal_unix.go (sigctxt.pushCall).
var goInjected = map[string]bool{"runtime.asyncPreempt": true, "runtime.sigpanic": true}

// Flags of functions: internal/abi/symtab.go.
const (
	goFlagTopFrame = 1
	goFlagSPWrite  = 2
	goFlagAsm      = 4
)

// GoFrames calls add for the Go functions of a program, in the order of addresses, and
// returns where the last one ends. It calls nothing and returns 0 for programs without,
// or from before Go 1.18. Source: runtime/symtab.go (pcsp), runtime/runtime2.go (_func).
func GoFrames(f *elffile.File, add func(GoFrame)) (end VirtAddr, err error) {
	at, off, size, ok := findGoTable(f)
	if !ok {
		return 0, nil
	}
	g, err := readGoFuncs(f, at, off, size)
	if err != nil {
		return 0, errGoTable(err)
	}
	if g.version < go118 {
		return 0, nil
	}
	lay, err := newLayout(f)
	if err != nil {
		return 0, err
	}
	if _, err := g.locate(lay); err != nil {
		return 0, errGoTable(err)
	}
	funcs := window{g: g, b: make([]byte, 0, 64<<10)}
	values := window{g: g, b: make([]byte, 0, 1<<10)} // they are shared, and in no order
	n := g.fixedLen()
	left := maxGoFrames
	var known [256]bool // by the FuncID, which all functions but wrappers share with none
	for i := range g.offs {
		b, err := funcs.bytes(g.funcAt+uint64(g.offs[i]), n)
		if err != nil {
			return 0, errGoTable(err)
		}
		entry := g.base + VirtAddr(g.starts[i])
		name, pcsp, id, flags := le.Uint32(b[4:]), le.Uint32(b[16:]), b[n-4], b[n-3]
		apart, injected := false, false
		if id != 0 && !known[id] {
			known[id] = true
			s, _ := g.readString(g.nameAt + uint64(name))
			injected = goInjected[s]
		}
		switch {
		case le.Uint32(b) != g.starts[i]:
			return 0, errGoTable(corrupt("function %d: its description is that of another", i))
		case flags&goFlagTopFrame != 0:
			if s, _ := g.readString(g.nameAt + uint64(name)); s == goSigTramp && f.Machine == elf.EM_X86_64 {
				apart = true
				break
			}
			add(GoFrame{Addr: entry, Top: true})
			continue
		case flags&goFlagSPWrite != 0:
			s, _ := g.readString(g.nameAt + uint64(name))
			add(GoFrame{Addr: entry, Below: -1, Top: s == "runtime.mcall"}) // which never returns to its caller
			continue
		case flags&goFlagAsm != 0 && g.starts[i+1]-g.starts[i] <= maxSigReturn && f.KnownAt(entry) == elffile.SignalReturn:
			if s, _ := g.readString(g.nameAt + uint64(name)); s == goSigReturn {
				add(GoFrame{Addr: entry - 1, SignalReturn: true})
				continue
			}
		}
		if err := g.eachDelta(&values, pcsp, &left, func(pc uint64, below int32) {
			add(GoFrame{Addr: entry + VirtAddr(pc), Below: below, Apart: apart, Injected: injected})
		}); err != nil {
			return 0, errGoTable(fmt.Errorf("function %d: %w", i, err))
		}
	}
	return g.base + VirtAddr(g.starts[len(g.offs)]), nil
}

// Bounds of what hostile tables may cost: places in all functions, and pieces read. A
// program of 100 MB has 600,000 places.
const (
	maxGoFrames = 8 << 20
	maxWindows  = 1 << 20
)

// eachDelta goes through a table of values by address. left is how many may still come.
func (g *goFuncs) eachDelta(r *window, table uint32, left *int, fn func(pc uint64, below int32)) error {
	if table == 0 {
		fn(0, -1)
		return nil
	}
	at := g.pcAt + uint64(table)
	val, pc := int32(-1), uint64(0)
	for step := 0; ; step++ {
		if *left--; *left < 0 {
			return ErrTableTooBig
		}
		d, err := r.varint(&at)
		if err != nil {
			return err
		}
		if d == 0 && step > 0 {
			return nil
		}
		val += int32(-(d & 1) ^ d>>1)
		fn(pc, max(val, -1))
		n, err := r.varint(&at)
		if err != nil {
			return err
		}
		pc += uint64(n) * uint64(g.quantum)
	}
}

// window reads a function table in large pieces.
type window struct {
	g    *goFuncs
	from uint64
	b    []byte
	read int // pieces
}

// bytes returns n bytes from an offset in the table. They hold until the next call.
func (w *window) bytes(at uint64, n int) ([]byte, error) {
	if at < w.from || at+uint64(n) > w.from+uint64(len(w.b)) {
		if at >= w.g.size || uint64(n) > w.g.size-at {
			return nil, corrupt("%d bytes at %#x of a function table of %d bytes", n, at, w.g.size)
		}
		if w.read++; w.read > maxWindows {
			return nil, ErrTableTooBig
		}
		w.b = w.b[:min(uint64(cap(w.b)), w.g.size-at)]
		if err := w.g.read(w.b, at); err != nil {
			w.b = w.b[:0]
			return nil, err
		}
		w.from = at
	}
	return w.b[at-w.from:][:n], nil
}

func (w *window) varint(at *uint64) (uint32, error) {
	v := uint32(0)
	for shift := 0; shift < 35; shift += 7 {
		b, err := w.bytes(*at, 1)
		if err != nil {
			return 0, err
		}
		*at++
		v |= uint32(b[0]&0x7f) << shift
		if b[0]&0x80 == 0 {
			return v, nil
		}
	}
	return 0, corrupt("number of more than 32 bits")
}
