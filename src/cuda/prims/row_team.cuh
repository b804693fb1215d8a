// Which threads share a row whose elements stay in registers (row_pieces.cuh), and their sums.
//
// A row of n neighbours is cut into pieces of 16 bytes; piece j belongs to thread j % size of the
// team that shares the row, as its number j / size. Which elements a thread has, and so the order
// of all additions, follows from n alone: not from addresses, nor from the number of rows.
#pragma once

#include <algorithm>

#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/reduce.cuh"
#if DLKERN_WITH_SM90
#include "cuda/prims/ptx_sm90.cuh"
#endif

namespace dlkern::gpu {

template <class T>
inline constexpr int kPiece = 16 / sizeof(T);  // elements

// For __launch_bounds__ of the kernels: threads of a block, at most, and blocks of a
// multiprocessor, at least. With one block alone nothing would be on its way from memory while it
// computes; float64 is bound by its exponentials and takes the registers.
inline constexpr int kRowThreads = 512;
template <class T>
inline constexpr int kRowBlocks = sizeof(T) == 8 ? 1 : 2;
inline constexpr int kMaxTeamThreads = 1024;  // of kernels with a block of their own size
inline constexpr int kMaxRowBlocks = 8;       // of a cluster that shares a row (Hopper)
// Of a team within a warp, at most. Every target's warps have so many; their width is not known on
// the host.
inline constexpr int kRowLanes = 32;

// ---- Plan --------------------------------------------------------------------------------------

// Blocks may share a row, on the current device and by the code that is in the library: a newer
// device than Hopper may run code that was compiled for Ampere and knows no clusters.
inline bool clusters_of_rows() {
#if DLKERN_WITH_SM90
  return compute_capability() == 90;
#else
  return false;
#endif
}

// How a row is shared: by so many neighbouring lanes of a warp (a power of 2), by a block or a part
// of it, or by the blocks of a cluster.
struct RowPlan {
  int size = 0;   // threads of a team; 0: the row is too long
  int items = 0;  // pieces of each thread, at most: 2, 4 or 8
  int blocks() const { return std::max(size / kRowThreads, 1); }  // of a team
  int threads() const { return size <= kRowLanes ? 128 : std::min(size, kRowThreads); }
  int teams() const { return std::max(threads() / size, 1); }  // of a block
};

// most_items: 8, or 4 or 2 for kernels that hold more than a row in each thread. least_items: as many
// for kernels that always have so many, whose threads would be half empty with fewer.
inline RowPlan plan_row(int64_t n, int piece, int most_items = 8, int least_items = 2) {
  const int64_t pieces = ceil_div(n, piece);
  const int suited = pieces <= 4 * kRowLanes ? 2 : pieces <= 4 * kRowThreads ? 4 : 8;
  RowPlan plan{1, std::clamp(suited, least_items, most_items)};
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

// Where row number i begins in each tensor. kPlain: the rows are one stride apart.
template <bool kPlain, int N>
__device__ __forceinline__ void row_offsets(const StridedIndex<N>& rows, int64_t i,
                                            int64_t (&at)[N]) {
  if constexpr (kPlain) {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = i * rows.stride[n][0];
  } else {
    rows.offsets(i, at);
  }
}

// The same as a kernel's parameter: few bytes where the rows are one stride apart. Small problems wait
// for each line of parameters.
template <int N>
struct PlainRows {
  int64_t numel;
  int64_t stride[N];

  explicit PlainRows(const StridedIndex<N>& rows) : numel(rows.numel) {
    for (int n = 0; n < N; ++n) stride[n] = rows.stride[n][0];
  }
  __device__ __forceinline__ void offsets(int64_t i, int64_t (&at)[N]) const {
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] = i * stride[n];
  }
};
template <int N, bool kPlain>
using RowIndex = std::conditional_t<kPlain, PlainRows<N>, StridedIndex<N>>;

// ---- Team --------------------------------------------------------------------------------------

// The threads that share a row. kBlocks: a cluster's blocks are the team; else a block has one team
// or several.
template <bool kBlocks>
struct RowTeam {
  int rank, size;
  int64_t first;     // row of the block's first team
  int64_t row;       // of this team
  int64_t row_step;  // teams of the grid
  int turn = 0;      // of the slots of reduce()
  bool met = false;  // the cluster's blocks have

  __device__ explicit RowTeam(int size_) : size(size_) {
    if constexpr (kBlocks) {
      const int blocks = size / kRowThreads;
      rank = blockIdx.x % blocks * kRowThreads + threadIdx.x;
      first = row = blockIdx.x / blocks, row_step = gridDim.x / blocks;
      arrive();
    } else {
      const int shift = __popc(size - 1), teams = static_cast<int>(blockDim.x) >> shift;
      rank = threadIdx.x & (size - 1);
      first = int64_t{blockIdx.x} * teams, row = first + (threadIdx.x >> shift);
      row_step = int64_t{gridDim.x} * teams;
    }
  }
  // All threads of the team receive the result; all threads of the block must call it. Places in
  // the row are not kept in registers across it.
  template <class T, class Op>
  __device__ __forceinline__ T reduce(T v, Op op, [[maybe_unused]] T identity) {
    const auto over_lanes = [&](T of_lane, int count) { return reduce_lanes(of_lane, op, count); };
    return reduce_warps(over_lanes(v, lanes()), over_lanes);
  }
  // Lanes of a warp that share the row.
  __device__ __forceinline__ int lanes() const {
    return kBlocks || size > kRowLanes ? kWarpSize : size;
  }
  // The same where v is already that of the warp's lanes; over_lanes(v, count) reduces over `count`
  // neighbouring lanes, a power of 2.
  template <class T, class F>
  __device__ __forceinline__ T reduce_warps(T v, F&& over_lanes) {
    forget();
    if (kBlocks || size > kRowLanes) {
      v = reduce_block(v, over_lanes);
      if constexpr (kBlocks) v = reduce_cluster(v, over_lanes);
      turn ^= 1;
    }
    return v;
  }
  // The sum over the block's teams of what threads of one rank have; it is complete in the first
  // team. All threads of the block must call it.
  template <class T>
  __device__ __forceinline__ T sum_teams(T v) const {
    __shared__ T slot[kMaxTeamThreads];
    for (int mask = size; mask < kRowLanes; mask *= 2) v = v + shuffle_xor(v, mask);
    const int group = size < kRowLanes ? kRowLanes : size;  // threads that v now stands for
    const int threads = blockDim.x, thread = threadIdx.x;
    if (kBlocks || group >= threads) return v;
    __syncthreads();  // the previous call's reads are over
    slot[thread] = v;
    __syncthreads();
    if (thread < group) {
      for (int other = thread + group; other < threads; other += group) v = v + slot[other];
    }
    return v;
  }
  // Places in the row are computed again from here on, not kept in registers.
  __device__ __forceinline__ void forget() {
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(rank));
#endif
  }

 private:
  // From warps to the block. A slot is written again two calls later: all have read it then, and one
  // barrier does for each call.
  template <class T, class F>
  __device__ __forceinline__ T reduce_block(T v, F&& over_lanes) {
    __shared__ T partial[2][kMaxTeamThreads / kRowLanes];
    const int warp = threadIdx.x / kWarpSize;
    if (threadIdx.x % kWarpSize == 0) partial[turn][warp] = v;
    __syncthreads();
    const int warps = (kBlocks ? kRowThreads : size) / kWarpSize;  // of the team: a power of 2
    const int rest = warps - 1;
    return over_lanes(partial[turn][(warp & ~rest) + (threadIdx.x & rest)], warps);
  }
  // From blocks to the cluster: each writes to all. Slots as above; nobody reads from another block,
  // which may have come to its end.
  template <class T, class F>
  __device__ __forceinline__ T reduce_cluster(T v, [[maybe_unused]] F&& over_lanes) {
#if DLKERN_WITH_SM90 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ T slots[2][kMaxRowBlocks];
    const int blocks = size / kRowThreads;  // a power of 2
    if (!met) cluster_wait();               // all blocks have begun
    met = true;
    if (threadIdx.x < blocks) write_to_block(&slots[turn][rank / kRowThreads], threadIdx.x, v);
    cluster_sync();
    return over_lanes(slots[turn][threadIdx.x % blocks], blocks);
#else
    return v;
#endif
  }
  __device__ __forceinline__ void arrive() const {
#if DLKERN_WITH_SM90 && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cluster_arrive();
#endif
  }
};

// ---- Launch ------------------------------------------------------------------------------------

// f.operator()<kItems, kBlocks>() for a plan of at most kMostItems and at least kLeastItems: f returns
// the kernel, or launches it.
template <int kMostItems = 8, int kLeastItems = 2, class F>
auto pick_row_kernel(const RowPlan& plan, F&& f) {
  if (plan.blocks() > 1) return f.template operator()<kMostItems, true>();
  return plan.items == 2   ? f.template operator()<kLeastItems, false>()
         : plan.items == 4 ? f.template operator()<std::min(4, kMostItems), false>()
                           : f.template operator()<kMostItems, false>();
}

// The same of kernels that have instances, f.operator()<kItems, kBlocks, kPlain>(), for the plain
// case, rows of whole pieces at multiples of 16 bytes and one stride apart: less code, which small
// problems wait for.
template <int kMostItems = 8, int kLeastItems = 2, class F>
auto pick_row_kernel(const RowPlan& plan, bool plain, F&& f) {
  if (plain) {
    return pick_row_kernel<kMostItems, kLeastItems>(plan, [&]<int kItems, bool kBlocks>() {
      return f.template operator()<kItems, kBlocks, true>();
    });
  }
  return pick_row_kernel<kMostItems, kLeastItems>(plan, [&]<int kItems, bool kBlocks>() {
    return f.template operator()<kItems, kBlocks, false>();
  });
}

// Whether rows of n neighbours are plain; align: of all tensors' rows.
template <int N>
bool rows_are_plain(const StridedIndex<N>& rows, int64_t n, int piece, int align) {
  return rows.ndim <= 1 && n % piece == 0 && align == 16;
}
// Why `rows` rows of n neighbours, a team for each, cannot stay in registers.
inline const char* not_in_registers(int64_t rows, int64_t n, int piece, int most_items = 8) {
  const RowPlan plan = plan_row(n, piece, most_items);
  if (plan.size == 0) return "rows are too long for registers";
  if (ceil_div(rows, plan.teams()) > INT32_MAX / plan.blocks()) return "too many rows";
  return nullptr;
}
// Why the elements along `axis` of the tensors are not rows of neighbours. An axis with none but
// axes of extent 1 behind it is not: with more of those it would not be, and a row's bits must not
// depend on that.
inline const char* not_neighbours(std::initializer_list<const Tensor*> tensors, int axis) {
  const Tensor& first = **tensors.begin();
  int64_t inside = 1;
  for (int d = axis + 1; d < first.ndim; ++d) inside *= first.shape[d];
  if (axis + 1 < first.ndim && inside == 1) return "the axis is not the last one";
  for (const Tensor* t : tensors) {
    if (t->strides[axis] != 1 && first.shape[axis] != 1) {
      return "the axis does not have neighbouring elements";
    }
  }
  return nullptr;
}
// Why rows along `axis` of the tensors cannot stay in registers.
inline const char* not_in_registers(std::initializer_list<const Tensor*> tensors, int axis,
                                    int most_items = 8) {
  const Tensor& first = **tensors.begin();
  const int64_t n = first.shape[axis];
  if (const char* reason = not_neighbours(tensors, axis)) return reason;
  return not_in_registers(n > 0 ? first.numel() / n : 0, n,
                          static_cast<int>(16 / dtype_size(first.dtype)), most_items);
}

// A row for each team.
template <class... Params, class... Arguments>
void launch_rows(void (*kernel)(Params...), const RowPlan& plan, int64_t rows, void* stream,
                 Arguments&&... arguments) {
  if (rows == 0) return;
  launch_clusters(kernel, static_cast<unsigned>(ceil_div(rows, plan.teams()) * plan.blocks()),
                  plan.threads(), 0, stream, plan.blocks(), std::forward<Arguments>(arguments)...);
}

}  // namespace dlkern::gpu
