#pragma once

#include <dlkern/activation.h>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// Batch norm: one [C] vector per parameter, channels along dimension `channel` of x. Absent tensors
// are optional ones that the caller left out.
struct BatchNormTraining {
  Tensor x, weight, bias, residual, running_mean, running_var, num_batches, y, mean, rstd;
  Tensor var;  // where present, it and mean are inputs: the statistics of x
  int channel = 0;
  double eps = 0, momentum = 0;
  bool cumulative = false;  // momentum is 1 / (num_batches + 1)
  dlk_activation activation = DLK_ACTIVATION_NONE;
};

struct BatchNormInference {
  Tensor x, weight, bias, residual, running_mean, running_var, y;
  int channel = 0;
  double eps = 0;
  dlk_activation activation = DLK_ACTIVATION_NONE;
};

struct BatchNormBackward {
  Tensor dy, x, weight, bias;
  Tensor y;  // where the mask of relu is taken from it
  Tensor mean;
  Tensor scale;  // rstd of the training call; else running_var, with eps
  Tensor dx, dweight, dbias, dresidual;
  bool training;
  int channel = 0;
  double eps = 0;
  dlk_activation activation = DLK_ACTIVATION_NONE;
};

template <>
ImplList<BatchNormTraining> cpu_impls<BatchNormTraining>();
template <>
ImplList<BatchNormInference> cpu_impls<BatchNormInference>();
template <>
ImplList<BatchNormBackward> cpu_impls<BatchNormBackward>();
template <>
ImplList<BatchNormTraining> gpu_impls<BatchNormTraining>();
template <>
ImplList<BatchNormInference> gpu_impls<BatchNormInference>();
template <>
ImplList<BatchNormBackward> gpu_impls<BatchNormBackward>();

}  // namespace dlkern
