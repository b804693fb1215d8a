// The Hopper matrix products: what a block works on, and where it keeps what.
#pragma once

#include "cuda/gemm_sm90.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/wgmma.cuh"

namespace dlkern::gpu {

// What follows from a kind of operands, a configuration, and how the operands lie.
template <Mma kMma_, Sm90Config kConfig, bool kAAlongK_, bool kBAlongK_,
          Sm90Operands kOperands_ = Sm90Operands::kMatrices, class Args_ = Sm90Args>
struct Sm90Traits {
  using Args = Args_;  // Sm90Args, or what is derived from it
  static constexpr Sm90Operands kOperands = kOperands_;
  static constexpr Mma kMma = kMma_;
  static constexpr Sm90Config C = kConfig;
  static constexpr bool kAAlongK = kAAlongK_, kBAlongK = kBAlongK_;
  static constexpr int kDepth = kSwizzleBytes / element_bytes(kMma);  // k of a stage
  static constexpr int kConsumerRows = C.ping_pong ? C.m : C.m / C.consumers;
  static constexpr int kMmas = kConsumerRows / 64;  // instructions below each other
  static constexpr int kThreads = 128 * (1 + C.consumers);
  static constexpr int kStageA = C.m * kSwizzleBytes, kStageB = C.n * kSwizzleBytes;  // of a plane
  static constexpr int kStage = C.planes * (kStageA + kStageB);
  // b's planes 0 and 1 are multiplied together, as so many columns: narrow tiles would be bound by
  // a's way from shared memory.
  static constexpr bool kPaired = C.planes > 1 && C.n <= 64;
  // Columns that are finished at a time, and columns of a slab of y on its way out.
  static constexpr int kChunk = C.n < 32 ? C.n : 32;
  static constexpr int kSlabColumns16 = C.n < 64 ? C.n : 64, kSlabColumns8 = 128;
  static constexpr int kSlab = 64 * kSwizzleBytes;  // of a consumer, 16 rows for each warp
  // y leaves element by element and not in slabs.
  static constexpr bool kElements = kOperands == Sm90Operands::kColumnsA && C.planes > 1;
  static constexpr int kSlabs = kElements ? 0 : C.cluster_k ? 1 : 2;  // of each consumer
  // Arrivals that free a stage: of each warp that multiplies it, in each block that shares it.
  static constexpr int kReaders = 4 * (C.ping_pong ? 1 : C.consumers) * C.multicast;
  // What a consumer keeps for each column: a bias, and a factor where operands have scales.
  static constexpr int kVectors = element_bytes(kMma) == 1 ? 2 : 1;
  static constexpr int kSharedBytes = C.stages * kStage + C.consumers * kSlabs * kSlab +
                                      (C.row_sums ? kOnesBytes : 0) +
                                      4 * kVectors * C.n * C.consumers + 8 * (2 * C.stages + 2);
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(kConsumerRows % 64 == 0 && C.n % kChunk == 0);
  static_assert(!C.cluster_k || (C.multicast == 1 && !C.ping_pong));
  // y may leave in slabs of 8-bit numbers.
  static constexpr bool kToBytes = kVectors == 2 && !C.cluster_k && !C.full;
  static_assert(!kToBytes || C.n <= kSlabColumns8);
};

// ---- Tiles -------------------------------------------------------------------------------------

struct Sm90Tile {
  int m, n;   // first row and column
  int m_end;  // rows from here on are not this item's
  int n_end;
  int item, part;      // of the batch, of k
  int index[2];        // of the item in the batch
  int k_begin, k_end;  // stages along k
};

// The tiles of a block, one after the other: those of an item in bands of so many tiles' height, so
// that blocks at work together share operands in the L2 cache. Tiles of a cluster that shares b lie
// below each other.
template <class T>
class Sm90Tiles {
 public:
  __device__ Sm90Tiles(const Sm90Args& args, uint32_t rank)
      : args_(args), rank_(rank), split_bits_(T::C.cluster_k ? args.split_bits : 0) {
    next_ = (blockIdx.x >> split_bits_) / T::C.multicast;
    step_ = (gridDim.x >> split_bits_) / T::C.multicast;
    tiles_m_ = args.tiles_m;
    if (is_grouped()) enter_group(0);
  }

  __device__ bool next(Sm90Tile& t) {
    int index = next_;
    next_ += step_;
    int item, begin = 0;
    if (is_grouped()) {
      while (group_ < args_.items && index >= passed_ + group_tiles_) {
        passed_ += group_tiles_;
        enter_group(group_ + 1);
      }
      if (group_ >= args_.items) return false;
      index -= passed_;
      item = group_;
      begin = group_begin_;
    } else {
      if (index >= args_.tiles) return false;
      item = args_.by_item.quick(index);
      index -= item * tiles_m_ * args_.tiles_n;
    }
    const int band = args_.by_band_tiles.quick(index);
    index -= band * args_.band * args_.tiles_n;
    const int left = tiles_m_ - band * args_.band, height = min(args_.band, left);
    int n = left >= args_.band ? args_.by_band.quick(index)
            : is_grouped()     ? index / height
                               : args_.by_last_band.quick(index);
    const int m = (band * args_.band + index - n * height) * kBelow + rank_ % kBelow;
    n = n * kBeside + rank_ % kBeside;
    t.item = args_.by_parts.quick(item);
    t.part = item - t.item * args_.parts;
    t.index[0] = args_.by_inner.quick(t.item);
    t.index[1] = t.item - t.index[0] * static_cast<int>(args_.by_inner.divisor());
    t.m = begin + m * T::C.m;
    t.n = n * T::C.n;
    t.m_end = is_grouped() ? group_end_ : args_.rows;
    t.n_end = args_.cols;
    t.k_begin = t.part * args_.part_blocks;
    t.k_end = args_.parts > 1 ? min(t.k_begin + args_.part_blocks, args_.k_blocks) : args_.k_blocks;
    if constexpr (T::C.cluster_k) {
      const int blocks = t.k_end;
      t.k_begin = blocks * static_cast<int>(rank_) >> split_bits_;
      t.k_end = blocks * static_cast<int>(rank_ + 1) >> split_bits_;
    }
    return true;
  }

 private:
  // Tiles of a cluster: below each other, or side by side.
  static constexpr int kBelow = T::C.share_a ? 1 : T::C.multicast;
  static constexpr int kBeside = T::C.share_a ? T::C.multicast : 1;

  // Kernels without the full epilogue have no groups.
  __device__ bool is_grouped() const {
    return T::C.full && args_.groups.along == Groups::Along::kRows;
  }
  __device__ void enter_group(int group) {
    group_ = group;
    if (group >= args_.items) return;
    group_begin_ = static_cast<int>(args_.groups.begin(group, args_.rows));
    group_end_ = static_cast<int>(args_.groups.end(group, args_.rows));
    const int rows = max(group_end_ - group_begin_, 0);
    tiles_m_ = (rows + T::C.m * kBelow - 1) / (T::C.m * kBelow);
    group_tiles_ = tiles_m_ * args_.tiles_n;
  }

  const Sm90Args& args_;
  uint32_t rank_;
  int split_bits_, next_, step_, tiles_m_;
  int group_ = 0, group_begin_ = 0, group_end_ = 0, group_tiles_ = 0, passed_ = 0;
};

// Where an item of the batch is: coordinates 2 and 3 of a tensor map, and its first element.
__device__ __forceinline__ void map_item(const MapSteps& steps, const int (&index)[2],
                                         int (&at)[4]) {
  at[2] = index[0] * steps.step[0][0] + index[1] * steps.step[0][1];
  at[3] = index[0] * steps.step[1][0] + index[1] * steps.step[1][1];
}
__device__ __forceinline__ int64_t offset_of_item(const Sm90Args& args, const int (&index)[2],
                                                  int tensor) {
  return index[0] * args.item_stride[tensor][0] + index[1] * args.item_stride[tensor][1];
}

// ---- Shared memory -----------------------------------------------------------------------------

// The ring: stage and parity of the phase in which it is used.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void skip(int count) {
    stage += count;
    parity ^= stage / kStages & 1;
    stage %= kStages;
  }
};

template <class T>
struct Sm90Shared {
  uint8_t* stages;  // [stages][planes of a, planes of b]
  uint8_t* slabs;   // [consumers][kSlabs]
  uint8_t* ones;    // an operand that is 1 everywhere
  float* columns;   // [consumers][kVectors][n]: bias, factor
  Barrier* full;    // [stages]
  Barrier* empty;   // [stages]
  Barrier* turn;    // [2]: whose turn it is to multiply (ping-pong)

  // raw: aligned to the 1024 bytes of a swizzle atom.
  __device__ explicit Sm90Shared(uint8_t* raw) : stages(raw) {
    slabs = stages + T::C.stages * T::kStage;
    ones = slabs + T::C.consumers * T::kSlabs * T::kSlab;
    columns = reinterpret_cast<float*>(ones + (T::C.row_sums ? kOnesBytes : 0));
    full = reinterpret_cast<Barrier*>(columns + T::C.consumers * T::kVectors * T::C.n);
    empty = full + T::C.stages;
    turn = empty + T::C.stages;
  }
  __device__ uint8_t* a(int stage, int plane = 0) const {
    return stages + stage * T::kStage + plane * T::kStageA;
  }
  __device__ uint8_t* b(int stage, int plane = 0) const {
    return stages + stage * T::kStage + T::C.planes * T::kStageA + plane * T::kStageB;
  }
};

}  // namespace dlkern::gpu
