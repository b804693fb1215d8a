#pragma once

#include <dlkern/activation.h>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// Group norm: N samples along dimension 0 of x, C channels along `channel`; weight, bias, dweight,
// dbias and the running statistics are [C], mean and rstd [N, groups]. Running statistics only
// where groups == C. Absent tensors are optional ones that the caller left out.
struct GroupNormForward {
  Tensor x, weight, bias, y, mean, rstd;
  double eps = 0;
  dlk_activation activation = DLK_ACTIVATION_NONE;
  int channel = 0;
  int64_t groups = 1;
  Tensor running_mean = {}, running_var = {};
  double momentum = 0;
};

struct GroupNormBackward {
  Tensor dy, x, weight, bias, mean, rstd, dx, dweight, dbias;
  dlk_activation activation = DLK_ACTIVATION_NONE;
  int channel = 0;
  int64_t groups = 1;
};

template <>
ImplList<GroupNormForward> cpu_impls<GroupNormForward>();
template <>
ImplList<GroupNormBackward> cpu_impls<GroupNormBackward>();
template <>
ImplList<GroupNormForward> gpu_impls<GroupNormForward>();
template <>
ImplList<GroupNormBackward> gpu_impls<GroupNormBackward>();

}  // namespace dlkern
