// Thin products by multiply-adds, the kernels for float64; see gemm_thin_simt.cuh.
#include "cuda/gemm_thin_simt.cuh"

namespace dlkern::gpu {

template void launch_thin<double>(const ThinArgs&, int, bool, const Launch&);

}  // namespace dlkern::gpu
