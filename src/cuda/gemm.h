// The matrix products of the GPU backend. Each kind of kernel has files of its own; gemm.cu has the
// portable ones and lists all, best first.
#pragma once

#include "ops/gemm.h"

namespace dlkern {

// mma.sync with cp.async, compute capability 8.0 and newer.
ImplList<Gemm> gemm_sm80_impls();
// wgmma with TMA, compute capability 9.0.
ImplList<Gemm> gemm_sm90_impls();

}  // namespace dlkern
