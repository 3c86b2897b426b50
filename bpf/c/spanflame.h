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

/* Frames of an interpreted language take PYTHON_WORDS each, behind the user frames. */
#define MAX_PYTHON_FRAMES 255
#define PYTHON_WORDS 2

/* Words of one stack. */
#define MAX_FRAMES (MAX_USER_FRAMES + PYTHON_WORDS * MAX_PYTHON_FRAMES + MAX_KERNEL_FRAMES)

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
	STACK_NOT_LOADED = 7,      /* the process's mappings or a file's table were not loaded yet */
	STACK_NO_MAPPING = 8,      /* the address is in no executable mapping that is known */
	STACK_NO_TABLE = 9,        /* the file has no call frame information */
	STACK_NO_ROW = 10,         /* the file's call frame information does not cover the address */
	STACK_UNSUPPORTED_ROW = 11, /* what it says of the address cannot be expressed */
	STACK_EXITING = 12,        /* the thread is about to end, and its memory may be gone */
	STACK_NOT_SAMPLED = 13, /* the sampling rule had left it out: the innermost frame only */
	STACK_END_MAX = 14,
};

/* What a sample counts. */
enum sample_kind {
	SAMPLE_ON_CPU = 1,  /* clock ticks of a running thread */
	SAMPLE_OFF_CPU = 2, /* time that a thread was off its CPU */
	SAMPLE_WAKER = 3,   /* nothing: the stack of who woke a thread */
};

/* Why a thread is off its CPU. */
enum wait_cause {
	WAIT_NONE = 0,
	WAIT_OTHER = 1,
	WAIT_LOCK = 2,       /* a futex */
	WAIT_DISK = 3,       /* input or output of a block device */
	WAIT_NETWORK = 4,    /* a socket */
	WAIT_SLEEP = 5,
	WAIT_PIPE = 6,
	WAIT_POLL = 7,       /* any of several events */
	WAIT_PAGE_FAULT = 8, /* a page of its memory */
	WAIT_RUN_QUEUE = 9,  /* it could run, but others do */
	WAIT_RESTARTED = 10, /* goes on to wait after a signal; its stack in the kernel tells for what */
	WAIT_MAX = 11,
};

/* Counters of a round. Taken is the sum of the next three and of the counts. */
enum round_stat {
	STAT_TAKEN = 0,
	STAT_NO_TARGET = 1,
	STAT_STACK_MAP_FULL = 2,
	STAT_COUNTS_MAP_FULL = 3,
	/* Off-CPU: times that a thread was off its CPU. */
	STAT_OFF_SAMPLED = 4,   /* whose stack was kept */
	STAT_OFF_LEFT_OUT = 5,  /* by the sampling rule; others stand for them */
	STAT_OFF_UNTRACKED = 6, /* there was no room for the thread */
	STAT_PYTHON_FULL = 7,   /* Python functions whose names there was no room for */
	STAT_MAX = 8,
};

/* What is counted. Every field takes part in the key: no padding may be left
 * undefined. */
struct sample_key {
	u64 start;       /* start_boottime of the thread group's leader, ns */
	u64 user_hash;   /* of the user and Python frames, 0 if there are none */
	u64 kernel_hash; /* of the kernel frames, 0 if there are none */
	u64 waker;       /* SAMPLE_WAKER: its own number; SAMPLE_OFF_CPU: whose stack woke it, 0: unknown */
	u32 tgid;
	u32 tid;         /* 0 unless threads are asked for */
	u32 exec_id;     /* low half of self_exec_id: which image of the process */
	u32 label;       /* id of the label set of the current span, 0: none */
	u16 user_len;    /* frames */
	u8 kernel_len;
	u8 python_len;
	u8 user_end;     /* enum stack_end */
	u8 python_end;   /* the same of the Python frames; STACK_NONE: the thread has none */
	u8 kind;         /* enum sample_kind */
	u8 wait;         /* enum wait_cause; off-CPU only */
	char comm[COMM_LEN]; /* of the thread; zero unless asked for */
};

struct sample_value {
	u64 count;
	u64 time;  /* off-CPU: estimated, ns; NO_CHUNK with frames: an earlier round has them */
	u32 chunk; /* where the frames are: user, Python, then kernel frames */
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
	ASK_PROCESS = 4, /* a sample needs the process's mappings */
	ASK_FILE = 5,    /* a sample needs the table of the file whose number is in parent */
	ASK_CODE = 6,    /* a Python function is new, whose number is in address: its lines can be read */
};

struct process_event {
	u64 time;  /* CLOCK_MONOTONIC, ns */
	u64 start; /* start_boottime, ns */
	u64 parent_start;
	u32 kind;  /* enum process_event_kind */
	u32 tgid;
	u32 parent; /* ASK_FILE: number of the file */
	u32 exec_id;
	u64 address; /* ASK_PROCESS: of the innermost frame; ASK_CODE: the function */
	char comm[COMM_LEN];
};

/* Tables of call frame information. Each node of one takes a page of a segment;
 * node 0 is none. */
#define SEGMENT_NODES 64
#define MAX_UNWIND_FILES 8192
#define MAX_RULES 16384
#define NODE_BYTES 4096

/* Rows: the rule holds from base + offset on, until the next row. What is left over
 * has the offset 0xffff. */
#define LEAF_ROWS 1024
#define LEAF_SPAN 0xfffe

struct table_leaf {
	u16 offset[LEAF_ROWS];
	u16 rule[LEAF_ROWS];
};

/* Children: the node has what is at start, in bytes of the file, and behind, until the
 * next one. What is left over has the start 0xffffffff. */
#define INNER_ENTRIES 512
#define TABLE_LEVELS 2 /* of inner nodes above the leaves: 268 million rows */

struct table_inner {
	u32 start[INNER_ENTRIES];
	u32 child[INNER_ENTRIES];
};

/* Executable mappings of a process, sorted. What is left over has the start
 * NO_ADDRESS. The last entry is no mapping: its end is the generation of the space. */
#define SPACE_ENTRIES 128
#define SPACE_NODES 8
#define NO_ADDRESS (1ULL << 62) /* above all addresses of user space */

struct space_entry {
	u64 end;
	u64 bias; /* address - bias = offset in the file */
	u32 file;
	u32 pad;
};

struct space_node {
	u64 start[SPACE_ENTRIES];
	struct space_entry entry[SPACE_ENTRIES];
};

/* The mappings of one program of a process. */
#define ANY_EXEC 0xffffffff /* the program that it had when the session began; gone at an exec */

struct process_space {
	u64 start;      /* of the process, in ticks */
	u64 generation; /* 0: asked for, not loaded */
	u32 exec_id;
	/* Of frames in code that the process makes: the word at fp - 8 * capture_slot, or what it
	 * points to, + capture_deref bytes, if that is not 0. No slot: nothing. */
	u8 capture_slot;
	u8 capture_deref;
	u8 capture_marked; /* only of frames with a pointer + 1 at fp - 8 */
	u8 pad;
	u32 node[SPACE_NODES];
	u64 first[SPACE_NODES]; /* address in each node; NO_ADDRESS for what is left over */
};

enum unwind_file_state {
	FILE_UNLOADED = 0,
	FILE_ASKED = 1,
	FILE_LOADED = 2,
	FILE_NO_TABLE = 3,
	FILE_CHAIN = 4, /* frame pointers are all there is: code made at run time */
};

struct unwind_file {
	u32 state; /* enum unwind_file_state */
	u32 root;
	u32 levels; /* of inner nodes */
	u32 base;   /* where the root begins if it is a leaf, in bytes of the file */
	u32 seen;   /* unwind_epoch of the last use */
	u32 generation; /* of the table: no two have the same */
};

/* How the canonical frame address is found; cfa_off is added in the end. */
enum cfa_kind {
	CFA_NONE = 0,
	CFA_UNSUPPORTED = 1,
	CFA_END = 2,      /* the outermost frame */
	CFA_SP = 3,
	CFA_FP = 4,
	CFA_REGISTER = 5, /* reg, in the innermost frame only */
	CFA_SP_DEREF = 6, /* in memory at sp + deref */
	CFA_FP_DEREF = 7,
	CFA_PLT = 8,      /* sp, and 8 more from byte deref of each 16 bytes of code on */
	CFA_CHAIN = 9,    /* by frame pointers */
	CFA_GO_CHAIN = 10, /* the same; Go may have changed to another stack. cfa_off, if not
	                    * 0, is for the innermost frame, from sp */
};

/* Where the caller's value of a register is. */
enum saved_kind {
	SAVED_SAME = 0,
	SAVED_LOST = 1,
	SAVED_CFA = 2, /* in memory at CFA + offset */
	SAVED_SP = 3,
	SAVED_FP = 4,
	SAVED_REG = 5, /* the register whose number is the offset; in the innermost frame only */
};

struct unwind_rule {
	s32 cfa_off;
	s32 deref;
	s32 fp_off;
	s32 ra_off;
	u8 cfa; /* enum cfa_kind */
	u8 fp;  /* enum saved_kind, as ra */
	u8 ra;
	u8 reg; /* DWARF number */
	u8 signal; /* the caller was interrupted; but for CFA_GO_CHAIN, the frame was not called */
	u8 pad[3];
};

/* Set in a user frame whose address is that of the next instruction, though it is not
 * the innermost one: a signal came in between, or it is returned to but called nobody. */
#define FRAME_INTERRUPTED (1ULL << 63)
/* Set in a user frame that a word of it follows, which is no frame. */
#define FRAME_WORD (1ULL << 62)

/* Where a version of CPython keeps what is read of it: offsets in bytes. */
#define MAX_PYTHON_LAYOUTS 64
#define PYTHON_NONE 0xffffffff /* the version has no such field */

enum python_instruction {
	PYTHON_BYTES = 0,   /* the frame has the offset of the instruction, in bytes */
	PYTHON_UNITS = 1,   /* the same in units of 2 bytes */
	PYTHON_ADDRESS = 2, /* its address */
};

struct python_layout {
	u32 interpreters; /* in _PyRuntime */
	u32 interpreter_next;
	u32 threads;
	u32 thread_next;
	u32 thread_id;
	u32 thread_frame;
	u32 cframe_frame; /* PYTHON_NONE: thread_frame is that of the frame */
	/* In a frame, of which frame_bytes are read. */
	u32 frame_bytes;
	u32 frame_code;
	u32 frame_back;
	u32 frame_instruction;
	u32 frame_owner;    /* PYTHON_NONE: there is no such field, and every frame is an entry */
	u32 frame_is_entry; /* PYTHON_NONE: frames whose owner is shim_owner or more are entries */
	u32 shim_owner;
	u32 instruction; /* enum python_instruction */
	/* In a code object, of which code_bytes are read from code_from on; but for
	 * code_instructions, offsets are from there. */
	u32 code_from;
	u32 code_bytes;
	u32 code_file;
	u32 code_name;
	u32 code_first_line;
	u32 code_lines;
	u32 code_instructions;
	u32 string_state;
	u32 string_length;
	u32 string_ascii;
	u32 string_compact;
};

/* A process that runs CPython. */
#define PYTHON_EVALS 2 /* parts of the function that runs Python code */

struct python_process {
	u64 start; /* in ticks */
	u64 runtime; /* address of _PyRuntime */
	u64 text;  /* of the interpreter's code, and how long that is */
	u64 text_bytes;
	u64 eval[PYTHON_EVALS]; /* where the function is that runs Python code */
	u32 eval_bytes[PYTHON_EVALS];
	u32 exec_id;
	u32 layout;
	u32 own; /* the program is Python's own: nothing of interest is beyond the Python frames */
	u32 pad;
};

/* The state of a thread that was found. */
struct python_thread {
	u64 thread;
	u64 interpreters; /* head of the list then, which had one entry; 0: there were several */
};

/* A Python frame: the number of its function; in the second word, where in it. */
#define PYTHON_ENTRY (1ULL << 63) /* the interpreter was entered with this frame */
#define PYTHON_AT 0xffffffff      /* offset of the instruction, in bytes; all ones: not known */

#define PYTHON_NAME_BYTES 128
#define PYTHON_FILE_BYTES 192

/* A Python function. Strings are as CPython has them: of 1, 2 or 4 bytes a character. */
struct python_code {
	u64 code; /* addresses in its process */
	u64 name;
	u64 lines;
	u64 start; /* of the process, in ticks */
	u32 tgid;
	u32 layout;
	u32 first_line;
	u32 name_size; /* all bytes, of which PYTHON_NAME_BYTES are kept: the first */
	u32 file_size; /* of which the last are kept */
	u8 name_kind;  /* bytes a character */
	u8 file_kind;
	u8 pad[2];
	u8 name_text[PYTHON_NAME_BYTES];
	u8 file_text[PYTHON_FILE_BYTES];
};

/* Chances are numbers of 24 bits. */
#define CHANCE_ONE (1U << 24)
/* A block: a time that a thread is off its CPU. */
struct block {
	u64 since;  /* CLOCK_MONOTONIC, ns; 0: there is none */
	u64 woken;  /* when the thread could run again; 0: it cannot */
	u64 waker;  /* who woke it, as in the key */
	u64 certain; /* if it takes so long, in ns, it counts for itself, whatever was drawn */
	u32 chance; /* that its stack was kept with, of CHANCE_ONE; 0: it was not */
	u32 pad;
	struct sample_key key; /* if a stack was kept; else only the process and thread are true */
};

struct thread_state {
	struct block now;
	/* The block that the beginning of a round fell into, for that round's reader. */
	struct block cut;
	u64 cut_at; /* the beginning */
	u32 site;   /* of now */
	u8 drawn;   /* by a chance less than 1: now */
	u8 halted;  /* it was stopped: now */
	u16 gone;   /* the thread has ended */
};

/* A thread that was found off its CPU: what can still be known of its stack. */
#define ASLEEP_FRAMES 64

struct asleep {
	u64 since; /* as in the block */
	u64 ip;    /* of the innermost user frame */
	u64 user_hash;
	u64 kernel_hash;
	u32 tid;
	u16 kernel_len;
	u8 wait; /* enum wait_cause */
	u8 pad;
	u64 kernel[ASLEEP_FRAMES];
};

/* What blocks at one place took lately. */
struct block_site {
	u64 mean_square; /* of the lengths in us; 0: not seen */
	/* Of those that were drawn by chance: all; and those whose stack was kept, each for 16
	 * times as many as it stands for. */
	u64 all, all_ns;
	u64 kept_for, kept_ns;
	u32 kept;
	u32 pad;
};
#define BLOCK_SITES 8192

/* How a CPU keeps to its budget. */
struct block_rate {
	u64 since;  /* of the window, ns */
	u64 factor; /* chance for each us that a site's blocks take, in 2^-16 */
	u32 kept;   /* stacks, in the window */
	u32 pad;
};

#endif
