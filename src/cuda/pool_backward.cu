// Pooling over windows of 1 to 3 spatial dimensions: gradients.
//
//   max   dx[i] = sum of dy[o] over the windows o whose maximum is i, by the forward's indices
//   avg   dx[i] = sum of dy[o] / divisor(o) over the windows o that hold i
//   lp    dx[i] = sign(x[i]) |x[i]|^(p - 1) * sum of dy[o] / y[o]^(p - 1) over the windows that hold i
//
// Layout: any strides. All kernels gather: a thread visits the windows that cover its positions and
// adds them up in row-major order, so there are no atomics and the bits do not depend on the kernel.
//   windows   One position of one channel, or of 16 bytes of channels where these are neighbours.
//   squares   Such channels, windows of 2 x 2 or 3 x 3 at a distance of 2: the 2 x 2 positions that
//             are covered by the same windows, which are read once for all four.
//   rows      Planar images, windows of 2 x 2 or 3 x 3: 16 bytes of some neighbouring rows.
// Bound by memory. 16-bit values are summed in float32.
#include <vector>

#include "cuda/pool.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// ---- What a window gives to its elements ---------------------------------------------------------

// a * b that no addition is fused with: all kernels round alike.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }

template <class T>
struct MaxGradient {
  static constexpr bool kLabels = true;
  Image<const T> dy;
  Indices indices;

  template <class I>
  __device__ __forceinline__ Accumulator<T> factor(const PoolShape&, const PoolPlace<I>&) const {
    return 1;
  }
  __device__ __forceinline__ Accumulator<T> value(Accumulator<T> dy, Accumulator<T>) const {
    return dy;
  }
};

template <class T>
struct AvgGradient {
  using Acc = Accumulator<T>;
  static constexpr bool kLabels = false;
  Image<const T> dy;
  PoolDivisor divisor;
  Acc uniform = 0;  // 1 / the divisor of all windows; 0: they differ

  explicit AvgGradient(const AvgPoolBackward& p) : dy(p.dy), divisor(p.divisor) {
    if (const int64_t all = divisor.uniform(p.shape)) uniform = Acc(1) / static_cast<Acc>(all);
  }
  template <class I>
  __device__ __forceinline__ Acc factor(const PoolShape& s, const PoolPlace<I>& o) const {
    if (uniform != 0) return uniform;
    return reciprocal(static_cast<Acc>(divisor.rows(s, o.d, o.h) * divisor.columns(s, o.w)));
  }
  __device__ __forceinline__ Acc value(Acc dy, Acc factor) const { return product(dy, factor); }
};

template <class T, class Norm>
struct LpGradient {
  Image<const T> dy, y, x;
  Norm norm;
};

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

// ---- Squares ------------------------------------------------------------------------------------

// Whether maxima are told by the numbers of taps.
template <class T>
__device__ __forceinline__ bool taps_expected(const MaxGradient<T>& gradient) {
  return gradient.indices.are_taps();
}
template <class T>
__device__ __forceinline__ bool taps_expected(const AvgGradient<T>&) {
  return false;
}

// The label of a position is its flat one, or the number of a tap.
struct Expected {
  bool taps;
  __device__ __forceinline__ int operator()(int position, int tap) const {
    return taps ? tap : position;
  }
};

// A thread has S x S positions that the same M x M windows cover. Windows outside the image are
// read as the nearest one inside, so that there are no branches around loads, and give nothing.
template <class T, class Gradient, int W, int K, int S>
__global__ void __launch_bounds__(kPoolThreads, 2)
    pool_backward_squares_kernel(Gradient gradient, Image<T> dx, PoolShape s, PoolTiles tiles) {
  using Acc = Accumulator<T>;
  constexpr int M = (K - 1) / S + 1;
  const int height = static_cast<int>(s.in[1]), width = static_cast<int>(s.in[2]);
  const int windows_h = static_cast<int>(s.out[1]), windows_w = static_cast<int>(s.out[2]);
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    PoolPlace<int> i;
    if (!tiles.place(static_cast<int>(tile), i)) continue;
    i.c *= W;
    PoolPlace<int> first = i;  // of the windows
    first.h -= M - 1, first.w -= M - 1;
    i.h = i.h * S - static_cast<int>(s.window[1].pad_begin);
    i.w = i.w * S - static_cast<int>(s.window[2].pad_begin);
    Acc sum[S][S][W] = {};
    const RangeOf<int> od = s.windows_over(0, i.d);
    for (int d = od.begin; d < od.end; ++d) {
      Raw<T, W> dy[M][M];
      Acc factor[M][M];
      [[maybe_unused]] int label[M][M][W];
      [[maybe_unused]] int64_t at[M][M];
#pragma unroll
      for (int jh = 0; jh < M; ++jh) {
#pragma unroll
        for (int jw = 0; jw < M; ++jw) {
          const PoolPlace<int> o{i.n, i.c, d, nearest(first.h + jh, windows_h),
                                 nearest(first.w + jw, windows_w)};
          dy[jh][jw].load(gradient.dy.data + gradient.dy.at(o.n, o.c, o.d, o.h, o.w));
          factor[jh][jw] = gradient.factor(s, o);
          if constexpr (Gradient::kLabels) {
            at[jh][jw] = gradient.indices.at(o.n, o.c, o.d, o.h, o.w);
          }
        }
      }
      if constexpr (Gradient::kLabels) {
        gradient.indices.visit([&](const auto* indices) {
#pragma unroll
          for (int j = 0; j < M * M; ++j)
            load_labels(indices + at[j / M][j % M], label[j / M][j % M]);
        });
      }
      const Expected expected{taps_expected(gradient)};
      const int position = (i.d * height + i.h) * width + i.w;
      const int tap = s.tap(0, i.d - s.origin(0, d)) * K * K;
#pragma unroll
      for (int jh = 0; jh < M; ++jh) {
#pragma unroll
        for (int jw = 0; jw < M; ++jw) {
          const bool inside =
              is_inside(first.h + jh, windows_h) && is_inside(first.w + jw, windows_w);
          Acc given[W];
          dy[jh][jw].unpack(given);
#pragma unroll
          for (int k = 0; k < W; ++k) {
            const Acc g = inside ? gradient.value(given[k], factor[jh][jw]) : Acc(0);
#pragma unroll
            for (int r = 0; r < S * S; ++r) {
              const int kh = r / S + (M - 1 - jh) * S, kw = r % S + (M - 1 - jw) * S;
              if (kh >= K || kw >= K) continue;
              Acc& to = sum[r / S][r % S][k];
              if constexpr (Gradient::kLabels) {
                const int here = expected(position + r / S * width + r % S, tap + kh * K + kw);
                if (label[jh][jw][k] == here) to += g;
              } else {
                to += g;
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
}

// ---- Rows ---------------------------------------------------------------------------------------

// kRows rows of windows as a thread sees them: of each kBefore windows, the kMiddle that begin with
// its own columns, and kAfter. P columns of padding.
template <class T, int K, int S, int P, int kRows>
struct RowWindows {
  static constexpr int kColumns = 16 / sizeof(T), kMiddle = kColumns / S;
  static constexpr int kBefore = (K - 1 - P) / S;
  static constexpr int kAfter = (kColumns - 1 + P) / S + 1 - kMiddle;
  static constexpr int kCount = kBefore + kMiddle + kAfter;
  Accumulator<T> dy[kRows][kCount];
  int label[kRows][kCount];

  // Elements from number `at` of rows that have `width`; `whole`: the middle ones at once.
  template <class E, class To>
  static __device__ __forceinline__ void load(const E* (&row)[kRows], int at, int width, bool whole,
                                              To (&to)[kRows][kCount]) {
    if (whole) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) load_middle(row[r] + at, to[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (whole && j >= kBefore && j < kBefore + kMiddle) continue;
        to[r][j] = value_of<To>(row[r][nearest(at + j - kBefore, width)]);
      }
    }
  }
  // A row that does not exist, or windows past the ends, give nothing.
  __device__ __forceinline__ void clear(int r, int j) { dy[r][j] = 0, label[r][j] = -1; }

 private:
  static __device__ __forceinline__ void load_middle(const T* from, Accumulator<T> (&to)[kCount]) {
    Raw<T, kMiddle> raw;
    Accumulator<T> middle[kMiddle];
    raw.load(from);
    raw.unpack(middle);
#pragma unroll
    for (int j = 0; j < kMiddle; ++j) to[kBefore + j] = middle[j];
  }
  template <class E>
  static __device__ __forceinline__ void load_middle(const E* from, int (&to)[kCount]) {
    int middle[kMiddle];
    load_labels(from, middle);
#pragma unroll
    for (int j = 0; j < kMiddle; ++j) to[kBefore + j] = middle[j];
  }
  template <class To, class E>
  static __device__ __forceinline__ To value_of(E v) {
    if constexpr (std::is_same_v<E, int64_t>) {
      return narrow(v);
    } else {
      return static_cast<To>(v);
    }
  }
};

// Adds what rows of windows from first_h on give to S x kColumns positions from `i` on; the first of
// them is number `number` of those that cover these.
template <int P, class T, int K, int S, int kRows, class Gradient, class Sums>
__device__ __forceinline__ void gather_rows(const Gradient& gradient, const PoolShape& s,
                                            const PoolPlace<int>& i, int d, int first_h,
                                            int first_w, int number, bool whole, Sums& sum) {
  using Windows = RowWindows<T, K, S, P, kRows>;
  constexpr int kCount = Windows::kCount, kLast = (K - 1) / S;
  const int height = static_cast<int>(s.out[1]), width = static_cast<int>(s.out[2]);
  Windows windows;
  const T* dy[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int h = nearest(first_h + r, height);
    dy[r] = gradient.dy.data + gradient.dy.at(i.n, i.c, d, h, 0);
  }
  windows.load(dy, first_w, width, whole, windows.dy);
  if constexpr (Gradient::kLabels) {
    gradient.indices.visit([&]<class Index>(const Index* indices) {
      const Index* row[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        row[r] = indices + gradient.indices.at(i.n, i.c, d, nearest(first_h + r, height), 0);
      }
      windows.load(row, first_w, width, whole, windows.label);
    });
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int h = first_h + r, w = first_w + j - Windows::kBefore;
      if constexpr (!Gradient::kLabels) {
        windows.dy[r][j] =
            gradient.value(windows.dy[r][j], gradient.factor(s, PoolPlace<int>{i.n, i.c, d, h, w}));
      }
      if (!is_inside(h, height) || !is_inside(w, width)) windows.clear(r, j);
    }
  }
  const Expected expected{taps_expected(gradient)};
  const int columns = static_cast<int>(s.in[2]);
  const int position = (i.d * static_cast<int>(s.in[1]) + i.h) * columns + i.w;
  const int tap = s.tap(0, i.d - s.origin(0, d)) * K * K;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int b = 0; b < S; ++b) {
      const int kh = b + (kLast - number - r) * S;
      if (kh >= K) continue;
#pragma unroll
      for (int e = 0; e < Windows::kColumns; ++e) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          const int kw = e + P - (j - Windows::kBefore) * S;
          if (kw < 0 || kw >= K) continue;
          if constexpr (Gradient::kLabels) {
            const int here = expected(position + b * columns + e, tap + kh * K + kw);
            if (windows.label[r][j] == here) sum[b][e] += windows.dy[r][j];
          } else {
            sum[b][e] += windows.dy[r][j];
          }
        }
      }
    }
  }
}

// whole: the windows that begin with a thread's columns, and those columns, can be accessed at once.
template <class T, class Gradient, int K, int S>
__global__ void __launch_bounds__(kPoolThreads, 2)
    pool_backward_rows_kernel(Gradient gradient, Image<T> dx, PoolShape s, PoolRows items,
                              bool whole_windows, bool whole_columns) {
  constexpr int kColumns = 16 / sizeof(T), kMiddle = kColumns / S;
  constexpr int kRows = (K - 1) / S + 1;       // of windows over S rows
  constexpr int kAtOnce = S == 1 ? 1 : kRows;  // as many as the registers hold
  const int pad = static_cast<int>(s.window[2].pad_begin);
  const int height = static_cast<int>(s.in[1]), width = static_cast<int>(s.in[2]);
  for (int64_t item = items.first(); item < items.count; item += items.step()) {
    PoolPlace<int> i = items.place(static_cast<int>(item));
    const int first_h = i.h - (K - 1) / S, first_w = i.w * kMiddle;
    const bool whole = whole_windows && first_w + kMiddle <= static_cast<int>(s.out[2]);
    i.h = i.h * S - static_cast<int>(s.window[1].pad_begin), i.w *= kColumns;
    Accumulator<T> sum[S][kColumns] = {};
    const RangeOf<int> od = s.windows_over(0, i.d);
    for (int d = od.begin; d < od.end; ++d) {
#pragma unroll 1
      for (int r = 0; r < kRows; r += kAtOnce) {
        if (pad > 0) {
          gather_rows<1, T, K, S, kAtOnce>(gradient, s, i, d, first_h + r, first_w, r, whole, sum);
        } else {
          gather_rows<0, T, K, S, kAtOnce>(gradient, s, i, d, first_h + r, first_w, r, whole, sum);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < S; ++b) {
      if (!is_inside(i.h + b, height)) continue;
      T* to = dx.data + dx.at(i.n, i.c, i.d, i.h + b, i.w);
      const bool full = whole_columns && i.w + kColumns <= width;
      if (full) store_rounded(to, sum[b]);
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        if (!full && i.w + e < width) to[e] = static_cast<T>(sum[b][e]);
      }
    }
  }
}

// ---- Launches -----------------------------------------------------------------------------------

template <class T, class I, int W, class Gradient>
void launch_windows(const Gradient& gradient, const Tensor& dx, const PoolShape& s, void* stream) {
  const PoolTiles tiles(s.batch, s.channels / W, s.in, is_channels_last(dx), W > 1 ? 3 : 5);
  launch_kernel(pool_backward_windows_kernel<T, Gradient, I, W>, tiles.grid(), kPoolThreads, 0,
                stream, gradient, Image<T>(dx), s, tiles);
}

template <class T, class Gradient, int K>
void launch_squares(const Gradient& gradient, const Tensor& dx, const PoolShape& s, void* stream) {
  constexpr int kWide = 16 / sizeof(T), S = 2;
  int64_t squares[kMaxSpatial] = {s.in[0]};
  for (int d = 1; d < kMaxSpatial; ++d) {
    squares[d] = ceil_div(s.in[d] + s.window[d].pad_begin, S);
  }
  const PoolTiles tiles(s.batch, s.channels / kWide, squares, true, 3);
  launch_kernel(pool_backward_squares_kernel<T, Gradient, kWide, K, S>, tiles.grid(), kPoolThreads,
                0, stream, gradient, Image<T>(dx), s, tiles);
}

template <class T, class Gradient, int K, int S>
void launch_rows(const Gradient& gradient, const Tensor& dx, const PoolShape& s, bool whole_windows,
                 void* stream) {
  constexpr int kColumns = 16 / sizeof(T);
  const PoolRows items(s, ceil_div(s.in[2], kColumns), ceil_div(s.in[1] + s.window[1].pad_begin, S),
                       s.in[0]);
  launch_kernel(pool_backward_rows_kernel<T, Gradient, K, S>, items.grid(), kPoolThreads, 0, stream,
                gradient, Image<T>(dx), s, items, whole_windows, fits_groups(dx, kColumns, 4));
}

// The gradient of a problem, and those of its tensors that are read window by window.
template <class T>
MaxGradient<T> gradient_of(const MaxPoolBackward& p) {
  return {Image<const T>(p.dy), Indices(p.indices)};
}
template <class T>
AvgGradient<T> gradient_of(const AvgPoolBackward& p) {
  return AvgGradient<T>(p);
}
std::vector<Tensor> tensors_of(const MaxPoolBackward& p) { return {p.dx, p.dy, p.indices}; }
std::vector<Tensor> tensors_of(const AvgPoolBackward& p) { return {p.dx, p.dy}; }
std::vector<Tensor> tensors_of(const LpPoolBackward& p) { return {p.dx, p.dy, p.y, p.x}; }

// 16 bytes of channels at once in all tensors.
template <class Problem>
bool is_wide(const Problem& p) {
  const int n = 16 / static_cast<int>(dtype_size(p.dx.dtype));
  bool wide = counts_in_int(p.shape);
  for (const Tensor& t : tensors_of(p)) wide = wide && fits_channels(t, n);
  return wide;
}

template <class Problem>
const char* squares_decline(const Problem& p) {
  const Window &h = p.shape.window[1], &w = p.shape.window[2];
  if (p.dx.dtype == DType::kFloat64) return "float64";
  if (!is_wide(p)) return "not 16 bytes of neighbouring channels at a time";
  if (!(is_square(p.shape, 2) || is_square(p.shape, 3)) || h.stride != 2 || w.stride != 2) {
    return "not windows of 2 x 2 or 3 x 3 at a distance of 2";
  }
  return nullptr;
}

// With numbers of 32 bits.
template <class T, class Problem, class Gradient>
void run_windows_as(const Problem& p, const Gradient& gradient, const Launch& launch) {
  if constexpr (sizeof(T) < 8) {
    constexpr int kWide = 16 / sizeof(T);
    if (is_wide(p)) return launch_windows<T, int, kWide>(gradient, p.dx, p.shape, launch.stream);
  }
  launch_windows<T, int, 1>(gradient, p.dx, p.shape, launch.stream);
}
template <class Problem>
void run_windows(const Problem& p, const Launch& launch) {
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    const auto gradient = gradient_of<T>(p);
    if (counts_in_int(p.shape)) {
      run_windows_as<T>(p, gradient, launch);
    } else {
      launch_windows<T, int64_t, 1>(gradient, p.dx, p.shape, launch.stream);
    }
  });
}
// Norms other than the usual one are computed with numbers of 64 bits and channel by channel, so that
// their powers are compiled once.
template <class T>
void run_lp(const LpPoolBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const auto gradient = [&]<class Norm>(const Norm& norm) {
    return LpGradient<T, Norm>{Image<const T>(p.dy), Image<const T>(p.y), Image<const T>(p.x),
                               norm};
  };
  if (p.norm == 2 && counts_in_int(p.shape)) {
    return run_windows_as<T>(p, gradient(Norm2<Acc>{}), launch);
  }
  launch_windows<T, int64_t, 1>(gradient(AnyNorm<Acc>{static_cast<Acc>(p.norm)}), p.dx, p.shape,
                                launch.stream);
}
template <class Problem>
void run_squares(const Problem& p, const Launch& launch) {
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      const auto gradient = gradient_of<T>(p);
      if (p.shape.window[1].kernel == 2) {
        launch_squares<T, std::remove_const_t<decltype(gradient)>, 2>(gradient, p.dx, p.shape,
                                                                      launch.stream);
      } else {
        launch_squares<T, std::remove_const_t<decltype(gradient)>, 3>(gradient, p.dx, p.shape,
                                                                      launch.stream);
      }
    }
  });
}
template <class Problem>
const char* decline_rows(const Problem& p) {
  const std::vector<Tensor> tensors = tensors_of(p);
  return rows_decline(p.shape, tensors[0], tensors[1], tensors.size() > 2 ? tensors[2] : Tensor{});
}
template <class Problem>
void run_rows(const Problem& p, const Launch& launch) {
  dispatch_rows(p.dx.dtype, p.shape, [&]<class T, int K, int S>() {
    const auto gradient = gradient_of<T>(p);
    bool whole = true;  // windows
    for (const Tensor& t : tensors_of(p)) {
      whole = whole && (t.data == p.dx.data || fits_groups(t, 16 / sizeof(T) / S, 4));
    }
    launch_rows<T, std::remove_const_t<decltype(gradient)>, K, S>(gradient, p.dx, p.shape, whole,
                                                                  launch.stream);
  });
}

constexpr Impl<MaxPoolBackward> kMax[] = {
    {"rows", decline_rows<MaxPoolBackward>, nullptr, run_rows<MaxPoolBackward>},
    {"squares", squares_decline<MaxPoolBackward>, nullptr, run_squares<MaxPoolBackward>},
    {"windows", supports_all, nullptr, run_windows<MaxPoolBackward>},
};
constexpr Impl<AvgPoolBackward> kAvg[] = {
    {"rows", decline_rows<AvgPoolBackward>, nullptr, run_rows<AvgPoolBackward>},
    {"squares", squares_decline<AvgPoolBackward>, nullptr, run_squares<AvgPoolBackward>},
    {"windows", supports_all, nullptr, run_windows<AvgPoolBackward>},
};
constexpr Impl<LpPoolBackward> kLp[] = {
    {"windows", supports_all, nullptr,
     [](const LpPoolBackward& p, const Launch& launch) {
       dispatch_floating(p.dx.dtype, [&]<class T>() { run_lp<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<MaxPoolBackward> gpu_impls<MaxPoolBackward>() {
  return kMax;
}
template <>
ImplList<AvgPoolBackward> gpu_impls<AvgPoolBackward>() {
  return kAvg;
}
template <>
ImplList<LpPoolBackward> gpu_impls<LpPoolBackward>() {
  return kLp;
}

}  // namespace dlkern
