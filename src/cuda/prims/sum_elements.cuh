// The sum of a function over all elements of tensors, in two stages and at the speed of memory.
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

// Packs of W neighbours, aligned (kFit) or one element at a time.
template <bool kFit, int W, class Index, class F, class Acc, class... Operands>
__global__ void __launch_bounds__(kThreads, kBlocks<Operands...>)
    sum_parts_kernel(F f, Index index, int64_t part, Acc* partials, Operands... operands) {
  constexpr int64_t kNext = int64_t{kThreads} * W;
  constexpr int kItems = kItemsOf<W, Operands...>;
  const int64_t begin = int64_t{blockIdx.x} * part;
  const int64_t end = begin + part < index.numel ? begin + part : index.numel;
  Acc sum = 0;
  if constexpr (kFit) {
    for (int64_t first = begin + threadIdx.x * W; first < end; first += kItems * kNext) {
      Queues<W, kItems, std::index_sequence_for<Operands...>, Operands...> queues;
      const auto count_at = [&](int64_t at) {
        return static_cast<int>(max(min(end - at, int64_t{W}), int64_t{0}));
      };
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = first + i * kNext;
        if (at < end) queues.fetch(index, at, count_at(at), i, operands...);
      }
#pragma unroll 1  // one copy of what f may be
      for (int i = 0; i < kItems && first + i * kNext < end; ++i) {
        const int64_t at = first + i * kNext;
        Pack<Acc, W> value;
        queues.finish(Into<F, Acc, W>{f, value}, index, at, count_at(at), operands...);
        sum += sum_of(value, count_at(at));
      }
    }
  } else {
#pragma unroll 1
    for (int64_t first = begin + threadIdx.x * W; first < end; first += kNext) {
      PackSet<W, std::index_sequence_for<Operands...>, Operands...> packs{};
      int64_t at[sizeof...(Operands)];
      const int count = static_cast<int>(min(end - first, int64_t{W}));
#pragma unroll
      for (int k = 0; k < W; ++k) {
        if (k < count) {
          index.offsets(first + k, at);
          packs.load(k, at, operands...);
        }
      }
      Pack<Acc, W> value;
      packs.run(Into<F, Acc, W>{f, value});
      sum += sum_of(value, count);
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
                  static_cast<unsigned>(parts.count), kThreads, 0, stream, f, where, parts.size,
                  partials, operands...);
  };
  if (fit && index.is_flat()) {
    launch.template operator()<true>(FlatIndex<N>{index.numel});
  } else if (fit) {
    launch.template operator()<true>(DividedIndex<N>(index));
  } else {
    launch.template operator()<false>(DividedIndex<N>(index));
  }
  launch_kernel(sum_final_kernel<Acc, Finish>, 1, kThreads, 0, stream, partials, parts.count,
                finish);
}

}  // namespace dlkern::gpu
