// What a window of forward pooling gives to its elements, backward.
#pragma once

#include "cuda/pool_planes.cuh"

namespace dlkern::gpu {

// a * b that no addition is fused with: all kernels round alike.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }

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

}  // namespace dlkern::gpu
