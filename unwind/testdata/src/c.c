// Functions whose frames differ: of varying size, realigned, with many arguments.
#include <stdarg.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) int leaf(int x) { return x * 3 + 1; }

__attribute__((noinline)) int varying(int n) {
	char *p = __builtin_alloca(n + 1);
	memset(p, n, n);
	return leaf(p[n / 2]);
}

__attribute__((noinline)) int realigned(int n) {
	alignas(64) char q[128];
	char *p = __builtin_alloca(n + 1);
	memset(q, n, sizeof q);
	memset(p, n, n);
	return leaf(q[n & 63] + p[n / 2]) + (int)((unsigned long)q & 63);
}

__attribute__((noinline)) int sum(int n, ...) {
	va_list ap;
	va_start(ap, n);
	int s = 0;
	while (n-- > 0)
		s += va_arg(ap, int);
	va_end(ap);
	return s;
}

__attribute__((noinline, noreturn, cold)) void die(const char *why) {
	fprintf(stderr, "%s\n", why);
	exit(1);
}

__attribute__((noinline)) int large(int n) {
	volatile char a[100000];
	for (int i = 0; i < n; i++)
		a[i * 7] = (char)i;
	if (a[0] == 99)
		die("large");
	return a[n] + varying(n) + realigned(n);
}

__attribute__((noinline)) int many(int a, int b, int c, int d, int e, int f, int g, int h, int i) {
	if (a == 0)
		return sum(3, a, b, c);
	if (a < 0)
		die("many");
	return many(a - 1, b + large(a), c + leaf(b), d, e, f, g + varying(a), h, i) + sum(9, a, b, c, d, e, f, g, h, i);
}

int main(int argc, char **argv) {
	(void)argv;
	printf("%d\n", many(argc, 1, 2, 3, 4, 5, 6, 7, 8));
	return 0;
}
