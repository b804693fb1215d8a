#pragma once

#include "core/activation_math.h"
#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

struct ActivationForward {
  Tensor x, y;
  dlk_activation kind;
  double alpha, threshold;
};

struct ActivationBackward {
  Tensor dy, x, dx;
  dlk_activation kind;
  double alpha, threshold;
};

template <>
ImplList<ActivationForward> cpu_impls<ActivationForward>();
template <>
ImplList<ActivationBackward> cpu_impls<ActivationBackward>();
template <>
ImplList<ActivationForward> gpu_impls<ActivationForward>();
template <>
ImplList<ActivationBackward> gpu_impls<ActivationBackward>();

}  // namespace dlkern
