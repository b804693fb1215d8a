// Hopper's convolutions of bfloat16.
#include "cuda/conv_sm90.cuh"

namespace dlkern {

Sm90Kernel sm90_conv_kernel_bfloat16(int config, bool weights_along_k) {
  return gpu::conv_kernel_of_16_bits<gpu::Mma::kBFloat16>(config, weights_along_k);
}

}  // namespace dlkern
