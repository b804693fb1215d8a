// Sums that were made in parts, which lie in the workspace [parts, part_size], added in one order.
//
// Few elements with many parts would leave the memory idle while each thread waits for its loads: the
// threads of a block share the parts of their elements.
//
//     const PartsShare share(parts);                          // host; share.grid(elements) blocks
//     const int64_t i = share.element();                      // device, of kPartsThreads
//     const float sum = share.sum(i < elements ? first : nullptr, part_size, parts);
//     if (i >= elements || !share.leads()) return;
#pragma once

#include <algorithm>

#include "core/index.h"
#include "cuda/prims/gpu.h"

namespace dlkern::gpu {

inline constexpr int kPartsThreads = 256;

struct PartsShare {
  int bits = 0;  // 2^bits threads share the parts of an element, a function of their number

  explicit PartsShare(int64_t parts) {
    while (bits < 3 && parts >> bits > 8) ++bits;
  }
  unsigned grid(int64_t elements) const {
    return static_cast<unsigned>(ceil_div(elements, kPartsThreads >> bits));
  }
  // This thread's; neighbours are a warp's.
  __device__ int64_t element() const {
    return int64_t{blockIdx.x} * (kPartsThreads >> bits) + lane();
  }
  // Of those that share an element, the one that has its sum.
  __device__ bool leads() const { return threadIdx.x < kPartsThreads >> bits; }

  // first: the element's first part; nullptr: none. Called by the whole block.
  template <class Acc>
  __device__ __forceinline__ Acc sum(const Acc* first, int64_t part_size, int64_t parts) const {
    Acc sum = 0;
    if (first) {
#pragma unroll 8
      for (int64_t part = threadIdx.x >> (8 - bits); part < parts; part += 1 << bits) {
        sum += first[part * part_size];
      }
    }
    if (bits == 0) return sum;
    __shared__ Acc sums[kPartsThreads];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (!leads()) return sum;
    for (int share = 1; share < 1 << bits; ++share) {
      sum += sums[share * (kPartsThreads >> bits) + threadIdx.x];
    }
    return sum;
  }

 private:
  __device__ int lane() const { return threadIdx.x & ((kPartsThreads >> bits) - 1); }
};

}  // namespace dlkern::gpu
