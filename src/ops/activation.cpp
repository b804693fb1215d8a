#include "ops/activation.h"

#include <dlkern/activation.h>

namespace dlkern {
namespace {

dlk_activation_params checked(const dlk_activation_params* params) {
  const auto p = read_params(params, DLK_ACTIVATION_PARAMS_INIT(DLK_ACTIVATION_NONE));
  if (!is_activation(p.kind)) {
    fail(DLK_INVALID_ARGUMENT, "kind is ", p.kind, ", expected a value of dlk_activation");
  }
  if (p.kind == DLK_ACTIVATION_SOFTPLUS && p.alpha == 0) {
    fail(DLK_INVALID_ARGUMENT, "beta is ", p.alpha, ", expected it not to be 0");
  }
  return p;
}

// Messages name the op that the caller knows.
const char* op_name(const dlk_activation_params* params, bool backward) {
  static constexpr const char* kNames[][2] = {{"activation", "activation_backward"},
                                              {"relu", "relu_backward"},
                                              {"leaky_relu", "leaky_relu_backward"},
                                              {"elu", "elu_backward"},
                                              {"gelu", "gelu_backward"},
                                              {"gelu", "gelu_backward"},
                                              {"silu", "silu_backward"},
                                              {"sigmoid", "sigmoid_backward"},
                                              {"tanh", "tanh_backward"},
                                              {"softplus", "softplus_backward"}};
  const bool known = params && params->struct_size >= 8 && is_activation(params->kind);
  return kNames[known ? params->kind : 0][backward];
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_activation_forward(const DLTensor* x_, const DLTensor* y_,
                                    const dlk_activation_params* params, const dlk_launch* launch) {
  return entry(op_name(params, false), launch, [&](Call& call) {
    const dlk_activation_params p = checked(params);
    const Tensor x = call.input("x", x_);
    const Tensor y = call.output("y", y_);
    call.require_floating(x);
    call.require_like(y, x);
    call.require_same_or_disjoint(y, x);
    call.run(ActivationForward{x, y, static_cast<dlk_activation>(p.kind), p.alpha, p.threshold});
  });
}

dlk_status_t dlk_activation_backward(const DLTensor* dy_, const DLTensor* x_, const DLTensor* dx_,
                                     const dlk_activation_params* params,
                                     const dlk_launch* launch) {
  return entry(op_name(params, true), launch, [&](Call& call) {
    const dlk_activation_params p = checked(params);
    const Tensor dy = call.input("dy", dy_);
    const Tensor x = call.input("x", x_);
    const Tensor dx = call.output("dx", dx_);
    call.require_floating(dy);
    call.require_like(x, dy);
    call.require_like(dx, dy);
    call.require_same_or_disjoint(dx, dy);
    call.require_same_or_disjoint(dx, x);
    call.run(
        ActivationBackward{dy, x, dx, static_cast<dlk_activation>(p.kind), p.alpha, p.threshold});
  });
}
