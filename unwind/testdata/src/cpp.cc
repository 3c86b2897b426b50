// Exceptions, destructors, virtual calls.
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct Base {
	virtual ~Base() {}
	virtual int f(int) = 0;
};
struct A : virtual Base {
	std::string s = "a";
	int f(int x) override {
		if (x > 3) throw std::runtime_error(s + std::to_string(x));
		return x;
	}
};
struct B : virtual Base {
	int f(int x) override {
		alignas(64) char q[64] = {};
		q[x & 63] = 1;
		return q[1] + x;
	}
};
struct C : A, B {
	int f(int x) override { return A::f(x) + B::f(x); }
};

int main(int argc, char **) {
	std::vector<std::unique_ptr<Base>> v;
	v.push_back(std::make_unique<A>());
	v.push_back(std::make_unique<C>());
	int n = 0;
	for (auto &b : v)
		for (int i = 0; i < argc + 4; i++)
			try {
				n += b->f(i);
			} catch (const std::exception &e) {
				std::printf("%s\n", e.what());
			}
	return n == 0;
}
