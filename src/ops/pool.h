#pragma once

#include <dlkern/pool.h>

#include "core/call.h"
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

  DLK_HD int64_t in_plane() const { return in[0] * in[1] * in[2]; }
  DLK_HD int64_t out_plane() const { return out[0] * out[1] * out[2]; }
  int64_t taps() const { return window[0].kernel * window[1].kernel * window[2].kernel; }
};

// What a window's sum is divided by.
struct PoolDivisor {
  bool count_include_pad = true;
  int64_t fixed = 0;  // 0: count the taps

  DLK_HD int64_t count(const Window& w, int64_t o, int64_t n) const {
    if (!count_include_pad) {
      const Range taps = w.taps_inside(o, n);
      return taps.end - taps.begin;
    }
    const int64_t left = n + w.pad_end - w.start(o);  // a window of ceil_mode may reach further
    return left < w.kernel ? left : w.kernel;
  }
  // The divisor of window (d, h, w) is rows(d, h) * columns(w).
  DLK_HD int64_t rows(const PoolShape& s, int64_t d, int64_t h) const {
    return fixed ? fixed : count(s.window[0], d, s.in[0]) * count(s.window[1], h, s.in[1]);
  }
  DLK_HD int64_t columns(const PoolShape& s, int64_t w) const {
    return fixed ? 1 : count(s.window[2], w, s.in[2]);
  }
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
ImplList<MaxPoolForward> gpu_impls<MaxPoolForward>();
template <>
ImplList<MaxPoolBackward> gpu_impls<MaxPoolBackward>();
template <>
ImplList<AvgPoolForward> gpu_impls<AvgPoolForward>();
template <>
ImplList<AvgPoolBackward> gpu_impls<AvgPoolBackward>();

}  // namespace dlkern
