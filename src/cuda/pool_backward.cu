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

  __device__ __forceinline__ Accumulator<T> factor(const PoolShape&, const PoolPlace&) const {
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
  __device__ __forceinline__ Acc factor(const PoolShape& s, const PoolPlace& o) const {
    if (uniform != 0) return uniform;
    return 1 / static_cast<Acc>(divisor.rows(s, o.d, o.h) * divisor.columns(s, o.w));
  }
  __device__ __forceinline__ Acc value(Acc dy, Acc factor) const { return product(dy, factor); }
};

template <class T>
struct LpGradient {
  using Acc = Accumulator<T>;
  static constexpr bool kLabels = false;
  Image<const T> dy, y, x;
  Norm<Acc> norm;
};

// ---- Windows ------------------------------------------------------------------------------------

// The number of the tap by which window o holds position i, or -1 where i lies between taps.
__device__ __forceinline__ int64_t tap_at(const PoolShape& s, const PoolPlace& i,
                                          const PoolPlace& o) {
  const int64_t position[] = {i.d, i.h, i.w}, window[] = {o.d, o.h, o.w};
  int64_t number = 0;
#pragma unroll
  for (int d = 0; d < kMaxSpatial; ++d) {
    const int64_t distance = position[d] - s.origin(d, window[d]), tap = s.tap(d, distance);
    if (tap * s.window[d].dilation != distance) return -1;
    number = number * s.window[d].kernel + tap;
  }
  return number;
}

// Adds what window o gives to W neighbouring channels of position i.
template <int W, class T>
__device__ __forceinline__ void add_window(const MaxGradient<T>& gradient, const PoolShape& s,
                                           const PoolPlace& i, const PoolPlace& o,
                                           Accumulator<T> (&sum)[W]) {
  PackedGroup<T, W> dy;
  load_group(dy, gradient.dy.data + gradient.dy.at(o.n, o.c, o.d, o.h, o.w));
  const int64_t here = gradient.indices.are_taps() ? tap_at(s, i, o)
                                                   : (i.d * s.in[1] + i.h) * s.in[2] + i.w;
  const int64_t at = gradient.indices.at(o.n, o.c, o.d, o.h, o.w);
  if constexpr (W == 1) {
    if (gradient.indices.load(at) == here) sum[0] += dy.get(0);
  } else {
    int label[W];
    gradient.indices.visit([&](const auto* indices) { load_labels(indices + at, label); });
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (label[k] == here) sum[k] += dy.get(k);
    }
  }
}
template <int W, class T>
__device__ __forceinline__ void add_window(const AvgGradient<T>& gradient, const PoolShape& s,
                                           const PoolPlace&, const PoolPlace& o,
                                           Accumulator<T> (&sum)[W]) {
  PackedGroup<T, W> dy;
  load_group(dy, gradient.dy.data + gradient.dy.at(o.n, o.c, o.d, o.h, o.w));
  const Accumulator<T> factor = gradient.factor(s, o);
#pragma unroll
  for (int k = 0; k < W; ++k) sum[k] += gradient.value(dy.get(k), factor);
}
template <int W, class T>
__device__ __forceinline__ void add_window(const LpGradient<T>& gradient, const PoolShape&,
                                           const PoolPlace&, const PoolPlace& o,
                                           Accumulator<T> (&sum)[W]) {
  PackedGroup<T, W> dy, y;
  load_group(dy, gradient.dy.data + gradient.dy.at(o.n, o.c, o.d, o.h, o.w));
  load_group(y, gradient.y.data + gradient.y.at(o.n, o.c, o.d, o.h, o.w));
#pragma unroll
  for (int k = 0; k < W; ++k) sum[k] += gradient.norm.weight(dy.get(k), y.get(k));
}

// The last step, from the sum to dx.
template <int W, class T, class Gradient>
__device__ __forceinline__ void finish(const Gradient& gradient, const PoolPlace& i,
                                       Accumulator<T> (&sum)[W]) {
  if constexpr (std::is_same_v<Gradient, LpGradient<T>>) {
    PackedGroup<T, W> x;
    load_group(x, gradient.x.data + gradient.x.at(i.n, i.c, i.d, i.h, i.w));
#pragma unroll
    for (int k = 0; k < W; ++k) sum[k] *= gradient.norm.slope(x.get(k));
  }
}

template <class T, class Gradient, int W>
__global__ void __launch_bounds__(kPoolThreads)
    pool_backward_windows_kernel(Gradient gradient, Image<T> dx, PoolShape s, PoolTiles tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    PoolPlace i;
    if (!tiles.place(tile, i)) continue;
    i.c *= W;
    const Range od = s.windows_over(0, i.d), oh = s.windows_over(1, i.h),
                ow = s.windows_over(2, i.w);
    Accumulator<T> sum[W] = {};
    PoolPlace o = i;
    for (o.d = od.begin; o.d < od.end; ++o.d) {
      for (o.h = oh.begin; o.h < oh.end; ++o.h) {
#pragma unroll 2
        for (o.w = ow.begin; o.w < ow.end; ++o.w) add_window(gradient, s, i, o, sum);
      }
    }
    finish<W, T>(gradient, i, sum);
    store_group(dx.data + dx.at(i.n, i.c, i.d, i.h, i.w), PackedGroup<T, W>::rounded(sum));
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
  __device__ __forceinline__ int operator()(int64_t position, int tap) const {
    return taps ? tap : static_cast<int>(position);
  }
};

// A thread has S x S positions that the same M x M windows cover. Windows outside the image are
// read as the nearest one inside, so that there are no branches around loads, and give nothing.
template <class T, class Gradient, int W, int K, int S>
__global__ void __launch_bounds__(kPoolThreads, 2)
    pool_backward_squares_kernel(Gradient gradient, Image<T> dx, PoolShape s, PoolTiles tiles) {
  using Acc = Accumulator<T>;
  constexpr int M = (K - 1) / S + 1;
  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    PoolPlace i;
    if (!tiles.place(tile, i)) continue;
    i.c *= W;
    PoolPlace first = i;  // of the windows
    first.h -= M - 1, first.w -= M - 1;
    i.h = i.h * S - s.window[1].pad_begin, i.w = i.w * S - s.window[2].pad_begin;
    Acc sum[S][S][W] = {};
    const Range od = s.windows_over(0, i.d);
    for (int64_t d = od.begin; d < od.end; ++d) {
      PackedGroup<T, W> dy[M][M];
      Acc factor[M][M];
      [[maybe_unused]] int label[M][M][W];
      [[maybe_unused]] int64_t at[M][M];
#pragma unroll
      for (int jh = 0; jh < M; ++jh) {
#pragma unroll
        for (int jw = 0; jw < M; ++jw) {
          const PoolPlace o{i.n, i.c, d, nearest(first.h + jh, s.out[1]),
                            nearest(first.w + jw, s.out[2])};
          load_group(dy[jh][jw], gradient.dy.data + gradient.dy.at(o.n, o.c, o.d, o.h, o.w));
          factor[jh][jw] = gradient.factor(s, o);
          if constexpr (Gradient::kLabels) {
            at[jh][jw] = gradient.indices.at(o.n, o.c, o.d, o.h, o.w);
          }
        }
      }
      if constexpr (Gradient::kLabels) {
        gradient.indices.visit([&](const auto* indices) {
#pragma unroll
          for (int j = 0; j < M * M; ++j) load_labels(indices + at[j / M][j % M], label[j / M][j % M]);
        });
      }
      int64_t position = 0;
      int tap = 0;
      if constexpr (Gradient::kLabels) {
        position = (i.d * s.in[1] + i.h) * s.in[2] + i.w;
        tap = static_cast<int>(i.d - s.origin(0, d)) * K * K;
      }
#pragma unroll
      for (int jh = 0; jh < M; ++jh) {
#pragma unroll
        for (int jw = 0; jw < M; ++jw) {
          const bool inside = is_inside(first.h + jh, s.out[1]) && is_inside(first.w + jw, s.out[2]);
#pragma unroll
          for (int k = 0; k < W; ++k) {
            const Acc g = inside ? gradient.value(dy[jh][jw].get(k), factor[jh][jw]) : Acc(0);
#pragma unroll
            for (int r = 0; r < S * S; ++r) {
              const int kh = r / S + (M - 1 - jh) * S, kw = r % S + (M - 1 - jw) * S;
              if (kh >= K || kw >= K) continue;
              Acc& to = sum[r / S][r % S][k];
              if constexpr (Gradient::kLabels) {
                const Expected expected{taps_expected(gradient)};
                const int here = expected(position + r / S * s.in[2] + r % S, tap + kh * K + kw);
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
      const int64_t h = i.h + r / S, w = i.w + r % S;
      if (is_inside(h, s.in[1]) && is_inside(w, s.in[2])) {
        store_group(dx.data + dx.at(i.n, i.c, i.d, h, w),
                    PackedGroup<T, W>::rounded(sum[r / S][r % S]));
      }
    }
  }
}

// ---- Rows ---------------------------------------------------------------------------------------

// Rows of windows as a thread sees them: those over its own S rows, and of each kBefore windows, the
// kMiddle that begin with its own columns, and kAfter. P columns of padding.
template <class T, int K, int S, int P>
struct RowWindows {
  static constexpr int kRows = (K - 1) / S + 1, kColumns = 16 / sizeof(T), kMiddle = kColumns / S;
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
    PackedGroup<T, kMiddle> middle;
    load_group(middle, from);
#pragma unroll
    for (int j = 0; j < kMiddle; ++j) to[kBefore + j] = middle.get(j);
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

// Adds what the windows give to S x kColumns positions from `i` on.
template <int P, class T, int K, int S, class Gradient, class Sums>
__device__ __forceinline__ void gather_rows(const Gradient& gradient, const PoolShape& s,
                                            const PoolPlace& i, int64_t d, int first_h, int first_w,
                                            bool whole, Sums& sum) {
  using Windows = RowWindows<T, K, S, P>;
  constexpr int kRows = Windows::kRows, kCount = Windows::kCount;
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
            gradient.value(windows.dy[r][j], gradient.factor(s, {i.n, i.c, d, h, w}));
      }
      if (!is_inside(h, height) || !is_inside(w, width)) windows.clear(r, j);
    }
  }
  const Expected expected{taps_expected(gradient)};
  const int position = static_cast<int>((i.d * s.in[1] + i.h) * s.in[2] + i.w);
  const int tap = static_cast<int>(i.d - s.origin(0, d)) * K * K;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int b = 0; b < S; ++b) {
      const int kh = b + (kRows - 1 - r) * S;
      if (kh >= K) continue;
#pragma unroll
      for (int e = 0; e < Windows::kColumns; ++e) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          const int kw = e + P - (j - Windows::kBefore) * S;
          if (kw < 0 || kw >= K) continue;
          if constexpr (Gradient::kLabels) {
            const int here = expected(position + b * static_cast<int>(s.in[2]) + e,
                                      tap + kh * K + kw);
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
  const int pad = static_cast<int>(s.window[2].pad_begin);
  for (int64_t item = items.first(); item < items.count; item += items.step()) {
    PoolPlace i = items.place(item);
    const int first_h = static_cast<int>(i.h) - (K - 1) / S;
    const int first_w = static_cast<int>(i.w) * kMiddle;
    const bool whole = whole_windows && first_w + kMiddle <= s.out[2];
    i.h = i.h * S - s.window[1].pad_begin, i.w *= kColumns;
    Accumulator<T> sum[S][kColumns] = {};
    const Range od = s.windows_over(0, i.d);
    for (int64_t d = od.begin; d < od.end; ++d) {
      if (pad > 0) {
        gather_rows<1, T, K, S>(gradient, s, i, d, first_h, first_w, whole, sum);
      } else {
        gather_rows<0, T, K, S>(gradient, s, i, d, first_h, first_w, whole, sum);
      }
    }
#pragma unroll
    for (int b = 0; b < S; ++b) {
      if (!is_inside(i.h + b, s.in[1])) continue;
      T* to = dx.data + dx.at(i.n, i.c, i.d, i.h + b, i.w);
      const bool full = whole_columns && i.w + kColumns <= s.in[2];
      if (full) store_group(to, PackedGroup<T, kColumns>::rounded(sum[b]));
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        if (!full && i.w + e < s.in[2]) to[e] = static_cast<T>(sum[b][e]);
      }
    }
  }
}

// ---- Launches -----------------------------------------------------------------------------------

template <class T, class Gradient>
void launch_windows(const Gradient& gradient, const Tensor& dx, const PoolShape& s, bool wide,
                    void* stream) {
  constexpr int kWide = 16 / sizeof(T);
  const bool last = is_channels_last(dx);
  if constexpr (sizeof(T) < 8) {
    if (wide) {
      const PoolTiles tiles(s.batch, s.channels / kWide, s.in, last, 3);
      return launch_kernel(pool_backward_windows_kernel<T, Gradient, kWide>, tiles.grid(),
                           kPoolThreads, 0, stream, gradient, Image<T>(dx), s, tiles);
    }
  }
  const PoolTiles tiles(s.batch, s.channels, s.in, last);
  launch_kernel(pool_backward_windows_kernel<T, Gradient, 1>, tiles.grid(), kPoolThreads, 0, stream,
                gradient, Image<T>(dx), s, tiles);
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
  const PoolRows items(s, ceil_div(s.in[2], kColumns),
                       ceil_div(s.in[1] + s.window[1].pad_begin, S), s.in[0]);
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
template <class T>
LpGradient<T> gradient_of(const LpPoolBackward& p) {
  return {Image<const T>(p.dy), Image<const T>(p.y), Image<const T>(p.x),
          Norm<Accumulator<T>>(p.norm)};
}
std::vector<Tensor> tensors_of(const MaxPoolBackward& p) { return {p.dx, p.dy, p.indices}; }
std::vector<Tensor> tensors_of(const AvgPoolBackward& p) { return {p.dx, p.dy}; }
std::vector<Tensor> tensors_of(const LpPoolBackward& p) { return {p.dx, p.dy, p.y, p.x}; }

// 16 bytes of channels at once in all tensors.
template <class Problem>
bool is_wide(const Problem& p) {
  const int n = 16 / static_cast<int>(dtype_size(p.dx.dtype));
  bool wide = is_narrow(p.shape);
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

template <class Problem>
void run_windows(const Problem& p, const Launch& launch) {
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    launch_windows<T>(gradient_of<T>(p), p.dx, p.shape, is_wide(p), launch.stream);
  });
}
template <class Problem>
void run_squares(const Problem& p, const Launch& launch) {
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      const auto gradient = gradient_of<T>(p);
      if (p.shape.window[1].kernel == 2) {
        launch_squares<T, std::remove_const_t<decltype(gradient)>, 2>(gradient, p.dx, p.shape, launch.stream);
      } else {
        launch_squares<T, std::remove_const_t<decltype(gradient)>, 3>(gradient, p.dx, p.shape, launch.stream);
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
    {"windows", supports_all, nullptr, run_windows<LpPoolBackward>},
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
