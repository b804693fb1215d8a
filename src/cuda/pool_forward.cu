// Pooling over windows of 1 to 3 spatial dimensions: forward.
//
//   max   y[o] = max of x over the taps of window o; indices[o] = where the first maximum lies
//   avg   y[o] = sum of x over the taps of window o / divisor(o)
//   lp    y[o] = (sum of |x|^p over the taps of window o)^(1 / p)
//
// Layout: any strides. Two kernels:
//   planes    Planar volumes without gaps: a block computes a tile from its part of x, which it has
//             copied to shared memory; of 2 x 2 or 3 x 3 taps a thread takes a strip of windows, one
//             below the other, as they share rows.
//   windows   A thread computes one window of one channel, or of 16 bytes of channels where they are
//             neighbours in memory. Threads are numbered along the channels where these come last,
//             else along W; a block is a tile of windows that overlap in L1.
// Both add up a window's rows, then their sums, so that the bits do not depend on the kernel.
// Bound by memory. 16-bit values are summed in float32.
#include "cuda/pool_planes.cuh"
#include "cuda/prims/reduce.cuh"

namespace dlkern {
namespace {

using namespace gpu;

Tensor indices_of(const MaxPoolForward& p) { return p.indices; }
Tensor indices_of(const AvgPoolForward&) { return {}; }

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
  // The label of tap 0 of a window, from where it lies: maybe in the padding.
  __device__ __forceinline__ Label base(const PoolShape& s, Label d, Label h, Label w) const {
    if (indices.are_taps()) return 0;
    return (d * static_cast<Label>(s.in[1]) + h) * static_cast<Label>(s.in[2]) + w;
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
  Acc uniform;  // scale() of all windows; 0: they differ

  AvgOp(const PoolDivisor& d, const PoolShape& s) : divisor(d) {
    const Acc all = static_cast<Acc>(d.uniform(s));
    uniform = all != 0 && sizeof(T) == 2 ? 1 / all : all;
  }
  static __device__ T padding() { return T(Acc(0)); }
  __device__ __forceinline__ Acc term(Acc v) const { return v; }
  template <int N>
  using Cell = typename TotalCell<Acc, AvgOp>::template Of<N>;
  // Of a window; the results of one in 16 bits are right with a reciprocal, too.
  template <class I>
  __device__ __forceinline__ Acc scale(const PoolShape& s, const PoolPlace<I>& o) const {
    if (uniform != 0) return uniform;
    const Acc by = static_cast<Acc>(divisor.rows(s, o.d, o.h) * divisor.columns(s, o.w));
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

// Whether an operation has kernels for strips of square windows.
template <class Op>
inline constexpr bool kHasStrips = true;
template <class T, class Norm>
inline constexpr bool kHasStrips<LpOp<T, Norm>> = false;

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

// All windows of a cell begin with tap (d, h, w).
template <class Op, class Cell, class I>
__device__ __forceinline__ void begin_cell(const Op& op, Cell& cell, I d, I h, I w) {
#pragma unroll
  for (int k = 0; k < static_cast<int>(std::size(cell.value)); ++k) {
    cell.begin(k, label_of(op, d, h, w));
  }
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
    const bool flat = is_flat(s);
    const RangeOf<I> td = flat ? RangeOf<I>{0, 1} : s.taps_inside(0, o.d);
    const I d0 = flat ? 0 : s.origin(0, o.d);
    I h0, w0;
    typename Op::template Cell<W> cell;
    if constexpr (kTaps > 0) {
      h0 = s.window[1].start_as(o.h), w0 = s.window[2].start_as(o.w);
      begin_cell(op, cell, td.begin, max(-h0, 0), max(-w0, 0));
      for (I kd = td.begin; kd < td.end; ++kd) {
        const T* slice = image + (d0 + kd * s.window[0].dilation) * x.stride[2];
        take_square<kTaps, T, W>(op, cell, x, slice, s, h0, w0, kd);
      }
    } else {
      const RangeOf<I> th = s.taps_inside(1, o.h), tw = s.taps_inside(2, o.w);
      h0 = s.origin(1, o.h), w0 = s.origin(2, o.w);
      begin_cell(op, cell, td.begin, th.begin, tw.begin);
      for (I kd = td.begin; kd < td.end; ++kd) {
        const T* slice = image + (d0 + kd * s.window[0].dilation) * x.stride[2];
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
      const I base = op.base(s, d0, h0, w0);
      if constexpr (W == 1) {
        if (op.indices.data) op.indices.store(at, base + cell.label[0]);
      } else {
        op.indices.store_group(at, base, cell.label);
      }
    }
  }
}

// ---- Planes -------------------------------------------------------------------------------------

// A thread computes kStrip windows of K x K taps, one below the other at a distance of S, as they
// share rows. K = 0: one window of any kind.
template <int K>
inline constexpr int kStrip = K > 0 ? 4 : 1;

// Rows of the source in shared memory, tap 0 of the thread's first window at `first`.
template <class T, int K, int S, class Op, class Cell>
__device__ __forceinline__ void take_strip(const Op& op, Cell (&cells)[kStrip<K>], const T* first,
                                           int width, const RangeOf<int>& rows,
                                           const RangeOf<int>& columns, int kd) {
  constexpr int kRows = (kStrip<K> - 1) * S + K;
  const Accumulator<T> padding = static_cast<Accumulator<T>>(Op::padding());
  T v[kRows][K];  // all loads at once, of rows outside from the nearest one
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const T* row = first + min(max(r, rows.begin), rows.end - 1) * width;
#pragma unroll
    for (int kw = 0; kw < K; ++kw) v[r][kw] = row[kw];
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < rows.begin || r >= rows.end) continue;
    Cell row;
    row.begin(0, label_of(op, 0, 0, columns.begin));
    row.begin_row();
#pragma unroll
    for (int kw = 0; kw < K; ++kw) {
      const bool inside = kw >= columns.begin && kw < columns.end;
      const auto tap = inside ? static_cast<Accumulator<T>>(v[r][kw]) : padding;
      row.take(op, 0, tap, label_of(op, 0, 0, kw));
    }
    row.end_row();
#pragma unroll
    for (int b = 0; b < kStrip<K>; ++b) {
      const int kh = r - b * S;
      if (kh >= 0 && kh < K) cells[b].merge(0, row, 0, label_of(op, kd, kh, 0));
    }
  }
}

// Taps of any window in shared memory, where `slice` has tap (0, 0).
template <class T, class Op, class Cell>
__device__ __forceinline__ void take_staged(const Op& op, Cell& cell, const T* slice, int row_step,
                                            int step, const RangeOf<int>& th,
                                            const RangeOf<int>& tw, int kd) {
  for (int kh = th.begin; kh < th.end; ++kh) {
    cell.begin_row();
    for (int kw = tw.begin; kw < tw.end; ++kw) {
      const auto v = static_cast<Accumulator<T>>(slice[kh * row_step + kw * step]);
      cell.take(op, 0, v, label_of(op, kd, kh, kw));
    }
    cell.end_row();
  }
}

// Taps of window o along dimension d that lie inside, given where tap 0 lies.
__device__ __forceinline__ RangeOf<int> taps_inside(const PoolShape& s, const PoolReach& reach,
                                                    int d, int o, int origin) {
  if (s.window[d].dilation != 1) return s.taps_inside(d, o);
  return {max(-origin, 0), reach.end(o) - origin};
}

template <class T, class Op, int K, int S>
__global__ void __launch_bounds__(kPlaneThreads)
    pool_planes_kernel(Image<const T> x, Image<T> y, Op op, PoolShape s, PlaneTiles tiles) {
  extern __shared__ uint4 memory[];
  constexpr int kRows = kStrip<K>;
  if (blockIdx.x >= tiles.count) return;
  const PlaneTile tile = tiles.tile(blockIdx.x);
  const PlanePart &from = tile.source, &to = tile.target;
  const T* source = x.data + offset_of(x, tile, from);
  // Taps to the left of the first row are read before they are replaced by padding.
  T* const staged = reinterpret_cast<T*>(memory + 1) + misalignment(source);
  // From slice to slice, which are misaligned as they are in memory.
  const int length = tiles.source_rows * tiles.source.w, slice_size = tiles.source.slice();
  const int pitch =
      tiles.whole ? slice_size : length + ((slice_size - length) & (16 / sizeof(T) - 1));
  for_runs(tiles, from, [&](int i, int offset, int count) {
    stage(staged + i * pitch, source + offset, count);
  });
  T* const target = y.data + offset_of(y, tile, to);
  [[maybe_unused]] int64_t target_index = 0;
  if constexpr (Op::kLabels) target_index = offset_of(op.indices, tile, to);
  wait_for_copies();
  __syncthreads();

  const int count = tiles.strips_of<kRows>(to), width = tiles.source.w;
  for (int i = threadIdx.x; i < count; i += kPlaneThreads) {
    const PlanePlace o = tiles.place<kRows>(to, i);
    const int d0 = tiles.deep ? tiles.reach[0].origin(o.d) : 0;
    const RangeOf<int> td =
        tiles.deep ? taps_inside(s, tiles.reach[0], 0, o.d, d0) : RangeOf<int>{0, 1};
    const int h0 = K > 0 ? o.h * S - tiles.reach[1].bias : tiles.reach[1].origin(o.h);
    const int w0 = K > 0 ? o.w * S - tiles.reach[2].bias : tiles.reach[2].origin(o.w);
    const int gap_d = tiles.deep ? static_cast<int>(s.window[0].dilation) : 1;
    const T* slice = staged + o.volume * tiles.source.volume() +
                     (d0 + td.begin * gap_d - from.d) * pitch + (h0 - from.h) * width + w0;
    typename Op::template Cell<1> cells[kRows];
    if constexpr (K > 0) {
      const RangeOf<int> rows{from.h - h0, from.h + from.rows - h0};
      const RangeOf<int> columns{max(-w0, 0), min(width - w0, K)};
#pragma unroll
      for (int b = 0; b < kRows; ++b) {
        cells[b].begin(0, label_of(op, td.begin, max(-h0 - b * S, 0), columns.begin));
      }
      for (int kd = td.begin; kd < td.end; ++kd, slice += gap_d * pitch) {
        take_strip<T, K, S>(op, cells, slice, width, rows, columns, kd);
      }
    } else {
      const RangeOf<int> th = taps_inside(s, tiles.reach[1], 1, o.h, h0),
                         tw = taps_inside(s, tiles.reach[2], 2, o.w, w0);
      const int gap_w = static_cast<int>(s.window[2].dilation);
      const int row_step = static_cast<int>(s.window[1].dilation) * width;
      cells[0].begin(0, label_of(op, td.begin, th.begin, tw.begin));
      for (int kd = td.begin; kd < td.end; ++kd, slice += gap_d * pitch) {
        take_staged<T>(op, cells[0], slice, row_step, gap_w, th, tw, kd);
      }
    }
    int number = tiles.number(to, o);
#pragma unroll
    for (int b = 0; b < kRows; ++b, number += tiles.target.w) {
      if (b > 0 && o.h + b >= to.h + to.rows) break;
      const auto scale = op.scale(s, PoolPlace<int>{0, 0, o.d, o.h + b, o.w});
      target[number] = static_cast<T>(op.result(cells[b].value[0], scale));
      if constexpr (Op::kLabels) {
        if (op.indices.data) {
          op.indices.store(target_index + number,
                           op.base(s, d0, h0 + b * S, w0) + cells[b].label[0]);
        }
      }
    }
  }
}

// ---- Launches -----------------------------------------------------------------------------------

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

// make.operator()<T, Label>(problem) gives the operation.
template <class Problem, class Make>
void run_windows(const Problem& p, const Launch& launch, Make&& make) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    if (counts_in_int(p.shape)) {
      const auto op = make.template operator()<T, int>(p);
      run_windows_as<T, 3>(p.x, p.y, indices_of(p), p.shape, launch.stream, op);
    } else {
      const auto op = make.template operator()<T, int64_t>(p);
      launch_windows<T, int64_t, 1, 0>(p.x, p.y, op, p.shape, launch.stream);
    }
  });
}

PlaneTiles tiles_of(const PoolShape& s, DType dtype, int strip, bool packed) {
  // 16 bytes before and behind the tile, and as many for its alignment.
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  return PlaneTiles(s, true, {strip, 1}, packed,
                    [=](int64_t, int64_t sources) { return sources * size + 48; });
}

template <class Problem>
const char* planes_suit(const Problem& given) {
  const Problem p = as_planes(given);
  if (const char* reason = planes_decline(p)) return reason;
  return tiles_of(p.shape, p.x.dtype, 1, true).decline();
}

template <class Problem, class Make>
void run_planes(const Problem& given, const Launch& launch, Make&& make) {
  const Problem p = as_planes(given);
  dispatch_floating(p.x.dtype, [&]<class T>() {
    const auto op = make.template operator()<T, int>(p);
    using Op = std::remove_const_t<decltype(op)>;
    const auto run = [&]<int K, int S>() {
      const PlaneTiles tiles = tiles_of(p.shape, p.x.dtype, kStrip<K>, are_packed(p));
      launch_kernel(pool_planes_kernel<T, Op, K, S>, tiles.grid(), kPlaneThreads, tiles.bytes,
                    launch.stream, Image<const T>(p.x), Image<T>(p.y), op, p.shape, tiles);
    };
    dispatch_squares<sizeof(T) < 8 && kHasStrips<Op>>(p.shape, run);
  });
}

// What makes an operation of a problem.
struct MakeMaxIndex {
  template <class T, class Label>
  auto operator()(const MaxPoolForward& p) const {
    return MaxIndexOp<T, Label>(p.indices, p.shape);
  }
};
struct MakeMax {
  template <class T, class Label>
  auto operator()(const MaxPoolForward& p) const {
    if constexpr (std::is_same_v<Label, int>) {
      return MaxOp<T>{};
    } else {
      return MaxIndexOp<T, Label>(p.indices, p.shape);  // the same kernel for both
    }
  }
};
struct MakeAvg {
  template <class T, class>
  auto operator()(const AvgPoolForward& p) const {
    return AvgOp<T>(p.divisor, p.shape);
  }
};
struct MakeLp2 {
  template <class T, class>
  auto operator()(const LpPoolForward&) const {
    return LpOp<T, Norm2<Accumulator<T>>>{};
  }
};

constexpr Impl<MaxPoolForward> kMax[] = {
    {"planes", planes_suit<MaxPoolForward>, nullptr,
     [](const MaxPoolForward& p, const Launch& launch) {
       if (p.indices) return run_planes(p, launch, MakeMaxIndex{});
       run_planes(p, launch, MakeMax{});
     }},
    {"windows", supports_all, nullptr,
     [](const MaxPoolForward& p, const Launch& launch) {
       if (p.indices) return run_windows(p, launch, MakeMaxIndex{});
       run_windows(p, launch, MakeMax{});
     }},
};
constexpr Impl<AvgPoolForward> kAvg[] = {
    {"planes", planes_suit<AvgPoolForward>, nullptr,
     [](const AvgPoolForward& p, const Launch& launch) { run_planes(p, launch, MakeAvg{}); }},
    {"windows", supports_all, nullptr,
     [](const AvgPoolForward& p, const Launch& launch) { run_windows(p, launch, MakeAvg{}); }},
};
// Norms other than the usual one are computed with numbers of 64 bits and channel by channel, so that
// their powers are compiled once.
template <class T>
void run_lp_windows(const LpPoolForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  if (p.norm == 2 && counts_in_int(p.shape)) {
    return run_windows_as<T, 0>(p.x, p.y, Tensor{}, p.shape, launch.stream, LpOp<T, Norm2<Acc>>{});
  }
  const LpOp<T, AnyNorm<Acc>> op{{static_cast<Acc>(p.norm)}};
  launch_windows<T, int64_t, 1, 0>(p.x, p.y, op, p.shape, launch.stream);
}
constexpr Impl<LpPoolForward> kLp[] = {
    {"planes",
     [](const LpPoolForward& p) { return p.norm == 2 ? planes_suit(p) : "a norm other than 2"; },
     nullptr,
     [](const LpPoolForward& p, const Launch& launch) { run_planes(p, launch, MakeLp2{}); }},
    {"windows", supports_all, nullptr,
     [](const LpPoolForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { run_lp_windows<T>(p, launch); });
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
