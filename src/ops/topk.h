#pragma once

#include <dlkern/topk.h>

#include "core/call.h"
#include "core/index.h"
#include "core/tensor.h"
#include "core/topk_key.h"

namespace dlkern {

struct TopK {
  Tensor x, values, indices;
  int axis;
  bool largest, sorted;
  int64_t n() const { return x.shape[axis]; }
  int64_t k() const { return values.shape[axis]; }
};

struct TopKBackward {
  Tensor dy, indices, dx;
  int axis;
};

// Row by row: the first element of each in these tensors.
template <int N>
StridedIndex<N> rows_of(const Tensor* const (&tensors)[N], int axis) {
  return make_index<N>(tensors, ~(1u << axis));
}

template <>
ImplList<TopK> cpu_impls<TopK>();
template <>
ImplList<TopKBackward> cpu_impls<TopKBackward>();
template <>
ImplList<TopK> gpu_impls<TopK>();
template <>
ImplList<TopKBackward> gpu_impls<TopKBackward>();

}  // namespace dlkern
