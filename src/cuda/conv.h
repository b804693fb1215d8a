// The convolutions of the GPU backend. Each kind of kernel has files of its own; conv.cu lists all,
// best first.
#pragma once

#include "ops/conv.h"

namespace dlkern {

// wgmma with TMA, compute capability 9.0.
ImplList<ConvForward> conv_forward_sm90_impls();
ImplList<ConvBackwardInput> conv_backward_input_sm90_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_sm90_impls();
// The same for a first layer's few channels.
ImplList<ConvForward> conv_forward_few_channels_sm90_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_few_channels_sm90_impls();
// One channel in each group.
ImplList<ConvForward> conv_forward_depthwise_impls();
ImplList<ConvBackwardInput> conv_backward_input_depthwise_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_depthwise_impls();
// One tap that moves nowhere: the matrix products of gemm.h.
ImplList<ConvForward> conv_forward_pointwise_impls();
ImplList<ConvBackwardInput> conv_backward_input_pointwise_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_pointwise_impls();
// mma.sync with cp.async, compute capability 8.0 and newer.
ImplList<ConvForward> conv_forward_sm80_impls();
ImplList<ConvBackwardInput> conv_backward_input_sm80_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_sm80_impls();
// Multiply-adds of any GPU, for every problem.
ImplList<ConvForward> conv_forward_simt_impls();
ImplList<ConvBackwardInput> conv_backward_input_simt_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_simt_impls();

// The forward convolution of 8-bit numbers by wgmma: of images as they lie, then of copied ones.
ImplList<ScaledConv> conv_scaled_sm90_impls();

namespace gpu {

// A forward convolution of one tap that moves nowhere as a matrix product, of pixels by channels where
// channels lie last, else of channels by pixels; groups, then images are its batch. Returns why it is
// none, or nullptr.
const char* pointwise_product(const ConvProblem& p, Gemm& g);

// The gradient of a bias, which the problem has.
void add_bias_gradient(const ConvProblem& p, const Launch& launch);

}  // namespace gpu
}  // namespace dlkern
