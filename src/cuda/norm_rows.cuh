// What the row norms' kernels share: rows and places in them, and what rows need to stay in
// registers.
#pragma once

#include "core/mixed.h"
#include "cuda/prims/row_pieces.cuh"
#include "cuda/prims/rows.cuh"
#include "ops/norm.h"

namespace dlkern::gpu {

// N tensors of x's shape by row and by place in the row.
template <int N>
struct Elements {
  StridedIndex<N> rows, row;

  Elements(const Tensor* const (&tensors)[N], int axis)
      : rows(make_index<N>(tensors, dims_below(axis))),
        row(make_index<N>(tensors, dims_from(axis))) {}
  // A row that does not lie at one stride takes more arithmetic, and that is all.
  __device__ void offsets(const int64_t (&first)[N], int64_t i, int64_t (&at)[N]) const {
    row.offsets(i, at);
    for (int n = 0; n < N; ++n) at[n] += first[n];
  }
};

inline int64_t rows_of(const Tensor& x, int axis) {
  return make_index<1>({&x}, dims_below(axis)).numel;
}
inline int64_t columns_of(const Tensor& x, int axis) {
  return make_index<1>({&x}, dims_from(axis)).numel;
}

// Neighbouring elements from `axis` on, or absent.
inline bool is_row(const Tensor& t, int axis = 0) {
  return !t || make_index<1>({&t}, dims_from(axis)).is_flat();
}

inline constexpr const char* kStrided = "rows do not have neighbouring elements";
inline constexpr const char* kParameters = "weight or bias does not have neighbouring elements";

// Rows are of whole pieces of 16 bytes, at multiples of 16 bytes and one stride apart.
template <int N>
bool are_plain(const Tensor* const (&tensors)[N], int axis) {
  const auto rows = make_index<N>(tensors, dims_below(axis));
  const int size = static_cast<int>(dtype_size(tensors[0]->dtype));
  if (rows.ndim > 1 || columns_of(*tensors[0], axis) * size % 16 != 0) return false;
  for (int i = 0; i < N; ++i) {
    // Of float8 a piece's results are as many bytes.
    const int bytes = tensors[i]->data ? static_cast<int>(dtype_size(tensors[i]->dtype)) : size;
    if (row_alignment(tensors[i]->data, rows, i, bytes) < 16 / size * bytes) return false;
  }
  return true;
}

// A warp or a block for a row, never a single thread.
template <class F>
void dispatch_row_group(Group group, F&& f) {
  if (group == Group::kWarp) {
    f.template operator()<Group::kWarp>();
  } else {
    f.template operator()<Group::kBlock>();
  }
}

}  // namespace dlkern::gpu
