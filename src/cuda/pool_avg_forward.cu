// Pooling over windows of 1 to 3 spatial dimensions: averages and norms.
//
//   avg   y[o] = sum of x over the taps of window o / divisor(o)
//   lp    y[o] = (sum of |x|^p over the taps of window o)^(1 / p)
//
// Layout: any strides; see pool_forward.cuh. Bound by memory. 16-bit values are summed in float32.
#include "cuda/pool_forward.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr Impl<AvgPoolForward> kAvg[] = {
    {"rows", rows_suit<AvgPoolForward>, nullptr, run_rows<AvgPoolForward>},
    {"channels", channels_suit<AvgPoolForward>, nullptr, run_channels<AvgPoolForward>},
    {"planes", planes_suit<AvgPoolForward>, nullptr, run_planes<AvgPoolForward>},
    {"windows", supports_all, nullptr,
     [](const AvgPoolForward& p, const Launch& launch) {
       run_windows(p, counts_in_int(p.shape), launch);
     }},
};
constexpr Impl<LpPoolForward> kLp[] = {
    {"planes",
     [](const LpPoolForward& p) { return p.norm == 2 ? planes_suit(p) : "a norm other than 2"; },
     nullptr, run_planes<LpPoolForward>},
    {"windows", supports_all, nullptr,
     [](const LpPoolForward& p, const Launch& launch) {
       run_windows(p, p.norm == 2 && counts_in_int(p.shape), launch);
     }},
};

}  // namespace

template <>
ImplList<AvgPoolForward> gpu_impls<AvgPoolForward>() {
  return kAvg;
}
template <>
ImplList<LpPoolForward> gpu_impls<LpPoolForward>() {
  return kLp;
}

}  // namespace dlkern
