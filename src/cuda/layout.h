// How a copy is done on a GPU: the kernels of layout.cu and layout_tiles.cu.
#pragma once

#include "ops/layout.h"

namespace dlkern::gpu {

// A piece as the kernels see it. Where x and y run along different axes it is one Transposition for
// each item of the outer axes.
struct CopyPlan {
  StridedIndex<2> index;  // y, x in y's memory order
  int fast;               // x's fastest axis; the last one: there is nothing to transpose
  int item_bytes;
  const void* x;
  void* y;

  explicit CopyPlan(const Piece& piece)
      : index(copy_order(piece)),
        fast(fastest_axis(index)),
        item_bytes(static_cast<int>(dtype_size(piece.y.dtype))),
        x(piece.x.data),
        y(piece.y.data) {}
  bool transposes() const { return fast != index.ndim - 1; }
};

// nullptr where these kernels would do well, else the reason why not.
const char* declines_planes(const CopyPlan& plan);
const char* declines_tiles(const CopyPlan& plan);

void copy_planes(const CopyPlan& plan, const Launch& launch);
void copy_tiles(const CopyPlan& plan, const Launch& launch);

}  // namespace dlkern::gpu
