// Matrix products by mma.sync (gemm_sm80.cuh): the kernels for operands that are not of 16 bits.
#if !defined(__HIPCC__)

#include "cuda/gemm_sm80.cuh"

namespace dlkern::gpu {

template void launch_mma<float>(const Gemm&, const Launch&, int64_t, int64_t);
template void launch_mma<double>(const Gemm&, const Launch&, int64_t, int64_t);
template void launch_mma<int8_t>(const Gemm&, const Launch&, int64_t, int64_t);
template void launch_mma<Float8>(const Gemm&, const Launch&, int64_t, int64_t);

}  // namespace dlkern::gpu

#endif
