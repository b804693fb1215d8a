#pragma once

#include <cmath>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// Forward and backward are the same: y = x / (1 - p) where an element is kept, else 0.
struct Dropout {
  Tensor x, rng, y;
  double p;
};

// What becomes of an element, given its random bits.
template <class Acc>
struct DropoutRule {
  Acc scale;
  uint32_t last_dropped;
  bool drops;

  explicit DropoutRule(double p) : scale(static_cast<Acc>(p < 1 ? 1 / (1 - p) : 0)) {
    const auto below = static_cast<uint64_t>(std::nearbyint(p * 4294967296.0));
    drops = below > 0;
    last_dropped = static_cast<uint32_t>(below - 1);
  }
  DLK_HD Acc operator()(Acc x, uint32_t bits) const {
    return !drops || bits > last_dropped ? x * scale : Acc(0);
  }
};

template <>
ImplList<Dropout> cpu_impls<Dropout>();
template <>
ImplList<Dropout> gpu_impls<Dropout>();

}  // namespace dlkern
