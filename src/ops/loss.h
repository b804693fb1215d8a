#pragma once

#include <dlkern/core.h>

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

// Throws INVALID_ARGUMENT for the label at flat index i of `labels` where it is out of range.
void check_label(const CrossEntropy& p, int64_t label, int64_t i);

template <>
ImplList<CrossEntropyForward> cpu_impls<CrossEntropyForward>();
template <>
ImplList<CrossEntropyBackward> cpu_impls<CrossEntropyBackward>();
template <>
ImplList<CrossEntropyForward> gpu_impls<CrossEntropyForward>();
template <>
ImplList<CrossEntropyBackward> gpu_impls<CrossEntropyBackward>();

}  // namespace dlkern
