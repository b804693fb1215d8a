#include "ops/rope.h"

#include <dlkern/rope.h>

#include "core/mixed.h"

namespace dlkern {
namespace {

constexpr dlk_rope_params kDefaults = DLK_ROPE_PARAMS_INIT;

// [B, S, H, D] of a tensor that may lack the batch.
Tensor as_bshd(const Tensor& t, int32_t layout) {
  Tensor view = t;
  if (t.ndim == 3) {
    view.ndim = 4;
    for (int d = 0; d < 3; ++d) {
      view.shape[d + 1] = t.shape[d];
      view.strides[d + 1] = t.strides[d];
    }
    view.shape[0] = 1, view.strides[0] = 0;
  }
  if (layout == DLK_ROPE_BHSD) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
  }
  return view;
}

void take_tensors(const Call& call, Rope& p, const std::vector<Tensor>& x,
                  const std::vector<Tensor>& y, int32_t layout) {
  if (layout != DLK_ROPE_BSHD && layout != DLK_ROPE_BHSD) {
    fail(DLK_INVALID_ARGUMENT, "layout is ", layout, ", expected a dlk_rope_layout");
  }
  call.require_floating(x[0]);
  for (size_t i = 0; i < x.size(); ++i) {
    call.require_rank(x[i], 3, 4);
    call.require_same_dtype(x[i], x[0]);
    Dims shape = x[0].shape;
    const int heads = x[0].ndim - (layout == DLK_ROPE_BHSD ? 3 : 2);
    if (x[i].ndim == x[0].ndim) shape[heads] = x[i].shape[heads];
    call.require_shape(x[i], {shape.data(), static_cast<size_t>(x[0].ndim)},
                       "that of the first but for the heads");
    call.require_like(y[i], x[i]);
    for (size_t j = 0; j < x.size(); ++j) {
      if (i == j) {
        call.require_same_or_disjoint(y[i], x[j]);
      } else {
        call.require_disjoint(y[i], x[j]);
      }
    }
    p.tensors.push_back({as_bshd(x[i], layout), as_bshd(y[i], layout)});
  }
}

void take_rotary_dim(Rope& p, int64_t rotary) {
  p.rotary = rotary == 0 ? p.depth() : rotary;
  if (p.rotary < 0 || p.rotary > p.depth() || p.rotary % 2 != 0) {
    fail(DLK_INVALID_ARGUMENT, "rotary_dim is ", p.rotary, ", expected an even number up to ",
         p.depth());
  }
}

void take_table(const Call& call, const Rope& p) {
  if (bool(p.cos) != bool(p.sin)) {
    fail(DLK_INVALID_ARGUMENT, p.cos ? "sin" : "cos",
         " is NULL, expected both cos and sin or none");
  }
  if (!p.cos) return;
  call.require_rank(p.cos, 2, 2);
  const int64_t shape[] = {p.cos.shape[0], p.rotary / 2};
  call.require_shape(p.cos, shape, "positions and half of the rotary dimension");
  call.require_same_shape(p.sin, p.cos);
  require_mixed_dtype(call, p.cos, p.first());
  call.require_same_dtype(p.sin, p.cos);
}

// Makes positions a view [B, S].
void take_positions(const Call& call, Rope& p) {
  Tensor& t = p.positions;
  const int64_t shape[] = {p.batch(), p.length()};
  if (t) {
    call.require_dtype(t, {DType::kInt64, DType::kInt32});
    call.require_rank(t, 1, 2);
    call.require_shape(t, std::span(shape).subspan(2 - t.ndim), "[S] or [B, S]");
    if (p.cos && call.device().is_gpu && call.checks_values()) {
      const std::vector<int64_t> values = call.read_integers(t);
      for (size_t i = 0; i < values.size(); ++i) check_position(p, values[i], i);
    }
    if (t.ndim == 1) {
      t.ndim = 2;
      t.shape = {shape[0], shape[1]};
      t.strides = {0, t.strides[0]};
    }
  } else if (p.cos && p.length() > 0) {
    check_position(p, p.offset, 0);
    check_position(p, p.offset + p.length() - 1, p.length() - 1);
  }
}

dlk_status_t rope(const char* op, const char* x_name, const char* y_name, int sign, int64_t count,
                  const DLTensor* const* x_, const DLTensor* cos, const DLTensor* sin,
                  const DLTensor* positions, const DLTensor* const* y_,
                  const dlk_rope_params* params, const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_rope_params q = read_params(params, kDefaults);
    if (count < 1) fail(DLK_INVALID_ARGUMENT, x_name, " has ", count, " tensors, expected some");
    const std::vector<Tensor> x = call.input_list(x_name, x_, count);
    Rope p;
    p.cos = call.optional_input("cos", cos);
    p.sin = call.optional_input("sin", sin);
    p.positions = call.optional_input("positions", positions);
    const std::vector<Tensor> y = call.output_list(y_name, y_, count);
    p.interleaved = q.interleaved != 0;
    p.offset = q.offset;
    p.base = q.base;
    p.sign = sign;
    if (!(q.base > 0)) fail(DLK_INVALID_ARGUMENT, "base is ", q.base, ", expected more than 0");
    take_tensors(call, p, x, y, q.layout);
    take_rotary_dim(p, q.rotary_dim);
    take_table(call, p);
    for (const Tensor& out : y) {
      for (const Tensor* in : {&p.cos, &p.sin, &p.positions}) call.require_disjoint(out, *in);
    }
    take_positions(call, p);
    call.run(p);
  });
}

}  // namespace

void check_position(const Rope& p, int64_t position, int64_t i) {
  if (position >= 0 && position < p.cos.shape[0]) return;
  fail(DLK_INVALID_ARGUMENT, "positions holds ", position, " at flat index ", i, ", expected 0 to ",
       p.cos.shape[0] - 1, " (rows of cos)");
}

}  // namespace dlkern

dlk_status_t dlk_rope_forward(int64_t count, const DLTensor* const* x, const DLTensor* cos,
                              const DLTensor* sin, const DLTensor* positions,
                              const DLTensor* const* y, const dlk_rope_params* params,
                              const dlk_launch* launch) {
  return dlkern::rope("rope", "x", "y", 1, count, x, cos, sin, positions, y, params, launch);
}

dlk_status_t dlk_rope_backward(int64_t count, const DLTensor* const* dy, const DLTensor* cos,
                               const DLTensor* sin, const DLTensor* positions,
                               const DLTensor* const* dx, const dlk_rope_params* params,
                               const dlk_launch* launch) {
  return dlkern::rope("rope_backward", "dy", "dx", -1, count, dy, cos, sin, positions, dx, params,
                      launch);
}
