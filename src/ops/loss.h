#pragma once

#include <dlkern/loss.h>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// Classes lie along dimension `axis` of logits; labels (and a loss per row) have been given that
// dimension too, of extent 1.
struct CrossEntropy {
  Tensor logits, labels, weight;
  dlk_reduction reduction = DLK_REDUCTION_MEAN;
  int64_t ignore_index = 0;
  double smoothing = 0, z_loss = 0;
  int axis = 0;

  int64_t classes() const { return logits.shape[axis]; }
  int64_t rows() const { return labels.numel(); }
};

struct CrossEntropyForward : CrossEntropy {
  Tensor loss;
};

struct CrossEntropyBackward : CrossEntropy {
  Tensor dloss;    // absent: 1
  Tensor dlogits;  // may be logits
  Tensor loss;     // wanted too, or absent
};

// labels are probabilities instead, of the shape of logits; ignore_index does not apply.
struct SoftCrossEntropy : CrossEntropy {
  Tensor dloss;          // absent: 1
  Tensor loss, dlogits;  // those that are wanted; dlogits may be logits

  int64_t rows() const {
    int64_t n = 1;
    for (int d = 0; d < logits.ndim; ++d) n *= d == axis ? 1 : logits.shape[d];
    return n;
  }
  // What the sum of the losses is divided by.
  double divisor() const {
    return reduction == DLK_REDUCTION_MEAN ? static_cast<double>(rows()) : 1;
  }
};

// logits are log-probabilities; in the gradient, dlogits in their place: values are not looked at.
struct NllForward : CrossEntropy {
  Tensor loss;
};
struct NllBackward : CrossEntropy {
  Tensor dloss, dlogits;
};

// All tensors but a scalar loss have x's rank and, after broadcasting, shape.
struct ElementLoss {
  Tensor x, target, weight, pos_weight;  // the last two: or absent
  dlk_loss_kind kind = DLK_LOSS_MSE;
  dlk_reduction reduction = DLK_REDUCTION_MEAN;
  double threshold = 1;

  bool is_weighted() const { return weight || pos_weight; }
  // What the sum of the losses is divided by.
  double divisor() const {
    return reduction == DLK_REDUCTION_MEAN ? static_cast<double>(x.numel()) : 1;
  }
};
struct ElementLossForward : ElementLoss {
  Tensor loss;
};
struct ElementLossBackward : ElementLoss {
  Tensor dloss, dx;
};

// Throws INVALID_ARGUMENT for a number that is no dlk_reduction.
dlk_reduction checked_reduction(int32_t reduction);
// Throws INVALID_ARGUMENT for the label at flat index i of `labels` where it is out of range.
void check_label(const CrossEntropy& p, int64_t label, int64_t i);

template <>
ImplList<CrossEntropyForward> cpu_impls<CrossEntropyForward>();
template <>
ImplList<CrossEntropyBackward> cpu_impls<CrossEntropyBackward>();
template <>
ImplList<SoftCrossEntropy> cpu_impls<SoftCrossEntropy>();
template <>
ImplList<NllForward> cpu_impls<NllForward>();
template <>
ImplList<NllBackward> cpu_impls<NllBackward>();
template <>
ImplList<ElementLossForward> cpu_impls<ElementLossForward>();
template <>
ImplList<ElementLossBackward> cpu_impls<ElementLossBackward>();
template <>
ImplList<CrossEntropyForward> gpu_impls<CrossEntropyForward>();
template <>
ImplList<CrossEntropyBackward> gpu_impls<CrossEntropyBackward>();
template <>
ImplList<SoftCrossEntropy> gpu_impls<SoftCrossEntropy>();
template <>
ImplList<NllForward> gpu_impls<NllForward>();
template <>
ImplList<NllBackward> gpu_impls<NllBackward>();
template <>
ImplList<ElementLossForward> gpu_impls<ElementLossForward>();
template <>
ImplList<ElementLossBackward> gpu_impls<ElementLossBackward>();

}  // namespace dlkern
