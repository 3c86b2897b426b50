/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the workloads of the truth tests share: burning a known amount of CPU, and
 * saying at the end how much it was.
 *
 * Compile with -O2 -D_GNU_SOURCE, with or without frame pointers. All time is that of the
 * thread's own clock (CLOCK_THREAD_CPUTIME_ID), so that the answer is known also on
 * a busy machine.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Not inlined, not cloned, and never the target of a tail call. */
#ifndef FRAME
#define FRAME __attribute__((noinline, noclone, used))
#endif
/* Behind a call, so that the call is not the last thing that its caller does. */
#define NO_TAIL_CALL() __asm__ volatile("")

#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)

#define INLINE inline __attribute__((always_inline))

/* clock_gettime(2) without the C library, which keeps no frame pointers: a sample
 * taken in there would lack the frame of the caller, and this is about the caller. */
static INLINE int64_t clock_ns(clockid_t id)
{
	struct timespec t;
	long err;
#if defined(__x86_64__)
	__asm__ volatile("syscall" : "=a"(err) : "0"((long)__NR_clock_gettime), "D"((long)id), "S"(&t) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long nr __asm__("x8") = __NR_clock_gettime, x0 __asm__("x0") = id;
	register struct timespec *x1 __asm__("x1") = &t;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(nr), "r"(x1) : "memory");
	err = x0;
#else
#error "how is a system call made here?"
#endif
	if (err) {
		fprintf(stderr, "clock_gettime: %s\n", strerror((int)-err));
		exit(1);
	}
	return t.tv_sec * SECOND + t.tv_nsec;
}

static INLINE int64_t cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
static INLINE int64_t wall_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Where the clock jumps while it is burnt, a virtual machine's processor did not run.
 * However long that was, a sampler's timer rings once behind it: what is more than a
 * period is time that nobody can see. */
#define JUMP (10 * MS)
static int64_t unseen_ns;

/* The thread's clock, without the time that nobody can see. */
static INLINE int64_t seen_ns(void) { return cpu_ns() - unseen_ns; }

/* Burns until the thread's clock says `until`. Always inlined: the time is the
 * caller's own. The clock is a system call, so it is read every 20 us or so only. */
static INLINE void burn_until(int64_t until)
{
	int64_t before = seen_ns();
	for (;;) {
		int64_t now = cpu_ns(), step = now - unseen_ns - before;
		if (step > JUMP)
			unseen_ns += step - JUMP;
		before = now - unseen_ns;
		if (now >= until)
			return;
		uint64_t x = (uint64_t)until | 1;
		for (int i = 0; i < 10000; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			__asm__ volatile("" : "+r"(x));
		}
	}
}

static volatile sig_atomic_t stopped;

static inline void on_term(int sig)
{
	(void)sig;
	stopped = 1;
}

/* A workload that calls this ends at SIGTERM, too, and says what it did. */
static inline void stop_on_term(void)
{
	signal(SIGTERM, on_term);
}

static INLINE int go_on(int64_t end_wall) { return !stopped && wall_ns() < end_wall; }

/* A slice of 10 ms on average, of 5 to 15: so it cannot beat with the sampling
 * clock, whatever its frequency. */
static inline int64_t jittered(int64_t mean)
{
	return mean / 2 + (int64_t)((double)mean * ((double)rand() / ((double)RAND_MAX + 1)));
}

static inline void pin(int cpu)
{
	if (cpu < 0)
		return;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		fprintf(stderr, "pin to CPU %d: %s\n", cpu, strerror(errno));
		exit(1);
	}
}

static inline double usage_s(int who)
{
	struct rusage r;
	if (getrusage(who, &r)) {
		perror("getrusage");
		exit(1);
	}
	return (double)r.ru_utime.tv_sec + (double)r.ru_stime.tv_sec +
	       1e-6 * ((double)r.ru_utime.tv_usec + (double)r.ru_stime.tv_usec);
}

static inline double seconds(int64_t ns) { return (double)ns / 1e9; }

/* The truth is printed as one JSON object a line:
 *   {"functions":{"name":SECONDS,...},"total":SECONDS,...}
 * where total is the CPU time of the whole process. Programs that use seen_ns leave
 * unseen_ns out of both. What else may be in it is in harness.Truth. */

#endif
