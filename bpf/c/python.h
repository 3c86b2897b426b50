/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Walks the frames of CPython's functions, which the interpreter links.
 *
 *   python_processes: tgid -> address of _PyRuntime, layout
 *   python_layouts:   where a version has its fields
 *   python_threads:   tid -> PyThreadState of a thread, as it was found
 *   python_codes:     number of a function -> its names; the agent takes out what is no
 *                     longer seen
 *
 * All memory is the target's: nothing that it says is believed to be true, only bounded.
 */
#ifndef SPANFLAME_PYTHON_H
#define SPANFLAME_PYTHON_H

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* the agent sets it */
	__type(key, u32);
	__type(value, struct python_process);
} python_processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PYTHON_LAYOUTS);
	__type(key, u32);
	__type(value, struct python_layout);
} python_layouts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* the agent sets it */
	__type(key, u32);
	__type(value, struct python_thread);
} python_threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* the agent sets it */
	__type(key, u64);
	__type(value, struct python_code);
} python_codes SEC(".maps");

/* Counts up when functions are taken out of python_codes. Written by the agent. */
volatile u64 python_epoch = 1;

#define MAX_PYTHON_THREADS 1024 /* states that are looked at to find a thread's */
#define MAX_PYTHON_STEPS 512    /* frames and entries */

/* Read at a place in memory. */
static __always_inline bool read_at(u64 *to, u64 at, u32 offset)
{
	return !bpf_probe_read_user(to, sizeof(*to), (void *)(at + offset));
}

static __always_inline u64 *python_word(struct scratch *s, u32 i)
{
	asm volatile("" : "+r"(i));
	return &s->words[i & 1023];
}

/* A field of a struct whose first 128 bytes have been read. */
static __always_inline u64 field_of(u64 *words, u32 offset)
{
	u32 i = offset / 8;

	asm volatile("" : "+r"(i));
	return words[i & 15];
}

static __always_inline u32 small_field_of(u64 *words, u32 offset)
{
	return field_of(words, offset) >> (8 * (offset & 7));
}

/* A length of at most 255 as the verifier of 5.10 believes it where it is used. Behind what
 * is read there is always so much more of the scratch memory. */
#define BELIEVED(n)                                        \
	({                                                 \
		u64 _n = (n);                              \
		asm volatile("%0 &= 255" : "+r"(_n));      \
		(u32)_n;                                   \
	})

/* Prepares the walker for a thread of a process that runs CPython. */
static __always_inline void python_begin(struct scratch *s)
{
	struct walker *w = &s->walker;
	struct python_process *p = bpf_map_lookup_elem(&python_processes, &w->tgid);

	s->python.walked = false;
	s->python.len = 0;
	if (!p || p->start != w->start || (p->exec_id != w->exec_id && p->exec_id != ANY_EXEC))
		return;
	w->text = p->text;
	w->text_bytes = p->text_bytes;
	for (int i = 0; i < PYTHON_EVALS; i++) {
		w->eval[i] = p->eval[i];
		w->eval_bytes[i] = p->eval_bytes[i];
	}
	w->interpreted = false;
	w->evals = 0;
	w->evals_wanted = p->own ? 1 : ~0U;
	s->python.runtime = p->runtime;
	s->python.layout = p->layout;
	s->python.tgid = w->tgid;
	s->python.start = w->start;
}

/* A child has its parent's memory. */
static __always_inline void python_forked(u32 parent, struct task_struct *child)
{
	struct python_process *p = bpf_map_lookup_elem(&python_processes, &parent);
	struct python_process copy;
	u32 tgid;

	if (!p)
		return;
	copy = *p;
	tgid = BPF_CORE_READ(child, tgid);
	copy.start = BPF_CORE_READ(child, start_boottime) / NS_PER_TICK;
	copy.exec_id = (u32)BPF_CORE_READ(child, self_exec_id);
	bpf_map_update_elem(&python_processes, &tgid, &copy, BPF_ANY);
}

#if defined(__TARGET_ARCH_x86)

/* Looks at one thread's state, and goes on to the next. 0: go on; 1: this is it; 2: there
 * are no more. */
__noinline int python_next_thread(void)
{
	u32 zero = 0, layout;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	struct python_layout *o;
	struct python_walker *p;
	u64 id = 0, frame = 0;

	if (!s)
		return 2;
	p = &s->python;
	layout = p->layout;
	o = bpf_map_lookup_elem(&python_layouts, &layout);
	if (!o)
		return 2;
	if (!p->thread) {
		/* The next interpreter. */
		if (!read_at(&p->interpreter, p->interpreter, o->interpreter_next) || !p->interpreter)
			return 2;
		return read_at(&p->thread, p->interpreter, o->threads) ? 0 : 2;
	}
	if (!read_at(&id, p->thread, o->thread_id))
		return 2;
	if (id == p->pointer) {
		/* A thread has one in each interpreter that it runs. The newest comes first: who was
		 * entered last. */
		if (!p->chosen)
			p->chosen = p->thread;
		if (read_at(&frame, p->thread, o->thread_frame) && frame) {
			p->chosen = p->thread;
			return 1;
		}
	}
	return read_at(&p->thread, p->thread, o->thread_next) ? 0 : 2;
}

/* Finds the state of the current thread: p->chosen, 0 if it has none. */
static __always_inline bool python_find_thread(struct scratch *s, struct python_layout *o)
{
	struct python_walker *p = &s->python;
	struct python_thread *known, fresh = {};
	u32 tid = (u32)bpf_get_current_pid_tgid();
	u64 head = 0, next = 0, id = 0;

	if (!read_at(&head, p->runtime, o->interpreters) || !head)
		return false;
	known = bpf_map_lookup_elem(&python_threads, &tid);
	if (known && known->interpreters == head && read_at(&id, known->thread, o->thread_id) && id == p->pointer) {
		p->chosen = known->thread;
		return true;
	}
	p->chosen = 0;
	p->interpreter = head;
	if (!read_at(&p->thread, head, o->threads))
		return false;
	for (int i = 0; i < MAX_PYTHON_THREADS; i++) {
		if (python_next_thread())
			break;
	}
	if (!p->chosen)
		return true;
	if (read_at(&next, head, o->interpreter_next) && !next) {
		fresh.thread = p->chosen;
		fresh.interpreters = head;
		bpf_map_update_elem(&python_threads, &tid, &fresh, BPF_ANY);
	}
	return true;
}

/* What a string takes in memory: where its text is, how many bytes that has, and how many a
 * character. NO_STRING: it cannot be read, or is of no kind that names are. */
#define NO_STRING 0xffffffff

static __always_inline u32 python_string(struct python_layout *o, u64 at, u64 *text, u8 *kind)
{
	u64 length = 0;
	u32 state = 0, width;

	if (!read_at(&length, at, o->string_length) || length >= 1 << 20)
		return NO_STRING;
	if (bpf_probe_read_user(&state, sizeof(state), (void *)(at + o->string_state)))
		return NO_STRING;
	width = state >> 2 & 7;
	if (!(state >> 5 & 1) || (width != 1 && width != 2 && width != 4))
		return NO_STRING; /* not compact */
	*kind = width;
	*text = at + (state >> 6 & 1 ? o->string_ascii : o->string_compact);
	return (u32)length * width;
}

/* Keeps the names of the function whose code object is in the walker's memory. */
__noinline int python_name(void)
{
	u32 zero = 0, layout, n;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	struct python_layout *o;
	struct python_walker *p;
	struct python_code *c;
	u64 text = 0, id;
	u8 kind = 0;

	if (!s)
		return 1;
	p = &s->python;
	c = &p->fresh;
	layout = p->layout;
	o = bpf_map_lookup_elem(&python_layouts, &layout);
	if (!o)
		return 1;
	id = *python_word(s, MAX_USER_FRAMES + PYTHON_WORDS * p->len);
	c->start = p->start;
	c->tgid = p->tgid;
	c->layout = layout;
	c->name = field_of(p->code, o->code_name);
	c->lines = field_of(p->code, o->code_lines);
	c->first_line = small_field_of(p->code, o->code_first_line);

	c->name_size = python_string(o, c->name, &text, &kind);
	if (c->name_size == NO_STRING)
		return 1;
	c->name_kind = kind;
	n = c->name_size;
	if (n > PYTHON_NAME_BYTES)
		n = PYTHON_NAME_BYTES;
	if (bpf_probe_read_user(c->name_text, BELIEVED(n), (void *)text))
		return 1;

	c->file_size = python_string(o, field_of(p->code, o->code_file), &text, &kind);
	if (c->file_size == NO_STRING)
		return 1;
	c->file_kind = kind;
	n = c->file_size;
	if (n > PYTHON_FILE_BYTES) {
		text += n - PYTHON_FILE_BYTES; /* a multiple of 4 less than a multiple of the kind */
		n = PYTHON_FILE_BYTES;
	}
	if (bpf_probe_read_user(c->file_text, BELIEVED(n), (void *)text))
		return 1;
	if (bpf_map_update_elem(&python_codes, &id, c, BPF_ANY))
		return 2;
	ask(ASK_CODE, &s->walker, 0, id);
	return 0;
}

static __always_inline void count_stat(u32 r, enum round_stat stat);

/* Keeps the walker's frame as the next one, and goes on to its caller. 0, or how the Python
 * stack ends. */
__noinline int python_frame(void)
{
	u32 zero = 0, layout, n, slot, owner = 0, at, size;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	struct python_layout *o;
	struct python_walker *p;
	u64 code, back, id, where;
	int e;

	if (!s)
		return STACK_BAD_MEMORY;
	p = &s->python;
	layout = p->layout;
	o = bpf_map_lookup_elem(&python_layouts, &layout);
	if (!o)
		return STACK_BAD_MEMORY;
	if (!p->frame)
		return STACK_WHOLE;
	if (p->frame & 7)
		return STACK_BROKEN_CHAIN;
	/* Brent's way to find a cycle. */
	if (p->frame == p->tortoise)
		return STACK_BROKEN_CHAIN;
	if (!(p->steps & (p->steps - 1)))
		p->tortoise = p->frame;
	p->steps++;

	size = o->frame_bytes;
	if (size > sizeof(p->words))
		return STACK_BAD_MEMORY;
	if (bpf_probe_read_user(p->words, BELIEVED(size), (void *)p->frame))
		return STACK_BAD_MEMORY;
	back = field_of(p->words, o->frame_back);
	n = read_back(p->len);
	if (n >= MAX_PYTHON_FRAMES)
		return STACK_TOO_DEEP;
	at = MAX_USER_FRAMES + PYTHON_WORDS * n;
	if (o->frame_owner != PYTHON_NONE)
		owner = small_field_of(p->words, o->frame_owner) & 0xff;
	if (o->frame_owner != PYTHON_NONE && owner >= o->shim_owner) {
		/* No function: it stands for the interpreter's having been entered. */
		if (n) {
			*python_word(s, at - 1) |= PYTHON_ENTRY;
			p->runs++;
			s->walker.hash = hash_step(s->walker.hash, PYTHON_ENTRY);
		}
		p->frame = back;
		return 0;
	}
	code = field_of(p->words, o->frame_code) & ~7ULL; /* 3.14 has flags in it */
	size = o->code_bytes;
	if (size > sizeof(p->code))
		return STACK_BAD_MEMORY;
	if (bpf_probe_read_user(p->code, BELIEVED(size), (void *)(code + o->code_from)))
		return STACK_BAD_MEMORY;

	where = PYTHON_AT;
	switch (o->instruction) {
	case PYTHON_BYTES:
		where = small_field_of(p->words, o->frame_instruction);
		break;
	case PYTHON_UNITS:
		where = (u32)small_field_of(p->words, o->frame_instruction) * 2;
		break;
	case PYTHON_ADDRESS:
		where = field_of(p->words, o->frame_instruction) - (code + o->code_instructions);
		break;
	}
	if (where >> 24)
		where = PYTHON_AT;
	if (o->frame_owner == PYTHON_NONE || (o->frame_is_entry != PYTHON_NONE && (small_field_of(p->words, o->frame_is_entry) & 0xff)))
		where |= PYTHON_ENTRY;
	if (where & PYTHON_ENTRY)
		p->runs++;

	id = hash_step(hash_step(hash_seed, code), field_of(p->code, o->code_name));
	id = hash_step(hash_step(id, field_of(p->code, o->code_file)), small_field_of(p->code, o->code_first_line));
	id = hash_step(id, (p->start << 22) ^ p->tgid);
	*python_word(s, at) = id;
	*python_word(s, at + 1) = where;
	s->walker.hash = hash_step(hash_step(s->walker.hash, id), where);
	slot = id & 255;
	if (p->named[slot].id != id || p->named[slot].epoch != python_epoch) {
		e = 0;
		if (!bpf_map_lookup_elem(&python_codes, &id)) {
			p->fresh.code = code;
			e = python_name();
		}
		if (!e) {
			p->named[slot].id = id;
			p->named[slot].epoch = python_epoch;
		} else if (e == 2) {
			count_stat(current_round & 1, STAT_PYTHON_FULL);
		}
	}
	p->len = n + 1;
	p->frame = back;
	return 0;
}

/* Walks the Python frames of the current thread. They are kept behind the room for user
 * frames. */
__noinline int python_stack(void)
{
	u32 zero = 0, layout;
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	struct python_layout *o;
	struct python_walker *p;
	int end = STACK_TOO_DEEP;

	if (!s)
		return 0;
	p = &s->python;
	layout = p->layout;
	o = bpf_map_lookup_elem(&python_layouts, &layout);
	if (!o)
		return 0;
	p->pointer = BPF_CORE_READ(task, thread.fsbase);
	p->walked = true;
	p->len = 0;
	p->runs = 0;
	p->steps = 0;
	p->tortoise = 0;
	if (!python_find_thread(s, o)) {
		s->key.python_end = STACK_BAD_MEMORY;
		return 0;
	}
	if (!p->chosen)
		return 0; /* no thread of the interpreter's */
	if (!read_at(&p->frame, p->chosen, o->thread_frame) ||
	    (o->cframe_frame != PYTHON_NONE && (!p->frame || !read_at(&p->frame, p->frame, o->cframe_frame)))) {
		s->key.python_end = STACK_BAD_MEMORY;
		return 0;
	}
	for (int i = 0; i < MAX_PYTHON_STEPS; i++) {
		int e = python_frame();

		if (e) {
			end = e;
			break;
		}
	}
	s->key.python_end = end;
	return 0;
}

/* The native walk has come to a frame that runs Python code. 1 if it is the outermost one: in
 * Python's own program there is nothing beyond that is not in all stacks. */
__noinline int python_reached(void)
{
	u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	struct walker *w;

	if (!s)
		return 0;
	w = &s->walker;
	if (!s->python.walked) {
		python_stack();
		w->evals_wanted = s->key.python_end == STACK_WHOLE && s->python.runs ? s->python.runs : ~0U;
	}
	return w->evals >= w->evals_wanted;
}

/* Puts the Python frames behind the user frames. */
__noinline int python_place(void)
{
	u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	u64 to, size;

	if (!s)
		return 0;
	to = s->key.user_len;
	size = s->python.len;
	if (!size || size > MAX_PYTHON_FRAMES)
		return 0;
	s->key.python_len = size;
	if (to >= MAX_USER_FRAMES)
		return 0;
	asm volatile("%0 &= 511" : "+r"(to));
	size *= PYTHON_WORDS * sizeof(u64);
	asm volatile("%0 &= 4095" : "+r"(size));
	bpf_probe_read_kernel(&s->words[to], size, &s->words[MAX_USER_FRAMES]);
	return 0;
}

#else

__noinline int python_reached(void)
{
	return 0;
}

__noinline int python_place(void)
{
	return 0;
}

__noinline int python_stack(void)
{
	return 0; /* how to find a thread's state is not known */
}

#endif
#endif
