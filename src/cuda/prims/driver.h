// Functions of the CUDA driver, found at run time: the library is not linked with it, so that it
// loads without one.
#pragma once

#include "cuda/prims/gpu.h"

namespace dlkern::gpu {

template <class Function>
Function driver_function(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result;
  check(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &result), name);
  if (!entry) fail(DLK_DEVICE_ERROR, "the driver has no ", name);
  return reinterpret_cast<Function>(entry);
}

}  // namespace dlkern::gpu
