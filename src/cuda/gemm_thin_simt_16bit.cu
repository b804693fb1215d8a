// Thin products by multiply-adds, the kernels for 16-bit types; see gemm_thin_simt.cuh.
#include "cuda/gemm_thin_simt.cuh"

namespace dlkern::gpu {

template void launch_thin<Half>(const ThinArgs&, int, bool, const Launch&);
template void launch_thin<BFloat16>(const ThinArgs&, int, bool, const Launch&);

}  // namespace dlkern::gpu
