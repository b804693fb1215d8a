// Matrix products by mma.sync, compute capability 8.0 and newer: the kernel. gemm_sm80*.cu
// instantiate it and list the implementations.
//
//   sum[m, n] = sum_k a[m, k] b[k, n], and what ops/epilogue.h makes of it
//
// Operands: float16, bfloat16, float32 as tf32 (rounded to nearest), float64, int8, and float8 of
// both formats in any mixture (widened to float16, exactly). Each lies along k or along its rows
// (8-bit types: along k for speed); copies are 16, 8 or 4 bytes wide as addresses and strides
// allow, and of single elements for any other strides.
// Algorithm: a block computes a tile of y. Tiles of a and b of 64 bytes of k go through shared
// memory in a ring of stages filled by cp.async; fragments come from there by ldmatrix
// (prims/mma.cuh). The sums pass through shared memory, so that neighbouring threads finish
// neighbouring n. Row sums of a (a bias gradient) are products with a column of ones in the blocks
// of the first columns. Scales that change along k: each block of 128 is summed on its own and
// added scaled.
// Bound by the tensor cores for large m, n and k, by memory for thin ones.
// Sums in float32 (float64 for float64, int32 for int8): one chain of instructions of the same
// depth in the order of k from its beginning, whatever the tile. So a row's bits depend neither on
// the other rows nor on the choice of a tile. Long sums for a small y are cut into parts, as many as
// its extents ask for (gemm_parts.cuh), unless bits must not depend on the number of rows.
#pragma once

#include <climits>

#include "cuda/gemm_parts.cuh"
#include "cuda/prims/tile_loader.cuh"
#include "cuda/prims/tile_of.cuh"

namespace dlkern::gpu {

struct MmaArgs {
  Gemm g;
  TileSource a, b;
  int64_t inner;         // innermost dimension of k
  int64_t left;          // batch items are parts of a sum over so many k; or INT64_MAX
  int64_t row_sum_item;  // from item to item of the row sums
  bool row_sums;
  int64_t tiles_m, tiles_n, tiles;  // tiles_m: of an item, or of all groups of rows together
};

// ---- Config ---------------------------------------------------------------------------------

// Warps of 64 x 64, which read shared memory least; of 64 x 32 for tf32, whose fragments take more
// registers to gather.
template <class T>
using MmaLarge = std::conditional_t<std::is_same_v<T, float>, MmaTile<128, 128, 2, 4, 4, 1>,
                                    MmaTile<128, 128, 2, 2, 4, 2>>;
using MmaMedium = MmaTile<64, 64, 2, 2, 4, 3>;
using MmaSmall = MmaTile<32, 32, 2, 2, 8, 4>;
// For few columns or few rows, so that the longer operand is read once: 16-bit types along the rows.
using MmaTall = MmaTile<128, 32, 4, 1, 4, 4>;
using MmaFlat = MmaTile<32, 128, 1, 4, 4, 4>;

struct MmaConfig {
  enum class Tile { kLarge, kMedium, kSmall, kTall, kFlat } tile;
  bool a_along_k, b_along_k;
};

// Along k or along its rows: as the operand lies in memory, where tiles may lie both ways.
inline bool lies_along_k(DType dtype, int64_t row, int64_t depth) {
  return dtype_size(dtype) == 1 || depth == 1 || (row != 1 && std::abs(depth) <= std::abs(row));
}

// The largest tile that is well filled and of which there are enough for the device.
inline MmaConfig pick(const Gemm& g) {
  const int last = g.k.ndim - 1;
  MmaConfig config{MmaConfig::Tile::kSmall,
                   lies_along_k(g.a.dtype, g.a.row, last < 0 ? 0 : g.k.stride[0][last]),
                   lies_along_k(g.b.dtype, g.b.col, last < 0 ? 0 : g.k.stride[1][last])};
  const auto enough = [&](int64_t rows, int64_t columns) {
    const int64_t items = g.groups.along == Groups::Along::kRows ? 1 : g.batch.numel;
    return g.m > rows / 2 && g.n > columns / 2 &&
           ceil_div(g.m, rows) * ceil_div(g.n, columns) * items >= multiprocessor_count();
  };
  const bool registers_for_large = g.a.dtype != DType::kFloat64 && !scales_along_depth(g);
  if (registers_for_large && enough(128, 128)) {
    config.tile = MmaConfig::Tile::kLarge;
  } else if (enough(64, 64)) {
    config.tile = MmaConfig::Tile::kMedium;
  } else if (dtype_size(g.a.dtype) == 2 && !config.a_along_k && !config.b_along_k &&
             std::min(g.m, g.n) <= 32 && g.batch.numel >= multiprocessor_count()) {
    if (g.m > 32) config.tile = MmaConfig::Tile::kTall;
    if (g.n > 32) config.tile = MmaConfig::Tile::kFlat;
  }
  return config;
}

// ---- What a block works on ------------------------------------------------------------------

struct MmaWork {
  int64_t item, m0, m_end, n0, k_begin, k_end;  // nothing to do where m0 >= m_end

  template <class Tile>
  static __device__ __forceinline__ MmaWork of(const MmaArgs& args, int64_t index) {
    const Gemm& g = args.g;
    const TileOf tile(index, args.tiles_m, args.tiles_n);
    MmaWork w{tile.item, tile.m * Tile::kM, g.m, tile.n * Tile::kN, 0, args.inner};
    if (args.left != INT64_MAX) {
      const int64_t left = args.left - w.item * args.inner;
      w.k_end = left < args.inner ? left : args.inner;
    }
    if (g.groups.along == Groups::Along::kDepth) {
      w.k_begin = g.groups.begin(w.item, args.inner);
      w.k_end = g.groups.end(w.item, args.inner);
    }
    if (g.groups.along == Groups::Along::kRows) w.find_group(g, tile.m, Tile::kM);
    return w;
  }

 private:
  // Groups have their tiles one after the other; this is the one that `slot` falls into.
  __device__ void find_group(const Gemm& g, int64_t slot, int rows) {
    int64_t begin = 0, end = 0;
    for (item = 0; item < g.batch.numel; ++item) {
      begin = end;
      const int64_t next = g.groups.end(item, g.m);
      end = next < begin ? begin : next;
      const int64_t tiles = ceil_div(end - begin, rows);
      if (slot < tiles) break;
      slot -= tiles;
    }
    m0 = item < g.batch.numel ? begin + slot * rows : end;
    m_end = end;
  }
};

// Steps along the composed k, each a tile's depth.
template <class T>
struct MmaDepthWalk {
  const MmaArgs& args;
  int64_t begin, end;  // of the innermost dimension
  int64_t k, outer = 0;
  int64_t a = 0, b = 0;  // bytes from k = 0 of the innermost dimension to that of the first

  __device__ __forceinline__ MmaDepthWalk(const MmaArgs& args_, const MmaWork& w)
      : args(args_), begin(w.k_begin), end(w.k_end), k(w.k_begin) {}

  __device__ __forceinline__ int64_t steps() const {
    if (end <= begin || args.g.k.numel == 0) return 0;
    const int64_t once = ceil_div(end - begin, kTileDepth<T>);
    return args.g.k.ndim > 1 ? args.g.k.numel / args.inner * once : once;
  }

  __device__ __forceinline__ void next() {
    k += kTileDepth<T>;
    if (k < end || args.g.k.ndim <= 1) return;
    k = begin;
    outer += args.inner;
    if (outer >= args.g.k.numel) return;
    int64_t from[2];
    args.g.k.offsets(outer, from);
    a = from[0] * static_cast<int>(sizeof(T));
    b = from[1] * static_cast<int>(sizeof(T));
  }
};

// ---- Scales along the depth -----------------------------------------------------------------

// sums += part * scale_a * scale_b for the block of 128 that holds k; part = 0.
template <class Tile, class Sum>
__device__ __forceinline__ void add_scaled(MmaSums<Tile, Sum>& sums, MmaSums<Tile, Sum>& part,
                                           const Gemm& g, const MmaWork& w, int64_t k) {
  const int warp = threadIdx.x / 32, row = lane_index() / 4, col = lane_index() % 4 * 2;
  const int64_t m0 = w.m0 + warp / Tile::kWarpsN * Tile::kWarpM + row;
  const int64_t n0 = w.n0 + warp % Tile::kWarpsN * Tile::kWarpN + col;
  const auto scale = [&](const Scale& s, int64_t r, int64_t extent) {
    return s.data ? s.at(w.item, r < extent ? r : extent - 1, k) : 1.0f;
  };
#pragma unroll
  for (int j = 0; j < Tile::kWarpN / 8; ++j) {
    const float of_columns[2] = {scale(g.scale_b, n0 + 8 * j, g.n),
                                 scale(g.scale_b, n0 + 8 * j + 1, g.n)};
#pragma unroll
    for (int i = 0; i < Tile::kWarpM / 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float of_row = scale(g.scale_a, m0 + 16 * i + e / 2 * 8, g.m);
        sums.c[i][j][e] += part.c[i][j][e] * of_row * of_columns[e % 2];
        part.c[i][j][e] = 0;
      }
    }
  }
}

// ---- The kernel -----------------------------------------------------------------------------

// Finishes the sums of a tile, by way of shared memory: [kM][kN] there, columns XORed with the row
// against bank conflicts.
template <class Tile, class Sum>
__device__ __forceinline__ void finish_tile(const MmaSums<Tile, Sum>& sums, Sum* shared,
                                            const MmaArgs& args, const MmaWork& w) {
  struct alignas(2 * sizeof(Sum)) Pair {
    Sum x, y;
  };
  const auto place = [](int row, int col) { return row * Tile::kN + (col ^ (row % 4 * 8)); };
  sums.for_each_pair([&](int row, int col, Sum x, Sum y) {
    *reinterpret_cast<Pair*>(shared + place(row, col)) = {x, y};
  });
  __syncthreads();
  int64_t at[Gemm::kTensors];
  args.g.batch.offsets(w.item, at);
  const GemmEpilogue<Sum> epilogue{args.g, w.item, at};
  constexpr int kRun = 4, kRunsOfRow = Tile::kN / kRun;
#pragma unroll 1
  for (int i = threadIdx.x; i < Tile::kM * kRunsOfRow; i += Tile::kThreads) {
    const int row = i / kRunsOfRow, col = i % kRunsOfRow * kRun;
    if (w.m0 + row >= w.m_end) break;
    const int64_t left = args.g.n - w.n0 - col;
    if (left <= 0) continue;
    Sum* of_run = shared + place(row, col);
    const auto run = load_vec<kRun>(of_run);
    using Acc = typename GemmEpilogue<Sum>::Acc;
    epilogue.run(w.m0 + row, w.n0 + col, left < kRun ? static_cast<int>(left) : kRun, run.v,
                 reinterpret_cast<Acc*>(of_run));
  }
}

template <class Tile, class Sum>
__device__ __forceinline__ void finish_rows(const MmaRowSums<Tile, Sum>& rows, const MmaArgs& args,
                                            const MmaWork& w) {
  const GemmEpilogue<Sum> epilogue{args.g, w.item, nullptr};
  rows.for_each([&](int row, Sum sum) {
    const int64_t m = w.m0 + row;
    if (m < w.m_end) {
      epilogue.store_row_sum(w.item * args.row_sum_item + m * args.g.row_sum.row, sum);
    }
  });
}

template <class Tile, class T, bool kScaled, class LoaderA, class LoaderB>
__device__ __forceinline__ void gemm_tile(const MmaArgs& args, const MmaWork& w,
                                          unsigned char* shared) {
  using Sum = typename Mma<T>::Sum;
  using SharedA = typename LoaderA::Shared;
  using SharedB = typename LoaderB::Shared;
  const Gemm& g = args.g;
  int64_t at[Gemm::kTensors];
  g.batch.offsets(w.item, at);
  const LoaderA load_a(args.a, at[0] * static_cast<int>(sizeof(T)), w.m0, w.m_end - w.m0);
  const LoaderB load_b(args.b, at[1] * static_cast<int>(sizeof(T)), w.n0, g.n - w.n0);
  const auto stage_a = [&](int stage) { return shared + stage * Tile::kStageBytes; };
  const auto stage_b = [&](int stage) { return stage_a(stage) + Tile::kM * kTileDepthBytes; };

  MmaDepthWalk<T> walk(args, w);
  const int64_t steps = walk.steps();
  int64_t to_load = steps;
  const auto load_next = [&](int stage) {
    if (to_load > 0) {
      load_a.load(stage_a(stage), walk.a + walk.k * args.a.depth, walk.end - walk.k);
      load_b.load(stage_b(stage), walk.b + walk.k * args.b.depth, walk.end - walk.k);
      walk.next();
      --to_load;
    }
    cp_async_commit();  // always: a group for each step
  };

  MmaSums<Tile, Sum> sums;
  MmaRowSums<Tile, Sum> rows;
  [[maybe_unused]] MmaSums<Tile, Sum> part;  // of a block of scales
  const bool with_rows = args.row_sums && w.n0 == 0 && has_first_columns<Tile>();
  for (int stage = 0; stage < Tile::kStages - 1; ++stage) load_next(stage);
  int read = 0, write = Tile::kStages - 1;
  for (int64_t step = 0; step < steps; ++step) {
    cp_async_wait<Tile::kStages - 2>();
    __syncthreads();  // all of this stage is there, and the one before has been read
    load_next(write);
    multiply_stage<Tile, T, SharedA, SharedB>(kScaled ? part : sums, stage_a(read), stage_b(read),
                                              args.a.e5m2, args.b.e5m2);
    if (with_rows) add_row_sums<Tile, T, SharedA>(rows, stage_a(read), args.a.e5m2);
    read = read + 1 < Tile::kStages ? read + 1 : 0;
    write = write + 1 < Tile::kStages ? write + 1 : 0;
    if constexpr (kScaled) {
      constexpr int kSteps = kScaleDepth / kTileDepth<T>;
      if ((step + 1) % kSteps == 0 || step + 1 == steps) {
        add_scaled(sums, part, g, w, step * kTileDepth<T>);
      }
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  if (with_rows) finish_rows(rows, args, w);
  finish_tile(sums, reinterpret_cast<Sum*>(shared), args, w);
}

template <class Tile, class T>
inline constexpr int kSharedBytes =
    std::max<int>(Tile::kStages * Tile::kStageBytes,
                  Tile::kM* Tile::kN* static_cast<int>(sizeof(typename Mma<T>::Sum)));

template <class Tile, class T, bool kAAlongK, bool kBAlongK, bool kScaled>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    gemm_sm80_kernel(const __grid_constant__ MmaArgs args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  for (int64_t i = blockIdx.x; i < args.tiles; i += gridDim.x) {
    const MmaWork w = MmaWork::of<Tile>(args, i);
    if (w.m0 >= w.m_end) continue;
    gemm_tile<Tile, T, kScaled, TileLoader<T, Tile::kM, Tile::kThreads, kAAlongK>,
              TileLoader<T, Tile::kN, Tile::kThreads, kBAlongK>>(args, w, shared);
    __syncthreads();  // before the next tile overwrites the sums
  }
#endif
}

// ---- Launch ---------------------------------------------------------------------------------

// Operand 0 (a) or 1 (b) of g: `row` is its stride along its rows, of which there are `rows`. left:
// see launch_mma().
inline TileSource tile_source(const Gemm& g, int operand, const Matrix& x, int64_t row,
                              int64_t rows, bool along_k, int64_t left) {
  const int size = static_cast<int>(dtype_size(x.dtype)), last = g.k.ndim - 1;
  const int64_t depths = last < 0 ? 1 : g.k.shape[last];
  const int64_t depth = depths == 1 ? 0 : g.k.stride[operand][last];
  if (rows == 1) row = 0;  // addresses of rows that do not exist must be aligned, too
  const bool neighbours = along_k ? depth == 1 || depths == 1 : row == 1 || rows == 1;
  // All strides but the one along lines, and the lengths of lines: a copy that reads less than it
  // writes is one that memory checkers take for a read past the end.
  uint64_t strides = static_cast<uint64_t>(along_k ? row : depth);
  strides |= static_cast<uint64_t>(along_k ? depths : rows);
  if (along_k && left != INT64_MAX) strides |= static_cast<uint64_t>(left);
  for (int d = 0; d < last; ++d) strides |= static_cast<uint64_t>(g.k.stride[operand][d]);
  for (int d = 0; d < g.batch.ndim; ++d) {
    strides |= static_cast<uint64_t>(g.batch.stride[operand][d]);
  }
  const Groups::Along cut = g.groups.along;
  const bool begins_anywhere =
      along_k ? cut == Groups::Along::kDepth : cut == Groups::Along::kRows && operand == 0;
  if (begins_anywhere) strides |= 1;
  return {x.as<const char>(), row * size, depth * size,
          neighbours ? copy_width(x.data, strides * size) : 0, x.dtype == DType::kFloat8E5M2};
}

// g in a batch of parts of a sum over `left` (products_of_parts) or, with INT64_MAX, as it is.
template <class T>
void launch_mma(const Gemm& g, const Launch& launch, int64_t left = INT64_MAX,
                int64_t row_sum_item = 0);

template <class Tile, class T, bool kScaled>
void launch_mma_tile(MmaArgs args, const MmaConfig& config, const Launch& launch) {
  const Gemm& g = args.g;
  const bool grouped = g.groups.along == Groups::Along::kRows;
  args.tiles_m = ceil_div(g.m, Tile::kM) + (grouped ? g.batch.numel : 0);
  args.tiles_n = std::max<int64_t>(ceil_div(g.n, Tile::kN), args.row_sums ? 1 : 0);
  args.tiles = args.tiles_m * args.tiles_n * (grouped ? 1 : g.batch.numel);
  if (args.tiles == 0) return;
  constexpr bool kAlongRows = Tile::kM != Tile::kN;  // only so
  auto* kernel = gemm_sm80_kernel<Tile, T, !kAlongRows, !kAlongRows, kScaled>;
  if constexpr (sizeof(T) > 1 && !kAlongRows) {
    if (!config.a_along_k) {
      kernel = config.b_along_k ? gemm_sm80_kernel<Tile, T, false, true, kScaled>
                                : gemm_sm80_kernel<Tile, T, false, false, kScaled>;
    } else if (!config.b_along_k) {
      kernel = gemm_sm80_kernel<Tile, T, true, false, kScaled>;
    }
  }
  launch_kernel(kernel, static_cast<unsigned>(std::min<int64_t>(args.tiles, INT_MAX)),
                Tile::kThreads, kSharedBytes<Tile, T>, launch.stream, args);
}

// For the files that instantiate launch_mma<T>.
template <class T>
void launch_mma(const Gemm& g, const Launch& launch, int64_t left, int64_t row_sum_item) {
  const MmaConfig config = pick(g);
  const int64_t inner = g.k.ndim == 0 ? g.k.numel : g.k.shape[g.k.ndim - 1];
  const MmaArgs args{g,
                     tile_source(g, 0, g.a, g.a.row, g.m, config.a_along_k, left),
                     tile_source(g, 1, g.b, g.b.col, g.n, config.b_along_k, left),
                     inner,
                     left,
                     row_sum_item,
                     g.row_sum.data != nullptr,
                     0,
                     0,
                     0};
  if constexpr (std::is_same_v<T, Float8>) {
    if (scales_along_depth(g)) {
      if (config.tile == MmaConfig::Tile::kMedium) {
        return launch_mma_tile<MmaMedium, T, true>(args, config, launch);
      }
      return launch_mma_tile<MmaSmall, T, true>(args, config, launch);
    }
  }
  if constexpr (!std::is_same_v<T, double>) {
    if (config.tile == MmaConfig::Tile::kLarge) {
      return launch_mma_tile<MmaLarge<T>, T, false>(args, config, launch);
    }
  }
  if constexpr (sizeof(T) == 2) {
    if (config.tile == MmaConfig::Tile::kTall) {
      return launch_mma_tile<MmaTall, T, false>(args, config, launch);
    }
    if (config.tile == MmaConfig::Tile::kFlat) {
      return launch_mma_tile<MmaFlat, T, false>(args, config, launch);
    }
  }
  if (config.tile == MmaConfig::Tile::kMedium) {
    return launch_mma_tile<MmaMedium, T, false>(args, config, launch);
  }
  launch_mma_tile<MmaSmall, T, false>(args, config, launch);
}

}  // namespace dlkern::gpu
