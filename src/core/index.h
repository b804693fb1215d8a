// Index arithmetic over strided tensors of one shape, shared by the CPU and GPU backends.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/macros.h"
#include "core/tensor.h"

namespace dlkern {

// a / b for a >= 0, b > 0. On a GPU a division of 32 bits is several times cheaper than one of 64.
DLK_HD int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// N tensors walked together over one shape. Dimensions are merged wherever all N allow it, so a
// contiguous problem of any rank ends as one dimension. A plain struct: it can be a kernel argument.
template <int N>
struct StridedIndex {
  int ndim = 0;
  int64_t numel = 1;
  int64_t shape[kMaxDims] = {};
  int64_t stride[N][kMaxDims] = {};  // in elements

  // Element offsets of the linear (row-major) position i in each tensor.
  DLK_HD void offsets(int64_t i, int64_t (&offset)[N]) const {
    for (int n = 0; n < N; ++n) offset[n] = 0;
    for (int d = ndim - 1; d > 0; --d) {
      const int64_t q = quotient(i, shape[d]), r = i - q * shape[d];
      for (int n = 0; n < N; ++n) offset[n] += r * stride[n][d];
      i = q;
    }
    if (ndim > 0) {
      for (int n = 0; n < N; ++n) offset[n] += i * stride[n][0];
    }
  }

  // The same, and the position along each dimension.
  void locate(int64_t i, int64_t (&position)[kMaxDims], int64_t (&offset)[N]) const {
    for (int n = 0; n < N; ++n) offset[n] = 0;
    for (int d = ndim - 1; d >= 0; --d) {
      position[d] = i % shape[d];
      i /= shape[d];
      for (int n = 0; n < N; ++n) offset[n] += position[d] * stride[n][d];
    }
  }

  // One dimension (or none) and unit stride in every tensor.
  DLK_HD bool is_flat() const {
    if (ndim == 0) return true;
    if (ndim != 1) return false;
    for (int n = 0; n < N; ++n) {
      if (stride[n][0] != 1) return false;
    }
    return true;
  }

  // Appends a dimension as the innermost one, merged into the last where possible.
  void push(int64_t extent, const int64_t (&strides)[N]) {
    numel *= extent;
    if (extent == 1) return;
    bool merge = ndim > 0;
    for (int n = 0; n < N && merge; ++n) merge = stride[n][ndim - 1] == strides[n] * extent;
    if (!merge) ++ndim;
    const int d = ndim - 1;
    shape[d] = merge ? shape[d] * extent : extent;
    for (int n = 0; n < N; ++n) stride[n][d] = strides[n];
  }
};

// The index over those dimensions of `tensors` (all of one rank) whose bit is set in `dims`
// (default: all), in order. A tensor whose extent is 1 where the first's is not is broadcast, and
// so is an absent one (all its strides are 0).
template <int N>
StridedIndex<N> make_index(const Tensor* const (&tensors)[N], uint32_t dims = ~0u) {
  StridedIndex<N> index;
  const Tensor& shape_of = *tensors[0];
  for (int d = 0; d < shape_of.ndim; ++d) {
    if (!(dims >> d & 1u)) continue;
    int64_t strides[N];
    for (int n = 0; n < N; ++n) {
      const Tensor& t = *tensors[n];
      strides[n] = !t || (t.shape[d] == 1 && shape_of.shape[d] != 1) ? 0 : t.strides[d];
    }
    index.push(shape_of.shape[d], strides);
  }
  return index;
}

// The same elements with the dimensions sorted so that the first tensor's strides fall, and merged
// again: for work whose order is free, this makes a transposed or channels-last problem contiguous.
template <int N>
StridedIndex<N> in_memory_order(const StridedIndex<N>& index) {
  int order[kMaxDims];
  for (int d = 0; d < index.ndim; ++d) {
    int i = d;
    const auto step = [&](int k) {
      return index.stride[0][k] < 0 ? -index.stride[0][k] : index.stride[0][k];
    };
    for (; i > 0 && step(order[i - 1]) < step(d); --i) order[i] = order[i - 1];
    order[i] = d;
  }
  StridedIndex<N> sorted;
  for (int i = 0; i < index.ndim; ++i) {
    int64_t strides[N];
    for (int n = 0; n < N; ++n) strides[n] = index.stride[n][order[i]];
    sorted.push(index.shape[order[i]], strides);
  }
  return sorted;
}

DLK_HD int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace dlkern
