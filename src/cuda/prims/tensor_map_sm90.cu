// The encoder of tensor maps.
#include <cudaTypedefs.h>

#include "cuda/prims/gpu.h"
#include "cuda/prims/tensor_map.h"

namespace dlkern::gpu {
namespace {

// From the driver at run time: the library is not linked with it, so that it loads without one.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
    if (!entry) fail(DLK_DEVICE_ERROR, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return found;
}

}  // namespace

CUtensorMap make_tensor_map(void* data, const TensorMapShape& shape) {
  const cuuint32_t box[4] = {shape.box[0], shape.box[1], 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code =
      encoder()(&map, shape.type, 4, data, shape.extent, shape.stride_bytes, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    fail(DLK_INTERNAL, "cuTensorMapEncodeTiled: error ", static_cast<int>(code), " for extents ",
         shape.extent[0], ", ", shape.extent[1], ", ", shape.extent[2], ", ", shape.extent[3],
         " strides ", shape.stride_bytes[0], ", ", shape.stride_bytes[1], ", ",
         shape.stride_bytes[2], " box ", box[0], ", ", box[1]);
  }
  return map;
}

}  // namespace dlkern::gpu
