#pragma once

#include <cmath>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

struct SgdStep {
  Tensor param, grad, buffer;  // buffer absent: no momentum
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize, first_step;
};

struct AdamwStep {
  Tensor param, grad, exp_avg, exp_avg_sq;
  Tensor step_tensor;  // absent: the number `step`
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;
  bool maximize;
};

template <>
ImplList<SgdStep> cpu_impls<SgdStep>();
template <>
ImplList<AdamwStep> cpu_impls<AdamwStep>();
template <>
ImplList<SgdStep> gpu_impls<SgdStep>();
template <>
ImplList<AdamwStep> gpu_impls<AdamwStep>();

// One element's update; the loops around it are the backends'.
template <class Acc>
struct SgdRule {
  Acc lr, momentum, undamped, weight_decay;
  bool has_momentum, nesterov, maximize, first_step;

  explicit SgdRule(const SgdStep& p)
      : lr(static_cast<Acc>(p.lr)),
        momentum(static_cast<Acc>(p.momentum)),
        undamped(static_cast<Acc>(1 - p.dampening)),
        weight_decay(static_cast<Acc>(p.weight_decay)),
        has_momentum(p.buffer.present),
        nesterov(p.nesterov),
        maximize(p.maximize),
        first_step(p.first_step) {}

  DLK_HD void operator()(Acc& param, Acc grad, Acc& buffer) const {
    const Acc g = descent(param, grad);
    buffer = first_step ? g : momentum * buffer + undamped * g;
    param -= lr * (nesterov ? g + momentum * buffer : buffer);
  }
  DLK_HD void operator()(Acc& param, Acc grad) const { param -= lr * descent(param, grad); }

 private:
  DLK_HD Acc descent(Acc param, Acc grad) const {
    const Acc g = maximize ? -grad : grad;
    return weight_decay != 0 ? g + weight_decay * param : g;
  }
};

template <class Acc>
struct AdamwRule {
  Acc lr, beta2, eps, decay;
  Acc new1, new2;  // weight of the new gradient in each average
  Acc log_beta1, log_beta2;
  Acc step_size, root_scale;  // set by set_step
  bool maximize;

  explicit AdamwRule(const AdamwStep& p)
      : lr(static_cast<Acc>(p.lr)),
        beta2(static_cast<Acc>(p.beta2)),
        eps(static_cast<Acc>(p.eps)),
        decay(static_cast<Acc>(1 - p.lr * p.weight_decay)),
        new1(static_cast<Acc>(1 - p.beta1)),
        new2(static_cast<Acc>(1 - p.beta2)),
        log_beta1(static_cast<Acc>(std::log(p.beta1))),
        log_beta2(static_cast<Acc>(std::log(p.beta2))),
        maximize(p.maximize) {
    set_step(p.step);
  }
  // 1 - beta^t as -expm1(t log beta): no digits are lost where beta^t is close to 1.
  DLK_HD void set_step(int64_t t) {
    step_size = lr / -expm1(static_cast<Acc>(t) * log_beta1);
    root_scale = 1 / sqrt(-expm1(static_cast<Acc>(t) * log_beta2));
  }
  DLK_HD void operator()(Acc& param, Acc grad, Acc& exp_avg, Acc& exp_avg_sq) const {
    const Acc g = maximize ? -grad : grad;
    exp_avg += new1 * (g - exp_avg);
    exp_avg_sq = beta2 * exp_avg_sq + new2 * g * g;
    param = param * decay - step_size * exp_avg / (sqrt(exp_avg_sq) * root_scale + eps);
  }

 private:
  static DLK_HD float expm1(float x) { return ::expm1f(x); }
  static DLK_HD double expm1(double x) { return ::expm1(x); }
  static DLK_HD float sqrt(float x) { return ::sqrtf(x); }
  static DLK_HD double sqrt(double x) { return ::sqrt(x); }
};

// Calls f.template operator()<Param, Grad, State>() with the C++ types of an optimizer's tensors:
// gradient and states may be float32 beside a 16-bit param.
template <class F>
void dispatch_optim(DType param, DType grad, DType state, F&& f) {
  dispatch_floating(param, [&]<class P>() {
    if constexpr (sizeof(P) == 2) {
      const bool wide_grad = grad != param, wide_state = state != param;
      if (wide_grad && wide_state) return f.template operator()<P, float, float>();
      if (wide_grad) return f.template operator()<P, float, P>();
      if (wide_state) return f.template operator()<P, P, float>();
    }
    f.template operator()<P, P, P>();
  });
}

}  // namespace dlkern
