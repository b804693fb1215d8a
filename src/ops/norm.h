#pragma once

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// Layer norm and RMS norm: rows are the dimensions of x from `axis` on.
struct RowNormForward {
  Tensor x, residual, weight, scale_out, y, residual_out, rstd, amax;
  double eps, weight_offset;
  bool rms;  // no mean is subtracted; bias and mean are absent
  Tensor bias = {}, mean = {};
  int axis = 0;
};

struct RowNormBackward {
  Tensor dy, x, weight, rstd, dresidual, dx, dweight;
  double weight_offset;
  bool rms;
  Tensor mean = {}, dbias = {};
  int axis = 0;
};

// Bits of the dimensions below `axis`, and of those from it on: for make_index.
inline uint32_t dims_below(int axis) { return (1u << axis) - 1; }
inline uint32_t dims_from(int axis) { return ~dims_below(axis); }

template <>
ImplList<RowNormForward> cpu_impls<RowNormForward>();
template <>
ImplList<RowNormBackward> cpu_impls<RowNormBackward>();
template <>
ImplList<RowNormForward> gpu_impls<RowNormForward>();
template <>
ImplList<RowNormBackward> gpu_impls<RowNormBackward>();

}  // namespace dlkern
