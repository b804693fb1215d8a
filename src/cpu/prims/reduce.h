// Sums and maxima of contiguous spans, in an order that depends on n alone.
#pragma once

#include <cmath>
#include <cstdint>

namespace dlkern::cpu {

inline constexpr int kLanes = 16;  // independent accumulators: enough for the compiler to vectorise

// term(i) summed over i < n: in lanes within blocks, and over block sums, so that the rounding error
// grows like n / 4096 rather than n.
template <class Acc, class Term>
inline Acc sum_of(int64_t n, Term&& term) {
  constexpr int64_t kBlock = 4096;
  Acc total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    Acc lane[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int k = 0; k < kLanes; ++k) lane[k] += term(i + k);
    }
    for (int k = 0; i < end; ++i, ++k) lane[k] += term(i);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) lane[k] += lane[k + width];
    }
    total += lane[0];
  }
  return total;
}

// max of a span; NaN if any element is NaN; -inf for n = 0.
template <class Acc>
inline Acc max_of(const Acc* x, int64_t n) {
  Acc max = -INFINITY;
  int any_nan = 0;  // a comparison drops NaN, so it is looked for apart
#pragma omp simd reduction(max : max) reduction(| : any_nan)
  for (int64_t i = 0; i < n; ++i) {
    max = x[i] > max ? x[i] : max;
    any_nan |= x[i] != x[i];
  }
  return any_nan ? Acc(NAN) : max;
}

}  // namespace dlkern::cpu
