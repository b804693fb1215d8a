// Matrix products on Hopper: operands by bulk tensor copies (TMA), products by wgmma.
//
//   sum[m, n] = sum_k a[m, k] b[k, n]        y = epilogue(sum), see ops/epilogue.h
//
// Algorithm: a persistent block takes tiles of y one after the other. A warp of the first warpgroup
// (the producer) keeps a ring of shared-memory stages filled, 128 bytes of k each; one or two
// warpgroups (the consumers) multiply them with sums in registers.
//   cooperative: two consumers share a tile, half of its rows each.
//   ping-pong:   each consumer has tiles of its own, and while one finishes a tile the other
//                multiplies: for epilogues that take time.
// Two blocks of a cluster whose tiles lie below each other (or side by side) share the tile of b (or
// a): each loads half of it for both. A cluster may instead share one tile and split k; sums are then
// added in the order of the blocks, through distributed shared memory (thin products, which have few
// tiles).
// y leaves through shared memory in slabs of 128 bytes, 16 rows for each warp, by bulk tensor stores;
// where its strides do not allow that, or more is to be done than a bias, factors, a usual activation
// and a residual, in runs along n (gemm_sm90_epilogue.cuh). Thin products are computed transposed, so
// that the long extent is the instruction's 64 rows: y^T = b^T a^T, and slabs are transposed on the
// way out.
// Float32 in full precision: operands come as three bfloat16 planes x = x0 + x1 + x2 (see
// gemm_pack_sm90.cu); six products x_i y_j with i + j <= 2, smallest first, and the sums of each 64 of k
// are added to those in float32 registers, since wgmma's own additions round towards zero. With two
// planes, three products of 16 bits.
// float8 with scales along k: sums of 128 of k are scaled and added in the same way.
// Bound by the tensor cores for large m, n and k, by memory for thin products.
// A sum is one chain of instructions in the order of k, whatever the tile: unless k is split, a
// row's bits do not depend on m, n or the configuration.
#pragma once

#include "cuda/gemm_sm90_epilogue.cuh"
#include "cuda/gemm_sm90_tiles.cuh"

namespace dlkern::gpu {

// ---- Producer ----------------------------------------------------------------------------------

// Rows [row, row + rows) of one operand, 128 bytes of k: one box, or a box for each 64 rows.
template <bool kAlongK, bool kMulticast>
__device__ __forceinline__ void load_operand(uint8_t* to, const CUtensorMap& map, Barrier* full,
                                             int row, int rows, int k, int item, int plane_item) {
  const auto box = [&](uint8_t* place, int inner, int outer) {
    const int at[4] = {inner, outer, item, plane_item};
    if constexpr (kMulticast) {
      tma_load_multicast(place, &map, full, at, 0b11);
    } else {
      tma_load(place, &map, full, at);
    }
  };
  if constexpr (kAlongK) {
    box(to, k, row);
  } else {
    for (int r = 0; r < rows; r += 64) box(to + r * kSwizzleBytes, row + r, k);
  }
}

// Of the operand that a cluster shares, a block loads some of the rows, for all of its blocks.
template <class T>
struct Sm90Share {
  static constexpr bool kA = T::C.multicast > 1 && T::C.share_a;
  static constexpr bool kB = T::C.multicast > 1 && !T::C.share_a;
  static constexpr int kRowsA = kA ? T::C.m / T::C.multicast : T::C.m;
  static constexpr int kRowsB = kB ? T::C.n / T::C.multicast : T::C.n;
  int row_a, row_b;  // the first of them in the tile

  __device__ explicit Sm90Share(uint32_t rank)
      : row_a(kA ? rank * kRowsA : 0), row_b(kB ? rank * kRowsB : 0) {}
};

// Copies the operands of a tile, stage by stage: load() of the stages k_begin to k_end - 1 of a tile
// in turn, by one lane, and advance() after each, by all.
template <class T, Sm90Operands = T::kOperands>
class Sm90Loader;

template <class T>
class Sm90Loader<T, Sm90Operands::kMatrices> {
  using Share = Sm90Share<T>;

 public:
  __device__ Sm90Loader(const Sm90Args& args, const CUtensorMap& map_a, const CUtensorMap& map_b,
                        const Sm90Tile& t, uint32_t rank)
      : map_a_(map_a), map_b_(map_b), tile_(t), share_(rank) {
    map_item(args.a, t.index, at_a_);
    map_item(args.b, t.index, at_b_);
  }
  __device__ void load(const Sm90Shared<T>& shared, int stage, int block) const {
    Barrier* full = &shared.full[stage];
    const int k = block * T::kDepth;
    for (int plane = 0; plane < T::C.planes; ++plane) {
      load_operand<T::kAAlongK, Share::kA>(shared.a(stage, plane) + share_.row_a * kSwizzleBytes,
                                           map_a_, full, tile_.m + share_.row_a, Share::kRowsA, k,
                                           at_a_[2] + plane, at_a_[3]);
      load_operand<T::kBAlongK, Share::kB>(shared.b(stage, plane) + share_.row_b * kSwizzleBytes,
                                           map_b_, full, tile_.n + share_.row_b, Share::kRowsB, k,
                                           at_b_[2] + plane, at_b_[3]);
    }
  }
  __device__ void advance() {}

 private:
  const CUtensorMap &map_a_, &map_b_;
  const Sm90Tile& tile_;
  Share share_;
  int at_a_[4], at_b_[4];
};

// By a warp whose lanes do the same, one of which copies.
template <class T>
__device__ void produce(const typename T::Args& args, const CUtensorMap& map_a,
                        const CUtensorMap& map_b, const Sm90Shared<T>& shared, uint32_t rank) {
  RingPosition<T::C.stages> ring;
  Sm90Tiles<T> tiles(args, rank);
  Sm90Tile t;
  while (tiles.next(t)) {
    Sm90Loader<T> loader(args, map_a, map_b, t, rank);
    for (int block = t.k_begin; block < t.k_end; ++block, loader.advance(), ring.advance()) {
      barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
      if (!elect_one()) continue;
      barrier_arrive_expect(&shared.full[ring.stage], T::kStage);
      loader.load(shared, ring.stage, block);
    }
  }
  if constexpr (T::C.multicast > 1) {  // other blocks' last arrivals must find this one
    for (int i = 0; i < T::C.stages; ++i, ring.advance()) {
      barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
    }
  }
}

// ---- Consumers ---------------------------------------------------------------------------------

// A warp is done with a stage: told to each block that fills it.
template <class T>
__device__ __forceinline__ void release(Barrier* empty) {
  const int lane = threadIdx.x % 32;
  if constexpr (T::C.multicast > 1) {
    if (lane < T::C.multicast) barrier_arrive_at(empty, lane);
  } else {
    if (lane == 0) barrier_arrive(empty);
  }
}

// The instructions for one stage of one pair of planes, or of one with two that lie below each other in
// shared memory. `row`: first row of this consumer.
template <class T, int kRegisters>
__device__ __forceinline__ void multiply_stage(MmaSum<T::kMma> (&sums)[T::kMmas][kRegisters],
                                               const uint8_t* a, const uint8_t* b, int row,
                                               bool add) {
  const uint64_t desc_b = operand_descriptor<T::kBAlongK>(b, T::kDepth);
#pragma unroll
  for (int step = 0; step < kSwizzleBytes / kMmaBytes; ++step) {
#pragma unroll
    for (int i = 0; i < T::kMmas; ++i) {
      // 64 rows are 64 rows of shared memory along k, and one chunk along rows: the same bytes.
      const uint64_t desc_a =
          operand_descriptor<T::kAAlongK>(a + (row + 64 * i) * kSwizzleBytes, T::kDepth);
      Wgmma<T::kMma, 2 * kRegisters, !T::kAAlongK, !T::kBAlongK>::run(
          sums[i], desc_a + step * kDescriptorStep<T::kAAlongK>,
          desc_b + step * kDescriptorStep<T::kBAlongK>, add || step > 0);
    }
  }
}

// The sums of a stage that are added in registers. Paired: those with b's planes 0 and 1, and others.
template <class T>
struct Sm90StageSums {
  MmaSum<T::kMma> first[T::kMmas][T::C.n / 2 * (T::kPaired ? 2 : 1)];
  MmaSum<T::kMma> other[T::kMmas][T::kPaired ? T::C.n / 2 : 1];

  __device__ __forceinline__ MmaSum<T::kMma> at(int i, int j) const {
    if constexpr (T::kPaired) return first[i][j] + (first[i][j + T::C.n / 2] + other[i][j]);
    return first[i][j];
  }
};

// The products of planes i and j with i + j < planes, smaller ones first.
template <class T>
__device__ __forceinline__ void multiply_planes(Sm90StageSums<T>& sums, const Sm90Shared<T>& shared,
                                                int stage, int row) {
  constexpr int kLast = T::C.planes - 1;
  if constexpr (T::kPaired) {
    static_assert(T::C.planes == 2 || T::C.planes == 3);
    multiply_stage<T>(sums.other, shared.a(stage, kLast), shared.b(stage), row, false);
    if constexpr (kLast == 2) {
      multiply_stage<T>(sums.other, shared.a(stage), shared.b(stage, kLast), row, true);
      multiply_stage<T>(sums.first, shared.a(stage, 1), shared.b(stage), row, false);
    }
    multiply_stage<T>(sums.first, shared.a(stage), shared.b(stage), row, kLast == 2);
  } else {
#pragma unroll
    for (int sum = kLast; sum >= 0; --sum) {
#pragma unroll
      for (int i = 0; i <= sum; ++i) {  // from the outside in
        const int of_a = i % 2 == 0 ? i / 2 : sum - i / 2;
        multiply_stage<T>(sums.first, shared.a(stage, of_a), shared.b(stage, sum - of_a), row,
                          sum < kLast || i > 0);
      }
    }
  }
}

// The sums of a tile, one chain of instructions. kOnes: also of a's rows, as a product with ones.
template <class T, bool kOnes>
__device__ __forceinline__ void multiply(Sm90Sums<T>& sums, float (&ones_sums)[T::kMmas][4],
                                         const Sm90Shared<T>& shared,
                                         RingPosition<T::C.stages>& ring, int count, int row,
                                         int consumer) {
  int previous = 0;
  for (int i = 0; i < count; ++i) {
    barrier_wait(&shared.full[ring.stage], ring.parity);
    wgmma_fence();
    multiply_stage<T>(sums, shared.a(ring.stage), shared.b(ring.stage), row, i > 0);
    if constexpr (kOnes) {
      const uint64_t desc_b = constant_descriptor(shared.ones);
#pragma unroll
      for (int step = 0; step < kSwizzleBytes / kMmaBytes; ++step) {
#pragma unroll
        for (int j = 0; j < T::kMmas; ++j) {
          const uint64_t desc_a = operand_descriptor<T::kAAlongK>(
              shared.a(ring.stage) + (row + 64 * j) * kSwizzleBytes, T::kDepth);
          Wgmma<T::kMma, 8, !T::kAAlongK, false>::run(
              ones_sums[j], desc_a + step * kDescriptorStep<T::kAAlongK>, desc_b, i + step > 0);
        }
      }
    }
    wgmma_commit();
    if (i > 0) {
      wgmma_wait<1>();
      release<T>(&shared.empty[previous]);
    }
    previous = ring.stage;
    ring.advance();
  }
  if constexpr (T::C.ping_pong) {  // the other consumer's instructions queue up behind these
    if (threadIdx.x % 32 == 0) barrier_arrive(&shared.turn[1 - consumer]);
  }
  wgmma_wait<0>();
  if (count > 0) release<T>(&shared.empty[previous]);
}

// Adds the sums of one stage, from k on, scaled along the rows of both operands.
template <class T>
__device__ __forceinline__ void add_scaled(Sm90Sums<T>& sums, const Sm90Sums<T>& part,
                                           const Sm90Args& args, const Sm90Tile& tile,
                                           const Sm90Shared<T>& shared, int consumer, int row,
                                           int64_t k) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const Scale &of_row = args.scale_row, &of_col = args.scale_col;
  const bool each_col = of_col.along_depth() && of_col.rows < T::C.n;
  float* of_cols = shared.columns + (consumer * T::kVectors + 1) * T::C.n;
  static_assert(T::C.n == 128);  // a column for each thread
  if (each_col) {
    const int i = threadIdx.x % 128;
    named_barrier_sync(1 + consumer, 128);  // the factors before have been used
    of_cols[i] = tile.n + i < args.cols ? of_col.at(tile.item, tile.n + i, k) : 0.0f;
    named_barrier_sync(1 + consumer, 128);
  }
  // One factor for all columns of the tile, or 1 where each has its own or they have none.
  const float of_tile = of_col.along_depth() && !each_col ? of_col.at(tile.item, tile.n, k) : 1.0f;
  // a's factor first, so that a row's bits do not depend on how the product is turned.
  const bool col_first = args.transposed;
  const auto scaled = [=](float v, float r, float c) { return col_first ? v * c * r : v * r * c; };
#pragma unroll
  for (int i = 0; i < T::kMmas; ++i) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = tile.m + row + 64 * i + 16 * warp + lane / 4 + 8 * half;
      factor[half] = of_row.along_depth() && r < args.rows ? of_row.at(0, r, k) : 1.0f;
    }
#pragma unroll
    for (int j = 0; j < T::C.n / 2; ++j) {
      const float f = each_col ? of_cols[j / 4 * 8 + lane % 4 * 2 + j % 2] : of_tile;
      sums[i][j] += scaled(part[i][j], factor[j / 2 % 2], f);
    }
  }
}

// The same with the sums of each stage added in registers, scaled where there are scales along k.
// Of one plane: while the sums of a stage are added, the next one's products run.
template <class T>
__device__ __forceinline__ void multiply_promoted(Sm90Sums<T>& sums, const Sm90Args& args,
                                                  const Sm90Tile& tile, const Sm90Shared<T>& shared,
                                                  RingPosition<T::C.stages>& ring, int row,
                                                  int consumer) {
  RingPosition<T::C.stages> ahead = ring;
  const auto issue = [&](Sm90StageSums<T>& part) {
    barrier_wait(&shared.full[ahead.stage], ahead.parity);
    wgmma_fence();
    if constexpr (T::C.planes > 1) {
      multiply_planes<T>(part, shared, ahead.stage, row);
    } else {
      multiply_stage<T>(part.first, shared.a(ahead.stage), shared.b(ahead.stage), row, false);
    }
    wgmma_commit();
    ahead.advance();
  };
  int block = tile.k_begin;
  const auto done = [&] {
    release<T>(&shared.empty[ring.stage]);
    ring.advance();
    ++block;
  };
  const auto add = [&](const Sm90StageSums<T>& part) {
    done();
#pragma unroll
    for (int i = 0; i < T::kMmas; ++i) {
#pragma unroll
      for (int j = 0; j < T::C.n / 2; ++j) sums[i][j] += part.at(i, j);
    }
  };
#pragma unroll
  for (int i = 0; i < T::kMmas; ++i) {
#pragma unroll
    for (int j = 0; j < T::C.n / 2; ++j) sums[i][j] = 0;
  }
  if (block == tile.k_end) return;
  Sm90StageSums<T> even;
  constexpr bool kMatrices = T::kOperands == Sm90Operands::kMatrices;
  constexpr bool kScalable = T::C.planes == 1 && T::C.n == 128 && kMatrices;
  // Not enough registers for two parts: planes, or a loader of columns beside the full epilogue.
  constexpr bool kOnePart = T::C.planes > 1 || (!kMatrices && T::C.full);
  if (kOnePart || (kScalable && (args.scale_row.along_depth() || args.scale_col.along_depth()))) {
    while (block < tile.k_end) {
      issue(even);
      wgmma_wait<0>();
      const int64_t k = int64_t{block} * T::kDepth;
      if constexpr (!kScalable) {
        add(even);
      } else {
        done();
        add_scaled<T>(sums, even.first, args, tile, shared, consumer, row, k);
      }
    }
  } else if constexpr (!kOnePart) {
    Sm90StageSums<T> odd;
    issue(even);
    while (block + 2 < tile.k_end) {
      issue(odd);
      wgmma_wait<1>();
      add(even);
      issue(even);
      wgmma_wait<1>();
      add(odd);
    }
    if (block + 1 < tile.k_end) {
      issue(odd);
      wgmma_wait<1>();
      add(even);
      wgmma_wait<0>();
      add(odd);
    } else {
      wgmma_wait<0>();
      add(even);
    }
  }
}

// ---- Tiles finished ---------------------------------------------------------------------------

// The sums of a tile, on their way to y; those of a cluster's blocks are added in their order, and
// each block finishes some of the columns.
template <class T>
__device__ __forceinline__ void finish_cluster_tile(const Sm90Tile& t, Sm90Sums<T>& sums,
                                                    Sm90Output<T>& out, const Sm90Shared<T>& shared,
                                                    int row, uint32_t rank) {
  constexpr int kQuads = T::kChunk / 8, kChunksOfSlab = T::kSlabColumns16 / T::kChunk;
  static_assert(T::kMmas == 1 && T::C.consumers == 1);
  static_assert(T::C.m * T::C.n * 4 <= T::C.stages * T::kStage);
  const uint32_t blocks = cluster_size();
  // [chunk][quad][thread], where the stages were
  float4* own = reinterpret_cast<float4*>(shared.stages) + threadIdx.x % 128;
  if (blocks == 1 && out.is_straight(t)) return out.finish_straight(t, row, sums);
  if (blocks > 1) {
    named_barrier_sync(1, 128);  // all warps are done with the stages
#pragma unroll
    for (int q = 0; q < T::C.n / 8; ++q) {
      own[q * 128] =
          make_float4(from_sum(sums[0][4 * q], true), from_sum(sums[0][4 * q + 1], true),
                      from_sum(sums[0][4 * q + 2], true), from_sum(sums[0][4 * q + 3], true));
    }
    cluster_sync();
  }
  out.finish(t, row, [&](int chunk, float(&v)[T::kChunk / 2]) {
    if (blocks == 1) return out.take(sums, chunk, v);
    if (chunk / kChunksOfSlab % blocks != rank) return false;
    MmaSum<T::kMma> total[T::kChunk / 2] = {};
    for (uint32_t block = 0; block < blocks; ++block) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float4 part = load_from_block(own + (chunk * kQuads + q) * 128, block);
        const float parts[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          MmaSum<T::kMma> sum;
          to_sum(parts[j], sum);
          total[4 * q + j] += sum;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < T::kChunk / 2; ++j) v[j] = from_sum(total[j], out.is_raw());
    return true;
  });
}

// Column 0 of the product with ones.
template <class T>
__device__ void store_row_sums(const Sm90Args& args, const Sm90Tile& t,
                               const float (&sums)[T::kMmas][4], int row) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (lane % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < T::kMmas; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = t.m + row + 64 * i + 16 * warp + lane / 4 + 8 * half;
      if (r >= t.m_end) continue;
      const int64_t at = r * args.row_sum.row + int64_t{t.part} * args.row_sum.col;
      const float sum = sums[i][2 * half];
      store_as(args.row_sum, at, args.add_row_sum ? sum + load_as<float>(args.row_sum, at) : sum);
    }
  }
}

template <class T>
__device__ void consume(const typename T::Args& args, const CUtensorMap& map_y,
                        const Sm90Shared<T>& shared, int consumer, uint32_t rank) {
  const int row = T::C.ping_pong ? 0 : consumer * T::kConsumerRows;
  Sm90Output<T> out(args, map_y, shared, consumer);
  RingPosition<T::C.stages> ring;
  Sm90Tiles<T> tiles(args, rank);
  Sm90Tile t;
  uint32_t turn_parity = 0;
  Sm90Sums<T> sums;
  for (int number = 0; tiles.next(t); ++number) {
    const int count = t.k_end - t.k_begin;
    if (T::C.ping_pong && number % 2 != consumer) {
      ring.skip(count);
      continue;
    }
    out.begin(t);
    if constexpr (T::C.ping_pong) {
      barrier_wait(&shared.turn[consumer], turn_parity);
      turn_parity ^= 1;
    }
    float ones_sums[T::kMmas][4];
    if constexpr (T::C.promote) {
      multiply_promoted<T>(sums, args, t, shared, ring, row, consumer);
    } else if constexpr (T::C.row_sums) {
      if (args.row_sum.data && t.n == 0) {
        multiply<T, true>(sums, ones_sums, shared, ring, count, row, consumer);
        store_row_sums<T>(args, t, ones_sums, row);
      } else {
        multiply<T, false>(sums, ones_sums, shared, ring, count, row, consumer);
      }
    } else {
      multiply<T, false>(sums, ones_sums, shared, ring, count, row, consumer);
    }
    out.sums_ready();
    if constexpr (T::C.cluster_k) {
      finish_cluster_tile<T>(t, sums, out, shared, row, rank);
    } else if (out.is_straight(t)) {
      out.finish_straight(t, row, sums);
    } else if constexpr (Sm90Output<T>::kFuses) {
      out.finish_fused(t, row, sums);
    } else {
      out.finish(t, row,
                 [&](int chunk, float(&v)[T::kChunk / 2]) { return out.take(sums, chunk, v); });
    }
  }
  out.end();
}

// ---- Kernel ------------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ CUtensorMap map_a,
                     const __grid_constant__ CUtensorMap map_b,
                     const __grid_constant__ CUtensorMap map_y,
                     const __grid_constant__ typename T::Args args) {
  extern __shared__ __align__(1024) uint8_t raw[];
  constexpr bool kCluster = T::C.multicast > 1 || T::C.cluster_k;
  if constexpr (T::C.planes > 1) {
    if (*args.skip) return;
  }
  const Sm90Shared<T> shared(raw);
  const uint32_t rank = kCluster ? cluster_rank() : 0;
  const int group = warp_uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&map_a);
    tma_prefetch_map(&map_b);
    tma_prefetch_map(&map_y);
    for (int i = 0; i < T::C.stages; ++i) {
      barrier_init(&shared.full[i], 1);
      barrier_init(&shared.empty[i], T::kReaders);
    }
    for (int i = 0; i < 2; ++i)
      barrier_init(&shared.turn[i], 4);  // each warp of the other consumer
    for (int i = 0; i < 4; ++i) barrier_arrive(&shared.turn[0]);
    barrier_init_fence();
  }
  if constexpr (T::C.row_sums) {
    const uint16_t one = T::kMma == Mma::kBFloat16 ? 0x3f80 : 0x3c00;
    if (threadIdx.x < kOnesBytes / 2) reinterpret_cast<uint16_t*>(shared.ones)[threadIdx.x] = one;
    fence_async_shared();
    __syncthreads();
  }
  kCluster ? cluster_meet() : __syncthreads();
  if (group == 0) {
    if constexpr (T::C.consumers == 2) register_limit_lower<40>();
    if (warp_uniform(threadIdx.x / 32) == 0) produce<T>(args, map_a, map_b, shared, rank);
    if constexpr (T::C.cluster_k) {
      if (cluster_size() > 1) cluster_sync();  // the one in finish_cluster_tile
    }
  } else {
    if constexpr (T::C.consumers == 2) register_limit_raise<232>();
    consume<T>(args, map_y, shared, group - 1, rank);
  }
  if constexpr (kCluster) cluster_meet();  // shared memory that others write or read lives as long
}

template <class T>
Sm90Kernel sm90_kernel() {
  return {reinterpret_cast<const void*>(gemm_sm90_kernel<T>), T::kSharedBytes, T::kThreads};
}
template <Mma kMma, int kConfig, bool kAAlongK, bool kBAlongK>
Sm90Kernel make_sm90_kernel() {
  return sm90_kernel<Sm90Traits<kMma, kSm90Configs[kConfig], kAAlongK, kBAlongK>>();
}

}  // namespace dlkern::gpu
