#pragma once

#include <dlkern/reduce.h>

#include <algorithm>

#include "core/call.h"
#include "core/index.h"
#include "core/tensor.h"

namespace dlkern {

// The results (y, dy) have x's rank here, with extent 1 on the axes whose bit is set in `axes`.
struct Reduce {
  Tensor x, y;
  uint32_t axes;
  dlk_reduce_kind kind;
  double ord = 2, correction = 0;
};

struct ReduceBackward {
  Tensor dy, x, y, dx;  // x and y are absent where the kind has no use for them
  uint32_t axes;
  dlk_reduce_kind kind;
  double ord, correction;
};

// What the gradient needs of the forward pass.
inline bool takes_x(dlk_reduce_kind kind) {
  return kind != DLK_REDUCE_SUM && kind != DLK_REDUCE_MEAN;
}
inline bool takes_y(dlk_reduce_kind kind) {
  return takes_x(kind) && kind != DLK_REDUCE_PROD && kind != DLK_REDUCE_VAR;
}

inline bool is_arg(dlk_reduce_kind kind) {
  return kind == DLK_REDUCE_ARGMAX || kind == DLK_REDUCE_ARGMIN;
}
inline bool is_logical(dlk_reduce_kind kind) {
  return kind == DLK_REDUCE_ANY || kind == DLK_REDUCE_ALL;
}
inline bool is_minimum(dlk_reduce_kind kind) {
  return kind == DLK_REDUCE_MIN || kind == DLK_REDUCE_ARGMIN;
}
inline bool is_variance(dlk_reduce_kind kind) {
  return kind == DLK_REDUCE_VAR || kind == DLK_REDUCE_STD;
}

// f.template operator()<T>() with the C++ type of a dtype that can be reduced.
template <class F>
void dispatch_reducible(DType dtype, F&& f) {
  if (is_index(dtype)) {
    dispatch_index(dtype, f);
  } else {
    dispatch_floating(dtype, f);
  }
}

// The first element of each result, as a view with extent 1 on the reduced axes.
inline Tensor first_elements(Tensor x, uint32_t axes) {
  for (int d = 0; d < x.ndim; ++d) {
    if (axes >> d & 1u) x.shape[d] = std::min<int64_t>(x.shape[d], 1);
  }
  return x;
}

// Of n elements: what a variance is divided by, and the factor of x - mean in its gradient and in
// that of its root times y.
inline double variance_divisor(int64_t n, double correction) {
  return std::max(static_cast<double>(n) - correction, 0.0);
}
inline double deviation_factor(const ReduceBackward& p) {
  const int64_t n = make_index<1>({&p.dx}, p.axes).numel;
  return (p.kind == DLK_REDUCE_VAR ? 2 : 1) / variance_divisor(n, p.correction);
}

// A contiguous view of t's shape on other memory.
inline Tensor contiguous_like(Tensor t, DType dtype, void* data) {
  t.data = data;
  t.dtype = dtype;
  return row_major(t);
}

template <>
ImplList<Reduce> cpu_impls<Reduce>();
template <>
ImplList<ReduceBackward> cpu_impls<ReduceBackward>();
template <>
ImplList<Reduce> gpu_impls<Reduce>();
template <>
ImplList<ReduceBackward> gpu_impls<ReduceBackward>();

}  // namespace dlkern
