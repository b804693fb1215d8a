// Batch norm: a set is a channel (norm_sets.cuh).
//
//   training   mean_c, var_c over the M positions of channel c;  rstd = 1 / sqrt(var + eps)
//              y = f((x - mean) * rstd * weight + bias + residual)
//   backward   dz = dy f'(...), dbias = sum dz,  dweight = sum dz * xhat,  xhat = (x - mean) * rstd
//              dx = weight * rstd * (dz - dbias / M - xhat * dweight / M)
#include "cuda/norm_sets.h"
#include "ops/norm_batch.h"

namespace dlkern {
namespace {

using namespace gpu;
SetForward sets_of(const BatchNormTraining& p) {
  return {.x = p.x,
          .weight = p.weight,
          .bias = p.bias,
          .residual = p.residual,
          .y = p.y,
          .mean = p.var ? Tensor{} : p.mean,
          .rstd = p.rstd,
          .running_mean = p.running_mean,
          .running_var = p.running_var,
          .num_batches = p.num_batches,
          .given_mean = p.var ? p.mean : Tensor{},
          .given_var = p.var,
          .shape = batch_sets(p.channel),
          .eps = p.eps,
          .momentum = p.momentum,
          .cumulative = p.cumulative,
          .activation = p.activation};
}
SetForward sets_of(const BatchNormInference& p) {
  return {.x = p.x,
          .weight = p.weight,
          .bias = p.bias,
          .residual = p.residual,
          .y = p.y,
          .mean = {},
          .rstd = {},
          .running_mean = {},
          .running_var = {},
          .num_batches = {},
          .given_mean = p.running_mean,
          .given_var = p.running_var,
          .shape = batch_sets(p.channel),
          .eps = p.eps,
          .momentum = 0,
          .cumulative = false,
          .activation = p.activation};
}
SetBackward sets_of(const BatchNormBackward& p) {
  return {.dy = p.dy,
          .x = p.x,
          .weight = p.weight,
          .bias = p.bias,
          .y = p.y,
          .mean = p.mean,
          .rstd = p.scale,
          .dx = p.dx,
          .dweight = p.dweight,
          .dbias = p.dbias,
          .dresidual = p.dresidual,
          .shape = batch_sets(p.channel),
          .eps = p.eps,
          .activation = p.activation,
          .given = !p.training};
}

constexpr Impl<BatchNormTraining> kTraining[] = {
    forward_impl<kSetsOfTiles, BatchNormTraining, sets_of>("tiles"),
    forward_impl<kSetsOfPlanes, BatchNormTraining, sets_of>("planes"),
    forward_impl<kSetsOfColumns, BatchNormTraining, sets_of>("columns"),
    forward_impl<kSetsOfStreams, BatchNormTraining, sets_of>("streams"),
};
constexpr Impl<BatchNormInference> kInference[] = {
    forward_impl<kSetsOfColumns, BatchNormInference, sets_of>("columns"),
    forward_impl<kSetsOfStreams, BatchNormInference, sets_of>("streams"),
};
constexpr Impl<BatchNormBackward> kBackward[] = {
    backward_impl<kSetsOfTiles, BatchNormBackward, sets_of>("tiles"),
    backward_impl<kSetsOfPlanes, BatchNormBackward, sets_of>("planes"),
    backward_impl<kSetsOfColumns, BatchNormBackward, sets_of>("columns"),
    backward_impl<kSetsOfStreams, BatchNormBackward, sets_of>("streams"),
};

}  // namespace

template <>
ImplList<BatchNormTraining> gpu_impls<BatchNormTraining>() {
  return kTraining;
}
template <>
ImplList<BatchNormInference> gpu_impls<BatchNormInference>() {
  return kInference;
}
template <>
ImplList<BatchNormBackward> gpu_impls<BatchNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
