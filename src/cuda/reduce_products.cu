// prod and vector_norm over any axes, and what their gradients count (prims/axis_reduce.cuh).
#include "cuda/reduce.h"
#include "cuda/reduce_ops.cuh"

namespace dlkern::gpu {

void reduce_products(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  dispatch_reducible(p.x.dtype, [&]<class T>() {
    const ProdOp<Accumulator<T>> op{{p.y.data, p.y.dtype}};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

void reduce_norms(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  const Result result{p.y.data, p.y.dtype};
  dispatch_floating(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const auto reduce = [&](const auto& op) {
      reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
    };
    if (p.ord == 1 || p.ord == 2) {
      reduce(NormOp<Acc>(result, p.ord == 2));
    } else if (p.ord == 0) {
      reduce(CountOp<Acc>{result, false, true});
    } else {
      reduce(PowersOp<Acc>{result, static_cast<Acc>(p.ord)});
    }
  });
}

void count_ties(const ReduceBackward& p, const Statistics& to, const axis::Plan& plan, void* stream,
                void* workspace) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    const CountOp<Accumulator<T>> op{
        {to.a.data, to.a.dtype}, p.kind == DLK_REDUCE_VECTOR_NORM, false};
    reduce_axes<T>(p.x, p.y, plan, op, stream, workspace);
  });
}

void split_products(const ReduceBackward& p, const Statistics& to, const axis::Plan& plan,
                    void* stream, void* workspace) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const FactorsOp<Acc> op{to.a.as<Acc>(), to.b.as<Acc>()};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

}  // namespace dlkern::gpu
