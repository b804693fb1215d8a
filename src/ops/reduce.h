#pragma once

#include <dlkern/reduce.h>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// The results (y, dy) have x's rank here, with extent 1 on the axes whose bit is set in `axes`.
struct Reduce {
  Tensor x, y;
  uint32_t axes;
  dlk_reduce_kind kind;
};

struct ReduceBackward {
  Tensor dy, x, y, dx;  // x and y are absent for sum and mean
  uint32_t axes;
  dlk_reduce_kind kind;
};

inline bool is_arg(dlk_reduce_kind kind) {
  return kind == DLK_REDUCE_ARGMAX || kind == DLK_REDUCE_ARGMIN;
}
inline bool is_minimum(dlk_reduce_kind kind) {
  return kind == DLK_REDUCE_MIN || kind == DLK_REDUCE_ARGMIN;
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
