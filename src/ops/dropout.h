#pragma once

#include <cmath>

#include "core/call.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace dlkern {

// y = x / (1 - p) where an element is kept, else 0, and the residual (where there is one) added to it.
// The backward pass is the same without a residual.
struct Dropout {
  Tensor x, rng, residual, y;
  double p;
};

inline constexpr int kDropoutBlock = 8;  // elements that share a block of random words

// The halves of an element's random bits, of which the lower one is needed for ties only.
template <class Acc>
struct DropoutRule {
  Acc scale;
  int upper;  // of the smallest bits that are kept: 0 to 2^16
  int lower;  // 0 to 2^16 - 1

  explicit DropoutRule(double p) : scale(static_cast<Acc>(p < 1 ? 1 / (1 - p) : 0)) {
    const auto kept = static_cast<int64_t>(std::nearbyint(p * 4294967296.0));
    upper = static_cast<int>(kept >> 16);
    lower = static_cast<int>(kept & 0xffff);
  }
};

// The random words of element i's block: the upper halves of its elements' bits, or the lower ones.
DLK_HD PhiloxWords dropout_words(int64_t i, bool lower, uint64_t seed, uint64_t offset) {
  const uint64_t block = static_cast<uint64_t>(i) / kDropoutBlock;
  return philox(lower ? block | uint64_t{1} << 63 : block, offset, seed);
}

template <>
ImplList<Dropout> cpu_impls<Dropout>();
template <>
ImplList<Dropout> gpu_impls<Dropout>();

}  // namespace dlkern
