#pragma once

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

struct SoftmaxForward {
  Tensor x, y;
  int axis;
  bool log;
};

struct SoftmaxBackward {
  Tensor dy, y, dx;
  int axis;
  bool log;
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
