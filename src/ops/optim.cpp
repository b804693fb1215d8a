#include "ops/optim.h"

#include <dlkern/optim.h>

#include "core/mixed.h"

namespace dlkern {
namespace {

constexpr dlk_step_scalars kNoScalars = DLK_STEP_SCALARS_INIT;
constexpr dlk_sgd_params kSgdDefaults = DLK_SGD_PARAMS_INIT;
constexpr dlk_adamw_params kAdamwDefaults = DLK_ADAMW_PARAMS_INIT;
constexpr dlk_lion_params kLionDefaults = DLK_LION_PARAMS_INIT;
constexpr dlk_grad_norm_params kGradNormDefaults = DLK_GRAD_NORM_PARAMS_INIT;
constexpr dlk_loss_scale_params kLossScaleDefaults = DLK_LOSS_SCALE_PARAMS_INIT;

void require_not_negative(const char* name, double value) {
  if (!(value >= 0)) fail(DLK_INVALID_ARGUMENT, name, " is ", value, ", expected at least 0");
}

void require_beta(const char* name, double value) {
  if (!(value >= 0 && value < 1)) {
    fail(DLK_INVALID_ARGUMENT, name, " is ", value, ", expected it in [0, 1)");
  }
}

void require_one_element(const Tensor& t) {
  if (t && t.numel() != 1) {
    fail(DLK_INVALID_ARGUMENT, t.name, ".shape is ", shape_string(t), ", expected one element");
  }
}

// The same for one that is absent.
void require_real(const Call& call, const Tensor& t) {
  if (!t) return;
  call.require_dtype(t, {DType::kFloat32, DType::kFloat64});
  require_one_element(t);
}

void require_integer(const Call& call, const Tensor& t) {
  if (!t) return;
  call.require_dtype(t, {DType::kInt64, DType::kInt32});
  require_one_element(t);
}

// Only one of several is called "param[i]".
std::vector<Tensor> input_arrays(Call& call, const char* name, const DLTensor* const* list,
                                 int64_t count) {
  if (count == 1 && list) return {call.input(name, list[0])};
  return call.input_list(name, list, count);
}
std::vector<Tensor> inout_arrays(Call& call, const char* name, const DLTensor* const* list,
                                 int64_t count) {
  if (count == 1 && list) return {call.inout(name, list[0])};
  return call.inout_list(name, list, count);
}

// ---- Steps ---------------------------------------------------------------------------------------

void require_grad_dtype(const Call& call, const Tensor& grad, const Tensor& param) {
  if (param.dtype == DType::kFloat32) {
    call.require_dtype(grad, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  } else {
    require_mixed_dtype(call, grad, param);
  }
}

void require_copy_dtype(const Call& call, const Tensor& copy, const Tensor& param) {
  if (param.dtype != DType::kFloat32) {
    fail(DLK_INVALID_ARGUMENT, copy.name, " is given, expected none beside a ",
         dtype_name(param.dtype), " param");
  }
  call.require_dtype(copy, {DType::kFloat16, DType::kBFloat16});
}

// The arguments that every step has, as they come in.
class StepArguments {
 public:
  StepArguments(Call& call, int64_t count, const DLTensor* const* param,
                const DLTensor* const* grad)
      : call_(call), count_(count) {
    add(kParam, inout_arrays(call, "param", param, count));
    add(kGrad, input_arrays(call, "grad", grad, count));
    for (size_t i = 0; i < size(); ++i) {
      call.require_floating(at(kParam, i));
      require_grad_dtype(call, at(kGrad, i), at(kParam, i));
      call.require_same_shape(at(kGrad, i), at(kParam, i));
    }
  }
  // State number `state`; absent where list is NULL.
  void add_state(int state, const char* name, const DLTensor* const* list) {
    if (!list) return;
    const int role = kState + state;
    add(role, inout_arrays(call_, name, list, count_));
    for (size_t i = 0; i < size(); ++i) {
      require_mixed_dtype(call_, at(role, i), at(kParam, i));
      call_.require_same_shape(at(role, i), at(kParam, i));
      if (state > 0) call_.require_same_dtype(at(role, i), at(kState, i));
    }
  }
  void add_copy(const DLTensor* const* list) {
    if (!list) return;
    add(kCopy, inout_arrays(call_, "copy", list, count_));
    for (size_t i = 0; i < size(); ++i) {
      require_copy_dtype(call_, at(kCopy, i), at(kParam, i));
      call_.require_same_shape(at(kCopy, i), at(kParam, i));
    }
  }
  StepScalars scalars(const dlk_step_scalars* given, bool maximize, bool takes_step) {
    const dlk_step_scalars s = read_params(given, kNoScalars, "scalars");
    const Tensor lr = call_.optional_input("lr", s.lr);
    const Tensor step = call_.optional_input("step", s.step);
    const Tensor grad_scale = call_.optional_input("grad_scale", s.grad_scale);
    const Tensor found_inf = call_.optional_input("found_inf", s.found_inf);
    for (const Tensor* t : {&lr, &grad_scale, &found_inf}) require_real(call_, *t);
    require_integer(call_, step);
    if (step && !takes_step) fail(DLK_INVALID_ARGUMENT, "step is given, expected none");
    return {Scalar(lr), Scalar(step), Scalar(grad_scale), Scalar(found_inf), maximize};
  }
  bool has(int role) const { return !lists_[role].empty(); }

  // What backends work on.
  void fill(StepLists& lists) const {
    call_.require_outputs_apart();
    lists.items.reserve(size());
    for (size_t i = 0; i < size(); ++i) lists.items.push_back(item(i, lists.layouts));
  }

 private:
  size_t size() const { return lists_[kParam].size(); }
  const Tensor& at(int role, size_t i) const { return lists_[role][i]; }
  void add(int role, std::vector<Tensor> list) { lists_[role] = std::move(list); }

  StepItem item(size_t i, std::vector<StridedIndex<kStepRoles>>& layouts) const {
    StepItem item;
    const Tensor* arrays[kStepRoles];
    for (int role = 0; role < kStepRoles; ++role) {
      arrays[role] = &at(has(role) ? role : kParam, i);  // an absent one walks along
      if (!has(role)) continue;
      item.data[role] = arrays[role]->data;
      item.dtype[role] = arrays[role]->dtype;
    }
    item.numel = arrays[kParam]->numel();
    const auto index = in_memory_order(make_index<kStepRoles>(arrays));
    if (!index.is_flat() && item.numel > 0) {
      item.layout = static_cast<int>(layouts.size());
      layouts.push_back(index);
    }
    return item;
  }

  Call& call_;
  int64_t count_;
  std::vector<Tensor> lists_[kStepRoles];
};

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_sgd_step(int64_t count, const DLTensor* const* param, const DLTensor* const* grad,
                          const DLTensor* const* momentum_buffer, const DLTensor* const* copy,
                          const dlk_step_scalars* scalars, const dlk_sgd_params* params,
                          const dlk_launch* launch) {
  return entry("sgd_step", launch, [&](Call& call) {
    const dlk_sgd_params p = read_params(params, kSgdDefaults);
    StepArguments arguments(call, count, param, grad);
    require_not_negative("lr", p.lr);
    require_not_negative("momentum", p.momentum);
    require_not_negative("weight_decay", p.weight_decay);
    if (p.nesterov && !(p.momentum > 0 && p.dampening == 0)) {
      fail(DLK_INVALID_ARGUMENT, "nesterov is set with momentum ", p.momentum, " and dampening ",
           p.dampening, ", expected momentum above 0 and dampening 0");
    }
    arguments.add_state(0, "momentum_buffer", momentum_buffer);
    if (p.momentum != 0 && !momentum_buffer) {
      fail(DLK_INVALID_ARGUMENT, "momentum_buffer is absent, expected a tensor for momentum ",
           p.momentum);
    }
    arguments.add_copy(copy);
    SgdStep problem{
        {}, p.lr, p.momentum, p.dampening, p.weight_decay, p.nesterov != 0, p.first_step != 0};
    problem.scalars = arguments.scalars(scalars, p.maximize != 0, false);
    arguments.fill(problem);
    call.run(problem);
  });
}

dlk_status_t dlk_adamw_step(int64_t count, const DLTensor* const* param,
                            const DLTensor* const* grad, const DLTensor* const* exp_avg,
                            const DLTensor* const* exp_avg_sq,
                            const DLTensor* const* max_exp_avg_sq, const DLTensor* const* copy,
                            const dlk_step_scalars* scalars, const dlk_adamw_params* params,
                            const dlk_launch* launch) {
  return entry("adamw_step", launch, [&](Call& call) {
    const dlk_adamw_params p = read_params(params, kAdamwDefaults);
    StepArguments arguments(call, count, param, grad);
    if (!exp_avg) fail(DLK_INVALID_ARGUMENT, "exp_avg is NULL");
    if (!exp_avg_sq) fail(DLK_INVALID_ARGUMENT, "exp_avg_sq is NULL");
    arguments.add_state(0, "exp_avg", exp_avg);
    arguments.add_state(1, "exp_avg_sq", exp_avg_sq);
    arguments.add_state(2, "max_exp_avg_sq", max_exp_avg_sq);
    arguments.add_copy(copy);
    require_not_negative("lr", p.lr);
    require_beta("beta1", p.beta1);
    require_beta("beta2", p.beta2);
    require_not_negative("eps", p.eps);
    require_not_negative("weight_decay", p.weight_decay);
    AdamwStep problem{{},      p.lr,      p.beta1,
                      p.beta2, p.eps,     p.weight_decay,
                      p.step,  p.l2 != 0, max_exp_avg_sq != nullptr};
    problem.scalars = arguments.scalars(scalars, p.maximize != 0, true);
    if (!problem.scalars.step && p.step < 1) {
      fail(DLK_INVALID_ARGUMENT, "step is ", p.step, ", expected at least 1");
    }
    arguments.fill(problem);
    call.run(problem);
  });
}

dlk_status_t dlk_lion_step(int64_t count, const DLTensor* const* param, const DLTensor* const* grad,
                           const DLTensor* const* exp_avg, const DLTensor* const* copy,
                           const dlk_step_scalars* scalars, const dlk_lion_params* params,
                           const dlk_launch* launch) {
  return entry("lion_step", launch, [&](Call& call) {
    const dlk_lion_params p = read_params(params, kLionDefaults);
    StepArguments arguments(call, count, param, grad);
    if (!exp_avg) fail(DLK_INVALID_ARGUMENT, "exp_avg is NULL");
    arguments.add_state(0, "exp_avg", exp_avg);
    arguments.add_copy(copy);
    require_not_negative("lr", p.lr);
    require_beta("beta1", p.beta1);
    require_beta("beta2", p.beta2);
    require_not_negative("weight_decay", p.weight_decay);
    LionStep problem{{}, p.lr, p.beta1, p.beta2, p.weight_decay};
    problem.scalars = arguments.scalars(scalars, p.maximize != 0, false);
    arguments.fill(problem);
    call.run(problem);
  });
}

dlk_status_t dlk_grad_norm(int64_t count, const DLTensor* const* grad_, const DLTensor* loss_scale_,
                           const DLTensor* norm_, const DLTensor* grad_scale_,
                           const DLTensor* found_inf_, const dlk_grad_norm_params* params,
                           const dlk_launch* launch) {
  return entry("grad_norm", launch, [&](Call& call) {
    const dlk_grad_norm_params p = read_params(params, kGradNormDefaults);
    std::vector<Tensor> grads = input_arrays(call, "grad", grad_, count);
    const Tensor loss_scale = call.optional_input("loss_scale", loss_scale_);
    const Tensor norm = call.output("norm", norm_);
    const Tensor grad_scale = call.optional_output("grad_scale", grad_scale_);
    const Tensor found_inf = call.optional_output("found_inf", found_inf_);
    for (const Tensor& grad : grads) call.require_floating(grad);
    require_real(call, loss_scale);
    for (const Tensor* out : {&norm, &grad_scale, &found_inf}) {
      if (!*out) continue;
      if (!grads.empty()) call.require_dtype(*out, {accumulator_of(grads[0].dtype)});
      require_real(call, *out);
    }
    require_not_negative("max_norm", p.max_norm);
    if (!(p.ord > 0)) fail(DLK_INVALID_ARGUMENT, "ord is ", p.ord, ", expected it positive");
    call.require_outputs_apart();
    call.run(
        GradNorm{std::move(grads), loss_scale, norm, grad_scale, found_inf, p.max_norm, p.ord});
  });
}

dlk_status_t dlk_scale_grads(int64_t count, const DLTensor* const* grad_, const DLTensor* scale_,
                             const DLTensor* found_inf_, const dlk_launch* launch) {
  return entry("scale_grads", launch, [&](Call& call) {
    std::vector<Tensor> grads = inout_arrays(call, "grad", grad_, count);
    const Tensor scale = call.input("scale", scale_);
    const Tensor found_inf = call.optional_inout("found_inf", found_inf_);
    for (const Tensor& grad : grads) call.require_floating(grad);
    require_real(call, scale);
    require_real(call, found_inf);
    call.require_outputs_apart();
    call.run(ScaleGrads{std::move(grads), scale, found_inf});
  });
}

dlk_status_t dlk_update_loss_scale(const DLTensor* loss_scale_, const DLTensor* growth_tracker_,
                                   const DLTensor* found_inf_, const DLTensor* step_,
                                   const dlk_loss_scale_params* params, const dlk_launch* launch) {
  return entry("update_loss_scale", launch, [&](Call& call) {
    const dlk_loss_scale_params p = read_params(params, kLossScaleDefaults);
    const Tensor loss_scale = call.inout("loss_scale", loss_scale_);
    const Tensor growth_tracker = call.inout("growth_tracker", growth_tracker_);
    const Tensor found_inf = call.input("found_inf", found_inf_);
    const Tensor step = call.optional_inout("step", step_);
    require_real(call, loss_scale);
    require_integer(call, growth_tracker);
    require_real(call, found_inf);
    require_integer(call, step);
    require_not_negative("growth_factor", p.growth_factor);
    require_not_negative("backoff_factor", p.backoff_factor);
    if (p.growth_interval < 1) {
      fail(DLK_INVALID_ARGUMENT, "growth_interval is ", p.growth_interval, ", expected at least 1");
    }
    call.require_outputs_apart();
    call.run(UpdateLossScale{loss_scale, growth_tracker, found_inf, step, p.growth_interval,
                             p.growth_factor, p.backoff_factor});
  });
}
