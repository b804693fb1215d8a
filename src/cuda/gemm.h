// The matrix products of the GPU backend. Each kind of kernel has files of its own; gemm.cu lists
// all, best first.
#pragma once

#include "ops/gemm.h"

namespace dlkern {

// mma.sync with cp.async, compute capability 8.0 and newer.
ImplList<Gemm> gemm_sm80_impls();
// Those by mma.sync that are bound by memory, ahead of any other kind: very many rows times a small
// matrix, and very long sums for a small result.
ImplList<Gemm> gemm_stream_impls();
ImplList<Gemm> gemm_long_sum_impls();
// wgmma with TMA, compute capability 9.0.
ImplList<Gemm> gemm_sm90_impls();
// Thin products by multiply-adds of any GPU, at the memory's rate.
ImplList<Gemm> gemm_thin_impls();
// Multiply-adds of any GPU, for every problem.
ImplList<Gemm> gemm_simt_impls();

namespace gpu {

// The first of all that takes a product.
const Impl<Gemm>& gemm_impl(const Gemm& g);

// Float32 products by multiply-adds, if *condition (on the device) is not 0.
void run_simt_if(const Gemm& g, const int* condition, const Launch& launch);

// Sets e.amax, if there is one, to 0, in stream order. Every implementation begins with this; the
// epilogue then raises it.
void clear_amax(const Epilogue& e, const Launch& launch);

}  // namespace gpu
}  // namespace dlkern
