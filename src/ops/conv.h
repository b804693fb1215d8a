#pragma once

#include <cstdlib>

#include "core/call.h"
#include "core/tensor.h"
#include "core/window.h"

namespace dlkern {

// A convolution and its transpose are one set of sums over the same three tensors; they differ in
// which of the three is computed:
//     kForward          y = w * x    (transposed: the gradient of its input)
//     kBackwardInput    x from y, w  (transposed: its forward)
//     kBackwardWeight   w from x, y
enum class ConvDirection { kForward, kBackwardInput, kBackwardWeight };

// The extents, always with three spatial dimensions: missing ones come first, with extent 1 and the
// default window. Channels are counted per group.
struct ConvGeometry {
  int64_t batch, groups;
  int64_t c, k;  // channels of x and of y in one group
  int64_t in[3], out[3];
  Window window[3];

  DLK_HD int64_t in_count() const { return in[0] * in[1] * in[2]; }
  DLK_HD int64_t out_count() const { return out[0] * out[1] * out[2]; }
  DLK_HD int64_t taps() const { return window[0].kernel * window[1].kernel * window[2].kernel; }
};

// Strides in elements. Group g of x starts at channel g * c, of y at channel g * k.
struct ConvImageStrides {
  int64_t n, c, spatial[3];
};
struct ConvWeightStrides {
  int64_t group, k, c, taps[3];
};

struct ConvProblem {
  ConvGeometry geometry;
  Tensor x, y, w;
  ConvImageStrides x_strides, y_strides;
  ConvWeightStrides w_strides;
  // Forward, backward_input: added to the result's channels. backward_weight: an output, the sum of
  // the gradient over batch and positions. May be absent.
  Tensor bias;
  bool transposed;  // backward_weight: bias belongs to the channels of x, not of y
  bool accumulate;  // backward_weight
  dlk_precision precision;
};

// Whether channels lie closer together in memory than neighbouring pixels do: which way loops, or the
// threads of a warp, should run. Strides decide, not the layout that the caller named.
inline bool channels_last(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  const bool by_x = g.groups * g.c > 1;
  const ConvImageStrides& s = by_x ? p.x_strides : p.y_strides;
  return (by_x || g.groups * g.k > 1) && std::abs(s.c) < std::abs(s.spatial[2]);
}

template <ConvDirection kDirection>
struct Conv : ConvProblem {};
using ConvForward = Conv<ConvDirection::kForward>;
using ConvBackwardInput = Conv<ConvDirection::kBackwardInput>;
using ConvBackwardWeight = Conv<ConvDirection::kBackwardWeight>;

template <>
ImplList<ConvForward> cpu_impls<ConvForward>();
template <>
ImplList<ConvBackwardInput> cpu_impls<ConvBackwardInput>();
template <>
ImplList<ConvBackwardWeight> cpu_impls<ConvBackwardWeight>();
template <>
ImplList<ConvForward> gpu_impls<ConvForward>();
template <>
ImplList<ConvBackwardInput> gpu_impls<ConvBackwardInput>();
template <>
ImplList<ConvBackwardWeight> gpu_impls<ConvBackwardWeight>();

}  // namespace dlkern
