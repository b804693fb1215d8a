// Kernels of forward pooling, and which of them takes a problem.
//
//   rows      Planar tensors with aligned rows, some windows (square_of()): a thread has the windows of a
//             group of neighbours in some rows. What windows share is met again in registers and in L1.
//   channels  Channels last, windows of 2 x 2 or 3 x 3: a thread has one of 16 bytes of channels.
//   planes    Planar volumes without gaps: a block computes a tile from its part of x, which it has
//             copied to shared memory.
//   windows   Any strides: a thread has one window of one channel, or of 16 bytes of channels where they
//             are neighbours. Threads are numbered along the channels where these come last, else along
//             W; a block is a tile of windows that overlap in L1.
// All add up a window's rows, then their sums, so that the bits do not depend on the kernel.
#pragma once

#include "cuda/pool_ops.cuh"
#include "cuda/pool_planes.cuh"
#include "cuda/pool_rows.cuh"

namespace dlkern::gpu {

// ---- Windows ------------------------------------------------------------------------------------

template <class T, int W, class Op, class I>
__device__ __forceinline__ void take_tap(const Op& op, typename Op::template Cell<W>& cell,
                                         const Raw<T, W>& raw, I label) {
  Accumulator<T> v[W];
  raw.unpack(v);
#pragma unroll
  for (int k = 0; k < W; ++k) cell.take(op, k, v[k], label);
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

// W neighbouring channels of a thread, with numbers of type I.
template <class T, class Op, class I, int W>
__global__ void __launch_bounds__(kPoolThreads)
    pool_windows_kernel(Image<const T> x, Image<T> y, Op op, PoolShape s, PoolTiles tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    PoolPlace<I> o;
    if (!tiles.place(static_cast<I>(tile), o)) continue;
    o.c *= W;
    const T* image = x.data + x.at(o.n, o.c, 0, 0, 0);
    const bool flat = is_flat(s);
    const RangeOf<I> td = flat ? RangeOf<I>{0, 1} : s.taps_inside(0, o.d);
    const RangeOf<I> th = s.taps_inside(1, o.h), tw = s.taps_inside(2, o.w);
    const I d0 = flat ? 0 : s.origin(0, o.d), h0 = s.origin(1, o.h), w0 = s.origin(2, o.w);
    typename Op::template Cell<W> cell;
    begin_cell(op, cell, td.begin, th.begin, tw.begin);
    for (I kd = td.begin; kd < td.end; ++kd) {
      const T* slice = image + (d0 + kd * s.window[0].dilation) * x.stride[2];
      for (I kh = th.begin; kh < th.end; ++kh) {
        const T* row = slice + (h0 + kh * s.window[1].dilation) * x.stride[3] + w0 * x.stride[4];
        take_row<T, W>(op, cell, row, s.window[2].dilation * x.stride[4], tw, kd, kh);
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

// ---- Channels ----------------------------------------------------------------------------------

template <class T>
inline constexpr int kPack = 16 / sizeof(T);  // channels of a thread

// K x K taps of one slice, without dilation, of which `load` gives those inside: taps outside are read at
// the nearest place inside, so that there are no branches, in which loads would wait for each other.
template <int K, class T, int W, class Op, class Load>
__device__ __forceinline__ void take_square(const Op& op, typename Op::template Cell<W>& cell,
                                            int h0, int w0, int height, int width, int kd,
                                            Load&& load) {
  Raw<T, W> v[K][K];
#pragma unroll
  for (int kh = 0; kh < K; ++kh) {
#pragma unroll
    for (int kw = 0; kw < K; ++kw) {
      v[kh][kw].load(load(nearest(h0 + kh, height), nearest(w0 + kw, width)));
    }
  }
#pragma unroll
  for (int kh = 0; kh < K; ++kh) {
    cell.begin_row();
#pragma unroll
    for (int kw = 0; kw < K; ++kw) {
      if (!is_inside(h0 + kh, height) || !is_inside(w0 + kw, width)) v[kh][kw].fill(Op::padding());
      take_tap<T, W>(op, cell, v[kh][kw], label_of(op, kd, kh, kw));
    }
    cell.end_row();
  }
}

template <class T, class Op, int K>
__global__ void __launch_bounds__(kPoolThreads)
    pool_channels_kernel(Image<const T> x, Image<T> y, Op op, PoolShape s, PoolTiles tiles) {
  constexpr int W = kPack<T>;
  PoolPlace<int> o;
  if (!tiles.place(static_cast<int>(blockIdx.x), o)) return;
  o.c *= W;
  const int h0 = s.window[1].start_as(o.h), w0 = s.window[2].start_as(o.w);
  const T* slice = x.data + x.at(o.n, o.c, o.d, 0, 0);
  typename Op::template Cell<W> cell;
  begin_cell(op, cell, 0, max(-h0, 0), max(-w0, 0));
  take_square<K, T, W>(op, cell, h0, w0, static_cast<int>(s.in[1]), static_cast<int>(s.in[2]), 0,
                       [&](int h, int w) { return slice + h * x.stride[3] + w * x.stride[4]; });
  const Accumulator<T> scale = op.scale(s, o);
  Accumulator<T> result[W];
#pragma unroll
  for (int k = 0; k < W; ++k) result[k] = op.result(cell.value[k], scale);
  store_rounded(y.data + y.at(o.n, o.c, o.d, o.h, o.w), result);
  if constexpr (Op::kLabels) {
    op.indices.store_group(op.indices.at(o.n, o.c, o.d, o.h, o.w), op.base(s, o.d, h0, w0),
                           cell.label);
  }
}

// ---- Rows --------------------------------------------------------------------------------------

// Rows of windows of a thread.
template <int S>
inline constexpr int kRowStrip = S == 1 ? 4 : 2;

// Windows of K x K taps at a distance of S, with (K - 1) / 2 columns of padding: a thread has those of
// a group of columns in some rows.
template <class T, class Op, int K, int S>
__global__ void __launch_bounds__(kPoolThreads)
    pool_rows_kernel(Image<const T> x, Image<T> y, Op op, PoolShape s, PoolGroups groups) {
  constexpr int E = row_group(S, sizeof(T)), kStrip = kRowStrip<S>;
  constexpr int kBefore = (K - 1) / 2, kAfter = K - S - kBefore, kOut = E / S;
  constexpr int kRows = (kStrip - 1) * S + K;
  static_assert(kBefore <= 1 && kAfter <= 1 && kAfter >= 0);
  PoolPlace<int> o;
  if (!groups.place(o)) return;
  o.h *= kStrip;
  const int height = static_cast<int>(s.in[1]), column = o.w * E;
  o.w *= kOut;
  const bool first = column == 0, last = column + E >= static_cast<int>(s.in[2]);
  const int h0 = o.h * S - static_cast<int>(s.window[1].pad_begin);
  const bool flat = is_flat(s);
  const RangeOf<int> td = flat ? RangeOf<int>{0, 1} : s.taps_inside(0, o.d);
  const int d0 = flat ? 0 : s.origin(0, o.d);
  const T* image = x.data + x.at(o.n, o.c, 0, 0, column);
  const Accumulator<T> padding = static_cast<Accumulator<T>>(Op::padding());
  const auto begin = [&](auto& cell, int d, int h) {
#pragma unroll
    for (int k = 0; k < kOut; ++k) {
      cell.begin(k, label_of(op, d, h, k == 0 && first ? kBefore : 0));
    }
  };

  typename Op::template Cell<kOut> cells[kStrip];
#pragma unroll
  for (int b = 0; b < kStrip; ++b) begin(cells[b], td.begin, max(-h0 - b * S, 0));
  for (int kd = td.begin; kd < td.end; ++kd) {
    const T* slice = image + (d0 + kd * static_cast<int>(s.window[0].dilation)) * x.stride[2];
    RowGroup<T, E, kBefore, kAfter> rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows[r].load(slice + nearest(h0 + r, height) * x.stride[3], first, last);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!is_inside(h0 + r, height)) continue;
      Accumulator<T> v[kBefore + E + kAfter];
      rows[r].unpack(first, last, padding, v);
      typename Op::template Cell<kOut> row;
      begin(row, 0, 0);
      row.begin_row();
#pragma unroll
      for (int k = 0; k < kOut; ++k) {
#pragma unroll
        for (int kw = 0; kw < K; ++kw) row.take(op, k, v[k * S + kw], label_of(op, 0, 0, kw));
      }
      row.end_row();
#pragma unroll
      for (int b = 0; b < kStrip; ++b) {
        const int kh = r - b * S;
        if (kh < 0 || kh >= K) continue;
#pragma unroll
        for (int k = 0; k < kOut; ++k) cells[b].merge(k, row, k, label_of(op, kd, kh, 0));
      }
    }
  }
  const int rows_left = static_cast<int>(s.out[1]) - o.h;
#pragma unroll
  for (int b = 0; b < kStrip; ++b, ++o.h) {
    if (b >= rows_left) break;
    Accumulator<T> result[kOut];
#pragma unroll
    for (int k = 0; k < kOut; ++k) {
      const auto scale = op.scale(s, PoolPlace<int>{o.n, o.c, o.d, o.h, o.w + k});
      result[k] = op.result(cells[b].value[k], scale);
    }
    store_rounded(y.data + y.at(o.n, o.c, o.d, o.h, o.w), result);
    if constexpr (Op::kLabels) {
      int label[kOut];
#pragma unroll
      for (int k = 0; k < kOut; ++k) {
        const bool positions = !op.indices.are_taps();
        label[k] = cells[b].label[k] + (positions ? k * S : 0);
      }
      op.indices.store_group(op.indices.at(o.n, o.c, o.d, o.h, o.w),
                             op.base(s, d0, h0 + b * S, column - kBefore), label);
    }
  }
}

// ---- Planes -------------------------------------------------------------------------------------

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

// Windows of K x K taps without dilation; K = 0: any.
template <class T, class Op, int K>
__global__ void __launch_bounds__(kPlaneThreads)
    pool_planes_kernel(Image<const T> x, Image<T> y, Op op, PoolShape s, PlaneTiles tiles) {
  extern __shared__ uint4 memory[];
  if (blockIdx.x >= tiles.count) return;
  const PlaneTile tile = tiles.tile(blockIdx.x);
  const PlanePart &from = tile.source, &to = tile.target;
  const T* source = x.data + offset_of(x, tile, from);
  T* const staged = reinterpret_cast<T*>(memory) + misalignment(source);
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

  const int count = tiles.targets_of(to), width = tiles.source.w;
  for (int i = threadIdx.x; i < count; i += kPlaneThreads) {
    const PlanePlace o = tiles.place(to, i);
    const int d0 = tiles.deep ? tiles.reach[0].origin(o.d) : 0;
    const int h0 = tiles.reach[1].origin(o.h), w0 = tiles.reach[2].origin(o.w);
    const RangeOf<int> td =
        tiles.deep ? taps_inside(s, tiles.reach[0], 0, o.d, d0) : RangeOf<int>{0, 1};
    const int gap_d = tiles.deep ? static_cast<int>(s.window[0].dilation) : 1;
    const T* slice =
        staged + o.volume * tiles.source.volume() + (d0 + td.begin * gap_d - from.d) * pitch;
    typename Op::template Cell<1> cell;
    if constexpr (K > 0) {
      begin_cell(op, cell, td.begin, max(-h0, 0), max(-w0, 0));
      for (int kd = td.begin; kd < td.end; ++kd, slice += gap_d * pitch) {
        take_square<K, T, 1>(op, cell, h0 - from.h, w0, from.rows, width, kd,
                             [&](int h, int w) { return slice + h * width + w; });
      }
    } else {
      const RangeOf<int> th = taps_inside(s, tiles.reach[1], 1, o.h, h0),
                         tw = taps_inside(s, tiles.reach[2], 2, o.w, w0);
      const int gap_w = static_cast<int>(s.window[2].dilation);
      const int row_step = static_cast<int>(s.window[1].dilation) * width;
      begin_cell(op, cell, td.begin, th.begin, tw.begin);
      slice += (h0 - from.h) * width + w0;
      for (int kd = td.begin; kd < td.end; ++kd, slice += gap_d * pitch) {
        take_staged<T>(op, cell, slice, row_step, gap_w, th, tw, kd);
      }
    }
    const auto scale = op.scale(s, PoolPlace<int>{0, 0, o.d, o.h, o.w});
    target[i] = static_cast<T>(op.result(cell.value[0], scale));
    if constexpr (Op::kLabels) {
      if (op.indices.data) {
        op.indices.store(target_index + i, op.base(s, d0, h0, w0) + cell.label[0]);
      }
    }
  }
}

// ---- Choices -----------------------------------------------------------------------------------

inline Tensor indices_of(const MaxPoolForward& p) { return p.indices; }
inline Tensor indices_of(const AvgPoolForward&) { return {}; }
inline Tensor indices_of(const LpPoolForward&) { return {}; }

template <class Problem>
const char* rows_suit(const Problem& p) {
  const Tensor indices = indices_of(p);
  return rows_decline(p.shape, {&p.x}, {&p.y, &indices});
}
template <class Problem>
void run_rows(const Problem& p, const Launch& launch) {
  dispatch_short(p.x.dtype, [&]<class T>() {
    with_op<T>(p, [&]<class Op>(const Op& op) {
      dispatch_square(p.shape, [&]<int K, int S>() {
        const PoolGroups groups(p.shape, p.shape.out, kRowStrip<S>, row_group(S, sizeof(T)) / S);
        launch_kernel(pool_rows_kernel<T, Op, K, S>, groups.grid(), kPoolThreads, 0, launch.stream,
                      Image<const T>(p.x), Image<T>(p.y), op, p.shape, groups);
      });
    });
  });
}

// 16 bytes of channels at once in all tensors.
template <class Problem>
const char* packs_suit(const Problem& p) {
  if (p.x.dtype == DType::kFloat64) return "float64";
  const int n = 16 / static_cast<int>(dtype_size(p.x.dtype));
  const Tensor indices = indices_of(p);
  const bool fit =
      fits_channels(p.x, n) && fits_channels(p.y, n) && (!indices || fits_channels(indices, n));
  if (!fit) return "not 16 bytes of neighbouring channels at a time";
  return counts_in_int(p.shape) ? nullptr : "too large for indices of 32 bits";
}
template <class Problem>
const char* channels_suit(const Problem& p) {
  if (!is_flat(p.shape)) return "volumes";
  if (!has_taps(p.shape, 2) && !has_taps(p.shape, 3)) return "not windows of 2 x 2 or 3 x 3";
  return packs_suit(p);
}
template <class Problem>
void run_channels(const Problem& p, const Launch& launch) {
  dispatch_short(p.x.dtype, [&]<class T>() {
    with_op<T>(p, [&]<class Op>(const Op& op) {
      const PoolTiles tiles(p.shape.batch, p.shape.channels / kPack<T>, p.shape.out, true, 3);
      const auto kernel = p.shape.window[2].kernel == 2 ? pool_channels_kernel<T, Op, 2>
                                                        : pool_channels_kernel<T, Op, 3>;
      launch_kernel(kernel, tiles.grid(), kPoolThreads, 0, launch.stream, Image<const T>(p.x),
                    Image<T>(p.y), op, p.shape, tiles);
    });
  });
}

inline PlaneTiles tiles_of(const PoolShape& s, DType dtype, bool packed) {
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  return PlaneTiles(s, true, packed, [=](int64_t, int64_t sources) { return sources * size + 16; });
}
template <class Problem>
const char* planes_suit(const Problem& given) {
  const Problem p = as_planes(given);
  if (const char* reason = planes_decline(p)) return reason;
  return tiles_of(p.shape, p.x.dtype, true).decline();
}
template <class Problem>
void run_planes(const Problem& given, const Launch& launch) {
  const Problem p = as_planes(given);
  const PlaneTiles tiles = tiles_of(p.shape, p.x.dtype, are_packed(p));
  dispatch_floating(p.x.dtype, [&]<class T>() {
    with_op<T>(p, [&]<class Op>(const Op& op) {
      const auto kernel =
          has_taps(p.shape, 3) ? pool_planes_kernel<T, Op, 3> : pool_planes_kernel<T, Op, 0>;
      launch_kernel(kernel, tiles.grid(), kPlaneThreads, tiles.bytes, launch.stream,
                    Image<const T>(p.x), Image<T>(p.y), op, p.shape, tiles);
    });
  });
}

template <class T, class I, int W, class Problem, class Op>
void launch_windows(const Problem& p, const Op& op, void* stream) {
  const PoolShape& s = p.shape;
  const PoolTiles tiles(s.batch, s.channels / W, s.out, is_channels_last(p.y), W > 1 ? 3 : 5);
  launch_kernel(pool_windows_kernel<T, Op, I, W>, tiles.grid(), kPoolThreads, 0, stream,
                Image<const T>(p.x), Image<T>(p.y), op, s, tiles);
}
// usual: with_op() may be asked.
template <class Problem>
void run_windows(const Problem& p, bool usual, const Launch& launch) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    if (!usual) {
      return with_any_op<T>(
          p, [&](const auto& op) { launch_windows<T, int64_t, 1>(p, op, launch.stream); });
    }
    with_op<T>(p, [&](const auto& op) {
      if constexpr (sizeof(T) < 8) {
        if (!packs_suit(p)) return launch_windows<T, int, kPack<T>>(p, op, launch.stream);
      }
      launch_windows<T, int, 1>(p, op, launch.stream);
    });
  });
}

}  // namespace dlkern::gpu
