# Functions as glibc has them around __start_context, and some that only look like it.
	.text
	.globl _start
_start:
	.cfi_startproc
	.cfi_undefined rip
	hlt
	.cfi_endproc

	.macro start_context name, first=0x48
	.type \name, @function
\name:
	.cfi_startproc
	.byte \first, 0x89, 0xdc # mov %rbx,%rsp
	mov (%rsp), %rdi
	test %rdi, %rdi
	je 1f
	call nothing
	mov %rax, %rdi
1:	call nothing
	hlt
	.cfi_endproc
	.size \name, . - \name
	.endm

	.balign 16
	.type nothing, @function
nothing:
	.cfi_startproc
	ret
	.cfi_endproc
	.size nothing, . - nothing

	.balign 16
	start_context behind_padding

	# As makecontext: the call at its end does not return.
	.balign 16
	.type caller, @function
caller:
	.cfi_startproc
	sub $24, %rsp
	.cfi_def_cfa_offset 32
	.skip 7, 0x90
	call nothing
	.cfi_endproc
	.size caller, . - caller
	start_context behind_call

	.balign 16
	start_context other_register, 0x4c
