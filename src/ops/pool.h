#pragma once

#include <dlkern/pool.h>

#include <cmath>

#include "core/call.h"
#include "core/fast_div.h"
#include "core/tensor.h"
#include "core/window.h"

namespace dlkern {

// All image tensors of the problems below are views [N, C, D, H, W] of the caller's, whatever their
// layout; spatial dimensions that they lack have extent 1 and come first.
struct PoolShape {
  int64_t batch = 1;
  int64_t channels = 1;
  int64_t in[kMaxSpatial] = {1, 1, 1};
  int64_t out[kMaxSpatial] = {1, 1, 1};
  Window window[kMaxSpatial];
  bool adaptive[kMaxSpatial] = {};  // the extents alone decide; the kernel is the largest there is

  DLK_HD int64_t in_plane() const { return in[0] * in[1] * in[2]; }
  DLK_HD int64_t out_plane() const { return out[0] * out[1] * out[2]; }
  int64_t taps() const { return window[0].kernel * window[1].kernel * window[2].kernel; }

  // The functions below take and give positions as I: int64_t, or int where is_narrow().

  // Position of tap 0 of window o along dimension d; negative in the padding.
  template <class I>
  DLK_HD I origin(int d, I o) const {
    return adaptive[d] ? by_out[d].of(o * static_cast<I>(in[d])) : window[d].start_as(o);
  }
  // Taps of window o along dimension d that lie inside the input; all windows have some.
  template <class I>
  DLK_HD RangeOf<I> taps_inside(int d, I o) const {
    const I n = static_cast<I>(in[d]);
    if (adaptive[d]) {
      return {0, by_out[d].of((o + 1) * n + static_cast<I>(out[d]) - 1) - origin(d, o)};
    }
    return window[d].taps_inside(o, n, [&](I a) { return by_dilation[d].of(a); });
  }
  // Windows along dimension d whose span covers position i.
  template <class I>
  DLK_HD RangeOf<I> windows_over(int d, I i) const {
    const I n = static_cast<I>(in[d]), m = static_cast<I>(out[d]);
    if (adaptive[d]) return {by_in[d].of(i * m), by_in[d].of((i + 1) * m + n - 1)};
    return window[d].windows_over(i, m, [&](I a) { return by_stride[d].of(a); });
  }
  // The last tap that lies no further from tap 0 than `distance`.
  template <class I>
  DLK_HD I tap(int d, I distance) const {
    return by_dilation[d].of(distance);
  }
  // All numbers of the functions above, and all positions in a plane, fit into int.
  bool is_narrow() const {
    constexpr int64_t kLimit = int64_t{1} << 30;
    for (int d = 0; d < kMaxSpatial; ++d) {
      const Window& w = window[d];
      if ((w.span() + w.pad_begin + w.stride + in[d]) * 2 > kLimit) return false;
      if (adaptive[d] && (in[d] + 1) * (out[d] + 1) > kLimit) return false;
    }
    return in_plane() < kLimit && out_plane() < kLimit;
  }
  // Once the other members of dimension d are there.
  void prepare(int d) {
    by_stride[d] = FastDiv(window[d].stride);
    by_dilation[d] = FastDiv(window[d].dilation);
    by_in[d] = FastDiv(in[d]);
    by_out[d] = FastDiv(out[d]);
  }

 private:
  FastDiv by_stride[kMaxSpatial], by_dilation[kMaxSpatial], by_in[kMaxSpatial], by_out[kMaxSpatial];
};

// What a window's sum is divided by.
struct PoolDivisor {
  bool count_include_pad = true;
  int64_t fixed = 0;  // 0: count the taps

  template <class I>
  DLK_HD I count(const PoolShape& s, int d, I o) const {
    const I n = static_cast<I>(s.in[d]), kernel = static_cast<I>(s.window[d].kernel);
    if (s.adaptive[d]) return s.taps_inside(d, o).end;
    const I first = s.window[d].start_as(o);
    // With ceil_mode a window may reach past the padding.
    const I limit = count_include_pad ? n + static_cast<I>(s.window[d].pad_end) : n;
    const I end = first + kernel < limit ? first + kernel : limit;
    return end - (count_include_pad || first > 0 ? first : 0);
  }
  // The divisor of all windows; 0 where they differ.
  int64_t uniform(const PoolShape& s) const {
    if (fixed) return fixed;
    int64_t product = 1;
    for (int d = 0; d < kMaxSpatial; ++d) {
      const int64_t kernel = s.window[d].kernel;  // windows that are cut are the outermost ones
      if (s.adaptive[d] || count(s, d, int64_t{0}) != kernel ||
          count(s, d, s.out[d] - 1) != kernel) {
        return 0;
      }
      product *= kernel;
    }
    return product;
  }
  // The divisor of window (d, h, w) is rows(d, h) * columns(w).
  template <class I>
  DLK_HD I rows(const PoolShape& s, I d, I h) const {
    return fixed ? static_cast<I>(fixed) : count(s, 0, d) * count(s, 1, h);
  }
  template <class I>
  DLK_HD I columns(const PoolShape& s, I w) const {
    return fixed ? 1 : count(s, 2, w);
  }
};

// Powers of Lp pooling: of any norm, and of the usual one.
template <class Acc>
struct AnyNorm {
  Acc p;

  // |v|^p
  DLK_HD Acc power(Acc v) const { return pow_of(v < 0 ? -v : v, p); }
  DLK_HD Acc root(Acc sum) const { return pow_of(sum, 1 / p); }
  // A window's gradient dy / y^(p - 1), and what it is to be multiplied by for an element x.
  DLK_HD Acc weight(Acc dy, Acc y) const { return y == 0 ? Acc(0) : dy / pow_of(y, p - 1); }
  DLK_HD Acc slope(Acc x) const {
    if (x == 0 || x != x) return x;
    return x < 0 ? -pow_of(-x, p - 1) : pow_of(x, p - 1);
  }

 private:
  static DLK_HD Acc pow_of(Acc a, Acc b) {
    using std::pow;
    return pow(a, b);
  }
};
template <class Acc>
struct Norm2 {
  DLK_HD Acc power(Acc v) const { return v * v; }
  DLK_HD Acc root(Acc sum) const {
    using std::sqrt;
    return sqrt(sum);
  }
  DLK_HD Acc weight(Acc dy, Acc y) const { return y == 0 ? Acc(0) : dy / y; }
  DLK_HD Acc slope(Acc x) const { return x; }
};

struct MaxPoolForward {
  Tensor x, y, indices;  // indices may be absent
  PoolShape shape;
};
struct MaxPoolBackward {
  Tensor dy, indices, dx;
  PoolShape shape;
};
struct AvgPoolForward {
  Tensor x, y;
  PoolShape shape;
  PoolDivisor divisor;
};
struct AvgPoolBackward {
  Tensor dy, dx;
  PoolShape shape;
  PoolDivisor divisor;
};
struct LpPoolForward {
  Tensor x, y;
  PoolShape shape;
  double norm;
};
struct LpPoolBackward {
  Tensor dy, x, y, dx;
  PoolShape shape;
  double norm;
};

// f.template operator()<Index>() for the type of a max pooling's indices.
template <class F>
void dispatch_tap_index(DType dtype, F&& f) {
  if (dtype == DType::kUInt8) return f.template operator()<uint8_t>();
  dispatch_index(dtype, f);
}

// Channels of one pixel lie closer together in memory than neighbouring pixels.
inline bool is_channels_last(const Tensor& t) {
  const auto size = [&](int d) { return t.strides[d] < 0 ? -t.strides[d] : t.strides[d]; };
  return t.shape[1] > 1 && size(1) < size(4);
}

template <>
ImplList<MaxPoolForward> cpu_impls<MaxPoolForward>();
template <>
ImplList<MaxPoolBackward> cpu_impls<MaxPoolBackward>();
template <>
ImplList<AvgPoolForward> cpu_impls<AvgPoolForward>();
template <>
ImplList<AvgPoolBackward> cpu_impls<AvgPoolBackward>();
template <>
ImplList<LpPoolForward> cpu_impls<LpPoolForward>();
template <>
ImplList<LpPoolBackward> cpu_impls<LpPoolBackward>();
template <>
ImplList<MaxPoolForward> gpu_impls<MaxPoolForward>();
template <>
ImplList<MaxPoolBackward> gpu_impls<MaxPoolBackward>();
template <>
ImplList<AvgPoolForward> gpu_impls<AvgPoolForward>();
template <>
ImplList<AvgPoolBackward> gpu_impls<AvgPoolBackward>();
template <>
ImplList<LpPoolForward> gpu_impls<LpPoolForward>();
template <>
ImplList<LpPoolBackward> gpu_impls<LpPoolBackward>();

}  // namespace dlkern
