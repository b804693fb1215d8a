#include "ops/loss.h"

#include <dlkern/loss.h>

#include <cmath>

#include "core/mixed.h"

namespace dlkern {
namespace {

constexpr dlk_cross_entropy_params kDefaults = DLK_CROSS_ENTROPY_PARAMS_INIT;
constexpr dlk_nll_loss_params kNllDefaults = DLK_NLL_LOSS_PARAMS_INIT;

// t with a dimension of extent 1 before dimension `axis`.
Tensor insert_dimension(const Tensor& t, int axis) {
  Tensor r = t;
  ++r.ndim;
  for (int d = r.ndim - 1; d > axis; --d) {
    r.shape[d] = t.shape[d - 1];
    r.strides[d] = t.strides[d - 1];
  }
  r.shape[axis] = 1;
  r.strides[axis] = 1;
  return r;
}

// Fills and checks what all directions share. `per_row` are loss and dloss, where present.
void prepare_rows(Call& call, CrossEntropy& p, std::initializer_list<Tensor*> per_row,
                  int32_t reduction, int64_t ignore_index) {
  call.require_floating(p.logits);
  call.require_rank(p.logits, 1, kMaxDims);
  call.require_dtype(p.labels, {DType::kInt64, DType::kInt32});
  p.axis = p.logits.ndim == 1 ? 0 : 1;
  Dims shape{};  // of labels
  int ndim = 0;
  for (int d = 0; d < p.logits.ndim; ++d) {
    if (d != p.axis) shape[ndim++] = p.logits.shape[d];
  }
  const std::span<const int64_t> rows{shape.data(), static_cast<size_t>(ndim)};
  call.require_shape(p.labels, rows, "logits.shape without the classes");
  if (p.weight) {
    require_mixed_dtype(call, p.weight, p.logits);
    const int64_t classes[] = {p.classes()};
    call.require_shape(p.weight, classes, "the number of classes of logits");
  }
  p.reduction = checked_reduction(reduction);
  p.ignore_index = ignore_index;
  for (Tensor* t : per_row) {
    if (!*t) continue;
    require_mixed_dtype(call, *t, p.logits);
    if (p.reduction == DLK_REDUCTION_NONE) {
      call.require_shape(*t, rows, "labels.shape");
      *t = insert_dimension(*t, p.axis);
    } else {
      call.require_shape(*t, {}, "a scalar, as reduction is not none");
    }
  }
  if (call.device().is_gpu && call.checks_values()) {
    const std::vector<int64_t> labels = call.read_integers(p.labels);
    for (size_t i = 0; i < labels.size(); ++i) check_label(p, labels[i], i);
  }
  p.labels = insert_dimension(p.labels, p.axis);
}

void prepare(Call& call, CrossEntropy& p, std::initializer_list<Tensor*> per_row,
             const dlk_cross_entropy_params& params) {
  if (!(params.label_smoothing >= 0 && params.label_smoothing <= 1)) {
    fail(DLK_INVALID_ARGUMENT, "label_smoothing is ", params.label_smoothing,
         ", expected a number in [0, 1]");
  }
  p.smoothing = params.label_smoothing;
  if (!(params.z_loss >= 0) || std::isinf(params.z_loss)) {
    fail(DLK_INVALID_ARGUMENT, "z_loss is ", params.z_loss,
         ", expected a number that is not negative");
  }
  p.z_loss = params.z_loss;
  prepare_rows(call, p, per_row, params.reduction, params.ignore_index);
}

}  // namespace

dlk_reduction checked_reduction(int32_t reduction) {
  if (reduction < DLK_REDUCTION_NONE || reduction > DLK_REDUCTION_SUM) {
    fail(DLK_INVALID_ARGUMENT, "reduction is ", reduction, ", expected a dlk_reduction");
  }
  return static_cast<dlk_reduction>(reduction);
}

void check_label(const CrossEntropy& p, int64_t label, int64_t i) {
  if (label == p.ignore_index || (label >= 0 && label < p.classes())) return;
  fail(DLK_INVALID_ARGUMENT, "labels holds ", label, " at flat index ", i, ", expected 0 to ",
       p.classes() - 1, " for ", p.classes(), " classes, or ignore_index (", p.ignore_index, ")");
}

}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_cross_entropy_forward(const DLTensor* logits, const DLTensor* labels,
                                       const DLTensor* weight, const DLTensor* loss,
                                       const dlk_cross_entropy_params* params,
                                       const dlk_launch* launch) {
  return entry("cross_entropy", launch, [&](Call& call) {
    CrossEntropyForward p;
    p.logits = call.input("logits", logits);
    p.labels = call.input("labels", labels);
    p.weight = call.optional_input("weight", weight);
    p.loss = call.output("loss", loss);
    for (const Tensor* in : {&p.logits, &p.labels, &p.weight}) call.require_disjoint(p.loss, *in);
    prepare(call, p, {&p.loss}, read_params(params, kDefaults));
    call.run(p);
  });
}

namespace dlkern {
namespace {

// The gradient, and the loss too where one is given.
dlk_status_t backward(const char* op, const DLTensor* dloss, const DLTensor* logits,
                      const DLTensor* labels, const DLTensor* weight, const DLTensor* loss,
                      const DLTensor* dlogits, const dlk_cross_entropy_params* params,
                      const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    CrossEntropyBackward p;
    p.logits = call.input("logits", logits);
    p.labels = call.input("labels", labels);
    p.weight = call.optional_input("weight", weight);
    p.dloss = call.optional_input("dloss", dloss);
    p.loss = call.optional_output("loss", loss);
    p.dlogits = call.output("dlogits", dlogits);
    prepare(call, p, {&p.dloss, &p.loss}, read_params(params, kDefaults));
    call.require_like(p.dlogits, p.logits);
    call.require_same_or_disjoint(p.dlogits, p.logits);
    for (const Tensor* in : {&p.dloss, &p.labels, &p.weight}) {
      call.require_disjoint(p.dlogits, *in);
    }
    if (p.loss) {
      for (const Tensor* other : {&p.logits, &p.labels, &p.weight, &p.dloss, &p.dlogits}) {
        call.require_disjoint(p.loss, *other);
      }
    }
    call.run(p);
  });
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_cross_entropy_backward(const DLTensor* dloss, const DLTensor* logits,
                                        const DLTensor* labels, const DLTensor* weight,
                                        const DLTensor* dlogits,
                                        const dlk_cross_entropy_params* params,
                                        const dlk_launch* launch) {
  const char* op = "cross_entropy_backward";
  if (!dloss) return set_last_error(DLK_INVALID_ARGUMENT, op, "dloss is NULL");
  return backward(op, dloss, logits, labels, weight, nullptr, dlogits, params, launch);
}

dlk_status_t dlk_cross_entropy_forward_backward(const DLTensor* logits, const DLTensor* labels,
                                                const DLTensor* weight, const DLTensor* dloss,
                                                const DLTensor* loss, const DLTensor* dlogits,
                                                const dlk_cross_entropy_params* params,
                                                const dlk_launch* launch) {
  const char* op = "cross_entropy_with_grad";
  if (!loss) return set_last_error(DLK_INVALID_ARGUMENT, op, "loss is NULL");
  return backward(op, dloss, logits, labels, weight, loss, dlogits, params, launch);
}

dlk_status_t dlk_nll_loss_forward(const DLTensor* log_p, const DLTensor* labels,
                                  const DLTensor* weight, const DLTensor* loss,
                                  const dlk_nll_loss_params* params, const dlk_launch* launch) {
  return entry("nll_loss", launch, [&](Call& call) {
    const dlk_nll_loss_params q = read_params(params, kNllDefaults);
    NllForward p;
    p.logits = call.input("log_p", log_p);
    p.labels = call.input("labels", labels);
    p.weight = call.optional_input("weight", weight);
    p.loss = call.output("loss", loss);
    for (const Tensor* in : {&p.logits, &p.labels, &p.weight}) call.require_disjoint(p.loss, *in);
    prepare_rows(call, p, {&p.loss}, q.reduction, q.ignore_index);
    call.run(p);
  });
}

dlk_status_t dlk_nll_loss_backward(const DLTensor* dloss, const DLTensor* log_p,
                                   const DLTensor* labels, const DLTensor* weight,
                                   const DLTensor* dlog_p, const dlk_nll_loss_params* params,
                                   const dlk_launch* launch) {
  return entry("nll_loss_backward", launch, [&](Call& call) {
    const dlk_nll_loss_params q = read_params(params, kNllDefaults);
    NllBackward p;
    p.dloss = call.input("dloss", dloss);
    p.labels = call.input("labels", labels);
    p.weight = call.optional_input("weight", weight);
    p.logits = call.input("log_p", log_p);
    p.dlogits = call.output("dlog_p", dlog_p);
    for (const Tensor* in : {&p.dloss, &p.labels, &p.weight}) {
      call.require_disjoint(p.dlogits, *in);
    }
    call.require_same_or_disjoint(p.dlogits, p.logits);
    prepare_rows(call, p, {&p.dloss}, q.reduction, q.ignore_index);
    call.require_like(p.dlogits, p.logits);
    p.logits = p.dlogits;  // the values are not needed
    call.run(p);
  });
}
