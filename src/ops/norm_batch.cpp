#include "ops/norm_batch.h"

#include <dlkern/norm.h>

#include "ops/norm_checks.h"

namespace dlkern {
namespace {

constexpr dlk_batch_norm_params kDefaults = DLK_BATCH_NORM_PARAMS_INIT;
constexpr const char* kWhy = "the number of channels of x";

void require_num_batches(const Call& call, const Tensor& num_batches, bool cumulative) {
  if (cumulative && !num_batches) {
    fail(DLK_INVALID_ARGUMENT, "num_batches is NULL, expected it for a cumulative average");
  }
  if (!num_batches) return;
  call.require_dtype(num_batches, {DType::kInt64});
  if (num_batches.numel() != 1 || num_batches.ndim > 1) {
    fail(DLK_INVALID_ARGUMENT, "num_batches.shape is ", shape_string(num_batches),
         ", expected [] or [1]");
  }
}

void batch_norm_training(Call& call, BatchNormTraining p, const dlk_batch_norm_params& params) {
  p.channel = channel_dim(call, params.layout, p.x);
  require_eps(params.eps);
  require_momentum(params.momentum);
  p.activation = require_norm_activation(params.activation);
  const int64_t channels[] = {p.x.shape[p.channel]};
  require_parameters(call, {&p.weight, &p.bias, &p.running_mean, &p.running_var}, channels, kWhy,
                     p.x);
  require_both_running(p.running_mean, p.running_var);
  require_num_batches(call, p.num_batches, params.cumulative);
  if (p.residual) call.require_like(p.residual, p.x);
  call.require_like(p.y, p.x);
  require_statistics(call, {&p.mean, &p.rstd, &p.var}, channels, kWhy, p.x);
  call.require_same_or_disjoint(p.y, p.residual);
  const Tensor absent, &saved_mean = p.var ? absent : p.mean, &given_mean = p.var ? p.mean : absent;
  require_disjoint(call,
                   {&p.y, &saved_mean, &p.rstd, &p.running_mean, &p.running_var, &p.num_batches},
                   {&p.x, &p.weight, &p.bias, &given_mean, &p.var});
  require_disjoint(call, {&saved_mean, &p.rstd, &p.running_mean, &p.running_var, &p.num_batches},
                   {&p.residual});
  require_two_values(p.x, channels[0] ? p.x.numel() / channels[0] : 2, "channel");
  p.eps = params.eps;
  p.momentum = params.momentum;
  p.cumulative = params.cumulative != 0;
  call.run(p);
}

void batch_norm_inference(Call& call, BatchNormInference p, const dlk_batch_norm_params& params) {
  p.channel = channel_dim(call, params.layout, p.x);
  require_eps(params.eps);
  p.activation = require_norm_activation(params.activation);
  require_parameters(call, {&p.weight, &p.bias, &p.running_mean, &p.running_var},
                     {&p.x.shape[p.channel], 1}, kWhy, p.x);
  if (p.residual) call.require_like(p.residual, p.x);
  call.require_like(p.y, p.x);
  call.require_same_or_disjoint(p.y, p.x);
  call.require_same_or_disjoint(p.y, p.residual);
  require_disjoint(call, {&p.y}, {&p.weight, &p.bias, &p.running_mean, &p.running_var});
  p.eps = params.eps;
  call.run(p);
}

// The gradient before the activation is known from y, or computed again where nothing was added.
void require_gradient_of_activation(const Call& call, const BatchNormBackward& p) {
  if (p.y) {
    call.require_like(p.y, p.x);
    if (p.activation == DLK_ACTIVATION_SILU) {
      fail(DLK_INVALID_ARGUMENT, "activation is DLK_ACTIVATION_SILU, expected _RELU or _NONE ",
           "beside y: no other gradient follows from y");
    }
  } else if (p.dresidual && p.activation != DLK_ACTIVATION_NONE) {
    fail(DLK_INVALID_ARGUMENT, "y is NULL, expected it for dresidual of an activation");
  }
}

void batch_norm_backward(Call& call, BatchNormBackward p, const dlk_batch_norm_params& params) {
  call.require_floating(p.dy);
  call.require_like(p.x, p.dy);
  p.channel = channel_dim(call, params.layout, p.x);
  require_eps(params.eps);
  p.activation = require_norm_activation(params.activation);
  require_gradient_of_activation(call, p);
  const std::span<const int64_t> channels{&p.x.shape[p.channel], 1};
  require_parameters(call, {&p.weight, &p.bias, &p.dweight, &p.dbias}, channels, kWhy, p.x);
  if (p.training) {
    require_statistics(call, {&p.mean, &p.scale}, channels, kWhy, p.x);
  } else {
    require_parameters(call, {&p.mean, &p.scale}, channels, kWhy, p.x);
  }
  call.require_like(p.dx, p.x);
  call.require_same_or_disjoint(p.dx, p.dy);
  call.require_same_or_disjoint(p.dx, p.x);
  if (p.dresidual) call.require_like(p.dresidual, p.x);
  call.require_same_or_disjoint(p.dresidual, p.dy);
  require_disjoint(call, {&p.dx, &p.dweight, &p.dbias, &p.dresidual},
                   {&p.weight, &p.bias, &p.y, &p.mean, &p.scale});
  require_disjoint(call, {&p.dweight, &p.dbias}, {&p.dy, &p.x});
  require_disjoint(call, {&p.dresidual}, {&p.x});
  p.eps = params.eps;
  call.run(p);
}

// The gradient with saved statistics (training) or with running ones, which are constants.
dlk_status_t batch_norm_backward(const char* op, bool training, const DLTensor* dy,
                                 const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
                                 const DLTensor* y, const DLTensor* mean, const DLTensor* scale,
                                 const DLTensor* dx, const DLTensor* dweight, const DLTensor* dbias,
                                 const DLTensor* dresidual, const dlk_batch_norm_params* params,
                                 const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    batch_norm_backward(call,
                        {.dy = call.input("dy", dy),
                         .x = call.input("x", x),
                         .weight = call.optional_input("weight", weight),
                         .bias = call.optional_input("bias", bias),
                         .y = call.optional_input("y", y),
                         .mean = call.input(training ? "mean" : "running_mean", mean),
                         .scale = call.input(training ? "rstd" : "running_var", scale),
                         .dx = call.output("dx", dx),
                         .dweight = call.optional_output("dweight", dweight),
                         .dbias = call.optional_output("dbias", dbias),
                         .dresidual = call.optional_output("dresidual", dresidual),
                         .training = training},
                        read_params(params, kDefaults));
  });
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_batch_norm_training(const DLTensor* x, const DLTensor* weight,
                                     const DLTensor* bias, const DLTensor* residual,
                                     const DLTensor* running_mean, const DLTensor* running_var,
                                     const DLTensor* num_batches, const DLTensor* y,
                                     const DLTensor* save_mean, const DLTensor* save_rstd,
                                     const dlk_batch_norm_params* params,
                                     const dlk_launch* launch) {
  return entry("batch_norm_training", launch, [&](Call& call) {
    batch_norm_training(call,
                        {.x = call.input("x", x),
                         .weight = call.optional_input("weight", weight),
                         .bias = call.optional_input("bias", bias),
                         .residual = call.optional_input("residual", residual),
                         .running_mean = call.optional_inout("running_mean", running_mean),
                         .running_var = call.optional_inout("running_var", running_var),
                         .num_batches = call.optional_inout("num_batches", num_batches),
                         .y = call.output("y", y),
                         .mean = call.output("mean", save_mean),
                         .rstd = call.output("rstd", save_rstd),
                         .var = {}},
                        read_params(params, kDefaults));
  });
}

dlk_status_t dlk_batch_norm_training_given(
    const DLTensor* x, const DLTensor* mean, const DLTensor* var, const DLTensor* weight,
    const DLTensor* bias, const DLTensor* residual, const DLTensor* running_mean,
    const DLTensor* running_var, const DLTensor* num_batches, const DLTensor* y,
    const DLTensor* save_rstd, const dlk_batch_norm_params* params, const dlk_launch* launch) {
  return entry("batch_norm_training", launch, [&](Call& call) {
    batch_norm_training(call,
                        {.x = call.input("x", x),
                         .weight = call.optional_input("weight", weight),
                         .bias = call.optional_input("bias", bias),
                         .residual = call.optional_input("residual", residual),
                         .running_mean = call.optional_inout("running_mean", running_mean),
                         .running_var = call.optional_inout("running_var", running_var),
                         .num_batches = call.optional_inout("num_batches", num_batches),
                         .y = call.output("y", y),
                         .mean = call.input("mean", mean),
                         .rstd = call.output("rstd", save_rstd),
                         .var = call.input("var", var)},
                        read_params(params, kDefaults));
  });
}

dlk_status_t dlk_batch_norm_inference(const DLTensor* x, const DLTensor* weight,
                                      const DLTensor* bias, const DLTensor* residual,
                                      const DLTensor* running_mean, const DLTensor* running_var,
                                      const DLTensor* y, const dlk_batch_norm_params* params,
                                      const dlk_launch* launch) {
  return entry("batch_norm", launch, [&](Call& call) {
    batch_norm_inference(call,
                         {.x = call.input("x", x),
                          .weight = call.optional_input("weight", weight),
                          .bias = call.optional_input("bias", bias),
                          .residual = call.optional_input("residual", residual),
                          .running_mean = call.input("running_mean", running_mean),
                          .running_var = call.input("running_var", running_var),
                          .y = call.output("y", y)},
                         read_params(params, kDefaults));
  });
}

dlk_status_t dlk_batch_norm_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* weight,
                                     const DLTensor* bias, const DLTensor* y, const DLTensor* mean,
                                     const DLTensor* rstd, const DLTensor* dx,
                                     const DLTensor* dweight, const DLTensor* dbias,
                                     const DLTensor* dresidual, const dlk_batch_norm_params* params,
                                     const dlk_launch* launch) {
  return batch_norm_backward("batch_norm_backward", true, dy, x, weight, bias, y, mean, rstd, dx,
                             dweight, dbias, dresidual, params, launch);
}

dlk_status_t dlk_batch_norm_inference_backward(
    const DLTensor* dy, const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
    const DLTensor* y, const DLTensor* running_mean, const DLTensor* running_var,
    const DLTensor* dx, const DLTensor* dweight, const DLTensor* dbias, const DLTensor* dresidual,
    const dlk_batch_norm_params* params, const dlk_launch* launch) {
  return batch_norm_backward("batch_norm_inference_backward", false, dy, x, weight, bias, y,
                             running_mean, running_var, dx, dweight, dbias, dresidual, params,
                             launch);
}
