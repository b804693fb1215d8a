// Reductions over any set of axes.
//
//   sum, mean             here
//   max, min, arg*, norms of infinite order     reduce_extremes.cu
//   prod, vector_norm     reduce_products.cu
//   var, std              reduce_moments.cu
//   logsumexp             reduce_logsumexp.cu
//   any, all              reduce_truths.cu
//   gradients             reduce_backward.cu
//
// Algorithm and its order of additions: prims/axis_reduce.cuh. Bound by memory: each element is read
// once. Sums are kept in float32 for 16-bit types, float64, and int64 for integers.
#include "cuda/reduce.h"

#include "cuda/reduce_ops.cuh"

namespace dlkern {
namespace gpu {

size_t state_bytes(dlk_reduce_kind kind, DType dtype) {
  if (is_logical(kind)) return sizeof(uint32_t);
  const size_t number = is_vector_dtype(dtype) ? 4 : 8;
  if (is_arg(kind)) return sizeof(Candidate<double>);
  const bool two = kind == DLK_REDUCE_PROD || kind == DLK_REDUCE_LOGSUMEXP;
  return is_variance(kind) ? 4 * number : two ? 2 * number : number;
}

}  // namespace gpu
namespace {

using namespace gpu;

axis::Plan plan_of(const Reduce& p) {
  const bool rare =
      p.kind == DLK_REDUCE_VECTOR_NORM && p.ord != 1 && p.ord != 2 && !std::isinf(p.ord);
  const bool vector = is_logical(p.kind) ? p.x.dtype != DType::kBool : is_vector_dtype(p.x.dtype);
  return plan_axes(p.x, p.y, Tensor{}, p.axes, is_arg(p.kind), vector && !rare);
}

void reduce_sums(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  const auto n = static_cast<double>(plan.order.n);
  dispatch_reducible(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const SumOp<Acc> op{{p.y.data, p.y.dtype}, static_cast<Acc>(p.kind == DLK_REDUCE_MEAN ? n : 1)};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

void run(const Reduce& given, const Launch& launch) {
  const Reduce p = in_words(given);
  const axis::Plan plan = plan_of(p);
  const auto with = [&](auto* reduce) { reduce(p, plan, launch.stream, launch.workspace); };
  switch (p.kind) {
    case DLK_REDUCE_SUM:
    case DLK_REDUCE_MEAN:
      return with(reduce_sums);
    case DLK_REDUCE_MAX:
    case DLK_REDUCE_MIN:
      return with(reduce_extremes);
    case DLK_REDUCE_ARGMAX:
    case DLK_REDUCE_ARGMIN:
      return with(reduce_indices);
    case DLK_REDUCE_PROD:
      return with(reduce_products);
    case DLK_REDUCE_VECTOR_NORM:
      return std::isinf(p.ord) ? with(reduce_extremes) : with(reduce_norms);
    case DLK_REDUCE_VAR:
    case DLK_REDUCE_STD:
      return with(reduce_moments);
    case DLK_REDUCE_LOGSUMEXP:
      return with(reduce_logsumexp);
    case DLK_REDUCE_ANY:
    case DLK_REDUCE_ALL:
      return with(reduce_truths);
  }
}

constexpr Impl<Reduce> kForward[] = {
    {"axes", supports_all,
     [](const Reduce& p) {
       return axis_workspace_bytes(plan_of(in_words(p)), state_bytes(p.kind, p.x.dtype));
     },
     run},
};

}  // namespace

template <>
ImplList<Reduce> gpu_impls<Reduce>() {
  return kForward;
}

}  // namespace dlkern
