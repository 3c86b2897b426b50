/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Registers of arm64: arch/arm64/include/uapi/asm/ptrace.h and asm/ptrace.h. The last two of pt_regs are as
 * of Linux 5.10; 6.16 has only moved what follows them. */

struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};

struct pt_regs {
	union {
		struct user_pt_regs user_regs;
		struct {
			u64 regs[31];
			u64 sp;
			u64 pc;
			u64 pstate;
		};
	};
	u64 orig_x0;
	s32 syscallno;
};

typedef struct user_pt_regs bpf_user_pt_regs_t;
