#include "ops/norm_group.h"

#include <dlkern/norm_group.h>

#include "ops/norm_checks.h"

namespace dlkern {
namespace {

constexpr dlk_group_norm_params kGroupDefaults = DLK_GROUP_NORM_PARAMS_INIT;
constexpr dlk_instance_norm_params kInstanceDefaults = DLK_INSTANCE_NORM_PARAMS_INIT;
constexpr const char* kChannels = "the number of channels of x";

int64_t require_groups(int64_t groups, int64_t channels) {
  if (groups < 1 || channels % groups != 0) {
    fail(DLK_INVALID_ARGUMENT, "num_groups is ", groups, ", expected a divisor of the ", channels,
         " channels of x");
  }
  return groups;
}

void forward(Call& call, GroupNormForward p) {
  const int64_t channels = p.x.shape[p.channel];
  require_eps(p.eps);
  require_parameters(call, {&p.weight, &p.bias, &p.running_mean, &p.running_var}, {&channels, 1},
                     kChannels, p.x);
  require_both_running(p.running_mean, p.running_var);
  call.require_like(p.y, p.x);
  const int64_t sets[] = {p.x.shape[0], p.groups};
  require_statistics(call, {&p.mean, &p.rstd}, sets, "samples and groups of x", p.x);
  call.require_same_or_disjoint(p.y, p.x);
  require_disjoint(call, {&p.y, &p.mean, &p.rstd, &p.running_mean, &p.running_var},
                   {&p.weight, &p.bias});
  require_disjoint(call, {&p.mean, &p.rstd, &p.running_mean, &p.running_var}, {&p.x});
  call.run(p);
}

void backward(Call& call, GroupNormBackward p) {
  const int64_t channels = p.x.shape[p.channel];
  require_parameters(call, {&p.weight, &p.bias, &p.dweight, &p.dbias}, {&channels, 1}, kChannels,
                     p.x);
  const int64_t sets[] = {p.x.shape[0], p.groups};
  require_statistics(call, {&p.mean, &p.rstd}, sets, "samples and groups of x", p.x);
  call.require_like(p.dx, p.x);
  call.require_same_or_disjoint(p.dx, p.dy);
  call.require_same_or_disjoint(p.dx, p.x);
  require_disjoint(call, {&p.dx, &p.dweight, &p.dbias}, {&p.weight, &p.bias, &p.mean, &p.rstd});
  require_disjoint(call, {&p.dweight, &p.dbias}, {&p.dy, &p.x});
  call.run(p);
}

GroupNormBackward backward_tensors(Call& call, const DLTensor* dy, const DLTensor* x,
                                   const DLTensor* weight, const DLTensor* bias,
                                   const DLTensor* mean, const DLTensor* rstd, const DLTensor* dx,
                                   const DLTensor* dweight, const DLTensor* dbias, int layout,
                                   int activation) {
  GroupNormBackward p{.dy = call.input("dy", dy),
                      .x = call.input("x", x),
                      .weight = call.optional_input("weight", weight),
                      .bias = call.optional_input("bias", bias),
                      .mean = call.input("mean", mean),
                      .rstd = call.input("rstd", rstd),
                      .dx = call.output("dx", dx),
                      .dweight = call.optional_output("dweight", dweight),
                      .dbias = call.optional_output("dbias", dbias)};
  call.require_floating(p.dy);
  call.require_like(p.x, p.dy);
  p.channel = channel_dim(call, layout, p.x);
  p.activation = require_norm_activation(activation);
  return p;
}

// All values of a channel of one sample.
int64_t values_of(const GroupNormForward& p) {
  const int64_t planes = p.x.shape[0] * p.x.shape[p.channel];
  return planes ? p.x.numel() / planes : 2;
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_group_norm_forward(const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
                                    const DLTensor* y, const DLTensor* mean, const DLTensor* rstd,
                                    const dlk_group_norm_params* params, const dlk_launch* launch) {
  return entry("group_norm", launch, [&](Call& call) {
    const dlk_group_norm_params given = read_params(params, kGroupDefaults);
    GroupNormForward p{.x = call.input("x", x),
                       .weight = call.optional_input("weight", weight),
                       .bias = call.optional_input("bias", bias),
                       .y = call.output("y", y),
                       .mean = call.optional_output("mean", mean),
                       .rstd = call.optional_output("rstd", rstd),
                       .eps = given.eps,
                       .activation = require_norm_activation(given.activation)};
    p.channel = channel_dim(call, given.layout, p.x);
    p.groups = require_groups(given.num_groups, p.x.shape[p.channel]);
    forward(call, p);
  });
}

dlk_status_t dlk_group_norm_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* weight,
                                     const DLTensor* bias, const DLTensor* mean,
                                     const DLTensor* rstd, const DLTensor* dx,
                                     const DLTensor* dweight, const DLTensor* dbias,
                                     const dlk_group_norm_params* params,
                                     const dlk_launch* launch) {
  return entry("group_norm_backward", launch, [&](Call& call) {
    const dlk_group_norm_params given = read_params(params, kGroupDefaults);
    GroupNormBackward p = backward_tensors(call, dy, x, weight, bias, mean, rstd, dx, dweight,
                                           dbias, given.layout, given.activation);
    p.groups = require_groups(given.num_groups, p.x.shape[p.channel]);
    backward(call, p);
  });
}

dlk_status_t dlk_instance_norm_forward(const DLTensor* x, const DLTensor* weight,
                                       const DLTensor* bias, const DLTensor* running_mean,
                                       const DLTensor* running_var, const DLTensor* y,
                                       const DLTensor* mean, const DLTensor* rstd,
                                       const dlk_instance_norm_params* params,
                                       const dlk_launch* launch) {
  return entry("instance_norm", launch, [&](Call& call) {
    const dlk_instance_norm_params given = read_params(params, kInstanceDefaults);
    require_momentum(given.momentum);
    GroupNormForward p{.x = call.input("x", x),
                       .weight = call.optional_input("weight", weight),
                       .bias = call.optional_input("bias", bias),
                       .y = call.output("y", y),
                       .mean = call.optional_output("mean", mean),
                       .rstd = call.optional_output("rstd", rstd),
                       .eps = given.eps,
                       .activation = require_norm_activation(given.activation),
                       .running_mean = call.optional_inout("running_mean", running_mean),
                       .running_var = call.optional_inout("running_var", running_var),
                       .momentum = given.momentum};
    p.channel = channel_dim(call, given.layout, p.x);
    p.groups = p.x.shape[p.channel];
    require_two_values(p.x, values_of(p), "sample and channel");
    forward(call, p);
  });
}

dlk_status_t dlk_instance_norm_backward(
    const DLTensor* dy, const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
    const DLTensor* mean, const DLTensor* rstd, const DLTensor* dx, const DLTensor* dweight,
    const DLTensor* dbias, const dlk_instance_norm_params* params, const dlk_launch* launch) {
  return entry("instance_norm_backward", launch, [&](Call& call) {
    const dlk_instance_norm_params given = read_params(params, kInstanceDefaults);
    GroupNormBackward p = backward_tensors(call, dy, x, weight, bias, mean, rstd, dx, dweight,
                                           dbias, given.layout, given.activation);
    p.groups = p.x.shape[p.channel];
    backward(call, p);
  });
}
