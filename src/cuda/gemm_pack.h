// Operands that the tensor cores or the copy engine cannot take as they lie, written once into the
// workspace along k.
#pragma once

#include <span>

#include "ops/gemm.h"

namespace dlkern {

// One operand: items of a batch, each rows x k. In the copy k is filled up with zeros to pitch().
struct Pack {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t rows = 1, row = 0;  // extent and stride
  StridedIndex<1> k;          // composed, in order
  StridedIndex<2> items;      // of the operand, and of the copy
  int element_bytes = 0;
  // float32 as the sum of so many bfloat16, 2 or 3; 0: elements as they are.
  int planes = 0;
  int64_t to_row = 0,
          to_plane = 0;  // strides of the copy: multiples of 16 bytes, as those of items
  // Planes: set to 1 where a value has no such sum of three in full precision (infinite, NaN, beyond
  // bfloat16's range, or so small that the last plane underflows).
  int* flag = nullptr;

  int64_t pitch() const { return ceil_div(k.numel, 64) * 64; }  // elements from row to row
  size_t bytes() const {
    return static_cast<size_t>(items.numel * rows * pitch()) *
           (planes ? planes * sizeof(uint16_t) : element_bytes);
  }
};

// Those that are computed alike in one launch, if they follow each other.
void run_packs(std::span<const Pack> packs, void* stream);

}  // namespace dlkern
