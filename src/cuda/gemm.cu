// Matrix products of any strides.
//
//   sum[m, n] = sum_k a[m, k] b[k, n]
//   y = activation(alpha * sum + beta * c), the argument of the activation kept on request
//
// Layout: each operand is read along whichever of its two dimensions has the smaller stride, so
// that any mixture of row-major, column-major and strided operands is coalesced as far as it can
// be; y is written along n (the host swaps the operands where y is column-major). A reduction over
// several dimensions (summed batches, rows of a strided tensor) is a loop around the innermost one.
// Row sums of a (a bias gradient) come from the same pass: b gets a further column of ones.
// Algorithm: one shared-memory tile of y per block, FMAs from registers (cuda/prims/simt_gemm.cuh).
// A long sum for a small y (a weight gradient) is cut into parts that fill the device; their sums
// are added in order.
// Bound by FMA issue for large m, n and k, by memory for thin ones.
// Sums in float32 (float64 for float64), one chain in the order of k: a row's bits depend neither
// on the other rows nor on the tile that computes it.
#include "cuda/gemm.h"

#include <climits>
#include <vector>

#include "cuda/gemm_parts.cuh"
#include "cuda/prims/simt_gemm.cuh"

namespace dlkern {
namespace {

using namespace gpu;

struct Args {
  Gemm g;
  int64_t columns;          // n, and one more where row sums are wanted
  int64_t ones;             // the column of b that is all ones, if there is one
  int64_t inner, a_k, b_k;  // innermost dimension of k, and the strides along it
  int64_t left;             // batch items are parts of a sum over so many k; or INT64_MAX
  int64_t tiles_m, tiles_n;
};

// b^T with a row of ones after its last one.
template <class T, bool kAlongK>
struct WithOnes : StridedOperand<T, kAlongK> {
  using Base = StridedOperand<T, kAlongK>;
  static constexpr int64_t kOnes = INT64_MIN;  // no offset of an element
  int64_t rows;

  __device__ int64_t row(int64_t r) const { return r == rows ? kOnes : Base::row(r); }
  __device__ Accumulator<T> load(int64_t row, int64_t col) const {
    return row == kOnes ? Accumulator<T>(1) : Base::load(row, col);
  }
};

template <class Tile, class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks) gemm_kernel(Args args) {
  using Acc = Accumulator<T>;
  const Gemm& g = args.g;
  const int64_t tiles = args.tiles_m * args.tiles_n * g.batch.numel;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const TileOf tile(i, args.tiles_m, args.tiles_n);
    const int64_t m0 = tile.m * Tile::kM, n0 = tile.n * Tile::kN;
    SimtSums<Tile, Acc> acc = {};
    const int64_t left = args.left - tile.item * args.inner;
    const int64_t inner = left < args.inner ? left : args.inner;
    for (int64_t k = 0; k < g.k.numel; k += args.inner) {
      int64_t at[Gemm::kTensors], from[2];
      g.batch.offsets(tile.item, at);
      g.k.offsets(k, from);
      const StridedOperand<T, kAAlongK> a{g.a.as<const T>() + at[0] + from[0], g.a.row, args.a_k};
      const WithOnes<T, kBAlongK> b{{g.b.as<const T>() + at[1] + from[1], g.b.col, args.b_k},
                                    args.ones};
      simt_accumulate<Tile, Acc>(acc, m0, n0, g.m, args.columns, 0, inner, a, b);
    }
    int64_t at[Gemm::kTensors];  // again: not to be kept in registers all the while
    g.batch.offsets(tile.item, at);
    simt_finish<Tile, Acc>(acc, m0, n0, g.m, args.columns, GemmEpilogue<Acc>{g, at});
  }
}

template <class Tile, class T>
void launch_tile(Args args, const Launch& launch) {
  const Gemm& g = args.g;
  const int last = g.k.ndim - 1;
  args.inner = last < 0 ? 1 : g.k.shape[last];
  args.a_k = last < 0 ? 0 : g.k.stride[0][last];
  args.b_k = last < 0 ? 0 : g.k.stride[1][last];
  args.tiles_m = ceil_div(g.m, Tile::kM);
  args.tiles_n = ceil_div(args.columns, Tile::kN);
  const int64_t tiles = args.tiles_m * args.tiles_n * g.batch.numel;
  const bool a = std::abs(args.a_k) <= std::abs(g.a.row);
  const bool b = std::abs(args.b_k) <= std::abs(g.b.col);
  const auto kernel =
      a ? (b ? gemm_kernel<Tile, T, true, true> : gemm_kernel<Tile, T, true, false>)
        : (b ? gemm_kernel<Tile, T, false, true> : gemm_kernel<Tile, T, false, false>);
  launch_kernel(kernel, static_cast<unsigned>(std::min<int64_t>(tiles, INT_MAX)), Tile::kThreads, 0,
                launch.stream, args);
}

// The largest tile that is well filled and of which there are enough for the device. The bits do
// not depend on the choice.
template <class T>
void launch_products(const Args& args, const Launch& launch) {
  const Gemm& g = args.g;
  const auto enough = [&]<class Tile>(Tile) {
    const int64_t tiles = ceil_div(g.m, Tile::kM) * ceil_div(g.n, Tile::kN) * g.batch.numel;
    return g.m > Tile::kM / 2 && g.n > Tile::kN / 2 && tiles >= multiprocessor_count();
  };
  if constexpr (sizeof(Accumulator<T>) == 4) {
    if (enough(LargeTile{})) return launch_tile<LargeTile, T>(args, launch);
  }
  if (enough(MediumTile{})) return launch_tile<MediumTile, T>(args, launch);
  launch_tile<SmallTile, T>(args, launch);
}

template <class T>
void launch_simt(const Gemm& g, const Launch& launch) {
  launch_products<T>({g, columns_of(g), g.n, 0, 0, 0, INT64_MAX, 0, 0}, launch);
}

// ---- A long sum in parts -------------------------------------------------------------------

// The parts are a batch of products, whose results lie in the workspace.
template <class T>
void launch_split(const Gemm& g, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Parts parts(g);
  Gemm products = products_of_parts<Acc>(g, parts, launch);
  products.n = columns_of(g);
  launch_products<T>({products, products.n, g.n, 0, 0, 0, g.k.numel, 0, 0}, launch);
  add_parts<Acc>(g, parts, launch);
}

constexpr Impl<Gemm> kGemm[] = {
    {"simt_split_k", cannot_split, split_workspace,
     [](const Gemm& g, const Launch& l) {
       dispatch_floating(g.a.dtype, [&]<class T>() { launch_split<T>(g, l); });
     }},
    {"simt", supports_all, nullptr,
     [](const Gemm& g, const Launch& l) {
       dispatch_floating(g.a.dtype, [&]<class T>() { launch_simt<T>(g, l); });
     }},
};

}  // namespace

template <>
ImplList<Gemm> gpu_impls<Gemm>() {
  static const std::vector<Impl<Gemm>> all = [] {
    std::vector<Impl<Gemm>> impls;
    for (const ImplList<Gemm> kind : {gemm_sm80_impls(), ImplList<Gemm>(kGemm)}) {
      impls.insert(impls.end(), kind.begin(), kind.end());
    }
    return impls;
  }();
  return all;
}

}  // namespace dlkern
