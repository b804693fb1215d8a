// Rows held in registers, so that each element is read once.
//
// A row of n neighbours is cut into pieces of 16 bytes; piece j belongs to thread j % size of the
// team that shares the row, as its number j / size. Which elements a thread has, and so the order
// of all additions, follows from n alone: not from addresses, nor from the number of rows.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/reduce.cuh"
#if DLKERN_WITH_SM90
#include "cuda/prims/ptx_sm90.cuh"
#endif

namespace dlkern::gpu {

// ---- Teams -------------------------------------------------------------------------------------

// Blocks may share a row, on the current device and by the code that is in the library: a newer
// device than Hopper may run code that was compiled for Ampere and knows no clusters.
inline bool clusters_of_rows() {
#if DLKERN_WITH_SM90
  return compute_capability() == 90;
#else
  return false;
#endif
}

// For __launch_bounds__ of the kernels: threads of a block, at most, and blocks of a
// multiprocessor, at least. With one block alone nothing would be on its way from memory while it
// computes; float64 is bound by its exponentials and takes the registers.
inline constexpr int kRowThreads = 512;
template <class T>
inline constexpr int kRowBlocks = sizeof(T) == 8 ? 1 : 2;
inline constexpr int kMaxRowBlocks = 8;  // of a cluster that shares a row (Hopper)
// Of a team within a warp, at most. Every target's warps have so many; their width is not known on
// the host.
inline constexpr int kRowLanes = 32;

// How a row is shared: by so many neighbouring lanes of a warp (a power of 2), by a block, or by
// the blocks of a cluster.
struct RowPlan {
  int size = 0;   // threads of a team; 0: the row is too long
  int items = 0;  // pieces of each thread, at most: 2, 4 or 8
  int blocks() const { return std::max(size / kRowThreads, 1); }  // of a team
  int threads() const { return size <= kRowLanes ? 128 : std::min(size, kRowThreads); }
  int teams() const { return std::max(threads() / size, 1); }  // of a block
};

// most_items: 8, or 4 for kernels that hold two rows in each thread.
inline RowPlan plan_row(int64_t n, int piece, int most_items = 8) {
  const int64_t pieces = ceil_div(n, piece);
  RowPlan plan{1, pieces <= 2 * kRowLanes ? 2 : pieces <= 4 * kRowThreads ? 4 : most_items};
  const int most = kRowThreads * (clusters_of_rows() ? kMaxRowBlocks : 1);
  while (int64_t{plan.size} * plan.items < pieces && plan.size < most) plan.size *= 2;
  if (int64_t{plan.size} * plan.items < pieces) plan.size = 0;
  return plan;
}

// The largest power of two, at most 16, that divides the address of every row of a tensor.
template <int N>
int row_alignment(const void* data, const StridedIndex<N>& rows, int tensor, int element_bytes) {
  uint64_t bits = reinterpret_cast<uintptr_t>(data) | 16;
  for (int d = 0; d < rows.ndim; ++d) {
    bits |= static_cast<uint64_t>(rows.stride[tensor][d] * element_bytes);
  }
  return static_cast<int>(bits & (~bits + 1));
}

// Of a kernel of one row for each team. kBlocks: a cluster's blocks are the team.
template <bool kBlocks>
struct RowTeam {
  int rank, size;
  int64_t row;
  int turn = 0;  // of the slots of reduce()

  __device__ explicit RowTeam(int size_) : size(size_) {
    if constexpr (kBlocks) {
      const int blocks = size / kRowThreads;
      rank = blockIdx.x % blocks * kRowThreads + threadIdx.x, row = blockIdx.x / blocks;
    } else if (size > kRowLanes) {
      rank = threadIdx.x, row = blockIdx.x;
    } else {
      rank = threadIdx.x % size, row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / size;
    }
  }
  // All threads of the team receive the result; all threads of the block must call it.
  template <class T, class Op>
  __device__ __forceinline__ T reduce(T v, Op op, T identity) {
    if (kBlocks || size > kRowLanes) {
      v = block_reduce(v, op, identity);
      if constexpr (kBlocks) v = reduce_blocks(v, op);
    } else {
      for (int mask = size / 2; mask > 0; mask /= 2) v = op(v, shuffle_xor(v, mask));
    }
    return v;
  }
  // Shared memory that others read lives as long.
  __device__ __forceinline__ void end() const {
#if DLKERN_WITH_SM90 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (kBlocks) cluster_sync();
#endif
  }

 private:
  // A slot is written again two calls later: all have read it then.
  template <class T, class Op>
  __device__ __forceinline__ T reduce_blocks(T v, Op op) {
#if DLKERN_WITH_SM90 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ T slots[2];
    T* slot = &slots[turn];
    turn ^= 1;
    if (threadIdx.x == 0) *slot = v;
    cluster_sync();
    const int blocks = size / kRowThreads;  // a power of 2
    v = read_from_block(slot, threadIdx.x % blocks);
    for (int mask = blocks / 2; mask > 0; mask /= 2) v = op(v, shuffle_xor(v, mask));
    return v;
#else
    return v;
#endif
  }
};

// ---- Pieces ------------------------------------------------------------------------------------

template <class T>
inline constexpr int kPiece = 16 / sizeof(T);  // elements

// Held as words: elements of 16 bits that are values of their own would take a register each.
template <class T>
struct Piece {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  uint32_t word[4];

  __device__ __forceinline__ T get(int e) const {
    if constexpr (sizeof(T) == 2) {
      return bit_cast_to<T>(static_cast<uint16_t>(word[e / 2] >> 16 * (e % 2)));
    } else if constexpr (sizeof(T) == 4) {
      return bit_cast_to<T>(word[e]);
    } else {
      return bit_cast_to<T>(word[2 * e] | static_cast<uint64_t>(word[2 * e + 1]) << 32);
    }
  }
  __device__ __forceinline__ void drop_first() {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < 3; ++i) word[i] = word[i] >> 16 | word[i + 1] << 16;
      word[3] >>= 16;
    } else {
      constexpr int kWords = sizeof(T) / 4;
#pragma unroll
      for (int i = 0; i < 4 - kWords; ++i) word[i] = word[i + kWords];
    }
  }
  __device__ __forceinline__ void set(int e, T v) {
    if constexpr (sizeof(T) == 2) {
      const uint32_t kept = word[e / 2] & 0xffff0000u >> 16 * (e % 2);
      word[e / 2] = kept | static_cast<uint32_t>(bit_cast_to<uint16_t>(v)) << 16 * (e % 2);
    } else if constexpr (sizeof(T) == 4) {
      word[e] = bit_cast_to<uint32_t>(v);
    } else {
      const auto bits = bit_cast_to<uint64_t>(v);
      word[2 * e] = static_cast<uint32_t>(bits),
               word[2 * e + 1] = static_cast<uint32_t>(bits >> 32);
    }
  }
};

// The compiler cannot look through this: what was computed from the words before is computed anew
// behind it, and not kept or brought forward. Elements of 16 bits on their own take as many
// registers as float32.
__device__ __forceinline__ void keep_packed([[maybe_unused]] uint32_t (&w)[4]) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3]));
#endif
}

// Two elements of 16 bits: one instruction on NVIDIA.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, BFloat16>) {
    return bit_cast_to<uint32_t>(__floats2bfloat162_rn(low, high));
  } else {
    return bit_cast_to<uint32_t>(__floats2half2_rn(low, high));
  }
#else
  const auto bits = [](float v) { return uint32_t{bit_cast_to<uint16_t>(static_cast<T>(v))}; };
  return bits(low) | bits(high) << 16;
#endif
}

// The first `count` elements of a piece, for load_piece the others as `fill`, in accesses of
// `align` bytes (16, 8, 4, or the element's) where the piece is whole.
template <class T>
__device__ __forceinline__ Piece<T> load_piece(const T* p, int count, int align, T fill) {
  if (count >= kPiece<T> && align == 16) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    return {{v.x, v.y, v.z, v.w}};
  }
  if (count >= kPiece<T> && align == 8) {
    const auto* from = reinterpret_cast<const uint2*>(p);
    const uint2 low = from[0], high = from[1];
    return {{low.x, low.y, high.x, high.y}};
  }
  if (count >= kPiece<T> && align == 4) {
    const auto* from = reinterpret_cast<const uint32_t*>(p);
    return {{from[0], from[1], from[2], from[3]}};
  }
  Piece<T> piece{};
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) piece.set(e, e < count ? p[e] : fill);
  return piece;
}
template <class T>
__device__ __forceinline__ void store_piece(T* p, Piece<T> piece, int count, int align) {
  const uint32_t(&w)[4] = piece.word;
  if (count >= kPiece<T> && align == 16) {
    *reinterpret_cast<uint4*>(p) = make_uint4(w[0], w[1], w[2], w[3]);
  } else if (count >= kPiece<T> && align == 8) {
    auto* to = reinterpret_cast<uint2*>(p);
    to[0] = make_uint2(w[0], w[1]), to[1] = make_uint2(w[2], w[3]);
  } else if (count >= kPiece<T> && align == 4) {
    auto* to = reinterpret_cast<uint32_t*>(p);
    to[0] = w[0], to[1] = w[1], to[2] = w[2], to[3] = w[3];
  } else {
    // Not unrolled: the elements of all pieces would be taken apart early and fill the registers.
#pragma unroll 1
    for (int e = 0; e < kPiece<T> && e < count; ++e) {
      p[e] = piece.get(0);
      piece.drop_first();
    }
  }
}

// A row's elements of this thread; those behind its end are `fill`.
template <class T, int kItems>
struct RowPieces {
  static constexpr int kElements = kItems * kPiece<T>;
  Piece<T> piece[kItems];

  // Element k of this thread, and its place in the row.
  __device__ __forceinline__ T get(int k) const { return piece[k / kPiece<T>].get(k % kPiece<T>); }
  __device__ __forceinline__ void set(int k, T v) { piece[k / kPiece<T>].set(k % kPiece<T>, v); }
  template <bool kBlocks>
  static __device__ __forceinline__ int place(const RowTeam<kBlocks>& team, int k) {
    return (team.rank + k / kPiece<T> * team.size) * kPiece<T> + k % kPiece<T>;
  }
  // f(element, its number k), an Accumulator<T>, in place of each.
  template <class F>
  __device__ __forceinline__ void assign(F&& f) {
#pragma unroll
    for (int k = 0; k < kElements; k += sizeof(T) == 2 ? 2 : 1) {
      if constexpr (sizeof(T) == 2) {
        const float low = f(get(k), k), high = f(get(k + 1), k + 1);
        piece[k / kPiece<T>].word[k % kPiece<T> / 2] = pack<T>(low, high);
      } else {
        set(k, static_cast<T>(f(get(k), k)));
      }
    }
  }
  // Between two passes over the elements.
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int i = 0; i < kItems; ++i) keep_packed(piece[i].word);
  }
  // All loads are on their way before the first is waited for.
  template <bool kBlocks>
  __device__ __forceinline__ void load(const T* row, int n, const RowTeam<kBlocks>& team, int align,
                                       T fill) {
    if (align == 16 && n % kPiece<T> == 0) {  // whole pieces: no branches between the loads
      Piece<T> filled{};
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) filled.set(e, fill);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int first = place(team, i * kPiece<T>);
        piece[i] = filled;
        if (first < n) piece[i] = load_piece(row + first, kPiece<T>, 16, fill);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int first = place(team, i * kPiece<T>);
      piece[i] = load_piece(row + first, n - first, align, fill);
    }
  }
  template <bool kBlocks>
  __device__ __forceinline__ void store(T* row, int n, const RowTeam<kBlocks>& team,
                                        int align) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int first = place(team, i * kPiece<T>);
      store_piece(row + first, piece[i], n - first, align);
    }
  }
};

// ---- Launch ------------------------------------------------------------------------------------

// f.operator()<kItems, kBlocks>() for a plan of at most kMostItems: f returns the kernel.
template <int kMostItems = 8, class F>
auto pick_row_kernel(const RowPlan& plan, F&& f) {
  if (plan.blocks() > 1) return f.template operator()<kMostItems, true>();
  return plan.items == 2   ? f.template operator()<2, false>()
         : plan.items == 4 ? f.template operator()<4, false>()
                           : f.template operator()<kMostItems, false>();
}

// Why rows of n elements, neighbours in each of the tensors along `axis`, cannot stay in registers.
inline const char* not_in_registers(std::initializer_list<const Tensor*> tensors, int axis,
                                    int most_items = 8) {
  const Tensor& first = **tensors.begin();
  const int64_t n = first.shape[axis];
  for (const Tensor* t : tensors) {
    if (t->strides[axis] != 1 && n != 1) return "the axis does not have neighbouring elements";
  }
  const RowPlan plan = plan_row(n, static_cast<int>(16 / dtype_size(first.dtype)), most_items);
  if (plan.size == 0) return "rows are too long for registers";
  const int64_t rows = n > 0 ? first.numel() / n : 0;
  if (ceil_div(rows, plan.teams()) > INT32_MAX / plan.blocks()) return "too many rows";
  return nullptr;
}

// A row for each team.
template <class... Params, class... Arguments>
void launch_rows(void (*kernel)(Params...), const RowPlan& plan, int64_t rows, void* stream,
                 Arguments&&... arguments) {
  launch_clusters(kernel, static_cast<unsigned>(ceil_div(rows, plan.teams()) * plan.blocks()),
                  plan.threads(), 0, stream, plan.blocks(), std::forward<Arguments>(arguments)...);
}

}  // namespace dlkern::gpu
