# What the HotSpot virtual machine has in assembler: functions without sizes, and labels
# that are symbols.
	.globl JNI_CreateJavaVM
	.type JNI_CreateJavaVM, @function
JNI_CreateJavaVM:
	.cfi_startproc
	ret
	.cfi_endproc
	.size JNI_CreateJavaVM, . - JNI_CreateJavaVM

	.balign 16
	.type SpinPause, @function
SpinPause:
	pause
	mov $1, %rax
	ret
	.balign 16
	.type _Copy_arrayof_conjoint_bytes, @function
_Copy_arrayof_conjoint_bytes:
	cmp %rdi, %rsi
	ja acb_CopyLeft
acb_CopyRight:
	mov (%rdi), %al
	ret
acb_CopyLeft:
	mov (%rsi), %al
	ret
	.balign 16
	.type other, @function
other:
	push %rbx
	pop %rbx
	ret
	.balign 16
	.type _Copy_conjoint_jlongs_atomic, @function
_Copy_conjoint_jlongs_atomic:
	ret
	.type last, @function
last:
	ret
	.section .rodata
	.skip 5 << 20
