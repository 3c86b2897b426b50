package unwind

import (
	"debug/elf"

	"github.com/spanflame/spanflame/internal/elffile"
)

// startContext is the code of glibc's __start_context, to which the function of a context
// that makecontext made returns; -1 stands for any byte. Its call frame information says
// that somebody called it. Source: sysdeps/unix/sysv/linux/x86_64/__start_context.S.
var startContext = []int16{
	0x48, 0x89, 0xdc, // mov %rbx,%rsp
	0x48, 0x8b, 0x3c, 0x24, // mov (%rsp),%rdi
	0x48, 0x85, 0xff, // test %rdi,%rdi
	0x74, 0x08, // je to the call of exit
	0xe8, -1, -1, -1, -1, // call __setcontext
	0x48, 0x89, 0xc7, // mov %rax,%rdi
	0xe8, -1, -1, -1, -1, // call exit
	0xf4, // hlt
}

// endBranch is endbr64, with which functions begin that were built for indirect branch
// tracking.
var endBranch = []int16{0xf3, 0x0f, 0x1e, 0xfa}

// markContexts ends stacks at __start_context. It is not called but returned to: who looks
// a return address up asks for the byte before its first instruction, so that one belongs
// to it. If it is the last one of a function's call that does not return, which in glibc
// is makecontext's of __stack_chk_fail, then that call's stack ends there, too.
// The entries must be sorted.
func (r *reader) markContexts() {
	if r.file.Machine != elf.EM_X86_64 {
		return
	}
	made := int32(-1)
	for i := range r.fdes {
		d := &r.fdes[i]
		if !isStartContext(r.file, d) {
			continue
		}
		if made < 0 {
			made = int32(len(r.cies))
			program := []byte{opUndefined, r.arch.ra}
			r.cies = append(r.cies, cie{codeAlign: 1, signal: true, program: program, section: &section{}})
		}
		if i > 0 && r.fdes[i-1].end == d.start && r.fdes[i-1].start < d.start-1 {
			r.fdes[i-1].end--
		}
		d.start--
		d.cie, d.program, d.programEnd = made, 0, 0
	}
}

func isStartContext(f *elffile.File, d *fde) bool {
	n := len(startContext)
	switch int(d.end - d.start) {
	case n, n + len(endBranch):
	default:
		return false
	}
	code := make([]byte, d.end-d.start)
	if f.ReadAddr(code, d.start) != nil {
		return false
	}
	return len(code) == n && isCode(code, startContext) ||
		len(code) > n && isCode(code, endBranch) && isCode(code[len(endBranch):], startContext)
}

func isCode(b []byte, want []int16) bool {
	for i, w := range want {
		if w >= 0 && b[i] != byte(w) {
			return false
		}
	}
	return true
}
