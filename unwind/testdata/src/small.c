// Needs no library: for machines of which there is only a compiler.
int last(void *);
static int deep(int n, long a, long b, long c, long d, long e, long f, long g, long h) {
	volatile char big[70000];
	big[n] = 1;
	if (n < 0)
		__builtin_trap();
	return last((void *)&big[n]) + (int)(a + b + c + d + e + f + g + h);
}
int varying(int n) {
	char *p = __builtin_alloca(n);
	_Alignas(64) char q[64];
	return last(q) + last(p);
}
int middle(int n, long a) {
	int s = 0;
	for (int i = 0; i < n; i++)
		s += deep(i, a, s, n, i, a + 1, s + 1, n + 1, i + 1) + varying(i);
	return s;
}
int last(void *p) { return *(int *)p; }
int _start(void) { return middle(3, 4); }
