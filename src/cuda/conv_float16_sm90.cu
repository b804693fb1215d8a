// Hopper's convolutions of float16.
#include "cuda/conv_sm90.cuh"

namespace dlkern {

Sm90Kernel sm90_conv_kernel_float16(int config, bool weights_along_k) {
  return gpu::conv_kernel_of_16_bits<gpu::Mma::kFloat16>(config, weights_along_k);
}

}  // namespace dlkern
