// Convolution on the CPU: which implementation takes which problem.
#include "cpu/conv.h"

#include "cpu/conv_epilogue.h"

namespace dlkern {
namespace cpu {

ConvProblem conv_input_gradient_as_forward(const ConvProblem& p) {
  ConvProblem f = p;
  std::swap(f.x, f.y);
  std::swap(f.x_strides, f.y_strides);
  ConvGeometry& g = f.geometry;
  std::swap(g.c, g.k);
  std::swap(f.w_strides.c, f.w_strides.k);
  int64_t last_tap = 0;
  for (int s = 0; s < 3; ++s) {
    std::swap(g.in[s], g.out[s]);
    Window& w = g.window[s];
    w.pad_begin = w.span() - 1 - w.pad_begin;
    last_tap += (w.kernel - 1) * f.w_strides.taps[s];
    f.w_strides.taps[s] = -f.w_strides.taps[s];
  }
  if (f.w.data) {
    f.w.data = f.w.as<char>() + last_tap * static_cast<int64_t>(dtype_size(f.w.dtype));
  }
  return f;
}

}  // namespace cpu

namespace {

using namespace cpu;

bool has_unit_stride(const ConvGeometry& g) {
  return g.window[0].stride == 1 && g.window[1].stride == 1 && g.window[2].stride == 1;
}

template <class Problem>
const char* direct_declines(const Problem& p) {
  return conv_direct_declines(p);
}

// Implementations do what follows the sums, but for the statistics, which need all of the result.
void moments_if_wanted(const ConvProblem& p, const Tensor& result) {
  if (p.epilogue.has_moments()) conv_moments(p, result);
}

constexpr Impl<ConvForward> kForward[] = {
    {"cpu_direct", direct_declines, nullptr,
     [](const ConvForward& p, const Launch&) {
       conv_direct(p, false);
       moments_if_wanted(p, p.y);
     }},
    {"cpu_gemm", supports_all, nullptr,
     [](const ConvForward& p, const Launch&) {
       conv_gemm_forward(p);
       moments_if_wanted(p, p.y);
     }},
};

constexpr Impl<ConvBackwardInput> kBackwardInput[] = {
    {"cpu_direct", direct_declines, nullptr,
     [](const ConvBackwardInput& p, const Launch&) {
       conv_direct(p, true);
       moments_if_wanted(p, p.x);
     }},
    {"cpu_reversed_gemm",
     [](const ConvBackwardInput& p) -> const char* {
       const ConvGeometry& g = p.geometry;
       if (!has_unit_stride(g)) return "the stride is not 1";
       // The patches of dy would be larger than those of dx.
       if (g.k > 2 * g.c && g.taps() > 1) return "dy has many more channels than dx";
       return nullptr;
     },
     nullptr,
     [](const ConvBackwardInput& p, const Launch&) {
       conv_gemm_forward(conv_input_gradient_as_forward(p));
       moments_if_wanted(p, p.x);
     }},
    {"cpu_gemm", supports_all, nullptr,
     [](const ConvBackwardInput& p, const Launch&) {
       conv_gemm_backward_input(p);
       moments_if_wanted(p, p.x);
     }},
};

constexpr Impl<ConvBackwardWeight> kBackwardWeight[] = {
    {"cpu_direct", direct_declines, nullptr,
     [](const ConvBackwardWeight& p, const Launch&) {
       if (p.w.numel() > 0) conv_direct_backward_weight(p);
       if (p.bias) conv_bias_gradient(p);
     }},
    {"cpu_gemm", supports_all, nullptr,
     [](const ConvBackwardWeight& p, const Launch&) {
       if (p.w.numel() > 0) conv_gemm_backward_weight(p);
       if (p.bias) conv_bias_gradient(p);
     }},
};

}  // namespace

template <>
ImplList<ConvForward> cpu_impls<ConvForward>() {
  return kForward;
}
template <>
ImplList<ConvBackwardInput> cpu_impls<ConvBackwardInput>() {
  return kBackwardInput;
}
template <>
ImplList<ConvBackwardWeight> cpu_impls<ConvBackwardWeight>() {
  return kBackwardWeight;
}

}  // namespace dlkern
