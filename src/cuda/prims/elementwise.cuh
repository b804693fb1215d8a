// One launcher for element-wise kernels over strided tensors.
//
//     struct Add {                        // a functor over packs of W elements
//       using Pointwise = void;
//       template <int W>
//       __device__ void operator()(Pack<float, W>& y, const Pack<float, W>& a, ...) const;
//     };
//     map_elements(index, Add{...}, launch.stream, Out<T>{y}, In<T>{a}, In<T>{b});
//
// Packs hold what is computed with: float for 16-bit types. Three kernels, of which the first that
// fits is taken:
//   flat        everything contiguous: packs of W neighbours, which fill accesses of 16 (or 8) bytes
//               of the widest type
//   in rows     the same where only the innermost dimension is contiguous (or repeated)
//   scattered   any strides and alignment: single elements
// Each thread has 32 to 64 bytes of inputs on their way before it waits for the first. A functor
// that is Pointwise does not care which elements share a pack; to others packs of more than one
// element are neighbours that begin at a multiple of W. An optional member `prepare()` is called
// once per thread, for what must be read from device memory, while the operands are on their way.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/fast_div.h"
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
  static constexpr bool kIsRead = true, kIsWritten = false;
  template <int W>
  using Fetched = Raw<T, W>;
  const T* data;

  const void* address() const { return data; }
  In from(int64_t offset) const { return {data ? data + offset : data}; }
  // The first `count` elements of a pack, or all W, the others as 0; step is 1, or 0 where one element
  // stands for all of them.
  template <int W>
  __device__ __forceinline__ void fetch(int64_t at, int64_t step, int count, Raw<T, W>& raw) const {
    if (data == nullptr) {
      raw.fill(T{});
    } else if (step == 0) {
      raw.fill(data[at]);
    } else if (count >= W) {
      raw.load(data + at);
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) raw.set(k, k < count ? data[at + k] : T{});
    }
  }
  template <int W>
  __device__ __forceinline__ void unpack(Raw<T, W> raw, int64_t, int64_t,
                                         Pack<Value, W>& pack) const {
    raw.forget();
    raw.unpack(pack.v);
  }
  __device__ __forceinline__ void load(int64_t at, Value& v) const {
    v = data == nullptr ? Value{} : static_cast<Value>(data[at]);
  }
  template <int W>
  __device__ __forceinline__ void store(int64_t, int, const Pack<Value, W>&) const {}
  __device__ __forceinline__ void store(int64_t, const Value&) const {}
};
template <class T>
struct Out {
  using Value = Computed<T>;
  static constexpr int kBytes = sizeof(T);
  static constexpr bool kIsRead = false, kIsWritten = true;
  template <int W>
  struct Fetched {};
  T* data;

  const void* address() const { return data; }
  Out from(int64_t offset) const { return {data ? data + offset : data}; }
  template <int W>
  __device__ __forceinline__ void fetch(int64_t, int64_t, int, Fetched<W>&) const {}
  template <int W>
  __device__ __forceinline__ void unpack(const Fetched<W>&, int64_t, int64_t,
                                         Pack<Value, W>&) const {}
  __device__ __forceinline__ void load(int64_t, Value&) const {}
  template <int W>
  __device__ __forceinline__ void store(int64_t at, int count, const Pack<Value, W>& pack) const {
    if (data == nullptr) return;
    Raw<T, W> raw;
    raw.pack(pack.v);
    if (count >= W) {
      raw.store(data + at);
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        if (k < count) data[at + k] = raw.get(k);
      }
    }
  }
  __device__ __forceinline__ void store(int64_t at, const Value& v) const {
    if (data != nullptr) data[at] = static_cast<T>(v);
  }
};
template <class T>
struct InOut : Out<T> {
  using Value = Computed<T>;
  static constexpr bool kIsRead = true;
  template <int W>
  using Fetched = Raw<T, W>;

  template <int W>
  __device__ __forceinline__ void fetch(int64_t at, int64_t step, int count, Raw<T, W>& raw) const {
    In<T>{this->data}.fetch(at, step, count, raw);
  }
  template <int W>
  __device__ __forceinline__ void unpack(const Raw<T, W>& raw, int64_t at, int64_t step,
                                         Pack<Value, W>& pack) const {
    In<T>{this->data}.unpack(raw, at, step, pack);
  }
  __device__ __forceinline__ void load(int64_t at, Value& v) const {
    In<T>{this->data}.load(at, v);
  }
};
// The offsets themselves, where the index holds strides that count something else than memory.
struct Position {
  using Value = int64_t;
  static constexpr int kBytes = 1;
  static constexpr bool kIsRead = false, kIsWritten = false;
  template <int W>
  struct Fetched {};
  int64_t first = 0;

  const void* address() const { return nullptr; }
  Position from(int64_t offset) const { return {first + offset}; }
  template <int W>
  __device__ __forceinline__ void fetch(int64_t, int64_t, int, Fetched<W>&) const {}
  template <int W>
  __device__ __forceinline__ void unpack(const Fetched<W>&, int64_t at, int64_t step,
                                         Pack<Value, W>& pack) const {
#pragma unroll
    for (int k = 0; k < W; ++k) pack[k] = first + at + k * step;
  }
  __device__ __forceinline__ void load(int64_t at, Value& v) const { v = first + at; }
  template <int W>
  __device__ __forceinline__ void store(int64_t, int, const Pack<Value, W>&) const {}
  __device__ __forceinline__ void store(int64_t, const Value&) const {}
};

namespace detail {

// Of a block. Measured: many small blocks with two 16-byte loads for each thread copy at 4.28 TB/s,
// four loads at 4.08, persistent blocks at 3.9 (H200, 2026-11-30).
inline constexpr int kThreads = 128;
template <class F>
concept HasPrepare = requires(F f) { f.prepare(); };
template <class F>
concept IsPointwise = requires { typename F::Pointwise; };

// ---- Where elements lie --------------------------------------------------------------------------

// Contiguous tensors.
template <int N>
struct FlatIndex {
  int64_t numel;

  __device__ void offsets(int64_t block, int i, int64_t (&at)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = block + i;
  }
  __device__ int64_t step(int) const { return 1; }
};

// Any strides, in 32 bits: see for_each_part.
template <int N>
struct DividedIndex {
  int64_t numel;
  int inner;  // the innermost dimension
  FastDiv shape[kMaxDims];
  int stride[N][kMaxDims];

  explicit DividedIndex(const StridedIndex<N>& index)
      : numel(index.numel), inner(std::max(index.ndim - 1, 0)) {
    for (int d = 0; d < index.ndim; ++d) shape[d] = FastDiv(index.shape[d]);
    for (int n = 0; n < N; ++n) {
      for (int d = 0; d < kMaxDims; ++d) stride[n][d] = static_cast<int>(index.stride[n][d]);
    }
  }
  __device__ void offsets(int64_t block, int i, int64_t (&at)[N]) const {
    int offset[N] = {};
    i += static_cast<int>(block);
#pragma unroll 1
    for (int d = inner; d > 0; --d) {
      const int q = shape[d].quick(i), r = i - q * static_cast<int>(shape[d].divisor());
#pragma unroll
      for (int n = 0; n < N; ++n) offset[n] += r * stride[n][d];
      i = q;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = offset[n] + i * stride[n][0];
  }
  __device__ int64_t step(int n) const { return stride[n][inner]; }
};

// f(part, first element of the part in each tensor): the index whole, or halved until positions and
// offsets fit in 32 bits. A cut through the innermost dimension is a multiple of `align`.
template <int N, class F>
void for_each_part(const StridedIndex<N>& index, const int64_t (&first)[N], int64_t align, F&& f) {
  constexpr int64_t kMost = (int64_t{1} << 31) - (1 << 16);  // and a block more
  int64_t reach[N] = {}, widest = 0;
  int cut = 0;
  bool fits = index.numel < kMost;
  for (int n = 0; n < N; ++n) {
    for (int d = 0; d < index.ndim; ++d) {
      const int64_t stride = index.stride[n][d];
      const int64_t span = (index.shape[d] - 1) * (stride < 0 ? -stride : stride);
      reach[n] += span;
      if (span > widest) widest = span, cut = d;
    }
    fits = fits && reach[n] < kMost;
  }
  if (fits) return f(index, first);
  const int64_t unit = cut == index.ndim - 1 ? align : 1;
  StridedIndex<N> half = index;
  half.shape[cut] = ceil_div(index.shape[cut], 2 * unit) * unit;
  half.numel = index.numel / index.shape[cut] * half.shape[cut];
  for_each_part(half, first, align, f);
  int64_t second[N];
  for (int n = 0; n < N; ++n) second[n] = first[n] + half.shape[cut] * index.stride[n][cut];
  half.shape[cut] = index.shape[cut] - half.shape[cut];
  half.numel = index.numel / index.shape[cut] * half.shape[cut];
  for_each_part(half, second, align, f);
}

// ---- Packs of neighbours -------------------------------------------------------------------------

// One operand's packs of a thread, as they were fetched.
template <size_t I, class Operand, int W, int kItems>
struct Queue {
  typename Operand::template Fetched<W> items[kItems];

  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int i = 1; i < kItems; ++i) items[i - 1] = items[i];
  }
};
template <size_t I, class Operand, int W>
struct PackOf {
  Pack<typename Operand::Value, W> pack;
};

template <int W, int kItems, class Sequence, class... Operands>
struct Queues;
template <int W, int kItems, size_t... I, class... Operands>
struct Queues<W, kItems, std::index_sequence<I...>, Operands...>
    : Queue<I, Operands, W, kItems>... {
  template <class Index>
  __device__ __forceinline__ void fetch(const Index& index, int64_t block, int first, int count,
                                        int item, const Operands&... operands) {
    int64_t at[sizeof...(Operands)];
    index.offsets(block, first, at);
    (operands.fetch(at[I], index.step(I), count, Queue<I, Operands, W, kItems>::items[item]), ...);
  }
  // Computes what was fetched first, and stores it.
  template <class F, class Index>
  __device__ __forceinline__ void finish(const F& f, const Index& index, int64_t block, int first,
                                         int count, const Operands&... operands) {
    struct : PackOf<I, Operands, W>... {
    } all;
    int64_t at[sizeof...(Operands)];
    index.offsets(block, first, at);
    (operands.unpack(Queue<I, Operands, W, kItems>::items[0], at[I], index.step(I),
                     all.PackOf<I, Operands, W>::pack),
     ...);
    f(all.PackOf<I, Operands, W>::pack...);
    (operands.store(at[I], count, all.PackOf<I, Operands, W>::pack), ...);
    (Queue<I, Operands, W, kItems>::advance(), ...);
  }
};

// Bytes of one element of all inputs, and of the widest operand.
template <class... Operands>
inline constexpr int kBytesIn = ((Operands::kIsRead ? Operands::kBytes : 0) + ... + 0);
template <class... Operands>
inline constexpr int kWidest = std::max({Operands::kBytes...});

// Blocks of a multiprocessor, at least: the functions of doubles want more registers than 8 leave.
template <class... Operands>
inline constexpr int kBlocks = kWidest<Operands...> == 8 ? 4 : 8;
// Elements of a pack. Where more than 4 packs are read and written those of 16 bytes would not fit in
// the registers.
template <class... Operands>
inline constexpr int kWidth =
    std::max(((Operands::kIsRead + Operands::kIsWritten) + ...) > 4 ? 8 / kWidest<Operands...>
                                                                    : 16 / kWidest<Operands...>,
             2);

template <int W, class... Operands>
inline constexpr int kItemsOf = std::clamp(64 / std::max(W * kBytesIn<Operands...>, 1), 1, 2);

// A block has `items` <= kItems packs for each of its threads, side by side.
template <int W, int kItems, class Index, class F, class... Operands>
__global__ void __launch_bounds__(kThreads, kBlocks<Operands...>)
    packs_kernel(F f, Index index, int items, Operands... operands) {
  constexpr int kNext = kThreads * W;
  const int64_t block = int64_t{blockIdx.x} * (items * kNext);
  const int left = static_cast<int>(min(index.numel - block, int64_t{items} * kNext));
  int first = threadIdx.x * W;  // within the block
  Queues<W, kItems, std::index_sequence_for<Operands...>, Operands...> queues;
  // Elements past the end are computed on zeros and not stored. How many there are is not clamped to W
  // before it is compared with it: of max(min(n, W), 0) == W CUDA 13.0's ptxas made the opposite
  // (VIMNMX.RELU with a predicate), by which packs at the end were read and written whole.
  if (left == kItems * kNext) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      queues.fetch(index, block, first + i * kNext, W, i, operands...);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int at = first + i * kNext;
      if (at < left) queues.fetch(index, block, at, left - at, i, operands...);
    }
  }
  if constexpr (HasPrepare<F>) f.prepare();
#pragma unroll 1  // one copy of what f may be
  for (; first < left; first += kNext) {
    queues.finish(f, index, block, first, left - first, operands...);
  }
}

template <int W, class Index, class F, class... Operands>
void launch_packs(const Index& index, const F& f, void* stream, Operands... operands) {
  constexpr int kItems = kItemsOf<W, Operands...>;
  const int64_t packs = ceil_div(index.numel, W);
  // Several packs for each thread once there are blocks enough.
  const bool many = packs >= int64_t{kThreads} * kItems * multiprocessor_count() * 32;
  const int items = many ? kItems : 1;
  const int64_t blocks = ceil_div(packs, int64_t{kThreads} * items);
  launch_kernel(packs_kernel<W, kItems, Index, F, Operands...>, static_cast<unsigned>(blocks),
                kThreads, 0, stream, f, index, items, operands...);
}

// ---- Single elements -----------------------------------------------------------------------------

template <int W, class Sequence, class... Operands>
struct PackSet;
template <int W, size_t... I, class... Operands>
struct PackSet<W, std::index_sequence<I...>, Operands...> : PackOf<I, Operands, W>... {
  template <int N>
  __device__ __forceinline__ void load(int k, const int64_t (&at)[N], const Operands&... operands) {
    (operands.load(at[I], PackOf<I, Operands, W>::pack[k]), ...);
  }
  template <class F>
  __device__ __forceinline__ void run(const F& f) {
    if constexpr (IsPointwise<F> || W == 1) {
      f(PackOf<I, Operands, W>::pack...);
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        PackSet<1, std::index_sequence<I...>, Operands...> one{
            {{PackOf<I, Operands, W>::pack[k]}}...};
        one.run(f);
        ((PackOf<I, Operands, W>::pack[k] = one.PackOf<I, Operands, 1>::pack[0]), ...);
      }
    }
  }
  template <int N>
  __device__ __forceinline__ void store(int k, const int64_t (&at)[N],
                                        const Operands&... operands) const {
    (operands.store(at[I], PackOf<I, Operands, W>::pack[k]), ...);
  }
};

// Elements of a thread.
template <class F, class... Operands>
inline constexpr int kScattered =
    IsPointwise<F> && kWidest<Operands...> <= 2 && sizeof...(Operands) <= 2 ? 8 : 4;

template <class F, class... Operands>
__global__ void __launch_bounds__(kThreads, kBlocks<Operands...>)
    scattered_kernel(F f, DividedIndex<sizeof...(Operands)> index, Operands... operands) {
  if constexpr (HasPrepare<F>) f.prepare();
  constexpr int kCount = kScattered<F, Operands...>;
  const int64_t block = int64_t{blockIdx.x} * (kThreads * kCount);
  const int left = static_cast<int>(index.numel - block);
  PackSet<kCount, std::index_sequence_for<Operands...>, Operands...> packs{};
  int64_t at[sizeof...(Operands)];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int i = k * kThreads + threadIdx.x;
    if (i < left) {
      index.offsets(block, i, at);
      packs.load(k, at, operands...);
    }
  }
  packs.run(f);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int i = k * kThreads + threadIdx.x;
    if (i < left) {
      index.offsets(block, i, at);
      packs.store(k, at, operands...);
    }
  }
}

// ---- The choice ----------------------------------------------------------------------------------

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

}  // namespace detail

// f(pack of each operand...) over all of the index; operand k walks along index.stride[k].
template <int N, class F, class... Operands>
void map_elements(const StridedIndex<N>& index, const F& f, void* stream, Operands... operands) {
  static_assert(sizeof...(Operands) == N);
  constexpr int kWidth = detail::kWidth<Operands...>;
  const int last = index.ndim - 1;
  bool fit = last == 0 || (last > 0 && index.shape[last] % kWidth == 0);
  int n = 0;
  ((fit = fit && detail::packs_fit<kWidth>(index, n++, operands)), ...);
  if (fit && index.is_flat()) {
    return detail::launch_packs<kWidth>(detail::FlatIndex<N>{index.numel}, f, stream, operands...);
  }
  const auto launch = [&](const StridedIndex<N>& part, const int64_t(&first)[N]) {
    const detail::DividedIndex<N> divided(part);
    [&]<size_t... I>(std::index_sequence<I...>) {
      if (fit) {
        detail::launch_packs<kWidth>(divided, f, stream, operands.from(first[I])...);
      } else {
        constexpr int kBlock = detail::kThreads * detail::kScattered<F, Operands...>;
        const auto blocks = static_cast<unsigned>(ceil_div(part.numel, kBlock));
        launch_kernel(detail::scattered_kernel<F, Operands...>, blocks, detail::kThreads, 0, stream,
                      f, divided, operands.from(first[I])...);
      }
    }(std::index_sequence_for<Operands...>{});
  };
  const int64_t origin[N] = {};
  detail::for_each_part(index, origin, kWidth, launch);
}

}  // namespace dlkern::gpu
