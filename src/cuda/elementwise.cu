// Element-wise arithmetic with broadcasting: y = alpha a + beta b.
//
// A broadcast dimension has stride 0, so a repeated element comes from cache. 16-bit types are added
// in float32. Bound by memory.
#include "ops/elementwise.h"

#include "cuda/prims/elementwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <class V>
struct WeightedSum {
  using Pointwise = void;
  V alpha, beta;

  template <int W>
  __device__ void operator()(Pack<V, W>& y, const Pack<V, W>& a, const Pack<V, W>& b) const {
#pragma unroll
    for (int k = 0; k < W; ++k) y[k] = weighted_sum(a[k], b[k], alpha, beta);
  }
};

template <class T>
void launch_add(const Add& p, const Launch& launch) {
  using V = Computed<T>;
  const WeightedSum<V> f{factor_of<V>(p.alpha), factor_of<V>(p.beta)};
  map_elements(in_memory_order(make_index<3>({&p.y, &p.a, &p.b})), f, launch.stream,
               Out<T>{p.y.as<T>()}, In<T>{p.a.as<T>()}, In<T>{p.b.as<T>()});
}

constexpr Impl<Add> kAdd[] = {
    {"elementwise", supports_all, nullptr,
     [](const Add& p, const Launch& launch) {
       dispatch_add(p.y.dtype, [&]<class T>() { launch_add<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<Add> gpu_impls<Add>() {
  return kAdd;
}

}  // namespace dlkern
