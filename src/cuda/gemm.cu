// The list of the matrix products of the GPU backend.
#include "cuda/gemm.h"

#include <vector>

#include "cuda/prims/gpu.h"

namespace dlkern {
namespace {

__global__ void clear_kernel(float* number) { *number = 0; }

}  // namespace

void gpu::clear_amax(const Epilogue& e, const Launch& launch) {
  if (e.amax) launch_kernel(clear_kernel, 1, 1, 0, launch.stream, e.amax);
}

const Impl<Gemm>& gpu::gemm_impl(const Gemm& g) {
  for (const Impl<Gemm>& impl : gpu_impls<Gemm>()) {
    if (!impl.supports(g)) return impl;
  }
  fail(DLK_INTERNAL, "no kernel for a matrix product");
}

template <>
ImplList<Gemm> gpu_impls<Gemm>() {
  static const std::vector<Impl<Gemm>> all = [] {
    std::vector<Impl<Gemm>> impls;
    for (const ImplList<Gemm> kind : {gemm_stream_impls(), gemm_long_sum_impls(),
#if DLKERN_WITH_SM90
                                      gemm_sm90_impls(),
#endif
                                      gemm_thin_impls(), gemm_sm80_impls(), gemm_simt_impls()}) {
      impls.insert(impls.end(), kind.begin(), kind.end());
    }
    return impls;
  }();
  return all;
}

}  // namespace dlkern
