/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlhost SECONDS CPU HOW LIB_A LIB_B: burns 40 % of the time in plugin_a of LIB_A and
 * 60 % in plugin_b of LIB_B, with LIB_A unloaded in between. HOW is
 *   apart   LIB_B is loaded before LIB_A is unloaded: they are at different addresses
 *   reuse   LIB_A is unloaded first: LIB_B gets its addresses
 */
#include <dlfcn.h>

#include "workload.h"

typedef int64_t (*plugin)(int64_t);

static void *load(const char *path, const char *name, plugin *f)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib || !(*f = (plugin)dlsym(lib, name))) {
		fprintf(stderr, "%s: %s\n", path, dlerror());
		exit(1);
	}
	return lib;
}

static FRAME int64_t call_plugin(plugin f, int64_t ns)
{
	int64_t spent = f(ns);
	NO_TAIL_CALL();
	return spent;
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "usage: %s SECONDS CPU apart|reuse LIB_A LIB_B\n", argv[0]);
		return 2;
	}
	int64_t ns = (int64_t)(atof(argv[1]) * 1e9);
	int apart = !strcmp(argv[3], "apart");
	plugin fa, fb;
	void *a, *b = NULL;
	pin(atoi(argv[2]));

	a = load(argv[4], "plugin_a", &fa);
	int64_t spent_a = call_plugin(fa, ns * 4 / 10);
	uintptr_t at_a = (uintptr_t)fa;
	if (apart)
		b = load(argv[5], "plugin_b", &fb);
	if (dlclose(a)) {
		fprintf(stderr, "dlclose: %s\n", dlerror());
		return 1;
	}
	if (!apart)
		b = load(argv[5], "plugin_b", &fb);
	int64_t spent_b = call_plugin(fb, ns * 6 / 10);
	/* Whether the two were at one place is part of the answer. */
	int same = (at_a >> 21) == ((uintptr_t)fb >> 21);
	dlclose(b);
	printf("{\"functions\":{\"plugin_a\":%.6f,\"plugin_b\":%.6f},\"total\":%.6f,\"same_address\":%s}\n", seconds(spent_a),
	       seconds(spent_b), usage_s(RUSAGE_SELF), same ? "true" : "false");
	return 0;
}
