// Checks that the normalisations share.
#pragma once

#include <dlkern/activation.h>

#include <cmath>
#include <initializer_list>

#include "core/mixed.h"

namespace dlkern {

using Tensors = std::initializer_list<const Tensor*>;

inline void require_eps(double eps) {
  if (!(eps >= 0) || std::isinf(eps)) {
    fail(DLK_INVALID_ARGUMENT, "eps is ", eps, ", expected a finite number of at least 0");
  }
}

// The dimension of the channels of x of a layout.
inline int channel_dim(const Call& call, int layout, const Tensor& x) {
  call.require_floating(x);
  call.require_rank(x, 2, 5);
  switch (layout) {
    case DLK_LAYOUT_NCHW:
      return 1;
    case DLK_LAYOUT_NHWC:
      return x.ndim - 1;
    default:
      fail(DLK_INVALID_ARGUMENT, "layout is ", layout, ", expected a dlk_layout");
  }
}

inline dlk_activation require_norm_activation(int activation) {
  switch (activation) {
    case DLK_ACTIVATION_NONE:
    case DLK_ACTIVATION_RELU:
    case DLK_ACTIVATION_SILU:
      return static_cast<dlk_activation>(activation);
    default:
      fail(DLK_INVALID_ARGUMENT, "activation is ", activation,
           ", expected DLK_ACTIVATION_NONE, _RELU or _SILU");
  }
}

// Both running statistics or neither.
inline void require_both_running(const Tensor& mean, const Tensor& var) {
  if (!mean != !var) {
    fail(DLK_INVALID_ARGUMENT, mean ? "running_var" : "running_mean",
         " is NULL, expected both running_mean and running_var or neither");
  }
}

inline void require_momentum(double momentum) {
  if (!std::isfinite(momentum)) {
    fail(DLK_INVALID_ARGUMENT, "momentum is ", momentum, ", expected a finite number");
  }
}

// A variance of fewer than two values says nothing. values: of each `whose`.
inline void require_two_values(const Tensor& x, int64_t values, const char* whose) {
  if (values >= 2) return;
  fail(DLK_INVALID_ARGUMENT, "x.shape is ", shape_string(x), " with ", values,
       values == 1 ? " value" : " values", " per ", whose,
       ", expected at least 2 to compute statistics from");
}

// Those present have this shape and x's dtype, or the one that x is summed in.
inline void require_parameters(const Call& call, Tensors parameters, std::span<const int64_t> shape,
                               const char* why, const Tensor& x) {
  for (const Tensor* t : parameters) {
    if (!*t) continue;
    require_mixed_dtype(call, *t, x);
    call.require_shape(*t, shape, why);
  }
}

// Those present have this shape and the dtype that x is summed in.
inline void require_statistics(const Call& call, Tensors statistics, std::span<const int64_t> shape,
                               const char* why, const Tensor& x) {
  for (const Tensor* t : statistics) {
    if (!*t) continue;
    call.require_dtype(*t, {accumulator_of(x.dtype)});
    call.require_shape(*t, shape, why);
  }
}

// Outputs share no memory with inputs and with each other.
inline void require_disjoint(const Call& call, Tensors outputs, Tensors inputs) {
  for (const Tensor* const* out = outputs.begin(); out != outputs.end(); ++out) {
    for (const Tensor* in : inputs) call.require_disjoint(**out, *in);
    for (const Tensor* const* other = outputs.begin(); other != out; ++other) {
      call.require_disjoint(**out, **other);
    }
  }
}

}  // namespace dlkern
