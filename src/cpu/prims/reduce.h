// Sums and maxima of contiguous spans, in an order that depends on n alone.
#pragma once

#include <cstdint>
#include <limits>

namespace dlkern::cpu {

inline constexpr int kLanes = 16;  // independent accumulators: enough for the compiler to vectorise
inline constexpr int64_t kSumBlock = 1024;

// The sum of the lanes, as a tree. Written out, for the lanes to stay in registers.
template <class Acc>
inline Acc fold(const Acc (&lane)[kLanes]) {
  Acc eight[8], four[4];
  for (int k = 0; k < 8; ++k) eight[k] = lane[k] + lane[k + 8];
  for (int k = 0; k < 4; ++k) four[k] = eight[k] + eight[k + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// term(i) summed over i < n: in lanes within blocks, and over block sums, so that the rounding error
// grows like n / kSumBlock rather than n.
template <class Acc, class Term>
inline Acc sum_of(int64_t n, Term&& term) {
  Acc total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
    Acc lane[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      // Without the mark gcc shuffles what it takes from several i.
#pragma omp simd
      for (int k = 0; k < kLanes; ++k) lane[k] += term(i + k);
    }
    for (int k = 0; i < end; ++i, ++k) lane[k] += term(i);
    total += fold(lane);
  }
  return total;
}

// Two sums in one pass, each with the bits of sum_of().
template <class Acc>
struct TwoSums {
  Acc a, b;
};
template <class Acc, class A, class B>
inline TwoSums<Acc> two_sums_of(int64_t n, A&& term_a, B&& term_b) {
  TwoSums<Acc> total{0, 0};
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < n ? begin + kSumBlock : n;
    Acc a[kLanes] = {}, b[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
#pragma omp simd
      for (int k = 0; k < kLanes; ++k) {
        a[k] += term_a(i + k);
        b[k] += term_b(i + k);
      }
    }
    for (int k = 0; i < end; ++i, ++k) {
      a[k] += term_a(i);
      b[k] += term_b(i);
    }
    total.a += fold(a);
    total.b += fold(b);
  }
  return total;
}

// v takes the place of m as the largest (smallest) so far. The first NaN is larger and smaller than
// anything.
template <bool kMin, class Acc>
inline bool is_better(Acc v, Acc m) {
  return (kMin ? v < m : v > m) || (v != v && m == m);
}

// The value that every other one is better than, or equal to.
template <bool kMin, class Acc>
inline constexpr Acc kWorst =
    std::numeric_limits<Acc>::has_infinity
        ? (kMin ? std::numeric_limits<Acc>::infinity() : -std::numeric_limits<Acc>::infinity())
        : (kMin ? std::numeric_limits<Acc>::max() : std::numeric_limits<Acc>::lowest());

// max (min) of a span; NaN if any element is NaN; kWorst for n = 0.
template <bool kMin, class Acc>
inline Acc extreme_of(const Acc* x, int64_t n) {
  Acc best = kWorst<kMin, Acc>;
  int nan = 0;  // comparisons drop NaN, so it is looked for apart
  if constexpr (kMin) {
#pragma omp simd reduction(min : best) reduction(| : nan)
    for (int64_t i = 0; i < n; ++i) {
      best = x[i] < best ? x[i] : best;
      nan |= x[i] != x[i];
    }
  } else {
#pragma omp simd reduction(max : best) reduction(| : nan)
    for (int64_t i = 0; i < n; ++i) {
      best = x[i] > best ? x[i] : best;
      nan |= x[i] != x[i];
    }
  }
  return nan ? std::numeric_limits<Acc>::quiet_NaN() : best;
}
template <class Acc>
inline Acc max_of(const Acc* x, int64_t n) {
  return extreme_of<false>(x, n);
}

}  // namespace dlkern::cpu
