// Rows of planar tensors in groups of neighbouring elements: what pooling forward and backward share where these
// are aligned.
#pragma once

#include "cuda/pool.cuh"

namespace dlkern::gpu {

// E columns of a row and those that windows reach on either side, where these are inside.
template <class T, int E, int kBefore, int kAfter>
struct RowGroup {
  Raw<T, E> group;
  T before, after;

  __device__ __forceinline__ void load(const T* row, bool first, bool last) {
    group.load(row);
    if constexpr (kBefore > 0) before = row[first ? 0 : -1];
    if constexpr (kAfter > 0) after = row[last ? E - 1 : E];
  }
  __device__ __forceinline__ void unpack(bool first, bool last, Accumulator<T> padding,
                                         Accumulator<T> (&v)[kBefore + E + kAfter]) const {
    using Acc = Accumulator<T>;
    Acc inner[E];
    group.unpack(inner);
#pragma unroll
    for (int e = 0; e < E; ++e) v[kBefore + e] = inner[e];
    if constexpr (kBefore > 0) v[0] = first ? padding : static_cast<Acc>(before);
    if constexpr (kAfter > 0) v[kBefore + E] = last ? padding : static_cast<Acc>(after);
  }
};

// Elements of a group of the input (of forward pooling), for windows at a distance of `stride`.
constexpr int row_group(int stride, int element_bytes) {
  return stride == 1 ? 4 : 16 / element_bytes;
}

// Why kernels over aligned rows do not take a problem over inputs and outputs (of forward pooling);
// nullptr: they do.
inline const char* rows_decline(const PoolShape& s, std::initializer_list<const Tensor*> inputs,
                                std::initializer_list<const Tensor*> outputs) {
  const PoolSquare square = square_of(s);
  if (!square) return kNoSquare;
  const DType dtype = (*inputs.begin())->dtype;
  if (dtype == DType::kFloat64) return "float64";
  if (s.window[2].pad_begin != (square.kernel - 1) / 2 || s.out[2] * square.stride != s.in[2]) {
    return "windows do not begin with the rows and end with them";
  }
  if (!counts_in_int(s)) return "too large for indices of 32 bits";
  const int group = row_group(square.stride, static_cast<int>(dtype_size(dtype)));
  bool fit = s.in[2] % group == 0;
  for (const Tensor* t : inputs) fit = fit && fits_groups(*t, group, 4);
  for (const Tensor* t : outputs) fit = fit && (!*t || fits_groups(*t, group / square.stride, 4));
  return fit ? nullptr : "rows are not aligned";
}

}  // namespace dlkern::gpu
