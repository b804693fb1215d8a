// Row-wise kernels: which threads share a row.
//
// A row is n elements at some stride. A block walks it, a warp where it is short, or a single thread
// where it does not run along the last axis: neighbouring rows are then mostly adjacent in memory, and
// a warp stays coalesced.
#pragma once

#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/reduce.cuh"

namespace dlkern::gpu {

enum class Group { kThread, kWarp, kBlock };

struct RowConfig {
  Group group;
  int threads;  // of a block

  // Blocks that give each row its group.
  int64_t blocks(int64_t rows) const {
    switch (group) {
      case Group::kThread:
        return ceil_div(rows, threads);
      case Group::kWarp:
        return ceil_div(rows * kWarpSize, threads);
      case Group::kBlock:
        break;
    }
    return rows;
  }
};

inline constexpr int kMaxRowThreads = 512;  // for __launch_bounds__ of the kernels

// For rows of n elements along the tensor's last axis or another one. Nothing that tells how many
// rows there are may matter, strides included: a row's bits would depend on it.
inline RowConfig pick_rows(int64_t n, bool last_axis) {
  if (!last_axis && n <= 4096) return {Group::kThread, 128};
  if (last_axis && n <= 512) return {Group::kWarp, 256};
  return {Group::kBlock, n <= 4096 ? 256 : kMaxRowThreads};
}

// The threads that share a row, and the rows that are theirs:
//
//     for (int64_t row = team.row; row < rows; row += team.row_step)
//       for (int64_t i = team.rank; i < n; i += team.size) ...
template <Group kGroup>
struct Team {
  int rank, size;
  int64_t row, row_step;

  __device__ Team() {
    const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const int64_t threads = int64_t{gridDim.x} * blockDim.x;
    if constexpr (kGroup == Group::kThread) {
      rank = 0, size = 1, row = thread, row_step = threads;
    } else if constexpr (kGroup == Group::kWarp) {
      rank = threadIdx.x % kWarpSize, size = kWarpSize;
      row = thread / kWarpSize, row_step = threads / kWarpSize;
    } else {
      rank = threadIdx.x, size = blockDim.x, row = blockIdx.x, row_step = gridDim.x;
    }
  }
  // All threads of the team receive the result; all of them must call it.
  template <class T, class Op>
  __device__ T reduce(T v, Op op, T identity) const {
    if constexpr (kGroup == Group::kThread) {
      return v;
    } else if constexpr (kGroup == Group::kWarp) {
      return warp_reduce(v, op);
    } else {
      return block_reduce(v, op, identity);
    }
  }
};

// f.operator()<kGroup>() for a run-time group.
template <class F>
void dispatch_group(Group group, F&& f) {
  switch (group) {
    case Group::kThread:
      return f.template operator()<Group::kThread>();
    case Group::kWarp:
      return f.template operator()<Group::kWarp>();
    case Group::kBlock:
      return f.template operator()<Group::kBlock>();
  }
}

}  // namespace dlkern::gpu
