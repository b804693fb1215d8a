// The Hopper matrix products of tf32, float8 and int8 operands, which wgmma takes along k only.
#include "cuda/gemm_sm90.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <Mma kMma, int... kConfigs>
Sm90Kernel one_of(int config) {
  Sm90Kernel kernel;
  ((config == kConfigs ? void(kernel = make_sm90_kernel<kMma, kConfigs, true, true>()) : void()),
   ...);
  return kernel;
}

}  // namespace

Sm90Kernel sm90_kernel_along_k(Mma mma, int config) {
  switch (mma) {
    case Mma::kTf32:
      return one_of<Mma::kTf32, 0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 16>(config);
    case Mma::kInt8:
      return one_of<Mma::kInt8, 1, 3, 4, 6, 8, 10, 16>(config);
    case Mma::kE4M3:
      return one_of<Mma::kE4M3, 12, 15, 18, 19>(config);
    case Mma::kE4M3E5M2:
      return one_of<Mma::kE4M3E5M2, 12, 15, 18, 19>(config);
    case Mma::kE5M2E4M3:
      return one_of<Mma::kE5M2E4M3, 12, 15, 18, 19>(config);
    case Mma::kE5M2:
      return one_of<Mma::kE5M2, 12, 15, 18, 19>(config);
    default:
      return {};
  }
}

}  // namespace dlkern
