package unwind

import (
	"debug/elf"

	"github.com/spanflame/spanflame/internal/elffile"
)

// markContexts ends stacks at glibc's __start_context, of which the call frame information
// says that somebody called it. But it is returned to: who looks a return address up asks
// for the byte before its first instruction, so that one belongs to it. If it is the last
// one of a function's call that does not return, which in glibc can only be makecontext's
// of __stack_chk_fail, then that call's stack ends there, too.
// The entries must be sorted.
func (r *reader) markContexts() {
	if r.file.Machine != elf.EM_X86_64 {
		return
	}
	made := int32(-1)
	for i := range r.fdes {
		d := &r.fdes[i]
		if !elffile.StartContext.Is(r.file, d.start, d.end) {
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
