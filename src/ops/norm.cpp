#include "ops/norm.h"

#include <dlkern/norm.h>

#include "ops/norm_checks.h"

namespace dlkern {
namespace {

constexpr dlk_layer_norm_params kLayerDefaults = DLK_LAYER_NORM_PARAMS_INIT;
constexpr dlk_rms_norm_params kRmsDefaults = DLK_RMS_NORM_PARAMS_INIT;

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
