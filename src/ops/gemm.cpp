#include "ops/gemm.h"

#include <dlkern/gemm.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/activation_math.h"

namespace dlkern {
namespace {

constexpr dlk_matmul_params kMatmulDefaults = DLK_MATMUL_PARAMS_INIT;
constexpr dlk_linear_params kLinearDefaults = DLK_LINEAR_PARAMS_INIT;
constexpr dlk_linear_backward_params kBackwardDefaults = DLK_LINEAR_BACKWARD_PARAMS_INIT;

void require_precision(int32_t precision) {
  if (precision != DLK_PRECISION_IEEE && precision != DLK_PRECISION_TF32) {
    fail(DLK_INVALID_ARGUMENT, "precision is ", precision,
         ", expected DLK_PRECISION_IEEE or DLK_PRECISION_TF32");
  }
}

// ---- From tensors to a Gemm ----------------------------------------------------------------

Matrix matrix(const Tensor& t, int64_t row, int64_t col) { return {t.data, t.dtype, row, col}; }

// Extent of the dimension `from_end` places before the last one; 1 for one that is not there.
int64_t extent_of(const Tensor& t, int from_end) {
  return from_end < t.ndim ? t.shape[t.ndim - 1 - from_end] : 1;
}
// Its stride in a walk over `extent` items: 0 where the tensor is broadcast.
int64_t stride_of(const Tensor& t, int from_end, int64_t extent) {
  return extent_of(t, from_end) == extent && from_end < t.ndim ? t.strides[t.ndim - 1 - from_end]
                                                               : 0;
}

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

// Takes m as the innermost dimension of the batch, merged with what is there where the strides of
// all tensors allow it and b is the same all along: a stack of matrices times one matrix is one
// taller matrix.
void fold_batch_into_rows(Gemm& g) {
  g.batch.push(g.m, {g.a.row, 0, g.c.row, g.y.row, g.pre.row});
  const int last = g.batch.ndim - 1;
  if (last < 0 || g.batch.stride[1][last] != 0) return;  // m is 1 and was not pushed
  g.m = g.batch.shape[last];
  g.a.row = g.batch.stride[0][last];
  g.c.row = g.batch.stride[2][last];
  g.y.row = g.batch.stride[3][last];
  g.pre.row = g.batch.stride[4][last];
  g.batch.ndim = last;
  g.batch.numel = 1;
  for (int d = 0; d < last; ++d) g.batch.numel *= g.batch.shape[d];
}

// Implementations take n for y's contiguous index: where that is m, y^T = b^T a^T is computed.
void orient(Gemm& g) {
  const bool along_m = g.y.row == 1 && (g.y.col != 1 || g.n == 1) && g.m != 1;
  if (!along_m || g.row_sum.data) return;
  std::swap(g.m, g.n);
  std::swap(g.a, g.b);
  for (Matrix* t : {&g.a, &g.b, &g.c, &g.y, &g.pre}) std::swap(t->row, t->col);
  std::swap(g.k.stride[0], g.k.stride[1]);
  std::swap(g.batch.stride[0], g.batch.stride[1]);
}

void run(Call& call, Gemm& g) {
  fold_batch_into_rows(g);
  orient(g);
  if (g.alpha == 0) g.k.numel = 0;
  call.run(g);
}

// y[..., :] = x[..., :] times a matrix, the same for all rows.
void set_rows(Gemm& g, const Tensor& x, const Tensor& y, const Tensor& pre) {
  const int last = x.ndim - 1;
  for (int d = 0; d < last; ++d) {
    g.batch.push(x.shape[d], {x.strides[d], 0, 0, y.strides[d], pre ? pre.strides[d] : 0});
  }
  g.n = y.shape[last];
  g.a = matrix(x, 0, 0);
  g.y = matrix(y, 0, y.strides[last]);
  if (pre) g.pre = matrix(pre, 0, pre.strides[last]);
}

// ---- matmul --------------------------------------------------------------------------------

// Shape of a @ b as NumPy has it, without the dimensions that a vector lacks.
std::vector<int64_t> matmul_shape(const Tensor& a, const Tensor& b) {
  const int64_t depth = a.shape[a.ndim - 1];
  if (b.shape[std::max(b.ndim - 2, 0)] != depth) {
    fail(DLK_INVALID_ARGUMENT, "b.shape is ", shape_string(b), ", expected ", depth,
         b.ndim == 1 ? " elements" : " rows", " (the last extent of a.shape ", shape_string(a),
         ")");
  }
  std::vector<int64_t> shape;
  for (int d = std::max({a.ndim, b.ndim, 2}) - 1; d >= 2; --d) {
    const int64_t in_a = extent_of(a, d), in_b = extent_of(b, d);
    if (in_a != in_b && in_a != 1 && in_b != 1) {
      fail(DLK_INVALID_ARGUMENT, "b.shape is ", shape_string(b),
           ", expected batch dimensions that broadcast with a.shape ", shape_string(a));
    }
    shape.push_back(in_a == 1 ? in_b : in_a);
  }
  if (a.ndim > 1) shape.push_back(a.shape[a.ndim - 2]);
  if (b.ndim > 1) shape.push_back(b.shape[b.ndim - 1]);
  return shape;
}

bool broadcasts(const Tensor& t, const Tensor& to) {
  bool fits = t.ndim <= to.ndim;
  for (int e = 0; fits && e < t.ndim; ++e) {
    fits = extent_of(t, e) == 1 || extent_of(t, e) == extent_of(to, e);
  }
  return fits;
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

Tensor transposed(Tensor t) {
  std::swap(t.shape[t.ndim - 1], t.shape[t.ndim - 2]);
  std::swap(t.strides[t.ndim - 1], t.strides[t.ndim - 2]);
  return t;
}

// y = a b (+ c) for tensors of two dimensions and more. Batch dimensions that y lacks, or has with
// extent 1, are summed.
Gemm make_gemm(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& y) {
  Gemm g;
  g.m = extent_of(a, 1);
  g.n = extent_of(b, 0);
  for (int d = std::max(a.ndim, b.ndim) - 1; d >= 2; --d) {
    const int64_t extent = extent_of(a, d) == 1 ? extent_of(b, d) : extent_of(a, d);
    const int64_t in_a = stride_of(a, d, extent), in_b = stride_of(b, d, extent);
    if (extent_of(y, d) == extent) {
      g.batch.push(extent, {in_a, in_b, stride_of(c, d, extent), stride_of(y, d, extent), 0});
    } else {
      g.k.push(extent, {in_a, in_b});
    }
  }
  const int64_t depth = extent_of(a, 0);
  g.k.push(depth, {stride_of(a, 0, depth), stride_of(b, 1, depth)});
  g.a = matrix(a, stride_of(a, 1, g.m), 0);
  g.b = matrix(b, 0, stride_of(b, 0, g.n));
  g.c = matrix(c, stride_of(c, 1, g.m), stride_of(c, 0, g.n));
  g.y = matrix(y, stride_of(y, 1, g.m), stride_of(y, 0, g.n));
  return g;
}

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
    g.may_split = !of_a;
    run(call, g);
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
    if (c && !broadcasts(c, y)) {
      fail(DLK_INVALID_ARGUMENT, "c.shape is ", shape_string(c),
           ", expected one that broadcasts to ", shape_string(y), " (the shape of a @ b)");
    }
    call.require_disjoint(y, a);
    call.require_disjoint(y, b);
    call.require_same_or_disjoint(y, c);
    require_precision(p.precision);
    const Product full(a, b, y);
    Gemm g = make_gemm(full.a, full.b, c ? full.like_y(c) : c, full.y);
    g.alpha = p.alpha;
    g.beta = c ? p.beta : 0;
    run(call, g);
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
                                const DLTensor* y_, const DLTensor* preactivation_,
                                const dlk_linear_params* params, const dlk_launch* launch) {
  using namespace dlkern;
  return entry("linear", launch, [&](Call& call) {
    const dlk_linear_params p = read_params(params, kLinearDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor weight = call.input("weight", weight_);
    const Tensor bias = call.optional_input("bias", bias_);
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
    for (const Tensor* output : {&y, &pre}) {
      for (const Tensor* input : {&x, &weight, &bias}) call.require_disjoint(*output, *input);
    }
    call.require_disjoint(pre, y);
    require_precision(p.precision);
    if (!is_activation(p.activation)) {
      fail(DLK_INVALID_ARGUMENT, "activation is ", p.activation, ", expected a dlk_activation");
    }
    if (p.activation == DLK_ACTIVATION_SOFTPLUS && p.alpha == 0) {
      fail(DLK_INVALID_ARGUMENT, "alpha is ", p.alpha, ", expected it not to be 0");
    }

    Gemm g;
    set_rows(g, x, y, pre);
    g.k.push(in, {x.strides[x.ndim - 1], weight.strides[1]});
    g.b = matrix(weight, 0, weight.strides[0]);
    if (bias) {
      g.c = matrix(bias, 0, bias.strides[0]);
      g.beta = 1;
    }
    g.activation = static_cast<dlk_activation>(p.activation);
    g.activation_alpha = p.alpha;
    g.activation_threshold = p.threshold;
    run(call, g);
  });
}

dlk_status_t dlk_linear_backward_input(const DLTensor* dy_, const DLTensor* weight_,
                                       const DLTensor* dx_,
                                       const dlk_linear_backward_params* params,
                                       const dlk_launch* launch) {
  using namespace dlkern;
  return entry("linear_backward_input", launch, [&](Call& call) {
    const dlk_linear_backward_params p = read_params(params, kBackwardDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor weight = call.input("weight", weight_);
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
    call.require_disjoint(dx, dy);
    call.require_disjoint(dx, weight);
    require_precision(p.precision);

    Gemm g;
    set_rows(g, dy, dx, {});
    g.k.push(out, {dy.strides[dy.ndim - 1], weight.strides[0]});
    g.b = matrix(weight, 0, weight.strides[1]);
    run(call, g);
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
    g.may_split = true;
    run(call, g);
  });
}
