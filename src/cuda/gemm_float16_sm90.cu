// The Hopper matrix products of float16 operands.
#include "cuda/gemm_16bit_sm90.cuh"

namespace dlkern {

Sm90Kernel sm90_kernel_float16(int config, bool a_along_k, bool b_along_k) {
  return gpu::kernel_of_16_bits<gpu::Mma::kFloat16>(config, a_along_k, b_along_k);
}

}  // namespace dlkern
