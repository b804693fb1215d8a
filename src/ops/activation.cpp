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
                                              {"softplus", "softplus_backward"},
                                              {"relu6", "relu6_backward"},
                                              {"hardswish", "hardswish_backward"},
                                              {"hardsigmoid", "hardsigmoid_backward"},
                                              {"mish", "mish_backward"},
                                              {"selu", "selu_backward"}};
  const bool known = params && params->struct_size >= 8 && is_activation(params->kind);
  return kNames[known ? params->kind : 0][backward];
}

// ---- Gated linear units --------------------------------------------------------------------------

constexpr dlk_gated_params kGatedDefaults = DLK_GATED_PARAMS_INIT(DLK_ACTIVATION_NONE);

dlk_gated_params checked(const dlk_gated_params* params) {
  const auto p = read_params(params, kGatedDefaults);
  if (!is_gate(p.kind)) {
    fail(
        DLK_INVALID_ARGUMENT, "kind is ", p.kind,
        ", expected that of an activation without parameters: none, relu, gelu, gelu_tanh, silu or "
        "sigmoid");
  }
  return p;
}

const char* gated_name(const dlk_gated_params* params, bool backward) {
  const int kind = params && params->struct_size >= 8 ? params->kind : DLK_ACTIVATION_NONE;
  switch (kind) {
    case DLK_ACTIVATION_RELU:
      return backward ? "reglu_backward" : "reglu";
    case DLK_ACTIVATION_GELU:
    case DLK_ACTIVATION_GELU_TANH:
      return backward ? "geglu_backward" : "geglu";
    case DLK_ACTIVATION_SILU:
      return backward ? "swiglu_backward" : "swiglu";
    case DLK_ACTIVATION_SIGMOID:
      return backward ? "glu_backward" : "glu";
    default:
      return backward ? "gated_backward" : "gated";
  }
}

// Gate and up, of a packed tensor its halves. An axis of 2 has a half of extent 1, whose stride is
// the contiguous one as everywhere.
struct Halves {
  Tensor gate, up;
};
Halves halves(const Tensor& packed, bool gate_last) {
  const int last = packed.ndim - 1;
  if (last < 0 || packed.shape[last] % 2 != 0) {
    fail(DLK_INVALID_ARGUMENT, packed.name, ".shape is ", shape_string(packed),
         ", expected an even last extent (gate and up side by side)");
  }
  Tensor first = packed;
  first.shape[last] /= 2;
  Tensor second = first;
  const int64_t offset = first.shape[last] * packed.strides[last];
  second.data = packed.as<char>() + offset * static_cast<int64_t>(dtype_size(packed.dtype));
  return gate_last ? Halves{second, first} : Halves{first, second};
}

Halves gate_and_up(Call& call, const DLTensor* gate_, const DLTensor* up_, bool gate_last) {
  const Tensor gate = call.input("gate", gate_);
  if (!up_) return halves(gate, gate_last);
  const Tensor up = call.input("up", up_);
  call.require_like(up, gate);
  return {gate, up};
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

dlk_status_t dlk_gated_forward(const DLTensor* gate_, const DLTensor* up_, const DLTensor* y_,
                               const dlk_gated_params* params, const dlk_launch* launch) {
  return entry(gated_name(params, false), launch, [&](Call& call) {
    const dlk_gated_params p = checked(params);
    const auto [gate, up] = gate_and_up(call, gate_, up_, p.gate_last);
    const Tensor y = call.output("y", y_);
    call.require_floating(gate);
    call.require_like(y, gate);
    call.require_same_or_disjoint(y, gate);
    call.require_same_or_disjoint(y, up);
    call.run(GatedForward{gate, up, y, static_cast<dlk_activation>(p.kind)});
  });
}

dlk_status_t dlk_gated_backward(const DLTensor* dy_, const DLTensor* gate_, const DLTensor* up_,
                                const DLTensor* dgate_, const DLTensor* dup_,
                                const dlk_gated_params* params, const dlk_launch* launch) {
  return entry(gated_name(params, true), launch, [&](Call& call) {
    const dlk_gated_params p = checked(params);
    const Tensor dy = call.input("dy", dy_);
    const auto [gate, up] = gate_and_up(call, gate_, up_, p.gate_last);
    Halves gradient{call.output("dgate", dgate_), {}};
    if (up_) {
      gradient.up = call.output("dup", dup_);
    } else {
      gradient = halves(gradient.gate, p.gate_last);
    }
    call.require_floating(dy);
    call.require_like(gate, dy);
    for (const Tensor* out : {&gradient.gate, &gradient.up}) {
      call.require_like(*out, dy);
      for (const Tensor* in : {&dy, &gate, &up}) call.require_same_or_disjoint(*out, *in);
    }
    call.require_disjoint(gradient.gate, gradient.up);
    call.run(GatedBackward{dy, gate, up, gradient.gate, gradient.up,
                           static_cast<dlk_activation>(p.kind)});
  });
}
