#include "ops/dropout.h"

#include <dlkern/dropout.h>

namespace dlkern {
namespace {

constexpr dlk_dropout_params kDefaults = DLK_DROPOUT_PARAMS_INIT;

void run(Call& call, Dropout& d, const dlk_dropout_params* params) {
  const dlk_dropout_params p = read_params(params, kDefaults);
  call.require_floating(d.x);
  call.require_dtype(d.rng, {DType::kInt64, DType::kUInt64});
  call.require_shape(d.rng, std::array<int64_t, 1>{2}, "seed and offset");
  if (d.residual) call.require_like(d.residual, d.x);
  call.require_like(d.y, d.x);
  call.require_same_or_disjoint(d.y, d.x);
  call.require_same_or_disjoint(d.y, d.residual);
  call.require_disjoint(d.y, d.rng);
  if (!(p.p >= 0 && p.p <= 1)) fail(DLK_INVALID_ARGUMENT, "p is ", p.p, ", expected it in [0, 1]");
  d.p = p.p;
  call.run(d);
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_dropout_forward(const DLTensor* x, const DLTensor* rng, const DLTensor* residual,
                                 const DLTensor* y, const dlk_dropout_params* params,
                                 const dlk_launch* launch) {
  return entry("dropout", launch, [&](Call& call) {
    Dropout d{call.input("x", x), call.input("rng", rng), call.optional_input("residual", residual),
              call.output("y", y), 0};
    run(call, d, params);
  });
}

dlk_status_t dlk_dropout_backward(const DLTensor* dy, const DLTensor* rng, const DLTensor* dx,
                                  const dlk_dropout_params* params, const dlk_launch* launch) {
  return entry("dropout_backward", launch, [&](Call& call) {
    Dropout d{call.input("dy", dy), call.input("rng", rng), {}, call.output("dx", dx), 0};
    run(call, d, params);
  });
}
