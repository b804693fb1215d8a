// One product for each part of a packed extent (mixtures of experts).
#include <dlkern/gemm.h>

#include <array>
#include <optional>

#include "ops/gemm_problem.h"

namespace dlkern {
namespace {

constexpr dlk_grouped_matmul_params kDefaults = DLK_GROUPED_MATMUL_PARAMS_INIT;

void require_offsets(const Call& call, const Tensor& offsets, int64_t groups, int64_t packed,
                     const char* why) {
  call.require_dtype(offsets, {DType::kInt32, DType::kInt64});
  call.require_shape(offsets, std::array{groups}, why);
  if (!call.checks_values()) return;
  int64_t before = 0;
  for (const int64_t end : call.read_integers(offsets)) {
    if (end < before || end > packed) {
      fail(DLK_INVALID_ARGUMENT, "offsets holds ", end, " after ", before,
           ", expected no smaller one, and none beyond ", packed);
    }
    before = end;
  }
}

void require_floating_operands(const Call& call, const Tensor& a, const Tensor& b,
                               const Tensor& y) {
  call.require_floating(a);
  call.require_same_dtype(b, a);
  call.require_floating(y);
}

// The dtypes of a product with optional scales and bias.
void require_dtypes(const Call& call, const Tensor& a, const Tensor& b, const Tensor& scale_a,
                    const Tensor& scale_b, const Tensor& bias, const Tensor& y) {
  using enum DType;
  call.require_dtype(a, {kFloat64, kFloat32, kFloat16, kBFloat16, kFloat8E4M3, kFloat8E5M2, kInt8});
  if (!is_floating(a.dtype)) {
    require_8bit(call, a, b, y, !scale_a && !scale_b && !bias);
    if (bias) call.require_dtype(bias, {kFloat32, kBFloat16, kFloat16});
    return;
  }
  require_floating_operands(call, a, b, y);
  if (bias) call.require_same_dtype(bias, a);
  for (const Tensor* scale : {&scale_a, &scale_b}) {
    if (*scale) {
      fail(DLK_INVALID_ARGUMENT, scale->name, " is given, expected none beside ",
           dtype_name(a.dtype), " operands (a.dtype)");
    }
  }
}

void run_grouped(Call& call, Gemm g, Groups::Along along, const Tensor& offsets,
                 const dlk_grouped_matmul_params& p) {
  g.groups = {along, offsets.data, offsets.strides[0], offsets.dtype};
  g.tf32 = p.precision == DLK_PRECISION_TF32;
  g.batch_invariant = p.batch_invariant != 0;
  run_gemm(call, g);
}

// y [T, N] = a [T, K] by b [G, K, N], bias [G, N].
Gemm packed_rows(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& y) {
  Gemm g;
  g.m = y.shape[0];
  g.n = y.shape[1];
  g.a = matrix(a, a.strides[0], 0);
  g.b = matrix(b, 0, b.strides[2]);
  g.y = matrix(y, y.strides[0], y.strides[1]);
  g.k.push(a.shape[1], {a.strides[1], b.strides[1]});
  if (bias) {
    g.c = matrix(bias, 0, bias.strides[1]);
    g.beta = 1;
  }
  g.batch.push(b.shape[0], {0, b.strides[0], bias ? bias.strides[0] : 0, 0});
  return g;
}

// y [G, M, N] = a [M, T] by b [T, N].
Gemm packed_depth(const Tensor& a, const Tensor& b, const Tensor& y) {
  Gemm g;
  g.m = y.shape[1];
  g.n = y.shape[2];
  g.a = matrix(a, a.strides[0], 0);
  g.b = matrix(b, 0, b.strides[1]);
  g.y = matrix(y, y.strides[1], y.strides[2]);
  g.k.push(a.shape[1], {a.strides[1], b.strides[0]});
  g.batch.push(y.shape[0], {0, 0, 0, y.strides[0]});
  return g;
}

// Of an operand whose packed depth is `packed`: groups begin anywhere in 128 neighbours along it.
Scale read_depth_scale(const Call& call, const Tensor& t, int64_t groups, int64_t rows,
                       int64_t packed, int along_k) {
  const auto items = t.ndim == 3 ? std::optional(groups) : std::nullopt;
  const Scale scale = read_scale(call, t, rows, packed, along_k, items);
  if (scale.depth != 0 || scale.rows != 1) {
    fail(DLK_NOT_SUPPORTED, t.name, ".shape is ", shape_string(t),
         ", but a packed depth takes only factors of the whole tensor and of each ",
         along_k ? "row" : "column");
  }
  return scale;
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_grouped_matmul(const DLTensor* a_, const DLTensor* b_, const DLTensor* offsets_,
                                const DLTensor* bias_, const DLTensor* scale_a_,
                                const DLTensor* scale_b_, const DLTensor* y_,
                                const dlk_grouped_matmul_params* params, const dlk_launch* launch) {
  using namespace dlkern;
  return entry("grouped_matmul", launch, [&](Call& call) {
    const dlk_grouped_matmul_params p = read_params(params, kDefaults);
    const Tensor a = call.input("a", a_);
    const Tensor b = call.input("b", b_);
    const Tensor offsets = call.input("offsets", offsets_);
    const Tensor bias = call.optional_input("bias", bias_);
    const Tensor scale_a = call.optional_input("scale_a", scale_a_);
    const Tensor scale_b = call.optional_input("scale_b", scale_b_);
    const Tensor y = call.output("y", y_);
    require_dtypes(call, a, b, scale_a, scale_b, bias, y);
    require_precision(p.precision);
    call.require_rank(a, 2, 2);
    call.require_rank(b, 2, 3);
    call.require_rank(offsets, 1, 1);
    const int64_t groups = b.ndim == 3 ? b.shape[0] : offsets.shape[0];
    for (const Tensor* input : {&a, &b, &offsets, &bias, &scale_a, &scale_b}) {
      call.require_disjoint(y, *input);
    }
    if (b.ndim == 2) {
      if (bias) fail(DLK_INVALID_ARGUMENT, "bias is given, expected none for a packed depth");
      call.require_shape(b, std::array{a.shape[1], b.shape[1]}, "[T, N], T = a.shape[1]");
      call.require_shape(y, std::array{groups, a.shape[0], b.shape[1]}, "[G, M, N]");
      require_offsets(call, offsets, groups, a.shape[1], "[G]");
      Gemm g = packed_depth(a, b, y);
      g.scale_a = read_depth_scale(call, scale_a, groups, g.m, a.shape[1], 1);
      g.scale_b = read_depth_scale(call, scale_b, groups, g.n, a.shape[1], 0);
      return run_grouped(call, g, Groups::Along::kDepth, offsets, p);
    }
    call.require_shape(b, std::array{groups, a.shape[1], b.shape[2]}, "[G, K, N], K = a.shape[1]");
    call.require_shape(y, std::array{a.shape[0], b.shape[2]}, "[T, N]");
    require_offsets(call, offsets, groups, a.shape[0], "[G], G = b.shape[0]");
    if (bias) call.require_shape(bias, std::array{groups, b.shape[2]}, "[G, N]");
    Gemm g = packed_rows(a, b, bias, y);
    g.scale_a = read_scale(call, scale_a, g.m, a.shape[1], 1);
    g.scale_b = read_scale(call, scale_b, g.n, a.shape[1], 0, groups);
    require_no_int8_depth(g);
    run_grouped(call, g, Groups::Along::kRows, offsets, p);
  });
}

dlk_status_t dlk_grouped_matmul_backward_a(const DLTensor* dy_, const DLTensor* b_,
                                           const DLTensor* offsets_, const DLTensor* da_,
                                           const dlk_grouped_matmul_params* params,
                                           const dlk_launch* launch) {
  using namespace dlkern;
  return entry("grouped_matmul_backward", launch, [&](Call& call) {
    const dlk_grouped_matmul_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor b = call.input("b", b_);
    const Tensor offsets = call.input("offsets", offsets_);
    const Tensor da = call.output("da", da_);
    require_floating_operands(call, dy, b, da);
    require_precision(p.precision);
    call.require_rank(dy, 2, 2);
    call.require_rank(b, 3, 3);
    const int64_t groups = b.shape[0], depth = b.shape[1];
    call.require_shape(b, std::array{groups, depth, dy.shape[1]}, "[G, K, N], N = dy.shape[1]");
    call.require_shape(da, std::array{dy.shape[0], depth}, "[T, K]");
    require_offsets(call, offsets, groups, dy.shape[0], "[G], G = b.shape[0]");
    for (const Tensor* input : {&dy, &b, &offsets}) call.require_disjoint(da, *input);
    run_grouped(call, packed_rows(dy, transposed(b), {}, da), Groups::Along::kRows, offsets, p);
  });
}

dlk_status_t dlk_grouped_matmul_backward_b(const DLTensor* dy_, const DLTensor* a_,
                                           const DLTensor* offsets_, const DLTensor* db_,
                                           const dlk_grouped_matmul_params* params,
                                           const dlk_launch* launch) {
  using namespace dlkern;
  return entry("grouped_matmul_backward", launch, [&](Call& call) {
    const dlk_grouped_matmul_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor a = call.input("a", a_);
    const Tensor offsets = call.input("offsets", offsets_);
    const Tensor db = call.output("db", db_);
    require_floating_operands(call, dy, a, db);
    require_precision(p.precision);
    call.require_rank(dy, 2, 2);
    call.require_rank(a, 2, 2);
    call.require_rank(offsets, 1, 1);
    const int64_t packed = dy.shape[0], groups = offsets.shape[0];
    call.require_shape(a, std::array{packed, a.shape[1]}, "[T, K], T = dy.shape[0]");
    call.require_shape(db, std::array{groups, a.shape[1], dy.shape[1]}, "[G, K, N]");
    require_offsets(call, offsets, groups, packed, "[G]");
    for (const Tensor* input : {&dy, &a, &offsets}) call.require_disjoint(db, *input);
    run_grouped(call, packed_depth(transposed(a), dy, db), Groups::Along::kDepth, offsets, p);
  });
}
