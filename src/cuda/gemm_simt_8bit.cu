// float8 and int8 operands; see gemm_simt.cuh.
#include "cuda/gemm_simt.cuh"

namespace dlkern::gpu {

void launch_simt_float8(const Gemm& g, const Launch& launch) {
  launch_simt<AnyFloat8>(SimtArgs(g), launch);
}

void launch_simt_int8(const Gemm& g, const Launch& launch) {
  launch_simt<int8_t>(SimtArgs(g), launch);
}

}  // namespace dlkern::gpu
