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

// e^x, x <= 0, for a softmax of elements T, rows in registers: the time of a kernel that reads each
// element once is in reach of an exact one's. 16-bit types: within 2^-22 of the value near 0 and
// 2^-17 at -88, below that 0; -inf and NaN as usual.
template <class T>
__device__ __forceinline__ Accumulator<T> softmax_exp(Accumulator<T> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
    return power;
  }
#endif
  return exp_of(x);
}

template <class Acc>
struct SoftmaxSums {
  Acc max, sum;  // of exp(x - max); NaN for a row that is all -inf, or holds +inf or NaN
};

// Of n elements at `stride`. All threads of the team receive the result.
template <class T, Group kGroup>
__device__ SoftmaxSums<Accumulator<T>> softmax_sums(const Team<kGroup>& team, const T* x, int64_t n,
                                                    int64_t stride) {
  using Acc = Accumulator<T>;
  Acc max = -INFINITY, sum = 0;
  for (int64_t i = team.rank; i < n; i += team.size) {
    const Acc v = static_cast<Acc>(x[i * stride]);
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
  if (row_max == INFINITY || row_max == -INFINITY) sum = NAN;
  return {row_max, sum};
}

// Of a row in registers, elements behind its end -inf. All threads of the team receive the result;
// all of the block must call it. As above; a NaN need not pass through the maximum, it comes
// to the sum.
template <class T, int kItems, bool kBlocks>
__device__ __forceinline__ SoftmaxSums<Accumulator<T>> softmax_sums(RowTeam<kBlocks>& team,
                                                                    RowPieces<T, kItems>& row) {
  using Acc = Accumulator<T>;
  const auto larger = [](Acc a, Acc b) { return fmax(a, b); };
  Acc max = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < row.kElements; ++k) max = larger(max, static_cast<Acc>(row.get(k)));
  max = team.reduce(max, larger, Acc(-INFINITY));
  row.forget();
#pragma unroll
  for (int k = 0; k < row.kElements; ++k) sum += softmax_exp<T>(static_cast<Acc>(row.get(k)) - max);
  sum = team.reduce(sum, Sum{}, Acc(0));
  row.forget();
  if (max == INFINITY || max == -INFINITY) sum = NAN;
  return {max, sum};
}

}  // namespace dlkern::gpu
