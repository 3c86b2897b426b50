/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shortblocks BLOCKS MEAN_A MEAN_B PAIRS AFTER: blocks of 5 to 200 us, drawn from
 * exponential distributions of the means MEAN_A and MEAN_B (us) that are cut there, with a
 * fixed seed. There are PAIRS of two threads, each pair on a CPU of its own: one asks and
 * blocks in short_a or short_b, at random, on a futex; the other, in wake_after, is busy for
 * the time drawn and wakes it. All of them together block BLOCKS times, beginning AFTER
 * seconds after the program.
 *
 * Linked with -lm.
 */
#include <math.h>

#include "offcpu.h"

#define SHORTEST 5.0
#define LONGEST 200.0

/* block_truth is what one function did: its time off CPU, whatever for. */
struct block_truth {
	int64_t off_cpu;
	long waits;
};

enum { A, B, FUNCTIONS };

static const char *names[FUNCTIONS] = {"short_a", "short_b"};
static double means[FUNCTIONS];

struct pair {
	int number;
	char blocker_name[24], waker_name[24];
	long blocks;
	pthread_t blocker, waker;
	struct thread_truth truth;
	struct block_truth functions[FUNCTIONS];
	int64_t spell;                     /* the busy time asked for */
	_Atomic uint32_t asked, answered; /* numbers of blocks */
};

/* opened and closed read the clocks that a block is measured by: the CPU clock inside of the
 * wall clock, so that what is slow in the first system call after a switch is CPU time. The
 * run queue is not read, which would take longer than some blocks. */
static INLINE struct clocks opened(int perf)
{
	struct clocks c = {.wall = wall_ns()};
	c.cpu = task_clock_ns(perf);
	return c;
}

static INLINE struct clocks closed(int perf)
{
	struct clocks c = {.cpu = task_clock_ns(perf)};
	c.wall = wall_ns();
	return c;
}

/* window_cost is what the two readings seem to be off CPU. */
static int64_t window_cost(void)
{
	int64_t sum = 0, n = 0;
	int perf = open_task_clock();
	while (n < 20000) {
		struct clocks from = opened(perf), to = closed(perf);
		int64_t off = (to.wall - from.wall) - (to.cpu - from.cpu);
		if (off < 5000) { /* else it was preempted */
			sum += off;
			n++;
		}
	}
	close(perf);
	return sum / n;
}

/* block asks for a spell and blocks until it is over. Inlined: it is its caller's. */
static INLINE void block(struct pair *p, struct block_truth *f, int64_t spell)
{
	uint32_t number = atomic_load(&p->asked) + 1;
	p->spell = spell;
	struct clocks from = opened(p->truth.perf);
	atomic_store(&p->asked, number);
	futex_wake(&p->asked);
	while (atomic_load(&p->answered) != number)
		futex_wait(&p->answered, number - 1);
	struct clocks to = closed(p->truth.perf);
	f->off_cpu += (to.wall - from.wall) - (to.cpu - from.cpu);
	f->waits++;
}

static FRAME void short_a(struct pair *p, int64_t spell) { block(p, &p->functions[A], spell); }
static FRAME void short_b(struct pair *p, int64_t spell) { block(p, &p->functions[B], spell); }

static FRAME void wake_after(struct pair *p)
{
	for (uint32_t i = 0; i < p->blocks; i++) {
		while (atomic_load(&p->asked) == i)
			futex_wait(&p->asked, i);
		int64_t until = wall_ns() + p->spell;
		while (wall_ns() < until)
			;
		atomic_store(&p->answered, i + 1);
		futex_wake(&p->answered);
	}
}

static int64_t drawn(unsigned *seed, double mean)
{
	double us;
	do
		us = -mean * log((rand_r(seed) + 1.0) / (RAND_MAX + 2.0));
	while (us < SHORTEST || us > LONGEST);
	return (int64_t)(us * 1000);
}

static void *run_blocker(void *arg)
{
	struct pair *p = arg;
	unsigned seed = (unsigned)p->number + 1;
	int64_t cost = window_cost();
	thread_begin(&p->truth, p->blocker_name);
	for (long i = 0; i < p->blocks; i++) {
		int f = rand_r(&seed) >> 8 & 1;
		(f == A ? short_a : short_b)(p, drawn(&seed, means[f]));
	}
	thread_end(&p->truth);
	for (int f = 0; f < FUNCTIONS; f++) {
		p->functions[f].off_cpu -= cost * p->functions[f].waits;
		p->truth.waited += p->functions[f].off_cpu;
		p->truth.waits += p->functions[f].waits;
	}
	/* In an account, what is waited is not on the run queue. */
	p->truth.waited -= p->truth.run_queue;
	return NULL;
}

static void *run_waker(void *arg)
{
	struct pair *p = arg;
	pthread_setname_np(pthread_self(), p->waker_name);
	wake_after(p);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "usage: %s BLOCKS MEAN_A MEAN_B PAIRS AFTER\n", argv[0]);
		return 2;
	}
	int pairs = atoi(argv[4]);
	means[A] = atof(argv[2]), means[B] = atof(argv[3]);
	struct pair *all = calloc((size_t)pairs, sizeof(*all));
	if (!all)
		die("calloc");
	/* Batch threads do not preempt who wakes them: the blocker gets to block when it has woken
	 * its waker. */
	struct sched_param param = {0};
	if (sched_setscheduler(0, SCHED_BATCH, &param))
		die("sched_setscheduler");
	sleep_until(wall_ns() + (int64_t)(atof(argv[5]) * 1e9));
	for (int i = 0; i < pairs; i++) {
		all[i].number = i;
		snprintf(all[i].blocker_name, sizeof(all[i].blocker_name), "blocker-%d", i);
		snprintf(all[i].waker_name, sizeof(all[i].waker_name), "waker-%d", i);
		all[i].blocks = atol(argv[1]) / pairs;
		pin(i); /* the threads inherit it */
		start_thread(&all[i].waker, run_waker, &all[i]);
		start_thread(&all[i].blocker, run_blocker, &all[i]);
	}
	printf("{\"threads\":{");
	struct block_truth sums[FUNCTIONS] = {0};
	for (int i = 0; i < pairs; i++) {
		pthread_join(all[i].blocker, NULL);
		pthread_join(all[i].waker, NULL);
		printf("%s", i ? "," : "");
		print_thread(all[i].blocker_name, "", &all[i].truth);
		for (int f = 0; f < FUNCTIONS; f++) {
			sums[f].off_cpu += all[i].functions[f].off_cpu;
			sums[f].waits += all[i].functions[f].waits;
		}
	}
	printf("},\"blocks\":{");
	for (int f = 0; f < FUNCTIONS; f++)
		printf("%s\"%s\":{\"off_cpu\":%.9f,\"waits\":%ld}", f ? "," : "", names[f], seconds(sums[f].off_cpu), sums[f].waits);
	printf("},\"total\":%.6f}\n", usage_s(RUSAGE_SELF));
	return 0;
}
