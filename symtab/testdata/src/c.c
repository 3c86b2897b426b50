// Functions of all bindings, aliases, nesting, and assembler without sizes.
#include <stdio.h>

static int __attribute__((noinline)) local_fn(int x) { return x * 3 + 1; }
int __attribute__((noinline, weak)) weak_fn(int x) { return x - 7; }
int __attribute__((noinline)) global_fn(int x) { return local_fn(x) ^ weak_fn(x); }
int __plain_alias(int x) __attribute__((alias("global_fn")));
int plain_alias(int x) __attribute__((alias("global_fn")));

typedef int fn(int);
static fn *pick(void) { return local_fn; }
int resolved(int) __attribute__((ifunc("pick")));

__asm__(".text\n"
        ".globl nested_outer\n.type nested_outer,@function\n"
        "nested_outer: nop; nop; nop; nop\n"
        ".globl nested_inner\n.type nested_inner,@function\n"
        "nested_inner: nop; nop\n.size nested_inner, .-nested_inner\n"
        "nop; nop; ret\n.size nested_outer, .-nested_outer\n"
        ".type sizeless,@function\n"
        "sizeless: nop; nop; ret\n"
        "bare_label: nop; ret\n"
        "sized_label: nop; nop; ret\n.size sized_label, .-sized_label\n"
        ".skip 64, 0x90\n");

int main(int argc, char **argv) {
  (void)argv;
  printf("%d\n", global_fn(argc) + plain_alias(argc) + __plain_alias(argc) + resolved(argc));
  return 0;
}
