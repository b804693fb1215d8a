// prod and vector_norm over any axes, and what their gradients count (prims/axis_reduce.cuh).
#include "cuda/reduce.h"
#include "cuda/reduce_ops.cuh"

namespace dlkern::gpu {

namespace {

template <class T>
void count_terms(const Tensor& x, const Tensor& pivot, const Tensor& y, Term term,
                 const axis::Plan& plan, void* stream, void* workspace) {
  const TermsOp<Accumulator<T>> op{{y.data, y.dtype}, term};
  reduce_axes<T>(x, pivot, plan, op, stream, workspace);
}

}  // namespace

void reduce_products(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  dispatch_reducible(p.x.dtype, [&]<class T>() {
    const ProdOp<Accumulator<T>> op{{p.y.data, p.y.dtype}, nullptr};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

void reduce_norms(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    if (p.ord == 0 || p.ord == 1 || p.ord == 2) {
      const Term term = p.ord == 0 ? Term::kNonzero : p.ord == 1 ? Term::kAbs : Term::kSquare;
      count_terms<T>(p.x, Tensor{}, p.y, term, plan, stream, workspace);
    } else {
      const PowersOp<Acc> op{{p.y.data, p.y.dtype}, static_cast<Acc>(p.ord)};
      reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
    }
  });
}

void count_ties(const ReduceBackward& p, const Statistics& to, const axis::Plan& plan, void* stream,
                void* workspace) {
  const Term term = p.kind == DLK_REDUCE_VECTOR_NORM ? Term::kAbsEqual : Term::kEqual;
  dispatch_floating(
      p.x.dtype, [&]<class T>() { count_terms<T>(p.x, p.y, to.a, term, plan, stream, workspace); });
}

void split_products(const ReduceBackward& p, const Statistics& to, const axis::Plan& plan,
                    void* stream, void* workspace) {
  dispatch_floating(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const ProdOp<Acc> op{{to.a.data, to.a.dtype}, to.b.as<Acc>()};
    reduce_axes<T>(p.x, Tensor{}, plan, op, stream, workspace);
  });
}

}  // namespace dlkern::gpu
