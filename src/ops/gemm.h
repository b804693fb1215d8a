#pragma once

#include "core/call.h"
#include "core/index.h"
#include "core/tensor.h"
#include "ops/epilogue.h"

namespace dlkern {

// Factors of an operand's elements, in float32: in item i of the batch the element (r, k), where r is
// m for a and n for b, is multiplied by data[i * item + r / rows * row + k / kScaleDepth * depth].
// One for all: item = row = depth = 0.
inline constexpr int64_t kScaleDepth = 128;
struct Scale {
  const float* data = nullptr;
  int64_t rows = 1;  // neighbouring rows that share a factor: 1 or 128
  int64_t row = 0, depth = 0;
  int64_t item = 0;  // other than 0: then the batch has at most one dimension

  DLK_HD bool along_depth() const { return data && depth != 0; }
  DLK_HD float at(int64_t i, int64_t r, int64_t k) const {
    const int64_t group = rows == 1 ? r : r / kScaleDepth;  // no division by a variable
    return data[i * item + group * row + k / kScaleDepth * depth];
  }
  // Those of item i alone, as its item 0.
  DLK_HD Scale of(int64_t i) const {
    Scale scale = *this;
    scale.data += i * item;
    return scale;
  }
};

// Items of a batch that are parts of one extent, cut at offsets on the device: item g has what lies
// between ends[g - 1] (0 for the first) and ends[g], each clamped to the extent; nothing where those
// fall.
struct Groups {
  enum class Along {
    kNone,
    kRows,  // item g computes those rows m only; rows beyond the last end are not written
    kDepth  // item g sums over those k only
  };
  Along along = Along::kNone;
  const void* ends = nullptr;   // as many as the batch has items
  int64_t stride = 1;           // from end to end, in elements
  DType dtype = DType::kInt32;  // or int64

  DLK_HD int64_t end(int64_t item, int64_t extent) const {
    const int64_t at = dtype == DType::kInt32 ? static_cast<const int32_t*>(ends)[item * stride]
                                              : static_cast<const int64_t*>(ends)[item * stride];
    return at < 0 ? 0 : at < extent ? at : extent;
  }
  // Where item's part of the extent begins; may lie behind its end, and the part is empty then.
  DLK_HD int64_t begin(int64_t item, int64_t extent) const {
    return item == 0 ? 0 : end(item - 1, extent);
  }
};

// What every op of the family is: for each item of a batch
//
//     sum[m, n] = sum_k a[m, k] scale_a(m, k) b[k, n] scale_b(n, k)
//
// and what Epilogue makes of it. Reductions run over a composed index k: more than one dimension
// where batch dimensions are summed and strides do not merge. a.col and b.row are therefore in k,
// not in the matrices. a and b are of one floating dtype, or both float8 of either kind, or both
// int8, which are summed in int32 and have no scales along the depth.
struct Gemm : Epilogue {
  static constexpr int kTensors = 7;  // a, b, c, y, pre, residual, saved
  int64_t m = 1, n = 1;
  Matrix a, b;        // a.row: along m, b.col: along n
  StridedIndex<2> k;  // a, b
  StridedIndex<kTensors> batch;
  Scale scale_a, scale_b;
  Groups groups;  // then the batch has one dimension, and k at most one
  bool is_scaled() const { return scale_a.data || scale_b.data; }
  bool is_grouped() const { return groups.along != Groups::Along::kNone; }
  // Where present (no batch then): row_sum[m] = sum_k a[m, k] (+ row_sum[m]), strided by row.
  Matrix row_sum;
  bool add_row_sum = false;
  bool tf32 = false;  // float32 operands may be rounded to tf32
  // A row's bits may not depend on m: one order of summation for all m.
  bool batch_invariant = false;
};

template <>
ImplList<Gemm> cpu_impls<Gemm>();
template <>
ImplList<Gemm> gpu_impls<Gemm>();

}  // namespace dlkern
