// Products of tiles in shared memory by mma.sync (compute capability 8.0 and newer): how a tile
// lies there, a warp's fragments of it, and the product of a stage.
//
// A tile of an operand is kRows x 64 bytes of k, rows being m of a or n of b. It lies in lines,
// along k or along r as the operand does in memory, in chunks of 16 bytes whose place within the
// line is XORed with the line, so that neither copies nor fragments have bank conflicts. Tiles of
// 8-bit types lie along k always.
//
// A fragment is what one product takes of 16 rows: words v[4],
//     of a:  v[0], v[1]  rows g and g + 8;  v[2], v[3]  the same rows, further along k
//     of b:  v[0], v[2]  rows g and g + 8;  v[1], v[3]  the same rows, further along k
// The k of a fragment need not come in order, as long as those of a and b come in the same: for
// float64 and float8 they do not.
#pragma once

#include "cuda/prims/gpu.h"
#include "cuda/prims/ptx.cuh"

namespace dlkern::gpu {

// A float8 of either format: which one is known at run time. Its products are those of float16,
// which holds all values of both formats.
struct Float8 {
  uint8_t bits;
};

inline constexpr int kTileDepthBytes = 64;
template <class T>
inline constexpr int kTileDepth = kTileDepthBytes / static_cast<int>(sizeof(T));

// A block computes kM x kN elements, each of its kWarpsM x kWarpsN warps a part of them. kStages
// tiles of each operand are in shared memory or on their way to it.
template <int kM_, int kN_, int kWarpsM_, int kWarpsN_, int kStages_, int kMinBlocks_>
struct MmaTile {
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_, kMinBlocks = kMinBlocks_;
  static constexpr int kWarpsN = kWarpsN_, kThreads = kWarpsM_ * kWarpsN_ * 32;
  static constexpr int kWarpM = kM / kWarpsM_, kWarpN = kN / kWarpsN_;  // of a warp
  static constexpr int kStageBytes = (kM + kN) * kTileDepthBytes;
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0);
};

// ---- How a tile lies in shared memory -------------------------------------------------------

template <class T, int kRows, bool kAlongK_>
struct SharedTile {
  static constexpr bool kAlongK = kAlongK_;
  static constexpr int kSize = sizeof(T);
  static constexpr int kLineBytes = kAlongK ? kTileDepthBytes : kRows * kSize;
  static constexpr int kChunks = kLineBytes / 16;  // of a line
  // Lines that share a place in the banks, and the lines (of 4-byte types: two) after which the
  // chunks of a fragment move on.
  static constexpr int kLinesPerBanks = kChunks < 8 ? 8 / kChunks : 1;
  static constexpr int kSpread = !kAlongK && kSize == 4 ? 2 : 1;
  static constexpr int kMask = (kChunks < 8 ? kChunks : 8) - 1;

  // Offset in bytes.
  static __device__ __forceinline__ int chunk(int line, int i) {
    return line * kLineBytes + (i ^ (line * kSpread / kLinesPerBanks & kMask)) * 16;
  }
  static __device__ __forceinline__ int element(int r, int k) {
    const int in_line = (kAlongK ? k : r) * kSize;
    return chunk(kAlongK ? r : k, in_line / 16) + in_line % 16;
  }
};

// ---- Fragments ------------------------------------------------------------------------------

template <class T>
using MmaWord = std::conditional_t<std::is_same_v<T, double>, double, uint32_t>;
template <class T>
using Fragment = MmaWord<T>[4];
// Bytes of k in a fragment.
template <class T>
inline constexpr int kFragmentBytes = 32;
template <>
inline constexpr int kFragmentBytes<double> = 64;
template <>
inline constexpr int kFragmentBytes<Float8> = 16;

__device__ __forceinline__ int lane_index() { return threadIdx.x % 32; }

// Two float8, in the upper bytes of 16-bit halves, as float16: exactly, NaN and infinity too.
__device__ __forceinline__ uint32_t float8x2_to_f16x2(uint32_t x, bool e5m2) {
  if (e5m2) return x;  // the upper byte of a float16
  const uint32_t magnitude = x & 0x7f007f00u;
  // e4m3 has an exponent bias of 7 in place of 15: 2^8 puts that right, for subnormals too.
  const uint32_t value = multiply_f16x2((x & 0x80008000u) | magnitude >> 1, 0x5c005c00u);
  const uint32_t is_nan = (magnitude + 0x01000100u) & 0x80008000u;  // 0x7f alone carries
  return value | (is_nan - (is_nan >> 6));
}

// The fragment of rows r0 to r0 + 15 of a tile, the step-th along k. In one of b the words 1 and 2 change
// places: an instruction takes 8 of its rows, whose words have to be neighbours among the registers.
template <class T, class Shared, bool kOfB>
__device__ __forceinline__ void load_fragment(Fragment<T>& v, const unsigned char* tile, int r0,
                                              int step, bool e5m2) {
  constexpr int kNextRow = kOfB ? 2 : 1, kNextDepth = 3 - kNextRow;  // words
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
  // Of the 8 x 8 matrices, which are the words: this lane's row, and whose half of the depth.
  const int matrix_row = lane / (8 * kNextRow) % 2 * 8 + lane % 8;
  const int half = lane / (8 * kNextDepth) % 2;
  if constexpr (std::is_same_v<T, Float8>) {
    uint32_t w[2];  // k = 4 t to 4 t + 3: the first two are one pair, the last two the other
    ldmatrix_x2(w, tile + Shared::chunk(r0 + lane % 16, step));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      v[i * kNextRow] = float8x2_to_f16x2(__byte_perm(w[i], 0, 0x1404), e5m2);
      v[i * kNextRow + kNextDepth] = float8x2_to_f16x2(__byte_perm(w[i], 0, 0x3424), e5m2);
    }
  } else if constexpr (std::is_same_v<T, double> && Shared::kAlongK) {
    // k = 2 t and 2 t + 1, so that one access of 16 bytes has both.
    const double2 low = *reinterpret_cast<const double2*>(tile + Shared::chunk(r0 + g, t));
    const double2 high = *reinterpret_cast<const double2*>(tile + Shared::chunk(r0 + g + 8, t));
    v[0] = low.x, v[kNextRow] = high.x, v[kNextDepth] = low.y, v[3] = high.y;
  } else if constexpr (Shared::kAlongK) {
    ldmatrix_x4(v, tile + Shared::chunk(r0 + matrix_row, 2 * step + half));
  } else if constexpr (sizeof(T) == 2) {
    const int k = 16 * step + half * 8 + lane % 8;
    ldmatrix_x4_trans(v, tile + Shared::chunk(k, (r0 + matrix_row) / 8));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int second = i / kNextDepth % 2;
      const int k = std::is_same_v<T, double> ? 2 * t + second : 8 * step + second * 4 + t;
      const int at = Shared::element(r0 + g + i / kNextRow % 2 * 8, k);
      v[i] = *reinterpret_cast<const MmaWord<T>*>(tile + at);
    }
  }
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = round_to_tf32(v[i]);
  }
}

// The product of fragments, c += a b for the rows of a and 8 columns of b, whose words are b0 and
// b1; the type of the sums; and a word of ones.
template <class T>
struct Mma {  // float16; float8 as float16
  using Sum = float;
  static constexpr uint32_t kOne = 0x3c003c00u;
  static __device__ __forceinline__ void product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
    mma_m16n8k16_f16(c, a, b0, b1);
  }
};

template <>
struct Mma<BFloat16> {
  using Sum = float;
  static constexpr uint32_t kOne = 0x3f803f80u;
  static __device__ __forceinline__ void product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
    mma_m16n8k16_bf16(c, a, b0, b1);
  }
};

template <>
struct Mma<float> {  // as tf32
  using Sum = float;
  static constexpr uint32_t kOne = 0x3f800000u;
  static __device__ __forceinline__ void product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
    mma_m16n8k8_tf32(c, a, b0, b1);
  }
};

template <>
struct Mma<int8_t> {
  using Sum = int32_t;
  static constexpr uint32_t kOne = 0x01010101u;
  static __device__ __forceinline__ void product(int32_t (&c)[4], const uint32_t (&a)[4],
                                                 uint32_t b0, uint32_t b1) {
    mma_m16n8k32_s8(c, a, b0, b1);
  }
};

template <>
struct Mma<double> {
  using Sum = double;
  static constexpr double kOne = 1;
  static __device__ __forceinline__ void product(double (&c)[4], const double (&a)[4], double b0,
                                                 double b1) {
    mma_m8n8k4_f64(c[0], c[1], a[0], b0);
    mma_m8n8k4_f64(c[2], c[3], a[1], b0);
    mma_m8n8k4_f64(c[0], c[1], a[2], b1);
    mma_m8n8k4_f64(c[2], c[3], a[3], b1);
  }
};

// ---- The product of a stage -----------------------------------------------------------------

// A warp's sums: 16 rows x 8 columns in each c[4].
template <class Tile, class Sum>
struct MmaSums {
  static constexpr int kRows = Tile::kWarpM / 16, kCols = Tile::kWarpN / 8;
  Sum c[kRows][kCols][4] = {};

  // visit(row, column, sum, sum of the next column), both counted within the block's tile.
  template <class Visit>
  __device__ __forceinline__ void for_each_pair(Visit&& visit) const {
    const int warp = threadIdx.x / 32, g = lane_index() / 4, t = lane_index() % 4;
    const int row = warp / Tile::kWarpsN * Tile::kWarpM + g;
    const int col = warp % Tile::kWarpsN * Tile::kWarpN + 2 * t;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        visit(row + 16 * i, col + 8 * j, c[i][j][0], c[i][j][1]);
        visit(row + 16 * i + 8, col + 8 * j, c[i][j][2], c[i][j][3]);
      }
    }
  }
};

// Sums of the rows of a, as products with a column of ones: row g in c[0], row g + 8 in c[2].
template <class Tile, class Sum>
struct MmaRowSums {
  Sum c[Tile::kWarpM / 16][4] = {};

  // visit(row, sum) once for each row of the block's tile, from the warps that hold its first
  // columns.
  template <class Visit>
  __device__ __forceinline__ void for_each(Visit&& visit) const {
    if (lane_index() % 4 != 0) return;
    const int row = threadIdx.x / 32 / Tile::kWarpsN * Tile::kWarpM + lane_index() / 4;
#pragma unroll
    for (int i = 0; i < Tile::kWarpM / 16; ++i) {
      visit(row + 16 * i, c[i][0]);
      visit(row + 16 * i + 8, c[i][2]);
    }
  }
};

// Whether this warp has the first columns of the block's tile: one of those that sum rows.
template <class Tile>
__device__ __forceinline__ bool has_first_columns() {
  return threadIdx.x / 32 % Tile::kWarpsN == 0;
}

// sums += a b^T for one fragment's depth of a stage's tiles.
template <class Tile, class T, class SharedA, class SharedB, class Sum>
__device__ __forceinline__ void multiply_step(MmaSums<Tile, Sum>& sums, const unsigned char* a,
                                              const unsigned char* b, int step, bool a_is_e5m2,
                                              bool b_is_e5m2) {
  const int warp = threadIdx.x / 32;
  const int r0 = warp / Tile::kWarpsN * Tile::kWarpM, c0 = warp % Tile::kWarpsN * Tile::kWarpN;
  Fragment<T> y[Tile::kWarpN / 16];
#pragma unroll
  for (int j = 0; j < Tile::kWarpN / 16; ++j) {
    load_fragment<T, SharedB, true>(y[j], b, c0 + 16 * j, step, b_is_e5m2);
  }
#pragma unroll
  for (int i = 0; i < Tile::kWarpM / 16; ++i) {
    Fragment<T> x;
    load_fragment<T, SharedA, false>(x, a, r0 + 16 * i, step, a_is_e5m2);
#pragma unroll
    for (int j = 0; j < Tile::kWarpN / 8; ++j) {
      Mma<T>::product(sums.c[i][j], x, y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
  }
}

// Those of all the depth, in the order of k.
template <class T>
inline constexpr int kStageSteps = kTileDepthBytes / kFragmentBytes<T>;
template <class Tile, class T, class SharedA, class SharedB, class Sum>
__device__ __forceinline__ void multiply_stage(MmaSums<Tile, Sum>& sums, const unsigned char* a,
                                               const unsigned char* b, bool a_is_e5m2,
                                               bool b_is_e5m2) {
#pragma unroll
  for (int step = 0; step < kStageSteps<T>; ++step) {
    multiply_step<Tile, T, SharedA, SharedB>(sums, a, b, step, a_is_e5m2, b_is_e5m2);
  }
}

// rows += the sums of a's rows. Fragments are loaded again, so as not to be kept for this.
template <class Tile, class T, class SharedA, class Sum>
__device__ __forceinline__ void add_row_sums(MmaRowSums<Tile, Sum>& rows, const unsigned char* a,
                                             bool a_is_e5m2) {
  const int r0 = threadIdx.x / 32 / Tile::kWarpsN * Tile::kWarpM;
#pragma unroll
  for (int step = 0; step < kStageSteps<T>; ++step) {
#pragma unroll
    for (int i = 0; i < Tile::kWarpM / 16; ++i) {
      Fragment<T> x;
      load_fragment<T, SharedA, false>(x, a, r0 + 16 * i, step, a_is_e5m2);
      Mma<T>::product(rows.c[i], x, Mma<T>::kOne, Mma<T>::kOne);
    }
  }
}

}  // namespace dlkern::gpu
