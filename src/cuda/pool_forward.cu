// Pooling over windows of 1 to 3 spatial dimensions: forward.
//
//   max   y[o] = max of x over the taps of window o; indices[o] = where the first maximum lies
//   avg   y[o] = sum of x over the taps of window o / divisor(o)
//   lp    y[o] = (sum of |x|^p over the taps of window o)^(1 / p)
//
// Layout: any strides. Two kernels:
//   windows   A thread computes one window of one channel, or of 16 bytes of channels where they are
//             neighbours in memory. Threads are numbered along the channels where these come last,
//             else along W; a block is a tile of windows that overlap in L1.
//   rows      Planar images, windows of 2 x 2 or 3 x 3: a thread reads pieces of 16 bytes of some
//             neighbouring rows, all at once, and computes all windows that begin in them.
// Both add up a window's rows, then their sums, so that the bits do not depend on the kernel.
// Bound by memory. 16-bit values are summed in float32.
#include "cuda/pool.cuh"
#include "cuda/prims/reduce.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <class Acc>
__device__ __forceinline__ Acc infinity() {
  return static_cast<Acc>(INFINITY);
}

// ---- What is done with a window's elements ------------------------------------------------------
//
// A Cell holds what is known of N windows after some of their taps, in row-major order:
//     begin(label of the first tap inside)   begin_row()   take(k, value, label)   end_row()
// A Row does the same for one row of taps, and is then merged into the Cells of those windows that
// hold the row. Taps outside the image are taken with the value kPadding.

template <class T>
struct MaxOp {
  using Label = int;
  static constexpr bool kLabels = false;
  static __device__ T padding() { return T(-infinity<Accumulator<T>>()); }
  template <int N>
  struct Cell {
    using Acc = Accumulator<T>;
    Acc value[N];

    __device__ __forceinline__ void begin(int k, Label) { value[k] = -infinity<Acc>(); }
    __device__ __forceinline__ void begin_row() {}
    __device__ __forceinline__ void take(const MaxOp&, int k, Acc v, Label) {
      value[k] = Max{}(v, value[k]);
    }
    __device__ __forceinline__ void end_row() {}
    __device__ __forceinline__ void merge(int k, const Cell& row, int from, Label) {
      value[k] = Max{}(row.value[from], value[k]);
    }
  };
  template <class I>
  __device__ __forceinline__ Accumulator<T> scale(const PoolShape&, const PoolPlace<I>&) const {
    return 1;
  }
  __device__ __forceinline__ Accumulator<T> result(Accumulator<T> v, Accumulator<T>) const {
    return v;
  }
};

// Labels are kept relative to that of tap 0.
template <class T, class Label_>
struct MaxIndexOp {
  using Label = Label_;
  static constexpr bool kLabels = true;
  Indices indices;
  Label step[kMaxSpatial];  // from tap to tap

  MaxIndexOp(const Tensor& t, const PoolShape& s) : indices(t) {
    const auto set = [this](int64_t d, int64_t h, int64_t w) {
      step[0] = static_cast<Label>(d), step[1] = static_cast<Label>(h);
      step[2] = static_cast<Label>(w);
    };
    const Window(&w)[kMaxSpatial] = s.window;
    if (indices.bytes == 1) {
      set(w[1].kernel * w[2].kernel, w[2].kernel, 1);
    } else {
      set(w[0].dilation * s.in[1] * s.in[2], w[1].dilation * s.in[2], w[2].dilation);
    }
  }
  // The label of tap 0 of a window, which may lie in the padding.
  __device__ __forceinline__ Label base(const PoolShape& s, const PoolPlace<Label>& o) const {
    if (indices.are_taps()) return 0;
    const Label height = static_cast<Label>(s.in[1]), width = static_cast<Label>(s.in[2]);
    return (s.origin(0, o.d) * height + s.origin(1, o.h)) * width + s.origin(2, o.w);
  }
  static __device__ T padding() { return T(-infinity<Accumulator<T>>()); }
  template <int N>
  struct Cell {
    using Acc = Accumulator<T>;
    Acc value[N];
    Label label[N];

    __device__ __forceinline__ void begin(int k, Label first) {
      value[k] = -infinity<Acc>(), label[k] = first;
    }
    __device__ __forceinline__ void begin_row() {}
    __device__ __forceinline__ void take(const MaxIndexOp&, int k, Acc v, Label at) {
      const bool better = !(v <= value[k]) && value[k] == value[k];  // the first NaN stays
      value[k] = better ? v : value[k];
      label[k] = better ? at : label[k];
    }
    __device__ __forceinline__ void end_row() {}
    __device__ __forceinline__ void merge(int k, const Cell& row, int from, Label at) {
      const bool better = !(row.value[from] <= value[k]) && value[k] == value[k];
      value[k] = better ? row.value[from] : value[k];
      label[k] = better ? at + row.label[from] : label[k];
    }
  };
  template <class I>
  __device__ __forceinline__ Accumulator<T> scale(const PoolShape&, const PoolPlace<I>&) const {
    return 1;
  }
  __device__ __forceinline__ Accumulator<T> result(Accumulator<T> v, Accumulator<T>) const {
    return v;
  }
};

template <class Acc, class Op>
struct TotalCell {
  template <int N>
  struct Of {
    Acc value[N], row[N];

    template <class I>
    __device__ __forceinline__ void begin(int k, I) {
      value[k] = 0, row[k] = 0;
    }
    __device__ __forceinline__ void begin_row() {
#pragma unroll
      for (int k = 0; k < N; ++k) row[k] = 0;
    }
    template <class I>
    __device__ __forceinline__ void take(const Op& op, int k, Acc v, I) {
      row[k] += op.term(v);
    }
    __device__ __forceinline__ void end_row() {
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] += row[k];
    }
    template <class I>
    __device__ __forceinline__ void merge(int k, const Of& from, int i, I) {
      value[k] += from.row[i];
    }
  };
};

template <class T>
struct AvgOp {
  using Acc = Accumulator<T>;
  using Label = int;
  static constexpr bool kLabels = false;
  PoolDivisor divisor;
  Acc uniform;  // the divisor of all windows; 0: they differ

  AvgOp(const PoolDivisor& d, const PoolShape& s)
      : divisor(d), uniform(static_cast<Acc>(d.uniform(s))) {}
  static __device__ T padding() { return T(Acc(0)); }
  __device__ __forceinline__ Acc term(Acc v) const { return v; }
  template <int N>
  using Cell = typename TotalCell<Acc, AvgOp>::template Of<N>;
  // Of a window; the results of one in 16 bits are right with a reciprocal, too.
  template <class I>
  __device__ __forceinline__ Acc scale(const PoolShape& s, const PoolPlace<I>& o) const {
    const Acc by = uniform != 0
                       ? uniform
                       : static_cast<Acc>(divisor.rows(s, o.d, o.h) * divisor.columns(s, o.w));
    return sizeof(T) == 2 ? reciprocal(by) : by;
  }
  __device__ __forceinline__ Acc result(Acc sum, Acc scale) const {
    return sizeof(T) == 2 ? sum * scale : sum / scale;
  }
};

template <class T, class Norm>
struct LpOp {
  using Acc = Accumulator<T>;
  using Label = int;
  static constexpr bool kLabels = false;
  Norm norm;

  static __device__ T padding() { return T(Acc(0)); }
  __device__ __forceinline__ Acc term(Acc v) const { return norm.power(v); }
  template <int N>
  using Cell = typename TotalCell<Acc, LpOp>::template Of<N>;
  template <class I>
  __device__ __forceinline__ Acc scale(const PoolShape&, const PoolPlace<I>&) const {
    return 1;
  }
  __device__ __forceinline__ Acc result(Acc sum, Acc) const { return norm.root(sum); }
};

// The label of a tap, relative to that of tap 0.
template <class Op, class I>
__device__ __forceinline__ I label_of(const Op& op, I d, I h, I w) {
  if constexpr (Op::kLabels) return d * op.step[0] + h * op.step[1] + w * op.step[2];
  return 0;
}

// ---- Windows ------------------------------------------------------------------------------------

template <class T, int W, class Op, class I>
__device__ __forceinline__ void take_tap(const Op& op, typename Op::template Cell<W>& cell,
                                         const Raw<T, W>& raw, I label) {
  Accumulator<T> v[W];
  raw.unpack(v);
#pragma unroll
  for (int k = 0; k < W; ++k) cell.take(op, k, v[k], label);
}

// Taps outside are read at the nearest place inside, so that there are no branches, in which loads
// would wait for each other; then they become padding.

// kTaps x kTaps taps of one slice, without dilation.
template <int kTaps, class T, int W, class Op>
__device__ __forceinline__ void take_square(const Op& op, typename Op::template Cell<W>& cell,
                                            const Image<const T>& x, const T* slice,
                                            const PoolShape& s, int h0, int w0, int kd) {
  Raw<T, W> v[kTaps][kTaps];
  const int height = static_cast<int>(s.in[1]), width = static_cast<int>(s.in[2]);
#pragma unroll
  for (int kh = 0; kh < kTaps; ++kh) {
    const T* row = slice + nearest(h0 + kh, height) * x.stride[3];
#pragma unroll
    for (int kw = 0; kw < kTaps; ++kw) v[kh][kw].load(row + nearest(w0 + kw, width) * x.stride[4]);
  }
#pragma unroll
  for (int kh = 0; kh < kTaps; ++kh) {
#pragma unroll
    for (int kw = 0; kw < kTaps; ++kw) {
      if (!is_inside(h0 + kh, height) || !is_inside(w0 + kw, width)) {
        v[kh][kw].fill(Op::padding());
      }
    }
  }
#pragma unroll
  for (int kh = 0; kh < kTaps; ++kh) {
    cell.begin_row();
#pragma unroll
    for (int kw = 0; kw < kTaps; ++kw) take_tap(op, cell, v[kh][kw], label_of(op, kd, kh, kw));
    cell.end_row();
  }
}

// A row of taps of any number, some at once.
template <class T, int W, class Op, class I>
__device__ __forceinline__ void take_row(const Op& op, typename Op::template Cell<W>& cell,
                                         const T* row, int64_t step, const RangeOf<I>& tw, I kd,
                                         I kh) {
  constexpr int kAtOnce = 4;
  cell.begin_row();
  for (I kw = tw.begin; kw < tw.end; kw += kAtOnce) {
    Raw<T, W> v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      v[i].load(row + (kw + i < tw.end ? kw + i : tw.end - 1) * step);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (kw + i >= tw.end) v[i].fill(Op::padding());
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) take_tap(op, cell, v[i], label_of<Op, I>(op, kd, kh, kw + i));
  }
  cell.end_row();
}

// W neighbouring channels of a thread, with numbers of type I. kTaps: of both H and W, without
// dilation; 0: any.
template <class T, class Op, class I, int W, int kTaps>
__global__ void __launch_bounds__(kPoolThreads)
    pool_windows_kernel(Image<const T> x, Image<T> y, Op op, PoolShape s, PoolTiles tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    PoolPlace<I> o;
    if (!tiles.place(static_cast<I>(tile), o)) continue;
    o.c *= W;
    const T* image = x.data + x.at(o.n, o.c, 0, 0, 0);
    const RangeOf<I> td = s.taps_inside(0, o.d), th = s.taps_inside(1, o.h),
                     tw = s.taps_inside(2, o.w);
    const I d0 = s.origin(0, o.d), h0 = s.origin(1, o.h), w0 = s.origin(2, o.w);
    typename Op::template Cell<W> cell;
#pragma unroll
    for (int k = 0; k < W; ++k) cell.begin(k, label_of(op, td.begin, th.begin, tw.begin));
    for (I kd = td.begin; kd < td.end; ++kd) {
      const T* slice = image + (d0 + kd * s.window[0].dilation) * x.stride[2];
      if constexpr (kTaps > 0) {
        take_square<kTaps, T, W>(op, cell, x, slice, s, h0, w0, kd);
      } else {
        for (I kh = th.begin; kh < th.end; ++kh) {
          const T* row = slice + (h0 + kh * s.window[1].dilation) * x.stride[3] + w0 * x.stride[4];
          take_row<T, W>(op, cell, row, s.window[2].dilation * x.stride[4], tw, kd, kh);
        }
      }
    }
    const Accumulator<T> scale = op.scale(s, o);
    Accumulator<T> result[W];
#pragma unroll
    for (int k = 0; k < W; ++k) result[k] = op.result(cell.value[k], scale);
    store_rounded(y.data + y.at(o.n, o.c, o.d, o.h, o.w), result);
    if constexpr (Op::kLabels) {
      const int64_t at = op.indices.at(o.n, o.c, o.d, o.h, o.w);
      const I base = op.base(s, o);
      if constexpr (W == 1) {
        if (op.indices.data) op.indices.store(at, base + cell.label[0]);
      } else {
        op.indices.store_group(at, base, cell.label);
      }
    }
  }
}

// ---- Rows ---------------------------------------------------------------------------------------

// Results of N neighbouring windows along W, those past the end left out. whole: N of them can be
// stored at once.
template <class T, int N, class Op>
__device__ __forceinline__ void store_windows(const Image<T>& y, const Op& op,
                                              const typename Op::template Cell<N>& cell,
                                              const PoolShape& s, const PoolPlace<int>& o,
                                              bool whole) {
  T* to = y.data + y.at(o.n, o.c, o.d, o.h, o.w);
  const int count = static_cast<int>(s.out[2]) - o.w;
  whole = whole && count >= N;
  Accumulator<T> result[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    result[j] = op.result(cell.value[j], op.scale(s, PoolPlace<int>{o.n, o.c, o.d, o.h, o.w + j}));
  }
  if (whole) store_rounded(to, result);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (!whole && j < count) to[j] = static_cast<T>(result[j]);
  }
  if constexpr (Op::kLabels) {
    const int64_t at = op.indices.at(o.n, o.c, o.d, o.h, o.w);
    const int base = op.base(s, o);
    const int step = op.indices.are_taps() ? 0 : static_cast<int>(s.window[2].stride);
    int label[N];
#pragma unroll
    for (int j = 0; j < N; ++j) label[j] = cell.label[j] + j * step;
    if (whole) op.indices.store_group(at, base, label);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (!whole && j < count) op.indices.store(at + j, base + label[j]);
    }
  }
}

// A piece of a row, the column before it, and two behind it.
template <class T>
struct RowPiece {
  static constexpr int kColumns = 16 / sizeof(T);
  Raw<T, kColumns> piece;
  T before, after[2];

  // Column i of the piece, from -1 on.
  __device__ __forceinline__ Accumulator<T> get(int i) const {
    return static_cast<Accumulator<T>>(i < 0          ? before
                                       : i < kColumns ? piece.get(i)
                                                      : after[i - kColumns]);
  }
};

// Rows of an image from `row` on, from column `column` on, in accesses of kBytes (16 or 4) that lie
// wholly inside or outside; what lies outside is `padding`. `pad` columns before the piece are wanted, and
// `behind` ones after it.
template <int kBytes, class T, int kRows>
__device__ __forceinline__ void load_rows(RowPiece<T> (&rows)[kRows], const T* slice,
                                          int64_t stride, int row, int column, int height,
                                          int width, int pad, int behind, T padding) {
  constexpr int kColumns = RowPiece<T>::kColumns;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const T* from = slice + (row + r) * stride + column;
    const int end = static_cast<unsigned>(row + r) < static_cast<unsigned>(height) ? width : 0;
    Raw<T, kColumns>& piece = rows[r].piece;
    piece.fill(padding);
    if (kBytes == 16 && column < end) piece.load(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = i * 4 / sizeof(T);
      if (kBytes == 4 && column + at < end) {
        piece.v.v[i] = *reinterpret_cast<const typename Raw<T, kColumns>::Element*>(from + at);
      }
    }
    rows[r].before = pad > 0 && column > 0 && column <= end ? from[-1] : padding;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[r].after[i] = i < behind && column + kColumns + i < end ? from[kColumns + i] : padding;
    }
  }
}

// The windows' cells from rows of one slice; kPad columns of padding. first_w: the first window's
// number, first_h: the first row of windows.
template <int kPad, class T, int K, int S, class Op, class Cell, int kBand, int kRows>
__device__ __forceinline__ void take_rows(const Op& op, Cell (&cells)[kBand],
                                          const RowPiece<T> (&rows)[kRows], int first_w, int kd) {
  constexpr int kWindows = RowPiece<T>::kColumns / S;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    Cell row;
#pragma unroll
    for (int j = 0; j < kWindows; ++j) {
      row.begin(j, label_of(op, 0, 0, kPad > 0 && first_w + j == 0 ? kPad : 0));
    }
    row.begin_row();
#pragma unroll
    for (int j = 0; j < kWindows; ++j) {
#pragma unroll
      for (int kw = 0; kw < K; ++kw) {
        row.take(op, j, rows[r].get(j * S + kw - kPad), label_of(op, 0, 0, kw));
      }
    }
    row.end_row();
#pragma unroll
    for (int b = 0; b < kBand; ++b) {
      const int kh = r - b * S;
      if (kh < 0 || kh >= K) continue;
#pragma unroll
      for (int j = 0; j < kWindows; ++j) cells[b].merge(j, row, j, label_of(op, kd, kh, 0));
    }
  }
}

template <class T, class Op, int K, int S>
__global__ void __launch_bounds__(kPoolThreads)
    pool_rows_kernel(Image<const T> x, Image<T> y, Op op, PoolShape s, PoolRows items, int x_align,
                     bool whole) {
  constexpr int kColumns = 16 / sizeof(T), kWindows = kColumns / S, kBand = S;
  using Cell = typename Op::template Cell<kWindows>;
  const int height = static_cast<int>(s.in[1]), width = static_cast<int>(s.in[2]);
  const int pad = static_cast<int>(s.window[2].pad_begin);
  for (int64_t i = items.first(); i < items.count; i += items.step()) {
    PoolPlace<int> o = items.place(static_cast<int>(i));
    const int column = o.w * kColumns;
    o.w *= kWindows, o.h *= kBand;
    const int row = s.window[1].start_as(o.h);
    const RangeOf<int> td = s.taps_inside(0, o.d);
    Cell cells[kBand];
#pragma unroll
    for (int b = 0; b < kBand; ++b) {
      const int above = -(row + b * S);
#pragma unroll
      for (int j = 0; j < kWindows; ++j) {
        cells[b].begin(j, label_of(op, td.begin, above > 0 ? above : 0, o.w + j == 0 ? pad : 0));
      }
    }
    for (int kd = td.begin; kd < td.end; ++kd) {
      const T* slice = x.data + x.at(o.n, o.c, 0, 0, 0) +
                       (s.origin(0, o.d) + kd * s.window[0].dilation) * x.stride[2];
      RowPiece<T> rows[(kBand - 1) * S + K];
      const auto load = [&]<int kBytes>() {
        load_rows<kBytes>(rows, slice, x.stride[3], row, column, height, width, pad, K - S - pad,
                          Op::padding());
      };
      if (x_align == 16) {
        load.template operator()<16>();
      } else {
        load.template operator()<4>();
      }
      if (pad > 0) {
        take_rows<1, T, K, S>(op, cells, rows, o.w, kd);
      } else {
        take_rows<0, T, K, S>(op, cells, rows, o.w, kd);
      }
    }
#pragma unroll
    for (int b = 0; b < kBand; ++b) {
      if (o.h + b < static_cast<int>(s.out[1])) {
        store_windows<T, kWindows>(y, op, cells[b], s, {o.n, o.c, o.d, o.h + b, o.w}, whole);
      }
    }
  }
}

// ---- Launches -----------------------------------------------------------------------------------

template <class T, class Op, int K, int S>
void launch_rows(const Tensor& x, const Tensor& y, const Tensor& indices, const Op& op,
                 const PoolShape& s, void* stream) {
  constexpr int kWindows = 16 / sizeof(T) / S;
  const PoolRows items(s, ceil_div(s.out[2], kWindows), ceil_div(s.out[1], S), s.out[0]);
  const bool whole = fits_groups(y, kWindows, 4) && (!indices || fits_groups(indices, kWindows, 4));
  launch_kernel(pool_rows_kernel<T, Op, K, S>, items.grid(), kPoolThreads, 0, stream,
                Image<const T>(x), Image<T>(y), op, s, items, row_bytes(x), whole);
}

template <class T, class I, int W, int kTaps, class Op>
void launch_windows(const Tensor& x, const Tensor& y, const Op& op, const PoolShape& s,
                    void* stream) {
  const PoolTiles tiles(s.batch, s.channels / W, s.out, is_channels_last(y), W > 1 ? 3 : 5);
  launch_kernel(pool_windows_kernel<T, Op, I, W, kTaps>, tiles.grid(), kPoolThreads, 0, stream,
                Image<const T>(x), Image<T>(y), op, s, tiles);
}

// With numbers of 32 bits. kTaps: the square windows that have a kernel of their own; 0: none.
template <class T, int kTaps, class Op>
void run_windows_as(const Tensor& x, const Tensor& y, const Tensor& indices, const PoolShape& s,
                    void* stream, const Op& op) {
  if constexpr (sizeof(T) < 8) {
    constexpr int kWide = 16 / sizeof(T);
    if (fits_channels(x, kWide) && fits_channels(y, kWide) &&
        (!indices || fits_channels(indices, kWide))) {
      if constexpr (kTaps > 0) {
        if (is_square(s, kTaps)) {
          return launch_windows<T, int, kWide, kTaps>(x, y, op, s, stream);
        }
      }
      return launch_windows<T, int, kWide, 0>(x, y, op, s, stream);
    }
  }
  launch_windows<T, int, 1, 0>(x, y, op, s, stream);
}

// make.operator()<T, Label>() gives the operation.
template <class Make>
void run_windows(const Tensor& x, const Tensor& y, const Tensor& indices, const PoolShape& s,
                 void* stream, Make&& make) {
  dispatch_floating(x.dtype, [&]<class T>() {
    if (counts_in_int(s)) {
      run_windows_as<T, 3>(x, y, indices, s, stream, make.template operator()<T, int>());
    } else {
      const auto op = make.template operator()<T, int64_t>();
      launch_windows<T, int64_t, 1, 0>(x, y, op, s, stream);
    }
  });
}

template <class Make>
void run_rows(const Tensor& x, const Tensor& y, const Tensor& indices, const PoolShape& s,
              void* stream, Make&& make) {
  dispatch_rows(x.dtype, s, [&]<class T, int K, int S>() {
    launch_rows<T, decltype(make.template operator()<T, int>()), K, S>(
        x, y, indices, make.template operator()<T, int>(), s, stream);
  });
}

// f(make) with what gives the operation.
template <class F>
void with_max(const MaxPoolForward& p, F&& f) {
  if (p.indices) {
    f([&]<class T, class Label>() { return MaxIndexOp<T, Label>(p.indices, p.shape); });
  } else {
    f([&]<class T, class Label>() {
      if constexpr (std::is_same_v<Label, int>) {
        return MaxOp<T>{};
      } else {
        return MaxIndexOp<T, Label>(p.indices, p.shape);  // the same kernel for both
      }
    });
  }
}

constexpr Impl<MaxPoolForward> kMax[] = {
    {"rows", [](const MaxPoolForward& p) { return rows_decline(p.shape, p.x, p.y, p.indices); },
     nullptr,
     [](const MaxPoolForward& p, const Launch& launch) {
       with_max(p, [&](auto make) { run_rows(p.x, p.y, p.indices, p.shape, launch.stream, make); });
     }},
    {"windows", supports_all, nullptr,
     [](const MaxPoolForward& p, const Launch& launch) {
       with_max(p,
                [&](auto make) { run_windows(p.x, p.y, p.indices, p.shape, launch.stream, make); });
     }},
};
constexpr Impl<AvgPoolForward> kAvg[] = {
    {"rows", [](const AvgPoolForward& p) { return rows_decline(p.shape, p.x, p.y, Tensor{}); },
     nullptr,
     [](const AvgPoolForward& p, const Launch& launch) {
       run_rows(p.x, p.y, Tensor{}, p.shape, launch.stream,
                [&]<class T, class>() { return AvgOp<T>(p.divisor, p.shape); });
     }},
    {"windows", supports_all, nullptr,
     [](const AvgPoolForward& p, const Launch& launch) {
       run_windows(p.x, p.y, Tensor{}, p.shape, launch.stream,
                   [&]<class T, class>() { return AvgOp<T>(p.divisor, p.shape); });
     }},
};
// Norms other than the usual one are computed with numbers of 64 bits and channel by channel, so that
// their powers are compiled once.
template <class T>
void run_lp(const LpPoolForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  if (p.norm == 2 && counts_in_int(p.shape)) {
    return run_windows_as<T, 0>(p.x, p.y, Tensor{}, p.shape, launch.stream, LpOp<T, Norm2<Acc>>{});
  }
  const LpOp<T, AnyNorm<Acc>> op{{static_cast<Acc>(p.norm)}};
  launch_windows<T, int64_t, 1, 0>(p.x, p.y, op, p.shape, launch.stream);
}
constexpr Impl<LpPoolForward> kLp[] = {
    {"windows", supports_all, nullptr,
     [](const LpPoolForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { run_lp<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<MaxPoolForward> gpu_impls<MaxPoolForward>() {
  return kMax;
}
template <>
ImplList<AvgPoolForward> gpu_impls<AvgPoolForward>() {
  return kAvg;
}
template <>
ImplList<LpPoolForward> gpu_impls<LpPoolForward>() {
  return kLp;
}

}  // namespace dlkern
