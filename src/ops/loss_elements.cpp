#include <dlkern/loss.h>

#include <cmath>

#include "core/mixed.h"
#include "ops/loss.h"

namespace dlkern {
namespace {

constexpr dlk_loss_params kDefaults = DLK_LOSS_PARAMS_INIT;

constexpr struct {
  const char* forward;
  const char* backward;
} kNames[] = {{"mse_loss", "mse_loss_backward"},
              {"l1_loss", "l1_loss_backward"},
              {"smooth_l1_loss", "smooth_l1_loss_backward"},
              {"huber_loss", "huber_loss_backward"},
              {"binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits_backward"},
              {"kl_div", "kl_div_backward"},
              {"kl_div", "kl_div_backward"}};

bool is_kind(int32_t kind) { return kind >= DLK_LOSS_MSE && kind <= DLK_LOSS_KL_DIV_LOG_TARGET; }

// The op's index in kNames, before params have been checked.
int32_t name_of(const dlk_loss_params* params) {
  const bool has_kind = params && params->struct_size >= 2 * sizeof(int32_t);
  return has_kind && is_kind(params->kind) ? params->kind : DLK_LOSS_MSE;
}

// Fills and checks what both directions share. `loss` is loss or dloss.
void prepare(Call& call, ElementLoss& p, const Tensor& loss, const dlk_loss_params& params) {
  if (!is_kind(params.kind)) {
    fail(DLK_INVALID_ARGUMENT, "kind is ", params.kind, ", expected a dlk_loss_kind");
  }
  p.kind = static_cast<dlk_loss_kind>(params.kind);
  p.reduction = checked_reduction(params.reduction);
  const bool huber = p.kind == DLK_LOSS_HUBER;
  p.threshold = params.threshold;
  if (!(huber ? p.threshold > 0 : p.threshold >= 0) || std::isinf(p.threshold)) {
    fail(DLK_INVALID_ARGUMENT, huber ? "delta" : "beta", " is ", p.threshold,
         huber ? ", expected a positive number" : ", expected a number that is not negative");
  }
  call.require_floating(p.x);
  call.require_like(p.target, p.x);
  for (Tensor* t : {&p.weight, &p.pos_weight}) {
    if (!*t) continue;
    if (p.kind != DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS) {
      fail(DLK_INVALID_ARGUMENT, t->name, " is given, expected none for ", kNames[p.kind].forward);
    }
    call.require_same_dtype(*t, p.x);
    call.require_broadcasts(*t, p.x, "x.shape");
    *t = with_rank(*t, p.x.ndim);
  }
  if (p.reduction == DLK_REDUCTION_NONE) {
    call.require_like(loss, p.x);
  } else {
    require_mixed_dtype(call, loss, p.x);
    call.require_shape(loss, {}, "a scalar, as reduction is not none");
  }
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_loss_forward(const DLTensor* x, const DLTensor* target, const DLTensor* weight,
                              const DLTensor* pos_weight, const DLTensor* loss,
                              const dlk_loss_params* params, const dlk_launch* launch) {
  return entry(kNames[name_of(params)].forward, launch, [&](Call& call) {
    const dlk_loss_params q = read_params(params, kDefaults);
    ElementLossForward p;
    p.x = call.input("x", x);
    p.target = call.input("target", target);
    p.weight = call.optional_input("weight", weight);
    p.pos_weight = call.optional_input("pos_weight", pos_weight);
    p.loss = call.output("loss", loss);
    prepare(call, p, p.loss, q);
    if (p.reduction == DLK_REDUCTION_NONE) {
      call.require_same_or_disjoint(p.loss, p.x);
      call.require_same_or_disjoint(p.loss, p.target);
    } else {
      call.require_disjoint(p.loss, p.x);
      call.require_disjoint(p.loss, p.target);
    }
    for (const Tensor* in : {&p.weight, &p.pos_weight}) {
      if (*in) call.require_disjoint(p.loss, *in);
    }
    call.run(p);
  });
}

dlk_status_t dlk_loss_backward(const DLTensor* dloss, const DLTensor* x, const DLTensor* target,
                               const DLTensor* weight, const DLTensor* pos_weight,
                               const DLTensor* dx, const dlk_loss_params* params,
                               const dlk_launch* launch) {
  return entry(kNames[name_of(params)].backward, launch, [&](Call& call) {
    const dlk_loss_params q = read_params(params, kDefaults);
    ElementLossBackward p;
    p.dloss = call.input("dloss", dloss);
    p.x = call.input("x", x);
    p.target = call.input("target", target);
    p.weight = call.optional_input("weight", weight);
    p.pos_weight = call.optional_input("pos_weight", pos_weight);
    p.dx = call.output("dx", dx);
    prepare(call, p, p.dloss, q);
    call.require_like(p.dx, p.x);
    call.require_same_or_disjoint(p.dx, p.x);
    call.require_same_or_disjoint(p.dx, p.target);
    if (p.reduction == DLK_REDUCTION_NONE) {
      call.require_same_or_disjoint(p.dx, p.dloss);
    } else {
      call.require_disjoint(p.dx, p.dloss);
    }
    for (const Tensor* in : {&p.weight, &p.pos_weight}) {
      if (*in) call.require_disjoint(p.dx, *in);
    }
    call.run(p);
  });
}
