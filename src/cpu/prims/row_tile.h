// Short or strided rows, taken a tile of neighbouring ones at a time and vectorised over the rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/fast_math.h"
#include "cpu/prims/blocks.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/spans.h"

namespace dlkern::cpu {

// Whether rows of n elements are taken in tiles. The number of rows does not matter.
inline bool in_tiles(int64_t n, int64_t stride) { return stride != 1 || n < 64; }

template <int N>
Blocks<N> tiles_of(const StridedIndex<N>& rows, int64_t n) {
  return Blocks<N>(rows, std::clamp<int64_t>(16384 / (n + 1), 16, 256));
}

// sums[r], r < rows, of n elements each, in the very order of sum_of(): bits do not depend on which
// of the two is used. add(i, to) adds element i of all rows to to[]; part: kLanes * rows numbers of
// work space.
template <class Acc, class Add>
void sum_elements(int64_t n, int64_t rows, Acc* sums, Acc* part, Add&& add) {
  std::fill_n(sums, rows, Acc(0));
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    std::fill_n(part, kLanes * rows, Acc(0));
    for (int64_t i = begin; i < std::min(begin + kSumBlock, n); ++i) {
      add(i, part + (i - begin) % kLanes * rows);
    }
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {  // the tree of fold()
      DLK_SIMD
      for (int64_t k = 0; k < half * rows; ++k) part[k] += part[k + half * rows];
    }
    for (int64_t r = 0; r < rows; ++r) sums[r] += part[r];
  }
}

// `rows` rows of n elements as [n][rows], and their maxima.
template <class Acc>
struct RowTile {
  int64_t rows;
  std::vector<Acc> buffer, max, work;
  std::vector<const Acc*> element;  // element i of all rows

  RowTile(int64_t n, int64_t size)
      : buffer(n * size), max(size), work((2 + kLanes) * size), element(n) {}

  template <class T>
  void load(const T* x, int64_t stride, int64_t row_stride, int64_t count) {
    rows = count;
    std::fill_n(max.data(), rows, -std::numeric_limits<Acc>::infinity());
    for (size_t i = 0; i < element.size(); ++i) {
      const Acc* v = element[i] =
          read_span(x + i * stride, row_stride, rows, buffer.data() + i * rows);
      Acc* m = max.data();
      DLK_SIMD
      for (int64_t r = 0; r < rows; ++r) m[r] = v[r] > m[r] || v[r] != v[r] ? v[r] : m[r];
    }
  }
  // sum_r = sum of term(i, x, max of the row) over the elements. Returns work space `slot`, 0 or 1.
  template <class Term>
  Acc* sum(int slot, Term&& term) {
    Acc* total = work.data() + slot * max.size();
    const Acc* m = max.data();
    sum_elements(element.size(), rows, total, work.data() + 2 * max.size(),
                 [&](int64_t i, Acc* to) {
                   const Acc* v = element[i];
                   DLK_SIMD
                   for (int64_t r = 0; r < rows; ++r) to[r] += term(i, v[r], m[r]);
                 });
    return total;
  }
  Acc* sum_exp(int slot, Acc scale = 1) {
    return sum(slot, [scale](int64_t, Acc x, Acc m) { return exp_fast((x - m) * scale); });
  }
};

}  // namespace dlkern::cpu
