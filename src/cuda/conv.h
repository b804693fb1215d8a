// The convolutions of the GPU backend. Each kind of kernel has files of its own; conv.cu lists all,
// best first.
#pragma once

#include "ops/conv.h"

namespace dlkern {

// wgmma with TMA, compute capability 9.0.
ImplList<ConvForward> conv_forward_sm90_impls();
ImplList<ConvBackwardInput> conv_backward_input_sm90_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_sm90_impls();
// Of float32 as bfloat16 planes; gradients of weights are among those above.
ImplList<ConvForward> conv_forward_planes_sm90_impls();
ImplList<ConvBackwardInput> conv_backward_input_planes_sm90_impls();
// The same for a first layer's few channels.
ImplList<ConvForward> conv_forward_few_channels_sm90_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_few_channels_sm90_impls();
// One channel in each group, channels last.
ImplList<ConvForward> conv_forward_depthwise_impls();
ImplList<ConvBackwardInput> conv_backward_input_depthwise_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_depthwise_impls();
// The same, channels not last.
ImplList<ConvForward> conv_forward_depthwise_planes_impls();
ImplList<ConvBackwardInput> conv_backward_input_depthwise_planes_impls();
// Many groups of a few channels each, by the tensor cores or by multiply-adds, compute capability 8.0
// and newer.
ImplList<ConvForward> conv_forward_groups_impls();
ImplList<ConvBackwardInput> conv_backward_input_groups_impls();
ImplList<ConvBackwardWeight> conv_backward_weight_groups_impls();
// Gradients of a few channels by mma.sync, compute capability 8.0.
ImplList<ConvBackwardInput> conv_backward_input_few_channels_impls();
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
// What kernels do not do beside the sums, behind them, for every problem that has such work.
ImplList<ConvForward> conv_forward_passes_impls();
ImplList<ConvBackwardInput> conv_backward_input_passes_impls();

// The forward convolution of 8-bit numbers by wgmma: of images as they lie, then of copied ones.
ImplList<ScaledConv> conv_scaled_sm90_impls();

namespace gpu {

// A forward convolution of one tap that moves nowhere as a matrix product, of pixels by channels where
// channels lie last, else of channels by pixels; groups, then images are its batch. Returns why it is
// none, or nullptr.
const char* pointwise_product(const ConvProblem& p, Gemm& g);

// The gradient of a bias, which the problem has. It takes the workspace from its begin, where whatever
// else lay is lost; conv.cu sees to it that there is room.
void add_bias_gradient(const ConvProblem& p, const Launch& launch);
size_t bias_gradient_workspace_bytes(const ConvProblem& p);

// Float32 by multiply-adds, if *condition (on the device) is not 0: forward or (inverse) the input
// gradient, and the gradient of the weights without that of a bias, which takes workspace.
void run_simt_if(const ConvProblem& p, bool inverse, const int* condition, const Launch& launch);
void run_weights_simt_if(const ConvProblem& p, const int* condition, const Launch& launch);
size_t weights_simt_workspace_bytes(const ConvProblem& p);

}  // namespace gpu
}  // namespace dlkern
