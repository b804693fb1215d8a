// Matrix products by mma.sync (gemm_sm80.cuh): the implementations, and the kernels for 16-bit
// operands; gemm_sm80_types.cu has those for other operands.
#include "cuda/gemm.h"

#if !defined(__HIPCC__)

#include "cuda/gemm_sm80.cuh"

namespace dlkern {
namespace gpu {

template void launch_mma<Half>(const Gemm&, const Launch&, int64_t, int64_t);
template void launch_mma<BFloat16>(const Gemm&, const Launch&, int64_t, int64_t);
extern template void launch_mma<float>(const Gemm&, const Launch&, int64_t, int64_t);
extern template void launch_mma<double>(const Gemm&, const Launch&, int64_t, int64_t);
extern template void launch_mma<int8_t>(const Gemm&, const Launch&, int64_t, int64_t);
extern template void launch_mma<Float8>(const Gemm&, const Launch&, int64_t, int64_t);

}  // namespace gpu

namespace {

using namespace gpu;

const char* cannot_multiply(const Gemm& g) {
  if (compute_capability() < 80) return "the GPU's compute capability is below 8.0";
  if (g.a.dtype == DType::kFloat32 && !g.tf32) {
    return "float32 products are wanted in full precision";
  }
  if (g.a.dtype != g.b.dtype && !(is_float8(g.a.dtype) && is_float8(g.b.dtype))) {
    return "the operands differ in dtype";
  }
  if (!is_floating(g.a.dtype) && g.a.dtype != DType::kInt8 && !is_float8(g.a.dtype)) {
    return "no instruction for the operands' dtype";
  }
  if (scales_along_depth(g)) {
    if (!is_float8(g.a.dtype)) return "the scales change along the sum of operands not float8";
    if (g.k.ndim > 1) return "the scales change along a sum over several dimensions";
    if (g.groups.along == Groups::Along::kDepth) return "the scales change along a grouped sum";
  }
  return nullptr;
}

const char* cannot_multiply_parts(const Gemm& g) {
  if (const char* why = cannot_multiply(g)) return why;
  if (!is_floating(g.a.dtype)) return "8-bit operands";
  return cannot_split(g);
}

// Very long sums for a small y, of operands along their rows (weight gradients with few channels): bound
// by memory, and a copy of 16 bytes fetches what a bulk copy would fill up with zeros. Extents that fill
// boxes are left to wgmma.
const char* cannot_sum_long(const Gemm& g) {
  constexpr int64_t kLong = 1 << 15, kMostElements = 8192;
  if (const char* why = cannot_multiply_parts(g)) return why;
  if (dtype_size(g.a.dtype) != 2) return "operands not of 16 bits";
  if (g.is_scaled()) return "the operands have factors";
  if (g.k.numel < kLong) return "the sum is short";
  if (g.m < 1 || g.n < 1) return "y is empty";
  if (g.m >= 64 && g.n >= 64 && compute_capability() == 90) return "wgmma is as fast";
  const int64_t m = ceil_div(g.m, 32) * 32, n = ceil_div(g.n, 32) * 32;
  if (m > kMostElements || n > kMostElements || m * n > kMostElements) return "y is not small";
  if (lies_along_k(g.a.dtype, g.a.row, g.k.stride[0][0]) ||
      lies_along_k(g.b.dtype, g.b.col, g.k.stride[1][0])) {
    return "an operand lies along the sum";
  }
  const int64_t k = g.k.numel;
  return tile_source(g, 0, g.a, g.a.row, g.m, false, k).width == 0 ||
                 tile_source(g, 1, g.b, g.b.col, g.n, false, k).width == 0
             ? "an operand cannot be copied by words"
             : nullptr;
}

template <class T>
void launch_parts(const Gemm& g, const Launch& launch) {
  using Sum = typename Mma<T>::Sum;
  const Parts parts(g);
  Gemm products = products_of_parts<Sum>(g, parts, launch);
  if (g.row_sum.data) {  // the column behind those of y
    products.row_sum = products.y;
    products.row_sum.data = products.y.as<Sum>() + g.n;
  }
  launch_mma<T>(products, launch, g.k.numel, g.m * columns_of(g));
  add_parts<Sum>(g, launch.workspace, columns_of(g), g.n, parts.count, launch);
}

void run_parts(const Gemm& g, const Launch& launch) {
  clear_amax(g, launch);
  dispatch_floating(g.a.dtype, [&]<class T>() { launch_parts<T>(g, launch); });
}

constexpr Impl<Gemm> kLongSums[] = {
    {"mma_sm80_long_sum", cannot_sum_long, split_workspace, run_parts},
};
constexpr Impl<Gemm> kImpls[] = {
    {"mma_sm80_split_k", cannot_multiply_parts, split_workspace, run_parts},
    {"mma_sm80", cannot_multiply, nullptr,
     [](const Gemm& g, const Launch& l) {
       clear_amax(g, l);
       if (g.a.dtype == DType::kInt8) return launch_mma<int8_t>(g, l);
       if (is_float8(g.a.dtype)) return launch_mma<Float8>(g, l);
       dispatch_floating(g.a.dtype, [&]<class T>() { launch_mma<T>(g, l); });
     }},
};

}  // namespace

ImplList<Gemm> gemm_sm80_impls() { return kImpls; }
ImplList<Gemm> gemm_long_sum_impls() { return kLongSums; }

}  // namespace dlkern

#else

namespace dlkern {
ImplList<Gemm> gemm_sm80_impls() { return {}; }
ImplList<Gemm> gemm_long_sum_impls() { return {}; }
}  // namespace dlkern

#endif
