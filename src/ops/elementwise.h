#pragma once

#include <type_traits>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

struct Add {
  Tensor a, b;  // of y's rank; extents of 1 are broadcast
  Tensor y;
  double alpha, beta;
};

// alpha a + beta b; integers wrap around. Where a factor is 0 its summand does not count.
template <class V>
DLK_HD V weighted_sum(V a, V b, V alpha, V beta) {
  if (alpha == 0) a = 0;
  if (beta == 0) b = 0;
  if constexpr (std::is_integral_v<V>) {
    return static_cast<V>(static_cast<uint64_t>(alpha) * static_cast<uint64_t>(a) +
                          static_cast<uint64_t>(beta) * static_cast<uint64_t>(b));
  } else {
    return alpha * a + beta * b;
  }
}

// alpha or beta in the type that is computed in; for integers a whole number, taken modulo 2^32 or
// 2^64 as they are.
template <class V>
V factor_of(double value) {
  if constexpr (std::is_integral_v<V>) {
    return static_cast<V>(static_cast<int64_t>(value));
  } else {
    return static_cast<V>(value);
  }
}

// Calls f.template operator()<T>() for the dtypes of Add.
template <class F>
void dispatch_add(DType dtype, F&& f) {
  if (is_index(dtype)) {
    dispatch_index(dtype, f);
  } else {
    dispatch_floating(dtype, f);
  }
}

template <>
ImplList<Add> cpu_impls<Add>();
template <>
ImplList<Add> gpu_impls<Add>();

}  // namespace dlkern
