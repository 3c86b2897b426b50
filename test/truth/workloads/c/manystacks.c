/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manystacks SECONDS CPU STACKS SLICE_US: walks through STACKS distinct stacks, each
 * for SLICE_US microseconds of CPU time, and begins again after the last. A stack
 * is a path of 16 calls of path_0 or path_1 that spells its number in binary, with
 * path_leaf on top.
 *
 * If a slice is shorter than the sampler's period, every sample has a stack of its
 * own until the numbers begin again.
 */
#include "workload.h"

#define BITS 16

static FRAME int64_t path_0(unsigned number, int bits, int64_t ns);
static FRAME int64_t path_1(unsigned number, int bits, int64_t ns);

static FRAME int64_t path_leaf(int64_t ns)
{
	int64_t start = cpu_ns();
	burn_until(start + ns);
	return cpu_ns() - start;
}

#define NEXT(number, bits, ns)                                         \
	((bits) == 0 ? path_leaf(ns)                                   \
	 : ((number) >> ((bits) - 1)) & 1 ? path_1(number, (bits) - 1, ns) \
					  : path_0(number, (bits) - 1, ns))

static FRAME int64_t path_0(unsigned number, int bits, int64_t ns)
{
	int64_t spent = NEXT(number, bits, ns);
	NO_TAIL_CALL();
	return spent;
}

static FRAME int64_t path_1(unsigned number, int bits, int64_t ns)
{
	int64_t spent = NEXT(number, bits, ns);
	NO_TAIL_CALL();
	return spent;
}

int main(int argc, char **argv)
{
	if (argc != 5 || atoi(argv[3]) < 1 || atoi(argv[3]) > 1 << BITS) {
		fprintf(stderr, "usage: %s SECONDS CPU STACKS SLICE_US (at most %d stacks)\n", argv[0], 1 << BITS);
		return 2;
	}
	int64_t end = wall_ns() + (int64_t)(atof(argv[1]) * 1e9), slice = atoll(argv[4]) * 1000, ns = 0;
	unsigned stacks = (unsigned)atoi(argv[3]), i = 0;
	uint64_t walked = 0;
	pin(atoi(argv[2]));
	for (; wall_ns() < end; i = (i + 1) % stacks, walked++)
		ns += NEXT(i, BITS, slice);
	printf("{\"functions\":{\"path_leaf\":%.6f},\"total\":%.6f,\"stacks_walked\":%llu}\n", seconds(ns), usage_s(RUSAGE_SELF),
	       (unsigned long long)walked);
	return 0;
}
