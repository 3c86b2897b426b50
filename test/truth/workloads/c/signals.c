/* SPDX-License-Identifier: Apache-2.0 */
/*
 * signals SECONDS CPU plain|alt: burns in handlers of signals, which run on the
 * thread's stack or on one of their own (sigaltstack):
 *   on_alarm   by a timer, that interrupts `interrupted` anywhere
 *   on_fault   by the first instruction of at_first, which faults: a return address
 *              there would be one of the function in front of it, in_front
 */
#include <sys/time.h>
#include <ucontext.h>

#include "workload.h"

/* Both are two frames, and in_front ends where at_first begins. The fault's
 * instruction is passed over by the handler. */
void at_first(void);
__asm__(".text\n"
	".balign 64\n"
	".globl in_front\n"
	".type in_front, %function\n"
	"in_front:\n"
	".cfi_startproc\n"
#if defined(__x86_64__)
	"	subq $4096, %rsp\n"
	".cfi_adjust_cfa_offset 4096\n"
	"	hlt\n"
#else
	"	sub sp, sp, 4096\n"
	".cfi_adjust_cfa_offset 4096\n"
	"	.inst 0\n"
#endif
	".cfi_endproc\n"
	".size in_front, .-in_front\n"
	".globl at_first\n"
	".type at_first, %function\n"
	"at_first:\n"
	".cfi_startproc\n"
#if defined(__x86_64__)
	"	ud2\n"
#else
	"	.inst 0\n"
#endif
	"	ret\n"
	".cfi_endproc\n"
	".size at_first, .-at_first\n"
	".previous\n");

static int64_t alarm_ns, fault_ns;

static FRAME void on_alarm(int sig)
{
	int64_t start = seen_ns();
	(void)sig;
	burn_until(cpu_ns() + MS);
	alarm_ns += seen_ns() - start;
	NO_TAIL_CALL();
}

static FRAME void on_fault(int sig, siginfo_t *info, void *context)
{
	int64_t start = seen_ns();
	ucontext_t *c = context;
	(void)sig, (void)info;
	burn_until(cpu_ns() + 2 * MS);
#if defined(__x86_64__)
	c->uc_mcontext.gregs[REG_RIP] += 2;
#else
	c->uc_mcontext.pc += 4;
#endif
	fault_ns += seen_ns() - start;
	NO_TAIL_CALL();
}

static FRAME void interrupted(int64_t until)
{
	burn_until(until);
	NO_TAIL_CALL();
}

static FRAME void call_first(void)
{
	at_first();
	NO_TAIL_CALL();
}

static void handle(int sig, void (*plain)(int), void (*with_info)(int, siginfo_t *, void *), int flags)
{
	struct sigaction sa = {.sa_flags = flags};
	if (with_info) {
		sa.sa_sigaction = with_info;
		sa.sa_flags |= SA_SIGINFO;
	} else {
		sa.sa_handler = plain;
	}
	if (sigaction(sig, &sa, NULL)) {
		perror("sigaction");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: %s SECONDS CPU plain|alt\n", argv[0]);
		return 2;
	}
	int64_t end = wall_ns() + (int64_t)(atof(argv[1]) * 1e9), inside = 0;
	int flags = SA_RESTART;
	stop_on_term();
	pin(atoi(argv[2]));
	srand((unsigned)getpid());
	if (!strcmp(argv[3], "alt")) {
		stack_t own = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
		if (!own.ss_sp || sigaltstack(&own, NULL)) {
			perror("sigaltstack");
			return 1;
		}
		flags |= SA_ONSTACK;
	}
	handle(SIGALRM, on_alarm, NULL, flags);
	handle(SIGILL, NULL, on_fault, flags);
	/* The time of day, not CPU time: the kernel's ticks would beat with it. */
	struct itimerval often = {{0, 3137}, {0, 3137}}, never = {{0, 0}, {0, 0}};
	while (go_on(end)) {
		int64_t start = seen_ns(), before = alarm_ns;
		setitimer(ITIMER_REAL, &often, NULL);
		interrupted(cpu_ns() + jittered(12 * MS));
		setitimer(ITIMER_REAL, &never, NULL);
		inside += seen_ns() - start - (alarm_ns - before);
		call_first();
	}
	printf("{\"functions\":{\"on_alarm\":%.6f,\"on_fault\":%.6f,\"interrupted\":%.6f},\"total\":%.6f}\n", seconds(alarm_ns),
	       seconds(fault_ns), seconds(inside), usage_s(RUSAGE_SELF) - seconds(unseen_ns));
	return 0;
}
