// The Hopper matrix products that there are of each 16-bit type.
#pragma once

#include "cuda/gemm_sm90.cuh"

namespace dlkern::gpu {

template <Mma kMma, int kConfig>
Sm90Kernel any_layout(bool a_along_k, bool b_along_k) {
  if (a_along_k) {
    return b_along_k ? make_sm90_kernel<kMma, kConfig, true, true>()
                     : make_sm90_kernel<kMma, kConfig, true, false>();
  }
  return b_along_k ? make_sm90_kernel<kMma, kConfig, false, true>()
                   : make_sm90_kernel<kMma, kConfig, false, false>();
}

// Thin products: the few columns are along k.
template <Mma kMma, int kConfig>
Sm90Kernel thin(bool a_along_k, bool b_along_k) {
  if (!b_along_k) return {};
  return a_along_k ? make_sm90_kernel<kMma, kConfig, true, true>()
                   : make_sm90_kernel<kMma, kConfig, false, true>();
}

template <Mma kMma>
Sm90Kernel kernel_of_16_bits(int config, bool a_along_k, bool b_along_k) {
  switch (config) {
    case 0:
      return any_layout<kMma, 0>(a_along_k, b_along_k);
    case 1:
      return any_layout<kMma, 1>(a_along_k, b_along_k);
    case 2:
      return any_layout<kMma, 2>(a_along_k, b_along_k);
    case 3:
      return any_layout<kMma, 3>(a_along_k, b_along_k);
    case 4:
      return thin<kMma, 4>(a_along_k, b_along_k);
    case 5:
      return thin<kMma, 5>(a_along_k, b_along_k);
    case 6:
      return thin<kMma, 6>(a_along_k, b_along_k);
    case 7:
      return thin<kMma, 7>(a_along_k, b_along_k);
    case 8:
      return thin<kMma, 8>(a_along_k, b_along_k);
    case 9:
      return thin<kMma, 9>(a_along_k, b_along_k);
    case 10:
      return thin<kMma, 10>(a_along_k, b_along_k);
    case 11:
      return thin<kMma, 11>(a_along_k, b_along_k);
    case 13:
      if constexpr (kMma == Mma::kBFloat16) {  // the planes of float32
        if (a_along_k && b_along_k) return make_sm90_kernel<kMma, 13, true, true>();
      }
      return {};
    case 14:
      return a_along_k || b_along_k ? Sm90Kernel{} : make_sm90_kernel<kMma, 14, false, false>();
    case 16:
      return any_layout<kMma, 16>(a_along_k, b_along_k);
    case 17:
      return any_layout<kMma, 17>(a_along_k, b_along_k);
    default:
      return {};
  }
}

}  // namespace dlkern::gpu
