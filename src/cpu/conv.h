// The implementations behind the lists of src/cpu/conv.cpp.
#pragma once

#include "ops/conv.h"

namespace dlkern::cpu {

// Any problem, by matrix products.
void conv_gemm_forward(const ConvProblem& p);
void conv_gemm_backward_input(const ConvProblem& p);
void conv_gemm_backward_weight(const ConvProblem& p);

// Groups of a few channels, tap by tap. inverse: x from y, else y from x. conv_direct_declines: why
// not, or nullptr.
const char* conv_direct_declines(const ConvProblem& p);
void conv_direct(const ConvProblem& p, bool inverse);
void conv_direct_backward_weight(const ConvProblem& p);

// backward_weight: p.bias = the gradient summed over batch and positions.
void conv_bias_gradient(const ConvProblem& p);

// For a stride of 1 the input gradient is itself a convolution of dy, with the taps reversed and the
// channels of the weights exchanged. Returns it as the forward problem that computes p.x.
ConvProblem conv_input_gradient_as_forward(const ConvProblem& p);

}  // namespace dlkern::cpu
