// What follows a convolution's sums on the CPU: ops/conv.h, ConvEpilogue.
#pragma once

#include <optional>
#include <vector>

#include "core/activation_math.h"
#include "core/fast_math.h"
#include "core/mixed.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/spans.h"
#include "ops/conv.h"

namespace dlkern::cpu {

// The element-wise work, bias included, on spans of sums that are still in the accumulation type.
template <class T>
class ConvFinish {
 public:
  using Acc = Accumulator<T>;

  // channels: of the result.
  ConvFinish(const ConvProblem& p, int64_t channels)
      : e_(p.epilogue),
        scale_(vector_of(p.epilogue.scale, channels, 1)),
        bias_(vector_of(p.bias, channels, 0)) {}

  // v[i], i < n, in place: of channel c, or with kAcross of channel c + i. residual, pre: where v[0] has
  // its own, and from element to element; nullptr where absent.
  template <bool kAcross>
  void span(Acc* v, int64_t n, int64_t c, const T* residual, int64_t residual_step, T* pre,
            int64_t pre_step) const {
    constexpr int kStep = kAcross ? 1 : 0;
    Acc buffer[kSpan];
    for (int64_t first = 0; first < n; first += kSpan, v += kSpan, c += kStep * kSpan) {
      const int64_t some = std::min(n - first, kSpan);
      const Acc *scale = &scale_[c], *bias = &bias_[c];
      DLK_SIMD
      for (int64_t i = 0; i < some; ++i) v[i] = v[i] * scale[i * kStep] + bias[i * kStep];
      if (residual) {
        const Acc* r = read_span(residual + first * residual_step, residual_step, some, buffer);
        DLK_SIMD
        for (int64_t i = 0; i < some; ++i) v[i] += r[i];
      }
      if (pre) store_span(v, pre + first * pre_step, pre_step, some);
      activate(v, some);
    }
  }
  // The same by position: v[0] is channel c of pixel o of an image, and others follow along the last
  // dimension, `step` pixels apart, or with kAcross along channels.
  template <bool kAcross>
  void pixels(Acc* v, int64_t n, int64_t image, int64_t c, const int64_t (&o)[3],
              int64_t step = 1) const {
    const ConvImageStrides &r = e_.residual_strides, &s = e_.pre_strides;
    const auto place = [&](const Tensor& t, const ConvImageStrides& strides) -> T* {
      if (!t) return nullptr;
      return t.as<T>() + image * strides.n + c * strides.c + o[0] * strides.spatial[0] +
             o[1] * strides.spatial[1] + o[2] * strides.spatial[2];
    };
    span<kAcross>(v, n, c, place(e_.residual, r), kAcross ? r.c : step * r.spatial[2],
                  place(e_.pre, s), kAcross ? s.c : step * s.spatial[2]);
  }

 private:
  static std::vector<Acc> vector_of(const Tensor& t, int64_t channels, Acc absent) {
    std::vector<Acc> v(channels, absent);
    const MixedView<T> view(t);
    for (int64_t c = 0; view && c < channels; ++c) v[c] = view.load(c);
    return v;
  }
  void activate(Acc* v, int64_t n) const {
    if (e_.activation == DLK_ACTIVATION_NONE) return;
    const ActivationScalars<Acc> scalars(e_.activation_alpha, e_.activation_threshold);
    dispatch_activation(e_.activation, [&]<dlk_activation kKind>() {
      DLK_SIMD
      for (int64_t i = 0; i < n; ++i) v[i] = activation_forward<kKind, FastMath>(v[i], scalars);
    });
  }

  const ConvEpilogue& e_;
  std::vector<Acc> scale_, bias_;
};

// Where there is more to do than to let the sums begin with a bias.
template <class T>
std::optional<ConvFinish<T>> conv_finish_of(const ConvProblem& p, int64_t channels) {
  std::optional<ConvFinish<T>> finish;
  if (p.is_fused()) finish.emplace(p, channels);
  return finish;
}

// mean and var of `result`.
void conv_moments(const ConvProblem& p, const Tensor& result);

}  // namespace dlkern::cpu
