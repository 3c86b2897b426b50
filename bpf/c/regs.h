/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the stack walkers need of a thread's registers, on each architecture. */
#ifndef SPANFLAME_REGS_H
#define SPANFLAME_REGS_H

struct user_regs {
	u64 ip;
	u64 sp;
	u64 fp;
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

static __always_inline void regs_of_ctx(struct bpf_perf_event_data *ctx, struct user_regs *r)
{
	r->ip = ctx->regs.ip;
	r->sp = ctx->regs.sp;
	r->fp = ctx->regs.bp;
}

static __always_inline enum cpu_mode regs_of_pt(struct pt_regs *regs, struct user_regs *r)
{
	struct pt_regs copy = {};

	if (bpf_probe_read_kernel(&copy, sizeof(copy), regs))
		return MODE_KERNEL;
	r->ip = copy.ip;
	r->sp = copy.sp;
	r->fp = copy.bp;
	return mode_of_cs(copy.cs);
}

/* Where task_pt_regs() is on kernels without the helper (before 5.15): at the
 * top of a 16 KiB kernel stack, arch/x86/include/asm/processor.h. */
#define KERNEL_STACK_SIZE 16384
#define PT_REGS_BELOW_TOP sizeof(struct pt_regs)
#define STRIP_POINTER(a) (a)

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

static __always_inline void regs_of_ctx(struct bpf_perf_event_data *ctx, struct user_regs *r)
{
	r->ip = ctx->regs.pc;
	r->sp = ctx->regs.sp;
	r->fp = ctx->regs.regs[29];
}

static __always_inline enum cpu_mode regs_of_pt(struct pt_regs *regs, struct user_regs *r)
{
	struct user_pt_regs copy = {};

	if (bpf_probe_read_kernel(&copy, sizeof(copy), regs))
		return MODE_KERNEL;
	r->ip = copy.pc;
	r->sp = copy.sp;
	r->fp = copy.regs[29];
	return mode_of_pstate(copy.pstate);
}

/* arch/arm64/include/asm/memory.h (4 KiB pages), asm/ptrace.h of 5.10: the
 * registers take 336 bytes below the top. */
#define KERNEL_STACK_SIZE 16384
#define PT_REGS_BELOW_TOP 336
/* Pointer authentication puts its code above bit 47 of a return address. */
#define STRIP_POINTER(a) ((a) & ((1ULL << 48) - 1))

#endif

/* The registers with which the task entered the kernel. */
static __always_inline enum cpu_mode regs_of_task(struct user_regs *r)
{
	struct pt_regs *regs;

	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs)) {
		regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	} else {
		struct task_struct *task = (struct task_struct *)bpf_get_current_task();
		void *stack = BPF_CORE_READ(task, stack);

		if (!stack)
			return MODE_KERNEL;
		regs = stack + KERNEL_STACK_SIZE - PT_REGS_BELOW_TOP;
	}
	return regs_of_pt(regs, r);
}

#endif
