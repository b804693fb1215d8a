// Element-wise arithmetic on the CPU: spans in parallel. Along a dimension in which an input is
// broadcast its element is repeated into a buffer.
#include "ops/elementwise.h"

#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

template <class V>
void add_span(int64_t n, V* y, const V* a, const V* b, V alpha, V beta) {
  DLK_SIMD for (int64_t i = 0; i < n; ++i) y[i] = weighted_sum(a[i], b[i], alpha, beta);
}

template <class T>
void add(const Add& p) {
  using V = Computed<T>;
  const V alpha = factor_of<V>(p.alpha), beta = factor_of<V>(p.beta);
  map_spans(
      in_memory_order(make_index<3>({&p.y, &p.a, &p.b})),
      [&](int64_t n, V* y, const V* a, const V* b) { add_span(n, y, a, b, alpha, beta); },
      Out<T>{p.y.as<T>()}, In<T>{p.a.as<T>()}, In<T>{p.b.as<T>()});
}

constexpr Impl<Add> kAdd[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const Add& p, const Launch&) { dispatch_add(p.y.dtype, [&]<class T>() { add<T>(p); }); }},
};

}  // namespace

template <>
ImplList<Add> cpu_impls<Add>() {
  return kAdd;
}

}  // namespace dlkern
