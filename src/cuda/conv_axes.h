// Where the pixels and the taps of a convolution of images are, dimension by dimension.
//
// An input gradient of stride s is s convolutions in each dimension, one for each residue of the
// position: its pixels meet every s-th tap, and no other is multiplied.
#pragma once

#include <algorithm>
#include <climits>
#include <numeric>

#include "ops/conv.h"

namespace dlkern::gpu {

// Along one dimension: the pixels of the result and the taps that they meet.
struct Axis {
  int64_t lower, step, count;         // of the pixels, in the image
  int64_t taps, first_tap, tap_step;  // of the filter's
  int64_t offset;                     // of neighbouring taps, in the image
};

inline Axis forward_axis(const Window& w, int64_t out) {
  return {-w.pad_begin, w.stride, out, w.kernel, 0, 1, w.dilation};
}
// Pixels residue, residue + stride, ... of the input gradient. No taps: they are zeros.
inline Axis gradient_axis(const Window& w, int64_t in, int64_t residue) {
  const int64_t common = std::gcd(w.stride, w.dilation), step = w.stride / common;
  const int64_t count = ceil_div(in - residue, w.stride), at = residue + w.pad_begin;
  for (int64_t first = 0; first < std::min(step, w.kernel); ++first) {
    if ((at - first * w.dilation) % w.stride != 0) continue;
    const int64_t taps = (w.kernel - 1 - first) / step + 1, last = first + (taps - 1) * step;
    return {(at - last * w.dilation) / w.stride, 1, count, taps, last, -step, w.dilation / common};
  }
  return {0, 1, count, 0, 0, 0, 0};
}

struct Axes {
  Axis axis[3];  // w, h, d

  bool has_taps() const { return axis[0].taps && axis[1].taps && axis[2].taps; }
  int64_t pixels(int64_t n) const { return n * axis[0].count * axis[1].count * axis[2].count; }
};

// nullptr where all positions that a window reaches, padding included, count in 32 bits.
inline const char* fits(const ConvGeometry& g) {
  for (int d = 0; d < 3; ++d) {
    const Window& w = g.window[d];
    const int64_t reach = w.start(std::max<int64_t>(g.out[d], 1) - 1) + w.span();
    if (std::max({reach, g.in[d], g.out[d]}) + w.pad_begin > INT_MAX || w.stride > INT_MAX ||
        w.dilation > INT_MAX) {
      return "a spatial extent with its padding is 2^31 or more";
    }
  }
  return nullptr;
}

inline Axes forward_axes(const ConvGeometry& g) {
  Axes axes;
  for (int i = 0; i < 3; ++i) axes.axis[i] = forward_axis(g.window[2 - i], g.out[2 - i]);
  return axes;
}

// The convolutions that make up the problem: f(axes, pixels of the result).
template <class F>
void for_each_axes(const ConvProblem& p, bool inverse, F&& f) {
  const ConvGeometry& g = p.geometry;
  Axes axes, result;
  if (!inverse) {
    for (int i = 0; i < 3; ++i) result.axis[i] = {0, 1, g.out[2 - i]};
    return f(forward_axes(g), result);
  }
  int64_t residues[3];
  for (int i = 0; i < 3; ++i) residues[i] = std::min(g.window[2 - i].stride, g.in[2 - i]);
  for (int64_t number = 0; number < residues[0] * residues[1] * residues[2]; ++number) {
    const int64_t residue[3] = {number % residues[0], number / residues[0] % residues[1],
                                number / (residues[0] * residues[1])};
    for (int i = 0; i < 3; ++i) {
      const Window& w = g.window[2 - i];
      axes.axis[i] = gradient_axis(w, g.in[2 - i], residue[i]);
      result.axis[i] = {residue[i], w.stride, axes.axis[i].count};
    }
    f(axes, result);
  }
}

}  // namespace dlkern::gpu
