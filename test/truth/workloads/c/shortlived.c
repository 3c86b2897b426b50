/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shortlived SECONDS CPU MIN_MS MAX_MS HOW: has one child after the other that burns
 * MIN_MS to MAX_MS of CPU time in short_burn and exits at once. HOW is
 *   fork   the child goes on in this program
 *   exec   the child executes this program anew, and burns in exec_burn
 *
 * shortlived storm SECONDS CPU RATE: has RATE children a second that exit without
 * doing anything; 0: as many as go.
 */
#include <sys/wait.h>

#include "workload.h"

static FRAME void short_burn(int64_t ns)
{
	burn_until(cpu_ns() + ns);
	NO_TAIL_CALL();
}

static FRAME void exec_burn(int64_t ns)
{
	burn_until(cpu_ns() + ns);
	NO_TAIL_CALL();
}

static void wait_for(pid_t pid)
{
	int status;
	if (waitpid(pid, &status, 0) != pid || status != 0) {
		fprintf(stderr, "child %d: status %d\n", pid, status);
		exit(1);
	}
}

static pid_t child(void)
{
	pid_t pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(1);
	}
	return pid;
}

static int storm(double secs, long rate)
{
	int64_t start = wall_ns(), end = start + (int64_t)(secs * 1e9);
	long n = 0;
	for (; wall_ns() < end; n++) {
		while (rate > 0 && wall_ns() < start + n * (SECOND / rate))
			usleep(200);
		pid_t pid = child();
		if (pid == 0)
			_exit(0);
		wait_for(pid);
	}
	printf("{\"functions\":{},\"total\":%.6f,\"children\":%ld}\n", usage_s(RUSAGE_SELF) + usage_s(RUSAGE_CHILDREN), n);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--burn")) {
		exec_burn(atoll(argv[2]));
		return 0;
	}
	if (argc == 5 && !strcmp(argv[1], "storm")) {
		pin(atoi(argv[3]));
		return storm(atof(argv[2]), atol(argv[4]));
	}
	if (argc != 6) {
		fprintf(stderr, "usage: %s SECONDS CPU MIN_MS MAX_MS fork|exec, or storm SECONDS CPU RATE\n", argv[0]);
		return 2;
	}
	int64_t end = wall_ns() + (int64_t)(atof(argv[1]) * 1e9);
	int64_t min = atoll(argv[3]) * MS, max = atoll(argv[4]) * MS, burnt = 0;
	int by_exec = !strcmp(argv[5], "exec");
	long n = 0;
	pin(atoi(argv[2]));
	srand((unsigned)getpid());
	for (; wall_ns() < end; n++) {
		int64_t ns = min + (int64_t)((double)(max - min) * ((double)rand() / RAND_MAX));
		pid_t pid = child();
		if (pid == 0) {
			if (by_exec) {
				char text[32];
				snprintf(text, sizeof(text), "%lld", (long long)ns);
				execl("/proc/self/exe", "short-lived", "--burn", text, (char *)NULL);
				_exit(127);
			}
			short_burn(ns);
			_exit(0);
		}
		wait_for(pid);
		burnt += ns;
	}
	printf("{\"functions\":{\"%s\":%.6f},\"total\":%.6f,\"children\":%ld}\n", by_exec ? "exec_burn" : "short_burn", seconds(burnt),
	       usage_s(RUSAGE_SELF) + usage_s(RUSAGE_CHILDREN), n);
	return 0;
}
