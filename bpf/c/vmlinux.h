/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The kernel's types that the programs use, and no more. Every struct carries
 * preserve_access_index, so that the loader relocates each field access to the
 * running kernel (CO-RE): the order and the offsets here mean nothing, only the
 * names and the types of the fields do. Source: include/linux/{sched.h,
 * mm_types.h,sched/signal.h,fs.h,fdtable.h}, include/uapi/linux/bpf.h, 5.10 to 6.18.
 */
#ifndef SPANFLAME_VMLINUX_H
#define SPANFLAME_VMLINUX_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef int pid_t;
typedef _Bool bool;
enum { false = 0, true = 1 };

/* uapi/linux/bpf.h */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
};

enum {
	BPF_F_SKIP_FIELD_MASK = 255,
	BPF_F_USER_STACK = 256,
};

/* Flags of maps. */
enum {
	BPF_F_MMAPABLE = 1024,
};

/* The helpers whose presence is asked for with bpf_core_enum_value_exists. */
enum bpf_func_id {
	BPF_FUNC_get_current_task_btf = 158,
	BPF_FUNC_task_pt_regs = 175,
};

#if defined(__TARGET_ARCH_x86)
#include "vmlinux_x86.h"
#elif defined(__TARGET_ARCH_arm64)
#include "vmlinux_arm64.h"
#else
#error "unknown architecture: build with -D__TARGET_ARCH_x86 or -D__TARGET_ARCH_arm64"
#endif

/* uapi/linux/bpf_perf_event.h: the context of a perf_event program. Not
 * relocated: it is the stable interface that the verifier rewrites. */
struct bpf_perf_event_data {
	bpf_user_pt_regs_t regs;
	__u64 sample_period;
	__u64 addr;
};

/* uapi/linux/bpf.h: the context of a raw tracepoint. */
struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct mm_struct;

struct inode {
	unsigned short i_mode;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct signal_struct {
	atomic_t live;
};

/* The clock is sched_clock. */
struct rq {
	u64 clock;
};

struct cfs_rq {
	struct rq *rq; /* CONFIG_FAIR_GROUP_SCHED */
};

struct sched_entity {
	struct cfs_rq *cfs_rq; /* CONFIG_FAIR_GROUP_SCHED */
};

struct sched_info {
	unsigned long long last_queued; /* by the clock of its rq */
};

#if defined(__TARGET_ARCH_x86)
/* arch/x86/include/asm/processor.h */
struct thread_struct {
	unsigned long fsbase;
};
#endif

struct task_struct {
	unsigned int flags;
	unsigned int __state; /* from 5.14 on */
	unsigned int in_iowait : 1;
	unsigned int frozen : 1; /* CONFIG_CGROUPS */
	pid_t pid;
	pid_t tgid;
	void *stack;
	struct mm_struct *mm;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	u64 start_boottime;
	u64 self_exec_id;
	char comm[16];
	struct signal_struct *signal;
	struct files_struct *files;
	struct sched_entity se; /* of threads of all classes, as far as the CPU's rq goes */
	struct sched_info sched_info; /* CONFIG_SCHED_INFO */
#if defined(__TARGET_ARCH_x86)
	struct thread_struct thread;
#endif
};

/* Before 5.14. */
struct task_struct___old {
	long state;
};

/* kernel/bpf/task_iter.c */
struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

#endif
