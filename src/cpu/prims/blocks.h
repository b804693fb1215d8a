// A strided index cut into blocks along its innermost dimension: for work that needs to know where
// it is, or that shares blocks out in its own way. (cpu/prims/spans.h is for work that does not.)
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/index.h"

namespace dlkern::cpu {

// Where blocks begin and end depends on the index and `size` alone. No block is empty.
template <int N>
class Blocks {
 public:
  struct Block {
    int64_t first, n;  // linear positions first to first + n - 1
    int64_t at[N];     // element offset of the first one in each tensor
  };

  Blocks(const StridedIndex<N>& index, int64_t size) : index_(index) {
    const int last = index.ndim - 1;
    inner_ = last < 0 ? 1 : index.shape[last];
    for (int n = 0; n < N; ++n) stride_[n] = last < 0 ? 1 : index.stride[n][last];
    // A row of blocks of about equal size.
    per_row_ = std::max<int64_t>(ceil_div(inner_, size), 1);
    size_ = ceil_div(inner_, per_row_);
    per_row_ = size_ ? ceil_div(inner_, size_) : 0;
    count_ = inner_ ? index.numel / inner_ * per_row_ : 0;
  }

  int64_t count() const { return count_; }
  int64_t size() const { return size_; }  // of the largest block
  int64_t stride(int n) const { return stride_[n]; }
  const int64_t (&strides() const)[N] { return stride_; }

  Block operator[](int64_t i) const {
    const int64_t row = i / per_row_, begin = (i - row * per_row_) * size_;
    Block block;
    block.first = row * inner_ + begin;
    block.n = std::min(size_, inner_ - begin);
    index_.offsets(block.first, block.at);
    return block;
  }

 private:
  StridedIndex<N> index_;
  int64_t inner_, stride_[N], size_, per_row_, count_;
};

}  // namespace dlkern::cpu
