/* SPDX-License-Identifier: Apache-2.0 */
/*
 * execbefore SECONDS CPU PROGRAM: burns SECONDS in before_exec, then becomes PROGRAM,
 * which is started with SECONDS and CPU.
 */
#include "workload.h"

static FRAME int64_t before_exec(int64_t end_wall)
{
	int64_t start = cpu_ns();
	while (wall_ns() < end_wall)
		burn_until(cpu_ns() + MS);
	return cpu_ns() - start;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: %s SECONDS CPU PROGRAM\n", argv[0]);
		return 2;
	}
	pin(atoi(argv[2]));
	int64_t ns = before_exec(wall_ns() + (int64_t)(atof(argv[1]) * 1e9));
	/* The total of the process is the other program's to say: an exec changes nothing of it. */
	printf("{\"functions\":{\"before_exec\":%.6f},\"total\":0}\n", seconds(ns));
	fflush(stdout);
	execl(argv[3], argv[3], argv[1], argv[2], (char *)NULL);
	perror(argv[3]);
	return 1;
}
