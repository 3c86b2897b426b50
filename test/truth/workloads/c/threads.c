/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads SECONDS CPU: three threads, named "burner-one", "burner-two" and
 * "burner-three", that burn in thread_burn, about 1 : 2 : 4 of the time.
 */
#include <pthread.h>

#include "workload.h"

static int64_t end_wall;

static FRAME int64_t thread_burn(int64_t ns)
{
	int64_t start = cpu_ns();
	burn_until(start + ns);
	return cpu_ns() - start;
}

struct burner {
	const char *name;
	int weight;
	int64_t spent;
	pthread_t thread;
};

static struct burner burners[] = {
	{"burner-one", 1, 0, 0},
	{"burner-two", 2, 0, 0},
	{"burner-three", 4, 0, 0},
};

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t next = PTHREAD_COND_INITIALIZER;
static int whose;

/* The threads take turns, so that their shares are as said. */
static void *run(void *arg)
{
	struct burner *b = arg;
	int self = (int)(b - burners), n = (int)(sizeof(burners) / sizeof(*burners));
	unsigned seed = (unsigned)self + 1;
	pthread_setname_np(pthread_self(), b->name);
	for (;;) {
		pthread_mutex_lock(&turn);
		while (whose != self)
			pthread_cond_wait(&next, &turn);
		pthread_mutex_unlock(&turn);
		int over = wall_ns() >= end_wall;
		if (!over)
			b->spent += thread_burn((int64_t)b->weight * (MS + rand_r(&seed) % (2 * MS)));
		pthread_mutex_lock(&turn);
		whose = (self + 1) % n;
		pthread_cond_broadcast(&next);
		pthread_mutex_unlock(&turn);
		if (over)
			return NULL;
	}
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s SECONDS CPU\n", argv[0]);
		return 2;
	}
	end_wall = wall_ns() + (int64_t)(atof(argv[1]) * 1e9);
	pin(atoi(argv[2]));
	int n = (int)(sizeof(burners) / sizeof(*burners));
	int64_t sum = 0;
	for (int i = 0; i < n; i++)
		if (pthread_create(&burners[i].thread, NULL, run, &burners[i])) {
			fprintf(stderr, "pthread_create failed\n");
			return 1;
		}
	printf("{\"threads\":{");
	for (int i = 0; i < n; i++) {
		pthread_join(burners[i].thread, NULL);
		printf("%s\"%s\":{\"cpu\":%.6f}", i ? "," : "", burners[i].name, seconds(burners[i].spent));
		sum += burners[i].spent;
	}
	printf("},\"functions\":{\"thread_burn\":%.6f},\"total\":%.6f}\n", seconds(sum), usage_s(RUSAGE_SELF));
	return 0;
}
