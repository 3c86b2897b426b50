/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the stack walkers need of a thread's registers, on each architecture. */
#ifndef SPANFLAME_REGS_H
#define SPANFLAME_REGS_H


#if defined(__TARGET_ARCH_x86)
#define DWARF_REGS 16
#elif defined(__TARGET_ARCH_arm64)
#define DWARF_REGS 31
#endif

#define WINDOW_WORDS 32 /* 256 bytes hold the frames of some five functions */

/* A frame, and where the code of the last one was found. */
struct walker {
	u64 ip, sp, fp;
	u64 hash;
	u64 map_start, map_end, map_bias; /* map_end 0: nothing is remembered */
	u32 root, levels, base, state;    /* of the file there */
	u32 generation;
	u32 tgid, exec_id;
	u64 start; /* of the process, in ticks */
	u64 regs[DWARF_REGS]; /* of the innermost frame */
	bool exact; /* ip is that of the next instruction, not one to return to */
	u8 capture_slot, capture_deref; /* as in the process's space */
	bool capture_marked;
	u32 captured; /* words that were kept beside the frames */
	u64 window_at; /* address of the window, a multiple of 8; 0: there is none */
	u64 window[WINDOW_WORDS]; /* of the stack: each read is a call */
	u64 text, text_bytes; /* code of an interpreter; 0 bytes: there is none */
	u64 eval[PYTHON_EVALS];
	u64 eval_bytes[PYTHON_EVALS];
	bool interpreted; /* a frame was in it */
	u32 evals; /* frames that were in the function that runs Python code */
	u32 evals_wanted; /* when there are so many, all that is wanted is there */
};

enum cpu_mode {
	MODE_KERNEL = 0,
	MODE_USER64 = 1,
	MODE_USER32 = 2, /* 32-bit code: its frames have another shape */
};

#if defined(__TARGET_ARCH_x86)

#define USER_CS 0x33   /* __USER_CS, arch/x86/include/asm/segment.h */

static __always_inline enum cpu_mode mode_of_cs(u64 cs)
{
	if ((cs & 3) != 3)
		return MODE_KERNEL;
	return (cs & 0xffff) == USER_CS ? MODE_USER64 : MODE_USER32;
}

static __always_inline enum cpu_mode mode_of_ctx(struct bpf_perf_event_data *ctx)
{
	return mode_of_cs(ctx->regs.cs);
}

static __always_inline enum cpu_mode mode_of_pt(struct pt_regs *regs)
{
	return mode_of_cs(regs->cs);
}

/* DWARF's numbers of the registers: System V psABI x86-64, figure 3.36. */
#define COPY_REGS(w, from)                                                          \
	do {                                                                        \
		(w)->ip = (from).ip;                                                \
		(w)->sp = (w)->regs[7] = (from).sp;                                 \
		(w)->fp = (w)->regs[6] = (from).bp;                                 \
		(w)->regs[0] = (from).ax;                                           \
		(w)->regs[1] = (from).dx;                                           \
		(w)->regs[2] = (from).cx;                                           \
		(w)->regs[3] = (from).bx;                                           \
		(w)->regs[4] = (from).si;                                           \
		(w)->regs[5] = (from).di;                                           \
		(w)->regs[8] = (from).r8;                                           \
		(w)->regs[9] = (from).r9;                                           \
		(w)->regs[10] = (from).r10;                                         \
		(w)->regs[11] = (from).r11;                                         \
		(w)->regs[12] = (from).r12;                                         \
		(w)->regs[13] = (from).r13;                                         \
		(w)->regs[14] = (from).r14;                                         \
		(w)->regs[15] = (from).r15;                                         \
	} while (0)
#define LINK_REGISTER(w) 0 /* there is none */

static __always_inline void regs_of_ctx(struct bpf_perf_event_data *ctx, struct walker *w)
{
	COPY_REGS(w, ctx->regs);
}

static __always_inline enum cpu_mode regs_of_pt(struct pt_regs *regs, struct walker *w)
{
	COPY_REGS(w, *regs);
	return mode_of_cs(regs->cs);
}

/* Where task_pt_regs() is on kernels without the helper (before 5.15): at the
 * top of a 16 KiB kernel stack, arch/x86/include/asm/processor.h. */
#define KERNEL_STACK_SIZE 16384
#define PT_REGS_BELOW_TOP sizeof(struct pt_regs)
#define STRIP_POINTER(a) (a)
#define PT_IP(regs) ((regs)->ip)
#define PT_SP(regs) ((regs)->sp)

#elif defined(__TARGET_ARCH_arm64)

#define PSR_MODE32_BIT 0x10 /* arch/arm64/include/uapi/asm/ptrace.h */
#define PSR_MODE_MASK 0x0f

static __always_inline enum cpu_mode mode_of_pstate(u64 pstate)
{
	if (pstate & PSR_MODE_MASK)
		return MODE_KERNEL;
	return pstate & PSR_MODE32_BIT ? MODE_USER32 : MODE_USER64;
}

static __always_inline enum cpu_mode mode_of_ctx(struct bpf_perf_event_data *ctx)
{
	return mode_of_pstate(ctx->regs.pstate);
}

static __always_inline enum cpu_mode mode_of_pt(struct pt_regs *regs)
{
	return mode_of_pstate(regs->pstate);
}

/* DWARF for the Arm 64-bit Architecture, 4.1: x0 to x30. */
#define COPY_REGS(w, from)                                                          \
	do {                                                                        \
		(w)->ip = (from).pc;                                                \
		(w)->sp = (from).sp;                                                \
		(w)->fp = (from).regs[29];                                          \
		_Pragma("unroll") for (int i = 0; i < DWARF_REGS; i++)              \
			(w)->regs[i] = (from).regs[i];                              \
	} while (0)
#define LINK_REGISTER(w) ((w)->regs[30])

static __always_inline void regs_of_ctx(struct bpf_perf_event_data *ctx, struct walker *w)
{
	COPY_REGS(w, ctx->regs);
}

static __always_inline enum cpu_mode regs_of_pt(struct pt_regs *regs, struct walker *w)
{
	COPY_REGS(w, *regs);
	return mode_of_pstate(regs->pstate);
}

/* arch/arm64/include/asm/memory.h (4 KiB pages), asm/ptrace.h of 5.10: the
 * registers take 336 bytes below the top. */
#define KERNEL_STACK_SIZE 16384
#define PT_REGS_BELOW_TOP 336
/* Pointer authentication puts its code above bit 47 of a return address. */
#define STRIP_POINTER(a) ((a) & ((1ULL << 48) - 1))
#define PT_IP(regs) ((regs)->pc)
#define PT_SP(regs) ((regs)->sp)

#endif

/* Copies the registers with which a task entered the kernel. False if they cannot be
 * read. */
static __always_inline bool read_pt_regs(struct task_struct *task, struct pt_regs *copy)
{
	void *from;

	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs)) {
		from = (void *)bpf_task_pt_regs(task);
	} else {
		from = BPF_CORE_READ(task, stack);
		if (!from)
			return false;
		from += KERNEL_STACK_SIZE - PT_REGS_BELOW_TOP;
	}
	return bpf_probe_read_kernel(copy, sizeof(*copy), from) == 0;
}

/* The registers with which the current task entered the kernel, by way of a copy: it would
 * be too much for the BPF stack of 512 bytes. */
static __always_inline enum cpu_mode regs_of_task(struct walker *w, struct pt_regs *copy)
{
	struct task_struct *task;

	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_get_current_task_btf))
		task = bpf_get_current_task_btf();
	else
		task = (struct task_struct *)bpf_get_current_task();
	return read_pt_regs(task, copy) ? regs_of_pt(copy, w) : MODE_KERNEL;
}

#endif
