#pragma once

#include <vector>

#include "core/call.h"
#include "core/index.h"
#include "core/tensor.h"

namespace dlkern {

// Views of one shape and item size: element by element, y = x.
struct Piece {
  Tensor x, y;
};

// Pieces that do not overlap, at least one.
struct Copy {
  std::vector<Piece> pieces;
};

// The same with a conversion. Both dtypes differ.
struct Cast {
  Tensor x, y;
};

// A piece's axes in the order of y's memory: y, x.
inline StridedIndex<2> copy_order(const Piece& piece) {
  return in_memory_order(make_index<2>({&piece.y, &piece.x}));
}

// A copy between different fastest axes: x's (rows), y's (columns), and all others.
struct Transposition {
  StridedIndex<2> outer;       // y, x
  int64_t rows, columns;       // extents
  int64_t y_row, x_row;        // strides along the rows
  int64_t y_column, x_column;  // strides along the columns

  // index: y, x in y's memory order; fast: x's fastest axis, not the last.
  Transposition(const StridedIndex<2>& index, int fast) {
    const int last = index.ndim - 1;
    for (int d = 0; d < last; ++d) {
      if (d != fast) outer.push(index.shape[d], {index.stride[0][d], index.stride[1][d]});
    }
    rows = index.shape[fast], columns = index.shape[last];
    y_row = index.stride[0][fast], x_row = index.stride[1][fast];
    y_column = index.stride[0][last], x_column = index.stride[1][last];
  }
};

// The axis along which x's elements are closest together; the last where there are several.
inline int fastest_axis(const StridedIndex<2>& index) {
  const auto step = [&](int d) {
    return index.stride[1][d] < 0 ? -index.stride[1][d] : index.stride[1][d];
  };
  int fast = index.ndim - 1;
  for (int d = index.ndim - 1; d >= 0; --d) {
    if (step(d) < step(fast)) fast = d;
  }
  return fast;
}

template <>
ImplList<Copy> cpu_impls<Copy>();
template <>
ImplList<Copy> gpu_impls<Copy>();
template <>
ImplList<Cast> cpu_impls<Cast>();
template <>
ImplList<Cast> gpu_impls<Cast>();

}  // namespace dlkern
