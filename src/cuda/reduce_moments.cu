// var and std over any axes, and the means that their gradients need (prims/axis_reduce.cuh).
#include "cuda/reduce.h"
#include "cuda/reduce_ops.cuh"

namespace dlkern::gpu {

void reduce_moments(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  const double divisor = variance_divisor(plan.order.n, p.correction);
  dispatch_floating(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const MomentsOp<Acc> op{{p.y.data, p.y.dtype},
                            static_cast<Acc>(divisor),
                            p.kind == DLK_REDUCE_STD,
                            nullptr,
                            nullptr};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

void find_means(const ReduceBackward& p, const Statistics& to, const axis::Plan& plan, void* stream,
                void* workspace) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const MomentsOp<Acc> op{{}, Acc(1), false, to.a.as<Acc>(), to.b.as<Acc>()};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

}  // namespace dlkern::gpu
