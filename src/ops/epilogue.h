// What becomes of the sums of a matrix product, or of a convolution, before they are stored.
#pragma once

#include <dlkern/activation.h>

#include "core/dtype.h"
#include "core/macros.h"

namespace dlkern {

// A matrix somewhere in a tensor: strides in elements. Absent where data is null and not needed.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kUnknown;
  int64_t row = 0, col = 0;

  template <class T>
  DLK_HD T* as() const {
    return static_cast<T*>(data);
  }
};

// For the sum of each element (m, n), in the type of the sums:
//
//     pre = alpha * sum + beta * c
//     out = activation(pre) + residual       or, with saved,  pre * activation'(saved) + residual
//     y   = out * scale_y, rounded once;     amax = max |out|
//
// Every matrix has a row stride (along m) and a column stride (along n); 0 broadcasts.
struct Epilogue {
  Matrix y;
  Matrix c;         // read where beta is not 0
  Matrix pre;       // optional output
  Matrix residual;  // optional
  Matrix saved;     // optional: the argument of the activation whose gradient is computed
  double alpha = 1, beta = 0;
  dlk_activation activation = DLK_ACTIVATION_NONE;
  double activation_alpha = 1, activation_threshold = 20;
  const float* scale_y = nullptr;  // optional, one float32 on the device
  float* amax = nullptr;           // optional output, one float32 on the device

  // Nothing but y = alpha * sum.
  DLK_HD bool is_plain() const {
    return beta == 0 && !pre.data && !residual.data && !saved.data && !scale_y && !amax &&
           activation == DLK_ACTIVATION_NONE;
  }
};

}  // namespace dlkern
