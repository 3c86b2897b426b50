/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deep SECONDS CPU DEPTH: burns in deep_leaf below DEPTH frames of deep_step, which
 * main calls: the user stack is DEPTH + 2 frames and what is below main.
 */
#include "workload.h"

static FRAME int64_t deep_leaf(int64_t end_wall)
{
	int64_t start = seen_ns();
	while (go_on(end_wall))
		burn_until(cpu_ns() + MS);
	return seen_ns() - start;
}

static FRAME int64_t deep_step(int depth, int64_t end_wall)
{
	int64_t ns = depth > 1 ? deep_step(depth - 1, end_wall) : deep_leaf(end_wall);
	NO_TAIL_CALL();
	return ns;
}

int main(int argc, char **argv)
{
	if (argc != 4 || atoi(argv[3]) < 1) {
		fprintf(stderr, "usage: %s SECONDS CPU DEPTH\n", argv[0]);
		return 2;
	}
	int64_t end = wall_ns() + (int64_t)(atof(argv[1]) * 1e9);
	stop_on_term();
	pin(atoi(argv[2]));
	int64_t ns = deep_step(atoi(argv[3]), end);
	printf("{\"functions\":{\"deep_leaf\":%.6f},\"total\":%.6f}\n", seconds(ns), usage_s(RUSAGE_SELF) - seconds(unseen_ns));
	return 0;
}
