#include "ops/layout.h"

#include <dlkern/layout.h>

namespace dlkern {
namespace {

constexpr dlk_permute_params kDefaults = DLK_PERMUTE_PARAMS_INIT;

Tensor permuted(const Call& call, const Tensor& x, const dlk_permute_params& p) {
  Tensor view = x;
  uint32_t seen = 0;
  for (int d = 0; d < x.ndim; ++d) {
    const int axis = call.axis("axes", p.axes[d], x);
    if (seen >> axis & 1u) {
      fail(DLK_INVALID_ARGUMENT, "axes is ", p.axes[d], " at ", d, ", expected each axis once");
    }
    seen |= 1u << axis;
    view.shape[d] = x.shape[axis];
    view.strides[d] = x.strides[axis];
  }
  return view;
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_permute(const DLTensor* x_, const DLTensor* y_, const dlk_permute_params* params,
                         const dlk_launch* launch) {
  using namespace dlkern;
  return entry("permute", launch, [&](Call& call) {
    const dlk_permute_params p = read_params(params, kDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor y = call.output("y", y_);
    const Tensor view = permuted(call, x, p);
    call.require_same_dtype(y, x);
    call.require_shape(y, {view.shape.data(), static_cast<size_t>(x.ndim)}, "x.shape permuted");
    call.require_disjoint(y, x);
    call.run(Permute{view, y});
  });
}
