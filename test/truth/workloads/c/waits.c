/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waits SECONDS DIR AFTER [THREAD...]: threads that each wait in one way for all of their
 * life, in a function of the thread's name:
 *   wait_sleep    clock_nanosleep
 *   wait_mutex    of mutexes that hold_mutex holds while it sleeps
 *   wait_pipe     read of a pipe that feed_pipe writes to, and sleeps
 *   wait_socket   recv of a TCP connection that feed_socket sends to, and sleeps
 *   wait_poll     epoll_wait that times out
 *   wait_disk     O_DIRECT reads and writes, and fdatasync, of a file in DIR
 *   wait_fault    page faults of a mapped file in DIR that is not in the page cache
 *   long_sleep    one clock_nanosleep from beginning to end
 *   spin          does not wait
 *   preempted_a, preempted_b   (function: preempted) do not wait either, but share a CPU, the first
 * They begin AFTER seconds after the program, all at once, and end SECONDS later. With
 * names, only those threads run, with the one that they need.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "offcpu.h"

static int64_t begin_wall, end_wall;
static const char *dir;

struct worker {
	const char *name;
	void (*wait)(struct thread_truth *); /* it returns at end_wall, about */
	const char *function; /* NULL: that of its name */
	const char *needs;    /* a thread that it cannot do without */
	pthread_t thread;
	bool runs;
	struct thread_truth truth;
};

/* drawn is a random time from min to max milliseconds. */
static int64_t drawn(unsigned *seed, int64_t min, int64_t max)
{
	return min * MS + (int64_t)((double)((max - min) * MS) * ((double)rand_r(seed) / RAND_MAX));
}

/* nap is one sleep that is entered in the account. Inlined: what it does is its caller's. */
static INLINE void nap(struct thread_truth *t, int64_t ns)
{
	struct clocks from = clocks_of(t);
	sleep_until(from.wall + ns);
	wait_end(t, from, ns);
}

static FRAME void wait_sleep(struct thread_truth *t)
{
	unsigned seed = 1;
	while (wall_ns() < end_wall)
		nap(t, drawn(&seed, 2, 30));
}

static FRAME void long_sleep(struct thread_truth *t)
{
	struct clocks from = clocks_of(t);
	sleep_until(end_wall);
	wait_end(t, from, end_wall - from.wall);
}

/* The holder has the next mutex before it lets go of the one it holds, so that the waiter
 * never finds one that is free. */
static pthread_mutex_t mutexes[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_barrier_t held;

static FRAME void hold_mutex(struct thread_truth *t)
{
	unsigned seed = 2, i = 0;
	pthread_mutex_lock(&mutexes[0]);
	pthread_barrier_wait(&held);
	for (;; i++) {
		nap(t, drawn(&seed, 3, 15));
		bool over = wall_ns() >= end_wall;
		if (!over)
			pthread_mutex_lock(&mutexes[(i + 1) % 2]); /* is free, long since */
		pthread_mutex_unlock(&mutexes[i % 2]);
		if (over)
			return;
	}
}

static FRAME void wait_mutex(struct thread_truth *t)
{
	pthread_barrier_wait(&held);
	for (unsigned i = 0; wall_ns() < end_wall; i++) {
		struct clocks from = clocks_of(t);
		pthread_mutex_lock(&mutexes[i % 2]);
		wait_end(t, from, 0);
		pthread_mutex_unlock(&mutexes[i % 2]);
	}
}

static int feed[2], sock[2]; /* the end to read from, and the one to write to */

static INLINE void feed_with(struct thread_truth *t, unsigned seed, ssize_t (*put)(int, const void *, size_t), int fd)
{
	do {
		nap(t, drawn(&seed, 3, 20));
		if (put(fd, "x", 1) != 1)
			die("write");
	} while (wall_ns() < end_wall);
	NO_TAIL_CALL();
}

static ssize_t put_socket(int fd, const void *data, size_t n) { return send(fd, data, n, MSG_NOSIGNAL); }

static FRAME void feed_pipe(struct thread_truth *t) { feed_with(t, 3, write, feed[1]); }
static FRAME void feed_socket(struct thread_truth *t) { feed_with(t, 4, put_socket, sock[1]); }

static FRAME void wait_pipe(struct thread_truth *t)
{
	char c;
	while (wall_ns() < end_wall) {
		struct clocks from = clocks_of(t);
		if (read(feed[0], &c, 1) != 1)
			die("read of a pipe");
		wait_end(t, from, 0);
	}
}

static FRAME void wait_socket(struct thread_truth *t)
{
	char c;
	while (wall_ns() < end_wall) {
		struct clocks from = clocks_of(t);
		if (recv(sock[0], &c, 1, 0) != 1)
			die("recv");
		wait_end(t, from, 0);
	}
}

static FRAME void wait_poll(struct thread_truth *t)
{
	struct epoll_event event;
	unsigned seed = 5;
	int fd = epoll_create1(EPOLL_CLOEXEC);
	if (fd < 0)
		die("epoll_create1");
	while (wall_ns() < end_wall) {
		int64_t ns = drawn(&seed, 2, 30) / MS * MS;
		struct clocks from = clocks_of(t);
		if (epoll_wait(fd, &event, 1, (int)(ns / MS)) != 0)
			die("epoll_wait");
		wait_end(t, from, ns);
	}
	close(fd);
}

#define FILE_SIZE (64 << 20)
#define BLOCK (1 << 20)
#define PAGE 4096

static int direct_file, mapped_file;

/* make_file makes a file without a name, with its blocks on disk. */
static int make_file(const char *name, int flags)
{
	char path[4096], *block;
	snprintf(path, sizeof(path), "%s/%s-%d", dir, name, getpid());
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
	if (fd < 0)
		die(path);
	unlink(path);
	if (posix_memalign((void **)&block, PAGE, BLOCK))
		die("posix_memalign");
	memset(block, 1, BLOCK);
	for (off_t at = 0; at < FILE_SIZE; at += BLOCK)
		if (pwrite(fd, block, BLOCK, at) != BLOCK)
			die("write of a file");
	if (fsync(fd))
		die("fsync");
	free(block);
	return fd;
}

static FRAME void wait_disk(struct thread_truth *t)
{
	unsigned seed = 6;
	char *block;
	if (posix_memalign((void **)&block, PAGE, BLOCK))
		die("posix_memalign");
	memset(block, 2, BLOCK);
	for (unsigned i = 0; wall_ns() < end_wall; i++) {
		off_t at = (off_t)(rand_r(&seed) % (FILE_SIZE / BLOCK)) * BLOCK;
		struct clocks from = clocks_of(t);
		if (i % 8 == 7) {
			if (pwrite(direct_file, block, BLOCK, at) != BLOCK || fdatasync(direct_file))
				die("direct write");
		} else if (pread(direct_file, block, BLOCK, at) != BLOCK) {
			die("direct read");
		}
		wait_end(t, from, 0);
	}
	free(block);
}

static FRAME void wait_fault(struct thread_truth *t)
{
	const int pages = FILE_SIZE / PAGE;
	unsigned seed = 7;
	volatile char *map = mmap(NULL, FILE_SIZE, PROT_READ, MAP_SHARED, mapped_file, 0);
	if (map == MAP_FAILED || madvise((void *)map, FILE_SIZE, MADV_RANDOM))
		die("mmap");
	while (wall_ns() < end_wall) {
		/* A page that is mapped stays in the cache, whatever posix_fadvise is told. It waits for
		 * every CPU to give back the pages that it is about to add to the cache. */
		struct clocks before = clocks_of(t);
		if (madvise((void *)map, FILE_SIZE, MADV_DONTNEED))
			die("madvise");
		errno = posix_fadvise(mapped_file, 0, 0, POSIX_FADV_DONTNEED);
		if (errno)
			die("posix_fadvise");
		other_end(t, before);
		for (int i = 0; i < pages / 8 && wall_ns() < end_wall; i++) {
			volatile char *page = map + (size_t)(rand_r(&seed) % pages) * PAGE;
			struct clocks from = clocks_of(t);
			(void)*page;
			wait_end(t, from, 0);
		}
	}
	munmap((void *)map, FILE_SIZE);
}

static FRAME void spin(struct thread_truth *t)
{
	(void)t;
	while (wall_ns() < end_wall)
		burn_until(cpu_ns() + MS);
}

static FRAME void preempted(struct thread_truth *t)
{
	(void)t;
	while (wall_ns() < end_wall)
		burn_until(cpu_ns() + MS);
}

static struct worker workers[] = {
	{.name = "wait_sleep", .wait = wait_sleep},
	{.name = "long_sleep", .wait = long_sleep},
	{.name = "hold_mutex", .wait = hold_mutex, .needs = "wait_mutex"},
	{.name = "wait_mutex", .wait = wait_mutex, .needs = "hold_mutex"},
	{.name = "feed_pipe", .wait = feed_pipe, .needs = "wait_pipe"},
	{.name = "wait_pipe", .wait = wait_pipe, .needs = "feed_pipe"},
	{.name = "feed_socket", .wait = feed_socket, .needs = "wait_socket"},
	{.name = "wait_socket", .wait = wait_socket, .needs = "feed_socket"},
	{.name = "wait_poll", .wait = wait_poll},
	{.name = "wait_disk", .wait = wait_disk},
	{.name = "wait_fault", .wait = wait_fault},
	{.name = "spin", .wait = spin},
	{.name = "preempted_a", .wait = preempted, .function = "preempted", .needs = "preempted_b"},
	{.name = "preempted_b", .wait = preempted, .function = "preempted", .needs = "preempted_a"},
};

#define WORKERS (int)(sizeof(workers) / sizeof(*workers))

static bool runs(const char *name)
{
	for (int i = 0; i < WORKERS; i++)
		if (!strcmp(workers[i].name, name))
			return workers[i].runs;
	return false;
}

static FRAME void *run(void *arg)
{
	struct worker *w = arg;
	if (w->wait == preempted)
		pin(0);
	thread_begin(&w->truth, w->name);
	w->wait(&w->truth);
	thread_end(&w->truth);
	return NULL;
}

/* choose sets which workers run. */
static void choose(int n, char **names)
{
	for (int i = 0; i < WORKERS; i++) {
		workers[i].runs = n == 0;
		for (int j = 0; j < n; j++)
			if (!strcmp(names[j], workers[i].name) || (workers[i].needs && !strcmp(names[j], workers[i].needs)))
				workers[i].runs = true;
	}
	for (int j = 0; j < n; j++)
		if (!runs(names[j])) {
			fprintf(stderr, "there is no thread %s\n", names[j]);
			exit(2);
		}
}

/* connect_socket connects sock[0] to sock[1] over the loopback interface. */
static void connect_socket(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	if (listener < 0 || bind(listener, (void *)&at, size) || listen(listener, 1) || getsockname(listener, (void *)&at, &size))
		die("listen");
	sock[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock[0] < 0 || connect(sock[0], (void *)&at, size))
		die("connect");
	sock[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (sock[1] < 0 || setsockopt(sock[1], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		die("accept");
	close(listener);
}

static void print_truth(void)
{
	const char *comma = "";
	printf("{\"threads\":{");
	for (int i = 0; i < WORKERS; i++)
		if (workers[i].runs) {
			printf("%s", comma);
			print_thread(workers[i].name, workers[i].function ? workers[i].function : workers[i].name, &workers[i].truth);
			comma = ",";
		}
	printf("},\"total\":%.6f}\n", usage_s(RUSAGE_SELF));
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: %s SECONDS DIR AFTER [THREAD...]\n", argv[0]);
		return 2;
	}
	begin_wall = wall_ns() + (int64_t)(atof(argv[3]) * 1e9);
	dir = argv[2];
	choose(argc - 4, argv + 4);
	if (runs("wait_disk"))
		direct_file = make_file("direct", O_DIRECT);
	if (runs("wait_fault"))
		mapped_file = make_file("mapped", 0);
	if (pipe2(feed, O_CLOEXEC))
		die("pipe");
	connect_socket();
	pthread_barrier_init(&held, NULL, 2);
	sleep_until(begin_wall);
	end_wall = wall_ns() + (int64_t)(atof(argv[1]) * 1e9);
	for (int i = 0; i < WORKERS; i++)
		if (workers[i].runs)
			start_thread(&workers[i].thread, run, &workers[i]);
	for (int i = 0; i < WORKERS; i++)
		if (workers[i].runs)
			pthread_join(workers[i].thread, NULL);
	print_truth();
	return 0;
}
