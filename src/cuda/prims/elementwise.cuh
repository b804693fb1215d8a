// One launcher for element-wise kernels over strided tensors.
//
//     struct Add {                        // a functor over packs of W elements
//       template <int W>
//       __device__ void operator()(Pack<float, W>& y, const Pack<float, W>& a, ...) const;
//     };
//     map_elements(index, Add{...}, launch.stream, Out<T>{y}, In<T>{a}, In<T>{b});
//
// A thread takes packs of W elements at a time, in a grid-stride loop. W fills 16-byte accesses of
// the widest type where all addresses, extents and strides allow that, else W is 1. Packs hold what
// is computed with: float for 16-bit types. An optional member `prepare()` is called once per
// thread before the loop, for what must be read from device memory.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"

namespace dlkern::gpu {

template <class V, int W>
struct Pack {
  V v[W];
  __device__ V& operator[](int k) { return v[k]; }
  __device__ const V& operator[](int k) const { return v[k]; }
};

// Operands: memory that is read, written, or both. data == nullptr: absent.
template <class T>
struct In {
  using Value = Computed<T>;
  static constexpr int kBytes = sizeof(T);
  static constexpr bool kIsWritten = false;
  const T* data;

  const void* address() const { return data; }
  // `count` elements of a pack; step is 1, or 0 where one element stands for all of them.
  template <int W>
  __device__ void load(int64_t at, int64_t step, int count, Pack<Value, W>& pack) const {
    if (data == nullptr) return;
    if (W > 1 && step == 1 && count == W) {
      const Vec<T, W> vec = load_vec<W>(data + at);
#pragma unroll
      for (int k = 0; k < W; ++k) pack[k] = static_cast<Value>(vec.v[k]);
      return;
    }
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (k < count) pack[k] = static_cast<Value>(data[at + k * step]);
    }
  }
  template <int W>
  __device__ void store(int64_t, int, const Pack<Value, W>&) const {}
};
template <class T>
struct Out {
  using Value = Computed<T>;
  static constexpr int kBytes = sizeof(T);
  static constexpr bool kIsWritten = true;
  T* data;

  const void* address() const { return data; }
  template <int W>
  __device__ void load(int64_t, int64_t, int, Pack<Value, W>&) const {}
  template <int W>
  __device__ void store(int64_t at, int count, const Pack<Value, W>& pack) const {
    if (data == nullptr) return;
    if (W > 1 && count == W) {
      Vec<T, W> vec;
#pragma unroll
      for (int k = 0; k < W; ++k) vec.v[k] = static_cast<T>(pack[k]);
      store_vec(data + at, vec);
      return;
    }
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (k < count) data[at + k] = static_cast<T>(pack[k]);
    }
  }
};
template <class T>
struct InOut : Out<T> {
  using Value = Computed<T>;
  template <int W>
  __device__ void load(int64_t at, int64_t step, int count, Pack<Value, W>& pack) const {
    In<T>{this->data}.load(at, step, count, pack);
  }
};
// The offsets themselves, where the index holds strides that count something else than memory.
struct Position {
  using Value = int64_t;
  static constexpr int kBytes = 1;
  static constexpr bool kIsWritten = false;

  const void* address() const { return nullptr; }
  template <int W>
  __device__ void load(int64_t at, int64_t step, int, Pack<Value, W>& pack) const {
#pragma unroll
    for (int k = 0; k < W; ++k) pack[k] = at + k * step;
  }
  template <int W>
  __device__ void store(int64_t, int, const Pack<Value, W>&) const {}
};

namespace detail {

// The index with packs in place of elements.
template <int N>
struct PackIndex {
  StridedIndex<N> packs;
  int64_t numel;    // elements; the last pack of a one-dimensional index may not be full
  int64_t step[N];  // within a pack
};

template <int N, int W>
PackIndex<N> in_packs(const StridedIndex<N>& index) {
  PackIndex<N> p{index, index.numel, {}};
  if (W == 1 || index.ndim == 0) return p;
  const int last = index.ndim - 1;
  p.packs.shape[last] = ceil_div(index.shape[last], W);
  p.packs.numel = index.numel / index.shape[last] * p.packs.shape[last];
  for (int n = 0; n < N; ++n) {
    p.step[n] = index.stride[n][last];
    p.packs.stride[n][last] = W * index.stride[n][last];
  }
  return p;
}

// Whether an operand can be taken W elements at a time: its innermost stride is 1 (or 0 where it is
// only read, or absent), and all packs are aligned.
template <int W, int N, class Operand>
bool packs_fit(const StridedIndex<N>& index, int n, const Operand& operand) {
  const int last = index.ndim - 1;
  const int64_t inner = index.stride[n][last];
  if (inner == 0) return !Operand::kIsWritten || operand.address() == nullptr;
  bool fit = inner == 1 && is_aligned(operand.address(), size_t{W} * Operand::kBytes);
  for (int d = 0; d < last; ++d) fit = fit && index.stride[n][d] % W == 0;
  return fit;
}

template <class F>
concept HasPrepare = requires(F f) { f.prepare(); };

// The packs of all operands, in registers.
template <size_t I, class Operand, int W>
struct PackOf {
  Pack<typename Operand::Value, W> pack;
};
template <int W, class Sequence, class... Operands>
struct PackSet;
template <int W, size_t... I, class... Operands>
struct PackSet<W, std::index_sequence<I...>, Operands...> : PackOf<I, Operands, W>... {
  template <class F, int N>
  __device__ void run(const F& f, const int64_t (&at)[N], const int64_t (&step)[N], int count,
                      const Operands&... operands) {
    (operands.load(at[I], step[I], count, PackOf<I, Operands, W>::pack), ...);
    f(PackOf<I, Operands, W>::pack...);
    (operands.store(at[I], count, PackOf<I, Operands, W>::pack), ...);
  }
};

inline constexpr int kThreads = 256;  // of a block

// Packs of 2 hold doubles, whose functions want more registers than 4 blocks leave.
template <int W, class F, class... Operands>
__global__ void __launch_bounds__(kThreads, W == 2 ? 2 : 4)
    elementwise_kernel(F f, PackIndex<sizeof...(Operands)> index, Operands... operands) {
  if constexpr (HasPrepare<F>) f.prepare();
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < index.packs.numel;
       i += threads) {
    int64_t at[sizeof...(Operands)];
    index.packs.offsets(i, at);
    const int64_t left = index.numel - i * W;
    const int count = left < W ? static_cast<int>(left) : W;
    // Elements past the end are computed on zeros and not stored.
    PackSet<W, std::index_sequence_for<Operands...>, Operands...> packs{};
    packs.run(f, at, index.step, count, operands...);
  }
}

template <int W, int N, class F, class... Operands>
void launch_packs(const StridedIndex<N>& index, const F& f, void* stream, Operands... operands) {
  const PackIndex<N> packs = in_packs<N, W>(index);
  launch_kernel(elementwise_kernel<W, F, Operands...>, grid_for(packs.packs.numel, kThreads),
                kThreads, 0, stream, f, packs, operands...);
}

}  // namespace detail

// f(pack of each operand...) over all of the index; operand k walks along index.stride[k].
template <int N, class F, class... Operands>
void map_elements(const StridedIndex<N>& index, const F& f, void* stream, Operands... operands) {
  static_assert(sizeof...(Operands) == N);
  constexpr int kWidth = 16 / std::max({Operands::kBytes...});
  const int last = index.ndim - 1;
  bool fit = last == 0 || (last > 0 && index.shape[last] % kWidth == 0);
  int n = 0;
  ((fit = fit && detail::packs_fit<kWidth>(index, n++, operands)), ...);
  if (fit) {
    detail::launch_packs<kWidth>(index, f, stream, operands...);
  } else {
    detail::launch_packs<1>(index, f, stream, operands...);
  }
}

}  // namespace dlkern::gpu
