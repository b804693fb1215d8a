#pragma once

#include "core/activation_math.h"
#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// Of an activation that another op applies.
inline void require_activation(int32_t activation, double alpha) {
  if (!is_activation(activation)) {
    fail(DLK_INVALID_ARGUMENT, "activation is ", activation, ", expected a dlk_activation");
  }
  if (activation == DLK_ACTIVATION_SOFTPLUS && alpha == 0) {
    fail(DLK_INVALID_ARGUMENT, "alpha is ", alpha, ", expected it not to be 0");
  }
}

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

struct GatedForward {
  Tensor gate, up, y;
  dlk_activation kind;
};

struct GatedBackward {
  Tensor dy, gate, up, dgate, dup;
  dlk_activation kind;
};

template <>
ImplList<ActivationForward> cpu_impls<ActivationForward>();
template <>
ImplList<ActivationBackward> cpu_impls<ActivationBackward>();
template <>
ImplList<ActivationForward> gpu_impls<ActivationForward>();
template <>
ImplList<ActivationBackward> gpu_impls<ActivationBackward>();
template <>
ImplList<GatedForward> cpu_impls<GatedForward>();
template <>
ImplList<GatedBackward> cpu_impls<GatedBackward>();
template <>
ImplList<GatedForward> gpu_impls<GatedForward>();
template <>
ImplList<GatedBackward> gpu_impls<GatedBackward>();

}  // namespace dlkern
