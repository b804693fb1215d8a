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
  Acc lane[kLanes];
  for (int k = 0; k < kLanes; ++k) lane[k] = -INFINITY;
  // `v < m ? m : v` takes v when v is NaN, and keeps m when m is NaN only if compared the other way
  // round; NaN is therefore collected separately, by addition.
  Acc nan[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      const Acc v = x[i + k];
      lane[k] = v > lane[k] ? v : lane[k];
      nan[k] += v != v ? v : Acc(0);
    }
  }
  for (int k = 0; i < n; ++i, ++k) {
    const Acc v = x[i];
    lane[k] = v > lane[k] ? v : lane[k];
    nan[k] += v != v ? v : Acc(0);
  }
  Acc m = lane[0], any_nan = nan[0];
  for (int k = 1; k < kLanes; ++k) {
    m = lane[k] > m ? lane[k] : m;
    any_nan += nan[k];
  }
  return any_nan != any_nan ? any_nan : m;
}

}  // namespace dlkern::cpu
