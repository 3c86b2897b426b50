/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Why a thread is off its CPU: from the scheduler's state, the system call that it is
 * in, and what the file is that it reads or writes.
 */
#ifndef SPANFLAME_WAIT_H
#define SPANFLAME_WAIT_H

#include "regs.h"

/* include/linux/sched.h; the bits are the same from 5.10 on. */
#define TASK_DEAD 0x80
/* Stopped by a signal (__TASK_STOPPED), by a debugger (__TASK_TRACED) or with all others
 * (TASK_FROZEN, from 6.1 on). */
#define TASK_HALTED (0x04 | 0x08 | 0x8000)

#define NO_SYSCALL (-1)

/* Numbers of system calls: arch/x86/entry/syscalls/syscall_64.tbl, and
 * include/uapi/asm-generic/unistd.h for arm64. Those from 424 on are the same. */
#if defined(__TARGET_ARCH_x86)
#define SYSCALL_OF(regs) ((s32)(regs)->orig_ax)
#define SYSCALL_ARG1(regs) ((regs)->di)
enum {
	NR_read = 0, NR_write = 1, NR_poll = 7, NR_pread64 = 17, NR_pwrite64 = 18, NR_readv = 19, NR_writev = 20,
	NR_select = 23, NR_nanosleep = 35, NR_sendfile = 40, NR_connect = 42, NR_accept = 43, NR_sendto = 44,
	NR_recvfrom = 45, NR_sendmsg = 46, NR_recvmsg = 47, NR_fsync = 74, NR_fdatasync = 75, NR_sync = 162,
	NR_futex = 202, NR_io_getevents = 208, NR_restart_syscall = 219, NR_clock_nanosleep = 230, NR_epoll_wait = 232, NR_pselect6 = 270,
	NR_ppoll = 271, NR_splice = 275, NR_sync_file_range = 277, NR_epoll_pwait = 281, NR_accept4 = 288,
	NR_preadv = 295, NR_pwritev = 296, NR_recvmmsg = 299, NR_syncfs = 306, NR_sendmmsg = 307,
};
#elif defined(__TARGET_ARCH_arm64)
#define SYSCALL_OF(regs) ((regs)->syscallno)
#define SYSCALL_ARG1(regs) ((regs)->orig_x0)
enum {
	NR_poll = -2, NR_select = -3, NR_epoll_wait = -4, /* there are none */
	NR_io_getevents = 4, NR_epoll_pwait = 22, NR_read = 63, NR_write = 64, NR_readv = 65, NR_writev = 66,
	NR_pread64 = 67, NR_pwrite64 = 68, NR_preadv = 69, NR_pwritev = 70, NR_sendfile = 71, NR_pselect6 = 72,
	NR_ppoll = 73, NR_splice = 76, NR_sync = 81, NR_fsync = 82, NR_fdatasync = 83, NR_sync_file_range = 84,
	NR_futex = 98, NR_nanosleep = 101, NR_clock_nanosleep = 115, NR_restart_syscall = 128, NR_accept = 202, NR_connect = 203,
	NR_sendto = 206, NR_recvfrom = 207, NR_sendmsg = 211, NR_recvmsg = 212, NR_accept4 = 242, NR_recvmmsg = 243,
	NR_syncfs = 267, NR_sendmmsg = 269,
};
#endif
enum {
	NR_io_uring_enter = 426, NR_epoll_pwait2 = 441, NR_futex_waitv = 449, NR_futex_wait = 455,
};

static __always_inline u32 state_of(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return ((struct task_struct___old *)task)->state;
}

/* For how long a thread has been on a run queue that is about to run, ns: kernel/sched/stats.h
 * sets when that began, and core.c the queue's clock before each switch. */
static __always_inline u64 queued_for(struct task_struct *task)
{
	u64 since = task->sched_info.last_queued, now = task->se.cfs_rq->rq->clock;

	return since && now > since ? now - since : 0;
}

static __always_inline bool has_queued(struct task_struct *task)
{
	struct cfs_rq *cfs = 0;

	return bpf_core_field_exists(task->sched_info.last_queued) && bpf_core_field_exists(task->se.cfs_rq) &&
	       bpf_core_field_exists(cfs->rq);
}

/* What a thread waits for that reads or writes a descriptor. */
static __always_inline enum wait_cause wait_for_file(struct task_struct *task, u64 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files, *file = 0;
	u16 mode;

	if (!table || fd >= BPF_CORE_READ(table, max_fds))
		return WAIT_OTHER;
	files = BPF_CORE_READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), &files[fd]) || !file)
		return WAIT_OTHER;
	mode = BPF_CORE_READ(file, f_inode, i_mode);
	switch (mode & 0170000) { /* S_IFMT, include/uapi/linux/stat.h */
	case 0140000:
		return WAIT_NETWORK;
	case 0010000:
		return WAIT_PIPE;
	case 0100000:
	case 0060000:
		return WAIT_DISK;
	}
	return WAIT_OTHER;
}

/* Whether a thread is frozen with its cgroup (version 2): its state is that of a sleeper. */
static __always_inline bool is_frozen(struct task_struct *task)
{
	return bpf_core_field_exists(task->frozen) && BPF_CORE_READ_BITFIELD_PROBED(task, frozen);
}

/* Why a thread sleeps, whose user registers are given; halted: it was stopped, in whatever
 * system call. */
static __always_inline enum wait_cause wait_cause_of(struct task_struct *task, struct pt_regs *regs, enum cpu_mode mode, bool halted)
{
	s32 nr = SYSCALL_OF(regs);

	if (halted || task->flags & PF_EXITING || is_frozen(task))
		return WAIT_OTHER;
	if (nr == NO_SYSCALL)
		return WAIT_PAGE_FAULT;
	if (BPF_CORE_READ_BITFIELD_PROBED(task, in_iowait))
		return WAIT_DISK;
	if (mode != MODE_USER64)
		return WAIT_OTHER; /* its numbers are others */
	switch (nr) {
	case NR_futex:
	case NR_futex_waitv:
	case NR_futex_wait:
		return WAIT_LOCK;
	case NR_nanosleep:
	case NR_clock_nanosleep:
		return WAIT_SLEEP;
	case NR_poll:
	case NR_ppoll:
	case NR_select:
	case NR_pselect6:
	case NR_epoll_wait:
	case NR_epoll_pwait:
	case NR_epoll_pwait2:
	case NR_io_getevents:
	case NR_io_uring_enter:
		return WAIT_POLL;
	case NR_restart_syscall:
		return WAIT_RESTARTED;
	case NR_connect:
	case NR_accept:
	case NR_accept4:
	case NR_sendto:
	case NR_recvfrom:
	case NR_sendmsg:
	case NR_recvmsg:
	case NR_sendmmsg:
	case NR_recvmmsg:
		return WAIT_NETWORK;
	case NR_fsync:
	case NR_fdatasync:
	case NR_sync:
	case NR_syncfs:
	case NR_sync_file_range:
		return WAIT_DISK;
	case NR_read:
	case NR_write:
	case NR_readv:
	case NR_writev:
	case NR_pread64:
	case NR_pwrite64:
	case NR_preadv:
	case NR_pwritev:
	case NR_sendfile:
	case NR_splice:
		return wait_for_file(task, SYSCALL_ARG1(regs));
	}
	return WAIT_OTHER;
}

#endif
