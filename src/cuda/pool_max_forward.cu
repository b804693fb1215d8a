// Pooling over windows of 1 to 3 spatial dimensions: maxima.
//
//   y[o] = max of x over the taps of window o; indices[o] = where the first maximum lies
//
// Layout: any strides; see pool_forward.cuh. Bound by memory. 16-bit values are summed in float32.
#include "cuda/pool_forward.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr Impl<MaxPoolForward> kMax[] = {
    {"rows", rows_suit<MaxPoolForward>, nullptr, run_rows<MaxPoolForward>},
    {"channels", channels_suit<MaxPoolForward>, nullptr, run_channels<MaxPoolForward>},
    {"planes", planes_suit<MaxPoolForward>, nullptr, run_planes<MaxPoolForward>},
    {"windows", supports_all, nullptr,
     [](const MaxPoolForward& p, const Launch& launch) {
       run_windows(p, counts_in_int(p.shape), launch);
     }},
};

}  // namespace

template <>
ImplList<MaxPoolForward> gpu_impls<MaxPoolForward>() {
  return kMax;
}

}  // namespace dlkern
