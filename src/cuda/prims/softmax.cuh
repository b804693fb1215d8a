// Maximum and sum of exponentials of a row: in one pass over memory, or of a row in registers.
//
// Reference: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
#pragma once

#include "cuda/prims/gpu.h"
#include "cuda/prims/row_pieces.cuh"
#include "cuda/prims/rows.cuh"

namespace dlkern::gpu {

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

// e^(factor x), x <= 0, for a softmax of elements T, rows in registers: the time of a kernel that
// reads each element once is in reach of an exact one's. 16-bit types: within 2^-22 of the value near
// 0 and 2^-17 at -88, below that 0; -inf and NaN as usual.
template <class T>
struct SoftmaxExp {
  using Acc = Accumulator<T>;
#if defined(__CUDA_ARCH__)
  static constexpr bool kQuick = sizeof(T) == 2;
#else
  static constexpr bool kQuick = false;
#endif
  Acc factor;  // quick: of base 2

  __device__ explicit SoftmaxExp(Acc factor_ = 1)
      : factor(kQuick ? factor_ * Acc(1.44269504) : factor_) {}
  __device__ __forceinline__ Acc operator()(Acc x) const {
#if defined(__CUDA_ARCH__)
    if constexpr (kQuick) {
      float power;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * factor));
      return power;
    }
#endif
    return exp_of(x * factor);
  }
};

template <class Acc>
struct SoftmaxSums {
  Acc max;  // the largest element; 0 where it is infinite
  Acc sum;  // of exp(x - max): 0 for a row of nothing but -inf, +inf or NaN for one that holds those

  // NaN for such rows: their softmax is not defined.
  __device__ __forceinline__ Acc defined_sum() const {
    return sum > 0 && sum < INFINITY ? sum : Acc(NAN);
  }
};

// Of value(i), i < n. All threads of the team receive the result; all of them must call it.
template <Group kGroup, class F>
__device__ auto softmax_sums(const Team<kGroup>& team, int64_t n, F&& value) {
  using Acc = decltype(value(n));
  Acc max = -INFINITY, sum = 0;
  for (int64_t i = team.rank; i < n; i += team.size) {
    const Acc v = value(i);
    if (v > max || v != v) {
      sum = sum * exp_of(max - v) + Acc(1);
      max = v;
    } else if (v != -INFINITY) {
      sum += exp_of(v - max);
    }
  }
  const Acc row_max = team.reduce(max, Max{}, Acc(-INFINITY));
  // A lane that saw nothing but -inf has sum 0 and must not compute -inf - -inf.
  sum = team.reduce(sum == 0 ? Acc(0) : sum * exp_of(max - row_max), Sum{}, Acc(0));
  if (row_max == INFINITY) return SoftmaxSums<Acc>{0, INFINITY};
  return SoftmaxSums<Acc>{row_max == -INFINITY ? Acc(0) : row_max, sum};
}

// Of `count` numbers in the registers of each thread, value(k) the k-th, what is behind the row's end
// -inf. All threads of the team receive the result; all of the block must call it. between() comes
// between two passes over the numbers.
template <class T, int kCount, bool kBlocks, class F, class Between>
__device__ __forceinline__ SoftmaxSums<Accumulator<T>> softmax_sums(RowTeam<kBlocks>& team,
                                                                    const SoftmaxExp<T>& exp,
                                                                    F&& value, Between&& between) {
  using Acc = Accumulator<T>;
  const auto larger = [](Acc a, Acc b) { return fmax(a, b); };  // a NaN comes to the sum
  Acc max = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k) max = larger(max, value(k));
  max = team.reduce(max, larger, Acc(-INFINITY));
  if (max == INFINITY || max == -INFINITY) max = 0;
  between();
#pragma unroll
  for (int k = 0; k < kCount; ++k) sum += exp(value(k) - max);
  sum = team.reduce(sum, Sum{}, Acc(0));
  between();
  return {max, sum};
}
template <class T, int kItems, bool kBlocks>
__device__ __forceinline__ SoftmaxSums<Accumulator<T>> softmax_sums(
    RowTeam<kBlocks>& team, RowPieces<T, kItems>& row, const SoftmaxExp<T>& exp) {
  return softmax_sums<T, RowPieces<T, kItems>::kElements>(
      team, exp, [&](int k) { return static_cast<Accumulator<T>>(row.get(k)); },
      [&] { row.forget(); });
}

}  // namespace dlkern::gpu
