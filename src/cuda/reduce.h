// How the files of the reductions on a GPU hang together: the lists of implementations are in
// reduce.cu and reduce_backward.cu, what elements are reduced with in the others.
#pragma once

#include "core/call.h"
#include "ops/reduce.h"

namespace dlkern::gpu {

namespace axis {
struct Plan;
}

// One reduction; `workspace` has axis_workspace_bytes(plan, state_bytes(kind, x.dtype)).
void reduce_extremes(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace);
void reduce_indices(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace);
void reduce_products(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace);
void reduce_norms(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace);
void reduce_logsumexp(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace);
void reduce_truths(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace);
void reduce_moments(const Reduce& p, const axis::Plan& plan, void* stream, void* workspace);

// What a gradient needs to know of each result: two numbers in the type that x is computed in, as
// row-major arrays of dy's shape.
struct Statistics {
  Tensor a, b;
};
// a: the number of elements (magnitudes, for a norm) that equal y.
void count_ties(const ReduceBackward& p, const Statistics& to, const axis::Plan& plan, void* stream,
                void* workspace);
// a: the product of the elements that are not 0; b: the number of the others.
void split_products(const ReduceBackward& p, const Statistics& to, const axis::Plan& plan,
                    void* stream, void* workspace);
// a: the first element; b: the mean of the differences from it.
void find_means(const ReduceBackward& p, const Statistics& to, const axis::Plan& plan, void* stream,
                void* workspace);

// The same with four bools as a word in x, and in y where it has as many neighbours, if that is
// possible: what any and all are planned for. p itself for all other kinds.
Reduce in_words(const Reduce& p);

size_t state_bytes(dlk_reduce_kind kind, DType dtype);

// What plan_axes is told as `vector`.
inline bool is_vector_dtype(DType dtype) { return is_floating(dtype) && dtype != DType::kFloat64; }

}  // namespace dlkern::gpu
