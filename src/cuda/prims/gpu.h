// The CUDA/HIP aliases, the warp width, and kernel launches. Everything that differs between the
// two runtimes lives here.
#pragma once

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime.h>
#endif

#include <atomic>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/call.h"
#include "core/float16.h"
#include "core/status.h"

namespace dlkern::gpu {

#if defined(__HIPCC__)

using Stream = hipStream_t;
using ErrorCode = hipError_t;
inline constexpr ErrorCode kSuccess = hipSuccess;
#define DLK_GPU(name) hip##name
#define DLK_GRID_CONSTANT

#else

using Stream = cudaStream_t;
using ErrorCode = cudaError_t;
inline constexpr ErrorCode kSuccess = cudaSuccess;
#define DLK_GPU(name) cuda##name
// Of a kernel's parameter that is read where it lies and never copied.
#define DLK_GRID_CONSTANT __grid_constant__

#endif

// Lanes of a warp (a wavefront on AMD): a constant of the target, on the host an upper bound for
// sizing only.
#if defined(__HIP_DEVICE_COMPILE__)
inline constexpr int kWarpSize = __AMDGCN_WAVEFRONT_SIZE;
#elif defined(__HIPCC__)
inline constexpr int kWarpSize = 64;
#else
inline constexpr int kWarpSize = 32;
#endif

// Throws DEVICE_ERROR (or OUT_OF_MEMORY) for a code other than success.
void check(ErrorCode code, const char* what);

// A kernel's parameter that may be referred to without a copy of it.
#if defined(__HIPCC__)
#define DLK_GRID_CONSTANT
#else
#define DLK_GRID_CONSTANT __grid_constant__
#endif

// Value of `v` in the lane whose number differs by `mask`.
template <class T>
__device__ __forceinline__ T shuffle_xor(T v, int mask) {
#if defined(__HIPCC__)
  return __shfl_xor(v, mask);
#else
  return __shfl_xor_sync(0xffffffffu, v, mask);
#endif
}

// Value of `v` in the lane before; a warp's first lane receives its own.
template <class T>
__device__ __forceinline__ T shuffle_up(T v) {
#if defined(__HIPCC__)
  return __shfl_up(v, 1);
#else
  return __shfl_up_sync(0xffffffffu, v, 1);
#endif
}

// f.template operator()<number>() for a number of [kFirst, kLast) that is known at run time only:
// registers have no addresses, so that an array of them takes constants.
template <int kFirst, int kLast, class F>
__device__ __forceinline__ void with_constant(int number, F&& f) {
  if constexpr (kLast - kFirst == 1) {
    f.template operator()<kFirst>();
  } else {
    constexpr int kMiddle = (kFirst + kLast) / 2;
    if (number < kMiddle) {
      with_constant<kFirst, kMiddle>(number, f);
    } else {
      with_constant<kMiddle, kLast>(number, f);
    }
  }
}

// One kernel launch that reports its own failure only: an error that was pending before stays
// pending and is not taken for ours; one of ours is thrown and not left behind.
// `cluster`: so many neighbouring blocks are a cluster (Hopper).
void launch_raw(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, Stream stream,
                void** args, int cluster = 1);

// How many clusters of `cluster` blocks of a kernel the current device holds at once.
int max_active_clusters(const void* kernel, int threads, size_t shared_bytes, int cluster);

// kernel<<<grid, block, shared_bytes, stream>>>(args...), with the arguments converted to the
// kernel's parameter types; `cluster` neighbouring blocks are a cluster.
template <class... Params, class... Args>
void launch_clusters(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                     void* stream, int cluster, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args));
  std::tuple<std::remove_const_t<Params>...> values(std::forward<Args>(args)...);
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        launch_raw(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes,
                   static_cast<Stream>(stream), pointers, cluster);
      },
      values);
}
template <class... Params, class... Args>
void launch_kernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                   void* stream, Args&&... args) {
  launch_clusters(kernel, grid, block, shared_bytes, stream, 1, std::forward<Args>(args)...);
}

// Number of blocks for a grid-stride loop over n items: enough to fill the device, at most
// ceil(n / per_block), at least 1.
int grid_for(int64_t n, int per_block, int blocks_per_multiprocessor = 8);

inline constexpr int kMaxDevices = 64;

// query(device) for the current device, asked once for each. A fact is never 0.
template <class Query>
int cached_fact(std::atomic<int> (&cached)[kMaxDevices], Query query) {
  int device = 0;
  check(DLK_GPU(GetDevice)(&device), "current device");
  const bool cacheable = device < kMaxDevices;
  int fact = cacheable ? cached[device].load(std::memory_order_relaxed) : 0;
  if (fact == 0) {
    fact = query(device);
    if (cacheable) cached[device] = fact;
  }
  return fact;
}

// Multiprocessors of the current device (cached).
int multiprocessor_count();

// 10 * major + minor of the current NVIDIA GPU (cached); 0 on AMD.
int compute_capability();

}  // namespace dlkern::gpu
