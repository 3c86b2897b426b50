#include <cstdio>
namespace shop {
static inline long price(long x) {
	long s = 0;
	for (long i = 0; i < x; i++) s += (s ^ i) * 31;
	return s;
}
struct Cart { long total(long n) __attribute__((noinline)); };
long Cart::total(long n) {
	return price(n) + 1;
}
}
int main(int argc, char **) { shop::Cart c; std::printf("%ld\n", c.total(argc * 1000L)); return 0; }
