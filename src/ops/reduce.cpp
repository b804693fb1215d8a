#include "ops/reduce.h"

#include <bit>
#include <cmath>
#include <limits>

namespace dlkern {
namespace {

constexpr dlk_reduce_params kDefaults = DLK_REDUCE_PARAMS_INIT;

constexpr struct {
  const char* forward;
  const char* backward;
} kNames[] = {{"sum", "sum_backward"},
              {"mean", "mean_backward"},
              {"max", "max_backward"},
              {"min", "min_backward"},
              {"argmax", "argmax"},
              {"argmin", "argmin"},
              {"prod", "prod_backward"},
              {"vector_norm", "vector_norm_backward"},
              {"var", "var_backward"},
              {"std", "std_backward"},
              {"logsumexp", "logsumexp_backward"},
              {"any", "any"},
              {"all", "all"}};

bool is_kind(int32_t kind) { return kind >= DLK_REDUCE_SUM && kind <= DLK_REDUCE_ALL; }

// The op's index in kNames, before params have been checked.
int32_t name_of(const dlk_reduce_params* params) {
  const bool has_kind = params && params->struct_size >= 2 * sizeof(int32_t);
  return has_kind && is_kind(params->kind) ? params->kind : DLK_REDUCE_SUM;
}

dlk_reduce_kind kind_of(const dlk_reduce_params& p) {
  if (!is_kind(p.kind)) {
    fail(DLK_INVALID_ARGUMENT, "kind is ", p.kind, ", expected a dlk_reduce_kind");
  }
  const auto kind = static_cast<dlk_reduce_kind>(p.kind);
  if (kind == DLK_REDUCE_VECTOR_NORM && std::isnan(p.ord)) {
    fail(DLK_INVALID_ARGUMENT, "ord is nan, expected a number");
  }
  if (is_variance(kind) && !std::isfinite(p.correction)) {
    fail(DLK_INVALID_ARGUMENT, "correction is ", p.correction, ", expected a finite number");
  }
  return kind;
}

// The reduced axes of x as a bit mask.
uint32_t axes_of(const Call& call, const dlk_reduce_params& p, const Tensor& x) {
  if (p.axis_count == -1) return (1u << x.ndim) - 1;
  if (p.axis_count < -1 || p.axis_count > kMaxDims) {
    fail(DLK_INVALID_ARGUMENT, "axis_count is ", p.axis_count, ", expected -1 to ", kMaxDims);
  }
  uint32_t axes = 0;
  for (int i = 0; i < p.axis_count; ++i) {
    const uint32_t bit = 1u << call.axis("axis", p.axes[i], x);
    if (axes & bit) {
      fail(DLK_INVALID_ARGUMENT, "axis is ", p.axes[i], " for a second time, expected each once");
    }
    axes |= bit;
  }
  return axes;
}

// A result in either of its forms as a view of x's rank, with extent 1 on the reduced axes.
Tensor keep_dims(const Call& call, const Tensor& t, const Tensor& x, uint32_t axes) {
  Tensor kept = t;
  kept.ndim = x.ndim;
  Dims removed{};
  size_t rank = 0;
  for (int d = 0; d < x.ndim; ++d) {
    const bool reduced = axes >> d & 1u;
    kept.shape[d] = reduced ? 1 : x.shape[d];
    kept.strides[d] = reduced ? 1 : t.strides[rank];
    if (!reduced) removed[rank++] = x.shape[d];
  }
  if (same_shape(t, kept)) return t;
  call.require_shape(t, {removed.data(), rank}, axes ? "or the reduced axes kept as 1" : "x.shape");
  return kept;
}

void require_reducible(const Call& call, const Tensor& x, dlk_reduce_kind kind) {
  if (is_logical(kind)) {
    call.require_dtype(x, {DType::kBool});
  } else if (kind == DLK_REDUCE_MEAN || kind == DLK_REDUCE_VECTOR_NORM || is_variance(kind) ||
             kind == DLK_REDUCE_LOGSUMEXP) {
    call.require_floating(x);
  } else {
    call.require_dtype(x, {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                           DType::kInt32, DType::kInt64});
  }
}

void require_result_dtype(const Call& call, const Tensor& y, const Tensor& x,
                          dlk_reduce_kind kind) {
  if (is_arg(kind)) {
    call.require_dtype(y, {DType::kInt64, DType::kInt32});
    if (y.dtype == DType::kInt32 && x.numel() > std::numeric_limits<int32_t>::max()) {
      fail(DLK_UNSUPPORTED_DTYPE, "y.dtype is int32, expected int64 for indices into ", x.numel(),
           " elements");
    }
  } else if (is_index(x.dtype) && (kind == DLK_REDUCE_SUM || kind == DLK_REDUCE_PROD)) {
    call.require_dtype(y, {DType::kInt64});
  } else if (dtype_size(x.dtype) == 2) {
    call.require_dtype(y, {x.dtype, DType::kFloat32});
  } else {
    call.require_same_dtype(y, x);
  }
}

// Whether the op is defined over no elements.
bool has_neutral(dlk_reduce_kind kind, double ord) {
  if (kind == DLK_REDUCE_VECTOR_NORM) return ord >= 0 && std::isfinite(ord);
  return kind != DLK_REDUCE_MAX && kind != DLK_REDUCE_MIN && !is_arg(kind);
}

void require_elements(const Tensor& x, const Tensor& y, uint32_t axes, dlk_reduce_kind kind,
                      double ord) {
  if (has_neutral(kind, ord) || y.numel() == 0) return;
  for (int d = 0; d < x.ndim; ++d) {
    if ((axes >> d & 1u) && x.shape[d] == 0) {
      fail(DLK_INVALID_ARGUMENT, x.name, ".shape is ", shape_string(x),
           ", expected elements on axis ", d, " to take the ", kNames[kind].forward, " of");
    }
  }
}

dlk_status_t forward(const DLTensor* x_, const DLTensor* y_, const dlk_reduce_params* params,
                     const dlk_launch* launch) {
  return entry(kNames[name_of(params)].forward, launch, [&](Call& call) {
    const dlk_reduce_params p = read_params(params, kDefaults);
    const dlk_reduce_kind kind = kind_of(p);
    const Tensor x = call.input("x", x_);
    const Tensor result = call.output("y", y_);
    require_reducible(call, x, kind);
    const uint32_t axes = axes_of(call, p, x);
    const int reduced = std::popcount(axes);
    if (is_arg(kind) && reduced != 1 && reduced != x.ndim) {
      fail(DLK_INVALID_ARGUMENT, "axis names ", reduced, " axes, expected one or all");
    }
    require_result_dtype(call, result, x, kind);
    const Tensor y = keep_dims(call, result, x, axes);
    require_elements(x, y, axes, kind, p.ord);
    call.require_disjoint(y, x);
    call.run(Reduce{x, y, axes, kind, p.ord, p.correction});
  });
}

dlk_status_t backward(const DLTensor* dy_, const DLTensor* x_, const DLTensor* y_,
                      const DLTensor* dx_, const dlk_reduce_params* params,
                      const dlk_launch* launch) {
  return entry(kNames[name_of(params)].backward, launch, [&](Call& call) {
    const dlk_reduce_params p = read_params(params, kDefaults);
    const dlk_reduce_kind kind = kind_of(p);
    if (is_arg(kind) || is_logical(kind)) {
      fail(DLK_INVALID_ARGUMENT, "kind is ", kNames[kind].forward,
           ", expected one with a gradient");
    }
    Tensor dy = call.input("dy", dy_);
    const Tensor x = takes_x(kind) ? call.input("x", x_) : Tensor{};
    Tensor y = takes_y(kind) ? call.input("y", y_) : Tensor{};
    const Tensor dx = call.output("dx", dx_);
    call.require_floating(dy);
    call.require_same_dtype(dx, dy);
    const uint32_t axes = axes_of(call, p, dx);
    dy = keep_dims(call, dy, dx, axes);
    call.require_disjoint(dx, dy);
    if (x) {
      call.require_like(x, dx);
      call.require_same_or_disjoint(dx, x);
    }
    if (y) {
      call.require_same_dtype(y, dy);
      y = keep_dims(call, y, dx, axes);
      call.require_disjoint(dx, y);
    }
    call.run(ReduceBackward{dy, x, y, dx, axes, kind, p.ord, p.correction});
  });
}

}  // namespace
}  // namespace dlkern

dlk_status_t dlk_reduce(const DLTensor* x, const DLTensor* y, const dlk_reduce_params* params,
                        const dlk_launch* launch) {
  return dlkern::forward(x, y, params, launch);
}

dlk_status_t dlk_reduce_backward(const DLTensor* dy, const DLTensor* x, const DLTensor* y,
                                 const DLTensor* dx, const dlk_reduce_params* params,
                                 const dlk_launch* launch) {
  return dlkern::backward(dy, x, y, dx, params, launch);
}
