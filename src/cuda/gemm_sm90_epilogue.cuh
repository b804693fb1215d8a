// The Hopper matrix products: from sums in registers to y.
#pragma once

#include "core/fast_math.h"
#include "core/int8.h"
#include "cuda/gemm_sm90_tiles.cuh"
#include "cuda/prims/epilogue.cuh"
#include "cuda/prims/ptx.cuh"

namespace dlkern::gpu {

// A consumer's sums: [instruction][register], see wgmma.cuh. Register 4 j + i of a thread holds row
// lane / 4 + 8 (i / 2) of its warp's 16 and column 8 j + lane % 4 * 2 + i % 2.
template <class T>
using Sm90Sums = MmaSum<T::kMma>[T::kMmas][T::C.n / 2];

__device__ constexpr int fragment_row(int i) { return i / 2 % 2 * 8; }
__device__ constexpr int fragment_col(int i) { return i / 4 * 8 + i % 2; }

// ---- Slabs: what leaves, in shared memory ------------------------------------------------------

// Two elements of 16 bits; which type they are is known at run time.
__device__ __forceinline__ uint32_t pack_pair(bool bfloat, float low, float high) {
  return bfloat ? pack_bfloat16(low, high) : pack_float16(low, high);
}

// Place of 16 bytes in a swizzled slab.
__device__ __forceinline__ uint8_t* slab_at(uint8_t* slab, int row, int col16) {
  return slab + row * kSwizzleBytes + ((col16 ^ (row & 7)) << 4);
}

// Of 16 columns of a slab, from `first` on: what this lane gives the address of to ldmatrix_x4.
__device__ __forceinline__ uint8_t* matrices_at(uint8_t* slab, int first) {
  const int lane = threadIdx.x % 32;
  return slab_at(slab, lane % 16, first / 8 + lane / 16);
}

// A chunk into a slab, at column `first` there: this warp's 16 rows. Transposed, a slab's rows are
// the columns, and its 128 bytes the 64 rows of all warps.
template <int kChunk, bool kTransposed>
__device__ __forceinline__ void chunk_to_slab16(const float (&v)[kChunk / 2], bool bfloat,
                                                uint8_t* slab, int first) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int half = lane / 8 % 2, next = lane / 16;  // this lane has the address of a row of these
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    const int col = first + 16 * j + 8 * next;
    uint8_t* place = kTransposed ? slab_at(slab, col + lane % 8, warp * 2 + half)
                                 : slab_at(slab, half * 8 + lane % 8, col / 8);
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = pack_pair(bfloat, v[8 * j + 2 * i], v[8 * j + 2 * i + 1]);
    stmatrix_x4<kTransposed>(place, r[0], r[1], r[2], r[3]);
  }
}

// The same of 8-bit numbers: a slab's rows are 128 columns.
__device__ __forceinline__ uint16_t pack_bytes(DType dtype, float low, float high) {
  if (dtype == DType::kFloat8E4M3) return pack_float8_e4m3(low, high);
  if (dtype == DType::kFloat8E5M2) return pack_float8_e5m2(low, high);
  const auto byte = [](float v) { return static_cast<uint32_t>(uint8_t(Int8(v).value)); };
  return static_cast<uint16_t>(byte(low) | byte(high) << 8);
}
template <int kChunk>
__device__ __forceinline__ void chunk_to_slab8(const float (&v)[kChunk / 2], DType dtype,
                                               uint8_t* slab, int first) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kChunk / 2; i += 2) {
    const int row = lane / 4 + fragment_row(i), col = first + lane % 4 * 2 + fragment_col(i);
    *reinterpret_cast<uint16_t*>(slab_at(slab, row, col / 16) + col % 16) =
        pack_bytes(dtype, v[i], v[i + 1]);
  }
}

// The same for 4 bytes, a chunk being a slab. Transposed: two boxes of kChunk rows and 32 columns.
template <int kChunk, bool kTransposed>
__device__ __forceinline__ void chunk_to_slab32(const float (&v)[kChunk / 2], uint8_t* slab) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int i = 0; i < kChunk / 2; i += 2) {
    const int row = lane / 4 + fragment_row(i), col = lane % 4 * 2 + fragment_col(i);
    if constexpr (kTransposed) {
      uint8_t* box = slab + warp / 2 * (kChunk * kSwizzleBytes);
      const int along = warp % 2 * 16 + row;
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        uint8_t* place = slab_at(box, col + next, along / 4) + along % 4 * 4;
        *reinterpret_cast<float*>(place) = v[i + next];
      }
    } else {
      uint8_t* place = slab_at(slab, row, col / 4) + col % 4 * 4;
      *reinterpret_cast<float2*>(place) = make_float2(v[i], v[i + 1]);
    }
  }
}

// ---- Sums in registers -------------------------------------------------------------------------

// A sum as the epilogue has it: int32 ones converted, or their bits where those are wanted.
__device__ __forceinline__ float from_sum(float sum, bool) { return sum; }
__device__ __forceinline__ float from_sum(int32_t sum, bool bits) {
  float converted;  // volatile: or all sums would be converted, and kept, before the first is used
  asm volatile("cvt.rn.f32.s32 %0, %1;" : "=f"(converted) : "r"(sum));
  return bits ? __int_as_float(sum) : converted;
}
__device__ __forceinline__ void to_sum(float v, float& sum) { sum = v; }
__device__ __forceinline__ void to_sum(float v, int32_t& sum) { sum = __float_as_int(v); }

// The usual activations within 2^-13, which y of 16 bits does not show: as few instructions as can be,
// for there are up to 128 sums in each thread. NaN stays NaN, and what is small in a tail stays right
// nearly down to the smallest normal number.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// So far out that the result is 0: infinity times 0 would be NaN.
__device__ __forceinline__ float above(float low, float x) { return x < low ? low : x; }

template <int kCount>
__device__ __forceinline__ void quick_activation(dlk_activation kind, float (&v)[kCount]) {
  if (kind == DLK_ACTIVATION_RELU) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = v[i] <= 0 ? 0.0f : v[i];
  } else if (kind == DLK_ACTIVATION_SILU) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = above(-110.0f, v[i]);
      v[i] = x * reciprocal_approx(1.0f + exp2_approx(x * -1.44269504f));
    }
  } else if (kind == DLK_ACTIVATION_GELU_TANH) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {  // x sigmoid(2 u), 2 u log2(e) = x (2.302 + 0.1029 x^2)
      const float x = above(-110.0f, v[i]);
      const float t = x * fmaf(x * x, -0.102943240f, -2.30220819f);
      v[i] = x * reciprocal_approx(1.0f + exp2_approx(t));
    }
  } else {  // gelu, its tail as in core/fast_math.h with fewer terms
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = above(-14.0f, v[i]), a = fminf(fabsf(x), 14.0f);
      const float t = reciprocal_approx(fmaf(a, 0.4f, 1.0f));
      float p = fmaf(t, -0.0829570666f, 0.139608204f);
      p = fmaf(p, t, 0.124403648f);
      p = fmaf(p, t, 0.159173980f);
      p = fmaf(p, t, 0.159728557f);
      const float tail = p * t * exp2_approx(a * a * -0.721347520f);
      v[i] = x * (x < 0 ? tail : 1.0f - tail);
    }
  }
}

// ---- One consumer's way out --------------------------------------------------------------------

// Chunk by chunk: 64 rows and kChunk columns, of which each warp has 16 rows. A loop, though
// registers must then be chosen at run time: straight code for all chunks takes longer to come from
// memory than to run. Warps do not wait for each other, but for transposed tiles, whose slabs have
// rows of all of them.
template <class T>
class Sm90Output {
  static constexpr int kChunks = T::C.n / T::kChunk;  // beside each other
  static constexpr bool kWarpSlabs = !T::C.cluster_k;
  static constexpr bool kIsConv =
      T::kOperands == Sm90Operands::kColumnsA && element_bytes(T::kMma) > 1 && T::C.planes == 1;
  // Slabs of a warp, for all rows of a tile's columns and then for those below them.
  static constexpr int kSlabsBeside = T::C.n / T::kSlabColumns16;
  static constexpr int kSlabsOfTile = T::kMmas * kSlabsBeside;
  static constexpr int kAhead = 2;  // slabs whose residual is on its way

 public:
  // Whatever is not straight is for finish_fused().
  static constexpr bool kFuses = kIsConv && element_bytes(T::kMma) == 2 && !T::C.full;

  __device__ Sm90Output(const typename T::Args& args, const CUtensorMap& map_y,
                        const Sm90Shared<T>& shared, int consumer)
      : args_(args),
        map_y_(map_y),
        consumer_(consumer),
        features_(args.features),
        alpha_(args.alpha),
        beta_(args.beta) {
    lane_ = threadIdx.x % 32;
    warp_ = warp_uniform(threadIdx.x / 32 % 4);
    slabs_ = shared.slabs + consumer * T::kSlabs * T::kSlab;
    if (!is_by_channel() && (kWarpSlabs || !args.transposed)) slabs_ += warp_ * (T::kSlab / 4);
    columns_ = shared.columns + consumer * T::kVectors * T::C.n;
    first_row_ = T::C.ping_pong ? 0 : consumer * T::kConsumerRows;
  }

  // Before the sums are there. What is fetched is on its way from here on.
  __device__ void begin(const Sm90Tile& t) {
    map_item(args_.y, t.index, at_y_);
    at_y_[2] += t.part;
    asm volatile("" : "+r"(at_y_[2]), "+r"(at_y_[3]));  // not to be computed again for every store
    if (features_ & kBias) fetch_bias(t);
    if constexpr (T::kVectors == 2) {
      if (features_ & (kRowScales | kColScales)) fetch_scales(t);
    }
    if constexpr (kFuses) {
      if (features_ & kFactors) fetch_factors(t);
      if (features_ & kPieces) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) fetch_pieces(t, first_row_, i, i);
      }
    }
  }

  // Once the sums are there: what was fetched for the columns goes where all threads find it.
  __device__ void sums_ready() {
    if (!(features_ & (kBias | kRowScales | kColScales))) return;
    sync();  // the previous tile's has been used
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = i * 128 + threadIdx.x % 128;
      if (T::C.n % 128 != 0 && col >= T::C.n) continue;
      columns_[col] = as_float(args_.bias.dtype, bias_[i]);
      if constexpr (T::kVectors == 2) columns_[T::C.n + col] = col_scale_[i];
    }
    sync();
  }

  // The sums of a chunk.
  __device__ __forceinline__ bool take(const Sm90Sums<T>& sums, int chunk,
                                       float (&v)[T::kChunk / 2]) const {
    with_constant<0, T::kMmas * kChunks>(chunk, [&]<int kNumber>() {
      const auto* from = sums[kNumber / kChunks] + kNumber % kChunks * (T::kChunk / 2);
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) v[i] = from_sum(from[i], is_raw());
    });
    return true;
  }

  __device__ bool is_straight(const Sm90Tile& t) const {
    const bool whole = !T::C.full || args_.groups.along == Groups::Along::kNone ||
                       t.m + T::C.m <= t.m_end;  // a box may not reach into another group's rows
    return !T::kElements && whole && (features_ & kStraight);
  }

  // The same as finish() below for a convolution's epilogues of 16 bits: by slabs, with a residual two
  // slabs ahead. Half a slab at a time: sums keep their registers, and copies of more of them would
  // not leave enough.
  __device__ __forceinline__ void finish_fused(const Sm90Tile& t, int first_row,
                                               const Sm90Sums<T>& sums) {
    constexpr int kColumns = T::kSlabColumns16 / 2, kHalvesBeside = 2 * kSlabsBeside;
    // Where a slab is beyond the tile's end, so is the one that is fetched with it.
    static_assert(T::kMmas == 1 || kAhead % kSlabsBeside == 0);
#pragma unroll 1
    for (int number = 0; number < kSlabsOfTile; ++number) {
      const int row = first_row + number / kSlabsBeside * 64;
      const int beside = number % kSlabsBeside * T::kSlabColumns16;
      if (t.m + row >= t.m_end || t.n + beside >= t.n_end) continue;
      uint8_t* to = free_slab();
      if (features_ & kPieces) {
        with_constant<0, kAhead>(number % kAhead, [&]<int kSlot>() {
          put_pieces(kSlot, to);
          if (number + kAhead < kSlabsOfTile) fetch_pieces(t, first_row, number + kAhead, kSlot);
        });
        __syncwarp();
      }
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        const int first = half * kColumns, col = beside + first;
        float v[kColumns / 2];
        float2 two;
        with_constant<0, 2 * kSlabsOfTile>(2 * number + half, [&]<int kHalf>() {
          const float* from = sums[kHalf / kHalvesBeside] + kHalf % kHalvesBeside * (kColumns / 2);
#pragma unroll
          for (int i = 0; i < kColumns / 2; ++i) v[i] = from[i];
          two = factors_[kHalf / 2 % kSlabsBeside];
        });
        if (features_ & kFactors) multiply_factors(two, first, v);
        if (features_ & kBias) {
          const float* column = columns_ + col + lane_ % 4 * 2;
#pragma unroll
          for (int i = 0; i < kColumns / 2; ++i) v[i] += column[fragment_col(i)];
        }
        if (features_ & kPieces) {
          add_pieces(to, first, v);
        } else if (features_ & kPairs) {
          uint32_t pairs[kColumns / 4];
          fetch_pairs(t, row, col, pairs);
          add_16_bits(pairs, v, 0);
        }
        if (features_ & kQuick) quick_activation(args_.quick, v);
        chunk_to_slab16<kColumns, false>(v, T::kMma == Mma::kBFloat16, to, first);
      }
      store_slab(t, row, beside, to);
    }
  }

  // The same as finish() below for the usual epilogues, without a loop.
  __device__ __forceinline__ void finish_straight(const Sm90Tile& t, int first_row,
                                                  const Sm90Sums<T>& sums) {
    constexpr int kColumns = T::kSlabColumns16;
#pragma unroll
    for (int i = 0; i < T::kMmas; ++i) {
#pragma unroll
      for (int col = 0; col < T::C.n; col += kColumns) {
        const int row = first_row + 64 * i;
        if (t.m + row >= t.m_end || t.n + col >= t.n_end) continue;
        uint8_t* to = free_slab();
        if (features_ & kBias) {
          convert<true>(sums[i] + col / 2, i, col, to);
        } else {
          convert<false>(sums[i] + col / 2, i, col, to);
        }
        store_slab(t, row, col, to);
      }
    }
  }

  // The consumer's rows, from `first_row` in the tile on. fetch(chunk, v) gives the sums of a chunk;
  // false: those of its slab are another block's.
  template <class Fetch>
  __device__ __forceinline__ void finish(const Sm90Tile& t, int first_row, Fetch&& fetch) {
#pragma unroll 1
    for (int chunk = 0; chunk < T::kMmas * kChunks; ++chunk) {
      const int row = first_row + chunk / kChunks * 64, col = chunk % kChunks * T::kChunk;
      if (t.m + row >= t.m_end || t.n + col >= t.n_end) continue;
      float v[T::kChunk / 2];
      uint32_t pairs[T::kChunk / 4];
      if (features_ & kPairs) fetch_pairs(t, row, col, pairs);
      float factors[T::kChunk / 4];
      if constexpr (kIsConv) {
        if (features_ & kFactors) fetch_factors(t, col, factors);
      }
      if (!fetch(chunk, v)) continue;
      if (!is_raw()) {
        if constexpr (kIsConv) {
          if (features_ & kFactors) multiply_columns(factors, v);
        }
        scale(chunk / kChunks, col, v);
        const bool before = args_.pairs.before;
        if ((features_ & kPairs) && before) add_pairs(pairs, v);
        if (features_ & kQuick) quick_activation(args_.quick, v);
        if ((features_ & kPairs) && !before) add_pairs(pairs, v);
      }
      if constexpr (T::kToBytes) {
        if (features_ & kBytes) requantise(t, row, v);
      }
      if constexpr (T::C.full) {
        if ((features_ & kNeedsFull) || !is_whole(t, row)) {
          finish_runs(t, row, col, v);
          continue;
        }
      }
      store_chunk(t, row, col, v);
    }
  }

  __device__ bool is_raw() const { return features_ & kRaw; }
  __device__ bool is_wide() const { return features_ & kWide; }

  __device__ void end() {
    if (T::kToBytes && (features_ & kBytes) && args_.e.amax) raise_amax(args_.e.amax, largest_);
    if (!T::kElements && is_leader()) tma_store_wait_read<0>();
  }

 private:
  __device__ bool is_whole(const Sm90Tile& t, int row) const {
    return args_.groups.along == Groups::Along::kNone || t.m + row + 16 * warp_ + 16 <= t.m_end;
  }
  __device__ void sync() const { named_barrier_sync(1 + consumer_, 128); }

  // Of a convolution: each channel of y has its pixels beside each other. All warps share a slab then.
  __device__ bool is_by_channel() const {
    if constexpr (kFuses) {
      return args_.by_channel.unit != 0;
    } else {
      return false;
    }
  }

  // Those who share a slab: a warp, or all of the consumer. One of them stores it.
  __device__ void sync_slab() const { kWarpSlabs ? __syncwarp() : sync(); }
  __device__ bool is_leader() const { return (kWarpSlabs || warp_ == 0) && elect_one(); }

  // A slab to write to: it has been stored, and no thread reads it any more.
  __device__ uint8_t* free_slab() {
    if (is_leader()) tma_store_wait_read<(T::kSlabs > 1 ? 1 : 0)>();
    sync_slab();
    return slab();
  }
  __device__ uint8_t* slab() const { return slabs_ + (T::kSlabs > 1 ? slab_ * T::kSlab : 0); }

  // Alpha, scales and bias of columns from `col` on, of the rows of one instruction.
  __device__ __forceinline__ void scale(int instruction, int col, float (&v)[T::kChunk / 2]) const {
    const float* column = columns_ + col + lane_ % 4 * 2;
    if (T::kVectors == 2 && (features_ & (kRowScales | kColScales))) {
      const auto multiply_columns = [&] {
#pragma unroll
        for (int i = 0; i < T::kChunk / 2; ++i) v[i] *= column[T::C.n + fragment_col(i)];
      };
      // a's factor first, so that a row's bits do not depend on how the product is turned.
      const bool columns = features_ & kColScales, first = args_.transposed;
      if (columns && first) multiply_columns();
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) {
        const int half = fragment_row(i) / 8;
        v[i] *= instruction == 0 ? row_scale_[0][half] : row_scale_[T::kMmas - 1][half];
      }
      if (columns && !first) multiply_columns();
    } else {
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) v[i] *= alpha_;
    }
    if (features_ & kBias) {
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) v[i] = fmaf(beta_, column[fragment_col(i)], v[i]);
    }
  }

  // Factors of a column, an even one, and its neighbour.
  __device__ __forceinline__ float2 factors_at(const Sm90Tile& t, int n) const {
    if (n >= t.n_end) return {};
    return *reinterpret_cast<const float2*>(args_.factors + t.item * args_.result_channels + n);
  }
  // Of a chunk's columns, two for each 8 of them.
  __device__ __forceinline__ void fetch_factors(const Sm90Tile& t, int col,
                                                float (&factors)[T::kChunk / 4]) const {
#pragma unroll
    for (int i = 0; i < T::kChunk / 8; ++i) {
      const float2 two = factors_at(t, t.n + col + lane_ % 4 * 2 + 8 * i);
      factors[2 * i] = two.x;
      factors[2 * i + 1] = two.y;
    }
  }
  static __device__ __forceinline__ void multiply_columns(const float (&factors)[T::kChunk / 4],
                                                          float (&v)[T::kChunk / 2]) {
#pragma unroll
    for (int i = 0; i < T::kChunk / 2; ++i) v[i] *= factors[i / 4 * 2 + i % 2];
  }

  // What is added to a chunk, on its way while its sums are made ready.
  template <int kCount>
  __device__ __forceinline__ void fetch_pairs(const Sm90Tile& t, int row, int col,
                                              uint32_t (&pairs)[kCount]) const {
    const int m = t.m + row + warp_ * 16 + lane_ / 4, n = t.n + col + lane_ % 4 * 2;
    const auto* from = static_cast<const uint16_t*>(args_.pairs.data) +
                       offset_of_item(args_, t.index, args_.pairs.tensor) + m * args_.pairs.row + n;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int r = fragment_row(2 * i), c = fragment_col(2 * i);
      pairs[i] = 0;
      if (m + r < t.m_end && n + c < t.n_end) {
        pairs[i] = *reinterpret_cast<const uint32_t*>(from + r * args_.pairs.row + c);
      }
    }
  }
  __device__ __forceinline__ void add_pairs(const uint32_t (&pairs)[T::kChunk / 4],
                                            float (&v)[T::kChunk / 2]) const {
    const DType dtype = features_ & kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
    const float factor = args_.pairs.factor;
#pragma unroll
    for (int i = 0; i < T::kChunk / 2; ++i) {
      v[i] = fmaf(factor, as_float(dtype, pairs[i / 2] >> 16 * (i % 2)), v[i]);
    }
  }

  // Of all of a tile's columns, each lane two of each slab's. There is no room for them in shared
  // memory, beside a bias, where tiles are 256 wide.
  __device__ __forceinline__ void fetch_factors(const Sm90Tile& t) {
#pragma unroll
    for (int i = 0; i < kSlabsBeside; ++i) {
      factors_[i] = factors_at(t, t.n + i * T::kSlabColumns16 + 2 * lane_);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void multiply_factors(float2 two_of_lane, int first,
                                                   float (&v)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const int lane = first / 2 + i + lane_ % 4;
      const float even = __shfl_sync(0xffffffffu, two_of_lane.x, lane);
      const float odd = __shfl_sync(0xffffffffu, two_of_lane.y, lane);
      v[i] *= even, v[i + 1] *= odd;
      v[i + 2] *= even, v[i + 3] *= odd;
    }
  }

  // kPieces: a residual by slabs, of which this lane has 16 bytes of every fourth row. Whole rows of
  // a slab come from memory, go into the slab that y is about to leave from, and come from there as
  // sums lie in registers.
  __device__ __forceinline__ void fetch_pieces(const Sm90Tile& t, int first_row, int number,
                                               int slot) {
    const int m = t.m + first_row + number / kSlabsBeside * 64 + warp_ * 16 + lane_ / 8;
    const int n = t.n + number % kSlabsBeside * T::kSlabColumns16 + lane_ % 8 * 8;
    const auto* from = static_cast<const uint16_t*>(args_.pairs.data) +
                       offset_of_item(args_, t.index, args_.pairs.tensor) + m * args_.pairs.row + n;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 piece{};
      if (m + 4 * i < t.m_end && n < t.n_end) {
        piece = *reinterpret_cast<const uint4*>(from + 4 * i * args_.pairs.row);
      }
      pieces_[slot][i] = piece;
    }
  }
  __device__ __forceinline__ void put_pieces(int slot, uint8_t* slab) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint8_t* place = slab_at(slab, lane_ / 8 + 4 * i, lane_ % 8);
      *reinterpret_cast<uint4*>(place) = pieces_[slot][i];
    }
  }
  template <int kCount>
  __device__ __forceinline__ void add_pieces(uint8_t* slab, int first, float (&v)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount / 8; ++j) {
      uint32_t pairs[4];
      ldmatrix_x4(pairs, matrices_at(slab, first + 16 * j));
      add_16_bits(pairs, v, 8 * j);
    }
  }
  // Pairs of neighbours of the type that is multiplied.
  template <int kWords, int kCount>
  static __device__ __forceinline__ void add_16_bits(const uint32_t (&pairs)[kWords],
                                                     float (&v)[kCount], int first) {
    constexpr DType kType = T::kMma == Mma::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i) {
      v[first + i] += as_float(kType, pairs[i / 2] >> 16 * (i % 2));
    }
  }

  // The sums of a slab's columns, from `col` on, of the rows of one instruction into it.
  template <bool kWithBias, class Sum>
  __device__ __forceinline__ void convert(const Sum* sums, int instruction, int col, uint8_t* to) {
    if constexpr (T::kMma == Mma::kBFloat16 || T::kMma == Mma::kFloat16 || T::kVectors == 2) {
      const float* column = columns_ + col + lane_ % 4 * 2;
#pragma unroll
      for (int first = 0; first < T::kSlabColumns16; first += 16) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          v[i] = from_sum(sums[first / 2 + i], false);
          if constexpr (T::kVectors == 2) {
            const float of_row = row_scale_[instruction][fragment_row(i) / 8];
            const float of_column = column[T::C.n + first + fragment_col(i)];
            // a's factor first: thin tiles are transposed.
            v[i] = T::C.cluster_k ? v[i] * of_column * of_row : v[i] * of_row * of_column;
            if constexpr (kWithBias) v[i] = fmaf(beta_, column[first + fragment_col(i)], v[i]);
          } else {
            if constexpr (kWithBias) v[i] += column[first + fragment_col(i)];
          }
        }
        if (T::C.cluster_k || is_by_channel()) {
          chunk_to_slab16<16, true>(v, T::kMma != Mma::kFloat16, to, first);
        } else {
          chunk_to_slab16<16, false>(v, T::kMma != Mma::kFloat16, to, first);
        }
      }
    }
  }

  // amax and scale_y of a chunk of 8-bit results. Columns beyond the last one are 0.
  __device__ __forceinline__ void requantise(const Sm90Tile& t, int row,
                                             float (&v)[T::kChunk / 2]) {
    if (args_.e.amax) {
      const int left = t.m_end - (t.m + row + warp_ * 16 + lane_ / 4);
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) {
        const uint32_t bits = fragment_row(i) < left ? amax_bits(v[i]) : 0;
        largest_ = bits > largest_ ? bits : largest_;
      }
    }
    if (args_.e.scale_y) {
      const float scale = *args_.e.scale_y;
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) v[i] *= scale;
    }
  }

  // A chunk into a slab, which is stored with its last chunk.
  __device__ __forceinline__ void store_chunk(const Sm90Tile& t, int row, int col,
                                              const float (&v)[T::kChunk / 2]) {
    if constexpr (T::kElements) {
      store_elements(t, row, col, v);
    } else {
      store_in_slab(t, row, col, v);
    }
  }
  __device__ __forceinline__ void store_in_slab(const Sm90Tile& t, int row, int col,
                                                const float (&v)[T::kChunk / 2]) {
    const int columns = is_wide()                             ? T::kChunk
                        : T::kToBytes && (features_ & kBytes) ? T::kSlabColumns8
                                                              : T::kSlabColumns16;  // powers of 2
    const int first = col & (columns - 1);
    uint8_t* to = first == 0 ? free_slab() : slab();
    if (is_wide()) {
      chunk_to_slab32<T::kChunk, T::C.cluster_k>(v, to);
    } else if (T::kToBytes && (features_ & kBytes)) {
      chunk_to_slab8<T::kChunk>(v, args_.e.y.dtype, to, first);
    } else {
      chunk_to_slab16<T::kChunk, T::C.cluster_k>(v, features_ & kBFloat16, to, first);
    }
    if (first + T::kChunk < columns && t.n + col + T::kChunk < t.n_end) return;
    store_slab(t, row, col - first, to);
  }
  __device__ __forceinline__ void store_slab(const Sm90Tile& t, int row, int col, uint8_t* to) {
    if constexpr (kFuses) {
      if (is_by_channel()) return store_channels(t, row, col, to);
    }
    fence_async_shared();
    sync_slab();
    if (is_leader()) {
      const int r = t.m + row + (kWarpSlabs ? 16 * warp_ : 0), c = t.n + col;
      if constexpr (T::C.cluster_k) {
        store_box(to, r, c);
        if (is_wide()) store_box(to + T::kChunk * kSwizzleBytes, r + 32, c);
      } else {
        store_box(to, c, r);
      }
      tma_store_commit();
    }
    if constexpr (kIsConv) {
      if (features_ & kMoments) store_moments(t, row, col, to);
    }
    slab_ ^= 1;
  }
  // Moments of a slab's columns, as they are stored: 8 words of each row for a warp, of every fourth
  // row for a lane. Deviations are those from the first row: of 64 values, one of which that is, the
  // squares then exceed the sum of squared deviations 64 times at most, however far the mean is.
  __device__ __forceinline__ void store_moments(const Sm90Tile& t, int row, int col,
                                                uint8_t* slab) {
    constexpr int kColumns = T::kMma == Mma::kTf32 ? 1 : 2;  // of a word
    static_assert(kWarpSlabs && T::kSlabs == 2);
    sync();  // the other warps' rows are there; a slab that they read is free after the next one's
    slab -= warp_ * (T::kSlab / 4);
    const int word = warp_ * 8 + lane_ % 8, count = min(kSm90MomentsRows, t.m_end - t.m - row);
    const auto load = [&](int r, float(&v)[kColumns]) {
      const uint8_t* from = slab_at(slab, r, word / 4) + word % 4 * 4;
      const auto bits = *reinterpret_cast<const uint32_t*>(from);
      if constexpr (kColumns == 1) {
        v[0] = __uint_as_float(bits);
      } else {
        constexpr DType kType = T::kMma == Mma::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
        v[0] = as_float(kType, bits);
        v[1] = as_float(kType, bits >> 16);
      }
    };
    float first[kColumns], sum[kColumns] = {}, squares[kColumns] = {};
    load(0, first);
    const auto add = [&]<bool kWhole>() {
#pragma unroll
      for (int i = 0; i < kSm90MomentsRows / 4; ++i) {
        // Of four rows that are read at once, no two have a word in the same bank.
        const int r = i / 2 * 8 + lane_ / 8 * 2 + i % 2;
        float v[kColumns];
        load(r, v);
        if (!kWhole && r >= count) continue;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const float d = v[c] - first[c];
          sum[c] += d;
          squares[c] = fmaf(d, d, squares[c]);
        }
      }
    };
    float share = 1.0f / kSm90MomentsRows;
    if (count == kSm90MomentsRows) {
      add.template operator()<true>();
    } else {
      add.template operator()<false>();
      share = 1.0f / static_cast<float>(count);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int mask = 8; mask < 32; mask *= 2) {
        sum[c] += shuffle_xor(sum[c], mask);
        squares[c] += shuffle_xor(squares[c], mask);
      }
    }
    const int column = t.n + col + word * kColumns;
    if (lane_ >= 8) return;
    float2* to = args_.moments + int64_t{(t.m + row) / kSm90MomentsRows} * args_.moments_columns +
                 t.item * args_.result_channels + column;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (column + c >= t.n_end) continue;
      const float mean = sum[c] * share;
      to[c] = {first[c] + mean, fmaxf(fmaf(-mean, sum[c], squares[c]), 0.0f)};
    }
  }
  __device__ void store_box(const uint8_t* from, int inner, int outer) {
    if constexpr (T::kOperands == Sm90Operands::kColumnsA) {
      if (args_.scatters) return store_pixels(from, inner, outer);
    }
    const int at[4] = {inner, outer, at_y_[2], at_y_[3]};
    tma_store(&map_y_, from, at);
  }
  // Of a convolution of float32: wherever elements of the result are. Eight rows of a fragment lie
  // together where pixels are neighbours, eight columns where channels are: 32 bytes either way.
  __device__ __forceinline__ void store_elements(const Sm90Tile& t, int row, int col,
                                                 const float (&v)[T::kChunk / 2]) const {
    const auto& y = args_.elements;
    const int n = t.n + col + lane_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = t.m + row + warp_ * 16 + lane_ / 4 + 8 * half;
      if (m >= t.m_end) continue;
      float* to = y.at(args_.result, m) + t.item * y.group + n * y.channel;
#pragma unroll
      for (int j = 0; j < T::kChunk / 8; ++j, to += 8 * y.channel) {
        const float pair[2] = {v[4 * j + 2 * half], v[4 * j + 2 * half + 1]};
        const int left = t.n_end - n - 8 * j;
        if (y.in_pairs) {
          if (left > 0) *reinterpret_cast<float2*>(to) = make_float2(pair[0], pair[1]);
        } else {
          if (left > 0) to[0] = pair[0];
          if (left > 1) to[y.channel] = pair[1];
        }
      }
    }
  }
  // Of a convolution: rows are pixels that have no common stride.
  __device__ void store_pixels(const uint8_t* from, int channel, int pixel) {
    int at[5];
    args_.result.place(pixel, at);
    at[0] = at_y_[2] * args_.result_channels + channel;
    if (args_.result.has_d) {
      tma_store_im2col(&map_y_, from, at);
    } else {
      const int at4[4] = {at[0], at[1], at[2], at[3]};
      tma_store_im2col(&map_y_, from, at4);
    }
  }

  // A slab with a row of 64 pixels for each channel. It is written again after all threads have met
  // for the other slab, and so have read this one.
  __device__ __forceinline__ void store_channels(const Sm90Tile& t, int row, int col,
                                                 uint8_t* from) {
    sync();
    switch (args_.by_channel.unit) {
      case 8:
        store_units<8>(t, row, col, from);
        break;
      case 4:
        store_units<4>(t, row, col, from);
        break;
      case 2:
        store_units<2>(t, row, col, from);
        break;
      default:
        store_units<1>(t, row, col, from);
    }
    slab_ ^= 1;
  }
  // kUnit pixels of each thread, neighbours beside each other, of one channel after the other.
  template <int kUnit>
  __device__ __forceinline__ void store_units(const Sm90Tile& t, int row, int col,
                                              uint8_t* slab) const {
    using Unit = Vec<uint16_t, kUnit>;
    constexpr int kUnits = 64 / kUnit,
                  kStep = 128 / kUnits;  // units of a channel; channels at once
    const auto& y = args_.by_channel;
    const int in_slab = threadIdx.x % kUnits * kUnit, pixel = t.m + row + in_slab;
    if (pixel >= t.m_end) return;
    const int channel = threadIdx.x % 128 / kUnits, n = y.pixels.quick(pixel);
    const int left = t.n_end - t.n - col;
    uint16_t* to = y.y + t.item * y.group + (t.n + col + channel) * y.c + n * y.n +
                   (pixel - n * static_cast<int>(y.pixels.divisor()));
#pragma unroll 2
    for (int c = channel; c < 64; c += kStep, to += kStep * y.c) {
      if (c >= left) return;
      const uint8_t* from = slab_at(slab, c, in_slab / 8) + in_slab % 8 * 2;
      *reinterpret_cast<Unit*>(to) = *reinterpret_cast<const Unit*>(from);
    }
  }

  // The rest of the epilogue, in runs of neighbours along n: a chunk goes through a slab to threads
  // that have such runs.
  __device__ __forceinline__ void finish_runs(const Sm90Tile& t, int row, int col,
                                              const float (&v)[T::kChunk / 2]) {
    constexpr int kRun = 8;
    const bool transposed = T::C.cluster_k && args_.transposed;
    uint8_t* of_chunk = free_slab();
    if (transposed) {
      chunk_to_slab32<T::kChunk, true>(v, of_chunk);
    } else {
      chunk_to_slab32<T::kChunk, false>(v, of_chunk);
    }
    sync_slab();
    // Transposed, a box of kChunk rows for each half of the threads, else 16 rows for each warp; so
    // many lines of so many runs each, dealt out so that neighbours in y go to neighbouring threads.
    const int lines = transposed ? T::kChunk : 16, threads = transposed ? 64 : 32;
    const int runs = transposed ? 4 : T::kChunk / kRun;
    const bool along_n = args_.e.y.col == 1;
    if (transposed) of_chunk += warp_ / 2 * (T::kChunk * kSwizzleBytes);
    const int m_end = transposed ? t.n_end : t.m_end, n_end = transposed ? t.m_end : t.n_end;
#pragma unroll 1
    for (int i = threadIdx.x % threads; i < lines * runs; i += threads) {
      const int line = along_n ? i / runs : i % lines, run = along_n ? i % runs : i / lines;
      const int m = transposed ? t.n + col + line : t.m + row + 16 * warp_ + line;
      const int n = (transposed ? t.m + row + warp_ / 2 * 32 : t.n + col) + run * kRun;
      if (m >= m_end || n >= n_end) continue;
      finish_run_at(t, m, n, min(kRun, n_end - n),
                    *reinterpret_cast<const float4*>(slab_at(of_chunk, line, 2 * run)),
                    *reinterpret_cast<const float4*>(slab_at(of_chunk, line, 2 * run + 1)));
    }  // the slab stays free: nothing of it is stored
  }
  __device__ __forceinline__ void finish_run_at(const Sm90Tile& t, int m, int n, int count,
                                                float4 low, float4 high) const {
    const auto at = [&](int tensor) { return offset_of_item(args_, t.index, tensor); };
    float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (is_raw()) {
      const Matrix& y = args_.e.y;
      int* to = y.as<int>() + at(3) + m * y.row + n * y.col;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i < count) to[i * y.col] = __float_as_int(v[i]);
      }
    } else {
      finish_run<FastMath>(args_.e, {at(2), at(3), at(4), at(5), at(6)}, m, n, count, v);
    }
  }

  // As it is stored: to convert it here would be to wait for it.
  __device__ void fetch_bias(const Sm90Tile& t) {
    const Matrix& c = args_.bias;
    const int64_t first = offset_of_item(args_, t.index, 2);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = t.n + i * 128 + threadIdx.x % 128;
      bias_[i] = 0;
      if (col >= t.n_end) continue;
      const int64_t at = first + col * c.col;
      bias_[i] =
          c.dtype == DType::kFloat32 ? c.as<const uint32_t>()[at] : c.as<const uint16_t>()[at];
    }
  }
  static __device__ float as_float(DType dtype, uint32_t bits) {
    if (dtype == DType::kFloat32) return __uint_as_float(bits);
    const auto low = static_cast<uint16_t>(bits);
    return dtype == DType::kFloat16 ? static_cast<float>(bit_cast_to<Half>(low))
                                    : static_cast<float>(bit_cast_to<BFloat16>(low));
  }

  __device__ void fetch_scales(const Sm90Tile& t) {
#pragma unroll
    for (int i = 0; i < T::kMmas; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = t.m + first_row_ + 64 * i + warp_ * 16 + lane_ / 4 + 8 * half;
        const bool scaled = (features_ & kRowScales) && r < args_.rows;
        row_scale_[i][half] = scaled ? args_.alpha * args_.scale_row.at(0, r, 0) : args_.alpha;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = t.n + i * 128 + threadIdx.x % 128;
      const bool scaled = (features_ & kColScales) && col < args_.cols;
      col_scale_[i] = scaled ? args_.scale_col.at(t.item, col, 0) : 1.0f;
    }
  }

  const typename T::Args& args_;
  const CUtensorMap& map_y_;
  uint8_t* slabs_;  // this warp's, or this consumer's
  float* columns_;
  int consumer_, first_row_, lane_, warp_;
  uint32_t features_;  // these are in registers: constants are not always at hand
  float alpha_, beta_;
  int slab_ = 0;
  uint32_t largest_ = 0;  // amax_bits() of 8-bit results
  // What this thread fetches for the columns, and for its own rows.
  static constexpr int kColumns = (T::C.n + 127) / 128;
  uint32_t bias_[kColumns] = {};
  float col_scale_[kColumns], row_scale_[T::kMmas][2];
  // kFuses: of a residual, and of factors.
  uint4 pieces_[kAhead][4] = {};
  float2 factors_[kSlabsBeside] = {};
  int at_y_[4];
};

}  // namespace dlkern::gpu
