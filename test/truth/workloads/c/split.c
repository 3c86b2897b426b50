/* SPDX-License-Identifier: Apache-2.0 */
/*
 * split SECONDS CPU: burns 70 % of a CPU in burn_a and 30 % in burn_b.
 * CPU is the one to pin to, -1 for any.
 */
#include "workload.h"

static FRAME int64_t burn_a(int64_t ns)
{
	int64_t start = seen_ns();
	burn_until(cpu_ns() + ns);
	return seen_ns() - start;
}

static FRAME int64_t burn_b(int64_t ns)
{
	int64_t start = seen_ns();
	burn_until(cpu_ns() + ns);
	return seen_ns() - start;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s SECONDS CPU\n", argv[0]);
		return 2;
	}
	int64_t end = wall_ns() + (int64_t)(atof(argv[1]) * 1e9), a = 0, b = 0;
	stop_on_term();
	pin(atoi(argv[2]));
	srand((unsigned)getpid());
	while (go_on(end)) {
		int64_t slice = jittered(10 * MS);
		a += burn_a(slice * 7 / 10);
		b += burn_b(slice * 3 / 10);
	}
	printf("{\"functions\":{\"burn_a\":%.6f,\"burn_b\":%.6f},\"total\":%.6f}\n", seconds(a), seconds(b), usage_s(RUSAGE_SELF) - seconds(unseen_ns));
	return 0;
}
