// Optimizer steps on the CPU: spans in parallel, one pass over param, gradient and states.
#include "ops/optim.h"

#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

template <class Acc>
void sgd_span(int64_t n, Acc* param, const Acc* grad, Acc* buffer, SgdRule<Acc> rule) {
  if (buffer) {
    DLK_SIMD for (int64_t i = 0; i < n; ++i) rule(param[i], grad[i], buffer[i]);
  } else {
    DLK_SIMD for (int64_t i = 0; i < n; ++i) rule(param[i], grad[i]);
  }
}

template <class Acc>
void adamw_span(int64_t n, Acc* param, const Acc* grad, Acc* exp_avg, Acc* exp_avg_sq,
                AdamwRule<Acc> rule) {
  DLK_SIMD for (int64_t i = 0; i < n; ++i) rule(param[i], grad[i], exp_avg[i], exp_avg_sq[i]);
}

template <class P, class G, class S>
void sgd(const SgdStep& p) {
  using Acc = Accumulator<P>;
  const SgdRule<Acc> rule(p);
  map_spans(
      in_memory_order(make_index<3>({&p.param, &p.grad, &p.buffer})),
      [&](int64_t n, Acc* param, const Acc* grad, Acc* buffer) {
        sgd_span(n, param, grad, buffer, rule);
      },
      InOut<P>{p.param.as<P>()}, In<G>{p.grad.as<G>()}, InOut<S>{p.buffer.as<S>()});
}

int64_t step_of(const AdamwStep& p) {
  if (!p.step_tensor) return p.step;
  return dispatch_index(p.step_tensor.dtype,
                        [&]<class I>() -> int64_t { return *p.step_tensor.as<I>(); });
}

template <class P, class G, class S>
void adamw(const AdamwStep& p) {
  using Acc = Accumulator<P>;
  AdamwRule<Acc> rule(p);
  rule.set_step(step_of(p));
  map_spans(
      in_memory_order(make_index<4>({&p.param, &p.grad, &p.exp_avg, &p.exp_avg_sq})),
      [&](int64_t n, Acc* param, const Acc* grad, Acc* exp_avg, Acc* exp_avg_sq) {
        adamw_span(n, param, grad, exp_avg, exp_avg_sq, rule);
      },
      InOut<P>{p.param.as<P>()}, In<G>{p.grad.as<G>()}, InOut<S>{p.exp_avg.as<S>()},
      InOut<S>{p.exp_avg_sq.as<S>()});
}

constexpr Impl<SgdStep> kSgd[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const SgdStep& p, const Launch&) {
       const DType state = p.buffer ? p.buffer.dtype : p.param.dtype;
       dispatch_optim(p.param.dtype, p.grad.dtype, state,
                      [&]<class P, class G, class S>() { sgd<P, G, S>(p); });
     }},
};
constexpr Impl<AdamwStep> kAdamw[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const AdamwStep& p, const Launch&) {
       dispatch_optim(p.param.dtype, p.grad.dtype, p.exp_avg.dtype,
                      [&]<class P, class G, class S>() { adamw<P, G, S>(p); });
     }},
};

}  // namespace

template <>
ImplList<SgdStep> cpu_impls<SgdStep>() {
  return kSgd;
}
template <>
ImplList<AdamwStep> cpu_impls<AdamwStep>() {
  return kAdamw;
}

}  // namespace dlkern
