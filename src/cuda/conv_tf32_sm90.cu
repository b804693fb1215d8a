// Hopper's convolutions of float32 by tf32, which wgmma takes along k only.
#include "cuda/conv_sm90.cuh"

namespace dlkern {

using namespace gpu;

Sm90Kernel sm90_conv_kernel_tf32(int config, bool weights_along_k) {
  if (!weights_along_k) return {};
  switch (config) {
    case 0:
      return make_sm90_conv_kernel<Mma::kTf32, 0, true>();
    case 1:
      return make_sm90_conv_kernel<Mma::kTf32, 1, true>();
    case 2:
      return make_sm90_conv_kernel<Mma::kTf32, 2, true>();
    default:
      return {};
  }
}

}  // namespace dlkern
