// Tensor maps: how the bulk copy engine sees a tensor of up to 4 dimensions.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace dlkern::gpu {

struct TensorMapShape {
  CUtensorMapDataType type;
  int element_bytes;
  uint64_t extent[4];        // in elements, the contiguous dimension first
  uint64_t stride_bytes[3];  // of dimensions 1 to 3: multiples of 16, below 2^40
  uint32_t box[2];           // elements of dimensions 0 and 1 that one copy moves; 1 of the others
};

// Boxes lie in shared memory with rows of 128 bytes, swizzled over 8 rows. Zeros are read outside
// the tensor. `data` is aligned to 16 bytes.
CUtensorMap make_tensor_map(void* data, const TensorMapShape& shape);

}  // namespace dlkern::gpu
