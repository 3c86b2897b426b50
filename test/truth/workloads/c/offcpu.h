/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the workloads of off-CPU profiles share: a thread's own account of where its time
 * went. The clocks:
 *   elapsed    CLOCK_MONOTONIC
 *   CPU time   perf's task clock (PERF_COUNT_SW_TASK_CLOCK), from switch to switch. The
 *              scheduler's CLOCK_THREAD_CPUTIME_ID is printed, too, but no measure of short
 *              waits: it begins up to some microseconds before the switch, at the wake-up that
 *              asked for it (rq_clock_skip_update), and lacks what a hypervisor stole
 *   run queue  /proc/self/task/TID/schedstat, the second number: nanoseconds runnable, but
 *              not running, whether woken or preempted (CONFIG_SCHED_INFO)
 */
#ifndef OFFCPU_H
#define OFFCPU_H

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/prctl.h>

#include "workload.h"

static inline _Noreturn void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* clocks are those of a thread at one moment. */
struct clocks {
	int64_t wall, cpu, run_queue;
};

/* thread_truth is what a thread says of itself. */
struct thread_truth {
	int64_t elapsed, cpu, run_queue;
	int64_t sched_cpu; /* CPU time by CLOCK_THREAD_CPUTIME_ID */
	int64_t waited;  /* in its waits, on no CPU and not runnable */
	int64_t other;   /* of it, in what is not the wait that the thread is for */
	int64_t asked;   /* how long it asked to wait; 0 if another thread decides */
	long waits;
	long switches;   /* voluntary ones, and preemptions */
	long preempted;  /* preemptions */
	int tid;
	int schedstat, perf; /* file descriptors */
	struct clocks began;
	struct rusage usage; /* when it began */
};

/* open_task_clock counts the CPU time of this thread, which takes CAP_PERFMON or root. */
static inline int open_task_clock(void)
{
	struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof(attr), .config = PERF_COUNT_SW_TASK_CLOCK};
	int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd < 0)
		die("perf_event_open");
	return fd;
}

static INLINE int64_t task_clock_ns(int perf)
{
	int64_t ns;
	if (read(perf, &ns, sizeof(ns)) != sizeof(ns))
		die("read the task clock");
	return ns;
}

static inline int64_t run_queue_ns(int schedstat)
{
	char text[64], *second;
	ssize_t n = pread(schedstat, text, sizeof(text) - 1, 0);
	if (n <= 0)
		die("read schedstat");
	text[n] = 0;
	strtoull(text, &second, 10);
	return (int64_t)strtoull(second, NULL, 10);
}

static INLINE struct clocks clocks_of(const struct thread_truth *t)
{
	/* Wall clock and CPU clock are read in a row, so that little lies between them. */
	struct clocks c;
	c.run_queue = run_queue_ns(t->schedstat);
	c.wall = wall_ns();
	c.cpu = task_clock_ns(t->perf);
	return c;
}

/* thread_begin names the thread and begins its account. */
static inline void thread_begin(struct thread_truth *t, const char *name)
{
	char path[64];
	if (pthread_setname_np(pthread_self(), name))
		die("pthread_setname_np");
	/* Timers are not to be late by 50 us on purpose. */
	prctl(PR_SET_TIMERSLACK, 1UL);
	t->tid = (int)syscall(SYS_gettid);
	snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", t->tid);
	t->schedstat = open(path, O_RDONLY | O_CLOEXEC);
	if (t->schedstat < 0)
		die(path);
	getrusage(RUSAGE_THREAD, &t->usage);
	t->perf = open_task_clock();
	t->sched_cpu = -cpu_ns();
	t->began = clocks_of(t);
}

static inline void thread_end(struct thread_truth *t)
{
	struct clocks now = clocks_of(t);
	t->sched_cpu += cpu_ns();
	struct rusage u;
	getrusage(RUSAGE_THREAD, &u);
	t->elapsed = now.wall - t->began.wall;
	t->cpu = now.cpu - t->began.cpu;
	t->run_queue = now.run_queue - t->began.run_queue;
	t->preempted = u.ru_nivcsw - t->usage.ru_nivcsw;
	t->switches = u.ru_nvcsw - t->usage.ru_nvcsw + t->preempted;
	close(t->schedstat);
	close(t->perf);
}

static INLINE int64_t waited_since(struct thread_truth *t, struct clocks from)
{
	struct clocks now = clocks_of(t);
	return (now.wall - from.wall) - (now.cpu - from.cpu) - (now.run_queue - from.run_queue);
}

/* wait_end enters a wait that began at `from`, for which `asked` ns were asked. */
static INLINE void wait_end(struct thread_truth *t, struct clocks from, int64_t asked)
{
	t->waited += waited_since(t, from);
	t->asked += asked;
	t->waits++;
}

/* other_end enters what began at `from`, and may have waited for something else. */
static INLINE void other_end(struct thread_truth *t, struct clocks from)
{
	int64_t ns = waited_since(t, from);
	t->waited += ns;
	t->other += ns;
}

static inline void print_thread(const char *name, const char *function, const struct thread_truth *t)
{
	printf("\"%s\":{\"function\":\"%s\",\"elapsed\":%.9f,\"cpu\":%.9f,\"sched_cpu\":%.9f,\"run_queue\":%.9f,\"waited\":%.9f,\"other\":%.9f,\"asked\":%.9f,\"waits\":%ld,\"switches\":%ld,"
	       "\"preempted\":%ld,\"tid\":%d}",
	       name, function, seconds(t->elapsed), seconds(t->cpu), seconds(t->sched_cpu), seconds(t->run_queue), seconds(t->waited), seconds(t->other), seconds(t->asked), t->waits,
	       t->switches, t->preempted, t->tid);
}

static inline void start_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
	errno = pthread_create(thread, NULL, run, arg);
	if (errno)
		die("pthread_create");
}

/* sleep_until sleeps until CLOCK_MONOTONIC says so. */
static inline void sleep_until(int64_t wall)
{
	struct timespec at = {.tv_sec = wall / SECOND, .tv_nsec = wall % SECOND};
	while ((errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)))
		if (errno != EINTR)
			die("clock_nanosleep");
}

static inline void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	if (syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0) && errno != EAGAIN && errno != EINTR)
		die("futex wait");
}

static inline void futex_wake(_Atomic uint32_t *word)
{
	if (syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) < 0)
		die("futex wake");
}

#endif
