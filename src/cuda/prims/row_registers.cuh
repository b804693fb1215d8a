// Rows held in registers, so that each element is read once.
//
// A row of n neighbours is cut into pieces of 16 bytes; piece j belongs to thread j % size of the
// team that shares the row, as its number j / size. Which elements a thread has, and so the order of
// all additions, follows from n alone: not from addresses, nor from the number of rows.
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

// Blocks may share a row, on the current device and by the code that is in the library.
inline bool clusters_of_rows() {
#if DLKERN_WITH_SM90
  return compute_capability() >= 90;
#else
  return false;
#endif
}

inline constexpr int kRowThreads =
    512;  // of a block, at most: for __launch_bounds__ of the kernels
inline constexpr int kMaxRowBlocks = 8;  // of a cluster that shares a row (Hopper)

// How a row is shared: by so many neighbouring lanes of a warp (a power of 2), by a block, or by the
// blocks of a cluster.
struct RowPlan {
  int size = 0;   // threads of a team; 0: the row is too long
  int items = 0;  // pieces of each thread, at most: 2, 4 or 8
  int blocks() const { return std::max(size / kRowThreads, 1); }  // of a team
  int threads() const { return size <= kWarpSize ? 128 : std::min(size, kRowThreads); }
  int teams() const { return std::max(threads() / size, 1); }  // of a block
};

inline RowPlan plan_row(int64_t n, int piece) {
  const int64_t pieces = ceil_div(n, piece);
  RowPlan plan{1, pieces <= 2 * kWarpSize ? 2 : pieces <= 4 * kRowThreads ? 4 : 8};
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
    } else if (size > kWarpSize) {
      rank = threadIdx.x, row = blockIdx.x;
    } else {
      rank = threadIdx.x % size, row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / size;
    }
  }
  // All threads of the team receive the result; all threads of the block must call it.
  template <class T, class Op>
  __device__ __forceinline__ T reduce(T v, Op op, T identity) {
    if (kBlocks || size > kWarpSize) {
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
  // In the order of the blocks. A slot is written again two calls later: all have read it then.
  template <class T, class Op>
  __device__ __forceinline__ T reduce_blocks(T v, Op op) {
#if DLKERN_WITH_SM90 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ T slots[2];
    T* slot = &slots[turn];
    turn ^= 1;
    if (threadIdx.x == 0) *slot = v;
    cluster_sync();
    T total = read_from_block(slot, 0);
    for (int block = 1; block < size / kRowThreads; ++block) {
      total = op(total, read_from_block(slot, block));
    }
    return total;
#else
    return v;
#endif
  }
};

// ---- Pieces ------------------------------------------------------------------------------------

template <class T>
inline constexpr int kPiece = 16 / sizeof(T);  // elements

template <class T>
struct alignas(16) Piece {
  T v[kPiece<T>];
};

// A piece in accesses of `align` bytes (16, 8, 4, or the element's).
template <class T>
__device__ __forceinline__ Piece<T> load_piece(const T* p, int align) {
  uint4 words;
  if (align == 16) {
    words = *reinterpret_cast<const uint4*>(p);
  } else if (align == 8) {
    const auto* from = reinterpret_cast<const uint2*>(p);
    const uint2 low = from[0], high = from[1];
    words = make_uint4(low.x, low.y, high.x, high.y);
  } else if (align == 4) {
    const auto* from = reinterpret_cast<const uint32_t*>(p);
    words = make_uint4(from[0], from[1], from[2], from[3]);
  } else {
    Piece<T> piece;
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i) piece.v[i] = p[i];
    return piece;
  }
  Piece<T> piece;
  memcpy(&piece, &words, sizeof(piece));
  return piece;
}
template <class T>
__device__ __forceinline__ void store_piece(T* p, const Piece<T>& piece, int align) {
  uint4 words;
  memcpy(&words, &piece, sizeof(piece));
  if (align == 16) {
    *reinterpret_cast<uint4*>(p) = words;
  } else if (align == 8) {
    auto* to = reinterpret_cast<uint2*>(p);
    to[0] = make_uint2(words.x, words.y);
    to[1] = make_uint2(words.z, words.w);
  } else if (align == 4) {
    auto* to = reinterpret_cast<uint32_t*>(p);
    to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
  } else {
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i) p[i] = piece.v[i];
  }
}

// A row's elements of this thread; those behind its end are `fill`.
template <class T, int kItems>
struct RowPieces {
  Piece<T> piece[kItems];

  // All loads are on their way before the first is waited for.
  template <bool kBlocks>
  __device__ __forceinline__ void load(const T* row, int64_t n, const RowTeam<kBlocks>& team,
                                       int align, T fill) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t first = int64_t{team.rank + i * team.size} * kPiece<T>;
      if (first + kPiece<T> <= n) {
        piece[i] = load_piece(row + first, align);
      } else {
#pragma unroll
        for (int e = 0; e < kPiece<T>; ++e) piece[i].v[e] = first + e < n ? row[first + e] : fill;
      }
    }
  }
  template <bool kBlocks>
  __device__ __forceinline__ void store(T* row, int64_t n, const RowTeam<kBlocks>& team,
                                        int align) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t first = int64_t{team.rank + i * team.size} * kPiece<T>;
      if (first + kPiece<T> <= n) {
        store_piece(row + first, piece[i], align);
      } else {
#pragma unroll
        for (int e = 0; e < kPiece<T>; ++e) {
          if (first + e < n) row[first + e] = piece[i].v[e];
        }
      }
    }
  }
  // f(element) for each, in order.
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) f(piece[i].v[e]);
    }
  }
};

// ---- Launch ------------------------------------------------------------------------------------

// f.operator()<kItems, kBlocks>() for a plan: f returns the kernel.
template <class F>
auto pick_row_kernel(const RowPlan& plan, F&& f) {
  if (plan.blocks() > 1) return f.template operator()<8, true>();
  return plan.items == 2   ? f.template operator()<2, false>()
         : plan.items == 4 ? f.template operator()<4, false>()
                           : f.template operator()<8, false>();
}

// A row for each team.
template <class... Params, class... Arguments>
void launch_rows(void (*kernel)(Params...), const RowPlan& plan, int64_t rows, void* stream,
                 Arguments&&... arguments) {
  launch_clusters(kernel, static_cast<unsigned>(ceil_div(rows, plan.teams()) * plan.blocks()),
                  plan.threads(), 0, stream, plan.blocks(), std::forward<Arguments>(arguments)...);
}

}  // namespace dlkern::gpu
