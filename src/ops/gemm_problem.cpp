#include "ops/gemm_problem.h"

#include <algorithm>
#include <utility>

#include "ops/activation.h"

namespace dlkern {

void require_precision(int32_t precision) {
  if (precision != DLK_PRECISION_IEEE && precision != DLK_PRECISION_TF32) {
    fail(DLK_INVALID_ARGUMENT, "precision is ", precision,
         ", expected DLK_PRECISION_IEEE or DLK_PRECISION_TF32");
  }
}

void set_activation(Epilogue& e, int32_t activation, double alpha, double threshold) {
  require_activation(activation, alpha);
  e.activation = static_cast<dlk_activation>(activation);
  e.activation_alpha = alpha;
  e.activation_threshold = threshold;
}

Tensor transposed(Tensor t) {
  std::swap(t.shape[t.ndim - 1], t.shape[t.ndim - 2]);
  std::swap(t.strides[t.ndim - 1], t.strides[t.ndim - 2]);
  return t;
}

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

void set_rows(Gemm& g, const Tensor& x, const Tensor& y, const Tensor& pre, const Tensor& residual,
              const Tensor& saved) {
  const int last = x.ndim - 1;
  for (int d = 0; d < last; ++d) {
    const auto in = [&](const Tensor& t) { return t ? stride_of(t, last - d, y.shape[d]) : 0; };
    g.batch.push(x.shape[d], {x.strides[d], 0, 0, in(y), in(pre), in(residual), in(saved)});
  }
  g.n = y.shape[last];
  const auto columns = [&](const Tensor& t) {
    return t ? matrix(t, 0, stride_of(t, 0, g.n)) : Matrix{};
  };
  g.a = matrix(x, 0, 0);
  g.y = columns(y);
  g.pre = columns(pre);
  g.residual = columns(residual);
  g.saved = columns(saved);
}

void require_8bit(const Call& call, const Tensor& a, const Tensor& b, const Tensor& y,
                  bool is_plain) {
  using enum DType;
  call.require_dtype(a, {kFloat8E4M3, kFloat8E5M2, kInt8});
  if (a.dtype == kInt8) {
    call.require_same_dtype(b, a);
  } else {
    call.require_dtype(b, {kFloat8E4M3, kFloat8E5M2});
  }
  if (y.dtype == kInt32 && a.dtype == kInt8) {
    if (!is_plain) {
      fail(DLK_UNSUPPORTED_DTYPE, y.name,
           ".dtype is int32, expected a floating one: int32 takes the sums, and nothing may be "
           "applied to them");
    }
    return;
  }
  if (y.dtype == kInt8 && a.dtype == kInt8) return;
  call.require_dtype(y, {kBFloat16, kFloat16, kFloat32, kFloat8E4M3, kFloat8E5M2});
}

namespace {

// Whether t is a scale of `rows` rows, of depth `depth`; then into `scale`.
bool fits_scale(const Tensor& t, int64_t rows, int64_t depth, int along_k, Scale& scale) {
  if (t.numel() == 1) return true;
  if (t.ndim == 1 && t.shape[0] == rows) {
    scale.row = t.strides[0];
    return true;
  }
  if (t.ndim != 2) return false;
  const int64_t pieces = ceil_div(depth, kScaleDepth), blocks = ceil_div(rows, kScaleDepth);
  const int64_t r = t.shape[1 - along_k], d = t.shape[along_k];
  scale.row = t.strides[1 - along_k];
  if (d == 1 && r == rows) return true;
  scale.depth = pieces == 1 ? 0 : t.strides[along_k];
  if (d == pieces && r == rows) return true;
  scale.rows = kScaleDepth;
  return d == pieces && r == blocks;
}

Tensor without_first_dimension(Tensor t) {
  --t.ndim;
  std::copy_n(t.shape.begin() + 1, t.ndim, t.shape.begin());
  std::copy_n(t.strides.begin() + 1, t.ndim, t.strides.begin());
  return t;
}

}  // namespace

Scale read_scale(const Call& call, const Tensor& t, int64_t rows, int64_t depth, int along_k,
                 std::optional<int64_t> items) {
  if (!t) return {};
  call.require_dtype(t, {DType::kFloat32});
  call.require_rank(t, 0, items ? 3 : 2);
  Scale scale{t.as<const float>()};
  if (t.numel() == 1) return scale;
  if (!items) {
    if (fits_scale(t, rows, depth, along_k, scale)) return scale;
  } else if (t.shape[0] == *items &&
             fits_scale(without_first_dimension(t), rows, depth, along_k, scale)) {
    scale.item = t.strides[0];
    return scale;
  }
  const int64_t pieces = ceil_div(depth, kScaleDepth), blocks = ceil_div(rows, kScaleDepth);
  const auto text = [&](std::vector<int64_t> shape) {
    if (shape.size() == 2 && along_k == 0) std::swap(shape[0], shape[1]);
    if (items) shape.insert(shape.begin(), *items);
    return shape_string(shape.data(), static_cast<int>(shape.size()));
  };
  fail(DLK_INVALID_ARGUMENT, t.name, ".shape is ", shape_string(t), ", expected ",
       items ? "[], " : "", text({}), ", ", text({rows}), ", ", text({rows, 1}), ", ",
       text({rows, pieces}), " or ", text({blocks, pieces}));
}

void require_no_int8_depth(const Gemm& g) {
  if (g.a.dtype == DType::kInt8 && (g.scale_a.depth != 0 || g.scale_b.depth != 0)) {
    fail(DLK_NOT_SUPPORTED, g.scale_a.depth != 0 ? "scale_a" : "scale_b",
         " has factors along k, which only float8 operands may have");
  }
}

// m becomes the innermost dimension of the batch, merged with what is there where the strides of all
// tensors allow it and b is the same all along: a stack of matrices times one matrix is one taller
// matrix.
void fold_batch_into_rows(Gemm& g) {
  Matrix* const rows[] = {&g.a, &g.b, &g.c, &g.y, &g.pre, &g.residual, &g.saved};
  g.batch.push(g.m, {g.a.row, 0, g.c.row, g.y.row, g.pre.row, g.residual.row, g.saved.row});
  const int last = g.batch.ndim - 1;
  if (last < 0 || g.batch.stride[1][last] != 0) return;  // m is 1 and was not pushed
  g.m = g.batch.shape[last];
  for (int t = 0; t < Gemm::kTensors; ++t) {
    if (t != 1) rows[t]->row = g.batch.stride[t][last];
  }
  g.batch.ndim = last;
  g.batch.numel = 1;
  for (int d = 0; d < last; ++d) g.batch.numel *= g.batch.shape[d];
}

namespace {

// Implementations take n for y's contiguous index: where that is m, y^T = b^T a^T is computed.
void orient(Gemm& g) {
  const bool along_m = g.y.row == 1 && (g.y.col != 1 || g.n == 1) && g.m != 1;
  if (!along_m || g.row_sum.data || g.batch_invariant || g.is_grouped()) return;
  std::swap(g.m, g.n);
  std::swap(g.a, g.b);
  std::swap(g.scale_a, g.scale_b);
  for (Matrix* t : {&g.a, &g.b, &g.c, &g.y, &g.pre, &g.residual, &g.saved}) {
    std::swap(t->row, t->col);
  }
  std::swap(g.k.stride[0], g.k.stride[1]);
  std::swap(g.batch.stride[0], g.batch.stride[1]);
}

}  // namespace

void run_gemm(Call& call, Gemm& g) {
  if (!g.is_grouped()) fold_batch_into_rows(g);
  orient(g);
  if (g.alpha == 0) g.k.numel = 0;
  call.run(g);
}

}  // namespace dlkern
