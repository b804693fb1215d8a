// The formulas of the element-wise losses, for both backends. x: prediction, t: target. In a loop,
// hoist the choice of the loss out of it:
//
//     dispatch_loss(kind, [&]<dlk_loss_kind kKind>() {
//       for (...) sum += w[i] * loss_value<kKind>(x[i], t[i], scalars);
//     });
#pragma once

#include <dlkern/loss.h>

#include <cmath>

#include "core/fast_math.h"
#include "core/macros.h"

namespace dlkern {

// f.template operator()<kKind>().
template <class F>
DLK_HD void dispatch_loss(dlk_loss_kind kind, F&& f) {
  switch (kind) {
    case DLK_LOSS_MSE:
      return f.template operator()<DLK_LOSS_MSE>();
    case DLK_LOSS_L1:
      return f.template operator()<DLK_LOSS_L1>();
    case DLK_LOSS_SMOOTH_L1:
      return f.template operator()<DLK_LOSS_SMOOTH_L1>();
    case DLK_LOSS_HUBER:
      return f.template operator()<DLK_LOSS_HUBER>();
    case DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS:
      return f.template operator()<DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS>();
    case DLK_LOSS_KL_DIV:
      return f.template operator()<DLK_LOSS_KL_DIV>();
    case DLK_LOSS_KL_DIV_LOG_TARGET:
      return f.template operator()<DLK_LOSS_KL_DIV_LOG_TARGET>();
  }
}

// threshold: beta of smooth_l1, delta of huber. positive: weight of positive targets.
template <dlk_loss_kind kKind, class Acc>
DLK_HD Acc loss_value(Acc x, Acc t, Acc threshold, Acc positive) {
  const Acc d = x - t, a = d < 0 ? -d : d;
  if constexpr (kKind == DLK_LOSS_MSE) {
    return d * d;
  } else if constexpr (kKind == DLK_LOSS_L1) {
    return a;
  } else if constexpr (kKind == DLK_LOSS_SMOOTH_L1) {
    return a < threshold ? Acc(0.5) * d * (d / threshold) : a - Acc(0.5) * threshold;
  } else if constexpr (kKind == DLK_LOSS_HUBER) {
    return a <= threshold ? Acc(0.5) * d * d : threshold * (a - Acc(0.5) * threshold);
  } else if constexpr (kKind == DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS) {
    // -t log sigmoid(x) = t softplus(-x), softplus(x) = max(x, 0) + log(1 + e^-|x|): nothing cancels.
    const Acc tail = log1p_fast(exp_fast(x < 0 ? x : -x)), above = x > 0 ? x : Acc(0);
    return (1 - t) * (above + tail) + positive * t * ((x < 0 ? -x : Acc(0)) + tail);
  } else if constexpr (kKind == DLK_LOSS_KL_DIV) {
    return t == 0 ? Acc(0) : t * (std::log(t) - x);
  } else {
    return t == -INFINITY ? Acc(0) : exp_fast(t) * d * Acc(-1);
  }
}

// Its derivative with respect to x.
template <dlk_loss_kind kKind, class Acc>
DLK_HD Acc loss_gradient(Acc x, Acc t, Acc threshold, Acc positive) {
  const Acc d = x - t, a = d < 0 ? -d : d;
  const Acc sign = d > 0 ? Acc(1) : d < 0 ? Acc(-1) : d;  // 0 and NaN are their own
  if constexpr (kKind == DLK_LOSS_MSE) {
    return 2 * d;
  } else if constexpr (kKind == DLK_LOSS_L1) {
    return sign;
  } else if constexpr (kKind == DLK_LOSS_SMOOTH_L1) {
    return a < threshold ? d / threshold : sign;
  } else if constexpr (kKind == DLK_LOSS_HUBER) {
    return a <= threshold ? d : threshold * sign;
  } else if constexpr (kKind == DLK_LOSS_BINARY_CROSS_ENTROPY_WITH_LOGITS) {
    // (1 - t) sigmoid(x) - t sigmoid(-x)
    const Acc w = exp_fast(x < 0 ? x : -x), large = reciprocal_fast(1 + w), small = w * large;
    return (1 - t) * (x < 0 ? small : large) - positive * t * (x < 0 ? large : small);
  } else if constexpr (kKind == DLK_LOSS_KL_DIV) {
    return -t;
  } else {
    return -exp_fast(t);
  }
}

}  // namespace dlkern
