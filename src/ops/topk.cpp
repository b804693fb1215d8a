#include "ops/topk.h"

#include <limits>

namespace dlkern {
namespace {

constexpr dlk_topk_params kDefaults = DLK_TOPK_PARAMS_INIT;

// t has x's shape but along the axis.
void require_beside(const Call& call, const Tensor& t, const Tensor& x, int axis, int64_t extent) {
  Dims shape = x.shape;
  shape[axis] = extent;
  call.require_shape(t, {shape.data(), static_cast<size_t>(x.ndim)}, "x.shape but for the axis");
}

dlk_status_t forward(const DLTensor* x_, const DLTensor* values_, const DLTensor* indices_,
                     const dlk_topk_params* params, const dlk_launch* launch) {
  return entry("top_k", launch, [&](Call& call) {
    const dlk_topk_params p = read_params(params, kDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor values = call.output("values", values_);
    const Tensor indices = call.output("indices", indices_);
    call.require_dtype(x, {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                           DType::kInt32, DType::kInt64});
    call.require_same_dtype(values, x);
    call.require_dtype(indices, {DType::kInt64, DType::kInt32});
    const int axis = call.axis("axis", p.axis, x);
    const int64_t n = x.shape[axis], k = values.ndim == x.ndim ? values.shape[axis] : 0;
    if (n > std::numeric_limits<int32_t>::max()) {
      fail(DLK_NOT_SUPPORTED, "x.shape is ", shape_string(x), ", expected less than 2^31 on axis ",
           axis);
    }
    if (k > n) fail(DLK_INVALID_ARGUMENT, "k is ", k, ", expected at most ", n, " (x.shape)");
    require_beside(call, values, x, axis, k);
    call.require_same_shape(indices, values);
    call.require_disjoint(values, x);
    call.require_disjoint(indices, x);
    call.require_disjoint(indices, values);
    call.run(TopK{x, values, indices, axis, p.largest != 0, p.sorted != 0});
  });
}

dlk_status_t backward(const DLTensor* dy_, const DLTensor* indices_, const DLTensor* dx_,
                      const dlk_topk_params* params, const dlk_launch* launch) {
  return entry("top_k_backward", launch, [&](Call& call) {
    const dlk_topk_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor indices = call.input("indices", indices_);
    const Tensor dx = call.output("dx", dx_);
    call.require_floating(dy);
    call.require_dtype(indices, {DType::kInt64, DType::kInt32});
    call.require_same_shape(indices, dy);
    call.require_same_dtype(dx, dy);
    const int axis = call.axis("axis", p.axis, dx);
    require_beside(call, dy, dx, axis, dy.ndim == dx.ndim ? dy.shape[axis] : 0);
    call.require_disjoint(dx, dy);
    call.require_disjoint(dx, indices);
    call.run(TopKBackward{dy, indices, dx, axis});
  });
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_topk_forward(const DLTensor* x, const DLTensor* values, const DLTensor* indices,
                              const dlk_topk_params* params, const dlk_launch* launch) {
  return dlkern::forward(x, values, indices, params, launch);
}

dlk_status_t dlk_topk_backward(const DLTensor* dy, const DLTensor* indices, const DLTensor* dx,
                               const dlk_topk_params* params, const dlk_launch* launch) {
  return dlkern::backward(dy, indices, dx, params, launch);
}
