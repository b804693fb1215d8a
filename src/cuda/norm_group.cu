// Group and instance norm: a set is a group of channels of one sample (norm_sets.h).
//
//   forward    mean, var over the M values of a set;  rstd = 1 / sqrt(var + eps)
//              y = f((x - mean) * rstd * weight_c + bias_c)
//   backward   dz = dy f'(...), xhat = (x - mean) * rstd, g = dz * weight_c
//              dx = rstd * (g - avg(g) - xhat * avg(g * xhat))
//              dweight_c = sum dz * xhat,  dbias_c = sum dz
#include "cuda/norm_sets.h"
#include "ops/norm_group.h"

namespace dlkern {
namespace {

using namespace gpu;

SetForward sets_of(const GroupNormForward& p) {
  return {.x = p.x,
          .weight = p.weight,
          .bias = p.bias,
          .residual = {},
          .y = p.y,
          .mean = p.mean,
          .rstd = p.rstd,
          .running_mean = p.running_mean,
          .running_var = p.running_var,
          .num_batches = {},
          .given_mean = {},
          .given_var = {},
          .shape = group_sets(p.channel, p.groups),
          .eps = p.eps,
          .momentum = p.momentum,
          .cumulative = false,
          .activation = p.activation};
}
SetBackward sets_of(const GroupNormBackward& p) {
  return {.dy = p.dy,
          .x = p.x,
          .weight = p.weight,
          .bias = p.bias,
          .y = {},
          .mean = p.mean,
          .rstd = p.rstd,
          .dx = p.dx,
          .dweight = p.dweight,
          .dbias = p.dbias,
          .dresidual = {},
          .shape = group_sets(p.channel, p.groups),
          .eps = 0,
          .activation = p.activation,
          .given = false};
}

constexpr Impl<GroupNormForward> kForward[] = {
    forward_impl<kSetsOfPlanes, GroupNormForward, sets_of>("planes"),
    forward_impl<kSetsOfColumns, GroupNormForward, sets_of>("columns"),
    forward_impl<kSetsOfStreams, GroupNormForward, sets_of>("streams"),
};
constexpr Impl<GroupNormBackward> kBackward[] = {
    backward_impl<kSetsOfPlanes, GroupNormBackward, sets_of>("planes"),
    backward_impl<kSetsOfColumns, GroupNormBackward, sets_of>("columns"),
    backward_impl<kSetsOfStreams, GroupNormBackward, sets_of>("streams"),
};

}  // namespace

template <>
ImplList<GroupNormForward> gpu_impls<GroupNormForward>() {
  return kForward;
}
template <>
ImplList<GroupNormBackward> gpu_impls<GroupNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
