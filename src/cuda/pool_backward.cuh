// Kernels of pooling's gradients that are alike for its kinds, and which of them takes a problem.
//
//   rows      Planar tensors with aligned rows, some windows: a thread has a group of neighbours in some rows.
//   channels  Some windows at a distance of 2: a thread has a pack of channels in 2 x 2 positions.
//   windows   A thread visits the windows over one position of one channel, or of 16 bytes of channels.
#pragma once

#include "cuda/pool_gradients.cuh"
#include "cuda/pool_rows.cuh"

namespace dlkern::gpu {

// ---- Windows ------------------------------------------------------------------------------------

// The number of the tap by which window o holds position i, or -1 where i lies between taps.
template <class I>
__device__ __forceinline__ I tap_at(const PoolShape& s, const PoolPlace<I>& i,
                                    const PoolPlace<I>& o) {
  const I position[] = {i.d, i.h, i.w}, window[] = {o.d, o.h, o.w};
  I number = 0;
  bool hit = true;
#pragma unroll
  for (int d = 0; d < kMaxSpatial; ++d) {
    const I distance = position[d] - s.origin(d, window[d]), tap = s.tap(d, distance);
    hit = hit && tap * static_cast<I>(s.window[d].dilation) == distance;
    number = number * static_cast<I>(s.window[d].kernel) + tap;
  }
  return hit ? number : -1;
}

// W neighbouring channels at a place.
template <class T, int W>
struct Values {
  Accumulator<T> v[W];

  template <class I>
  __device__ __forceinline__ Values(const Image<const T>& image, const PoolPlace<I>& p) {
    Raw<T, W> raw;
    raw.load(image.data + image.at(p.n, p.c, p.d, p.h, p.w));
    raw.unpack(v);
  }
};

// Adds what window o gives to W neighbouring channels of position i.
template <int W, class T, class I>
__device__ __forceinline__ void add_window(const MaxGradient<T>& gradient, const PoolShape& s,
                                           const PoolPlace<I>& i, const PoolPlace<I>& o,
                                           Accumulator<T> (&sum)[W]) {
  const Values<T, W> dy(gradient.dy, o);
  const I here = gradient.indices.are_taps()
                     ? tap_at(s, i, o)
                     : (i.d * static_cast<I>(s.in[1]) + i.h) * static_cast<I>(s.in[2]) + i.w;
  const int64_t at = gradient.indices.at(o.n, o.c, o.d, o.h, o.w);
  if constexpr (W == 1) {
    if (gradient.indices.load(at) == here) sum[0] += dy.v[0];
  } else {
    int label[W];
    gradient.indices.visit([&](const auto* indices) { load_labels(indices + at, label); });
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (label[k] == here) sum[k] += dy.v[k];
    }
  }
}
template <int W, class T, class I>
__device__ __forceinline__ void add_window(const AvgGradient<T>& gradient, const PoolShape& s,
                                           const PoolPlace<I>&, const PoolPlace<I>& o,
                                           Accumulator<T> (&sum)[W]) {
  const Values<T, W> dy(gradient.dy, o);
  const Accumulator<T> factor = gradient.factor(s, o);
#pragma unroll
  for (int k = 0; k < W; ++k) sum[k] += gradient.value(dy.v[k], factor);
}
template <int W, class T, class Norm, class I>
__device__ __forceinline__ void add_window(const LpGradient<T, Norm>& gradient, const PoolShape&,
                                           const PoolPlace<I>&, const PoolPlace<I>& o,
                                           Accumulator<T> (&sum)[W]) {
  const Values<T, W> dy(gradient.dy, o), y(gradient.y, o);
#pragma unroll
  for (int k = 0; k < W; ++k) sum[k] += gradient.norm.weight(dy.v[k], y.v[k]);
}

// What an element makes of the sum over its windows.
template <int W, class Gradient, class T, class I>
__device__ __forceinline__ void finish(const Gradient&, const PoolPlace<I>&, T (&)[W]) {}
template <int W, class T, class Norm, class I>
__device__ __forceinline__ void finish(const LpGradient<T, Norm>& gradient, const PoolPlace<I>& i,
                                       Accumulator<T> (&sum)[W]) {
  const Values<T, W> x(gradient.x, i);
#pragma unroll
  for (int k = 0; k < W; ++k) sum[k] *= gradient.norm.slope(x.v[k]);
}

// W neighbouring channels of a thread, with numbers of type I.
template <class T, class Gradient, class I, int W>
__global__ void __launch_bounds__(kPoolThreads)
    pool_backward_windows_kernel(Gradient gradient, Image<T> dx, PoolShape s, PoolTiles tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    PoolPlace<I> i;
    if (!tiles.place(static_cast<I>(tile), i)) continue;
    i.c *= W;
    const RangeOf<I> od = s.windows_over(0, i.d), oh = s.windows_over(1, i.h),
                     ow = s.windows_over(2, i.w);
    Accumulator<T> sum[W] = {};
    PoolPlace<I> o = i;
    for (o.d = od.begin; o.d < od.end; ++o.d) {
      for (o.h = oh.begin; o.h < oh.end; ++o.h) {
#pragma unroll 1
        for (o.w = ow.begin; o.w < ow.end; ++o.w) add_window(gradient, s, i, o, sum);
      }
    }
    finish(gradient, i, sum);
    store_rounded(dx.data + dx.at(i.n, i.c, i.d, i.h, i.w), sum);
  }
}

// ---- Channels ----------------------------------------------------------------------------------

// Channels of a thread: 16 bytes of averages; of maxima half of it, as their labels take registers.
template <class T, class Gradient>
inline constexpr int kChannelsOf = (kHasLabels<Gradient> ? 8 : 16) / sizeof(T);

// Windows of K x K taps at a distance of S: a thread has W channels of the S x S positions that the same
// M x M windows cover. Windows outside the image are read as the nearest one inside, so that there
// are no branches around loads, and give nothing.
template <class T, class Gradient, int W, int K, int S>
__global__ void __launch_bounds__(kPoolThreads)
    pool_backward_channels_kernel(Gradient gradient, Image<T> dx, PoolShape s, PoolTiles tiles) {
  using Acc = Accumulator<T>;
  constexpr int M = (K - 1) / S + 1;
  const int height = static_cast<int>(s.in[1]), width = static_cast<int>(s.in[2]);
  const int windows_h = static_cast<int>(s.out[1]), windows_w = static_cast<int>(s.out[2]);
  PoolPlace<int> i;
  if (!tiles.place(static_cast<int>(blockIdx.x), i)) return;
  i.c *= W;
  PoolPlace<int> first = i;  // of the windows
  first.h -= M - 1, first.w -= M - 1;
  i.h = i.h * S - static_cast<int>(s.window[1].pad_begin);
  i.w = i.w * S - static_cast<int>(s.window[2].pad_begin);
  Acc sum[S][S][W] = {};
  const RangeOf<int> od = is_flat(s) ? RangeOf<int>{0, 1} : s.windows_over(0, i.d);
  for (first.d = od.begin; first.d < od.end; ++first.d) {
    Raw<T, W> dy[M][M];
    [[maybe_unused]] int label[M][M][W];
    const T* slice = gradient.dy.data + gradient.dy.at(i.n, i.c, first.d, 0, 0);
#pragma unroll
    for (int jh = 0; jh < M; ++jh) {
      const T* row = slice + nearest(first.h + jh, windows_h) * gradient.dy.stride[3];
#pragma unroll
      for (int jw = 0; jw < M; ++jw) {
        dy[jh][jw].load(row + nearest(first.w + jw, windows_w) * gradient.dy.stride[4]);
      }
    }
    if constexpr (kHasLabels<Gradient>) {
      const Indices& indices = gradient.indices;
      indices.visit([&](const auto* from) {
        from += indices.at(i.n, i.c, first.d, 0, 0);
#pragma unroll
        for (int jh = 0; jh < M; ++jh) {
          const auto* row = from + nearest(first.h + jh, windows_h) * indices.stride[3];
#pragma unroll
          for (int jw = 0; jw < M; ++jw) {
            load_labels(row + nearest(first.w + jw, windows_w) * indices.stride[4], label[jh][jw]);
          }
        }
      });
    }
    const Expected expected{taps_expected(gradient)};
    const int position = (i.d * height + i.h) * width + i.w;
    const int tap = is_flat(s) ? 0 : s.tap(0, i.d - s.origin(0, first.d)) * K * K;
#pragma unroll
    for (int jh = 0; jh < M; ++jh) {
#pragma unroll
      for (int jw = 0; jw < M; ++jw) {
        if (!is_inside(first.h + jh, windows_h) || !is_inside(first.w + jw, windows_w)) continue;
        const Acc factor =
            gradient.factor(s, PoolPlace<int>{i.n, i.c, first.d, first.h + jh, first.w + jw});
        Acc given[W];
        dy[jh][jw].unpack(given);
#pragma unroll
        for (int r = 0; r < S * S; ++r) {
          const int kh = r / S + (M - 1 - jh) * S, kw = r % S + (M - 1 - jw) * S;
          if (kh >= K || kw >= K) continue;
          [[maybe_unused]] const int here =
              expected(position + r / S * width + r % S, tap + kh * K + kw);
#pragma unroll
          for (int k = 0; k < W; ++k) {
            if constexpr (kHasLabels<Gradient>) {
              if (label[jh][jw][k] == here) sum[r / S][r % S][k] += given[k];
            } else {
              sum[r / S][r % S][k] += gradient.value(given[k], factor);
            }
          }
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < S * S; ++r) {
    const int h = i.h + r / S, w = i.w + r % S;
    if (is_inside(h, height) && is_inside(w, width)) {
      store_rounded(dx.data + dx.at(i.n, i.c, i.d, h, w), sum[r / S][r % S]);
    }
  }
}

// ---- Rows --------------------------------------------------------------------------------------

// floor(a / b) for b > 0.
constexpr int floor_of(int a, int b) { return (a - (a < 0 ? b - 1 : 0)) / b; }

// Labels of N windows of a row, from `at` on, and of those on either side: -1 where there are none.
template <int N, int kBefore, int kAfter, class Index>
__device__ __forceinline__ void load_row_labels(const Index* at, bool first, bool last,
                                                int (&label)[kBefore + N + kAfter]) {
  int inner[N];
  load_labels(at, inner);
#pragma unroll
  for (int k = 0; k < N; ++k) label[kBefore + k] = inner[k];
  if constexpr (kBefore > 0) label[0] = first ? -1 : narrow(at[-1]);
  if constexpr (kAfter > 0) label[kBefore + N] = last ? -1 : narrow(at[N]);
}

// Windows of K x K taps at a distance of S, with (K - 1) / 2 of padding, over a group of E x R positions.
template <int K, int S, int E, int R>
struct RowWindows {
  static constexpr int kPad = (K - 1) / 2;
  static constexpr int kFirst =
      floor_of(kPad - K, S) + 1;  // along H and W, of those over the group
  static constexpr int kRows = floor_of(R - 1 + kPad, S) + 1 - kFirst;
  static constexpr int kColumns = floor_of(E - 1 + kPad, S) + 1 - kFirst;
  static constexpr int kInner = E / S, kBefore = -kFirst, kAfter = kColumns - kBefore - kInner;
  static_assert(R % S == 0 && kBefore >= 0 && kBefore <= 1 && kAfter >= 0 && kAfter <= 1);

  // The tap by which window j holds position i of the group; none where it is not in [0, K).
  static constexpr int tap(int i, int j) { return i + kPad - (j + kFirst) * S; }
  static constexpr bool holds(int i, int j) { return tap(i, j) >= 0 && tap(i, j) < K; }
};

// Adds what windows of row j give to the positions that they hold.
template <class Windows, class Acc, int E, int R>
__device__ __forceinline__ void add_averages(int j, const Acc (&given)[Windows::kColumns],
                                             Acc (&sum)[R][E]) {
#pragma unroll
  for (int e = 0; e < E; ++e) {
    Acc along = 0;
#pragma unroll
    for (int c = 0; c < Windows::kColumns; ++c) {
      if (Windows::holds(e, c)) along += given[c];
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (Windows::holds(r, j)) sum[r][e] += along;
    }
  }
}
// label_of(r, e, tap along H, tap along W): of a maximum at a position.
template <class Windows, class Acc, int E, int R, class F>
__device__ __forceinline__ void add_maxima(int j, const Acc (&given)[Windows::kColumns],
                                           const int (&label)[Windows::kColumns], Acc (&sum)[R][E],
                                           F&& label_of) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int e = 0; e < E; ++e) {
#pragma unroll
      for (int c = 0; c < Windows::kColumns; ++c) {
        if (!Windows::holds(r, j) || !Windows::holds(e, c)) continue;
        if (label[c] == label_of(r, e, Windows::tap(r, j), Windows::tap(e, c))) {
          sum[r][e] += given[c];
        }
      }
    }
  }
}

inline constexpr int kGroupRows = 2;  // of positions, of a thread

template <class T, class Gradient, int K, int S, int E = row_group(S, sizeof(T)),
          int R = kGroupRows>
__global__ void __launch_bounds__(kPoolThreads)
    pool_backward_rows_kernel(Gradient gradient, Image<T> dx, PoolShape s, PoolGroups groups) {
  using Acc = Accumulator<T>;
  using Windows = RowWindows<K, S, E, R>;
  constexpr int kRows = Windows::kRows, kBefore = Windows::kBefore, kAfter = Windows::kAfter;
  PoolPlace<int> i;
  if (!groups.place(i)) return;
  PoolPlace<int> o = i;
  o.h = i.h * (R / S) + Windows::kFirst, o.w = i.w * Windows::kInner;
  i.h *= R, i.w *= E;
  const int windows_h = static_cast<int>(s.out[1]), width = static_cast<int>(s.in[2]);
  const bool first = o.w == 0, last = o.w + Windows::kInner >= static_cast<int>(s.out[2]);
  const RangeOf<int> od = is_flat(s) ? RangeOf<int>{0, 1} : s.windows_over(0, i.d);
  Acc sum[R][E] = {};
  for (o.d = od.begin; o.d < od.end; ++o.d) {
    const T* slice = gradient.dy.data + gradient.dy.at(o.n, o.c, o.d, 0, o.w);
    RowGroup<T, Windows::kInner, kBefore, kAfter> dy[kRows];
    [[maybe_unused]] int label[kRows][Windows::kColumns];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      dy[j].load(slice + nearest(o.h + j, windows_h) * gradient.dy.stride[3], first, last);
    }
    if constexpr (kHasLabels<Gradient>) {
      const Indices& indices = gradient.indices;
      indices.visit([&](const auto* from) {
        from += indices.at(o.n, o.c, o.d, 0, o.w);
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          load_row_labels<Windows::kInner, kBefore, kAfter>(
              from + nearest(o.h + j, windows_h) * indices.stride[3], first, last, label[j]);
        }
      });
    }
    const Expected expected{taps_expected(gradient)};
    const int position = (i.d * static_cast<int>(s.in[1]) + i.h) * width + i.w;
    const int tap = is_flat(s) ? 0 : s.tap(0, i.d - s.origin(0, o.d)) * K * K;
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      if (!is_inside(o.h + j, windows_h)) continue;
      Acc given[Windows::kColumns];
      dy[j].unpack(first, last, Acc(0), given);
      if constexpr (kHasLabels<Gradient>) {
        add_maxima<Windows>(j, given, label[j], sum, [&](int r, int e, int kh, int kw) {
          return expected(position + r * width + e, tap + kh * K + kw);
        });
      } else {
#pragma unroll
        for (int c = 0; c < Windows::kColumns; ++c) {  // those outside give 0 by any real factor
          const int w = nearest(o.w + c - kBefore, static_cast<int>(s.out[2]));
          const PoolPlace<int> window{o.n, o.c, o.d, o.h + j, w};
          given[c] = gradient.value(given[c], gradient.factor(s, window));
        }
        add_averages<Windows>(j, given, sum);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (i.h + r < static_cast<int>(s.in[1])) {
      store_rounded(dx.data + dx.at(i.n, i.c, i.d, i.h + r, i.w), sum[r]);
    }
  }
}

// ---- Choices -----------------------------------------------------------------------------------

template <class T>
MaxGradient<T> gradient_of(const MaxPoolBackward& p) {
  return MaxGradient<T>(p);
}
template <class T>
AvgGradient<T> gradient_of(const AvgPoolBackward& p) {
  return AvgGradient<T>(p);
}
inline Tensor indices_of(const MaxPoolBackward& p) { return p.indices; }
inline Tensor indices_of(const AvgPoolBackward&) { return {}; }

template <class Problem>
const char* rows_suit(const Problem& p) {
  const Tensor indices = indices_of(p);
  const PoolShape& s = p.shape;
  if (is_line(s)) {
    if (indices && indices.dtype == DType::kUInt8) return "taps of lines";
  } else if (s.window[1].pad_begin != s.window[2].pad_begin) {
    return "unequal padding";
  }
  return rows_decline(s, {&p.dx}, {&p.dy, &indices});
}
template <class Problem>
void run_rows(const Problem& p, const Launch& launch) {
  dispatch_short(p.dx.dtype, [&]<class T>() {
    const auto gradient = gradient_of<T>(p);
    using Gradient = std::remove_const_t<decltype(gradient)>;
    const PoolShape& s = p.shape;
    dispatch_square(s, [&]<int K, int S>() {
      const PoolGroups groups(s, s.in, kGroupRows, row_group(S, sizeof(T)));
      launch_kernel(pool_backward_rows_kernel<T, Gradient, K, S>, groups.grid(), kPoolThreads, 0,
                    launch.stream, gradient, Image<T>(p.dx), s, groups);
    });
  });
}

// 16 bytes of channels at once in all tensors.
template <class Problem>
const char* packs_suit(Problem p) {
  if (p.dx.dtype == DType::kFloat64) return "float64";
  const int n = 16 / static_cast<int>(dtype_size(p.dx.dtype));
  for (const Tensor* t : tensors_of(p)) {
    if (!fits_channels(*t, n)) return "not 16 bytes of neighbouring channels at a time";
  }
  return counts_in_int(p.shape) ? nullptr : "too large for indices of 32 bits";
}
template <class Problem>
const char* channels_suit(const Problem& p) {
  if (square_of(p.shape).stride != 2) return "not windows of 2 x 2 or 3 x 3 at a distance of 2";
  return packs_suit(p);
}
template <class Problem>
void run_channels(const Problem& p, const Launch& launch) {
  dispatch_short(p.dx.dtype, [&]<class T>() {
    const auto gradient = gradient_of<T>(p);
    using Gradient = std::remove_const_t<decltype(gradient)>;
    constexpr int W = kChannelsOf<T, Gradient>, S = 2;
    const PoolShape& s = p.shape;
    int64_t squares[kMaxSpatial] = {s.in[0]};
    for (int d = 1; d < kMaxSpatial; ++d) {
      squares[d] = ceil_div(s.in[d] + s.window[d].pad_begin, S);
    }
    const PoolTiles tiles(s.batch, s.channels / W, squares, true, 3);
    const auto kernel = square_of(s).kernel == 2
                            ? pool_backward_channels_kernel<T, Gradient, W, 2, S>
                            : pool_backward_channels_kernel<T, Gradient, W, 3, S>;
    launch_kernel(kernel, tiles.grid(), kPoolThreads, 0, launch.stream, gradient, Image<T>(p.dx), s,
                  tiles);
  });
}

template <class T, class I, int W, class Problem, class Gradient>
void launch_windows(const Problem& p, const Gradient& gradient, void* stream) {
  const PoolShape& s = p.shape;
  const PoolTiles tiles(s.batch, s.channels / W, s.in, is_channels_last(p.dx), W > 1 ? 3 : 5);
  launch_kernel(pool_backward_windows_kernel<T, Gradient, I, W>, tiles.grid(), kPoolThreads, 0,
                stream, gradient, Image<T>(p.dx), s, tiles);
}
// With numbers of 32 bits.
template <class T, class Problem, class Gradient>
void run_narrow_windows(const Problem& p, const Gradient& gradient, void* stream) {
  if constexpr (sizeof(T) < 8) {
    if (!packs_suit(p)) return launch_windows<T, int, 16 / sizeof(T)>(p, gradient, stream);
  }
  launch_windows<T, int, 1>(p, gradient, stream);
}
template <class Problem>
void run_windows(const Problem& p, const Launch& launch) {
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    const auto gradient = gradient_of<T>(p);
    if (counts_in_int(p.shape)) return run_narrow_windows<T>(p, gradient, launch.stream);
    launch_windows<T, int64_t, 1>(p, gradient, launch.stream);
  });
}

}  // namespace dlkern::gpu
