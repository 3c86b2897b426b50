/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The off-CPU sampler: how long threads were off their CPU, under the stack with which
 * they left it.
 *
 * A block is the time from leaving a CPU to being back on one. Its stack can only be
 * taken when it begins, before its length is known, and costs much more than all the
 * rest. So it is drawn by a chance that is known then: the more, the longer blocks at
 * the same place in the program (instruction and stack pointer at the entry into the
 * kernel) took lately, and the less, the more stacks the CPU has already kept. What was
 * drawn counts for those that were not: length / chance. As the chance depends on the
 * past alone, the expectation of the sum is the true sum, and the error of the sum is a
 * martingale (Horvitz and Thompson, 1952, with a chance that is fixed before each draw).
 * To take a stack holds the thread up, and whoever wakes it, which may change how long this
 * very block takes. So lengths are corrected by a ratio: the mean length of all blocks of
 * the place over that of those whose stack was taken.
 * Where the budget allows, the chance is 1 for places whose blocks take min_block, and in
 * proportion to their length below. A block that turns out much longer than those before
 * it at its place would count for too much: from a length on that is fixed when it begins
 * it counts once and for itself, with the frames that can still be had if it was not drawn.
 *
 * Time is split where a round begins: a program counts what lies in its round; the part
 * of a round that has ended is added by its reader, for all threads that were off their
 * CPU at the border. A thread that comes back before the reader has looked leaves the
 * block behind, as the one that was cut.
 */
#ifndef SPANFLAME_OFFCPU_H
#define SPANFLAME_OFFCPU_H

#include "wait.h"

/* Written by the agent while the programs run. */
volatile u64 max_factor = 1 << 30; /* of block_rate: 2^40 / us of the shortest blocks that are certain */
volatile bool want_waker = false;   /* who wakes whom */
volatile bool keeps_queued = false; /* the kernel, since when threads are on their run queues */
volatile u32 max_kept = 100;            /* stacks a window and CPU */

#define WINDOW_NS 100000000ULL
#define MIN_FACTOR (1ULL << 10)
#define MIN_CHANCE 16
#define MAX_US (1U << 20)
#define MAX_COUNTED_NS 250000000ULL /* that a draw stands for */
#define LONG_BLOCK_NS 1000000000ULL

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* the agent sets it */
	__type(key, u32); /* of the thread */
	__type(value, struct thread_state);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BLOCK_SITES);
	__type(key, u32);
	__type(value, struct block_site);
} sites SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct block_rate);
} rates SEC(".maps");

/* How many threads are followed whose number ends in the slot's: most switches are of
 * others, and to look that up in an array takes a tenth of the time. */
#define FOLLOWED_SLOTS 16384

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FOLLOWED_SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE); /* the agent adds to it, too */
	__type(key, u32);
	__type(value, u64);
} followed SEC(".maps");

const struct thread_state no_state = {};

static __always_inline struct thread_state *state_of_thread(u32 tid)
{
	u32 slot = tid % FOLLOWED_SLOTS;
	u64 *n = bpf_map_lookup_elem(&followed, &slot);

	return n && *n ? bpf_map_lookup_elem(&threads, &tid) : 0;
}

static __always_inline void count_followed(u32 tid, s64 n)
{
	u32 slot = tid % FOLLOWED_SLOTS;
	u64 *count = bpf_map_lookup_elem(&followed, &slot);

	if (count)
		__sync_fetch_and_add(count, n);
}

static __always_inline void name_block(struct block *b, struct task_struct *task)
{
	__builtin_memset(&b->key, 0, sizeof(b->key));
	b->key.kind = SAMPLE_OFF_CPU;
	b->key.tgid = task->tgid;
	b->key.start = task->group_leader->start_boottime;
	b->key.exec_id = (u32)task->self_exec_id;
	if (want_tid)
		b->key.tid = task->pid;
	if (want_comm)
		__builtin_memcpy(b->key.comm, task->comm, sizeof(b->key.comm));
}

static __always_inline struct thread_state *follow(struct task_struct *task)
{
	u32 tid = task->pid;
	struct thread_state *t = state_of_thread(tid);

	if (t)
		return t;
	if (!bpf_map_update_elem(&threads, &tid, &no_state, BPF_NOEXIST))
		count_followed(tid, 1);
	t = bpf_map_lookup_elem(&threads, &tid);
	if (t)
		name_block(&t->now, task);
	return t;
}

/* Roughly the square root, always the same for the same number: a chance need not be
 * exact, only known. At least 1. */
static __always_inline u64 root_of(u64 square)
{
	u64 bit = 0, v = square;

#pragma unroll
	for (u32 step = 32; step; step /= 2) {
		if (v >> step) {
			v >>= step;
			bit += step;
		}
	}
	/* 2^bit <= square < 2^(bit+1): between the two roots it is a line. */
	v = 1ULL << (bit / 2);
	return v + ((square >> (bit / 2)) - v) / 2;
}

/* The chance with which the stack is kept of a block that begins at a place, and from
 * which length on it counts for itself. */
static __always_inline u32 chance_at(u32 site, struct block_rate *rate, u64 now, u64 *certain)
{
	struct block_site *at = bpf_map_lookup_elem(&sites, &site);
	u64 passed = now - rate->since, chance, root;

	if (passed >= WINDOW_NS || rate->kept > 2 * max_kept) {
		/* So many would have been allowed in the time. */
		u64 budget = passed >= 100 * WINDOW_NS ? 100ULL * max_kept : passed * max_kept / WINDOW_NS;
		u64 factor = rate->factor ? rate->factor : max_factor;

		/* Halfway to where it would have been right, for the next window will differ. */
		if (budget >= 3ULL * rate->kept)
			factor *= 2;
		else if (4 * budget <= rate->kept)
			factor /= 4;
		else
			factor = (factor + factor / rate->kept * budget) / 2;
		if (factor > max_factor)
			factor = max_factor;
		if (factor < MIN_FACTOR)
			factor = MIN_FACTOR;
		rate->factor = factor;
		rate->since = now;
		rate->kept = 0;
	}
	root = at && at->mean_square ? root_of(at->mean_square) : MAX_US; /* nothing is known: it may be long */
	chance = (root * rate->factor) >> 16;
	if (chance > CHANCE_ONE)
		chance = CHANCE_ONE;
	if (chance < MIN_CHANCE)
		chance = MIN_CHANCE;
	/* Not too near to the usual length: one in 256 at most is so long (Chebyshev). */
	*certain = (chance * MAX_COUNTED_NS) >> 24;
	if (*certain < root * 1024 * 16)
		*certain = root * 1024 * 16;
	if (*certain > LONG_BLOCK_NS)
		*certain = LONG_BLOCK_NS;
	return chance;
}

#define KNOWN_KEPT 16  /* blocks of a place whose mean says something */
#define RECENT_KEPT 256

/* Learns how long a block took at a place, whether it was one of those that are drawn by
 * chance, and by which it was, if it was. */
static __always_inline void learn(struct block_site *at, u64 ns, bool drawn, u32 chance)
{
	u64 us = ns / 1024, square, mean;

	if (drawn) {
		at->all++;
		at->all_ns += ns;
		if (chance) {
			u64 stands_for = (16ULL * CHANCE_ONE) / chance; /* in sixteenths */

			at->kept++;
			at->kept_for += stands_for;
			at->kept_ns += ns * stands_for;
		}
		if (at->kept >= RECENT_KEPT || at->all >= 1U << 30) {
			at->all /= 2;
			at->all_ns /= 2;
			at->kept /= 2;
			at->kept_for /= 2;
			at->kept_ns /= 2;
		}
	}
	if (us > MAX_US)
		us = MAX_US;
	square = us * us;
	mean = at->mean_square;
	if (!mean)
		mean = square;
	else
		mean = mean - mean / 16 + square / 16;
	at->mean_square = mean ? mean : 1;
}

/* What a time counts for that was drawn by a chance. */
static __always_inline u64 counts_for(struct block_site *at, u64 ns, u32 chance)
{
	u64 mean, kept_mean, ratio;

	ns = (ns << 24) / chance;
	if (at->kept < KNOWN_KEPT || !at->all || !at->kept_for)
		return ns;
	mean = at->all_ns / at->all;
	kept_mean = at->kept_ns / at->kept_for;
	if (!kept_mean || mean > 4 * kept_mean || kept_mean > 8 * mean)
		return ns;
	ratio = (mean << 16) / kept_mean;
	return (ns >> 16) * ratio + (((ns & 0xffff) * ratio) >> 16);
}

/* Keeps the stack with which the current thread leaves its CPU, in the round's table;
 * the time is added when it is known. */
static __always_inline bool keep_stack(void *ctx, u32 r, struct task_struct *task, struct block *b, bool runnable, bool halted)
{
	void *table = bpf_map_lookup_elem(&counts, &r);
	u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	enum cpu_mode mode;

	if (!s || !table)
		return false;
	s->key = b->key;
	s->key.wait = WAIT_RUN_QUEUE;
	if (read_pt_regs(task, &s->regs)) {
		mode = regs_of_pt(&s->regs, &s->walker);
		if (!runnable)
			s->key.wait = wait_cause_of(task, &s->regs, mode, halted);
	} else {
		mode = MODE_KERNEL;
		if (!runnable)
			s->key.wait = WAIT_OTHER;
	}
	if (want_user)
		user_stack(s, mode, task->flags & PF_EXITING);
	if (want_kernel)
		kernel_stack(ctx, s);
	if (!count(r, table, s, 0, 0)) {
		count_stat(r, STAT_TAKEN); /* and dropped: count says why */
		return false;
	}
	b->key = s->key;
	return true;
}

/* Forgets a thread that has ended; its block that was cut is the reader's to forget. */
static __always_inline void thread_ended(u32 tid)
{
	struct thread_state *t = state_of_thread(tid);

	if (!t)
		return;
	if (t->cut_at && t->cut_at == round_began[current_round & 1])
		t->gone = 1;
	else if (!bpf_map_delete_elem(&threads, &tid))
		count_followed(tid, -1);
}

/* Where in its program a thread leaves its CPU; if it is preempted, that is anywhere. */
static __always_inline u64 place_of(struct task_struct *task, bool runnable)
{
	u64 place = hash_step(((u64)task->tgid << 32) + (runnable ? task->pid : 0), runnable);
	struct pt_regs *regs;
	struct scratch *s;
	u32 zero = 0;

	if (runnable)
		return place;
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs)) {
		regs = (struct pt_regs *)bpf_task_pt_regs(task);
		return hash_step(hash_step(place, PT_IP(regs)), PT_SP(regs));
	}
	s = bpf_map_lookup_elem(&scratches, &zero);
	if (s && read_pt_regs(task, &s->regs))
		return hash_step(hash_step(place, PT_IP(&s->regs)), PT_SP(&s->regs));
	return place;
}

static __always_inline void switched_out(void *ctx, u32 r, struct task_struct *task, bool preempted, u64 now)
{
	u32 tid = task->pid, tgid = task->tgid, zero = 0, state, chance;
	struct block_rate *rate;
	struct thread_state *t;
	u64 start;
	bool runnable;

	if (!tid || task->flags & PF_KTHREAD)
		return;
	state = state_of(task);
	if (state & TASK_DEAD) {
		thread_ended(tid);
		return;
	}
	start = task->group_leader->start_boottime;
	if (is_excluded(tgid, start))
		return;
	runnable = preempted || !state;
	t = follow(task);
	if (!t) {
		count_stat(r, STAT_OFF_UNTRACKED);
		return;
	}
	rate = bpf_map_lookup_elem(&rates, &zero);
	if (!rate)
		return;
	if (!now)
		now = bpf_ktime_get_ns();

	t->now.woken = runnable ? now : 0;
	t->now.waker = 0;
	t->now.chance = 0;
	t->site = (place_of(task, runnable) >> 20) % BLOCK_SITES;
	chance = chance_at(t->site, rate, now, &t->now.certain);
	t->drawn = chance != CHANCE_ONE;
	t->halted = !!(state & TASK_HALTED);
	if (!t->drawn || (bpf_get_prandom_u32() & (CHANCE_ONE - 1)) < chance) {
		rate->kept++;
		name_block(&t->now, task);
		if (keep_stack(ctx, r, task, &t->now, runnable, t->halted))
			t->now.chance = chance;
		now = bpf_ktime_get_ns(); /* it is on its CPU as long as its stack is taken */
		if (runnable)
			t->now.woken = now;
	}
	t->now.since = now;
}

/* Adds a time under the key in the scratch memory, whose frames are kept already where
 * s->fresh says. That is no variable of the program's: the verifier of Linux 7.2 takes
 * one for unused that a helper reads on some of the paths here. */
static __always_inline void add_under(u32 r, void *table, struct scratch *s, u64 time)
{
	struct sample_value *seen = bpf_map_lookup_elem(table, &s->key);
	long err = 0;

	count_stat(r, STAT_TAKEN);
	s->fresh.count = 1;
	s->fresh.time = time;
	if (!seen) {
		err = bpf_map_update_elem(table, &s->key, &s->fresh, BPF_NOEXIST);
		if (!err)
			return;
		seen = bpf_map_lookup_elem(table, &s->key); /* another CPU was first */
	}
	if (!seen) {
		count_stat(r, STAT_COUNTS_MAP_FULL);
		return;
	}
	__sync_fetch_and_add(&seen->count, 1);
	__sync_fetch_and_add(&seen->time, time);
}

/* Adds a part of a block to the round: what was waited for, and the time on the run
 * queue. Their frames are in the same place. */
static __always_inline void add_time(u32 r, void *table, struct scratch *s, u64 waker, u64 waited, u64 queued)
{
	struct sample_value *seen = bpf_map_lookup_elem(table, &s->key);

	s->fresh.chunk = NO_CHUNK;
	s->fresh.word = 0;
	if (seen) {
		s->fresh.chunk = seen->chunk;
		s->fresh.word = seen->word;
	}
	if (s->key.wait == WAIT_RUN_QUEUE) {
		add_under(r, table, s, waited + queued);
		return;
	}
	if (waited) {
		s->key.waker = waker;
		add_under(r, table, s, waited);
	}
	if (queued) {
		s->key.wait = WAIT_RUN_QUEUE;
		s->key.waker = 0;
		add_under(r, table, s, queued);
	}
}

/* Returns the time, 0 if it did not look. */
static __always_inline u64 switched_in(u32 r, struct task_struct *task)
{
	u32 tid = task->pid, zero = 0, chance;
	u64 began = round_began[r & 1], now, from, woken, waited, queued;
	struct thread_state *t;
	struct block_site *at;
	struct scratch *s;
	void *table;
	u64 length;
	u32 site;

	if (!tid || task->flags & PF_KTHREAD)
		return 0;
	t = state_of_thread(tid);
	if (!t || !t->now.since)
		return 0;
	now = bpf_ktime_get_ns();
	from = t->now.since;
	length = now - from;
	if (!t->now.woken && keeps_queued && has_queued(task))
		t->now.woken = now - queued_for(task);
	if (from < began && t->cut_at != began) {
		t->cut = t->now;
		t->cut_at = began;
		barrier();
	}
	t->now.since = 0;
	site = t->site;
	at = bpf_map_lookup_elem(&sites, &site);
	if (!at)
		return now;
	learn(at, length, t->drawn && length < t->now.certain, t->now.chance);
	chance = length >= t->now.certain ? CHANCE_ONE : t->now.chance;
	if (!chance) {
		count_stat(r, STAT_OFF_LEFT_OUT);
		return now;
	}
	table = bpf_map_lookup_elem(&counts, &r);
	s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || !table)
		return now;
	count_stat(r, STAT_OFF_SAMPLED);
	if (from < began)
		from = began;
	woken = t->now.woken;
	if (woken < from) /* 0: it was being woken when it left, and has been runnable since */
		woken = from;
	waited = woken - from;
	queued = now > woken ? now - woken : 0;
	if (chance != CHANCE_ONE) {
		waited = counts_for(at, waited, chance);
		queued = counts_for(at, queued, chance);
	}
	if (!t->now.chance)
		name_block(&t->now, task);
	s->key = t->now.key;
	if (!t->now.chance) {
		/* Not drawn. It does not run yet: its stack in the kernel is still there. */
		enum cpu_mode mode;

		s->key.wait = WAIT_OTHER;
		if (read_pt_regs(task, &s->regs)) {
			mode = regs_of_pt(&s->regs, &s->walker);
			s->key.wait = wait_cause_of(task, &s->regs, mode, t->halted);
			if (want_user) {
				s->words[0] = s->walker.ip;
				s->key.user_len = 1;
				s->key.user_hash = hash_step(hash_seed, s->walker.ip) | 1;
			}
		}
		s->key.user_end = STACK_NOT_SAMPLED;
		if (want_kernel)
			kernel_stack_of(task, s);
		if (!count(r, table, s, 0, 0)) {
			count_stat(r, STAT_TAKEN);
			return now;
		}
	}
	add_time(r, table, s, t->now.waker, waited, queued);
	return now;
}

/* TP_PROTO(bool preempt, struct task_struct *prev, struct task_struct *next, ...) */
SEC("tp_btf/sched_switch")
int BPF_PROG(off_cpu, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u32 r = current_round & 1;

	switched_out(ctx, r, prev, preempt, switched_in(r, next));
	return 0;
}

/* Keeps the stack of the current thread, which wakes another, and returns its number; 0 if
 * there is no room. In an interrupt it is whoever was interrupted: the stack in the kernel
 * tells. */
static __always_inline u64 keep_waker(void *ctx, u32 r)
{
	void *table = bpf_map_lookup_elem(&counts, &r);
	u32 zero = 0, flags;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	u64 number;

	if (!s || !table)
		return 0;
	__builtin_memset(&s->key, 0, sizeof(s->key));
	s->key.kind = SAMPLE_WAKER;
	s->key.tgid = bpf_get_current_pid_tgid() >> 32;
	flags = identify(&s->key);
	bpf_get_current_comm(s->key.comm, sizeof(s->key.comm));
	if (want_user && s->key.tgid && !(flags & PF_KTHREAD))
		user_stack(s, regs_of_task(&s->walker, &s->regs), flags & PF_EXITING);
	if (want_kernel)
		kernel_stack(ctx, s);
	number = hash_step(hash_step(s->key.user_hash, s->key.kernel_hash), s->key.start);
	number = hash_step(hash_step(number, *(u64 *)s->key.comm), ((u64)s->key.exec_id << 32) + s->key.tgid) | 1;
	s->key.waker = number;
	return count(r, table, s, 0, 0) ? number : 0;
}

/* Runs if it is to be known who wakes whom, or if the kernel does not keep when threads
 * came on their run queues.
 * TP_PROTO(struct task_struct *p) */
SEC("tp_btf/sched_waking")
int BPF_PROG(off_cpu_waking, struct task_struct *task)
{
	u32 tid = task->pid;
	struct thread_state *t = state_of_thread(tid);

	if (!t || !t->now.since || t->now.woken)
		return 0;
	t->now.woken = bpf_ktime_get_ns();
	if (want_waker && t->now.chance)
		t->now.waker = keep_waker(ctx, current_round & 1);
	return 0;
}

struct asleep_scratch {
	struct asleep asleep;
	struct pt_regs regs;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct asleep_scratch);
} asleep_scratches SEC(".maps");

/* Writes what can be known of the threads that went off their CPU without their stack being
 * kept. One reader at a time. */
SEC("iter/task")
int off_cpu_asleep(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *t;
	struct asleep_scratch *s;
	enum cpu_mode mode;
	struct asleep *a;
	u32 tid, zero = 0;
	u64 h = hash_seed;
	long size;

	if (!task)
		return 0;
	tid = task->pid;
	t = state_of_thread(tid);
	s = bpf_map_lookup_elem(&asleep_scratches, &zero);
	if (!s || !t || !t->now.since || t->now.chance)
		return 0;
	a = &s->asleep;
	__builtin_memset(a, 0, sizeof(*a));
	a->tid = tid;
	a->since = t->now.since;
	a->wait = WAIT_OTHER;
	if (!state_of(task))
		a->wait = WAIT_RUN_QUEUE;
	if (read_pt_regs(task, &s->regs)) {
		mode = mode_of_pt(&s->regs);
		if (want_user) {
			a->ip = PT_IP(&s->regs);
			a->user_hash = hash_step(hash_seed, a->ip) | 1;
		}
		if (a->wait != WAIT_RUN_QUEUE)
			a->wait = wait_cause_of(task, &s->regs, mode, state_of(task) & TASK_HALTED);
	}
	size = want_kernel ? bpf_get_task_stack(task, a->kernel, sizeof(a->kernel), 0) : 0;
	if (size > 0) {
		size /= sizeof(u64);
		for (int i = 0; i < ASLEEP_FRAMES && i < size; i++)
			h = hash_step(h, a->kernel[i]);
		a->kernel_len = size;
		a->kernel_hash = h ? h : 1;
	}
	bpf_seq_write(ctx->meta->seq, a, sizeof(*a));
	return 0;
}

#endif
