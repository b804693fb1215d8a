// Optimizer steps: SGD and AdamW on one tensor, in place.
//
// One pass: param, gradient and states are read once and param and states written once. Arithmetic
// in float32 (float64 for float64), by the rules of ops/optim.h. Bound by memory. AdamW's step
// number may lie in device memory; each thread derives the bias corrections from it before its loop.
#include "ops/optim.h"

#include "cuda/prims/elementwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <class Acc>
struct Sgd {
  using Pointwise = void;
  SgdRule<Acc> rule;

  template <int W>
  __device__ void operator()(Pack<Acc, W>& param, const Pack<Acc, W>& grad,
                             Pack<Acc, W>& buffer) const {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (rule.has_momentum) {
        rule(param[k], grad[k], buffer[k]);
      } else {
        rule(param[k], grad[k]);
      }
    }
  }
};

template <class Acc>
struct Adamw {
  using Pointwise = void;
  AdamwRule<Acc> rule;
  const void* step;  // device memory, or nullptr: rule has it already
  bool step_is_64_bit;

  __device__ void prepare() {
    if (step == nullptr) return;
    rule.set_step(step_is_64_bit ? *static_cast<const int64_t*>(step)
                                 : int64_t{*static_cast<const int32_t*>(step)});
  }
  template <int W>
  __device__ void operator()(Pack<Acc, W>& param, const Pack<Acc, W>& grad, Pack<Acc, W>& exp_avg,
                             Pack<Acc, W>& exp_avg_sq) const {
#pragma unroll
    for (int k = 0; k < W; ++k) rule(param[k], grad[k], exp_avg[k], exp_avg_sq[k]);
  }
};

template <class P, class G, class S>
void launch_sgd(const SgdStep& p, const Launch& launch) {
  const Sgd<Accumulator<P>> f{SgdRule<Accumulator<P>>(p)};
  map_elements(in_memory_order(make_index<3>({&p.param, &p.grad, &p.buffer})), f, launch.stream,
               InOut<P>{p.param.as<P>()}, In<G>{p.grad.as<G>()}, InOut<S>{p.buffer.as<S>()});
}

template <class P, class G, class S>
void launch_adamw(const AdamwStep& p, const Launch& launch) {
  const Adamw<Accumulator<P>> f{AdamwRule<Accumulator<P>>(p), p.step_tensor.data,
                                p.step_tensor.dtype == DType::kInt64};
  map_elements(in_memory_order(make_index<4>({&p.param, &p.grad, &p.exp_avg, &p.exp_avg_sq})), f,
               launch.stream, InOut<P>{p.param.as<P>()}, In<G>{p.grad.as<G>()},
               InOut<S>{p.exp_avg.as<S>()}, InOut<S>{p.exp_avg_sq.as<S>()});
}

constexpr Impl<SgdStep> kSgd[] = {
    {"elementwise", supports_all, nullptr,
     [](const SgdStep& p, const Launch& launch) {
       const DType state = p.buffer ? p.buffer.dtype : p.param.dtype;
       dispatch_optim(p.param.dtype, p.grad.dtype, state,
                      [&]<class P, class G, class S>() { launch_sgd<P, G, S>(p, launch); });
     }},
};
constexpr Impl<AdamwStep> kAdamw[] = {
    {"elementwise", supports_all, nullptr,
     [](const AdamwStep& p, const Launch& launch) {
       dispatch_optim(p.param.dtype, p.grad.dtype, p.exp_avg.dtype,
                      [&]<class P, class G, class S>() { launch_adamw<P, G, S>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<SgdStep> gpu_impls<SgdStep>() {
  return kSgd;
}
template <>
ImplList<AdamwStep> gpu_impls<AdamwStep>() {
  return kAdamw;
}

}  // namespace dlkern
