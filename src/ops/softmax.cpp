#include "ops/softmax.h"

#include <dlkern/softmax.h>

namespace dlkern {
namespace {

constexpr dlk_softmax_params kDefaults = DLK_SOFTMAX_PARAMS_INIT;

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
    call.run(SoftmaxForward{x, y, call.axis("axis", p.axis, x), log});
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
    call.run(SoftmaxBackward{dy, y, dx, call.axis("axis", p.axis, dy), log});
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
