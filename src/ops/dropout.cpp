#include "ops/dropout.h"

#include <dlkern/dropout.h>

namespace dlkern {
namespace {

constexpr dlk_dropout_params kDefaults = DLK_DROPOUT_PARAMS_INIT;

dlk_status_t dropout(const char* op, const char* x_name, const char* y_name, const DLTensor* x_,
                     const DLTensor* rng_, const DLTensor* y_, const dlk_dropout_params* params,
                     const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_dropout_params p = read_params(params, kDefaults);
    const Tensor x = call.input(x_name, x_);
    const Tensor rng = call.input("rng", rng_);
    const Tensor y = call.output(y_name, y_);
    call.require_floating(x);
    call.require_dtype(rng, {DType::kInt64, DType::kUInt64});
    call.require_shape(rng, std::array<int64_t, 1>{2}, "seed and offset");
    call.require_like(y, x);
    call.require_same_or_disjoint(y, x);
    call.require_disjoint(y, rng);
    if (!(p.p >= 0 && p.p <= 1))
      fail(DLK_INVALID_ARGUMENT, "p is ", p.p, ", expected it in [0, 1]");
    call.run(Dropout{x, rng, y, p.p});
  });
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_dropout_forward(const DLTensor* x, const DLTensor* rng, const DLTensor* y,
                                 const dlk_dropout_params* params, const dlk_launch* launch) {
  return dlkern::dropout("dropout", "x", "y", x, rng, y, params, launch);
}

dlk_status_t dlk_dropout_backward(const DLTensor* dy, const DLTensor* rng, const DLTensor* dx,
                                  const dlk_dropout_params* params, const dlk_launch* launch) {
  return dlkern::dropout("dropout_backward", "dy", "dx", dy, rng, dx, params, launch);
}
