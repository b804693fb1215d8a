#pragma once

#include <dlkern/activation.h>

#include "core/call.h"
#include "core/index.h"
#include "core/tensor.h"

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

// What every op of the family is: for each item of a batch
//
//     sum[m, n] = sum_k a[m, k] b[k, n]
//     pre[m, n] = alpha * sum[m, n] + beta * c[m, n]
//     y[m, n]   = activation(pre[m, n])
//
// Reductions run over a composed index k: more than one dimension where batch dimensions are summed
// and strides do not merge. a.col and b.row are therefore in k, not in the matrices.
struct Gemm {
  int64_t m = 1, n = 1;
  Matrix a, b;                 // a.row: along m, b.col: along n
  Matrix c, y, pre;            // row: along m, col: along n
  StridedIndex<2> k;           // a, b
  StridedIndex<5> batch;       // a, b, c, y, pre
  double alpha = 1, beta = 0;  // beta = 0: c is not read
  dlk_activation activation = DLK_ACTIVATION_NONE;
  double activation_alpha = 1, activation_threshold = 20;
  // Where present (no batch then): row_sum[m] = sum_k a[m, k] (+ row_sum[m]), strided by row.
  Matrix row_sum;
  bool add_row_sum = false;
  // k may be summed in parts: a gradient that nobody expects to be the same, bit for bit, in a batch
  // of another size.
  bool may_split = false;
};

template <>
ImplList<Gemm> cpu_impls<Gemm>();
template <>
ImplList<Gemm> gpu_impls<Gemm>();

}  // namespace dlkern
