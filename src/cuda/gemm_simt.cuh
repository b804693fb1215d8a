// Matrix products of any strides and dtypes on any GPU.
//
//   sum[m, n] = sum_k a[m, k] b[k, n],  then the epilogue of ops/epilogue.h
//
// Layout: each operand is read along whichever of its two dimensions has the smaller stride, so
// that any mixture of row-major, column-major and strided operands is coalesced as far as it can
// be; y is written along n (the host swaps the operands where y is column-major). A reduction over
// several dimensions (summed batches, rows of a strided tensor) is a loop around the innermost one.
// Row sums of a (a bias gradient) come from the same pass: b gets a further column of ones.
// Groups: of rows, the tiles of all groups are counted as one and a block finds its group by
// walking the offsets; of the depth, each tile sums over its group's part.
// Factors that change along k multiply the elements as they are read.
// Algorithm: one shared-memory tile of y per block, multiply-adds from registers
// (cuda/prims/simt_gemm.cuh).
// Bound by FMA issue for large m, n and k, by memory for thin ones.
// Sums in float32 (float64 for float64, int32 for int8), one chain in the order of k: a row's bits
// depend neither on the other rows nor on the tile that computes it. gemm_simt.cu cuts long sums for a
// small y into parts.
#pragma once

#include <climits>

#include "core/float8.h"
#include "cuda/gemm.h"
#include "cuda/gemm_parts.cuh"
#include "cuda/prims/simt_gemm.cuh"

namespace dlkern::gpu {

struct SimtArgs {
  Gemm g;
  int64_t columns = 0;                  // n, and one more where row sums are wanted
  int64_t ones = 0;                     // the column of b that is all ones, if there is one
  int64_t left = INT64_MAX;             // where batch items are parts of a sum: its length
  int64_t inner = 1, a_k = 0, b_k = 0;  // innermost dimension of k, and the strides along it
  int64_t tiles_m = 0, tiles_n = 0;     // of an item, or of all groups of rows
  int64_t tiles = 0;
  const int* condition = nullptr;  // optional: nothing is done where it is 0

  explicit SimtArgs(const Gemm& gemm) : g(gemm), columns(columns_of(gemm)), ones(gemm.n) {
    const int last = g.k.ndim - 1;
    if (last < 0) return;
    inner = g.k.shape[last];
    a_k = g.k.stride[0][last];
    b_k = g.k.stride[1][last];
  }
};

// ---- Operands ------------------------------------------------------------------------------

// Both 8-bit floats: which one is known at run time.
struct AnyFloat8 {};

// The type that products of T are summed in.
template <class T>
struct SimtSumOf {
  using type = Accumulator<T>;
};
template <>
struct SimtSumOf<int8_t> {
  using type = int32_t;
};
template <>
struct SimtSumOf<AnyFloat8> {
  using type = float;
};
template <class T>
using SimtSum = typename SimtSumOf<T>::type;

// How an operand of a Gemm is read: elements (r, k), r being m of a or n of b.
template <class T, bool kAlongK>
struct SimtOperand : StridedOperand<T, kAlongK> {
  __device__ SimtOperand(const Matrix& t, const Scale&, int64_t at, int64_t row, int64_t k)
      : StridedOperand<T, kAlongK>{t.as<const T>() + at, row, k} {}
};

template <bool kAlongK_>
struct SimtOperand<int8_t, kAlongK_> {
  static constexpr bool kAlongK = kAlongK_;
  const int8_t* data;
  int64_t row_stride, k_stride;

  __device__ SimtOperand(const Matrix& t, const Scale&, int64_t at, int64_t row_, int64_t k)
      : data(t.as<const int8_t>() + at), row_stride(row_), k_stride(k) {}
  __device__ int64_t row(int64_t r) const { return r * row_stride; }
  __device__ int64_t col(int64_t k) const { return k * k_stride; }
  __device__ int32_t load(int64_t row, int64_t col) const { return data[row + col]; }
};

template <bool kAlongK_>
struct SimtOperand<AnyFloat8, kAlongK_> {
  static constexpr bool kAlongK = kAlongK_;
  struct Place {
    int64_t element, factor;
  };
  const uint8_t* data;
  int64_t row_stride, k_stride;
  Scale scale;  // without data where nothing is to be applied here
  bool is_e5m2;

  __device__ SimtOperand(const Matrix& t, const Scale& s, int64_t at, int64_t row_, int64_t k)
      : data(t.as<const uint8_t>() + at),
        row_stride(row_),
        k_stride(k),
        scale(s),
        is_e5m2(t.dtype == DType::kFloat8E5M2) {}
  __device__ Place row(int64_t r) const {
    return {r * row_stride, (scale.rows == 1 ? r : r / kScaleDepth) * scale.row};
  }
  __device__ Place col(int64_t k) const { return {k * k_stride, k / kScaleDepth * scale.depth}; }
  __device__ float load(Place row, Place col) const {
    const float v = float8_value(data[row.element + col.element], is_e5m2);
    return scale.data ? v * scale.data[row.factor + col.factor] : v;
  }
};

// b^T with a row of ones after its last one: for floating operands, which alone have row sums.
template <class T, bool kAlongK>
struct SimtOperandB : SimtOperand<T, kAlongK> {
  using Base = SimtOperand<T, kAlongK>;
  static constexpr int64_t kOnes = INT64_MIN;  // no offset of an element
  int64_t ones;                                // the row that is all ones, if there is one

  __device__ SimtOperandB(const Matrix& t, const Scale& s, int64_t at, int64_t row, int64_t k,
                          int64_t ones_)
      : Base(t, s, at, row, k), ones(ones_) {}
  __device__ int64_t row(int64_t r) const { return r == ones ? kOnes : Base::row(r); }
  __device__ Accumulator<T> load(int64_t row, int64_t col) const {
    return row == kOnes ? Accumulator<T>(1) : Base::load(row, col);
  }
};
template <bool kAlongK>
struct SimtOperandB<int8_t, kAlongK> : SimtOperand<int8_t, kAlongK> {
  __device__ SimtOperandB(const Matrix& t, const Scale& s, int64_t at, int64_t row, int64_t k,
                          int64_t)
      : SimtOperand<int8_t, kAlongK>(t, s, at, row, k) {}
};
template <bool kAlongK>
struct SimtOperandB<AnyFloat8, kAlongK> : SimtOperand<AnyFloat8, kAlongK> {
  __device__ SimtOperandB(const Matrix& t, const Scale& s, int64_t at, int64_t row, int64_t k,
                          int64_t)
      : SimtOperand<AnyFloat8, kAlongK>(t, s, at, row, k) {}
};

// ---- The kernel ----------------------------------------------------------------------------

// What a block computes: rows from m0 up to m_end, sums over k_begin .. k_end of the innermost k.
struct SimtWork {
  int64_t item, m0, n0, m_end, k_begin, k_end;

  // False: there is no such tile.
  template <class Tile>
  __device__ bool find(const SimtArgs& args, int64_t index) {
    const Gemm& g = args.g;
    m_end = g.m;
    k_begin = 0;
    k_end = args.inner;
    if (g.groups.along == Groups::Along::kRows) return find_group<Tile>(args, index);
    const TileOf tile(index, args.tiles_m, args.tiles_n);
    item = tile.item;
    m0 = tile.m * Tile::kM;
    n0 = tile.n * Tile::kN;
    if (g.groups.along == Groups::Along::kDepth) {
      k_begin = g.groups.begin(item, args.inner);
      k_end = g.groups.end(item, args.inner);
    } else {
      const int64_t left = args.left - item * args.inner;
      k_end = left < args.inner ? left : args.inner;
    }
    return true;
  }

 private:
  template <class Tile>
  __device__ bool find_group(const SimtArgs& args, int64_t index) {
    const Gemm& g = args.g;
    int64_t tile = index / args.tiles_n, begin = 0;
    n0 = (index - tile * args.tiles_n) * Tile::kN;
    for (item = 0; item < g.batch.numel; ++item) {
      m_end = g.groups.end(item, g.m);
      const int64_t tiles = m_end > begin ? (m_end - begin + Tile::kM - 1) / Tile::kM : 0;
      if (tile < tiles) {
        m0 = begin + tile * Tile::kM;
        return true;
      }
      tile -= tiles;
      begin = m_end;
    }
    return false;
  }
};

template <class Tile, class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    gemm_simt_kernel(SimtArgs args) {
  if (args.condition && *args.condition == 0) return;
  using Sum = SimtSum<T>;
  const Gemm& g = args.g;
  const bool scaled = std::is_same_v<T, AnyFloat8> && scales_along_depth(g);
  for (int64_t i = blockIdx.x; i < args.tiles; i += gridDim.x) {
    SimtWork work;
    if (!work.find<Tile>(args, i)) return;  // nor is there one of a higher number
    SimtSums<Tile, Sum> acc = {};
    for (int64_t k = 0; k < g.k.numel; k += args.inner) {
      int64_t at[Gemm::kTensors], from[2];
      g.batch.offsets(work.item, at);
      g.k.offsets(k, from);
      const SimtOperand<T, kAAlongK> a(g.a, scaled ? g.scale_a.of(work.item) : Scale{},
                                       at[0] + from[0], g.a.row, args.a_k);
      const SimtOperandB<T, kBAlongK> b(g.b, scaled ? g.scale_b.of(work.item) : Scale{},
                                        at[1] + from[1], g.b.col, args.b_k, args.ones);
      simt_accumulate<Tile, Sum>(acc, work.m0, work.n0, work.m_end, args.columns, work.k_begin,
                                 work.k_end, a, b);
    }
    int64_t at[Gemm::kTensors];  // again: not to be kept in registers all the while
    g.batch.offsets(work.item, at);
    simt_finish<Tile, Sum>(acc, work.m0, work.n0, work.m_end, args.columns,
                           GemmEpilogue<Sum>{g, work.item, at});
  }
}

template <class Tile, class T>
void launch_simt_tile(SimtArgs args, const Launch& launch) {
  const Gemm& g = args.g;
  args.tiles_m = ceil_div(g.m, Tile::kM);
  args.tiles_n = ceil_div(args.columns, Tile::kN);
  args.tiles = args.tiles_m * args.tiles_n * g.batch.numel;
  if (g.groups.along == Groups::Along::kRows) {  // each group may end in a tile in part
    args.tiles = std::min(g.m / Tile::kM + g.batch.numel, g.m) * args.tiles_n;
  }
  if (args.tiles == 0) return;
  const bool a = std::abs(args.a_k) <= std::abs(g.a.row);
  const bool b = std::abs(args.b_k) <= std::abs(g.b.col);
  const auto kernel =
      a ? (b ? gemm_simt_kernel<Tile, T, true, true> : gemm_simt_kernel<Tile, T, true, false>)
        : (b ? gemm_simt_kernel<Tile, T, false, true> : gemm_simt_kernel<Tile, T, false, false>);
  launch_kernel(kernel, static_cast<unsigned>(std::min<int64_t>(args.tiles, INT_MAX)),
                Tile::kThreads, 0, launch.stream, args);
}

// The largest tile that is well filled and of which there are enough for the device. The bits do
// not depend on the choice.
template <class T>
void launch_simt(const SimtArgs& args, const Launch& launch) {
  const Gemm& g = args.g;
  const bool by_rows = g.groups.along == Groups::Along::kRows;
  const int64_t items = by_rows ? 1 : g.batch.numel;
  const int64_t rows = by_rows ? ceil_div(g.m, std::max<int64_t>(g.batch.numel, 1)) : g.m;
  const auto enough = [&]<class Tile>(Tile) {
    const int64_t tiles = ceil_div(g.m, Tile::kM) * ceil_div(g.n, Tile::kN) * items;
    return rows > Tile::kM / 2 && g.n > Tile::kN / 2 && tiles >= multiprocessor_count();
  };
  // 8-bit operands have tensor cores almost everywhere: fewer kernels are enough for them.
  if constexpr (sizeof(SimtSum<T>) == 4 && !std::is_same_v<T, int8_t> &&
                !std::is_same_v<T, AnyFloat8>) {
    if (enough(LargeTile{})) return launch_simt_tile<LargeTile, T>(args, launch);
  }
  if (enough(MediumTile{})) return launch_simt_tile<MediumTile, T>(args, launch);
  launch_simt_tile<SmallTile, T>(args, launch);
}

// gemm_simt_8bit.cu
void launch_simt_float8(const Gemm& g, const Launch& launch);
void launch_simt_int8(const Gemm& g, const Launch& launch);

}  // namespace dlkern::gpu
