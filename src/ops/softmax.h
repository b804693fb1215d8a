#pragma once

#include <algorithm>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

struct SoftmaxForward {
  Tensor x, mask, y;  // mask: of x's rank, extents of 1 are broadcast; bool or floating; or absent
  int axis;           // the last one where causal
  bool log, causal;
  double scale;

  int64_t length() const { return x.shape[axis]; }
  bool is_masked() const { return mask || causal; }
  // Of the mask along the axis.
  int64_t mask_stride() const {
    return mask && mask.shape[axis] == length() ? mask.strides[axis] : 0;
  }
  // How many elements of row number `row`, from the first one on, the causal mask keeps.
  int64_t kept(int64_t row) const {
    if (!causal) return length();
    const int64_t queries = x.shape[axis - 1];
    return std::clamp<int64_t>(row % queries + 1 + length() - queries, 0, length());
  }
};

struct SoftmaxBackward {
  Tensor dy, y, dx;
  int axis;
  bool log;
  double scale;
};

template <>
ImplList<SoftmaxForward> cpu_impls<SoftmaxForward>();
template <>
ImplList<SoftmaxBackward> cpu_impls<SoftmaxBackward>();
template <>
ImplList<SoftmaxForward> gpu_impls<SoftmaxForward>();
template <>
ImplList<SoftmaxBackward> gpu_impls<SoftmaxBackward>();

}  // namespace dlkern
