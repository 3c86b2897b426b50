// Names with parameters, templates, namespaces and operators.
#include <map>
#include <string>
#include <vector>

namespace shop {
template <typename T> struct Basket {
  std::vector<T> items;
  __attribute__((noinline)) Basket &operator+=(const T &t) { items.push_back(t); return *this; }
  __attribute__((noinline, noipa)) size_t count(const std::map<std::string, T> &) const { return items.size(); }
};
struct Till {
  __attribute__((noinline)) Till() : sum(0) {}
  __attribute__((noinline)) ~Till() { sum = -1; }
  __attribute__((noinline)) long ring(long cents) { return sum += cents; }
  volatile long sum;
};
} // namespace shop

int main() {
  shop::Basket<int> b;
  b += 4;
  shop::Till t;
  return static_cast<int>(t.ring(static_cast<long>(b.count({}))));
}
