/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shapes SECONDS CPU: burns by turns in functions whose frames are hard to unwind. Each
 * in_X is called by main:
 *   in_vla        a stack frame whose size is known at run time only, above vla_leaf
 *   in_realigned  one that is aligned to more than the ABI asks for, above realigned_leaf
 *   in_qsort      compare, called back by the C library
 *   in_plt        very short calls through the PLT, so that stubs are sampled
 *   in_vfork      vfork_child, which runs on its parent's stack
 *   in_throw      exceptions through 20 frames of thrower
 *   in_noreturn   never, whose return address lies behind the end of its caller
 *   in_read       system calls
 *   in_thread     thread_burn, in a thread
 *   in_context    context_burn, on a stack of its own (makecontext)
 */
#include <alloca.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdexcept>
#include <sys/wait.h>
#include <ucontext.h>

#include "workload.h"

#define KEEP(p) __asm__ volatile("" : : "r"(p) : "memory")

extern "C" {

static int64_t child_ns; /* CPU time that is not in this thread's clock */

FRAME void vla_leaf(int64_t until)
{
	burn_until(until);
	NO_TAIL_CALL();
}

FRAME void in_vla(int64_t until)
{
	while (cpu_ns() < until) {
		char *p = (char *)alloca((size_t)(rand() % 3000 + 16));
		KEEP(p);
		vla_leaf(cpu_ns() + 200000);
		KEEP(p);
		if ((uintptr_t)&p - (uintptr_t)p > 1 << 20)
			break; /* what alloca took is given back at the return only */
	}
}

FRAME void realigned_leaf(int64_t until, const char *p)
{
	KEEP(p);
	burn_until(until);
	NO_TAIL_CALL();
}

FRAME void in_realigned(int64_t until)
{
	alignas(64) char fixed[256];
	char *more = (char *)alloca((size_t)(rand() % 2000 + 16));
	KEEP(more);
	KEEP(fixed);
	realigned_leaf(until, fixed);
	KEEP(more);
	KEEP(fixed);
}

static int64_t compare_each;

FRAME int compare(const void *a, const void *b)
{
	burn_until(cpu_ns() + compare_each);
	return *(const int *)a - *(const int *)b;
}

FRAME void in_qsort(int64_t until)
{
	int list[32];
	for (int i = 0; i < 32; i++)
		list[i] = rand() % 1000;
	compare_each = (until - cpu_ns()) / 120;
	qsort(list, 32, sizeof(*list), compare);
	KEEP(list);
}

extern long plt_callee(long) __asm__("labs");

FRAME void in_plt(int64_t until)
{
	long x = -1;
	while (cpu_ns() < until)
		for (int i = 0; i < 5000; i++) {
			x = plt_callee(x - i);
			KEEP(x);
		}
}

FRAME void vfork_child(int64_t ns)
{
	burn_until(cpu_ns() + ns);
	NO_TAIL_CALL();
}

FRAME void in_vfork(int64_t ns)
{
	struct rusage use;
	int status;
	pid_t pid = vfork();
	if (pid == 0) {
		vfork_child(ns);
		_exit(0);
	}
	if (pid < 0 || wait4(pid, &status, 0, &use) != pid || status) {
		perror("vfork");
		exit(1);
	}
	child_ns += ns;
}

FRAME void thrower(int depth)
{
	if (depth == 0)
		throw std::runtime_error("as it should be");
	thrower(depth - 1);
	NO_TAIL_CALL();
}

FRAME void in_throw(int64_t until)
{
	while (cpu_ns() < until) {
		try {
			thrower(19);
		} catch (const std::exception &e) {
			KEEP(&e);
		}
	}
}

static jmp_buf back;

__attribute__((noinline, noclone, used, noreturn)) void never(int64_t until)
{
	burn_until(until);
	longjmp(back, 1);
}

/* Its call of never is its last instruction. */
__attribute__((noinline, noclone, used, noreturn)) void calls_never(int64_t until)
{
	never(until);
}

FRAME void in_noreturn(int64_t until)
{
	if (!setjmp(back))
		calls_never(until);
	NO_TAIL_CALL();
}

static int zero_fd;

FRAME void in_read(int64_t until)
{
	static char buf[1 << 16];
	while (cpu_ns() < until)
		if (read(zero_fd, buf, sizeof(buf)) < 0)
			exit(1);
}

FRAME void thread_burn(int64_t ns)
{
	burn_until(cpu_ns() + ns);
	NO_TAIL_CALL();
}

static void *run_thread(void *ns)
{
	thread_burn((int64_t)(intptr_t)ns);
	return nullptr;
}

FRAME void in_thread(int64_t ns)
{
	pthread_t t;
	if (pthread_create(&t, nullptr, run_thread, (void *)(intptr_t)ns) || pthread_join(t, nullptr))
		exit(1);
	child_ns += ns;
}

static ucontext_t home, away;
static int64_t away_until;

FRAME void context_burn(void)
{
	burn_until(away_until);
	NO_TAIL_CALL();
}

FRAME void in_context(int64_t until)
{
	static char own[1 << 16];
	away_until = until;
	getcontext(&away);
	away.uc_stack.ss_sp = own;
	away.uc_stack.ss_size = sizeof(own);
	away.uc_link = &home;
	makecontext(&away, context_burn, 0);
	swapcontext(&home, &away);
	NO_TAIL_CALL();
}

} /* extern "C" */

struct shape {
	const char *name;
	void (*burn)(int64_t);
	bool other; /* the time is another thread's: it is handed how long, not until when */
	int64_t spent;
};

static struct shape shapes[] = {
	{"in_vla", in_vla, false, 0},     {"in_realigned", in_realigned, false, 0}, {"in_qsort", in_qsort, false, 0},
	{"in_plt", in_plt, false, 0},     {"in_vfork", in_vfork, true, 0},          {"in_throw", in_throw, false, 0},
	{"in_noreturn", in_noreturn, false, 0}, {"in_read", in_read, false, 0},     {"in_thread", in_thread, true, 0},
	{"in_context", in_context, false, 0},
};

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s SECONDS CPU\n", argv[0]);
		return 2;
	}
	int64_t end = wall_ns() + (int64_t)(atof(argv[1]) * 1e9);
	pin(atoi(argv[2]));
	srand((unsigned)getpid());
	if ((zero_fd = open("/dev/zero", O_RDONLY)) < 0)
		return 1;
	while (wall_ns() < end) {
		for (struct shape &s : shapes) {
			int64_t ns = jittered(5 * MS), start = cpu_ns(), others = child_ns;
			s.burn(s.other ? ns : start + ns);
			s.spent += cpu_ns() - start + child_ns - others;
		}
	}
	printf("{\"functions\":{");
	const char *comma = "";
	for (struct shape &s : shapes) {
		printf("%s\"%s\":%.6f", comma, s.name, seconds(s.spent));
		comma = ",";
	}
	printf("},\"total\":%.6f}\n", usage_s(RUSAGE_SELF) + usage_s(RUSAGE_CHILDREN));
	return 0;
}
