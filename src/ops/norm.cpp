#include "ops/norm.h"

#include <dlkern/norm.h>

#include <cmath>

#include "core/mixed.h"

namespace dlkern {
namespace {

constexpr dlk_batch_norm_params kBatchDefaults = DLK_BATCH_NORM_PARAMS_INIT;
constexpr dlk_layer_norm_params kLayerDefaults = DLK_LAYER_NORM_PARAMS_INIT;
constexpr dlk_rms_norm_params kRmsDefaults = DLK_RMS_NORM_PARAMS_INIT;

using Tensors = std::initializer_list<const Tensor*>;

void require_eps(double eps) {
  if (!(eps >= 0) || std::isinf(eps)) {
    fail(DLK_INVALID_ARGUMENT, "eps is ", eps, ", expected a finite number of at least 0");
  }
}

// The dimension of the channels.
int require_layout(const Call& call, const dlk_batch_norm_params& p, const Tensor& x) {
  call.require_floating(x);
  call.require_rank(x, 2, 5);
  require_eps(p.eps);
  switch (p.layout) {
    case DLK_LAYOUT_NCHW:
      return 1;
    case DLK_LAYOUT_NHWC:
      return x.ndim - 1;
    default:
      fail(DLK_INVALID_ARGUMENT, "layout is ", p.layout, ", expected a dlk_layout");
  }
}

// Those present have this shape and x's dtype, or the one that x is summed in.
void require_parameters(const Call& call, Tensors parameters, std::span<const int64_t> shape,
                        const char* why, const Tensor& x) {
  for (const Tensor* t : parameters) {
    if (!*t) continue;
    require_mixed_dtype(call, *t, x);
    call.require_shape(*t, shape, why);
  }
}

// Those present have this shape and the dtype that x is summed in.
void require_statistics(const Call& call, Tensors statistics, std::span<const int64_t> shape,
                        const char* why, const Tensor& x) {
  for (const Tensor* t : statistics) {
    if (!*t) continue;
    call.require_dtype(*t, {accumulator_of(x.dtype)});
    call.require_shape(*t, shape, why);
  }
}

// Outputs share no memory with inputs and with each other.
void require_disjoint(const Call& call, Tensors outputs, Tensors inputs) {
  for (const Tensor* const* out = outputs.begin(); out != outputs.end(); ++out) {
    for (const Tensor* in : inputs) call.require_disjoint(**out, *in);
    for (const Tensor* const* other = outputs.begin(); other != out; ++other) {
      call.require_disjoint(**out, **other);
    }
  }
}

void batch_norm_training(Call& call, BatchNormTraining p, const dlk_batch_norm_params& params) {
  p.channel = require_layout(call, params, p.x);
  const int64_t channels[] = {p.x.shape[p.channel]};
  const char* why = "the number of channels of x";
  require_parameters(call, {&p.weight, &p.bias, &p.running_mean, &p.running_var}, channels, why,
                     p.x);
  if (!p.running_mean != !p.running_var) {
    fail(DLK_INVALID_ARGUMENT, p.running_mean ? "running_var" : "running_mean",
         " is NULL, expected both running_mean and running_var or neither");
  }
  call.require_like(p.y, p.x);
  require_statistics(call, {&p.mean, &p.rstd}, channels, why, p.x);
  require_disjoint(call, {&p.y, &p.mean, &p.rstd, &p.running_mean, &p.running_var},
                   {&p.x, &p.weight, &p.bias});
  const int64_t values = channels[0] ? p.x.numel() / channels[0] : 2;
  if (values < 2) {
    fail(DLK_INVALID_ARGUMENT, "x.shape is ", shape_string(p.x), " with ", values,
         values == 1 ? " value" : " values",
         " per channel, expected at least 2 to compute statistics from");
  }
  if (!std::isfinite(params.momentum)) {
    fail(DLK_INVALID_ARGUMENT, "momentum is ", params.momentum, ", expected a finite number");
  }
  p.eps = params.eps;
  p.momentum = params.momentum;
  call.run(p);
}

void batch_norm_inference(Call& call, BatchNormInference p, const dlk_batch_norm_params& params) {
  p.channel = require_layout(call, params, p.x);
  require_parameters(call, {&p.weight, &p.bias, &p.running_mean, &p.running_var},
                     {&p.x.shape[p.channel], 1}, "the number of channels of x", p.x);
  call.require_like(p.y, p.x);
  call.require_same_or_disjoint(p.y, p.x);
  require_disjoint(call, {&p.y}, {&p.weight, &p.bias, &p.running_mean, &p.running_var});
  p.eps = params.eps;
  call.run(p);
}

void batch_norm_backward(Call& call, BatchNormBackward p, const dlk_batch_norm_params& params) {
  call.require_floating(p.dy);
  call.require_like(p.x, p.dy);
  p.channel = require_layout(call, params, p.x);
  const std::span<const int64_t> channels{&p.x.shape[p.channel], 1};
  const char* why = "the number of channels of x";
  require_parameters(call, {&p.weight, &p.dweight, &p.dbias}, channels, why, p.x);
  if (p.training) {
    require_statistics(call, {&p.mean, &p.scale}, channels, why, p.x);
  } else {
    require_parameters(call, {&p.mean, &p.scale}, channels, why, p.x);
  }
  call.require_like(p.dx, p.x);
  call.require_same_or_disjoint(p.dx, p.dy);
  call.require_same_or_disjoint(p.dx, p.x);
  require_disjoint(call, {&p.dx, &p.dweight, &p.dbias}, {&p.weight, &p.mean, &p.scale});
  require_disjoint(call, {&p.dweight, &p.dbias}, {&p.dy, &p.x});
  p.eps = params.eps;
  call.run(p);
}

// The gradient with saved statistics (training) or with running ones, which are constants.
dlk_status_t batch_norm_backward(const char* op, bool training, const DLTensor* dy,
                                 const DLTensor* x, const DLTensor* weight, const DLTensor* mean,
                                 const DLTensor* scale, const DLTensor* dx, const DLTensor* dweight,
                                 const DLTensor* dbias, const dlk_batch_norm_params* params,
                                 const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    batch_norm_backward(call,
                        {.dy = call.input("dy", dy),
                         .x = call.input("x", x),
                         .weight = call.optional_input("weight", weight),
                         .mean = call.input(training ? "mean" : "running_mean", mean),
                         .scale = call.input(training ? "rstd" : "running_var", scale),
                         .dx = call.output("dx", dx),
                         .dweight = call.optional_output("dweight", dweight),
                         .dbias = call.optional_output("dbias", dbias),
                         .training = training},
                        read_params(params, kBatchDefaults));
  });
}

int require_rows(const Call& call, const Tensor& x, int normalized_ndim) {
  call.require_floating(x);
  call.require_rank(x, 1, kMaxDims);
  if (normalized_ndim < 1 || normalized_ndim > x.ndim) {
    fail(DLK_INVALID_ARGUMENT, "normalized_ndim is ", normalized_ndim, ", expected 1 to ", x.ndim,
         " for x of ", x.ndim, " dimensions");
  }
  return x.ndim - normalized_ndim;
}

void require_finite_offset(double offset) {
  if (!std::isfinite(offset)) {
    fail(DLK_INVALID_ARGUMENT, "weight_offset is ", offset, ", expected a finite number");
  }
}

// y has x's dtype and nothing beside it, or is float8.
void require_row_outputs(const Call& call, const RowNormForward& p) {
  if (is_float8(p.y.dtype)) {
    call.require_same_shape(p.y, p.x);
  } else {
    call.require_like(p.y, p.x);
  }
  for (const Tensor* t : {&p.scale_out, &p.amax}) {
    if (!*t) continue;
    call.require_scalar(*t, DType::kFloat32);
    if (!is_float8(p.y.dtype)) {
      fail(DLK_INVALID_ARGUMENT, t->name, " is given for y of ", dtype_name(p.y.dtype),
           ", expected none: it belongs to float8");
    }
  }
  if (p.residual) call.require_like(p.residual, p.x);
  if (p.residual_out) call.require_like(p.residual_out, p.x);
  if (p.residual_out && !p.residual) {
    fail(DLK_INVALID_ARGUMENT, "residual_out is given without residual, expected none");
  }
}

void row_norm_forward(Call& call, RowNormForward p, int normalized_ndim) {
  p.axis = require_rows(call, p.x, normalized_ndim);
  require_eps(p.eps);
  require_finite_offset(p.weight_offset);
  const int64_t* shape = p.x.shape.data();
  require_parameters(call, {&p.weight, &p.bias},
                     {shape + p.axis, static_cast<size_t>(normalized_ndim)},
                     "the normalized dimensions of x", p.x);
  require_statistics(call, {&p.mean, &p.rstd}, {shape, static_cast<size_t>(p.axis)},
                     "the other dimensions of x", p.x);
  require_row_outputs(call, p);
  for (const Tensor* out : {&p.y, &p.residual_out}) {
    call.require_same_or_disjoint(*out, p.x);
    call.require_same_or_disjoint(*out, p.residual);
  }
  require_disjoint(call, {&p.y, &p.residual_out, &p.mean, &p.rstd, &p.amax},
                   {&p.weight, &p.bias, &p.scale_out});
  require_disjoint(call, {&p.mean, &p.rstd, &p.amax}, {&p.x, &p.residual});
  call.run(p);
}

void row_norm_backward(Call& call, RowNormBackward p, int normalized_ndim) {
  call.require_floating(p.dy);
  call.require_like(p.x, p.dy);
  p.axis = require_rows(call, p.x, normalized_ndim);
  require_finite_offset(p.weight_offset);
  if (p.dresidual) call.require_like(p.dresidual, p.x);
  const int64_t* shape = p.x.shape.data();
  require_parameters(call, {&p.weight, &p.dweight, &p.dbias},
                     {shape + p.axis, static_cast<size_t>(normalized_ndim)},
                     "the normalized dimensions of x", p.x);
  require_statistics(call, {&p.mean, &p.rstd}, {shape, static_cast<size_t>(p.axis)},
                     "the other dimensions of x", p.x);
  call.require_like(p.dx, p.x);
  call.require_same_or_disjoint(p.dx, p.dy);
  call.require_same_or_disjoint(p.dx, p.x);
  call.require_same_or_disjoint(p.dx, p.dresidual);
  require_disjoint(call, {&p.dx, &p.dweight, &p.dbias}, {&p.weight, &p.mean, &p.rstd});
  require_disjoint(call, {&p.dweight, &p.dbias}, {&p.dy, &p.x, &p.dresidual});
  call.run(p);
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_batch_norm_training(const DLTensor* x, const DLTensor* weight,
                                     const DLTensor* bias, const DLTensor* running_mean,
                                     const DLTensor* running_var, const DLTensor* y,
                                     const DLTensor* save_mean, const DLTensor* save_rstd,
                                     const dlk_batch_norm_params* params,
                                     const dlk_launch* launch) {
  return entry("batch_norm_training", launch, [&](Call& call) {
    batch_norm_training(call,
                        {.x = call.input("x", x),
                         .weight = call.optional_input("weight", weight),
                         .bias = call.optional_input("bias", bias),
                         .running_mean = call.optional_inout("running_mean", running_mean),
                         .running_var = call.optional_inout("running_var", running_var),
                         .y = call.output("y", y),
                         .mean = call.output("mean", save_mean),
                         .rstd = call.output("rstd", save_rstd)},
                        read_params(params, kBatchDefaults));
  });
}

dlk_status_t dlk_batch_norm_inference(const DLTensor* x, const DLTensor* weight,
                                      const DLTensor* bias, const DLTensor* running_mean,
                                      const DLTensor* running_var, const DLTensor* y,
                                      const dlk_batch_norm_params* params,
                                      const dlk_launch* launch) {
  return entry("batch_norm", launch, [&](Call& call) {
    batch_norm_inference(call,
                         {.x = call.input("x", x),
                          .weight = call.optional_input("weight", weight),
                          .bias = call.optional_input("bias", bias),
                          .running_mean = call.input("running_mean", running_mean),
                          .running_var = call.input("running_var", running_var),
                          .y = call.output("y", y)},
                         read_params(params, kBatchDefaults));
  });
}

dlk_status_t dlk_batch_norm_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* weight,
                                     const DLTensor* mean, const DLTensor* rstd, const DLTensor* dx,
                                     const DLTensor* dweight, const DLTensor* dbias,
                                     const dlk_batch_norm_params* params,
                                     const dlk_launch* launch) {
  return batch_norm_backward("batch_norm_backward", true, dy, x, weight, mean, rstd, dx, dweight,
                             dbias, params, launch);
}

dlk_status_t dlk_batch_norm_inference_backward(const DLTensor* dy, const DLTensor* x,
                                               const DLTensor* weight, const DLTensor* running_mean,
                                               const DLTensor* running_var, const DLTensor* dx,
                                               const DLTensor* dweight, const DLTensor* dbias,
                                               const dlk_batch_norm_params* params,
                                               const dlk_launch* launch) {
  return batch_norm_backward("batch_norm_inference_backward", false, dy, x, weight, running_mean,
                             running_var, dx, dweight, dbias, params, launch);
}

dlk_status_t dlk_layer_norm_forward(const DLTensor* x, const DLTensor* residual,
                                    const DLTensor* weight, const DLTensor* bias,
                                    const DLTensor* scale_out, const DLTensor* y,
                                    const DLTensor* residual_out, const DLTensor* mean,
                                    const DLTensor* rstd, const DLTensor* amax,
                                    const dlk_layer_norm_params* params, const dlk_launch* launch) {
  return entry("layer_norm", launch, [&](Call& call) {
    const dlk_layer_norm_params p = read_params(params, kLayerDefaults);
    row_norm_forward(call,
                     {.x = call.input("x", x),
                      .residual = call.optional_input("residual", residual),
                      .weight = call.optional_input("weight", weight),
                      .scale_out = call.optional_input("scale_out", scale_out),
                      .y = call.output("y", y),
                      .residual_out = call.optional_output("residual_out", residual_out),
                      .rstd = call.optional_output("rstd", rstd),
                      .amax = call.optional_output("amax", amax),
                      .eps = p.eps,
                      .weight_offset = p.weight_offset,
                      .rms = false,
                      .bias = call.optional_input("bias", bias),
                      .mean = call.optional_output("mean", mean)},
                     p.normalized_ndim);
  });
}

dlk_status_t dlk_layer_norm_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* weight,
                                     const DLTensor* mean, const DLTensor* rstd,
                                     const DLTensor* dresidual, const DLTensor* dx,
                                     const DLTensor* dweight, const DLTensor* dbias,
                                     const dlk_layer_norm_params* params,
                                     const dlk_launch* launch) {
  return entry("layer_norm_backward", launch, [&](Call& call) {
    const dlk_layer_norm_params p = read_params(params, kLayerDefaults);
    row_norm_backward(call,
                      {.dy = call.input("dy", dy),
                       .x = call.input("x", x),
                       .weight = call.optional_input("weight", weight),
                       .rstd = call.input("rstd", rstd),
                       .dresidual = call.optional_input("dresidual", dresidual),
                       .dx = call.output("dx", dx),
                       .dweight = call.optional_output("dweight", dweight),
                       .weight_offset = p.weight_offset,
                       .rms = false,
                       .mean = call.input("mean", mean),
                       .dbias = call.optional_output("dbias", dbias)},
                      p.normalized_ndim);
  });
}

dlk_status_t dlk_rms_norm_forward(const DLTensor* x, const DLTensor* residual,
                                  const DLTensor* weight, const DLTensor* scale_out,
                                  const DLTensor* y, const DLTensor* residual_out,
                                  const DLTensor* rstd, const DLTensor* amax,
                                  const dlk_rms_norm_params* params, const dlk_launch* launch) {
  return entry("rms_norm", launch, [&](Call& call) {
    const dlk_rms_norm_params p = read_params(params, kRmsDefaults);
    row_norm_forward(call,
                     {.x = call.input("x", x),
                      .residual = call.optional_input("residual", residual),
                      .weight = call.optional_input("weight", weight),
                      .scale_out = call.optional_input("scale_out", scale_out),
                      .y = call.output("y", y),
                      .residual_out = call.optional_output("residual_out", residual_out),
                      .rstd = call.optional_output("rstd", rstd),
                      .amax = call.optional_output("amax", amax),
                      .eps = p.eps,
                      .weight_offset = p.weight_offset,
                      .rms = true},
                     p.normalized_ndim);
  });
}

dlk_status_t dlk_rms_norm_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* weight,
                                   const DLTensor* rstd, const DLTensor* dresidual,
                                   const DLTensor* dx, const DLTensor* dweight,
                                   const dlk_rms_norm_params* params, const dlk_launch* launch) {
  return entry("rms_norm_backward", launch, [&](Call& call) {
    const dlk_rms_norm_params p = read_params(params, kRmsDefaults);
    row_norm_backward(call,
                      {.dy = call.input("dy", dy),
                       .x = call.input("x", x),
                       .weight = call.optional_input("weight", weight),
                       .rstd = call.input("rstd", rstd),
                       .dresidual = call.optional_input("dresidual", dresidual),
                       .dx = call.output("dx", dx),
                       .dweight = call.optional_output("dweight", dweight),
                       .weight_offset = p.weight_offset,
                       .rms = true},
                      p.normalized_ndim);
  });
}
