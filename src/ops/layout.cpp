#include "ops/layout.h"

#include <dlkern/layout.h>

namespace dlkern {
namespace {

constexpr dlk_permute_params kPermuteDefaults = DLK_PERMUTE_PARAMS_INIT;
constexpr dlk_concat_params kConcatDefaults = DLK_CONCAT_PARAMS_INIT;

Tensor permuted(const Call& call, const Tensor& x, const dlk_permute_params& p) {
  Tensor view = x;
  uint32_t seen = 0;
  for (int d = 0; d < x.ndim; ++d) {
    const int axis = call.axis("axes", p.axes[d], x);
    if (seen >> axis & 1u) {
      fail(DLK_INVALID_ARGUMENT, "axes is ", p.axes[d], " at ", d, ", expected each axis once");
    }
    seen |= 1u << axis;
    view.shape[d] = x.shape[axis];
    view.strides[d] = x.strides[axis];
  }
  return view;
}

// The part of `whole` that begins at `start` of an axis and has `extent` of it.
Tensor part_of(const Tensor& whole, int axis, int64_t start, int64_t extent) {
  Tensor part = whole;
  part.shape[axis] = extent;
  if (part.data) {
    const auto item = static_cast<int64_t>(dtype_size(whole.dtype));
    part.data = whole.as<char>() + start * whole.strides[axis] * item;
  }
  return part;
}

// Pairs each part with its place in the whole, f(part, place); extents must add up.
template <class F>
void for_each_part(const Call& call, const Tensor& whole, const std::vector<Tensor>& parts,
                   int axis, F&& f) {
  Dims expected = whole.shape;
  int64_t start = 0;
  for (const Tensor& part : parts) {
    call.require_same_dtype(part, whole);
    call.require_rank(part, whole.ndim, whole.ndim);
    expected[axis] = part.shape[axis];
    call.require_shape(part, {expected.data(), static_cast<size_t>(whole.ndim)},
                       cat(whole.name, ".shape but for the axis").c_str());
    f(part, part_of(whole, axis, start, part.shape[axis]));
    start += part.shape[axis];
  }
  if (start != whole.shape[axis]) {
    fail(DLK_INVALID_ARGUMENT, whole.name, ".shape is ", shape_string(whole), ", expected ", start,
         " on axis ", axis, " (the sum of the ", parts.size(), " extents there)");
  }
}

// Empty pieces are left out, but for the first: a problem has at least one.
void add_piece(Copy& copy, const Tensor& x, const Tensor& y) {
  if (!copy.pieces.empty() && copy.pieces.back().y.numel() == 0) copy.pieces.pop_back();
  if (copy.pieces.empty() || y.numel() != 0) copy.pieces.push_back({x, y});
}

void require_some(const char* name, int64_t count) {
  if (count < 1) fail(DLK_INVALID_ARGUMENT, name, " has ", count, " arrays, expected one or more");
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_permute(const DLTensor* x_, const DLTensor* y_, const dlk_permute_params* params,
                         const dlk_launch* launch) {
  return entry("permute", launch, [&](Call& call) {
    const dlk_permute_params p = read_params(params, kPermuteDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor y = call.output("y", y_);
    const Tensor view = permuted(call, x, p);
    call.require_same_dtype(y, x);
    call.require_shape(y, {view.shape.data(), static_cast<size_t>(x.ndim)}, "x.shape permuted");
    call.require_disjoint(y, x);
    call.run(Copy{{{view, y}}});
  });
}

dlk_status_t dlk_concat(int64_t count, const DLTensor* const* arrays, const DLTensor* y_,
                        const dlk_concat_params* params, const dlk_launch* launch) {
  return entry("concat", launch, [&](Call& call) {
    const dlk_concat_params p = read_params(params, kConcatDefaults);
    require_some("arrays", count);
    const std::vector<Tensor> x = call.input_list("arrays", arrays, count);
    const Tensor y = call.output("y", y_);
    call.require_rank(x[0], 1, kMaxDims);
    call.require_same_dtype(y, x[0]);
    call.require_rank(y, x[0].ndim, x[0].ndim);
    Copy copy;
    for_each_part(call, y, x, call.axis("axis", p.axis, x[0]),
                  [&](const Tensor& part, const Tensor& place) {
                    call.require_disjoint(y, part);
                    add_piece(copy, part, place);
                  });
    call.run(copy);
  });
}

dlk_status_t dlk_split(const DLTensor* x_, int64_t count, const DLTensor* const* y_,
                       const dlk_split_params* params, const dlk_launch* launch) {
  return entry("split", launch, [&](Call& call) {
    const dlk_split_params p = read_params(params, kConcatDefaults);
    require_some("y", count);
    const Tensor x = call.input("x", x_);
    const std::vector<Tensor> y = call.output_list("y", y_, count);
    call.require_rank(x, 1, kMaxDims);
    Copy copy;
    for_each_part(call, x, y, call.axis("axis", p.axis, x),
                  [&](const Tensor& part, const Tensor& place) {
                    call.require_disjoint(part, x);
                    add_piece(copy, place, part);
                  });
    call.run(copy);
  });
}

dlk_status_t dlk_cast(const DLTensor* x_, const DLTensor* y_, const dlk_launch* launch) {
  return entry("cast", launch, [&](Call& call) {
    const Tensor x = call.input("x", x_);
    const Tensor y = call.output("y", y_);
    call.require_same_shape(y, x);
    if (x.dtype == y.dtype) {
      call.require_same_or_disjoint(y, x);
      call.run(Copy{{{x, y}}});
    } else {
      call.require_disjoint(y, x);
      call.run(Cast{x, y});
    }
  });
}
