// The sum of a function over all elements of tensors, in two stages.
//
//     struct Product {
//       template <int W>
//       __device__ void operator()(Pack<float, W>& value, const Pack<float, W>& a, ...) const;
//     };
//     sum_elements(index, Product{...}, partials, finish, stream, In<T>{a}, In<T>{b});
//
// The first stage sums equal parts of the elements, a block each; the second one those sums. Who adds
// what, and in which order, follows from the number of elements alone: not from strides, nor from
// addresses.
#pragma once

#include "core/fast_index.h"
#include "cuda/prims/elementwise.cuh"
#include "cuda/prims/reduce.cuh"

namespace dlkern::gpu {

// Parts of a sum of n elements; partials has a number for each.
struct SumParts {
  static constexpr int64_t kLeast = 16384;  // elements of a part
  static constexpr int64_t kMost = 4096;    // parts
  int64_t size, count;

  explicit SumParts(int64_t n)
      : size(std::max(ceil_div(ceil_div(n, kMost), kLeast), int64_t{1}) * kLeast),
        count(std::max(ceil_div(n, size), int64_t{1})) {}
};

namespace detail {

// f with a place for its values.
template <class F, class Acc, int W>
struct Into {
  using Pointwise = void;
  const F& f;
  Pack<Acc, W>& value;

  template <class... Packs>
  __device__ __forceinline__ void operator()(const Packs&... packs) const {
    f(value, packs...);
  }
};

template <int W, class Acc>
__device__ __forceinline__ Acc sum_of(const Pack<Acc, W>& value, int count) {
  Acc sum = 0;
#pragma unroll
  for (int k = 0; k < W; ++k) sum += k < count ? value[k] : Acc(0);
  return sum;
}

// Where the packs of a block are, for Queues.
template <class Index>
struct InBlock {
  const Index& index;
  int64_t block;

  __device__ int64_t step(int n) const { return index.step(n); }
  template <int N>
  __device__ void offsets(int i, int64_t (&at)[N]) const {
    index.offsets(block, i, at);
  }
};
// Contiguous tensors.
template <int N>
struct FlatIndex {
  __device__ void offsets(int64_t block, int i, int64_t (&at)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = block + i;
  }
  __device__ int64_t step(int) const { return 1; }
};
// Any strides.
template <int N, int kDims>
struct StridedPacks {
  FastIndex<N, kDims> index;

  explicit StridedPacks(const StridedIndex<N>& from) : index(from) {}
  __device__ void offsets(int64_t block, int i, int64_t (&at)[N]) const {
    index.offsets(block + i, at);
  }
  __device__ int64_t step(int n) const { return index.stride[n][0]; }
};

template <int W, class... Operands>
inline constexpr int kSumItems = std::clamp(64 / (W * kBytesIn<Operands...>), 1, 2);

// Blocks of a multiprocessor, at least: strides take registers too.
template <class Index, class... Operands>
inline constexpr int kSumBlocks = (kWidest<Operands...> == 8 ? 4 : 8) -
                                  (std::is_same_v<Index, FlatIndex<sizeof...(Operands)>> ? 0 : 2);

// Packs of W neighbours, aligned (kFit) or one element at a time.
template <bool kFit, int W, class Index, class F, class Acc, class... Operands>
__global__ void __launch_bounds__(kThreads, (kSumBlocks<Index, Operands...>))
    sum_parts_kernel(F f, const DLK_GRID_CONSTANT Index index, int64_t numel, int64_t part,
                     Acc* partials, Operands... operands) {
  constexpr int kNext = kThreads * W, kItems = kSumItems<W, Operands...>;
  const int64_t end = min((blockIdx.x + int64_t{1}) * part, numel);
  const int first = threadIdx.x * W;
  Acc sum = 0;
  for (int64_t block = blockIdx.x * part; block < end; block += kItems * kNext) {
    const int left = static_cast<int>(min(end - block, int64_t{kItems} * kNext));
    Pack<Acc, W> value;
    const Into<F, Acc, W> into{f, value};
    if constexpr (kFit) {
      Queues<W, kItems, std::index_sequence_for<Operands...>, Operands...> queues;
      const InBlock<Index> where{index, block};
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int at = first + i * kNext;
        if (at < left) queues.fetch(where, at, left - at, i, operands...);
      }
#pragma unroll 1  // one copy of what f may be
      for (int at = first; at < left; at += kNext) {
        queues.finish(into, where, at, left - at, operands...);
        sum += sum_of(value, left - at);
      }
    } else {
#pragma unroll 1
      for (int at = first; at < left; at += kNext) {
        PackSet<W, std::index_sequence_for<Operands...>, Operands...> packs{};
        int64_t offset[sizeof...(Operands)];
#pragma unroll
        for (int k = 0; k < W; ++k) {
          if (k >= left - at) continue;
          index.offsets(block, at + k, offset);
          packs.load(k, offset, operands...);
        }
        packs.run(into);
        sum += sum_of(value, left - at);
      }
    }
  }
  sum = block_reduce(sum, Sum{}, Acc(0));
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <class Acc, class Finish>
__global__ void __launch_bounds__(kThreads)
    sum_final_kernel(const Acc* partials, int64_t count, Finish finish) {
  Acc sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = block_reduce(sum, Sum{}, Acc(0));
  if (threadIdx.x == 0) finish(sum);
}

}  // namespace detail

// finish(sum), once, on the device, of f's values over all of the index.
template <class Acc, int N, class F, class Finish, class... Operands>
void sum_elements(const StridedIndex<N>& index, const F& f, Acc* partials, const Finish& finish,
                  void* stream, Operands... operands) {
  static_assert(sizeof...(Operands) == N);
  using namespace detail;
  constexpr int W = kWidth<Operands...>;
  const SumParts parts(index.numel);
  const int last = index.ndim - 1;
  bool fit = last == 0 || (last > 0 && index.shape[last] % W == 0);
  int n = 0;
  ((fit = fit && packs_fit<W>(index, n++, operands)), ...);
  const auto launch = [&]<bool kFit, class Index>(const Index& where) {
    launch_kernel(sum_parts_kernel<kFit, W, Index, F, Acc, Operands...>,
                  static_cast<unsigned>(parts.count), kThreads, 0, stream, f, where, index.numel,
                  parts.size, partials, operands...);
  };
  const auto launch_strided = [&]<int kDims>() {
    const StridedPacks<N, kDims> where(index);
    fit ? launch.template operator()<true>(where) : launch.template operator()<false>(where);
  };
  if (fit && index.is_flat()) {
    launch.template operator()<true>(FlatIndex<N>{});
  } else if (fast_dims(index) <= kFewDims && index.numel < (int64_t{1} << 31) - kPositionsPast) {
    launch_strided.template operator()<kFewDims>();
  } else {
    launch_strided.template operator()<kMaxDims>();
  }
  launch_kernel(sum_final_kernel<Acc, Finish>, 1, kThreads, 0, stream, partials, parts.count,
                finish);
}

}  // namespace dlkern::gpu
