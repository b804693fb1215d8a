// Hopper's convolutions of float32 as bfloat16 planes.
#include <utility>

#include "cuda/conv_sm90.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// Images and weights lie along k, gradients' operands along their rows.
template <int kConfig>
Sm90Kernel make_kernel() {
  constexpr Sm90PlaneConfig kPlanes = kSm90PlaneConfigs[kConfig];
  return sm90_kernel<Sm90Traits<
      Mma::kBFloat16, kPlanes.tile, !kPlanes.of_weights, !kPlanes.of_weights,
      kPlanes.of_weights ? Sm90Operands::kColumnsB : Sm90Operands::kColumnsA, Sm90ConvArgs>>();
}

}  // namespace

Sm90Kernel sm90_conv_kernel_planes(int config) {
  Sm90Kernel kernel;
  [&]<int... kConfigs>(std::integer_sequence<int, kConfigs...>) {
    ((config == kConfigs ? void(kernel = make_kernel<kConfigs>()) : void()), ...);
  }(std::make_integer_sequence<int, kSm90PlaneConfigCount>());
  return kernel;
}

}  // namespace dlkern
