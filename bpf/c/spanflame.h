/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The structs, numbers and limits that the kernel programs and the agent share.
 * They are declared here once; their Go twins are generated (bpf2go -type).
 */
#ifndef SPANFLAME_SHARED_H
#define SPANFLAME_SHARED_H

/* Frames kept of one stack. The leaf comes first, the root side is cut. */
#define MAX_USER_FRAMES 512
#define MAX_KERNEL_FRAMES 127 /* kernel.perf_event_max_stack's default */

#define MAX_FRAMES (MAX_USER_FRAMES + MAX_KERNEL_FRAMES)

/* The arena of a round is handed out to the CPUs in chunks. A stack begins in the
 * first CHUNK_WORDS words of a chunk; the last one may reach into the rest. */
#define CHUNK_WORDS 4096
#define NO_CHUNK 0xffffffff

#define COMM_LEN 16

/* How a user stack ended. */
enum stack_end {
	STACK_NONE = 0,            /* no user stack was asked for, or there is none (kernel thread) */
	STACK_WHOLE = 1,           /* ends in its root frame */
	STACK_TOO_DEEP = 2,        /* more than MAX_USER_FRAMES frames */
	STACK_BAD_MEMORY = 3,      /* the next frame could not be read */
	STACK_BROKEN_CHAIN = 4,    /* the frame pointers do not lead upwards: code built without them */
	STACK_UNSUPPORTED_ABI = 5, /* 32-bit code: the innermost frame only */
	STACK_NO_REGISTERS = 6,    /* the thread's user registers could not be read */
	STACK_END_MAX = 7,
};

/* Counters of a round. Taken is the sum of all others and of the counts. */
enum round_stat {
	STAT_TAKEN = 0,
	STAT_NO_TARGET = 1,
	STAT_STACK_MAP_FULL = 2,
	STAT_COUNTS_MAP_FULL = 3,
	STAT_MAX = 4,
};

/* What is counted. Every field takes part in the key: no padding may be left
 * undefined. */
struct sample_key {
	u64 start;       /* start_boottime of the thread group's leader, ns */
	u64 user_hash;   /* of the user frames, 0 if there are none */
	u64 kernel_hash; /* of the kernel frames, 0 if there are none */
	u32 tgid;
	u32 tid;         /* 0 unless threads are asked for */
	u32 exec_id;     /* low half of self_exec_id: which image of the process */
	u32 label;       /* id of the label set of the current span, 0: none */
	u16 user_len;    /* frames */
	u16 kernel_len;
	u8 user_end;     /* enum stack_end */
	u8 pad[3];
	char comm[COMM_LEN]; /* of the thread; zero unless asked for */
};

struct sample_value {
	u64 count;
	u32 chunk; /* where the frames are: user frames, then kernel frames */
	u32 word;
};

/* Which part of a chunk a CPU may still fill. */
struct chunk_cursor {
	u32 chunk;
	u32 used; /* words */
};

enum process_event_kind {
	PROCESS_FORK = 1,
	PROCESS_EXEC = 2,
	PROCESS_EXIT = 3,
};

struct process_event {
	u64 time;  /* CLOCK_MONOTONIC, ns */
	u64 start; /* start_boottime, ns */
	u64 parent_start;
	u32 kind;  /* enum process_event_kind */
	u32 tgid;
	u32 parent;
	u32 exec_id;
	char comm[COMM_LEN];
};

#endif
