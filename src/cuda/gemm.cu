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
// Bound by FMA issue for large m, n and k, by memory for thin ones.
// Sums in float32 (float64 for float64), one chain in the order of k: a row's bits depend neither
// on the other rows nor on the tile that computes it.
#include "ops/gemm.h"

#include <climits>

#include "core/activation_math.h"
#include "cuda/prims/simt_gemm.cuh"

namespace dlkern {
namespace {

using namespace gpu;

struct Args {
  Gemm g;
  int64_t columns;          // n, and one more where row sums are wanted
  int64_t inner, a_k, b_k;  // innermost dimension of k, and the strides along it
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

template <class Acc>
__device__ Acc load_as(const Matrix& t, int64_t at) {
  switch (t.dtype) {
    case DType::kFloat64:
      return static_cast<Acc>(t.as<const double>()[at]);
    case DType::kFloat32:
      return t.as<const float>()[at];
    case DType::kFloat16:
      return static_cast<float>(t.as<const Half>()[at]);
    default:
      return static_cast<float>(t.as<const BFloat16>()[at]);
  }
}

template <class Acc>
__device__ void store_as(const Matrix& t, int64_t at, Acc v) {
  switch (t.dtype) {
    case DType::kFloat64:
      t.as<double>()[at] = v;
      return;
    case DType::kFloat32:
      t.as<float>()[at] = static_cast<float>(v);
      return;
    case DType::kFloat16:
      t.as<Half>()[at] = Half(static_cast<float>(v));
      return;
    default:
      t.as<BFloat16>()[at] = BFloat16(static_cast<float>(v));
  }
}

template <class Acc>
struct GemmEpilogue {
  const Gemm& g;
  int64_t c_at, y_at, pre_at;

  __device__ void operator()(int64_t m, int64_t n, Acc sum) const {
    if (n == g.n) {
      const int64_t at = m * g.row_sum.row;
      store_as(g.row_sum, at, g.add_row_sum ? sum + load_as<Acc>(g.row_sum, at) : sum);
      return;
    }
    Acc v = static_cast<Acc>(g.alpha) * sum;
    if (g.beta != 0) {
      v += static_cast<Acc>(g.beta) * load_as<Acc>(g.c, c_at + m * g.c.row + n * g.c.col);
    }
    if (g.pre.data) store_as(g.pre, pre_at + m * g.pre.row + n * g.pre.col, v);
    ActivationScalars<Acc> scalars;
    scalars.alpha = static_cast<Acc>(g.activation_alpha);
    scalars.threshold = static_cast<Acc>(g.activation_threshold);
    v = activate(g.activation, v, scalars);
    store_as(g.y, y_at + m * g.y.row + n * g.y.col, v);
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
    for (int64_t k = 0; k < g.k.numel; k += args.inner) {
      int64_t at[5], from[2];
      g.batch.offsets(tile.item, at);
      g.k.offsets(k, from);
      const StridedOperand<T, kAAlongK> a{g.a.as<const T>() + at[0] + from[0], g.a.row, args.a_k};
      const WithOnes<T, kBAlongK> b{{g.b.as<const T>() + at[1] + from[1], g.b.col, args.b_k}, g.n};
      simt_accumulate<Tile, Acc>(acc, m0, n0, g.m, args.columns, 0, args.inner, a, b);
    }
    int64_t at[5];  // again: not to be kept in registers all the while
    g.batch.offsets(tile.item, at);
    simt_finish<Tile, Acc>(acc, m0, n0, g.m, args.columns,
                           GemmEpilogue<Acc>{g, at[2], at[3], at[4]});
  }
}

template <class Tile, class T>
void launch_tile(const Gemm& g, const Launch& launch) {
  Args args{g, g.n + (g.row_sum.data ? 1 : 0)};
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
void launch(const Gemm& g, const Launch& launch) {
  const auto enough = [&]<class Tile>(Tile) {
    const int64_t tiles = ceil_div(g.m, Tile::kM) * ceil_div(g.n, Tile::kN) * g.batch.numel;
    return g.m > Tile::kM / 2 && g.n > Tile::kN / 2 && tiles >= multiprocessor_count();
  };
  if constexpr (sizeof(Accumulator<T>) == 4) {
    if (enough(LargeTile{})) return launch_tile<LargeTile, T>(g, launch);
  }
  if (enough(MediumTile{})) return launch_tile<MediumTile, T>(g, launch);
  launch_tile<SmallTile, T>(g, launch);
}

constexpr Impl<Gemm> kGemm[] = {
    {"simt", supports_all, nullptr,
     [](const Gemm& g, const Launch& l) {
       dispatch_floating(g.a.dtype, [&]<class T>() { launch<T>(g, l); });
     }},
};

}  // namespace

template <>
ImplList<Gemm> gpu_impls<Gemm>() {
  return kGemm;
}

}  // namespace dlkern
