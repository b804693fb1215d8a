#pragma once

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// Batch norm: one [C] vector per parameter, channels along dimension `channel` of x.
struct BatchNormTraining {
  Tensor x, weight, bias, running_mean, running_var, y, mean, rstd;
  int channel = 0;
  double eps = 0, momentum = 0;
};

struct BatchNormInference {
  Tensor x, weight, bias, running_mean, running_var, y;
  int channel = 0;
  double eps = 0;
};

struct BatchNormBackward {
  Tensor dy, x, weight, mean;
  Tensor scale;  // rstd of the training call; else running_var, with eps
  Tensor dx, dweight, dbias;
  bool training;
  int channel = 0;
  double eps = 0;
};

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
ImplList<BatchNormTraining> cpu_impls<BatchNormTraining>();
template <>
ImplList<BatchNormInference> cpu_impls<BatchNormInference>();
template <>
ImplList<BatchNormBackward> cpu_impls<BatchNormBackward>();
template <>
ImplList<RowNormForward> cpu_impls<RowNormForward>();
template <>
ImplList<RowNormBackward> cpu_impls<RowNormBackward>();
template <>
ImplList<BatchNormTraining> gpu_impls<BatchNormTraining>();
template <>
ImplList<BatchNormInference> gpu_impls<BatchNormInference>();
template <>
ImplList<BatchNormBackward> gpu_impls<BatchNormBackward>();
template <>
ImplList<RowNormForward> gpu_impls<RowNormForward>();
template <>
ImplList<RowNormBackward> gpu_impls<RowNormBackward>();

}  // namespace dlkern
