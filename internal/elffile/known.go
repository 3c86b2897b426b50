package elffile

import "debug/elf"

// KnownFunction is a function that is known by its code: it is the same wherever it is, and
// stripped files do not name it.
type KnownFunction struct {
	Name string
	code []int16 // -1 stands for any byte
}

var (
	// SignalReturn is what the handlers of signals return to on x86-64; debuggers know it
	// by its code, too. Source: glibc, sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c;
	// gdb/amd64-linux-tdep.c (amd64_linux_sigtramp_start).
	SignalReturn = &KnownFunction{"__restore_rt", []int16{
		0x48, 0xc7, 0xc0, 15, 0, 0, 0, // mov $__NR_rt_sigreturn,%rax
		0x0f, 0x05, // syscall
		-1, // where a thread is that is in the system call
	}}
	// StartContext is what the function of a context returns to that glibc's makecontext
	// made. Source: sysdeps/unix/sysv/linux/x86_64/__start_context.S.
	StartContext = &KnownFunction{"__start_context", []int16{
		0x48, 0x89, 0xdc, // mov %rbx,%rsp
		0x48, 0x8b, 0x3c, 0x24, // mov (%rsp),%rdi
		0x48, 0x85, 0xff, // test %rdi,%rdi
		0x74, 0x08, // je to the call of exit
		0xe8, -1, -1, -1, -1, // call __setcontext
		0x48, 0x89, 0xc7, // mov %rax,%rdi
		0xe8, -1, -1, -1, -1, // call exit
		0xf4, // hlt
	}}
)

var knownFunctions = []*KnownFunction{SignalReturn, StartContext}

// endBranch is endbr64, with which functions begin that were built for indirect branch
// tracking.
var endBranch = []int16{0xf3, 0x0f, 0x1e, 0xfa}

// maxKnown is more than the code of any of them takes.
const maxKnown = 32

// Is says whether the code between two addresses is the function's. It reads only code of
// the function's length.
func (k *KnownFunction) Is(f *File, start, end VirtAddr) bool {
	var b [maxKnown]byte
	n := uint64(end - start)
	if f.Machine != elf.EM_X86_64 || n != uint64(len(k.code)) && n != uint64(len(endBranch)+len(k.code)) {
		return false
	}
	return f.ReadAddr(b[:n], start) == nil && k.size(b[:n]) == int(n)
}

// size is how long the function is that begins where b does; 0 if it is another.
func (k *KnownFunction) size(b []byte) int {
	n := 0
	if begins(b, endBranch) {
		n = len(endBranch)
	}
	if !begins(b[n:], k.code) {
		return 0
	}
	return n + len(k.code)
}

// KnownAt is the known function that covers an address; nil if none does.
func (f *File) KnownAt(at VirtAddr) *KnownFunction {
	if f.Machine != elf.EM_X86_64 {
		return nil
	}
	for i := range f.Loads {
		l := &f.Loads[i]
		if at < l.Addr || uint64(at-l.Addr) >= l.FileLen {
			continue
		}
		before := min(maxKnown, at-l.Addr)
		after := min(maxKnown, l.FileLen-uint64(at-l.Addr))
		var b [2 * maxKnown]byte
		if f.ReadAddr(b[:uint64(before)+after], at-before) != nil {
			return nil
		}
		for _, k := range knownFunctions {
			for start := range before + 1 {
				if k.size(b[start:uint64(before)+after]) > int(before-start) {
					return k
				}
			}
		}
		return nil
	}
	return nil
}

func begins(b []byte, code []int16) bool {
	if len(b) < len(code) {
		return false
	}
	for i, c := range code {
		if c >= 0 && b[i] != byte(c) {
			return false
		}
	}
	return true
}
