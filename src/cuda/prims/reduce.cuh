// Warp and block reductions. The order of the additions is fixed, so the bits are.
#pragma once

#include "cuda/prims/gpu.h"
#if defined(__CUDACC__)
#include "cuda/prims/ptx.cuh"
#endif

namespace dlkern::gpu {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN wins, as in the frameworks.
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, float>) return max_nan(a, b);
#endif
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <class T>
  __device__ T operator()(T a, T b) const {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, float>) return min_nan(a, b);
#endif
    return a < b || a != a ? a : b;
  }
};

// All lanes receive the result. Works for any T that shuffle_xor takes.
template <int kWidth = kWarpSize, class T, class Op>
__device__ __forceinline__ T warp_reduce(T v, Op op) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2) v = op(v, shuffle_xor(v, mask));
  return v;
}

// The same over `count` neighbouring lanes, a power of 2.
template <class T, class Op>
__device__ __forceinline__ T reduce_lanes(T v, Op op, int count) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    if (mask < count) v = op(v, shuffle_xor(v, mask));
  }
  return v;
}

// Two values that are reduced together.
template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T a, b;
  __device__ Pair operator+(const Pair& other) const { return {a + other.a, b + other.b}; }
};
template <class T>
__device__ __forceinline__ Pair<T> shuffle_xor(const Pair<T>& v, int mask) {
  return {shuffle_xor(v.a, mask), shuffle_xor(v.b, mask)};
}

// All threads of a 1-D block (a multiple of the warp width) receive the result. May be called
// repeatedly; every thread of the block must call it.
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T v, Op op, T identity) {
  __shared__ T partial[kWarpSize];  // static shared memory: one slot per warp
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  v = warp_reduce(v, op);
  __syncthreads();  // the previous call's reads of partial are over
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  const int warps = blockDim.x / kWarpSize;
  return warp_reduce(lane < warps ? partial[lane] : identity, op);
}

}  // namespace dlkern::gpu
