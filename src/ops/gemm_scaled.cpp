// Products of float8 and int8 operands with factors on the device.
#include <dlkern/gemm.h>

#include <array>

#include "ops/gemm_problem.h"

namespace dlkern {
namespace {

constexpr dlk_scaled_matmul_params kDefaults = DLK_SCALED_MATMUL_PARAMS_INIT;

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_scaled_matmul(const DLTensor* a_, const DLTensor* b_, const DLTensor* scale_a_,
                               const DLTensor* scale_b_, const DLTensor* bias_,
                               const DLTensor* scale_out_, const DLTensor* y_,
                               const DLTensor* amax_, const dlk_scaled_matmul_params* params,
                               const dlk_launch* launch) {
  using namespace dlkern;
  return entry("scaled_matmul", launch, [&](Call& call) {
    const dlk_scaled_matmul_params p = read_params(params, kDefaults);
    const Tensor a = call.input("a", a_);
    const Tensor b = call.input("b", b_);
    const Tensor scale_a = call.optional_input("scale_a", scale_a_);
    const Tensor scale_b = call.optional_input("scale_b", scale_b_);
    const Tensor bias = call.optional_input("bias", bias_);
    const Tensor scale_out = call.optional_input("scale_out", scale_out_);
    const Tensor y = call.output("y", y_);
    const Tensor amax = call.optional_output("amax", amax_);
    require_8bit(call, a, b, y,
                 !scale_a && !scale_b && !bias && !scale_out && !amax &&
                     p.activation == DLK_ACTIVATION_NONE);
    call.require_rank(a, 2, kMaxDims);
    call.require_rank(b, 2, kMaxDims);
    call.require_shape(y, matmul_shape(a, b), "the shape of a @ b");
    if (bias) {
      call.require_dtype(bias, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
      call.require_shape(bias, std::array{extent_of(b, 0)}, "[N], the last extent of b");
    }
    for (const Tensor* scalar : {&scale_out, &amax}) {
      if (*scalar) call.require_scalar(*scalar, DType::kFloat32);
    }
    for (const Tensor* output : {&y, &amax}) {
      for (const Tensor* input : {&a, &b, &scale_a, &scale_b, &bias, &scale_out}) {
        call.require_disjoint(*output, *input);
      }
    }
    call.require_disjoint(amax, y);

    const int64_t depth = extent_of(a, 0);
    int64_t rows = 1;
    for (int d = 0; d < a.ndim - 1; ++d) rows *= a.shape[d];
    Gemm g = make_gemm(a, b, {}, y);
    set_activation(g, p.activation, p.alpha, p.threshold);
    g.scale_a = read_scale(call, scale_a, rows, depth, 1);
    g.scale_b = read_scale(call, scale_b, extent_of(b, 0), depth, 0);
    if (bias) {
      g.c = matrix(bias, 0, bias.strides[0]);
      g.beta = 1;
    }
    g.scale_y = scale_out ? scale_out.as<const float>() : nullptr;
    g.amax = amax ? amax.as<float>() : nullptr;
    g.batch_invariant = p.batch_invariant != 0;
    require_no_int8_depth(g);
    fold_batch_into_rows(g);
    for (const Tensor* scale : {&scale_a, &scale_b}) {
      if (g.batch.ndim != 0 && y.numel() != 0 && scale->present && scale->numel() != 1) {
        fail(DLK_NOT_SUPPORTED, scale->name, ".shape is ", shape_string(*scale),
             ", but a batch whose dimensions cannot be merged with the rows takes only a factor "
             "of the whole tensor");
      }
    }
    run_gemm(call, g);
  });
}
