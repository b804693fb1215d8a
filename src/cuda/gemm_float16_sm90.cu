// The Hopper matrix products of float16 operands.
#include "cuda/gemm_sm90.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr Mma kMma = Mma::kFloat16;

template <int kConfig>
Sm90Kernel any_layout(bool a_along_k, bool b_along_k) {
  if (a_along_k) {
    return b_along_k ? make_sm90_kernel<kMma, kConfig, true, true>()
                     : make_sm90_kernel<kMma, kConfig, true, false>();
  }
  return b_along_k ? make_sm90_kernel<kMma, kConfig, false, true>()
                   : make_sm90_kernel<kMma, kConfig, false, false>();
}

// Thin products: the few columns are along k.
template <int kConfig>
Sm90Kernel thin(bool a_along_k, bool b_along_k) {
  if (!b_along_k) return {};
  return a_along_k ? make_sm90_kernel<kMma, kConfig, true, true>()
                   : make_sm90_kernel<kMma, kConfig, false, true>();
}

}  // namespace

Sm90Kernel sm90_kernel_float16(int config, bool a_along_k, bool b_along_k) {
  switch (config) {
    case 0:
      return any_layout<0>(a_along_k, b_along_k);
    case 1:
      return any_layout<1>(a_along_k, b_along_k);
    case 2:
      return any_layout<2>(a_along_k, b_along_k);
    case 3:
      return any_layout<3>(a_along_k, b_along_k);
    case 4:
      return thin<4>(a_along_k, b_along_k);
    case 5:
      return thin<5>(a_along_k, b_along_k);
    case 6:
      return thin<6>(a_along_k, b_along_k);
    case 7:
      return thin<7>(a_along_k, b_along_k);
    case 8:
      return thin<8>(a_along_k, b_along_k);
    case 9:
      return thin<9>(a_along_k, b_along_k);
    case 10:
      return thin<10>(a_along_k, b_along_k);
    case 11:
      return thin<11>(a_along_k, b_along_k);
    case 14:
      return a_along_k || b_along_k ? Sm90Kernel{} : make_sm90_kernel<kMma, 14, false, false>();
    case 16:
      return any_layout<16>(a_along_k, b_along_k);
    default:
      return {};
  }
}

}  // namespace dlkern
