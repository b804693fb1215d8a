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
//   packs       the innermost dimension is contiguous (or repeated): packs of W neighbours, which fill
//               accesses of 16 (or 8) bytes of the widest type
//   shifted     the same at any address, of functors that are Pointwise: packs are aligned where they
//               are written, and read by the two aligned accesses around them
//   scattered   any strides and alignment: single elements
// Each thread has 16 to 64 bytes of inputs on their way before it waits for the first. A functor
// that is Pointwise does not care which elements share a pack; to others packs of more than one
// element are neighbours that begin at a multiple of W. An optional member `prepare()` is called
// once per thread, for what must be read from device memory, while the operands are on their way.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/fast_index.h"
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
  template <int W>
  using FetchedAround = Around<T, W>;
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
  // Of a whole pack at any address, with others on either side.
  template <int W>
  __device__ __forceinline__ void fetch(int64_t at, int64_t step, Around<T, W>& raw) const {
    if (data == nullptr || step == 0) {
      Raw<T, W> repeated;
      repeated.fill(data ? data[at] : T{});
      raw.hold(repeated);
    } else {
      raw.load(data + at);
    }
  }
  template <int W>
  __device__ __forceinline__ void unpack(Raw<T, W> raw, int64_t, int64_t,
                                         Pack<Value, W>& pack) const {
    raw.forget();
    raw.unpack(pack.v);
  }
  template <int W>
  __device__ __forceinline__ void unpack(const Around<T, W>& raw, Pack<Value, W>& pack) const {
    raw.get().unpack(pack.v);
  }
  __device__ __forceinline__ void load(int64_t at, Value& v) const {
    v = data == nullptr ? Value{} : static_cast<Value>(data[at]);
  }
  template <bool kAnywhere = false, int W>
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
  template <int W>
  using FetchedAround = Fetched<W>;
  T* data;

  const void* address() const { return data; }
  Out from(int64_t offset) const { return {data ? data + offset : data}; }
  template <int W>
  __device__ __forceinline__ void fetch(int64_t, int64_t, int, Fetched<W>&) const {}
  template <int W>
  __device__ __forceinline__ void fetch(int64_t, int64_t, Fetched<W>&) const {}
  template <int W>
  __device__ __forceinline__ void unpack(const Fetched<W>&, int64_t, int64_t,
                                         Pack<Value, W>&) const {}
  template <int W>
  __device__ __forceinline__ void unpack(const Fetched<W>&, Pack<Value, W>&) const {}
  __device__ __forceinline__ void load(int64_t, Value&) const {}
  // kAnywhere: whatever the address is.
  template <bool kAnywhere = false, int W>
  __device__ __forceinline__ void store(int64_t at, int count, const Pack<Value, W>& pack) const {
    if (data == nullptr) return;
    Raw<T, W> raw;
    raw.pack(pack.v);
    const bool aligned = !kAnywhere || is_aligned(data + at, sizeof(raw));
    if (aligned && count >= W) {
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
  InOut from(int64_t offset) const { return {Out<T>::from(offset)}; }
  template <int W>
  using Fetched = Raw<T, W>;
  template <int W>
  using FetchedAround = Around<T, W>;

  template <int W>
  __device__ __forceinline__ void fetch(int64_t at, int64_t step, int count, Raw<T, W>& raw) const {
    In<T>{this->data}.fetch(at, step, count, raw);
  }
  template <int W>
  __device__ __forceinline__ void fetch(int64_t at, int64_t step, Around<T, W>& raw) const {
    In<T>{this->data}.fetch(at, step, raw);
  }
  template <int W>
  __device__ __forceinline__ void unpack(const Raw<T, W>& raw, int64_t at, int64_t step,
                                         Pack<Value, W>& pack) const {
    In<T>{this->data}.unpack(raw, at, step, pack);
  }
  template <int W>
  __device__ __forceinline__ void unpack(const Around<T, W>& raw, Pack<Value, W>& pack) const {
    raw.get().unpack(pack.v);
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

// Of a block. Measured: many small blocks with one or two 16-byte loads for each thread copy at 4.28
// TB/s, with four at 4.08, persistent blocks at 3.9 (H200, 2026-11-30).
inline constexpr int kThreads = 128, kThreadBits = 7;
template <class F>
concept HasPrepare = requires(F f) { f.prepare(); };
template <class F>
concept IsPointwise = requires { typename F::Pointwise; };

// ---- Where elements lie --------------------------------------------------------------------------

// The innermost dimension, along which all tensors are contiguous or repeated: a row.
template <int N>
struct Rows {
  int count, length;
  int across_bits;             // of a block, threads side by side in a row: 2 to the power of it
  FastDiv chunks;              // of a row, one for a block
  RankedIndex<N, int> starts;  // of the rows
  int step[N];                 // 1, or 0: repeated

  // Packs of `width` elements; shifted: the first may begin before the row.
  Rows(const StridedIndex<N>& index, int width, bool shifted) {
    const int last = index.ndim - 1;
    StridedIndex<N> outer = index;
    outer.ndim = std::max(last, 0);
    length = static_cast<int>(last < 0 ? 1 : index.shape[last]);
    count = static_cast<int>(length ? index.numel / length : 0);
    starts = RankedIndex<N, int>(outer);
    for (int n = 0; n < N; ++n) step[n] = last < 0 ? 0 : static_cast<int>(index.stride[n][last]);
    // A whole block side by side, or fewer threads where many of them would have nothing to do.
    packs = ceil_div(length + (shifted ? width - 1 : 0), width);
    const auto idle = [&] { return ceil_div(packs, across()) * across() - packs; };
    across_bits = kThreadBits;
    while (across_bits > 3 && idle() > packs / 8) --across_bits;
  }
  DLK_HD int across() const { return 1 << across_bits; }
  // Blocks, with `items` accesses for each thread.
  int64_t blocks(int items) {
    chunks = FastDiv(ceil_div(packs, int64_t{items} << across_bits));
    return chunks.divisor() * ceil_div(count, kThreads >> across_bits);
  }

 private:
  int64_t packs;
};

// Where a thread begins: at element `column` of a row. It has `items` packs of W, with those of the
// threads beside it between them.
template <int N>
struct Place {
  const Rows<N>& rows;
  int row, column;
  int start[N];  // offsets of the row

  __device__ __forceinline__ Place(const Rows<N>& rows_, int items, int W) : rows(rows_) {
    const int group = rows.chunks.quick(static_cast<int>(blockIdx.x));
    const int chunk = static_cast<int>(blockIdx.x - group * rows.chunks.divisor());
    const int thread = static_cast<int>(threadIdx.x), across = 1 << rows.across_bits;
    row = (group << (kThreadBits - rows.across_bits)) + (thread >> rows.across_bits);
    column = (chunk * items * across + (thread & (across - 1))) * W;
    rows.starts.offsets(row, start);
  }
  __device__ __forceinline__ int step(int n) const { return rows.step[n]; }
  // Of the element `ahead` of the first.
  template <class I>
  __device__ __forceinline__ void offsets(int ahead, I (&at)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = start[n] + (column + ahead) * step(n);
  }
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
  // The pack at element `ahead` of a Place, or of what has its two functions.
  template <class Where>
  __device__ __forceinline__ void fetch(const Where& where, int ahead, int count, int item,
                                        const Operands&... operands) {
    int64_t at[sizeof...(Operands)];
    where.offsets(ahead, at);
    (operands.fetch(at[I], where.step(I), count, Queue<I, Operands, W, kItems>::items[item]), ...);
  }
  // Computes what was fetched first, and stores it.
  template <class F, class Where>
  __device__ __forceinline__ void finish(const F& f, const Where& where, int ahead, int count,
                                         const Operands&... operands) {
    struct : PackOf<I, Operands, W>... {
    } all;
    int64_t at[sizeof...(Operands)];
    where.offsets(ahead, at);
    (operands.unpack(Queue<I, Operands, W, kItems>::items[0], at[I], where.step(I),
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

// Packs that are read and written.
template <class... Operands>
inline constexpr int kPacks = ((Operands::kIsRead + Operands::kIsWritten) + ...);
// Blocks of a multiprocessor, at least. Measured: dropout at 4.23 TB/s, with 8 blocks at 3.45 to 3.83
// (H200, 2026-12-01).
template <class... Operands>
inline constexpr int kBlocks = kWidest<Operands...> == 8 ? (kPacks<Operands...> > 2 ? 6 : 8)
                               : kPacks<Operands...> > 3 ? 8
                               : kPacks<Operands...> > 2 ? 10
                                                         : 12;
// Elements of a pack. Where more than 4 packs are read and written those of 16 bytes would not fit in
// the registers.
template <class... Operands>
inline constexpr int kWidth =
    std::max((kPacks<Operands...> > 4 ? 8 : 16) / kWidest<Operands...>, 2);
// Packs of a thread at most: two where there is one input and not much to compute it for.
template <int W, class F, class... Operands>
inline constexpr int kItemsOf = IsPointwise<F> && W * kBytesIn<Operands...> <= 16 ? 2 : 1;

// A thread has `items` <= kItems packs.
template <int W, int kItems, int N, class F, class... Operands>
__global__ void __launch_bounds__(kThreads, kBlocks<Operands...>)
    packs_kernel(F f, const DLK_GRID_CONSTANT Rows<N> rows, int items, Operands... operands) {
  const Place<N> place(rows, items, W);
  if (place.row >= rows.count) return;
  const int next = W << rows.across_bits, left = rows.length - place.column;
  const int end = min((kItems == 1 ? 1 : items) * next, left);
  Queues<W, kItems, std::index_sequence_for<Operands...>, Operands...> queues;
  // Elements past the end are computed on zeros and not stored. How many there are is not clamped to W
  // before it is compared with it: of max(min(n, W), 0) == W CUDA 13.0's ptxas made the opposite
  // (VIMNMX.RELU with a predicate), by which packs at the end were read and written whole.
  if (items == kItems && left >= (kItems - 1) * next + W) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) queues.fetch(place, i * next, W, i, operands...);
  } else {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int ahead = i * next;
      if (ahead < end) queues.fetch(place, ahead, left - ahead, i, operands...);
    }
  }
  if constexpr (HasPrepare<F>) f.prepare();
  if constexpr (kItems == 1) {
    if (end > 0) queues.finish(f, place, 0, left, operands...);
  } else {
#pragma unroll 1  // one copy of what f may be
    for (int ahead = 0; ahead < end; ahead += next) {
      queues.finish(f, place, ahead, left - ahead, operands...);
    }
  }
}

template <int W, int N, class F, class... Operands>
void launch_packs(const StridedIndex<N>& index, const F& f, void* stream, Operands... operands) {
  constexpr int kItems = kItemsOf<W, F, Operands...>;
  Rows<N> rows(index, W, false);
  // Several packs for each thread once there are blocks enough.
  const bool many = rows.blocks(kItems) >= int64_t{multiprocessor_count()} * 32;
  const int items = many ? kItems : 1;
  launch_kernel(packs_kernel<W, kItems, N, F, Operands...>,
                static_cast<unsigned>(rows.blocks(items)), kThreads, 0, stream, f, rows, items,
                operands...);
}

// ---- Single elements -----------------------------------------------------------------------------

template <size_t I, class Operand, int W>
struct FetchedAroundOf {
  typename Operand::template FetchedAround<W> fetched;
};

template <int W, class Sequence, class... Operands>
struct PackSet;
template <int W, size_t... I, class... Operands>
struct PackSet<W, std::index_sequence<I...>, Operands...> : PackOf<I, Operands, W>... {
  template <int N, class Offset>
  __device__ __forceinline__ void load(int k, const Offset (&at)[N], const Operands&... operands) {
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
  __device__ __forceinline__ void store(int k, const int (&at)[N],
                                        const Operands&... operands) const {
    (operands.store(at[I], PackOf<I, Operands, W>::pack[k]), ...);
  }
  // Of whole packs at any address.
  template <int N>
  __device__ __forceinline__ void load_around(const int (&at)[N], const int (&step)[N],
                                              const Operands&... operands) {
    struct : FetchedAroundOf<I, Operands, W>... {
    } all;
    (operands.fetch(at[I], step[I], all.FetchedAroundOf<I, Operands, W>::fetched), ...);
    (operands.unpack(all.FetchedAroundOf<I, Operands, W>::fetched, PackOf<I, Operands, W>::pack),
     ...);
  }
  template <int N>
  __device__ __forceinline__ void store_around(const int (&at)[N],
                                               const Operands&... operands) const {
    (operands.template store<true>(at[I], W, PackOf<I, Operands, W>::pack), ...);
  }
};

// Elements of a thread.
template <class F, class... Operands>
inline constexpr int kScattered =
    IsPointwise<F> && kWidest<Operands...> <= 2 && sizeof...(Operands) <= 2 ? 8 : 4;

template <class F, class... Operands>
__global__ void __launch_bounds__(kThreads, kBlocks<Operands...>)
    scattered_kernel(F f, const DLK_GRID_CONSTANT RankedIndex<sizeof...(Operands), int> index,
                     Operands... operands) {
  if constexpr (HasPrepare<F>) f.prepare();
  constexpr int kCount = kScattered<F, Operands...>;
  const int block = static_cast<int>(blockIdx.x) * (kThreads * kCount);
  const int left = static_cast<int>(index.numel) - block;
  PackSet<kCount, std::index_sequence_for<Operands...>, Operands...> packs{};
  int at[sizeof...(Operands)];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int i = k * kThreads + threadIdx.x;
    if (i < left) {
      index.offsets(block + i, at);
      packs.load(k, at, operands...);
    }
  }
  packs.run(f);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int i = k * kThreads + threadIdx.x;
    if (i < left) {
      index.offsets(block + i, at);
      packs.store(k, at, operands...);
    }
  }
}

template <int N, class F, class... Operands>
void launch_scattered(const StridedIndex<N>& index, const F& f, void* stream,
                      Operands... operands) {
  const RankedIndex<N, int> ranked(index);
  const int64_t blocks = ceil_div(index.numel, kThreads * kScattered<F, Operands...>);
  launch_kernel(scattered_kernel<F, Operands...>, static_cast<unsigned>(blocks), kThreads, 0,
                stream, f, ranked, operands...);
}

// ---- Packs at any address --------------------------------------------------------------------------

// The elements between the address of the first operand, which is written, and the multiple of W
// before it.
template <int W, class Operand, class... Others>
__device__ __forceinline__ int lead_of(int64_t at, const Operand& operand, const Others&...) {
  static_assert(Operand::kIsWritten);
  return static_cast<int>(reinterpret_cast<uintptr_t>(operand.data + at) / Operand::kBytes % W);
}

// Packs that have others of their row on either side are read around; those at the ends, element by
// element.
template <int W, int N, class F, class... Operands>
__global__ void __launch_bounds__(kThreads, kBlocks<Operands...>)
    shifted_kernel(F f, const DLK_GRID_CONSTANT Rows<N> rows, Operands... operands) {
  const Place<N> place(rows, 1, W);
  if (place.row >= rows.count) return;
  const int lead = lead_of<W>(place.start[0], operands...), column = place.column - lead;
  if (column >= rows.length) return;
  const auto each = [&](auto move) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      int at[N];
      place.offsets(k - lead, at);
      if (column + k >= 0 && column + k < rows.length) move(k, at);
    }
  };
  const bool between = column >= W && column + 2 * W <= rows.length;
  int first[N];
  place.offsets(-lead, first);
  PackSet<W, std::index_sequence_for<Operands...>, Operands...> packs{};
  if (between) {
    packs.load_around(first, rows.step, operands...);
  } else {
    each([&](int k, const int(&at)[N]) { packs.load(k, at, operands...); });
  }
  if constexpr (HasPrepare<F>) f.prepare();
  packs.run(f);
  if (between) {
    packs.store_around(first, operands...);
  } else {
    each([&](int k, const int(&at)[N]) { packs.store(k, at, operands...); });
  }
}

template <int W, int N, class F, class... Operands>
void launch_shifted(const StridedIndex<N>& index, const F& f, void* stream, Operands... operands) {
  Rows<N> rows(index, W, true);
  launch_kernel(shifted_kernel<W, N, F, Operands...>, static_cast<unsigned>(rows.blocks(1)),
                kThreads, 0, stream, f, rows, operands...);
}

// ---- The choice ----------------------------------------------------------------------------------

// Whether an operand lies in rows: its innermost stride is 1, or 0 where it is only read, or absent.
template <int N, class Operand>
bool is_row(const StridedIndex<N>& index, int n, const Operand& operand) {
  const int64_t inner = index.stride[n][index.ndim - 1];
  return inner == 1 || (inner == 0 && (!Operand::kIsWritten || operand.address() == nullptr));
}
// Whether it can be taken W elements at a time: all packs of its rows are aligned, too.
template <int W, int N, class Operand>
bool packs_fit(const StridedIndex<N>& index, int n, const Operand& operand) {
  const int last = index.ndim - 1;
  bool fit = is_row(index, n, operand);
  if (index.stride[n][last] == 0) return fit;
  fit = fit && is_aligned(operand.address(), size_t{W} * Operand::kBytes);
  for (int d = 0; d < last; ++d) fit = fit && index.stride[n][d] % W == 0;
  return fit;
}

}  // namespace detail

// f(pack of each operand...) over all of the index; operand k walks along index.stride[k]. The first
// operand is written.
template <int N, class F, class... Operands>
void map_elements(const StridedIndex<N>& index, const F& f, void* stream, Operands... operands) {
  static_assert(sizeof...(Operands) == N);
  if (index.numel == 0) return;
  constexpr int W = detail::kWidth<Operands...>;
  const int last = index.ndim - 1;
  bool rows = last >= 0, fit = last == 0 || (last > 0 && index.shape[last] % W == 0);
  int n = 0, m = 0;
  ((rows = rows && detail::is_row(index, n++, operands)), ...);
  ((fit = fit && detail::packs_fit<W>(index, m++, operands)), ...);
  const auto launch = [&]<size_t... I>(std::index_sequence<I...>) {
    return [&](const StridedIndex<N>& part, const int64_t(&first)[N]) {
      if (fit) {
        return detail::launch_packs<W>(part, f, stream, operands.from(first[I])...);
      }
      if constexpr (detail::IsPointwise<F>) {
        // In shorter rows too many packs are at the ends.
        if (rows && part.shape[last] >= 8 * W) {
          return detail::launch_shifted<W>(part, f, stream, operands.from(first[I])...);
        }
      }
      detail::launch_scattered(part, f, stream, operands.from(first[I])...);
    };
  }(std::index_sequence_for<Operands...>{});
  const int64_t origin[N] = {};
  detail::for_each_part(index, origin, W, launch);
}

}  // namespace dlkern::gpu
