// What batch and group norm in passes share: partial results of parts of a channel, their merge
// (norm_merge.cu), and the coefficients of the element-wise pass.
//
// A channel of a sample (batch norm: of all samples) is a column; a part of it leaves an entry. The
// entries of a set are neighbours, and so are those of a column.
#pragma once

#include "cuda/norm_sets.cuh"
#include "cuda/prims/reduce.cuh"

namespace dlkern::gpu {

// The mean is center + rest, so that its rounding does not show in x - mean.
template <class Acc>
struct alignas(4 * sizeof(Acc)) PartialMoments {
  Acc n, center, rest, m2;
};
// Of dz and of dz * (x - mean).
template <class Acc>
struct alignas(2 * sizeof(Acc)) PartialSums {
  Acc straight, along;
};

// Coefficients of each column, one array for each.
enum ForwardCoefficient { kCenter, kScale, kOffset, kForwardCoefficients };
// dx = scale dz + (across (x - mean) + offset); bias for the activation's argument.
enum BackwardCoefficient { kMean, kSlope, kAcross, kOffsets, kBias, kBackwardCoefficients };
template <class Acc>
struct Coefficients {
  Acc* data;
  int64_t columns;

  __device__ __forceinline__ Acc& at(int kind, int64_t column) const {
    return data[kind * columns + column];
  }
};

// The number of the block, counted from the last: what the pass before read last is still in the cache.
__device__ __forceinline__ unsigned block_from_last() { return gridDim.x - 1 - blockIdx.x; }

// Neighbouring threads that work on one thing: 2^bits lanes of a warp, or a whole block.
inline constexpr int kTeamThreads = 128;
inline constexpr int kWarpBits = 5;   // lanes of every target's warps
inline constexpr int kBlockBits = 7;  // kTeamThreads
struct Team {
  int64_t index;
  int rank, size;
  int turn = 0;

  __device__ __forceinline__ explicit Team(int bits, unsigned block = blockIdx.x)
      : index((int64_t{block} << (kBlockBits - bits)) + (threadIdx.x >> bits)),
        rank(threadIdx.x & ((1 << bits) - 1)),
        size(1 << bits) {}
  // All of the team receive the sums, and all threads of the block must call.
  template <int K, class Acc>
  __device__ __forceinline__ void sum(Acc (&v)[K]) {
    if (size < kTeamThreads) {
      for (int mask = size / 2; mask > 0; mask /= 2) {
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] += shuffle_xor(v[k], mask);
      }
      return;
    }
    constexpr int kWarps = kTeamThreads / kWarpSize;
    __shared__ Acc slots[2][K][kWarps];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = warp_reduce(v[k], Sum{});
      if (threadIdx.x % kWarpSize == 0) slots[turn][k][threadIdx.x / kWarpSize] = v[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      v[k] = slots[turn][k][0];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) v[k] += slots[turn][k][w];
    }
    turn ^= 1;  // a slot is written again two calls later: all have read it then
  }
};
// Lanes for `work` items of one team, `each` of them a thread's share; and blocks of so many teams.
inline int team_bits(int64_t work, int each) {
  int bits = 0;
  while (bits < kWarpBits && int64_t{each} << bits < work) ++bits;
  return int64_t{each} << bits < work ? kBlockBits : bits;
}
inline unsigned team_blocks(int64_t teams, int bits) {
  return static_cast<unsigned>(ceil_div(teams, int64_t{kTeamThreads} >> bits));
}

// Sets in the order of their entries.
inline int64_t sets_of(const Tensor& x, const SetShape& shape) {
  return shape.groups ? x.shape[0] * shape.groups : shape.channels(x);
}
inline int64_t columns_of(const Tensor& x, const SetShape& shape) {
  return shape.groups ? x.shape[0] * shape.channels(x) : shape.channels(x);
}

// Workspace in bytes: entries, coefficients, and what is averaged over samples. `parts`: entries of a
// column.
size_t forward_workspace_of(const SetForward& p, int64_t parts);
size_t backward_workspace_of(const SetBackward& p, int64_t parts);
// Where the coefficients lie in it.
void* forward_coefficients(const SetForward& p, int64_t parts, void* workspace);
void* backward_coefficients(const SetBackward& p, int64_t parts, void* workspace);

// Entries (none where the statistics are given) to statistics and coefficients.
void merge_moments(const SetForward& p, int64_t parts, const Launch& launch);
// Entries to coefficients and the gradients of weight and bias.
bool needs_sums(const SetBackward& p);
void merge_sums(const SetBackward& p, int64_t parts, const Launch& launch);

}  // namespace dlkern::gpu
