#include "ops/elementwise.h"

#include <dlkern/elementwise.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/gpu_runtime.h"
#include "core/index.h"
#include "ops/reduce.h"

namespace dlkern {
namespace {

constexpr dlk_add_params kDefaults = DLK_ADD_PARAMS_INIT;

struct Shape {
  Dims extents{};
  int ndim = 0;
};
Shape shape_of(const Tensor& t) { return {t.shape, t.ndim}; }

// What t and a shape broadcast to; `whose` tells in messages whose that shape is.
Shape broadcast(const Shape& with, const Tensor& t, const std::string& whose) {
  Shape result;
  result.ndim = std::max(with.ndim, t.ndim);
  for (int back = 1; back <= result.ndim; ++back) {
    const int64_t m = back <= with.ndim ? with.extents[with.ndim - back] : 1;
    const int64_t n = back <= t.ndim ? t.shape[t.ndim - back] : 1;
    if (m != n && m != 1 && n != 1) {
      fail(DLK_INVALID_ARGUMENT, t.name, ".shape is ", shape_string(t),
           ", expected one that broadcasts with ", shape_string(with.extents.data(), with.ndim),
           " (", whose, ")");
    }
    result.extents[result.ndim - back] = m == 1 ? n : m;
  }
  return result;
}

void require_whole(const char* name, double value) {
  if (!(std::fabs(value) < 0x1p63) || std::floor(value) != value) {
    fail(DLK_INVALID_ARGUMENT, name, " is ", value,
         ", expected a whole number for integer tensors");
  }
}

// Of a walk's tensor only the size of an element matters: one of an integer type that no op of the
// library knows has another type of that size.
DLTensor of_known_type(DLTensor t) {
  const bool is_integer = t.dtype.code == kDLInt || t.dtype.code == kDLUInt;
  if (is_integer && t.dtype.bits == 16) t.dtype.code = kDLFloat;
  if (is_integer && t.dtype.bits == 32) t.dtype.code = kDLInt;
  return t;
}

// The operands of dlk_elementwise_walk, checked.
struct Operands {
  std::array<Tensor, DLK_WALK_TENSORS> tensors;  // the outputs first; the rest is absent
  Shape shape;
};

Operands operands_of(Call& call, int outputs, int inputs, const DLTensor* const* tensors,
                     const char* const* names) {
  if (outputs < 1 || inputs < 0 || outputs + inputs > DLK_WALK_TENSORS) {
    fail(DLK_INVALID_ARGUMENT, outputs, " outputs and ", inputs,
         " inputs are given, expected at least one output and at most ", DLK_WALK_TENSORS,
         " tensors");
  }
  Operands all;
  const auto take = [&](int i, bool is_output) {
    Tensor& t = all.tensors[i];
    const DLTensor known = tensors[i] ? of_known_type(*tensors[i]) : DLTensor{};
    const DLTensor* given = tensors[i] ? &known : nullptr;
    t = is_output ? call.output(names[i], given) : call.input(names[i], given);
    if (t.dtype == DType::kUnknown) {
      fail(DLK_UNSUPPORTED_DTYPE, t.name, ".dtype is ", dtype_name(tensors[i]->dtype),
           ", expected a real number or bool");
    }
  };
  for (int i = outputs; i < outputs + inputs; ++i) {  // first: they decide the device
    take(i, false);
    all.shape = broadcast(all.shape, all.tensors[i], "the inputs before it");
  }
  for (int i = 0; i < outputs; ++i) {
    take(i, true);
    if (i == 0 && inputs == 0) all.shape = shape_of(all.tensors[0]);
    call.require_shape(all.tensors[i], std::span(all.shape.extents.data(), all.shape.ndim),
                       "the inputs broadcast");
    for (int k = outputs; k < outputs + inputs; ++k) {
      call.require_same_or_disjoint(all.tensors[i], all.tensors[k]);
    }
    for (int k = 0; k < i; ++k) call.require_disjoint(all.tensors[i], all.tensors[k]);
  }
  for (int i = outputs; i < outputs + inputs; ++i) {
    all.tensors[i] = with_rank(all.tensors[i], all.shape.ndim);
  }
  return all;
}

dlk_walk walk_of(const Operands& all) {
  const auto& t = all.tensors;
  const auto index = in_memory_order(
      make_index<DLK_WALK_TENSORS>({&t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7], &t[8],
                                    &t[9], &t[10], &t[11], &t[12], &t[13], &t[14], &t[15]}));
  dlk_walk walk{};
  walk.ndim = index.ndim;
  walk.numel = index.numel;
  static_assert(kMaxDims == DLK_WALK_DIMS);
  std::copy(std::begin(index.shape), std::end(index.shape), walk.shape);
  std::copy(&index.stride[0][0], &index.stride[0][0] + DLK_WALK_TENSORS * kMaxDims,
            &walk.strides[0][0]);
  return walk;
}

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_add(const DLTensor* a_, const DLTensor* b_, const DLTensor* y_,
                     const dlk_add_params* params, const dlk_launch* launch) {
  return entry("add", launch, [&](Call& call) {
    const dlk_add_params p = read_params(params, kDefaults);
    const Tensor a = call.input("a", a_);
    const Tensor b = call.input("b", b_);
    const Tensor y = call.output("y", y_);
    call.require_dtype(a, {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                           DType::kInt32, DType::kInt64});
    call.require_same_dtype(b, a);
    call.require_same_dtype(y, a);
    const Shape shape = broadcast(shape_of(a), b, std::string(a.name) + ".shape");
    call.require_shape(y, std::span(shape.extents.data(), shape.ndim), "a and b broadcast");
    call.require_same_or_disjoint(y, a);
    call.require_same_or_disjoint(y, b);
    if (is_index(a.dtype)) {
      require_whole("alpha", p.alpha);
      require_whole("beta", p.beta);
    }
    call.run(Add{with_rank(a, y.ndim), with_rank(b, y.ndim), y, p.alpha, p.beta});
  });
}

dlk_status_t dlk_add_backward(const DLTensor* dy_, const DLTensor* da_, const dlk_launch* launch) {
  return entry("add_backward", launch, [&](Call& call) {
    const Tensor dy = call.input("dy", dy_);
    const Tensor da = call.output("da", da_);
    call.require_floating(dy);
    call.require_same_dtype(da, dy);
    const Tensor wide = da.ndim <= dy.ndim ? with_rank(da, dy.ndim) : da;
    uint32_t axes = 0;
    bool fits = wide.ndim == dy.ndim;
    for (int d = 0; fits && d < dy.ndim; ++d) {
      const bool repeated = wide.shape[d] == 1 && dy.shape[d] != 1;
      if (repeated) axes |= 1u << d;
      fits = repeated || wide.shape[d] == dy.shape[d];
    }
    if (!fits) {
      fail(DLK_INVALID_ARGUMENT, da.name, ".shape is ", shape_string(da),
           ", expected one that broadcasts to ", shape_string(dy), " (", dy.name, ".shape)");
    }
    if (axes == 0) {
      call.require_same_or_disjoint(da, dy);
      call.run(Add{dy, dy, wide, 1, 0});
    } else {
      call.require_disjoint(da, dy);
      call.run(Reduce{dy, wide, axes, DLK_REDUCE_SUM});
    }
  });
}

dlk_status_t dlk_elementwise_walk(const char* op, int32_t outputs, int32_t inputs,
                                  const DLTensor* const* tensors, const char* const* names,
                                  dlk_walk* walk, const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const Operands all = operands_of(call, outputs, inputs, tensors, names);
    if (!write_struct(walk, walk_of(all))) {
      fail(DLK_INVALID_ARGUMENT, "walk is NULL or has no struct_size");
    }
  });
}

dlk_status_t dlk_elementwise_launch(void* kernel, int32_t device, uint32_t blocks, uint32_t threads,
                                    void** params, const dlk_launch* launch_) {
  return guarded("elementwise_launch", [&] {
    [[maybe_unused]] const auto launch = read_params(launch_, dlk_launch DLK_LAUNCH_INIT, "launch");
    if (!kernel) fail(DLK_INVALID_ARGUMENT, "kernel is NULL");
#if DLKERN_WITH_GPU
    const DeviceGuard guard({true, device});
    gpu::launch_handle(kernel, blocks, threads, params, launch.stream);
#else
    (void)device, (void)blocks, (void)threads, (void)params;
    fail(DLK_NOT_SUPPORTED, "this build of dlkern has only the CPU backend");
#endif
  });
}
