#pragma once

#include <dlkern/activation.h>

#include <cstdlib>

#include "core/call.h"
#include "core/tensor.h"
#include "core/window.h"
#include "ops/gemm.h"

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

// What becomes of the sums of a forward call, transposed or not, beside a bias. k: channels of the
// result, all of them.
//
//     pre = scale[k] sum + bias[k] + residual,  y = activation(pre)
//     mean[k], var[k] = of y as it is stored, over batch and positions; var divides by their number
//
// Tensors may be absent. scale, and the problem's bias beside it, have the dtype of y or the one that
// is summed in; residual and pre (an output) are like y; mean and var (both or neither) are in the
// type that is summed in.
struct ConvEpilogue {
  Tensor scale, residual, pre, mean, var;
  ConvImageStrides residual_strides{}, pre_strides{};
  int channel = 0;  // the dimension of the result's channels
  dlk_activation activation = DLK_ACTIVATION_NONE;
  double activation_alpha = 1, activation_threshold = 20;

  bool has_moments() const { return bool(mean); }
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
  ConvEpilogue epilogue;

  // Whether there is more to do than to add a bias of the others' dtype.
  bool is_fused() const {
    const ConvEpilogue& e = epilogue;
    return e.scale || e.residual || e.pre || e.has_moments() ||
           e.activation != DLK_ACTIVATION_NONE || (bias && bias.dtype != x.dtype);
  }
};

// For implementations that add a bias alone.
inline const char* fused_work_declines(const ConvProblem& p) {
  return p.is_fused() ? "does nothing beside a bias" : nullptr;
}

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

// The forward convolution of 8-bit numbers: x and w both int8, or both of float8 of either kind.
//     out = activation(scale_x scale_w[k] sum + bias[k]),    y = out * scale_y, rounded once
// x, w, y and bias have dtypes of their own. Of ConvEpilogue it has the activation alone.
struct ScaledConv : ConvProblem {
  const float* scale_x = nullptr;  // optional, one number
  Scale scale_w;                   // a row for each output channel, over all groups
  const float* scale_y = nullptr;  // as in Epilogue
  float* amax = nullptr;
};

// The end of its sums as that of a matrix product, of pixels by channels or of channels by pixels:
// scales and epilogue. Channels count over all groups, and pixels have no stride: where one lies in y
// is for the caller to add.
Gemm scaled_conv_output(const ScaledConv& p, bool channels_are_columns);

template <>
ImplList<ScaledConv> cpu_impls<ScaledConv>();
template <>
ImplList<ScaledConv> gpu_impls<ScaledConv>();
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
