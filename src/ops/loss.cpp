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

// The shape of logits without the classes.
struct RowShape {
  Dims extents{};
  int ndim = 0;

  explicit RowShape(const CrossEntropy& p) {
    for (int d = 0; d < p.logits.ndim; ++d) {
      if (d != p.axis) extents[ndim++] = p.logits.shape[d];
    }
  }
  std::span<const int64_t> span() const { return {extents.data(), static_cast<size_t>(ndim)}; }
};

// Fills and checks all but the labels. `per_row` are loss and dloss, where present.
void prepare_rows(Call& call, CrossEntropy& p, std::initializer_list<Tensor*> per_row,
                  int32_t reduction) {
  call.require_floating(p.logits);
  call.require_rank(p.logits, 1, kMaxDims);
  p.axis = p.logits.ndim == 1 ? 0 : 1;
  if (p.weight) {
    require_mixed_dtype(call, p.weight, p.logits);
    const int64_t classes[] = {p.classes()};
    call.require_shape(p.weight, classes, "the number of classes of logits");
  }
  p.reduction = checked_reduction(reduction);
  for (Tensor* t : per_row) {
    if (!*t) continue;
    require_mixed_dtype(call, *t, p.logits);
    if (p.reduction == DLK_REDUCTION_NONE) {
      call.require_shape(*t, RowShape(p).span(), "logits.shape without the classes");
      *t = insert_dimension(*t, p.axis);
    } else {
      call.require_shape(*t, {}, "a scalar, as reduction is not none");
    }
  }
}

void prepare_labels(Call& call, CrossEntropy& p, int64_t ignore_index) {
  call.require_dtype(p.labels, {DType::kInt64, DType::kInt32});
  call.require_shape(p.labels, RowShape(p).span(), "logits.shape without the classes");
  p.ignore_index = ignore_index;
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
  prepare_rows(call, p, per_row, params.reduction);
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

namespace dlkern {
namespace {

struct CrossEntropyTensors {
  const DLTensor *dloss, *logits, *labels, *weight, *loss, *dlogits;
};

// The loss, the gradient, or both: what is given.
dlk_status_t cross_entropy(const char* op, const CrossEntropyTensors& t,
                           const dlk_cross_entropy_params* given, const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_cross_entropy_params params = read_params(given, kDefaults);
    CrossEntropyBackward p;
    p.logits = call.input("logits", t.logits);
    p.labels = call.input("labels", t.labels);
    p.weight = call.optional_input("weight", t.weight);
    p.dloss = call.optional_input("dloss", t.dloss);
    p.loss = call.optional_output("loss", t.loss);
    p.dlogits = call.optional_output("dlogits", t.dlogits);
    prepare(call, p, {&p.dloss, &p.loss}, params);
    if (p.dlogits) {
      call.require_like(p.dlogits, p.logits);
      call.require_same_or_disjoint(p.dlogits, p.logits);
    }
    for (const Tensor* in : {&p.dloss, &p.labels, &p.weight}) {
      if (p.dlogits) call.require_disjoint(p.dlogits, *in);
    }
    for (const Tensor* other : {&p.logits, &p.labels, &p.weight, &p.dloss, &p.dlogits}) {
      if (p.loss) call.require_disjoint(p.loss, *other);
    }
    if (is_floating(p.labels.dtype)) {
      require_mixed_dtype(call, p.labels, p.logits);
      call.require_same_shape(p.labels, p.logits);
      call.run(SoftCrossEntropy{p, p.dloss, p.loss, p.dlogits});
      return;
    }
    prepare_labels(call, p, params.ignore_index);
    if (p.dlogits) {
      call.run(p);
    } else {
      call.run(CrossEntropyForward{p, p.loss});
    }
  });
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_cross_entropy_forward(const DLTensor* logits, const DLTensor* labels,
                                       const DLTensor* weight, const DLTensor* loss,
                                       const dlk_cross_entropy_params* params,
                                       const dlk_launch* launch) {
  const char* op = "cross_entropy";
  if (!loss) return set_last_error(DLK_INVALID_ARGUMENT, op, "loss is NULL");
  return cross_entropy(op, {nullptr, logits, labels, weight, loss, nullptr}, params, launch);
}

dlk_status_t dlk_cross_entropy_backward(const DLTensor* dloss, const DLTensor* logits,
                                        const DLTensor* labels, const DLTensor* weight,
                                        const DLTensor* dlogits,
                                        const dlk_cross_entropy_params* params,
                                        const dlk_launch* launch) {
  const char* op = "cross_entropy_backward";
  if (!dloss) return set_last_error(DLK_INVALID_ARGUMENT, op, "dloss is NULL");
  if (!dlogits) return set_last_error(DLK_INVALID_ARGUMENT, op, "dlogits is NULL");
  return cross_entropy(op, {dloss, logits, labels, weight, nullptr, dlogits}, params, launch);
}

dlk_status_t dlk_cross_entropy_forward_backward(const DLTensor* logits, const DLTensor* labels,
                                                const DLTensor* weight, const DLTensor* dloss,
                                                const DLTensor* loss, const DLTensor* dlogits,
                                                const dlk_cross_entropy_params* params,
                                                const dlk_launch* launch) {
  const char* op = "cross_entropy_with_grad";
  if (!loss) return set_last_error(DLK_INVALID_ARGUMENT, op, "loss is NULL");
  if (!dlogits) return set_last_error(DLK_INVALID_ARGUMENT, op, "dlogits is NULL");
  return cross_entropy(op, {dloss, logits, labels, weight, loss, dlogits}, params, launch);
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
    prepare_rows(call, p, {&p.loss}, q.reduction);
    prepare_labels(call, p, q.ignore_index);
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
    prepare_rows(call, p, {&p.dloss}, q.reduction);
    prepare_labels(call, p, q.ignore_index);
    call.require_like(p.dlogits, p.logits);
    p.logits = p.dlogits;  // the values are not needed
    call.run(p);
  });
}
