#include "ops/optim.h"

#include <dlkern/optim.h>

#include "core/mixed.h"

namespace dlkern {
namespace {

constexpr dlk_sgd_params kSgdDefaults = DLK_SGD_PARAMS_INIT;
constexpr dlk_adamw_params kAdamwDefaults = DLK_ADAMW_PARAMS_INIT;

void require_not_negative(const char* name, double value) {
  if (!(value >= 0)) fail(DLK_INVALID_ARGUMENT, name, " is ", value, ", expected at least 0");
}

void require_beta(const char* name, double value) {
  if (!(value >= 0 && value < 1)) {
    fail(DLK_INVALID_ARGUMENT, name, " is ", value, ", expected it in [0, 1)");
  }
}

void require_beside(const Call& call, const Tensor& t, const Tensor& param) {
  require_mixed_dtype(call, t, param);
  call.require_same_shape(t, param);
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_sgd_step(const DLTensor* param_, const DLTensor* grad_, const DLTensor* buffer_,
                          const dlk_sgd_params* params, const dlk_launch* launch) {
  return entry("sgd_step", launch, [&](Call& call) {
    const dlk_sgd_params p = read_params(params, kSgdDefaults);
    const Tensor param = call.inout("param", param_);
    const Tensor grad = call.input("grad", grad_);
    Tensor buffer = call.optional_inout("momentum_buffer", buffer_);
    call.require_floating(param);
    require_beside(call, grad, param);
    call.require_disjoint(param, grad);
    require_not_negative("lr", p.lr);
    require_not_negative("momentum", p.momentum);
    require_not_negative("weight_decay", p.weight_decay);
    if (p.nesterov && !(p.momentum > 0 && p.dampening == 0)) {
      fail(DLK_INVALID_ARGUMENT, "nesterov is set with momentum ", p.momentum, " and dampening ",
           p.dampening, ", expected momentum above 0 and dampening 0");
    }
    if (buffer) {
      require_beside(call, buffer, param);
      call.require_disjoint(buffer, param);
      call.require_disjoint(buffer, grad);
    } else if (p.momentum != 0) {
      fail(DLK_INVALID_ARGUMENT, "momentum_buffer is absent, expected a tensor for momentum ",
           p.momentum);
    }
    if (p.momentum == 0) buffer = Tensor{};
    call.run(SgdStep{param, grad, buffer, p.lr, p.momentum, p.dampening, p.weight_decay,
                     p.nesterov != 0, p.maximize != 0, p.first_step != 0});
  });
}

dlk_status_t dlk_adamw_step(const DLTensor* param_, const DLTensor* grad_, const DLTensor* exp_avg_,
                            const DLTensor* exp_avg_sq_, const DLTensor* step_,
                            const dlk_adamw_params* params, const dlk_launch* launch) {
  return entry("adamw_step", launch, [&](Call& call) {
    const dlk_adamw_params p = read_params(params, kAdamwDefaults);
    const Tensor param = call.inout("param", param_);
    const Tensor grad = call.input("grad", grad_);
    const Tensor exp_avg = call.inout("exp_avg", exp_avg_);
    const Tensor exp_avg_sq = call.inout("exp_avg_sq", exp_avg_sq_);
    const Tensor step = call.optional_input("step", step_);
    call.require_floating(param);
    for (const Tensor& t : {grad, exp_avg, exp_avg_sq}) require_beside(call, t, param);
    call.require_same_dtype(exp_avg_sq, exp_avg);
    const Tensor all[] = {param, exp_avg, exp_avg_sq, grad, step};
    for (int i = 0; i < 3; ++i) {
      for (int k = i + 1; k < 5; ++k) call.require_disjoint(all[i], all[k]);
    }
    require_not_negative("lr", p.lr);
    require_beta("beta1", p.beta1);
    require_beta("beta2", p.beta2);
    require_not_negative("eps", p.eps);
    require_not_negative("weight_decay", p.weight_decay);
    if (step) {
      call.require_dtype(step, {DType::kInt64, DType::kInt32});
      if (step.numel() != 1) {
        fail(DLK_INVALID_ARGUMENT, "step.shape is ", shape_string(step), ", expected one element");
      }
    } else if (p.step < 1) {
      fail(DLK_INVALID_ARGUMENT, "step is ", p.step, ", expected at least 1");
    }
    call.run(AdamwStep{param, grad, exp_avg, exp_avg_sq, step, p.lr, p.beta1, p.beta2, p.eps,
                       p.weight_decay, p.step, p.maximize != 0});
  });
}
