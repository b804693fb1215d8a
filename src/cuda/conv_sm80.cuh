// Convolutions by mma.sync, compute capability 8.0 and newer: the kernel, for all directions. conv_sm80.cu
// makes matrices of a problem and lists the implementations; conv_sm80_*.cu instantiate the kernel.
//
//   forward          y[pixel, k]   = bias[k] + sum_(t, c)  x[pixel * stride - pad + t * dilation, c] w[k, t, c]
//   backward_input   dx[pixel, c]  = bias[c] + sum_(t, k)  dy[..., k] w[k, t, c], each residue of the stride alone
//   backward_weight  dw[k, (t, c)] = sum_pixel dy[pixel, k] x[pixel * stride - pad + t * dilation, c]
//
// as sum[m, n] = sum_k a[m, k] b[n, k] with operands of composed indices (conv_sm80.h). Where neighbours
// in memory are channels (NHWC) the tile is [pixel, channel], else [channel, pixel].
// Algorithm: that of gemm_sm80.cuh with its tiles, ring of stages and order of the sum. Copies: a thread
// has one place along the lines of a tile, and meets the places of its lines in shared memory; the two
// say where an element is and whether it is inside of the image. Zeros are filled in, never read.
// Bound by the tensor cores for copies of 16 bytes, by the issue of instructions for copies of an element.
// Sums in float32 (float64 for float64), in the order of k whatever the tile: an image's bits do not
// depend on the batch.
#pragma once

#include "cuda/conv_sm80.h"
#include "cuda/prims/epilogue.cuh"
#include "cuda/prims/mma.cuh"
#include "cuda/prims/sum_parts.cuh"
#include "cuda/prims/tile_of.cuh"

namespace dlkern::gpu {

// ---- Config ---------------------------------------------------------------------------------

// Copies of single elements leave less time for products, and are more quickly had by many warps.
template <class T, bool kWide>
using ConvLargeTile = std::conditional_t<
    !kWide, MmaTile<128, 64, 2, 2, 4, conv_tile_shape(true, false).blocks>,
    std::conditional_t<std::is_same_v<T, float>, MmaTile<128, 128, 2, 4, 4, 1>,
                       MmaTile<128, 128, 2, 2, 4, conv_tile_shape(true, true).blocks>>>;
using ConvMediumTile = MmaTile<64, 64, 2, 2, 4, conv_tile_shape(false, true).blocks>;

// ---- Operands -------------------------------------------------------------------------------

// One thread's share of the copies of an operand's tiles. What load() starts is closed by
// cp_async_commit().
// kWide: all units are of 16 bytes; then there is no branch, and copies mix with what is around them.
template <class T, int kRows, int kThreads, bool kAlongK, bool kWide>
class PlaceLoader {
 public:
  using Shared = SharedTile<T, kRows, kAlongK>;
  static constexpr int kDepth = kTileDepth<T>;
  // Of lines in shared memory: of all rows, or of two tiles along k.
  static constexpr int kPlaces = kAlongK ? kRows : 2 * kDepth;

  // Rows from r0 on, and k up to `end`. first_thread: of those that find the places along k.
  __device__ __forceinline__ PlaceLoader(const ConvOperand& x, int group, int r0, int end,
                                         int first_thread, Place* lines)
      : x_(x),
        data_(reinterpret_cast<const T*>(x.data + group * x.group)),
        end_(end),
        helper_(static_cast<int>(threadIdx.x) - first_thread),
        lines_(lines) {
    const int units = Shared::kLineBytes / x.unit;
    in_line_ = static_cast<int>(threadIdx.x) % units * (x.unit / kSize);
    if constexpr (kAlongK) {
      for (int i = threadIdx.x; i < kRows; i += kThreads) {
        lines[i] = x.rows.place(r0 + i, x.rows.count);
      }
    } else {
      own_ = x.rows.place(r0 + in_line_, x.rows.count);
    }
  }

  // Before a barrier, and the load of the tile at k behind it. Buffers alternate from tile to tile.
  __device__ __forceinline__ void prepare(int k, int buffer) {
    if constexpr (kAlongK) {
      own_ = x_.depth.place(k + in_line_, end_);
    } else if (helper_ >= 0 && helper_ < kDepth) {
      lines_[buffer * kDepth + helper_] = x_.depth.place(k + helper_, end_);
    }
  }

  __device__ __forceinline__ void load(unsigned char* tile, int buffer) const {
    if (kWide || x_.unit == 16) return load_units<16>(tile, buffer);
    if constexpr (kSize <= 8) {
      if (x_.unit == 8) return load_units<8>(tile, buffer);
    }
    if constexpr (kSize <= 4) {
      if (x_.unit == 4) return load_units<4>(tile, buffer);
    }
    if constexpr (kSize == 2) load_units<2>(tile, buffer);
  }

 private:
  static constexpr int kSize = sizeof(T), kLines = kAlongK ? kRows : kDepth;

  template <int kUnit>
  __device__ __forceinline__ void load_units(unsigned char* tile, int buffer) const {
    constexpr int kUnits = Shared::kLineBytes / kUnit, kAtOnce = kThreads / kUnits;
    constexpr int kCount = kLines / kAtOnce, kMost = kUnit < 4 ? 8 : 4;
    constexpr int kBatch = kCount < kMost ? kCount : kMost;
    static_assert(kThreads % kUnits == 0 && kLines % kAtOnce == 0);
    const int byte = threadIdx.x % kUnits * kUnit, line = threadIdx.x / kUnits;
    const Place* lines = lines_ + (kAlongK ? 0 : buffer * kDepth) + line;
#pragma unroll 1
    for (int i = 0; i < kCount; i += kBatch) {
      Place p[kBatch];  // all of them before the first copy, behind which no load moves ahead
#pragma unroll
      for (int j = 0; j < kBatch; ++j) p[j] = lines[(i + j) * kAtOnce];
      T elements[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const bool inside = is_inside(own_, p[j]);
        const T* from = data_ + (own_.offset + p[j].offset);
        if constexpr (kUnit >= 4) {
          cp_async<kUnit>(place_of(tile, line + (i + j) * kAtOnce, byte), from, inside ? kUnit : 0);
        } else {
          elements[j] = inside ? *from : T{};
        }
      }
      if constexpr (kUnit < 4) {
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          *reinterpret_cast<T*>(place_of(tile, line + (i + j) * kAtOnce, byte)) = elements[j];
        }
      }
    }
  }

  static __device__ __forceinline__ unsigned char* place_of(unsigned char* tile, int line,
                                                            int byte) {
    return tile + Shared::chunk(line, byte / 16) + byte % 16;
  }

  __device__ __forceinline__ bool is_inside(const Place& a, const Place& b) const {
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      inside &= static_cast<unsigned>(a.at[d] + b.at[d]) < static_cast<unsigned>(x_.bounds[d]);
    }
    return inside;
  }

  const ConvOperand& x_;
  const T* data_;
  int end_, helper_, in_line_;
  Place* lines_;
  Place own_;  // along the lines
};

// ---- The result -----------------------------------------------------------------------------

// Finishes `count` elements of a row from (m, n) on, y's first at `offset`.
template <int kRun, class Sum>
__device__ __forceinline__ void finish_elements(const ConvResult& r, int group, int m, int n,
                                                int count, int64_t offset, Sum (&v)[kRun]) {
  if (r.c.data) {
    const int64_t of_bias = group * r.c_group + m * r.c.row + n * r.c.col;
    Sum c[kRun];
    load_run(r.c, r.accumulates ? offset : of_bias, count, c);
#pragma unroll
    for (int i = 0; i < kRun; ++i) v[i] += c[i];
  }
  store_run(r.y, offset, count, v);
}

// What a block works on.
struct ConvWork {
  int group, part, m0, n0;
};

// Finishes the sums of a tile, by way of shared memory: [kM][kN] there, columns XORed with the row
// against bank conflicts. offsets: kM + kN of y's.
template <int kRun, class Tile, class Sum>
__device__ __forceinline__ void finish_conv_tile(const Sum* shared, const int* offsets,
                                                 const ConvResult& r, const ConvWork& w) {
  constexpr int kRunsOfRow = Tile::kN / kRun;
  const int64_t first = w.group * r.group + w.part * r.part;
#pragma unroll 1
  for (int i = threadIdx.x; i < Tile::kM * kRunsOfRow; i += Tile::kThreads) {
    const int row = i / kRunsOfRow, col = i % kRunsOfRow * kRun;
    const int left = r.cols.count - w.n0 - col;
    if (w.m0 + row >= r.rows.count) break;
    if (left <= 0) continue;
    auto run = load_vec<kRun>(shared + row * Tile::kN + (col ^ (row % 4 * 8)));
    finish_elements(r, w.group, w.m0 + row, w.n0 + col, left < kRun ? left : kRun,
                    first + offsets[row] + offsets[Tile::kM + col], run.v);
  }
}

template <class Tile, class Sum>
__device__ __forceinline__ void store_conv_tile(const MmaSums<Tile, Sum>& sums, Sum* shared,
                                                int* offsets, const ConvResult& r,
                                                const ConvWork& w) {
  struct alignas(2 * sizeof(Sum)) Pair {
    Sum x, y;
  };
  sums.for_each_pair([&](int row, int col, Sum x, Sum y) {
    *reinterpret_cast<Pair*>(shared + row * Tile::kN + (col ^ (row % 4 * 8))) = {x, y};
  });
  for (int i = threadIdx.x; i < Tile::kM + Tile::kN; i += Tile::kThreads) {
    const bool of_row = i < Tile::kM;
    offsets[i] = of_row ? r.rows.place(w.m0 + i, r.rows.count).offset
                        : r.cols.place(w.n0 + i - Tile::kM, r.cols.count).offset;
  }
  __syncthreads();
  if (r.runs) {
    finish_conv_tile<4, Tile>(shared, offsets, r, w);
  } else {
    finish_conv_tile<1, Tile>(shared, offsets, r, w);
  }
}

// ---- The kernel -----------------------------------------------------------------------------

template <class Tile, class T>
inline constexpr int kConvTileBytes =
    std::max<int>(Tile::kStages * Tile::kStageBytes,
                  Tile::kM* Tile::kN* static_cast<int>(sizeof(typename Mma<T>::Sum)));
// And the places of lines, or offsets of the result.
template <class Tile, class T>
inline constexpr int kConvSharedBytes =
    kConvTileBytes<Tile, T> +
    (std::max(Tile::kM, 2 * kTileDepth<T>) + std::max(Tile::kN, 2 * kTileDepth<T>)) *
        static_cast<int>(sizeof(Place));

template <class Tile, class T, bool kAAlongK, bool kBAlongK, bool kWide>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    conv_sm80_kernel(const __grid_constant__ ConvMmaArgs args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using Sum = typename Mma<T>::Sum;
  using LoaderA = PlaceLoader<T, Tile::kM, Tile::kThreads, kAAlongK, kWide>;
  using LoaderB = PlaceLoader<T, Tile::kN, Tile::kThreads, kBAlongK, kWide>;
  extern __shared__ __align__(128) unsigned char shared[];
  auto* places = reinterpret_cast<Place*>(shared + kConvTileBytes<Tile, T>);

  const TileOf tile(blockIdx.x, args.tiles_m, args.tiles_n);
  const int item = static_cast<int>(tile.item), part = item / args.groups;
  const ConvWork w{item - part * args.groups, part, static_cast<int>(tile.m) * Tile::kM,
                   static_cast<int>(tile.n) * Tile::kN};
  const int begin = part * args.part_depth, left = args.a.depth.count - begin;
  const int end = begin + (left < args.part_depth ? left : args.part_depth);
  const int steps = (end - begin + kTileDepth<T> - 1) / kTileDepth<T>;

  LoaderA load_a(args.a, w.group, w.m0, end, 0, places);
  LoaderB load_b(args.b, w.group, w.n0, end, Tile::kThreads / 2, places + LoaderA::kPlaces);
  const auto stage_a = [&](int stage) { return shared + stage * Tile::kStageBytes; };
  const auto stage_b = [&](int stage) { return stage_a(stage) + Tile::kM * kTileDepthBytes; };
  const auto prepare = [&](int step) {
    load_a.prepare(begin + step * kTileDepth<T>, step % 2);
    load_b.prepare(begin + step * kTileDepth<T>, step % 2);
  };
  // Behind a barrier, with the places prepared. Steps behind the last one are zeros.
  const auto load_tile_a = [&](int step, int stage) { load_a.load(stage_a(stage), step % 2); };
  const auto load_tile_b = [&](int step, int stage) {
    load_b.load(stage_b(stage), step % 2);
    cp_async_commit();
    prepare(step + 1);
  };

  prepare(0);
  for (int stage = 0; stage < Tile::kStages - 1; ++stage) {
    __syncthreads();
    load_tile_a(stage, stage);
    load_tile_b(stage, stage);
  }
  MmaSums<Tile, Sum> sums;
  int read = 0, write = Tile::kStages - 1;
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<Tile::kStages - 2>();
    __syncthreads();  // all of this stage is there, and the one before has been read
#pragma unroll
    for (int i = 0; i < kStageSteps<T>; ++i) {  // copies start among the products
      multiply_step<Tile, T, typename LoaderA::Shared, typename LoaderB::Shared>(
          sums, stage_a(read), stage_b(read), i, false, false);
      if (i == 0) load_tile_a(step + Tile::kStages - 1, write);
      if (i == kStageSteps<T> - 1) load_tile_b(step + Tile::kStages - 1, write);
    }
    read = read + 1 < Tile::kStages ? read + 1 : 0;
    write = write + 1 < Tile::kStages ? write + 1 : 0;
  }
  cp_async_wait<0>();
  __syncthreads();
  store_conv_tile(sums, reinterpret_cast<Sum*>(shared), reinterpret_cast<int*>(places), args.result,
                  w);
#endif
}

// ---- Sums of parts --------------------------------------------------------------------------

template <class Sum>
__global__ void __launch_bounds__(kPartsThreads)
    add_conv_parts_kernel(const Sum* sums, const __grid_constant__ ConvResult r, int64_t count,
                          int parts, PartsShare share) {
  const int64_t i = share.element();
  const bool there = i < count;
  Sum v[1] = {share.sum(there ? sums + i : nullptr, count, parts)};
  if (!there || !share.leads()) return;
  const int64_t row = quotient(i, r.cols.count);
  const int n = static_cast<int>(i - row * r.cols.count);
  const int group = static_cast<int>(quotient(row, r.rows.count));
  const int m = static_cast<int>(row - int64_t{group} * r.rows.count);
  finish_elements(
      r, group, m, n, 1,
      group * r.group + r.rows.place(m, r.rows.count).offset + r.cols.place(n, r.cols.count).offset,
      v);
}

// ---- Launch ---------------------------------------------------------------------------------

template <class Tile, class T, bool kWide>
void launch_conv_tile(ConvMmaArgs args, ConvLines lines, const Launch& launch) {
  args.tiles_m = ceil_div(args.a.rows.count, Tile::kM);
  args.tiles_n = ceil_div(args.b.rows.count, Tile::kN);
  const int64_t tiles = args.tiles_m * args.tiles_n * args.parts * args.groups;
  auto* kernel = conv_sm80_kernel<Tile, T, true, true, kWide>;
  if (!lines.b_along_k) {
    kernel = lines.a_along_k ? conv_sm80_kernel<Tile, T, true, false, kWide>
                             : conv_sm80_kernel<Tile, T, false, false, kWide>;
  }
  launch_kernel(kernel, static_cast<unsigned>(tiles), Tile::kThreads, kConvSharedBytes<Tile, T>,
                launch.stream, args);
}

template <class T>
void launch_conv_mma(const ConvMmaArgs& args, ConvLines lines, bool large, const Launch& launch) {
  if (args.is_wide()) {
    if constexpr (!std::is_same_v<T, double>) {
      if (large) return launch_conv_tile<ConvLargeTile<T, true>, T, true>(args, lines, launch);
    }
    return launch_conv_tile<ConvMediumTile, T, true>(args, lines, launch);
  }
  if constexpr (!std::is_same_v<T, double>) {
    if (large) return launch_conv_tile<ConvLargeTile<T, false>, T, false>(args, lines, launch);
  }
  launch_conv_tile<ConvMediumTile, T, false>(args, lines, launch);
}

template <class T>
void add_conv_parts(const void* sums, const ConvResult& result, int groups, int parts,
                    const Launch& launch) {
  using Sum = typename Mma<T>::Sum;
  const int64_t count = int64_t{groups} * result.rows.count * result.cols.count;
  const PartsShare share(parts);
  launch_kernel(add_conv_parts_kernel<Sum>, share.grid(count), kPartsThreads, 0, launch.stream,
                static_cast<const Sum*>(sums), result, count, parts, share);
}

}  // namespace dlkern::gpu
