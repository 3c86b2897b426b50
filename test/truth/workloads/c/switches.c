/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switches SECONDS PAIRS HOW CPU WORK [RATE]: pairs of threads, in the functions ping and
 * pong, that wake each other in turn by HOW, which is pipe, eventfd or futex. All are pinned
 * to CPU (-1: any), where a round trip is two switches. Before each wake-up a thread does
 * WORK steps of about a nanosecond each. RATE is how many round trips a second a pair does;
 * 0, the default: as many as go.
 */
#include <sys/eventfd.h>

#include "offcpu.h"

static const char *how;
static int cpu;
static long work;
static int64_t interval; /* between round trips, 0: none */
static atomic_bool over;

/* channel is one direction of a pair. */
struct channel {
	int fds[2]; /* to read from, to write to */
	_Atomic uint32_t full;
};

struct pair {
	struct channel there, back;
	pthread_t ping, pong;
	long trips;
};

static void open_channel(struct channel *c)
{
	if (!strcmp(how, "pipe")) {
		if (pipe2(c->fds, O_CLOEXEC))
			die("pipe");
	} else if (!strcmp(how, "eventfd")) {
		c->fds[0] = c->fds[1] = eventfd(0, EFD_CLOEXEC);
		if (c->fds[0] < 0)
			die("eventfd");
	} else if (!strcmp(how, "futex")) {
		c->fds[0] = -1;
	} else {
		fprintf(stderr, "how is a thread woken by %s?\n", how);
		exit(2);
	}
}

static INLINE void wake(struct channel *c)
{
	uint64_t one = 1;
	if (c->fds[0] < 0) {
		atomic_store(&c->full, 1);
		futex_wake(&c->full);
	} else if (write(c->fds[1], &one, sizeof(one)) != sizeof(one)) {
		die("write");
	}
}

static INLINE void wait(struct channel *c)
{
	uint64_t n;
	if (c->fds[0] < 0) {
		while (!atomic_exchange(&c->full, 0))
			futex_wait(&c->full, 0);
	} else if (read(c->fds[0], &n, sizeof(n)) != sizeof(n)) {
		die("read");
	}
}

static INLINE void do_work(void)
{
	uint64_t x = 1;
	for (long i = 0; i < work; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		__asm__ volatile("" : "+r"(x));
	}
}

static FRAME void ping(struct pair *p)
{
	int64_t next = wall_ns();
	for (; !atomic_load(&over); p->trips++) {
		if (interval)
			sleep_until(next += interval);
		do_work();
		wake(&p->there);
		wait(&p->back);
	}
}

/* pong goes on until the process ends. */
static FRAME void pong(struct pair *p)
{
	for (;;) {
		wait(&p->there);
		do_work();
		wake(&p->back);
	}
}

static void *run_ping(void *arg)
{
	pthread_setname_np(pthread_self(), "ping");
	pin(cpu);
	ping(arg);
	return NULL;
}

static void *run_pong(void *arg)
{
	pthread_setname_np(pthread_self(), "pong");
	pin(cpu);
	pong(arg);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 6 && argc != 7) {
		fprintf(stderr, "usage: %s SECONDS PAIRS pipe|eventfd|futex CPU WORK [RATE]\n", argv[0]);
		return 2;
	}
	int pairs = atoi(argv[2]);
	how = argv[3], cpu = atoi(argv[4]), work = atol(argv[5]);
	interval = argc == 7 && atof(argv[6]) > 0 ? (int64_t)(1e9 / atof(argv[6])) : 0;
	prctl(PR_SET_TIMERSLACK, 1UL); /* threads inherit it */
	struct pair *all = calloc((size_t)pairs, sizeof(*all));
	if (!all)
		die("calloc");
	int64_t start = wall_ns();
	for (int i = 0; i < pairs; i++) {
		open_channel(&all[i].there);
		open_channel(&all[i].back);
		start_thread(&all[i].pong, run_pong, &all[i]);
		start_thread(&all[i].ping, run_ping, &all[i]);
	}
	sleep_until(start + (int64_t)(atof(argv[1]) * 1e9));
	atomic_store(&over, true);
	long trips = 0;
	for (int i = 0; i < pairs; i++) {
		pthread_join(all[i].ping, NULL);
		trips += all[i].trips;
	}
	int64_t elapsed = wall_ns() - start;
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	printf("{\"round_trips\":%ld,\"elapsed\":%.6f,\"switches\":%ld,\"total\":%.6f}\n", trips, seconds(elapsed), u.ru_nvcsw + u.ru_nivcsw,
	       usage_s(RUSAGE_SELF));
	return 0;
}
