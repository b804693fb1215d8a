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

struct Larger {  // NaN is left out: it comes to the sum of exponentials
  template <class Acc>
  __device__ __forceinline__ Acc operator()(Acc a, Acc b) const {
    return fmax(a, b);
  }
};
template <class Acc>
__device__ __forceinline__ Acc zero_if_infinite(Acc v) {
  return v == Acc(INFINITY) || v == Acc(-INFINITY) ? Acc(0) : v;
}

// The largest of a thread's elements.
template <class T, int kItems>
__device__ __forceinline__ Accumulator<T> largest_of(const RowPieces<T, kItems>& row) {
  Accumulator<T> max = -INFINITY;
  if constexpr (sizeof(T) == 2) {
    uint32_t pair = row.piece[0].word[0];
#pragma unroll
    for (int k = 1; k < row.kElements / 2; ++k) {
      pair = max_pair<T>(pair, row.piece[k / 4].word[k % 4]);
    }
    float low, high;
    unpack_pair<T>(pair, low, high);
    return Larger()(low, high);
  } else {
#pragma unroll
    for (int k = 0; k < row.kElements; ++k)
      max = Larger()(max, static_cast<Accumulator<T>>(row.get(k)));
    return max;
  }
}

// Of numbers in the registers of a team's threads, from the largest of each thread and from
// sum_from(shift), its sum of exponentials with `shift` in place of the maximum. All threads of the
// team receive the result; all of the block must call it. One barrier: each warp sums from its own
// maximum.
template <class T, bool kBlocks, class F>
__device__ __forceinline__ SoftmaxSums<Accumulator<T>> softmax_sums(RowTeam<kBlocks>& team,
                                                                    const SoftmaxExp<T>& exp,
                                                                    Accumulator<T> max,
                                                                    F&& sum_from) {
  using Acc = Accumulator<T>;
  max = reduce_lanes(max, Larger(), team.lanes());
  const Acc sum = reduce_lanes(sum_from(zero_if_infinite(max)), Sum(), team.lanes());
  const auto all = team.reduce_warps(Pair<Acc>{max, sum}, [&](Pair<Acc> v, int count) {
    const Acc largest = reduce_lanes(v.a, Larger(), count);
    v.b *= exp(v.a - zero_if_infinite(largest));
    return Pair<Acc>{largest, reduce_lanes(v.b, Sum(), count)};
  });
  return {zero_if_infinite(all.a), all.b};
}
template <class T, int kItems, bool kBlocks>
__device__ __forceinline__ SoftmaxSums<Accumulator<T>> softmax_sums(RowTeam<kBlocks>& team,
                                                                    RowPieces<T, kItems>& row,
                                                                    const SoftmaxExp<T>& exp) {
  using Acc = Accumulator<T>;
  const auto sums = softmax_sums(team, exp, largest_of(row), [&](Acc shift) {
    row.forget();
    Acc sum = 0;
#pragma unroll
    for (int k = 0; k < row.kElements; ++k) sum += exp(static_cast<Acc>(row.get(k)) - shift);
    return sum;
  });
  row.forget();
  return sums;
}

// The same where each number v is to become its exponential, so that none is computed twice: v times
// `factor` is exp(v - max) then.
template <class Acc>
struct Exponentials {
  SoftmaxSums<Acc> sums;
  Acc factor;
};
template <class T, int N, bool kBlocks>
__device__ __forceinline__ Exponentials<Accumulator<T>> exponentials(RowTeam<kBlocks>& team,
                                                                     const SoftmaxExp<T>& exp,
                                                                     Accumulator<T> max,
                                                                     Accumulator<T> (&v)[N]) {
  using Acc = Accumulator<T>;
  Acc from = 0;
  const auto sums = softmax_sums(team, exp, max, [&](Acc shift) {
    Acc sum = 0;
    from = shift;
#pragma unroll
    for (int k = 0; k < N; ++k) sum += v[k] = exp(v[k] - shift);
    return sum;
  });
  // Of a warp that has nothing but -inf, 0 stands for its maximum: that may be more than the row's.
  return {sums, exp(fmin(from - sums.max, Acc(0)))};
}

// ---- Long rows, in chunks ----------------------------------------------------------------------

// A block shares a row of any length, and holds a chunk of it at a time.
inline constexpr int kChunkThreads = 256, kChunkItems = 4;
template <class T>
using RowChunk = RowPieces<T, kChunkItems>;
template <class T>
inline constexpr int kChunk = RowChunk<T>::kElements * kChunkThreads;

// f(place of the chunk's first element, its number of elements, chunk) for all chunks of a row x of n
// neighbours. Elements behind the row's end are `fill`. kPlain: as RowPieces::load's kWhole.
template <bool kPlain = false, class T, class F>
__device__ __forceinline__ void for_chunks(const RowTeam<false>& team, const T* x, int64_t n,
                                           int align, T fill, F&& f) {
#pragma unroll 1
  for (int64_t first = 0; first < n; first += kChunk<T>) {
    const int count = static_cast<int>(n - first < kChunk<T> ? n - first : kChunk<T>);
    RowChunk<T> chunk;
    chunk.template load<false, kPlain>(x + first, count, team, align, fill);
    f(first, count, chunk);
  }
}

// Of a row x of n neighbours. All threads of the team receive the result; all must call it.
// moved(old, now) is told of what has taken the place of the maximum, seen(first, count, chunk, now)
// of each chunk after that.
template <bool kPlain = false, class T, class Moved, class Seen>
__device__ __forceinline__ SoftmaxSums<Accumulator<T>> softmax_sums(RowTeam<false>& team,
                                                                    const T* x, int64_t n,
                                                                    int align,
                                                                    const SoftmaxExp<T>& exp,
                                                                    Moved&& moved, Seen&& seen) {
  using Acc = Accumulator<T>;
  Acc max = -INFINITY, shift = 0, sum = 0;
  for_chunks<kPlain>(team, x, n, align, static_cast<T>(-INFINITY),
                     [&](int64_t first, int count, RowChunk<T>& chunk) {
                       max = Larger()(max, largest_of(chunk));
                       chunk.forget();
                       const Acc now = zero_if_infinite(max);
                       moved(shift, now);
                       sum *= exp(shift - now);
                       seen(first, count, chunk, now);
#pragma unroll
                       for (int k = 0; k < chunk.kElements; ++k) {
                         sum += exp(static_cast<Acc>(chunk.get(k)) - now);
                       }
                       shift = now;
                     });
  const auto sums = softmax_sums(team, exp, max, [&](Acc now) { return sum * exp(shift - now); });
  moved(shift, sums.max);
  return sums;
}
template <class T>
__device__ __forceinline__ SoftmaxSums<Accumulator<T>> softmax_sums(RowTeam<false>& team,
                                                                    const T* x, int64_t n,
                                                                    int align,
                                                                    const SoftmaxExp<T>& exp) {
  using Acc = Accumulator<T>;
  return softmax_sums(
      team, x, n, align, exp, [](Acc, Acc) {}, [](int64_t, int, RowChunk<T>&, Acc) {});
}

// Why rows along `axis` of the tensors do not stay in registers where chunks are the alternative:
// pieces that are cut out of those in memory take too many.
inline const char* not_in_registers_or_odd(std::initializer_list<const Tensor*> tensors, int axis,
                                           int most_items = 8) {
  const Tensor& first = **tensors.begin();
  const int64_t n = first.shape[axis], piece = 16 / static_cast<int64_t>(dtype_size(first.dtype));
  if (n % piece != 0 && n > 4 * kRowThreads * piece) return "long rows of no whole pieces";
  return not_in_registers(tensors, axis, most_items);
}

// Why rows along `axis` of the tensors cannot be walked in chunks, a block to each.
inline const char* not_in_chunks(std::initializer_list<const Tensor*> tensors, int axis) {
  const Tensor& first = **tensors.begin();
  const int64_t n = first.shape[axis];
  if (const char* reason = not_neighbours(tensors, axis)) return reason;
  if (n > INT32_MAX) return "rows are too long for chunks";
  return n > 0 && first.numel() / n > INT32_MAX ? "too many rows" : nullptr;
}
// A row for each block.
template <class... Params, class... Arguments>
void launch_chunks(void (*kernel)(Params...), int64_t rows, void* stream,
                   Arguments&&... arguments) {
  if (rows == 0) return;
  launch_kernel(kernel, static_cast<unsigned>(rows), kChunkThreads, 0, stream,
                std::forward<Arguments>(arguments)...);
}

}  // namespace dlkern::gpu
