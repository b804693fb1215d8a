#include "ops/gemm.h"

#include <dlkern/gemm.h>

#include <algorithm>
#include <array>

#include "ops/gemm_problem.h"

namespace dlkern {
namespace {

constexpr dlk_matmul_params kMatmulDefaults = DLK_MATMUL_PARAMS_INIT;
constexpr dlk_linear_params kLinearDefaults = DLK_LINEAR_PARAMS_INIT;
constexpr dlk_linear_backward_params kBackwardDefaults = DLK_LINEAR_BACKWARD_PARAMS_INIT;

// The tensor with a dimension of extent 1 before its last `from_end` dimensions.
Tensor unsqueeze(const Tensor& t, int from_end) {
  Tensor r = t;
  const int at = std::max(t.ndim - from_end, 0);
  r.ndim = t.ndim + 1;
  for (int d = t.ndim; d > at; --d) {
    r.shape[d] = r.shape[d - 1];
    r.strides[d] = r.strides[d - 1];
  }
  r.shape[at] = 1;
  r.strides[at] = 1;
  return r;
}

// Operands and result of a @ b with matrices in place of vectors.
struct Product {
  Tensor a, b, y;
  bool row, column;  // a was, or b was, a vector

  Product(const Tensor& a_, const Tensor& b_, const Tensor& y_)
      : a(a_), b(b_), row(a_.ndim == 1), column(b_.ndim == 1) {
    if (row) a = unsqueeze(a, 1);
    if (column) b = unsqueeze(b, 0);
    y = like_y(y_);
  }
  // The dimensions of y that a vector lacks, added to y or to what broadcasts to it.
  Tensor like_y(Tensor t) const {
    if (column) t = unsqueeze(t, 0);
    if (row) t = unsqueeze(t, 1);
    return t;
  }
};

dlk_status_t matmul_backward(const char* op, bool of_a, const DLTensor* dy_, const DLTensor* other_,
                             const DLTensor* gradient_, const dlk_matmul_params* params,
                             const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_matmul_params p = read_params(params, kMatmulDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor other = call.input(of_a ? "b" : "a", other_);
    const Tensor gradient = call.output(of_a ? "da" : "db", gradient_);
    call.require_floating(dy);
    call.require_same_dtype(other, dy);
    call.require_floating(gradient);
    call.require_rank(other, 1, kMaxDims);
    call.require_rank(gradient, 1, kMaxDims);
    const Tensor &a = of_a ? gradient : other, &b = of_a ? other : gradient;
    call.require_shape(dy, matmul_shape(a, b), "the shape of a @ b");
    call.require_disjoint(gradient, dy);
    call.require_disjoint(gradient, other);
    require_precision(p.precision);
    const Product full(a, b, dy);
    Gemm g = of_a ? make_gemm(full.y, transposed(full.b), {}, full.a)
                  : make_gemm(transposed(full.a), full.y, {}, full.b);
    g.alpha = p.alpha;
    g.tf32 = p.precision == DLK_PRECISION_TF32;
    g.batch_invariant = of_a && p.batch_invariant != 0;
    run_gemm(call, g);
  });
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_matmul(const DLTensor* a_, const DLTensor* b_, const DLTensor* c_,
                        const DLTensor* y_, const dlk_matmul_params* params,
                        const dlk_launch* launch) {
  using namespace dlkern;
  return entry("matmul", launch, [&](Call& call) {
    const dlk_matmul_params p = read_params(params, kMatmulDefaults);
    const Tensor a = call.input("a", a_);
    const Tensor b = call.input("b", b_);
    const Tensor c = call.optional_input("c", c_);
    const Tensor y = call.output("y", y_);
    call.require_floating(a);
    call.require_same_dtype(b, a);
    call.require_floating(y);
    if (c) call.require_dtype(c, {y.dtype, a.dtype});
    call.require_rank(a, 1, kMaxDims);
    call.require_rank(b, 1, kMaxDims);
    call.require_shape(y, matmul_shape(a, b), "the shape of a @ b");
    call.require_broadcasts(c, y, "the shape of a @ b");
    call.require_disjoint(y, a);
    call.require_disjoint(y, b);
    call.require_same_or_disjoint(y, c);
    require_precision(p.precision);
    const Product full(a, b, y);
    Gemm g = make_gemm(full.a, full.b, c ? full.like_y(c) : c, full.y);
    g.alpha = p.alpha;
    g.beta = c ? p.beta : 0;
    g.tf32 = p.precision == DLK_PRECISION_TF32;
    g.batch_invariant = p.batch_invariant != 0;
    run_gemm(call, g);
  });
}

dlk_status_t dlk_matmul_backward_a(const DLTensor* dy, const DLTensor* b, const DLTensor* da,
                                   const dlk_matmul_params* params, const dlk_launch* launch) {
  return dlkern::matmul_backward("matmul_backward", true, dy, b, da, params, launch);
}

dlk_status_t dlk_matmul_backward_b(const DLTensor* dy, const DLTensor* a, const DLTensor* db,
                                   const dlk_matmul_params* params, const dlk_launch* launch) {
  return dlkern::matmul_backward("matmul_backward", false, dy, a, db, params, launch);
}

dlk_status_t dlk_linear_forward(const DLTensor* x_, const DLTensor* weight_, const DLTensor* bias_,
                                const DLTensor* residual_, const DLTensor* y_,
                                const DLTensor* preactivation_, const dlk_linear_params* params,
                                const dlk_launch* launch) {
  using namespace dlkern;
  return entry("linear", launch, [&](Call& call) {
    const dlk_linear_params p = read_params(params, kLinearDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor weight = call.input("weight", weight_);
    const Tensor bias = call.optional_input("bias", bias_);
    const Tensor residual = call.optional_input("residual", residual_);
    const Tensor y = call.output("y", y_);
    const Tensor pre = call.optional_output("preactivation", preactivation_);
    call.require_floating(x);
    call.require_same_dtype(weight, x);
    call.require_floating(y);
    call.require_rank(x, 1, kMaxDims);
    call.require_rank(weight, 2, 2);
    const int64_t out = weight.shape[0], in = x.shape[x.ndim - 1];
    call.require_shape(weight, std::array{out, in}, "[N, K], K the last extent of x");
    if (bias) {
      call.require_same_dtype(bias, x);
      call.require_shape(bias, std::array{out}, "[N], N = weight.shape[0]");
    }
    Dims shape = x.shape;
    shape[x.ndim - 1] = out;
    call.require_shape(y, std::span(shape.data(), x.ndim), "[..., N], N = weight.shape[0]");
    if (pre) call.require_like(pre, y);
    if (residual) call.require_dtype(residual, {y.dtype, x.dtype});
    call.require_broadcasts(residual, y, "[..., N], the shape of the result");
    for (const Tensor* output : {&y, &pre}) {
      for (const Tensor* input : {&x, &weight, &bias}) call.require_disjoint(*output, *input);
    }
    call.require_disjoint(pre, residual);
    call.require_same_or_disjoint(y, residual);
    call.require_disjoint(pre, y);
    require_precision(p.precision);

    Gemm g;
    set_activation(g, p.activation, p.alpha, p.threshold);
    set_rows(g, x, y, pre, residual, {});
    g.k.push(in, {x.strides[x.ndim - 1], weight.strides[1]});
    g.b = matrix(weight, 0, weight.strides[0]);
    if (bias) {
      g.c = matrix(bias, 0, bias.strides[0]);
      g.beta = 1;
    }
    g.tf32 = p.precision == DLK_PRECISION_TF32;
    g.batch_invariant = p.batch_invariant != 0;
    run_gemm(call, g);
  });
}

dlk_status_t dlk_linear_backward_input(const DLTensor* dy_, const DLTensor* weight_,
                                       const DLTensor* preactivation_, const DLTensor* dx_,
                                       const dlk_linear_backward_params* params,
                                       const dlk_launch* launch) {
  using namespace dlkern;
  return entry("linear_backward_input", launch, [&](Call& call) {
    const dlk_linear_backward_params p = read_params(params, kBackwardDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor weight = call.input("weight", weight_);
    const Tensor pre = call.optional_input("preactivation", preactivation_);
    const Tensor dx = call.output("dx", dx_);
    call.require_floating(dy);
    call.require_same_dtype(weight, dy);
    call.require_floating(dx);
    call.require_rank(dy, 1, kMaxDims);
    call.require_rank(weight, 2, 2);
    const int64_t out = dy.shape[dy.ndim - 1], in = weight.shape[1];
    call.require_shape(weight, std::array{out, in}, "[N, K], N the last extent of dy");
    Dims shape = dy.shape;
    shape[dy.ndim - 1] = in;
    call.require_shape(dx, std::span(shape.data(), dy.ndim), "[..., K], K = weight.shape[1]");
    if (pre) {
      call.require_dtype(pre, {dy.dtype, dx.dtype});
      call.require_same_shape(pre, dx);
    } else if (p.activation != DLK_ACTIVATION_NONE) {
      fail(DLK_INVALID_ARGUMENT,
           "preactivation is missing, expected the argument of the activation");
    }
    for (const Tensor* input : {&dy, &weight, &pre}) call.require_disjoint(dx, *input);
    require_precision(p.precision);

    Gemm g;
    set_activation(g, p.activation, p.alpha, p.threshold);
    set_rows(g, dy, dx, {}, {}, pre);
    g.k.push(out, {dy.strides[dy.ndim - 1], weight.strides[0]});
    g.b = matrix(weight, 0, weight.strides[1]);
    g.tf32 = p.precision == DLK_PRECISION_TF32;
    g.batch_invariant = p.batch_invariant != 0;
    run_gemm(call, g);
  });
}

dlk_status_t dlk_linear_backward_weight(const DLTensor* dy_, const DLTensor* x_,
                                        const DLTensor* dweight_, const DLTensor* dbias_,
                                        const dlk_linear_backward_params* params,
                                        const dlk_launch* launch) {
  using namespace dlkern;
  return entry("linear_backward_weight", launch, [&](Call& call) {
    const dlk_linear_backward_params p = read_params(params, kBackwardDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor x = call.input("x", x_);
    const Tensor dweight = call.inout("dweight", dweight_);
    const Tensor dbias = call.optional_inout("dbias", dbias_);
    call.require_floating(dy);
    call.require_same_dtype(x, dy);
    call.require_floating(dweight);
    call.require_rank(dy, 1, kMaxDims);
    call.require_rank(x, dy.ndim, dy.ndim);
    const int last = dy.ndim - 1;
    const int64_t out = dy.shape[last], in = x.shape[last];
    Dims shape = dy.shape;
    shape[last] = in;
    call.require_shape(x, std::span(shape.data(), dy.ndim), "dy.shape but for the last extent");
    call.require_shape(dweight, std::array{out, in}, "[N, K], the last extents of dy and x");
    if (dbias) {
      call.require_same_dtype(dbias, dweight);
      call.require_shape(dbias, std::array{out}, "[N], the last extent of dy");
    }
    for (const Tensor* output : {&dweight, &dbias}) {
      call.require_disjoint(*output, dy);
      call.require_disjoint(*output, x);
    }
    call.require_disjoint(dbias, dweight);
    require_precision(p.precision);

    Gemm g;
    g.m = out;
    g.n = in;
    g.k = make_index<2>({&dy, &x}, (1u << last) - 1);
    g.a = matrix(dy, dy.strides[last], 0);
    g.b = matrix(x, 0, x.strides[last]);
    g.y = matrix(dweight, dweight.strides[0], dweight.strides[1]);
    if (p.accumulate) {
      g.c = g.y;
      g.beta = 1;
    }
    if (dbias) g.row_sum = matrix(dbias, dbias.strides[0], 0);
    g.add_row_sum = p.accumulate != 0;
    g.tf32 = p.precision == DLK_PRECISION_TF32;
    run_gemm(call, g);
  });
}
