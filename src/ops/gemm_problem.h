// From checked tensors to a Gemm: what the C functions of the family share.
#pragma once

#include <optional>
#include <vector>

#include "core/call.h"
#include "ops/gemm.h"

namespace dlkern {

void require_precision(int32_t precision);
// Of an epilogue, checked.
void set_activation(Epilogue& e, int32_t activation, double alpha, double threshold);

inline Matrix matrix(const Tensor& t, int64_t row, int64_t col) {
  return {t.data, t.dtype, row, col};
}

// Extent of the dimension `from_end` places before the last one; 1 for one that is not there.
inline int64_t extent_of(const Tensor& t, int from_end) {
  return from_end < t.ndim ? t.shape[t.ndim - 1 - from_end] : 1;
}
// Its stride in a walk over `extent` items: 0 where the tensor is broadcast or absent.
inline int64_t stride_of(const Tensor& t, int from_end, int64_t extent) {
  return extent_of(t, from_end) == extent && from_end < t.ndim ? t.strides[t.ndim - 1 - from_end]
                                                               : 0;
}
// The last two dimensions exchanged.
Tensor transposed(Tensor t);

// Shape of a @ b as NumPy has it, without the dimensions that a vector lacks.
std::vector<int64_t> matmul_shape(const Tensor& a, const Tensor& b);

// y = a b (+ c) for tensors of two dimensions and more. Batch dimensions that y lacks, or has with
// extent 1, are summed.
Gemm make_gemm(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& y);

// y[..., :] = x[..., :] times a matrix, the same for all rows. The other tensors have, or broadcast
// to, the shape of y, and may be absent.
void set_rows(Gemm& g, const Tensor& x, const Tensor& y, const Tensor& pre, const Tensor& residual,
              const Tensor& saved);

// Of products of float8 or int8 operands. y may be int8 where they are int8 and, where is_plain says
// that nothing is applied to the sums, int32.
void require_8bit(const Call& call, const Tensor& a, const Tensor& b, const Tensor& y,
                  bool is_plain);

// The factors of an operand, checked; none where t is absent. along_k: its dimension along k, 1 of a
// and 0 of b. items: there may be factors for each of so many items of a batch, in a dimension before
// the others.
Scale read_scale(const Call& call, const Tensor& t, int64_t rows, int64_t depth, int along_k,
                 std::optional<int64_t> items = std::nullopt);
// int8 operands have none along k.
void require_no_int8_depth(const Gemm& g);

// Takes leading dimensions for rows where that gives one taller matrix.
void fold_batch_into_rows(Gemm& g);

// Folds, orients and runs it.
void run_gemm(Call& call, Gemm& g);

}  // namespace dlkern
