// Marks for code that both host and device compile.
#pragma once

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>  // the marks are macros of this header
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define DLK_HD __host__ __device__ __forceinline__
#else
#define DLK_HD inline __attribute__((always_inline))
#endif

#if defined(DLKERN_WITH_CUDA) || defined(DLKERN_WITH_HIP)
#define DLKERN_WITH_GPU 1
#else
#define DLKERN_WITH_GPU 0
#endif
