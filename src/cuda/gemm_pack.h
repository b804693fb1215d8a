// Operands that the tensor cores or the copy engine cannot take as they lie, written once into the
// workspace along k.
#pragma once

#include "ops/gemm.h"

namespace dlkern {

// One operand: items of a batch, each rows x k.
struct Pack {
  const void* from = nullptr;
  int64_t rows = 1, row = 0;  // extent and stride
  StridedIndex<1> k;          // composed, in order
  StridedIndex<1> items;
  int element_bytes = 0;
  // float32 as the sum of three bfloat16: [items][3][rows][pitch]; else [items][1][rows][pitch].
  bool planes = false;
  // Planes: set to 1 where a value has no such sum in full precision (infinite, NaN, beyond
  // bfloat16's range, or so small that the last plane underflows).
  int* flag = nullptr;

  int64_t pitch() const { return ceil_div(k.numel, 64) * 64; }  // elements from row to row
  size_t bytes() const {
    return static_cast<size_t>(items.numel * rows * pitch()) * (planes ? 6 : element_bytes);
  }
};

void run_pack(const Pack& pack, void* to, void* stream);

}  // namespace dlkern
