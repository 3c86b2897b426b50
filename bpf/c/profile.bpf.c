// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * The on-CPU sampler and the events of processes.
 *
 * One software clock event per CPU runs on_cpu at a fixed frequency. A sample is
 * counted under its key in the table of the current round; the frames of a key
 * that is new in the round are kept in the round's arena. There are two of each:
 * the agent flips current_round, waits until no program that saw the old value runs any
 * more, and then has the old round for itself.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "spanflame.h"
#include "regs.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define ROUNDS 2
#define EEXIST 17
#define PF_EXITING 0x00000004 /* include/linux/sched.h */
#define PF_KTHREAD 0x00200000

/* Written by the agent while the programs run. */
volatile u32 current_round = 0;
volatile bool want_user = true;
volatile bool want_kernel = true;
volatile bool want_tid = false;
volatile bool want_comm = false;
volatile u64 round_began[ROUNDS] = {}; /* CLOCK_MONOTONIC, ns */
volatile u32 excluded_epoch = 1; /* of what is in excluded_lately */
volatile bool have_excluded = false; /* whether the map excluded has entries */
volatile bool have_python = false;   /* whether any process runs CPython */

/* Written before the start. Makes the hash one that a target cannot aim at. */
const volatile u64 hash_seed = 0;

/* The agent sets the sizes of these before it loads them. */
struct counts_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct sample_key));
	__uint(value_size, sizeof(struct sample_value));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ROUNDS);
	__type(key, u32);
	__array(values, struct counts_map);
} counts SEC(".maps");

struct chunk {
	u64 words[CHUNK_WORDS + MAX_FRAMES];
};

/* Chunks of all rounds: round 0 owns the first half. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ROUNDS);
	__type(key, u32);
	__type(value, struct chunk);
} arena SEC(".maps");

/* Numbers of the chunks that nobody has taken. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__uint(value_size, sizeof(u32));
} free_chunks_0 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__uint(value_size, sizeof(u32));
} free_chunks_1 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUNDS);
	__type(key, u32);
	__type(value, struct chunk_cursor);
} cursors SEC(".maps");

struct round_stats {
	u64 n[STAT_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUNDS);
	__type(key, u32);
	__type(value, struct round_stats);
} stats SEC(".maps");

/* Processes that are known to belong to no target: tgid -> start in ticks. What was found
 * lately is in an array, which takes a tenth of the time: switches of threads are many. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} excluded SEC(".maps");

#define EXCLUDED_SLOTS 4096

struct excluded_slot {
	u64 start; /* as the kernel has it, ns */
	u32 tgid;
	u32 epoch;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EXCLUDED_SLOTS);
	__type(key, u32);
	__type(value, struct excluded_slot);
} excluded_lately SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} process_events SEC(".maps");

/* Events of processes that the ring had no room for, one counter per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lost_process_events SEC(".maps");

#include "unwind.h"
#include "madecode.h"

/* How far the Python frames of a thread are known. */
struct python_walker {
	u64 runtime;
	u64 pointer; /* the thread's: what pthread_self() returns */
	u64 interpreter, thread;
	u64 chosen; /* state of the thread */
	u64 frame;
	u64 tortoise; /* a frame that was passed: to come by it again is to go round in circles */
	u32 steps;
	u32 len; /* frames kept */
	u32 runs; /* how often the interpreter was entered */
	bool walked;
	u32 layout;
	u32 tgid;
	u64 start; /* of the process, in ticks */
	u64 words[16]; /* of a frame */
	u64 code[16];
	struct python_code fresh;
	/* Functions whose names are known to be kept. */
	struct {
		u64 id;
		u64 epoch;
	} named[256];
};

struct scratch {
	struct sample_key key;
	struct pt_regs regs;
	struct walker walker;
	struct rule_cache cache;
	struct python_walker python;
	struct sample_value fresh; /* of off_cpu */
	u64 words[MAX_FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline u64 hash_step(u64 h, u64 v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15ULL;
	return h ^ (h >> 32);
}

/* Reads a number back from the scratch memory. The verifier follows each loop once
 * for every number of frames that it may end with, and all that comes after it as
 * well, unless it forgets the number: what comes from a map it does not know. */
#define read_back(field) (*(volatile typeof(field) *)&(field))

/* User frame n. The verifier of 5.10 forgets what it knew of a number that had to leave its
 * register: it is masked where it is used. */
static __always_inline u64 *frame_at(struct scratch *s, u32 n)
{
	asm volatile("" : "+r"(n));
	return &s->words[n & (MAX_USER_FRAMES - 1)];
}

/* Keeps the word of the frame that is at n - 1, if it has one, as n. */
static __always_inline void capture(struct scratch *s, struct walker *w, u32 n)
{
	u64 word, frame;

	if (!read_frame_word(w, &word))
		return;
	frame = *frame_at(s, n - 1) | FRAME_WORD;
	*frame_at(s, n - 1) = frame;
	*frame_at(s, n) = word;
	w->hash = hash_step(hash_step(w->hash, frame), word);
	w->captured++;
}

/* The walker has come to a frame that decides whether it goes on. No stack_end. */
#define PYTHON_REACHED 64

/* A frame is at the walker's address. Says whether the walker has now enough of those that
 * run Python code. */
static __always_inline bool python_passed(struct walker *w)
{
	u64 ip = w->ip;

	if (ip - w->text >= w->text_bytes)
		return false;
	w->interpreted = true;
	if (ip - w->eval[0] >= w->eval_bytes[0] && ip - w->eval[1] >= w->eval_bytes[1])
		return false;
	w->evals++;
	return w->evals >= w->evals_wanted;
}

/* Finds the caller of frame n - 1 of the walker, and keeps it as frame n. 0, or how
 * the stack ends. A global function, so that the verifier looks at it once and not
 * once for every frame (5.6; with scalar arguments only before 5.13). */
__noinline int unwind_frame(u32 n)
{
	u32 zero = 0, number;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	struct unwind_rule *rule;
	struct walker *w;
	u64 at, word;
	bool innermost = n == 1;
	u32 before;
	int end;

	if (!s || !n)
		return STACK_TOO_DEEP;
	w = &s->walker;
	before = w->captured;
	n += before;
	if (n >= MAX_USER_FRAMES - 1)
		return STACK_TOO_DEEP;
	at = w->exact ? w->ip : w->ip - 1;
	if (at < w->map_start || at >= w->map_end) {
		end = find_mapping(w, at);
		if (end)
			return end;
	}
	if (w->state == FILE_LOADED) {
		number = find_rule(&s->cache, w, at - w->map_bias);
		rule = bpf_map_lookup_elem(&rules, &number);
		if (!rule)
			return STACK_UNSUPPORTED_ROW;
		if (rule->signal && rule->cfa != CFA_GO_CHAIN && !w->exact) {
			/* It was not called: what led here is the address of its first instruction. */
			word = *frame_at(s, n - 1) | FRAME_INTERRUPTED;
			*frame_at(s, n - 1) = word;
			w->hash = hash_step(w->hash, word);
		}
		if (rule->cfa == CFA_CHAIN && w->capture_slot) {
			capture(s, w, n);
			end = step_by_chain(w, false);
		} else {
			end = step_by_rule(w, rule, innermost);
		}
		w->exact = rule->signal;
	} else if (w->state == FILE_CHAIN) {
		if (w->capture_slot)
			capture(s, w, n);
		end = step_by_chain(w, false);
		w->exact = false;
	} else {
		return STACK_NO_TABLE;
	}
	if (end)
		return end;
	w->ip = STRIP_POINTER(w->ip);
	if (!w->ip)
		return STACK_WHOLE;
	word = w->exact ? w->ip | FRAME_INTERRUPTED : w->ip;
	n = w->captured > before ? n + 1 : n;
	*frame_at(s, n) = word;
	w->hash = hash_step(w->hash, word);
	return python_passed(w) ? PYTHON_REACHED : 0;
}

#include "python.h"

/* Walks the user stack of the walker's registers, which are of the given mode. */
static __always_inline void user_stack(struct scratch *s, enum cpu_mode mode, bool exiting)
{
	struct walker *w = &s->walker;
	u32 n;
	int end;

	if (mode == MODE_KERNEL) {
		s->key.user_end = STACK_NO_REGISTERS;
		return;
	}
	s->words[0] = w->ip;
	w->hash = hash_step(hash_seed, w->ip);
	s->key.user_len = 1;
	if (mode == MODE_USER32 || exiting) {
		s->key.user_hash = w->hash | 1;
		s->key.user_end = exiting ? STACK_EXITING : STACK_UNSUPPORTED_ABI;
		return;
	}
	w->tgid = s->key.tgid;
	w->exec_id = s->key.exec_id;
	w->start = s->key.start / NS_PER_TICK;
	w->map_end = 0;
	w->window_at = 0;
	w->captured = 0;
	w->exact = true;
	w->text_bytes = 0;
	if (have_python)
		python_begin(s);
	end = STACK_TOO_DEEP;
	n = 1;
	if (python_passed(w) && python_reached()) {
		end = STACK_WHOLE;
	} else {
		for (; n < MAX_USER_FRAMES; n++) {
			int e = unwind_frame(n);

			if (!e)
				continue;
			if (e == PYTHON_REACHED) {
				if (!python_reached())
					continue;
				e = STACK_WHOLE;
				n++;
			}
			end = e;
			break;
		}
	}
	n += w->captured;
	s->key.user_len = n < MAX_USER_FRAMES ? n : MAX_USER_FRAMES;
	s->key.user_end = end;
	if (read_back(w->text_bytes)) {
		if (!s->python.walked && (w->interpreted || end != STACK_WHOLE))
			python_stack();
		python_place();
	}
	s->key.user_hash = w->hash ? w->hash : 1;
}

/* Words of the frames that are not the kernel's. */
static __always_inline u32 user_words(struct scratch *s)
{
	return (u32)read_back(s->key.user_len) + PYTHON_WORDS * (u32)read_back(s->key.python_len);
}

/* Where the kernel's frames go: behind the others. 0 if those are too many. */
static __always_inline u64 *kernel_frames(struct scratch *s)
{
	u64 n = user_words(s);

	if (n > MAX_USER_FRAMES + PYTHON_WORDS * MAX_PYTHON_FRAMES)
		return 0;
	asm volatile("" : "+r"(n)); /* what was compared is what is used: 5.10 wants to see it */
	return &s->words[n];
}

#define KERNEL_FRAMES_SIZE (MAX_KERNEL_FRAMES * sizeof(u64))

/* Enters size bytes of kernel frames in the key. */
static __always_inline void key_kernel_frames(struct scratch *s, u64 *frames, long size)
{
	u64 h = hash_seed;
	u32 k = 0;

	if (size <= 0)
		return;
	size /= sizeof(u64);
	for (int i = 0; i < MAX_KERNEL_FRAMES && i < size; i++) {
		h = hash_step(h, frames[i]);
		k = i + 1;
	}
	s->key.kernel_len = k;
	s->key.kernel_hash = h ? h : 1;
}

static __always_inline void kernel_stack(void *ctx, struct scratch *s)
{
	u64 *frames = kernel_frames(s);

	if (frames)
		key_kernel_frames(s, frames, bpf_get_stack(ctx, frames, KERNEL_FRAMES_SIZE, 0));
}

/* The same of a task that does not run. */
static __always_inline void kernel_stack_of(struct task_struct *task, struct scratch *s)
{
	u64 *frames = kernel_frames(s);

	if (frames)
		key_kernel_frames(s, frames, bpf_get_task_stack(task, frames, KERNEL_FRAMES_SIZE, 0));
}

static __always_inline void count_stat(u32 r, enum round_stat stat)
{
	struct round_stats *st = bpf_map_lookup_elem(&stats, &r);

	if (st)
		st->n[stat]++;
}

/* Keeps n words in the round's arena. False if the arena is full. */
static __always_inline bool keep(u32 r, struct scratch *s, u32 n, struct sample_value *where)
{
	struct chunk_cursor *c = bpf_map_lookup_elem(&cursors, &r);
	struct chunk *chunk;
	u32 id, used;

	if (!c)
		return false;
	if (c->chunk == NO_CHUNK || c->used >= CHUNK_WORDS) {
		u32 taken = NO_CHUNK;
		long err = r ? bpf_map_pop_elem(&free_chunks_1, &taken) : bpf_map_pop_elem(&free_chunks_0, &taken);

		if (err)
			return false;
		c->chunk = taken;
		c->used = 0;
	}
	id = c->chunk;
	used = c->used & (CHUNK_WORDS - 1);
	chunk = bpf_map_lookup_elem(&arena, &id);
	if (!chunk)
		return false;
	if (n > MAX_FRAMES)
		return false;
	if (bpf_probe_read_kernel(&chunk->words[used], n * sizeof(u64), s->words))
		return false;
	where->chunk = id;
	where->word = used;
	c->used = used + n;
	return true;
}

/* Fills in which program of which process the sample is of. Returns the thread's flags. */
static __always_inline u32 identify(struct sample_key *key)
{
	unsigned int flags;

	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_get_current_task_btf)) {
		/* Plain loads: some hundred nanoseconds less than by helper. */
		struct task_struct *task = bpf_get_current_task_btf();

		key->start = task->group_leader->start_boottime;
		key->exec_id = (u32)task->self_exec_id;
		flags = task->flags;
	} else {
		struct task_struct *task = (struct task_struct *)bpf_get_current_task();

		key->start = BPF_CORE_READ(task, group_leader, start_boottime);
		key->exec_id = (u32)BPF_CORE_READ(task, self_exec_id);
		flags = BPF_CORE_READ(task, flags);
	}
	return flags;
}

static __always_inline bool is_excluded(u32 tgid, u64 start)
{
	u32 slot = tgid % EXCLUDED_SLOTS;
	struct excluded_slot *lately;
	u64 *ticks;

	if (!have_excluded)
		return false;
	lately = bpf_map_lookup_elem(&excluded_lately, &slot);
	if (lately && lately->start == start && lately->tgid == tgid && lately->epoch == excluded_epoch)
		return true;
	ticks = bpf_map_lookup_elem(&excluded, &tgid);
	if (!ticks || *ticks != start / NS_PER_TICK)
		return false;
	if (lately) {
		lately->tgid = tgid;
		lately->epoch = excluded_epoch;
		lately->start = start;
	}
	return true;
}

/* A process is another program now. */
static __always_inline void include(u32 tgid)
{
	u32 slot = tgid % EXCLUDED_SLOTS;
	struct excluded_slot *lately = bpf_map_lookup_elem(&excluded_lately, &slot);

	bpf_map_delete_elem(&excluded, &tgid);
	if (lately && lately->tgid == tgid)
		lately->start = 0;
}

/* Nothing is never added: the compiler would make another instruction of it, which Linux
 * has from 5.12 on. */
static __always_inline void add_to(struct sample_value *v, u64 n, u64 time)
{
	if (n)
		__sync_fetch_and_add(&v->count, n);
	if (time)
		__sync_fetch_and_add(&v->time, time);
}

/* Counts the sample whose key and frames are in the scratch memory. False if there is no
 * room: that is counted. */
static __always_inline bool count(u32 r, void *table, struct scratch *s, u64 n, u64 time)
{
	struct sample_value *seen, fresh = {};
	u32 words;
	long err;

	seen = bpf_map_lookup_elem(table, &s->key);
	if (seen && (seen->chunk != NO_CHUNK || !(s->key.user_len | s->key.kernel_len))) {
		add_to(seen, n, time);
		return true;
	}

	words = user_words(s) + read_back(s->key.kernel_len);
	fresh.count = n;
	fresh.time = time;
	fresh.chunk = NO_CHUNK;
	if (words && !keep(r, s, words, &fresh)) {
		count_stat(r, STAT_STACK_MAP_FULL);
		return false;
	}
	if (seen) { /* its frames are those of an earlier round */
		seen->word = fresh.word;
		seen->chunk = fresh.chunk;
		add_to(seen, n, time);
		return true;
	}
	err = bpf_map_update_elem(table, &s->key, &fresh, BPF_NOEXIST);
	if (err == -EEXIST) {
		/* Another CPU was first. */
		seen = bpf_map_lookup_elem(table, &s->key);
		if (seen) {
			add_to(seen, n, time);
			return true;
		}
	}
	if (err)
		count_stat(r, STAT_COUNTS_MAP_FULL);
	return !err;
}

SEC("perf_event")
int on_cpu(struct bpf_perf_event_data *ctx)
{
	u32 r = current_round & 1, zero = 0, tgid;
	u64 id = bpf_get_current_pid_tgid();
	struct scratch *s;
	enum cpu_mode mode;
	u32 flags;
	void *table;

	tgid = id >> 32;
	if (!tgid)
		return 0; /* the idle task */

	count_stat(r, STAT_TAKEN);

	s = bpf_map_lookup_elem(&scratches, &zero);
	table = bpf_map_lookup_elem(&counts, &r);
	if (!s || !table)
		goto full;

	__builtin_memset(&s->key, 0, sizeof(s->key));
	s->key.tgid = tgid;
	s->key.kind = SAMPLE_ON_CPU;
	flags = identify(&s->key);

	if (is_excluded(tgid, s->key.start)) {
		count_stat(r, STAT_NO_TARGET);
		return 0;
	}

	if (want_tid)
		s->key.tid = (u32)id;
	if (want_comm)
		bpf_get_current_comm(s->key.comm, sizeof(s->key.comm));

	mode = mode_of_ctx(ctx);
	if (want_user && !(flags & PF_KTHREAD)) {
		enum cpu_mode user = mode;

		if (mode == MODE_KERNEL)
			user = regs_of_task(&s->walker, &s->regs);
		else
			regs_of_ctx(ctx, &s->walker);
		user_stack(s, user, flags & PF_EXITING);
	}
	if (want_kernel && mode == MODE_KERNEL)
		kernel_stack(ctx, s);

	count(r, table, s, 1, 0);
	return 0;
full:
	count_stat(r, STAT_COUNTS_MAP_FULL);
	return 0;
}

#include "offcpu.h"

static __always_inline struct process_event *new_event(u32 kind, struct task_struct *leader)
{
	struct process_event *e = bpf_ringbuf_reserve(&process_events, sizeof(*e), 0);
	struct task_struct *parent;

	if (!e) {
		u32 zero = 0;
		u64 *lost = bpf_map_lookup_elem(&lost_process_events, &zero);

		if (lost)
			(*lost)++;
		return 0;
	}
	parent = BPF_CORE_READ(leader, real_parent);
	e->time = bpf_ktime_get_ns();
	e->kind = kind;
	e->tgid = BPF_CORE_READ(leader, tgid);
	e->start = BPF_CORE_READ(leader, start_boottime);
	e->exec_id = (u32)BPF_CORE_READ(leader, self_exec_id);
	e->address = 0;
	e->parent = BPF_CORE_READ(parent, tgid);
	e->parent_start = BPF_CORE_READ(parent, group_leader, start_boottime);
	BPF_CORE_READ_STR_INTO(&e->comm, leader, comm);
	return e;
}

/* TP_PROTO(struct task_struct *parent, struct task_struct *child) */
SEC("raw_tp/sched_process_fork")
int process_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx->args[0];
	struct task_struct *child = (struct task_struct *)ctx->args[1];
	u32 tgid = BPF_CORE_READ(child, tgid), ptgid = BPF_CORE_READ(parent, tgid);
	struct process_space *space;
	struct process_event *e;

	if (BPF_CORE_READ(child, pid) != tgid)
		return 0; /* a thread */
	space = bpf_map_lookup_elem(&processes, &ptgid);
	if (space && space->generation) {
		struct process_space copy = *space;

		copy.start = BPF_CORE_READ(child, start_boottime) / NS_PER_TICK;
		copy.exec_id = (u32)BPF_CORE_READ(child, self_exec_id);
		bpf_map_update_elem(&processes, &tgid, &copy, BPF_ANY);
	}
	if (have_python)
		python_forked(ptgid, child);
	e = new_event(PROCESS_FORK, child);
	if (!e)
		return 0;
	/* Whose memory it copied; its real parent may be another (CLONE_PARENT). */
	e->parent = ptgid;
	e->parent_start = BPF_CORE_READ(parent, group_leader, start_boottime);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* TP_PROTO(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm) */
SEC("raw_tp/sched_process_exec")
int process_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	struct process_event *e;
	u32 tgid = BPF_CORE_READ(task, tgid);

	/* What it was says nothing of what it is now. */
	include(tgid);
	bpf_map_delete_elem(&processes, &tgid);
	if (have_python)
		bpf_map_delete_elem(&python_processes, &tgid);
	e = new_event(PROCESS_EXEC, task);
	if (e)
		bpf_ringbuf_submit(e, 0);
	return 0;
}

/* TP_PROTO(struct task_struct *p, ...) */
SEC("raw_tp/sched_process_exit")
int process_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	u32 tgid = BPF_CORE_READ(task, tgid);
	struct process_event *e;

	if (BPF_CORE_READ(task, signal, live.counter))
		return 0; /* other threads live on */
	bpf_map_delete_elem(&processes, &tgid);
	if (have_python)
		bpf_map_delete_elem(&python_processes, &tgid);
	e = new_event(PROCESS_EXIT, BPF_CORE_READ(task, group_leader));
	if (e)
		bpf_ringbuf_submit(e, 0);
	return 0;
}

/* Keeps the shared types in the object's type information, from which their Go
 * twins are generated. */
const struct sample_key *type_sample_key __attribute__((unused));
const struct sample_value *type_sample_value __attribute__((unused));
const struct process_event *type_process_event __attribute__((unused));
const enum process_event_kind *type_process_event_kind __attribute__((unused));
const enum stack_end *type_stack_end __attribute__((unused));
const enum round_stat *type_round_stat __attribute__((unused));
const struct table_leaf *type_table_leaf __attribute__((unused));
const struct table_inner *type_table_inner __attribute__((unused));
const struct space_node *type_space_node __attribute__((unused));
const enum unwind_file_state *type_unwind_file_state __attribute__((unused));
const enum cfa_kind *type_cfa_kind __attribute__((unused));
const enum saved_kind *type_saved_kind __attribute__((unused));
const enum sample_kind *type_sample_kind __attribute__((unused));
const enum wait_cause *type_wait_cause __attribute__((unused));
const struct thread_state *type_thread_state __attribute__((unused));
const struct asleep *type_asleep __attribute__((unused));
const struct python_layout *type_python_layout __attribute__((unused));
const struct python_process *type_python_process __attribute__((unused));
const struct python_code *type_python_code __attribute__((unused));
const enum python_instruction *type_python_instruction __attribute__((unused));
