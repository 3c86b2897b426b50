# Call frame instructions that compilers do not write. x86-64, no library. The numbers
# are those of DWARF 5, 7.24.
	.macro	func name
	.globl	\name
	.type	\name, @function
\name:
	.endm

	.text
	.p2align 6
	func	_start		# nothing describes it
	xor	%ebp, %ebp
	call	signed
	hlt
	.size	_start, .-_start
	.p2align 6
	.fill	64, 1, 0x90

	func	signed
	.cfi_startproc
	nop
	.cfi_escape 0x12, 7, 0x7e		# def_cfa_sf rsp, -2 * -8
	nop
	.cfi_escape 0x13, 0x7d			# def_cfa_offset_sf -3 * -8
	nop
	.cfi_escape 0x11, 6, 2			# offset_extended_sf rbp, 2 * -8
	nop
	.cfi_escape 0x11, 6, 0x7e		# above the CFA
	nop
	.cfi_escape 0x05, 6, 3			# offset_extended rbp, 3 * -8
	nop
	.cfi_escape 0x06, 6			# restore_extended rbp
	nop
	.cfi_escape 0x2e, 16			# GNU_args_size
	nop
	ret
	.cfi_endproc
	.size	signed, .-signed

	func	nested
	.cfi_startproc
	push	%rbp
	.cfi_adjust_cfa_offset 8
	.cfi_offset rbp, -16
	.cfi_remember_state
	mov	%rsp, %rbp
	.cfi_def_cfa_register rbp
	.cfi_remember_state
	.cfi_undefined rbp
	nop
	.cfi_restore_state
	nop
	.cfi_restore rbp
	nop
	.cfi_restore_state
	nop
	.cfi_same_value rbp
	ret
	.cfi_endproc
	.size	nested, .-nested

	func	registers
	.cfi_startproc
	nop
	.cfi_def_cfa rdi, 0
	nop
	.cfi_register rip, rdx
	nop
	.cfi_register rbp, r9
	nop
	.cfi_register rsp, r8			# the CFA is not the stack pointer
	nop
	.cfi_restore rsp
	nop
	.cfi_same_value rsp
	nop
	.cfi_restore rsp
	nop
	.cfi_def_cfa rsp, 8
	.cfi_escape 0x14, 7, 0			# val_offset rsp, 0
	nop
	.cfi_escape 0x14, 7, 1
	nop
	.cfi_escape 0x15, 7, 0			# val_offset_sf
	nop
	.cfi_escape 0x14, 6, 2			# val_offset rbp
	nop
	.cfi_escape 0x14, 16, 2			# val_offset rip
	nop
	.cfi_restore rip
	nop
	.cfi_undefined rip
	nop
	.cfi_escape 0x07, 0xc2, 0x00		# undefined register 66
	ret
	.cfi_endproc
	.size	registers, .-registers

	func	expressions
	.cfi_startproc
	nop
	.cfi_escape 0x0f, 2, 0x77, 16		# CFA: breg7 16
	nop
	.cfi_escape 0x0f, 3, 0x76, 0x78, 0x06	# breg6 -8, deref
	nop
	.cfi_escape 0x0f, 5, 0x77, 8, 0x06, 0x23, 16	# breg7 8, deref, plus_uconst 16
	nop
	.cfi_escape 0x10, 7, 2, 0x77, 8		# rsp: breg7 8, not what the CFA is
	nop
	.cfi_escape 0x0f, 3, 0x77, 8, 0x06	# the same
	nop
	.cfi_restore rsp
	.cfi_escape 0x0f, 3, 0x73, 8, 0x06	# breg3 8, deref: not supported
	nop
	.cfi_escape 0x0f, 4, 0x77, 8, 0x06, 0x06
	nop
	.cfi_escape 0x0f, 5, 0x77, 8, 0x08, 1, 0x22	# breg7 8, const1u 1, plus
	nop
	.cfi_def_cfa rsp, 16
	.cfi_escape 0x10, 6, 3, 0x76, 0xf0, 0x7e	# rbp: breg6 -144
	nop
	.cfi_escape 0x10, 6, 2, 0x77, 24	# rbp: breg7 24
	nop
	.cfi_escape 0x10, 6, 2, 0x73, 24	# rbp: breg3 24
	nop
	.cfi_escape 0x16, 6, 2, 0x77, 24	# rbp is breg7 24
	nop
	.cfi_escape 0x10, 16, 2, 0x76, 8	# rip: breg6 8
	nop
	.cfi_escape 0x10, 16, 2, 0x73, 8	# rip: breg3 8
	nop
	ret
	.cfi_endproc
	.size	expressions, .-expressions

	func	long_way
	.cfi_startproc
	.fill	70, 1, 0x90
	.cfi_def_cfa_offset 16			# advance_loc1
	.fill	300, 1, 0x90
	.cfi_def_cfa_offset 24			# advance_loc2
	.fill	70000, 1, 0x90
	.cfi_def_cfa_offset 32			# advance_loc4
	ret
	.cfi_endproc
	.size	long_way, .-long_way

	func	after_expression		# what libgcc does, and LLVM does not
	.cfi_startproc
	nop
	.cfi_def_cfa rsp, 56
	nop
	.cfi_escape 0x0f, 5, 0x77, 8, 0x06, 0x23, 16
	nop
	.cfi_def_cfa_register rsp
	ret
	.cfi_endproc
	.size	after_expression, .-after_expression

	func	handler
	.cfi_startproc
	.cfi_signal_frame
	nop
	.cfi_def_cfa_offset 80000
	ret
	.cfi_endproc
	.size	handler, .-handler
	.section .note.GNU-stack,"",@progbits
