// max, min, argmax and argmin over any axes, and norms of infinite order (prims/axis_reduce.cuh).
#include "cuda/reduce.h"
#include "cuda/reduce_ops.cuh"

namespace dlkern::gpu {

namespace {

template <class Acc>
Transform<Acc> transform_of(const Reduce& p) {
  const bool norm = p.kind == DLK_REDUCE_VECTOR_NORM;
  return {is_minimum(p.kind) || (norm && p.ord < 0), norm};
}

}  // namespace

void reduce_extremes(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  dispatch_reducible(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const ExtremeOp<Acc> op{{p.y.data, p.y.dtype}, transform_of<Acc>(p)};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

void reduce_indices(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  dispatch_reducible(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const ArgOp<Acc> op{{p.y.data, p.y.dtype}, transform_of<Acc>(p)};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

}  // namespace dlkern::gpu
