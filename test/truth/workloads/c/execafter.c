/* SPDX-License-Identifier: Apache-2.0 */
/*
 * execafter SECONDS CPU: what execbefore becomes. Functions of other sizes come
 * first, so that an address of one program means another function in the other.
 */
#include "workload.h"

FRAME uint64_t padding(uint64_t x)
{
	for (int i = 0; i < 64; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		if (x & 1)
			x ^= x >> 11;
		else
			x += (x << 3) ^ (x >> 5);
	}
	return x;
}

static FRAME int64_t after_exec(int64_t end_wall)
{
	int64_t start = cpu_ns();
	while (wall_ns() < end_wall)
		burn_until(cpu_ns() + MS);
	return cpu_ns() - start;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: %s SECONDS CPU\n", argv[0]);
		return 2;
	}
	pin(atoi(argv[2]));
	int64_t ns = after_exec(wall_ns() + (int64_t)(atof(argv[1]) * 1e9));
	printf("{\"functions\":{\"after_exec\":%.6f},\"total\":%.6f}\n", seconds(ns), usage_s(RUSAGE_SELF));
	return 0;
}
