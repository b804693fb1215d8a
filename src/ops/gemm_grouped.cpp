// One product for each part of a packed extent (mixtures of experts).
#include <dlkern/gemm.h>

#include <array>

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

// The operands of a product, checked, but for the bias.
void require_operands(const Call& call, const Tensor& a, const Tensor& b, const Tensor& y) {
  call.require_floating(a);
  call.require_same_dtype(b, a);
  call.require_floating(y);
}

void run_grouped(Call& call, Gemm& g, Groups::Along along, const Tensor& offsets,
                 const dlk_grouped_matmul_params& p) {
  g.groups = {along, offsets.data, offsets.strides[0], offsets.dtype};
  g.tf32 = p.precision == DLK_PRECISION_TF32;
  g.batch_invariant = p.batch_invariant != 0;
  run_gemm(call, g);
}

// y [T, N] = a [T, K] by b [G, K, N], bias [G, N].
void packed_rows(Call& call, const Tensor& a, const Tensor& b, const Tensor& offsets,
                 const Tensor& bias, const Tensor& y, const dlk_grouped_matmul_params& p) {
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
  run_grouped(call, g, Groups::Along::kRows, offsets, p);
}

// y [G, M, N] = a [M, T] by b [T, N].
void packed_depth(Call& call, const Tensor& a, const Tensor& b, const Tensor& offsets,
                  const Tensor& y, const dlk_grouped_matmul_params& p) {
  Gemm g;
  g.m = y.shape[1];
  g.n = y.shape[2];
  g.a = matrix(a, a.strides[0], 0);
  g.b = matrix(b, 0, b.strides[1]);
  g.y = matrix(y, y.strides[1], y.strides[2]);
  g.k.push(a.shape[1], {a.strides[1], b.strides[0]});
  g.batch.push(y.shape[0], {0, 0, 0, y.strides[0]});
  run_grouped(call, g, Groups::Along::kDepth, offsets, p);
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_grouped_matmul(const DLTensor* a_, const DLTensor* b_, const DLTensor* offsets_,
                                const DLTensor* bias_, const DLTensor* y_,
                                const dlk_grouped_matmul_params* params, const dlk_launch* launch) {
  using namespace dlkern;
  return entry("grouped_matmul", launch, [&](Call& call) {
    const dlk_grouped_matmul_params p = read_params(params, kDefaults);
    const Tensor a = call.input("a", a_);
    const Tensor b = call.input("b", b_);
    const Tensor offsets = call.input("offsets", offsets_);
    const Tensor bias = call.optional_input("bias", bias_);
    const Tensor y = call.output("y", y_);
    require_operands(call, a, b, y);
    require_precision(p.precision);
    call.require_rank(a, 2, 2);
    call.require_rank(b, 2, 3);
    call.require_rank(offsets, 1, 1);
    const int64_t groups = b.ndim == 3 ? b.shape[0] : offsets.shape[0];
    for (const Tensor* input : {&a, &b, &offsets, &bias}) call.require_disjoint(y, *input);
    if (b.ndim == 2) {
      if (bias) fail(DLK_INVALID_ARGUMENT, "bias is given, expected none for a packed depth");
      call.require_shape(b, std::array{a.shape[1], b.shape[1]}, "[T, N], T = a.shape[1]");
      call.require_shape(y, std::array{groups, a.shape[0], b.shape[1]}, "[G, M, N]");
      require_offsets(call, offsets, groups, a.shape[1], "[G]");
      return packed_depth(call, a, b, offsets, y, p);
    }
    call.require_shape(b, std::array{groups, a.shape[1], b.shape[2]}, "[G, K, N], K = a.shape[1]");
    call.require_shape(y, std::array{a.shape[0], b.shape[2]}, "[T, N]");
    require_offsets(call, offsets, groups, a.shape[0], "[G], G = b.shape[0]");
    if (bias) {
      call.require_same_dtype(bias, a);
      call.require_shape(bias, std::array{groups, b.shape[2]}, "[G, N]");
    }
    packed_rows(call, a, b, offsets, bias, y, p);
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
    require_operands(call, dy, b, da);
    require_precision(p.precision);
    call.require_rank(dy, 2, 2);
    call.require_rank(b, 3, 3);
    const int64_t groups = b.shape[0], depth = b.shape[1];
    call.require_shape(b, std::array{groups, depth, dy.shape[1]}, "[G, K, N], N = dy.shape[1]");
    call.require_shape(da, std::array{dy.shape[0], depth}, "[T, K]");
    require_offsets(call, offsets, groups, dy.shape[0], "[G], G = b.shape[0]");
    for (const Tensor* input : {&dy, &b, &offsets}) call.require_disjoint(da, *input);
    packed_rows(call, dy, transposed(b), offsets, {}, da, p);
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
    require_operands(call, dy, a, db);
    require_precision(p.precision);
    call.require_rank(dy, 2, 2);
    call.require_rank(a, 2, 2);
    call.require_rank(offsets, 1, 1);
    const int64_t packed = dy.shape[0], groups = offsets.shape[0];
    call.require_shape(a, std::array{packed, a.shape[1]}, "[T, K], T = dy.shape[0]");
    call.require_shape(db, std::array{groups, a.shape[1], dy.shape[1]}, "[G, K, N]");
    require_offsets(call, offsets, groups, packed, "[G]");
    for (const Tensor* input : {&dy, &a, &offsets}) call.require_disjoint(db, *input);
    packed_depth(call, transposed(a), dy, offsets, db, p);
  });
}
