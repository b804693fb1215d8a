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
#include "cpu/prims/transpose.h"

namespace dlkern::cpu {

// Whether rows of n elements are taken in tiles. The number of rows does not matter.
inline bool in_tiles(int64_t n, int64_t stride) { return stride != 1 || n < 16; }

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

// The elements of `rows` rows of n as [n][rows]: in place where that is how they lie.
template <class T, class Acc = Accumulator<T>>
class TileInput {
 public:
  TileInput(int64_t n, int64_t size) : elements_(n * size), items_(n * size), element_(n) {}

  // Element k of row r lies at x[k * stride + r * row_stride].
  void load(const T* x, int64_t stride, int64_t row_stride, int64_t rows) {
    const int64_t n = element_.size();
    const bool turned = stride == 1 && row_stride != 1;
    if (turned) transpose_block(x, row_stride, items_.data(), rows, n, rows);
    for (int64_t k = 0; k < n; ++k) {
      Acc* buffer = elements_.data() + k * rows;
      element_[k] = turned ? read_span(items_.data() + k * rows, 1, rows, buffer)
                           : read_span(x + k * stride, row_stride, rows, buffer);
    }
  }
  const Acc* operator[](int64_t k) const { return element_[k]; }

 private:
  std::vector<Acc> elements_;
  std::vector<T> items_;
  std::vector<const Acc*> element_;
};

// The same the other way: where each element of all rows is computed, in order, and then stored.
template <class T, class Acc = Accumulator<T>>
class TileOutput {
 public:
  TileOutput(int64_t n, int64_t size) : n_(n), elements_(size), items_(n * size) {}

  void open(T* y, int64_t stride, int64_t row_stride, int64_t rows) {
    y_ = y, stride_ = stride, row_stride_ = row_stride, rows_ = rows;
  }
  // compute(out): element k of all rows. The last k stores what has not been.
  template <class F>
  void put(int64_t k, F&& compute) {
    const bool turned = stride_ == 1 && row_stride_ != 1;
    T* to = turned ? items_.data() + k * rows_ : y_ + k * stride_;
    const int64_t step = turned ? 1 : row_stride_;
    Acc* out = begin_span(to, step, elements_.data());
    compute(out);
    finish_span(out, to, step, rows_);
    if (turned && k == n_ - 1) {
      transpose_block(items_.data(), rows_, y_, row_stride_, rows_, n_);
    }
  }

 private:
  T* y_ = nullptr;
  int64_t n_, stride_ = 0, row_stride_ = 0, rows_ = 0;
  std::vector<Acc> elements_;
  std::vector<T> items_;
};

// `rows` rows of n elements as [n][rows], and their maxima.
template <class T, class Acc = Accumulator<T>>
struct RowTile {
  int64_t rows, n;
  std::vector<Acc> max, work;
  TileInput<T> element;  // element i of all rows

  RowTile(int64_t n_, int64_t size)
      : n(n_), max(size), work((2 + kLanes) * size), element(n, size) {}

  void load(const T* x, int64_t stride, int64_t row_stride, int64_t count) {
    rows = count;
    element.load(x, stride, row_stride, rows);
    std::fill_n(max.data(), rows, -std::numeric_limits<Acc>::infinity());
    for (int64_t i = 0; i < n; ++i) {
      const Acc* v = element[i];
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
    sum_elements(n, rows, total, work.data() + 2 * max.size(), [&](int64_t i, Acc* to) {
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
