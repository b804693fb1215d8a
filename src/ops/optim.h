#pragma once

#include <cmath>
#include <vector>

#include "core/call.h"
#include "core/fast_math.h"
#include "core/index.h"
#include "core/tensor.h"

namespace dlkern {

// A number in the memory of the tensors' device, read when the kernel runs. An absent one is false.
struct Scalar {
  const void* data = nullptr;
  bool is_64_bit = false;

  Scalar() = default;
  explicit Scalar(const Tensor& t) : data(t.data), is_64_bit(dtype_size(t.dtype) == 8) {}
  DLK_HD explicit operator bool() const { return data != nullptr; }
  template <class Acc>
  DLK_HD Acc real() const {
    return static_cast<Acc>(is_64_bit ? *static_cast<const double*>(data)
                                      : *static_cast<const float*>(data));
  }
  DLK_HD int64_t integer() const {
    return is_64_bit ? *static_cast<const int64_t*>(data) : *static_cast<const int32_t*>(data);
  }
  template <class T>
  DLK_HD void set(T value) const {  // real for floating T, else integer
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    using Narrow = std::conditional_t<std::is_floating_point_v<T>, float, int32_t>;
    if (is_64_bit) {
      *static_cast<Wide*>(const_cast<void*>(data)) = static_cast<Wide>(value);
    } else {
      *static_cast<Narrow*>(const_cast<void*>(data)) = static_cast<Narrow>(value);
    }
  }
};

// What a step is told of by the device.
struct StepScalars {
  Scalar lr, step, grad_scale, found_inf;
  bool maximize = false;

  DLK_HD bool skips() const { return found_inf && found_inf.real<float>() != 0; }
  // What gradients are multiplied by first.
  template <class Acc>
  DLK_HD Acc grad_factor() const {
    const Acc scale = grad_scale ? grad_scale.real<Acc>() : Acc(1);
    return maximize ? -scale : scale;
  }
};

// The arrays of one item of a step's lists.
enum StepRole { kParam, kGrad, kCopy, kState, kStepRoles = kState + 3 };

struct StepItem {
  void* data[kStepRoles] = {};  // nullptr: absent
  DType dtype[kStepRoles] = {};
  int64_t numel = 0;
  int layout = -1;  // in StepLists::layouts; -1: all arrays are flat in the same order
};

struct StepLists {
  std::vector<StepItem> items;
  std::vector<StridedIndex<kStepRoles>> layouts;
  StepScalars scalars;
};

struct SgdStep : StepLists {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, first_step;
};

struct AdamwStep : StepLists {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;
  bool l2, amsgrad;
};

struct LionStep : StepLists {
  double lr, beta1, beta2, weight_decay;
};

struct GradNorm {
  std::vector<Tensor> grads;
  Tensor loss_scale, norm, grad_scale, found_inf;  // all but norm may be absent
  double max_norm, ord;
};

struct ScaleGrads {
  std::vector<Tensor> grads;
  Tensor scale, found_inf;  // found_inf may be absent
};

struct UpdateLossScale {
  Tensor loss_scale, growth_tracker, found_inf, step;  // step may be absent
  int64_t growth_interval;
  double growth_factor, backoff_factor;
};

template <>
ImplList<SgdStep> cpu_impls<SgdStep>();
template <>
ImplList<AdamwStep> cpu_impls<AdamwStep>();
template <>
ImplList<LionStep> cpu_impls<LionStep>();
template <>
ImplList<GradNorm> cpu_impls<GradNorm>();
template <>
ImplList<ScaleGrads> cpu_impls<ScaleGrads>();
template <>
ImplList<UpdateLossScale> cpu_impls<UpdateLossScale>();
template <>
ImplList<SgdStep> gpu_impls<SgdStep>();
template <>
ImplList<AdamwStep> gpu_impls<AdamwStep>();
template <>
ImplList<LionStep> gpu_impls<LionStep>();
template <>
ImplList<GradNorm> gpu_impls<GradNorm>();
template <>
ImplList<ScaleGrads> gpu_impls<ScaleGrads>();
template <>
ImplList<UpdateLossScale> gpu_impls<UpdateLossScale>();

// Roundings as they are written, so that all kernels of a GPU have the same bits: compilers choose
// freely which product of a sum to fuse with it.
DLK_HD float product(float a, float b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
DLK_HD double product(double a, double b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
// a b + c
DLK_HD float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return ::fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
DLK_HD double fused(double a, double b, double c) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return ::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// ---- Rules: one element's update; the loops around it are the backends' --------------------------
//
// A rule has a constructor from its problem, kStates, read() for numbers that lie in device memory,
// and operator()(param, gradient, states...), where the gradient is scaled, and negated, already.

// SGD without momentum.
template <class Acc>
struct SgdRule {
  static constexpr int kStates = 0;
  Acc lr, weight_decay;

  explicit SgdRule(const SgdStep& p)
      : lr(static_cast<Acc>(p.lr)), weight_decay(static_cast<Acc>(p.weight_decay)) {}

  DLK_HD void read(const StepScalars& s) {
    if (s.lr) lr = s.lr.real<Acc>();
  }
  DLK_HD void operator()(Acc& param, Acc grad) const {
    param = fused(-lr, descent(param, grad), param);
  }
  DLK_HD Acc descent(Acc param, Acc grad) const {
    return weight_decay != 0 ? fused(weight_decay, param, grad) : grad;
  }
};

template <class Acc>
struct MomentumRule : SgdRule<Acc> {
  static constexpr int kStates = 1;
  Acc momentum, undamped;
  bool nesterov, first_step;

  explicit MomentumRule(const SgdStep& p)
      : SgdRule<Acc>(p),
        momentum(static_cast<Acc>(p.momentum)),
        undamped(static_cast<Acc>(1 - p.dampening)),
        nesterov(p.nesterov),
        first_step(p.first_step) {}

  DLK_HD void operator()(Acc& param, Acc grad, Acc& buffer) const {
    const Acc g = this->descent(param, grad);
    buffer = first_step ? g : fused(momentum, buffer, undamped * g);
    param = fused(-this->lr, nesterov ? fused(momentum, buffer, g) : buffer, param);
  }
};

template <class Acc, bool kAmsgrad>
struct AdamRule {
  static constexpr int kStates = kAmsgrad ? 3 : 2;
  Acc lr, beta2, eps, weight_decay, decay;
  Acc new1, new2;  // weight of the new gradient in each average
  Acc log_beta1, log_beta2;
  Acc correction, root_scale;  // of the averages, for the zeros that they began with
  bool l2;

  explicit AdamRule(const AdamwStep& p)
      : lr(static_cast<Acc>(p.lr)),
        beta2(static_cast<Acc>(p.beta2)),
        eps(static_cast<Acc>(p.eps)),
        weight_decay(static_cast<Acc>(p.weight_decay)),
        decay(static_cast<Acc>(p.l2 ? 1 : 1 - p.lr * p.weight_decay)),
        new1(static_cast<Acc>(1 - p.beta1)),
        new2(static_cast<Acc>(1 - p.beta2)),
        log_beta1(static_cast<Acc>(std::log(p.beta1))),
        log_beta2(static_cast<Acc>(std::log(p.beta2))),
        l2(p.l2) {
    set_step(p.step);
  }

  DLK_HD void read(const StepScalars& s) {
    if (s.lr) {
      lr = s.lr.real<Acc>();
      decay = l2 ? Acc(1) : 1 - lr * weight_decay;
    }
    if (s.step) set_step(s.step.integer());
  }
  DLK_HD void operator()(Acc& param, Acc grad, Acc& exp_avg, Acc& exp_avg_sq) const {
    average(param, grad, exp_avg, exp_avg_sq);
    update(param, exp_avg, exp_avg_sq);
  }
  DLK_HD void operator()(Acc& param, Acc grad, Acc& exp_avg, Acc& exp_avg_sq,
                         Acc& max_exp_avg_sq) const {
    average(param, grad, exp_avg, exp_avg_sq);
    const bool stays = max_exp_avg_sq > exp_avg_sq || max_exp_avg_sq != max_exp_avg_sq;  // or NaN
    max_exp_avg_sq = stays ? max_exp_avg_sq : exp_avg_sq;
    update(param, exp_avg, max_exp_avg_sq);
  }

 private:
  DLK_HD void average(Acc param, Acc grad, Acc& exp_avg, Acc& exp_avg_sq) const {
    const Acc g = l2 ? fused(weight_decay, param, grad) : grad;
    exp_avg = fused(new1, g - exp_avg, exp_avg);
    exp_avg_sq = fused(beta2, exp_avg_sq, new2 * g * g);
  }
  DLK_HD void update(Acc& param, Acc exp_avg, Acc square) const {
    const Acc root = fused(sqrt_fast(square), root_scale, eps);
    param = fused(param, decay, (-lr * correction) * exp_avg * reciprocal_fast(root));
  }
  // 1 - beta^t as -expm1(t log beta): no digits are lost where beta^t is close to 1.
  DLK_HD void set_step(int64_t t) {
    correction = 1 / -expm1(static_cast<Acc>(t) * log_beta1);
    root_scale = 1 / sqrt(-expm1(static_cast<Acc>(t) * log_beta2));
  }
  static DLK_HD float expm1(float x) { return ::expm1f(x); }
  static DLK_HD double expm1(double x) { return ::expm1(x); }
  static DLK_HD float sqrt(float x) { return ::sqrtf(x); }
  static DLK_HD double sqrt(double x) { return ::sqrt(x); }
};

template <class Acc>
struct LionRule {
  static constexpr int kStates = 1;
  Acc lr, weight_decay, decay, beta1, beta2, new1, new2;

  explicit LionRule(const LionStep& p)
      : lr(static_cast<Acc>(p.lr)),
        weight_decay(static_cast<Acc>(p.weight_decay)),
        decay(static_cast<Acc>(1 - p.lr * p.weight_decay)),
        beta1(static_cast<Acc>(p.beta1)),
        beta2(static_cast<Acc>(p.beta2)),
        new1(static_cast<Acc>(1 - p.beta1)),
        new2(static_cast<Acc>(1 - p.beta2)) {}

  DLK_HD void read(const StepScalars& s) {
    if (!s.lr) return;
    lr = s.lr.real<Acc>();
    decay = 1 - lr * weight_decay;
  }
  DLK_HD void operator()(Acc& param, Acc grad, Acc& exp_avg) const {
    const Acc direction = fused(beta1, exp_avg, new1 * grad);
    const Acc sign = direction > 0 ? Acc(1) : direction < 0 ? Acc(-1) : direction;  // NaN stays
    param = fused(param, decay, -lr * sign);
    exp_avg = fused(beta2, exp_avg, new2 * grad);
  }
};

// f(rule) with the rule of a problem; Acc: float or double.
template <class Acc, class F>
void with_rule(const SgdStep& p, F&& f) {
  if (p.momentum != 0) {
    f(MomentumRule<Acc>(p));
  } else {
    f(SgdRule<Acc>(p));
  }
}
template <class Acc, class F>
void with_rule(const AdamwStep& p, F&& f) {
  if (p.amsgrad) {
    f(AdamRule<Acc, true>(p));
  } else {
    f(AdamRule<Acc, false>(p));
  }
}
template <class Acc, class F>
void with_rule(const LionStep& p, F&& f) {
  f(LionRule<Acc>(p));
}

// ---- Shared by the backends ----------------------------------------------------------------------

// What gradients add to their norm, by its order: 1, 2, another one, infinity.
enum class NormTerm { kSize, kSquare, kPower, kLargest };

// f.template operator()<kTerm>() with the term of a norm.
template <class F>
void with_norm_term(double ord, F&& f) {
  if (ord == 1) return f.template operator()<NormTerm::kSize>();
  if (ord == 2) return f.template operator()<NormTerm::kSquare>();
  if (ord == INFINITY) return f.template operator()<NormTerm::kLargest>();
  f.template operator()<NormTerm::kPower>();
}

// The terms of gradients, and what they come to; NaN stays.
template <NormTerm kTerm, class Acc>
DLK_HD Acc norm_term(Acc grad, Acc ord) {
  if constexpr (kTerm == NormTerm::kSquare) return grad * grad;
  if constexpr (kTerm == NormTerm::kPower) return ::pow(::fabs(grad), ord);
  return ::fabs(grad);
}
template <NormTerm kTerm>
struct JoinTerms {
  template <class Acc>
  DLK_HD Acc operator()(Acc a, Acc b) const {
    if constexpr (kTerm != NormTerm::kLargest) return a + b;
    return a >= b || a != a ? a : b;
  }
};

// What dlk_grad_norm writes, from all terms.
struct NormResults {
  Scalar loss_scale, norm, grad_scale, found_inf;
  double max_norm, ord;

  explicit NormResults(const GradNorm& p)
      : loss_scale(p.loss_scale),
        norm(p.norm),
        grad_scale(p.grad_scale),
        found_inf(p.found_inf),
        max_norm(p.max_norm),
        ord(p.ord) {}
  DLK_HD double root(double terms) const {
    if (ord == 2) return ::sqrt(terms);
    return ord == 1 || ord == INFINITY ? terms : ::pow(terms, 1 / ord);
  }
  DLK_HD void set(double terms) const {
    const double unscale = loss_scale ? 1 / loss_scale.real<double>() : 1.0;
    const double total = root(terms) * unscale;
    const bool is_finite = ::fabs(total) < INFINITY;
    double clip = 1;
    if (max_norm < INFINITY) {
      clip = max_norm / (total + 1e-6);
      if (clip > 1) clip = 1;  // NaN stays
    }
    norm.set(total);
    if (grad_scale) grad_scale.set(clip * unscale);
    if (found_inf) found_inf.set(is_finite ? 0.0 : 1.0);
  }
};

// The update of dlk_update_loss_scale.
struct LossScaleRule {
  Scalar loss_scale, growth_tracker, found_inf, step;
  int64_t growth_interval;
  double growth_factor, backoff_factor;

  explicit LossScaleRule(const UpdateLossScale& p)
      : loss_scale(p.loss_scale),
        growth_tracker(p.growth_tracker),
        found_inf(p.found_inf),
        step(p.step),
        growth_interval(p.growth_interval),
        growth_factor(p.growth_factor),
        backoff_factor(p.backoff_factor) {}
  DLK_HD void operator()() const {
    const double scale = loss_scale.real<double>();
    if (found_inf.real<float>() != 0) {
      loss_scale.set(scale * backoff_factor);
      growth_tracker.set(int64_t{0});
      return;
    }
    if (step) step.set(step.integer() + 1);
    const int64_t good = growth_tracker.integer() + 1;
    growth_tracker.set(good < growth_interval ? good : int64_t{0});
    if (good < growth_interval) return;
    const double grown = scale * growth_factor;
    const double largest = loss_scale.is_64_bit ? 1.7976931348623157e308 : 3.4028234663852886e38;
    if (grown <= largest) loss_scale.set(grown);
  }
};

}  // namespace dlkern
