#include "ops/softmax.h"

#include <dlkern/softmax.h>

#include <cmath>

namespace dlkern {
namespace {

constexpr dlk_softmax_params kDefaults = DLK_SOFTMAX_PARAMS_INIT;

double scale_of(const dlk_softmax_params& p) {
  if (!(p.scale > 0) || std::isinf(p.scale)) {
    fail(DLK_INVALID_ARGUMENT, "scale is ", p.scale, ", expected a positive number");
  }
  return p.scale;
}

Tensor mask_of(Call& call, const dlk_softmax_params& p, const Tensor& x, const Tensor& y) {
  const Tensor mask = call.optional_input("mask", p.mask);
  if (!mask) return mask;
  if (mask.dtype != DType::kBool && !is_floating(mask.dtype)) {
    fail(DLK_UNSUPPORTED_DTYPE, "mask.dtype is ", dtype_name(mask.dtype),
         ", expected bool, float64, float32, float16 or bfloat16");
  }
  call.require_broadcasts(mask, x, "x.shape");
  call.require_disjoint(y, mask);
  return with_rank(mask, x.ndim);
}

dlk_status_t forward(const char* op, bool log, const DLTensor* x_, const DLTensor* y_,
                     const dlk_softmax_params* params, const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_softmax_params p = read_params(params, kDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor y = call.output("y", y_);
    call.require_floating(x);
    call.require_rank(x, 1, kMaxDims);
    call.require_like(y, x);
    call.require_same_or_disjoint(y, x);
    const int axis = call.axis("axis", p.axis, x);
    if (p.causal && (x.ndim < 2 || axis != x.ndim - 1)) {
      fail(DLK_INVALID_ARGUMENT, "axis is ", p.axis, " of ", x.ndim,
           " dimensions, expected the last of two or more for a causal mask");
    }
    const Tensor mask = mask_of(call, p, x, y);
    call.run(SoftmaxForward{x, mask, y, axis, log, p.causal != 0, scale_of(p)});
  });
}

dlk_status_t backward(const char* op, bool log, const DLTensor* dy_, const DLTensor* y_,
                      const DLTensor* dx_, const dlk_softmax_params* params,
                      const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_softmax_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor y = call.input("y", y_);
    const Tensor dx = call.output("dx", dx_);
    call.require_floating(dy);
    call.require_rank(dy, 1, kMaxDims);
    call.require_like(y, dy);
    call.require_like(dx, dy);
    call.require_same_or_disjoint(dx, dy);
    call.require_same_or_disjoint(dx, y);
    call.run(SoftmaxBackward{dy, y, dx, call.axis("axis", p.axis, dy), log, scale_of(p)});
  });
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_softmax_forward(const DLTensor* x, const DLTensor* y,
                                 const dlk_softmax_params* params, const dlk_launch* launch) {
  return dlkern::forward("softmax", false, x, y, params, launch);
}

dlk_status_t dlk_log_softmax_forward(const DLTensor* x, const DLTensor* y,
                                     const dlk_softmax_params* params, const dlk_launch* launch) {
  return dlkern::forward("log_softmax", true, x, y, params, launch);
}

dlk_status_t dlk_softmax_backward(const DLTensor* dy, const DLTensor* y, const DLTensor* dx,
                                  const dlk_softmax_params* params, const dlk_launch* launch) {
  return dlkern::backward("softmax_backward", false, dy, y, dx, params, launch);
}

dlk_status_t dlk_log_softmax_backward(const DLTensor* dy, const DLTensor* y, const DLTensor* dx,
                                      const dlk_softmax_params* params, const dlk_launch* launch) {
  return dlkern::backward("log_softmax_backward", true, dy, y, dx, params, launch);
}
