/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Walks user stacks by the tables that the agent makes of the files' call frame
 * information, and by frame pointers where a table says so.
 *
 *   processes: tgid -> space, the executable mappings, sorted: address -> file, offset
 *   files:     file -> root of its table
 *   nodes:     a file's table is a tree: offset in the file -> rule
 *   rules:     how to get from a frame to its caller's
 *
 * Nodes of all kinds are pages of segments, which the agent adds as it needs them.
 * What is missing is asked for, and the stack says so.
 */
#ifndef SPANFLAME_UNWIND_H
#define SPANFLAME_UNWIND_H

#include "regs.h"

#define NS_PER_TICK 10000000 /* USER_HZ is 100 */

struct segment_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SEGMENT_NODES);
	__uint(key_size, sizeof(u32));
	__uint(value_size, NODE_BYTES);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1); /* the agent sets it */
	__type(key, u32);
	__array(values, struct segment_map);
} segments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_RULES);
	__type(key, u32);
	__type(value, struct unwind_rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_UNWIND_FILES);
	__type(key, u32);
	__type(value, struct unwind_file);
} files SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* the agent sets it */
	__type(key, u32);
	__type(value, struct process_space);
} processes SEC(".maps");

/* Counts up slowly; files that are used have it in seen. Written by the agent. */
volatile u32 unwind_epoch = 0;

static __always_inline void *node_at(u32 id)
{
	u32 segment = id / SEGMENT_NODES, page = id % SEGMENT_NODES;
	void *m = bpf_map_lookup_elem(&segments, &segment);

	return m ? bpf_map_lookup_elem(m, &page) : 0;
}

/* 1 if a <= b, without a branch: the verifier would follow both ways. Both are less
 * than 2^63. */
static __always_inline u32 not_above(u64 a, u64 b)
{
	return 1 - (u32)((b - a) >> 63);
}

static __always_inline void ask(u32 kind, struct walker *w, u32 file, u64 address)
{
	struct process_event *e = bpf_ringbuf_reserve(&process_events, sizeof(*e), 0);

	if (!e)
		return;
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	e->kind = kind;
	e->tgid = w->tgid;
	e->exec_id = w->exec_id;
	e->start = w->start * NS_PER_TICK;
	e->parent = file;
	e->address = address;
	bpf_ringbuf_submit(e, 0);
}

/* Finds the mapping that covers an address. 0, or how the stack ends. */
static __always_inline int find_mapping(struct walker *w, u64 at)
{
	struct process_space *p = bpf_map_lookup_elem(&processes, &w->tgid);
	struct space_node *node;
	struct unwind_file *f;
	u32 id = 0, pos = 0, slot;

	w->map_end = 0;
	if (!p || p->start != w->start || (p->exec_id != w->exec_id && p->exec_id != ANY_EXEC)) {
		struct process_space asked = {};

		asked.start = w->start;
		asked.exec_id = w->exec_id;
		/* Asked once: without room for the answer there is no question. */
		if (!bpf_map_update_elem(&processes, &w->tgid, &asked, BPF_ANY))
			ask(ASK_PROCESS, w, 0, at);
		return STACK_NOT_LOADED;
	}
	if (!p->generation)
		return STACK_NOT_LOADED;
	if (at >= NO_ADDRESS)
		return STACK_NO_MAPPING;
	for (int i = 0; i < SPACE_NODES; i++) {
		if (at >= p->first[i])
			id = p->node[i];
	}
	node = id ? node_at(id) : 0;
	if (!node)
		return STACK_NO_MAPPING;
	if (node->entry[SPACE_ENTRIES - 1].end != p->generation)
		return STACK_NOT_LOADED; /* given to another meanwhile */
#pragma unroll
	for (u32 step = SPACE_ENTRIES / 2; step; step /= 2)
		pos += step * not_above(node->start[(pos + step) & (SPACE_ENTRIES - 1)], at);
	pos &= SPACE_ENTRIES - 1;
	if (at < node->start[pos] || at >= node->entry[pos].end)
		return STACK_NO_MAPPING;
	slot = node->entry[pos].file;
	f = bpf_map_lookup_elem(&files, &slot);
	if (!f)
		return STACK_NO_TABLE;
	if (f->seen != unwind_epoch)
		f->seen = unwind_epoch;
	if (f->state == FILE_UNLOADED) {
		f->state = FILE_ASKED;
		ask(ASK_FILE, w, slot, 0);
	}
	if (f->state == FILE_UNLOADED || f->state == FILE_ASKED)
		return STACK_NOT_LOADED;
	w->capture_slot = p->capture_slot;
	w->capture_deref = p->capture_deref;
	w->capture_marked = p->capture_marked;
	w->state = f->state;
	w->root = f->root;
	w->levels = f->levels;
	w->base = f->base;
	w->generation = f->generation;
	w->map_bias = node->entry[pos].bias;
	w->map_start = node->start[pos];
	w->map_end = node->entry[pos].end;
	return 0;
}

/* What was found lately. Return addresses come again and again. */
#define CACHED_RULES 512

struct rule_cache {
	struct {
		u64 key; /* generation of the table, offset */
		u64 rule;
	} entry[CACHED_RULES];
};

static __always_inline u32 search_rule(struct walker *w, u64 offset);

static __always_inline u32 find_rule(struct rule_cache *c, struct walker *w, u64 offset)
{
	u64 key = (u64)w->generation << 32 | (u32)offset;
	u32 slot = (u32)((key * 0x9e3779b97f4a7c15ULL) >> 55) & (CACHED_RULES - 1);
	u32 rule;

	if (offset >> 32)
		return 0;
	if (c->entry[slot].key == key)
		return c->entry[slot].rule;
	rule = search_rule(w, offset);
	c->entry[slot].key = key;
	c->entry[slot].rule = rule;
	return rule;
}

/* Finds the number of the rule for an offset in the walker's file. */
static __always_inline u32 search_rule(struct walker *w, u64 offset)
{
	u32 id = w->root, base = w->base, pos = 0;
	struct table_leaf *leaf;
	u64 rel;

	for (int level = 0; level < TABLE_LEVELS; level++) {
		struct table_inner *n;

		if (level >= w->levels)
			break;
		n = node_at(id);
		if (!n)
			return 0;
		pos = 0;
#pragma unroll
		for (u32 step = INNER_ENTRIES / 2; step; step /= 2)
			pos += step * not_above(n->start[(pos + step) & (INNER_ENTRIES - 1)], offset);
		pos &= INNER_ENTRIES - 1;
		base = n->start[pos];
		id = n->child[pos];
	}
	if (offset < base)
		return 0;
	rel = offset - base;
	if (rel > LEAF_SPAN)
		rel = LEAF_SPAN;
	leaf = node_at(id);
	if (!leaf)
		return 0;
	pos = 0;
#pragma unroll
	for (u32 step = LEAF_ROWS / 2; step; step /= 2)
		pos += step * not_above(leaf->offset[(pos + step) & (LEAF_ROWS - 1)], rel);
	return leaf->rule[pos & (LEAF_ROWS - 1)];
}

#define WINDOW_BELOW 56 /* bytes that are read as well, for what a frame saved next to it */

/* Reads a word of the thread's stack, and what is around it for the words to come. */
static __noinline bool read_word(struct walker *w, u64 *to, u64 addr)
{
	u64 off = addr - w->window_at, at = addr - WINDOW_BELOW;

	if (addr & 7)
		return bpf_probe_read_user(to, sizeof(*to), (void *)addr) == 0;
	if (!w->window_at || off >= sizeof(w->window)) {
		if (at < w->sp && w->sp <= addr)
			at = (w->sp + 7) & ~7ULL;
		if (bpf_probe_read_user(w->window, sizeof(w->window), (void *)at)) {
			w->window_at = 0; /* it would reach into memory that is not there */
			return bpf_probe_read_user(to, sizeof(*to), (void *)addr) == 0;
		}
		w->window_at = at;
		off = addr - at;
	}
	*to = w->window[(off / 8) & (WINDOW_WORDS - 1)];
	return true;
}

/* The caller by frame pointers: [fp] is the caller's fp, [fp+8] the return address
 * (x86-64 psABI 3.4.1, AAPCS64 6.4.6). The outermost frame has fp 0. */
static __always_inline int step_by_chain(struct walker *w, bool may_switch)
{
	u64 fp, ip;

	if (!w->fp)
		return STACK_WHOLE;
	if ((w->fp & 7) || (w->fp < w->sp && !may_switch))
		return STACK_BROKEN_CHAIN;
	if (!read_word(w, &fp, w->fp) || !read_word(w, &ip, w->fp + 8))
		return STACK_BAD_MEMORY;
	w->ip = ip;
	w->sp = w->fp + 16;
	w->fp = fp;
	return 0;
}

static __always_inline int step_by_rule(struct walker *w, struct unwind_rule *r, bool innermost)
{
	u64 cfa, fp = w->fp, ip;

	switch (r->cfa) {
	case CFA_SP:
		cfa = w->sp;
		break;
	case CFA_FP:
		cfa = w->fp;
		break;
	case CFA_END:
		return STACK_WHOLE;
	case CFA_NONE:
		return STACK_NO_ROW;
	case CFA_REGISTER:
		if (!innermost || r->reg >= DWARF_REGS)
			return STACK_UNSUPPORTED_ROW;
		cfa = w->regs[r->reg];
		break;
	case CFA_SP_DEREF:
		if (!read_word(w, &cfa, w->sp + (s64)r->deref))
			return STACK_BAD_MEMORY;
		break;
	case CFA_FP_DEREF:
		if (!read_word(w, &cfa, w->fp + (s64)r->deref))
			return STACK_BAD_MEMORY;
		break;
	case CFA_PLT:
		cfa = w->sp + ((w->ip & 15) >= r->deref ? 8 : 0);
		break;
	case CFA_CHAIN:
		return step_by_chain(w, false);
	case CFA_GO_CHAIN:
		if (!w->exact || !r->cfa_off)
			return step_by_chain(w, true);
		/* It runs or was interrupted: its frame may not be in the chain yet, or never. The
		 * stack pointer is cfa_off below the caller's. A frame of its own begins with the caller's fp. */
		cfa = w->sp + (s64)r->cfa_off;
		if (!read_word(w, &ip, cfa - 8))
			return STACK_BAD_MEMORY;
		if (r->cfa_off > 8 && !read_word(w, &fp, cfa - 16))
			return STACK_BAD_MEMORY;
		w->ip = ip;
		w->sp = cfa;
		w->fp = fp;
		return 0;
	default:
		return STACK_UNSUPPORTED_ROW;
	}
	cfa += (s64)r->cfa_off;
	/* A stack grows down; only a signal handler's may be elsewhere. */
	if (cfa <= w->sp && !r->signal && !innermost)
		return STACK_BROKEN_CHAIN;

	switch (r->ra) {
	case SAVED_CFA:
		if (!read_word(w, &ip, cfa + (s64)r->ra_off))
			return STACK_BAD_MEMORY;
		break;
	case SAVED_SP:
		if (!read_word(w, &ip, w->sp + (s64)r->ra_off))
			return STACK_BAD_MEMORY;
		break;
	case SAVED_SAME:
		if (!innermost)
			return STACK_BROKEN_CHAIN;
		ip = LINK_REGISTER(w);
		break;
	case SAVED_REG:
		if (!innermost || r->ra_off < 0 || r->ra_off >= DWARF_REGS)
			return STACK_UNSUPPORTED_ROW;
		ip = w->regs[r->ra_off];
		break;
	default:
		return STACK_UNSUPPORTED_ROW;
	}

	switch (r->fp) {
	case SAVED_SAME:
		break;
	case SAVED_CFA:
		if (!read_word(w, &fp, cfa + (s64)r->fp_off))
			return STACK_BAD_MEMORY;
		break;
	case SAVED_SP:
		if (!read_word(w, &fp, w->sp + (s64)r->fp_off))
			return STACK_BAD_MEMORY;
		break;
	case SAVED_FP:
		if (!read_word(w, &fp, w->fp + (s64)r->fp_off))
			return STACK_BAD_MEMORY;
		break;
	case SAVED_REG:
		if (innermost && r->fp_off >= 0 && r->fp_off < DWARF_REGS)
			fp = w->regs[r->fp_off];
		else
			fp = 1;
		break;
	default:
		fp = 1; /* lost: no address that can be read */
	}
	w->ip = ip;
	w->sp = cfa;
	w->fp = fp;
	return 0;
}

#endif
