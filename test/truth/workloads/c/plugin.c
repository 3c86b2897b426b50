/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library to be loaded by dlhost. PLUGIN is the name of its function; PADDING is
 * how many bytes of code come before it, so that two of them put different
 * functions at one offset.
 */
#include "workload.h"

int64_t PLUGIN(int64_t ns);

__attribute__((used, noinline)) void plugin_padding(void)
{
	__asm__ volatile(".skip %c0, 0x90" : : "i"(PADDING));
}

FRAME int64_t PLUGIN(int64_t ns)
{
	int64_t start = cpu_ns();
	while (cpu_ns() < start + ns)
		burn_until(cpu_ns() + MS);
	return cpu_ns() - start;
}
