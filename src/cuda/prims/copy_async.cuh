// Copies to shared memory that go on while a thread does something else, where the GPU can.
#pragma once

#include "cuda/prims/vec.cuh"

namespace dlkern::gpu {

// 16 bytes, both addresses multiples of it. It may be under way until wait_for_copies().
__device__ __forceinline__ void copy_16(void* to, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  cp_async<16>(to, from, 16);
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

// Until all copies of this thread are there.
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  cp_async_commit();
  cp_async_wait<0>();
#endif
}

}  // namespace dlkern::gpu
