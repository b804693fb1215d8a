// Pooling over windows of 1 to 3 spatial dimensions: gradients.
//
//   max   dx[i] = sum of dy[o] over the windows o whose maximum is i, by the forward's indices
//   avg   dx[i] = sum of dy[o] / divisor(o) over the windows o that hold i
//   lp    dx[i] = sign(x[i]) |x[i]|^(p - 1) * sum of dy[o] / y[o]^(p - 1) over the windows that hold i
//
// Layout: any strides. No atomics: the order in which an element's windows are added is fixed, by their
// places alone.
//   planes    Planar volumes without gaps: a block computes a tile, in shared memory, from the windows
//             over it. max: each window adds to its maximum, those first that are even along all
//             dimensions, and so on, as those do not overlap. avg: windows are added up along W, then
//             these sums along H and D.
//   squares   Averages of planes, windows of 2 x 2 or 3 x 3: a thread has the positions between two
//             distances, which share windows.
//   channels  16 bytes of channels that are neighbours, windows of 2 x 2 or 3 x 3 at a distance of 2:
//             the 2 x 2 positions that are covered by the same windows, read once for all four.
//   windows   One position of one channel, or of 16 bytes of channels: visits its windows.
// Bound by memory. 16-bit values are summed in float32.
#include "cuda/pool_planes.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// ---- What a window gives to its elements ---------------------------------------------------------

// a * b that no addition is fused with: all kernels round alike.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }

// Window i of a run of a part.
__device__ __forceinline__ PlanePlace window_place(const PlaneTiles& tiles, const PlanePart& from,
                                                   int run, int i) {
  const PlaneExtents& e = tiles.source;
  int row = e.by_w.quick(i);
  const int w = i - row * e.w;
  if (!tiles.whole) return {0, from.d + run, from.h + row, w};
  int slice = e.by_h.quick(row);
  row -= slice * e.h;
  const int volume = e.by_d.quick(slice);
  return {volume, slice - volume * e.d, row, w};
}

template <class T>
struct MaxGradient {
  Image<const T> dy;
  Indices indices;
  FastDiv by_h, by_w, by_volume;  // taps of a window; windows of a volume

  explicit MaxGradient(const MaxPoolBackward& p)
      : dy(p.dy),
        indices(p.indices),
        by_h(p.shape.window[1].kernel),
        by_w(p.shape.window[2].kernel),
        by_volume(p.shape.out_plane()) {}
  // The flat position of a tap of a window, number i of a run of its part.
  __device__ __forceinline__ int position(const PoolShape& s, const PlaneTiles& tiles,
                                          const PlanePart& from, int run, int i, int tap) const {
    const PlanePlace o = window_place(tiles, from, run, i);
    const int line = by_w.quick(tap), d = by_h.quick(line);
    const int taps[] = {d, line - d * static_cast<int>(by_h.divisor()),
                        tap - line * static_cast<int>(by_w.divisor())};
    const int window[] = {o.d, o.h, o.w};
    int position = 0;
#pragma unroll
    for (int k = 0; k < kMaxSpatial; ++k) {
      const int at = s.origin(k, window[k]) + taps[k] * static_cast<int>(s.window[k].dilation);
      position = position * static_cast<int>(s.in[k]) + at;
    }
    return position;
  }
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

// Whether a gradient goes to the maxima that indices tell.
template <class Gradient>
inline constexpr bool kHasLabels = false;
template <class T>
inline constexpr bool kHasLabels<MaxGradient<T>> = true;

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

// ---- Channels -----------------------------------------------------------------------------------

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
    pool_backward_channels_kernel(Gradient gradient, Image<T> dx, PoolShape s, PoolTiles tiles) {
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
          if constexpr (kHasLabels<Gradient>) {
            at[jh][jw] = gradient.indices.at(o.n, o.c, o.d, o.h, o.w);
          }
        }
      }
      if constexpr (kHasLabels<Gradient>) {
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
              if constexpr (kHasLabels<Gradient>) {
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

// ---- Planes -------------------------------------------------------------------------------------

// A window in shared memory: its gradient, and the number within the tile of its maximum, which may lie
// outside.
template <class T>
struct StagedMaximum {
  Accumulator<T> dy;
  int at;
};

// Windows of one color, those with o % step[d] == one number for each d, do not overlap.
struct Colors {
  int step[kMaxSpatial];
  FastDiv by_d, by_h, by_w;  // the most windows of one color in a tile

  explicit Colors(const PlaneTiles& tiles)
      : by_d(most(tiles, 0, tiles.whole ? tiles.source.d : tiles.slices)),
        by_h(most(tiles, 1, tiles.whole ? tiles.source.h : tiles.source_rows)),
        by_w(most(tiles, 2, tiles.source.w)) {}

  // f(number of a window within the part) for this thread's windows of the color {d, h, w}.
  template <class F>
  __device__ __forceinline__ void for_windows(const PlaneTiles& tiles, const PlanePart& part, int d,
                                              int h, int w, F&& f) const {
    const int across = static_cast<int>(by_w.divisor()), down = static_cast<int>(by_h.divisor()),
              deep = static_cast<int>(by_d.divisor());
    d = after(part.d, d, step[0]), h = after(part.h, h, step[1]);
    for (int i = threadIdx.x; i < part.volumes * deep * down * across; i += kPlaneThreads) {
      int row = by_w.quick(i), slice = 0;
      const int column = (i - row * across) * step[2] + w;
      if (tiles.whole || tiles.deep) {
        slice = by_h.quick(row);
        row -= slice * down;
        const int volume = by_d.quick(slice);
        slice = volume * part.slices + (slice - volume * deep) * step[0] + d;
        if (slice >= (volume + 1) * part.slices) continue;
      }
      row = row * step[1] + h;
      if (column < tiles.source.w && row < part.rows) {
        f((slice * part.rows + row) * tiles.source.w + column);
      }
    }
  }

 private:
  FastDiv most(const PlaneTiles& tiles, int d, int windows) {
    step[d] = tiles.reach[d].most(1);
    return FastDiv(ceil_div(windows, step[d]));
  }
  // From `begin` to the first window of a color.
  static __device__ __forceinline__ int after(int begin, int color, int step) {
    return step == 1 ? 0 : (color + step - begin % step) % step;
  }
};

// Each window adds to its maximum, color by color.
template <class T>
__global__ void __launch_bounds__(kPlaneThreads)
    max_planes_kernel(MaxGradient<T> gradient, Image<T> dx, PoolShape s, PlaneTiles tiles,
                      Colors colors) {
  using Acc = Accumulator<T>;
  extern __shared__ uint4 memory[];
  if (blockIdx.x >= tiles.count) return;
  const PlaneTile tile = tiles.tile(blockIdx.x);
  const PlanePart &from = tile.source, &to = tile.target;
  T* const target = dx.data + offset_of(dx, tile, to);
  const int count = tiles.strips_of<1>(to);
  auto* const windows = reinterpret_cast<StagedMaximum<T>*>(memory);
  Acc* const sums =
      reinterpret_cast<Acc*>(windows + (tiles.most_sources() + 1) / 2 * 2) + misalignment(target);

  for (int i = threadIdx.x; i < count; i += kPlaneThreads) sums[i] = 0;
  const T* const dy = gradient.dy.data + offset_of(gradient.dy, tile, from);
  const int64_t first_index = offset_of(gradient.indices, tile, from);
  // The flat position that the tile begins with; that of volume v lies v * volume later.
  const int begin = (to.d * tiles.target.h + to.h) * tiles.target.w;
  gradient.indices.visit([&]<class Index>(const Index* indices) {
    indices += first_index;
    for_runs(tiles, from, [&](int run, int offset, int length) {
#pragma unroll 2
      for (int i = threadIdx.x; i < length; i += kPlaneThreads) {
        const auto given = static_cast<Acc>(dy[offset + i]);
        int at = narrow(indices[offset + i]);
        if constexpr (sizeof(Index) == 1) at = gradient.position(s, tiles, from, run, i, at);
        const int volume = tiles.whole ? gradient.by_volume.quick(i) : 0;
        windows[run * length + i] = {given, at - begin + volume * tiles.target.volume()};
      }
    });
  });
  for (int d = 0; d < colors.step[0]; ++d) {
    for (int h = 0; h < colors.step[1]; ++h) {
      for (int w = 0; w < colors.step[2]; ++w) {
        __syncthreads();
        colors.for_windows(tiles, from, d, h, w, [&](int i) {
          const StagedMaximum<T> window = windows[i];
          if (is_inside(window.at, count)) sums[window.at] += window.dy;
        });
      }
    }
  }
  __syncthreads();
  write_out(target, sums, count);
}

// Averages' gradients of a part's windows in shared memory, one after the other.
template <class T>
__device__ __forceinline__ void stage_gradients(const AvgGradient<T>& gradient, const PoolShape& s,
                                                const PlaneTiles& tiles, const PlaneTile& tile,
                                                Accumulator<T>* windows) {
  using Acc = Accumulator<T>;
  const PlanePart& from = tile.source;
  const T* const dy = gradient.dy.data + offset_of(gradient.dy, tile, from);
  const Acc uniform = gradient.uniform != 0 ? gradient.uniform : Acc(1);
  for_runs(tiles, from, [&](int run, int offset, int length) {
#pragma unroll 8
    for (int i = threadIdx.x; i < length; i += kPlaneThreads) {
      windows[run * length + i] = gradient.value(static_cast<Acc>(dy[offset + i]), uniform);
    }
  });
  if (gradient.uniform != 0) return;
  for_runs(tiles, from, [&](int run, int, int length) {
#pragma unroll 1
    for (int i = threadIdx.x; i < length; i += kPlaneThreads) {  // written by this thread itself
      const PlanePlace o = window_place(tiles, from, run, i);
      Acc& window = windows[run * length + i];
      window = gradient.value(window, gradient.factor(s, PoolPlace<int>{0, 0, o.d, o.h, o.w}));
    }
  });
}

// floor(a / b) for b > 0.
constexpr int floor_of(int a, int b) { return (a - (a < 0 ? b - 1 : 0)) / b; }

// The sums of S x S positions from `p` on over windows of K x K taps at a distance of S, after P columns
// and rows of padding. Windows outside are read as the nearest one inside, and give nothing.
template <int K, int S, int P, class Acc>
__device__ __forceinline__ void add_square(const Acc* windows, const PlaneTiles& tiles,
                                           const PlanePart& from, const PlanePlace& p,
                                           Acc (&sum)[S][S]) {
  constexpr int kFirst = floor_of(P - K, S) + 1, kLast = floor_of(S - 1 + P, S);
  const int first_h = p.h / S - from.h, first_w = p.w / S, across = tiles.source.w;
#pragma unroll
  for (int jh = kFirst; jh <= kLast; ++jh) {
    const bool row_inside = is_inside(first_h + jh, from.rows);
    const Acc* row = windows + nearest(first_h + jh, max(from.rows, 1)) * across;
    Acc given[S] = {};
#pragma unroll
    for (int jw = kFirst; jw <= kLast; ++jw) {
      const bool inside = row_inside && is_inside(first_w + jw, across);
      const Acc g = row[nearest(first_w + jw, across)];
#pragma unroll
      for (int c = 0; c < S; ++c) {
        const int kw = c + P - jw * S;
        if (kw >= 0 && kw < K) given[c] += inside ? g : Acc(0);
      }
    }
#pragma unroll
    for (int r = 0; r < S; ++r) {
      const int kh = r + P - jh * S;
#pragma unroll
      for (int c = 0; c < S; ++c) {
        if (kh >= 0 && kh < K) sum[r][c] += given[c];
      }
    }
  }
}

// K x K taps at a distance of S: a thread has S x S positions, which share windows.
template <class T, int K, int S>
__global__ void __launch_bounds__(kPlaneThreads)
    avg_squares_kernel(AvgGradient<T> gradient, Image<T> dx, PoolShape s, PlaneTiles tiles) {
  using Acc = Accumulator<T>;
  extern __shared__ uint4 memory[];
  if (blockIdx.x >= tiles.count) return;
  const PlaneTile tile = tiles.tile(blockIdx.x);
  const PlanePart &from = tile.source, &to = tile.target;
  T* const target = dx.data + offset_of(dx, tile, to);
  Acc* const windows = reinterpret_cast<Acc*>(memory);
  stage_gradients(gradient, s, tiles, tile, windows);
  __syncthreads();

  const bool padded = s.window[1].pad_begin > 0;
  const int slice_size = from.rows * tiles.source.w, width = tiles.target.w;
  const int count = tiles.strips_of<S>(to);
  for (int i = threadIdx.x; i < count; i += kPlaneThreads) {
    const PlanePlace p = tiles.place<S, S>(to, i);
    const RangeOf<int> od = tiles.deep ? tiles.reach[0](p.d) : RangeOf<int>{0, 1};
    Acc sum[S][S] = {};
    for (int d = od.begin; d < od.end; ++d) {
      const Acc* slice = windows + (p.volume * from.slices + d - from.d) * slice_size;
      if (padded) {
        add_square<K, S, 1>(slice, tiles, from, p, sum);
      } else {
        add_square<K, S, 0>(slice, tiles, from, p, sum);
      }
    }
    T* const at = target + tiles.number(to, p);
#pragma unroll
    for (int r = 0; r < S; ++r) {
      if (p.h + r >= to.h + to.rows) break;
#pragma unroll
      for (int c = 0; c < S; ++c) {
        if (p.w + c < width) at[r * width + c] = static_cast<T>(sum[r][c]);
      }
    }
  }
}

// Windows of any kind: sums along W of each row of windows, then of these along H and D.
template <class T>
__global__ void __launch_bounds__(kPlaneThreads)
    avg_planes_kernel(AvgGradient<T> gradient, Image<T> dx, PoolShape s, PlaneTiles tiles) {
  using Acc = Accumulator<T>;
  extern __shared__ uint4 memory[];
  if (blockIdx.x >= tiles.count) return;
  const PlaneTile tile = tiles.tile(blockIdx.x);
  const PlanePart &from = tile.source, &to = tile.target;
  T* const target = dx.data + offset_of(dx, tile, to);
  Acc* const windows = reinterpret_cast<Acc*>(memory);
  Acc* const rows = windows + tiles.most_sources();
  stage_gradients(gradient, s, tiles, tile, windows);
  __syncthreads();

  const int width = tiles.target.w, windows_w = tiles.source.w;
  const int lines = from.volumes * from.slices * from.rows;
  for (int i = threadIdx.x; i < lines * width; i += kPlaneThreads) {
    const int row = tiles.target.by_w.quick(i);
    const RangeOf<int> ow = tiles.reach[2](i - row * width);
    Acc sum = 0;
    for (int o = ow.begin; o < ow.end; ++o) sum += windows[row * windows_w + o];
    rows[i] = sum;
  }
  __syncthreads();
  const int count = tiles.strips_of<1>(to);
  for (int i = threadIdx.x; i < count; i += kPlaneThreads) {
    const PlanePlace p = tiles.place<1>(to, i);
    const RangeOf<int> od = tiles.deep ? tiles.reach[0](p.d) : RangeOf<int>{0, 1};
    const RangeOf<int> oh = tiles.reach[1](p.h);
    Acc sum = 0;
    for (int d = od.begin; d < od.end; ++d) {
      const int slice = p.volume * from.slices + d - from.d;
      const Acc* column = rows + (slice * from.rows - from.h) * width + p.w;
      for (int h = oh.begin; h < oh.end; ++h) sum += column[h * width];
    }
    target[i] = static_cast<T>(sum);
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
void launch_channels(const Gradient& gradient, const Tensor& dx, const PoolShape& s, void* stream) {
  constexpr int kWide = 16 / sizeof(T), S = 2;
  int64_t squares[kMaxSpatial] = {s.in[0]};
  for (int d = 1; d < kMaxSpatial; ++d) {
    squares[d] = ceil_div(s.in[d] + s.window[d].pad_begin, S);
  }
  const PoolTiles tiles(s.batch, s.channels / kWide, squares, true, 3);
  launch_kernel(pool_backward_channels_kernel<T, Gradient, kWide, K, S>, tiles.grid(), kPoolThreads,
                0, stream, gradient, Image<T>(dx), s, tiles);
}

// The gradient of a problem.
template <class T>
MaxGradient<T> gradient_of(const MaxPoolBackward& p) {
  return MaxGradient<T>(p);
}
template <class T>
AvgGradient<T> gradient_of(const AvgPoolBackward& p) {
  return AvgGradient<T>(p);
}

// 16 bytes of channels at once in all tensors.
template <class Problem>
bool is_wide(Problem p) {
  const int n = 16 / static_cast<int>(dtype_size(p.dx.dtype));
  bool wide = counts_in_int(p.shape);
  for (const Tensor* t : tensors_of(p)) wide = wide && fits_channels(*t, n);
  return wide;
}

template <class Problem>
const char* channels_suit(const Problem& p) {
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
void run_channels(const Problem& p, const Launch& launch) {
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      const auto gradient = gradient_of<T>(p);
      if (p.shape.window[1].kernel == 2) {
        launch_channels<T, std::remove_const_t<decltype(gradient)>, 2>(gradient, p.dx, p.shape,
                                                                       launch.stream);
      } else {
        launch_channels<T, std::remove_const_t<decltype(gradient)>, 3>(gradient, p.dx, p.shape,
                                                                       launch.stream);
      }
    }
  });
}

// Sums, and the windows that they are made of: with their maxima, or with the sums of their rows.
PlaneTiles tiles_of(const MaxPoolBackward& p, bool packed) {
  const int64_t acc = p.dx.dtype == DType::kFloat64 ? 8 : 4;
  return PlaneTiles(p.shape, false, {1, 1}, packed, [=](int64_t targets, int64_t sources) {
    return (targets + 2 * sources + 16) * acc;
  });
}
PlaneTiles tiles_of(const AvgPoolBackward& p, bool packed) {
  const int64_t acc = p.dx.dtype == DType::kFloat64 ? 8 : 4;
  const int64_t width = p.shape.in[2], windows = p.shape.out[2];
  return PlaneTiles(p.shape, false, {1, 1}, packed, [=](int64_t, int64_t sources) {
    return (sources + ceil_div(sources, windows) * width) * acc;
  });
}
template <class Problem>
const char* planes_suit(const Problem& given) {
  const Problem p = as_planes(given);
  if (const char* reason = planes_decline(p)) return reason;
  return tiles_of(p, true).decline();
}
void run_planes(const MaxPoolBackward& given, const Launch& launch) {
  const MaxPoolBackward p = as_planes(given);
  const PlaneTiles tiles = tiles_of(p, are_packed(p));
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    launch_kernel(max_planes_kernel<T>, tiles.grid(), kPlaneThreads, tiles.bytes, launch.stream,
                  MaxGradient<T>(p), Image<T>(p.dx), p.shape, tiles, Colors(tiles));
  });
}
// Windows of K x K taps at a distance of S, which need no sums of rows.
template <class T, int K, int S>
void launch_squares(const AvgPoolBackward& p, const Launch& launch) {
  const PlaneTiles tiles(p.shape, false, {S, S}, are_packed(p), [](int64_t, int64_t sources) {
    return sources * static_cast<int64_t>(sizeof(Accumulator<T>));
  });
  launch_kernel(avg_squares_kernel<T, K, S>, tiles.grid(), kPlaneThreads, tiles.bytes,
                launch.stream, AvgGradient<T>(p), Image<T>(p.dx), p.shape, tiles);
}
void run_planes(const AvgPoolBackward& given, const Launch& launch) {
  const AvgPoolBackward p = as_planes(given);
  dispatch_floating(p.dx.dtype, [&]<class T>() {
    dispatch_squares<sizeof(T) < 8>(p.shape, [&]<int K, int S>() {
      if constexpr (K > 0) return launch_squares<T, K, S>(p, launch);
      const PlaneTiles tiles = tiles_of(p, are_packed(p));
      launch_kernel(avg_planes_kernel<T>, tiles.grid(), kPlaneThreads, tiles.bytes, launch.stream,
                    AvgGradient<T>(p), Image<T>(p.dx), p.shape, tiles);
    });
  });
}

constexpr Impl<MaxPoolBackward> kMax[] = {
    {"planes", planes_suit<MaxPoolBackward>, nullptr,
     [](const MaxPoolBackward& p, const Launch& launch) { run_planes(p, launch); }},
    {"channels", channels_suit<MaxPoolBackward>, nullptr, run_channels<MaxPoolBackward>},
    {"windows", supports_all, nullptr, run_windows<MaxPoolBackward>},
};
constexpr Impl<AvgPoolBackward> kAvg[] = {
    {"planes", planes_suit<AvgPoolBackward>, nullptr,
     [](const AvgPoolBackward& p, const Launch& launch) { run_planes(p, launch); }},
    {"channels", channels_suit<AvgPoolBackward>, nullptr, run_channels<AvgPoolBackward>},
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
