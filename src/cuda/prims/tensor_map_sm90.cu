// The encoders of tensor maps.
#include <cudaTypedefs.h>

#include <string>

#include "cuda/prims/driver.h"
#include "cuda/prims/tensor_map.h"

namespace dlkern::gpu {
namespace {

template <class T>
std::string listed(const T* values, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += cat(i ? ", " : "", values[i]);
  return text;
}

}  // namespace

CUtensorMap make_tensor_map(void* data, const TensorMapShape& shape) {
  static const auto encode =
      driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  const cuuint32_t box[4] = {shape.box[0], shape.box[1], 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code =
      encode(&map, shape.type, 4, data, shape.extent, shape.stride_bytes, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    fail(DLK_INTERNAL, "cuTensorMapEncodeTiled: error ", static_cast<int>(code), " for extents ",
         listed(shape.extent, 4), " strides ", listed(shape.stride_bytes, 3), " box ",
         listed(box, 2));
  }
  return map;
}

CUtensorMap make_im2col_map(void* data, const Im2colShape& shape) {
  static const auto encode =
      driver_function<PFN_cuTensorMapEncodeIm2col_v12000>("cuTensorMapEncodeIm2col");
  const int spatial = shape.rank - 2;
  cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  for (int d = 0; d < spatial; ++d) steps[1 + d] = shape.step[d];
  CUtensorMap map;
  const CUresult code =
      encode(&map, shape.type, shape.rank, data, shape.extent, shape.stride_bytes, shape.lower,
             shape.upper, shape.channels, shape.pixels, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    fail(DLK_INTERNAL, "cuTensorMapEncodeIm2col: error ", static_cast<int>(code), " for extents ",
         listed(shape.extent, shape.rank), " strides ", listed(shape.stride_bytes, shape.rank - 1),
         " corners ", listed(shape.lower, spatial), " and ", listed(shape.upper, spatial),
         " steps ", listed(shape.step, spatial), " channels ", shape.channels, " pixels ",
         shape.pixels);
  }
  return map;
}

}  // namespace dlkern::gpu
