#include "ops/elementwise.h"

#include <dlkern/elementwise.h>

#include <cmath>

#include "ops/reduce.h"

namespace dlkern {
namespace {

constexpr dlk_add_params kDefaults = DLK_ADD_PARAMS_INIT;

Dims broadcast_shape(const Tensor& a, const Tensor& b, int ndim) {
  const Tensor wide_a = with_rank(a, ndim), wide_b = with_rank(b, ndim);
  Dims shape{};
  for (int d = 0; d < ndim; ++d) {
    const int64_t m = wide_a.shape[d], n = wide_b.shape[d];
    if (m != n && m != 1 && n != 1) {
      fail(DLK_INVALID_ARGUMENT, b.name, ".shape is ", shape_string(b),
           ", expected one that broadcasts with ", shape_string(a), " (", a.name, ".shape)");
    }
    shape[d] = m == 1 ? n : m;
  }
  return shape;
}

void require_whole(const char* name, double value) {
  if (!(std::fabs(value) < 0x1p63) || std::floor(value) != value) {
    fail(DLK_INVALID_ARGUMENT, name, " is ", value,
         ", expected a whole number for integer tensors");
  }
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_add(const DLTensor* a_, const DLTensor* b_, const DLTensor* y_,
                     const dlk_add_params* params, const dlk_launch* launch) {
  return entry("add", launch, [&](Call& call) {
    const dlk_add_params p = read_params(params, kDefaults);
    const Tensor a = call.input("a", a_);
    const Tensor b = call.input("b", b_);
    const Tensor y = call.output("y", y_);
    call.require_dtype(a, {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                           DType::kInt32, DType::kInt64});
    call.require_same_dtype(b, a);
    call.require_same_dtype(y, a);
    const int ndim = std::max(a.ndim, b.ndim);
    const Dims shape = broadcast_shape(a, b, ndim);
    call.require_shape(y, std::span(shape.data(), ndim), "a and b broadcast");
    call.require_same_or_disjoint(y, a);
    call.require_same_or_disjoint(y, b);
    if (is_index(a.dtype)) {
      require_whole("alpha", p.alpha);
      require_whole("beta", p.beta);
    }
    call.run(Add{with_rank(a, ndim), with_rank(b, ndim), y, p.alpha, p.beta});
  });
}

dlk_status_t dlk_add_backward(const DLTensor* dy_, const DLTensor* da_, const dlk_launch* launch) {
  return entry("add_backward", launch, [&](Call& call) {
    const Tensor dy = call.input("dy", dy_);
    const Tensor da = call.output("da", da_);
    call.require_floating(dy);
    call.require_same_dtype(da, dy);
    const Tensor wide = da.ndim <= dy.ndim ? with_rank(da, dy.ndim) : da;
    uint32_t axes = 0;
    bool fits = wide.ndim == dy.ndim;
    for (int d = 0; fits && d < dy.ndim; ++d) {
      const bool repeated = wide.shape[d] == 1 && dy.shape[d] != 1;
      if (repeated) axes |= 1u << d;
      fits = repeated || wide.shape[d] == dy.shape[d];
    }
    if (!fits) {
      fail(DLK_INVALID_ARGUMENT, da.name, ".shape is ", shape_string(da),
           ", expected one that broadcasts to ", shape_string(dy), " (", dy.name, ".shape)");
    }
    if (axes == 0) {
      call.require_same_or_disjoint(da, dy);
      call.run(Add{dy, dy, wide, 1, 0});
    } else {
      call.require_disjoint(da, dy);
      call.run(Reduce{dy, wide, axes, DLK_REDUCE_SUM});
    }
  });
}
