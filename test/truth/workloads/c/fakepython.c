/* Looks like a process of CPython 3.11 from the outside, and has in its memory what would lead a
 * reader astray: argument 1 says what. Burns CPU time for the seconds that argument 2 says. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <pthread.h>

struct string { /* PyASCIIObject */
	uint64_t refs, type, length, hash;
	uint32_t state;
	uint32_t pad;
	uint64_t wstr;
	char text[64];
};

struct code { /* PyCodeObject */
	uint64_t refs, type;
	char before[72 - 16];
	int32_t first_line;
	char between[112 - 76];
	struct string *file, *name, *qualified;
	void *lines;
	char rest[256];
};

struct frame { /* _PyInterpreterFrame */
	char before[32];
	struct code *code;
	void *object;
	struct frame *previous;
	void *instruction;
	int32_t top;
	char is_entry, owner;
	char rest[64];
};

struct cframe {
	uint64_t pad;
	struct frame *current;
};

struct thread { /* PyThreadState */
	struct thread *previous, *next;
	void *interpreter;
	char between[56 - 24];
	struct cframe *cframe;
	char more[152 - 64];
	uint64_t id;
	char rest[256];
};

struct interpreter { /* PyInterpreterState */
	struct interpreter *next;
	uint64_t pad;
	struct thread *threads;
	char rest[256];
};

struct {
	char before[40];
	struct interpreter *head;
	char rest[1024];
} _PyRuntime = {.rest = {1}};

#ifndef VERSION
#define VERSION 0x030b07f0
#endif

const unsigned long Py_Version = VERSION;

static struct string *string(const char *text)
{
	struct string *s = calloc(1, sizeof(*s));

	s->length = strlen(text);
	s->state = 1 << 2 | 1 << 5 | 1 << 6; /* a byte each, compact, ASCII */
	strcpy(s->text, text);
	return s;
}

static struct code *code(const char *name)
{
	struct code *c = calloc(1, sizeof(*c));

	c->refs = 1;
	c->first_line = 42;
	c->file = string("fake.py");
	c->name = c->qualified = string(name);
	c->lines = string("");
	return c;
}

static struct frame *frame(const char *name, struct frame *previous)
{
	struct frame *f = calloc(1, sizeof(*f));

	f->code = code(name);
	f->previous = previous;
	f->is_entry = !previous;
	return f;
}

/* What runs Python code, by its name. */
__attribute__((noinline)) int _PyEval_EvalFrameDefault(double seconds)
{
	clock_t end = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);

	while (clock() < end) {
		for (volatile int i = 0; i < 10000; i++)
			;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct interpreter interpreter;
	static struct thread thread;
	static struct cframe cframe;
	struct frame *root = frame("root", NULL), *leaf = frame("leaf", root);
	const char *how = argc > 1 ? argv[1] : "";

	interpreter.threads = &thread;
	thread.interpreter = &interpreter;
	thread.cframe = &cframe;
	thread.id = (uint64_t)pthread_self();
	cframe.current = leaf;
	_PyRuntime.head = &interpreter;

	if (!strcmp(how, "cycle")) {
		root->previous = leaf;
	} else if (!strcmp(how, "self")) {
		leaf->previous = leaf;
	} else if (!strcmp(how, "long cycle")) {
		struct frame *f = root;

		for (int i = 0; i < 100; i++)
			f = f->previous = frame("f", NULL);
		f->previous = root;
	} else if (!strcmp(how, "endless")) {
		for (int i = 0; i < 2000; i++)
			cframe.current = frame("f", cframe.current);
	} else if (!strcmp(how, "frame")) {
		root->previous = (struct frame *)0xdead000;
	} else if (!strcmp(how, "odd frame")) {
		root->previous = (struct frame *)((char *)leaf + 1);
	} else if (!strcmp(how, "code")) {
		root->code = (struct code *)0x7fffffffffff;
	} else if (!strcmp(how, "threads")) { /* none is this one's, and the last is the first */
		static struct thread other;

		thread.id = other.id = 1;
		thread.next = &other;
		other.next = &thread;
	} else if (!strcmp(how, "interpreters")) {
		static struct interpreter other;

		interpreter.threads = NULL;
		interpreter.next = &other;
		other.next = &interpreter;
	} else if (!strcmp(how, "length")) {
		root->code->qualified->length = ~0ULL;
	} else if (!strcmp(how, "large")) { /* the text is not all there */
		root->code->qualified->length = 1000000;
	} else if (!strcmp(how, "kind")) {
		root->code->qualified->state = 7 << 2 | 1 << 5;
	} else if (!strcmp(how, "string")) {
		root->code->file = (struct string *)0x1000;
	} else if (!strcmp(how, "text")) { /* no UTF-8, control characters, half a pair */
		root->code->qualified->state = 2 << 2 | 1 << 5 | 1 << 6;
		memcpy(root->code->qualified->text, "\x00\xd8\x00\x00\x0a\x00\xff\xff", 8);
		root->code->qualified->length = 4;
	} else if (!strcmp(how, "lines")) { /* a table that is longer than all memory */
		((struct string *)root->code->lines)->length = 1ULL << 62;
	} else if (!strcmp(how, "end of page")) {
		char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		munmap(page + 4096, 4096);
		root->previous = (struct frame *)(page + 4096 - 8);
	}
	printf("ready\n");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	_PyEval_EvalFrameDefault(argc > 2 ? atof(argv[2]) : 1);
	printf("{}\n");
	fflush(stdout);
	getchar();
	return 0;
}
