// Floating operands, and the list of the portable kernels; see gemm_simt.cuh. A long sum for a small
// y is cut into parts that fill the device; their sums are added in order (gemm_parts.cuh). So a
// row's bits depend on the number of rows, unless the product is to be batch-invariant.
#include "cuda/gemm_simt.cuh"

namespace dlkern {
namespace {

using namespace gpu;

void run_simt(const Gemm& g, const Launch& launch) {
  clear_amax(g, launch);
  switch (g.a.dtype) {
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return launch_simt_float8(g, launch);
    case DType::kInt8:
      return launch_simt_int8(g, launch);
    default:
      dispatch_floating(g.a.dtype, [&]<class T>() { launch_simt<T>(SimtArgs(g), launch); });
  }
}

// The parts are a batch of products, whose results lie in the workspace.
void run_simt_split(const Gemm& g, const Launch& launch) {
  clear_amax(g, launch);
  dispatch_floating(g.a.dtype, [&]<class T>() {
    const Parts parts(g);
    SimtArgs args(products_of_parts<Accumulator<T>>(g, parts, launch));
    args.columns = args.g.n = columns_of(g);  // the column of row sums is like the others here
    args.left = g.k.numel;
    launch_simt<T>(args, launch);
    add_parts<Accumulator<T>>(g, launch.workspace, columns_of(g), g.n, parts.count, launch);
  });
}

const char* cannot_split_simt(const Gemm& g) {
  return is_floating(g.a.dtype) ? cannot_split(g) : "8-bit operands";
}

constexpr Impl<Gemm> kGemm[] = {
    {"simt_split_k", cannot_split_simt, split_workspace, run_simt_split},
    {"simt", supports_all, nullptr, run_simt},
};

}  // namespace

void gpu::run_simt_if(const Gemm& g, const int* condition, const Launch& launch) {
  SimtArgs args(g);
  args.condition = condition;
  launch_simt<float>(args, launch);
}

ImplList<Gemm> gemm_simt_impls() { return kGemm; }

}  // namespace dlkern
