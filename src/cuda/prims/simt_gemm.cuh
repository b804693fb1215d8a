// A matrix product by ordinary FMA on any GPU: C[m, n] = sum_k A[m, k] B[k, n], one tile of C per
// block. The operands and what becomes of the sums are functors, so that implicit GEMMs
// (convolution) use the same loop.
//
// Operand loader: gives the elements X[r, k] of one operand, where r is m for A and n for B.
//
//     struct Loader {
//       static constexpr bool kAlongK;  // neighbours in memory: along k, else along r
//       __device__ Row row(int64_t r) const;  // what depends on r alone (an offset, a pixel)
//       __device__ Col col(int64_t k) const;  // what depends on k alone (an offset, a filter tap)
//       __device__ Acc load(Row, Col) const;  // the element; may give 0 for padding
//     };
//
// row and col may divide: a thread calls row once per tile of C and col once per step along k for
// each row or column of the operand that it loads. They are called with 0 <= r < extent and
// 0 <= k < k_end only. Small Row and Col types save registers.
//
// Epilogue: epilogue(int64_t m, int64_t n, Acc sum) for every element of the tile inside C, exactly
// once, neighbouring threads with neighbouring n: n should be C's contiguous index (swap A and B
// where it is not).
//
// Every sum is one chain of multiply-adds in the order of k, whatever the tile: its bits depend neither on
// the tile shape nor on the other rows and columns.
#pragma once

#include "cuda/prims/gpu.h"
#include "cuda/prims/tile_of.cuh"

namespace dlkern::gpu {

// A block computes kM x kN elements of C in steps of kK, each thread a grid of kThreadM x kThreadN.
template <int kM_, int kN_, int kK_, int kThreadM_, int kThreadN_>
struct SimtTile {
  static constexpr int kM = kM_, kN = kN_, kK = kK_, kThreadM = kThreadM_, kThreadN = kThreadN_;
  static constexpr int kThreadsM = kM / kThreadM, kThreadsN = kN / kThreadN;
  static constexpr int kThreads = kThreadsM * kThreadsN;
  // A thread's rows and columns come in runs of (at most) 4, spread over the tile, so that its
  // reads of shared memory are 16 bytes wide and free of bank conflicts.
  static constexpr int kRunM = kThreadM < 4 ? kThreadM : 4, kRunN = kThreadN < 4 ? kThreadN : 4;
  // For __launch_bounds__(Tile::kThreads, Tile::kMinBlocks): what fits without spills.
  static constexpr int kMinBlocks = kThreadM * kThreadN >= 16 ? 1 : 2;
  static_assert(kThreads % kK == 0 && kThreads % kM == 0 && kThreads % kN == 0);
  static_assert(kM * kK % kThreads == 0 && kN * kK % kThreads == 0);
};

// The tiles in use: large for float sums, medium for double sums, small where C is small.
using LargeTile = SimtTile<128, 128, 8, 8, 8>;
using MediumTile = SimtTile<64, 64, 16, 4, 4>;
using SmallTile = SimtTile<32, 32, 32, 2, 2>;
template <class Acc>
using BigTileFor = std::conditional_t<sizeof(Acc) == 8, MediumTile, LargeTile>;

// A matrix (or its transpose) with any strides, in elements.
template <class T, bool kAlongK_>
struct StridedOperand {
  static constexpr bool kAlongK = kAlongK_;
  const T* data;
  int64_t row_stride, k_stride;

  __device__ int64_t row(int64_t r) const { return r * row_stride; }
  __device__ int64_t col(int64_t k) const { return k * k_stride; }
  __device__ Accumulator<T> load(int64_t row, int64_t col) const {
    return static_cast<Accumulator<T>>(data[row + col]);
  }
};

// Elements from row to row of shared memory: 16 bytes more than the row, against bank conflicts.
template <class Acc>
constexpr int simt_pitch(int extent) {
  return extent + 16 / static_cast<int>(sizeof(Acc));
}

// One thread's share of moving kRows x kK elements of an operand from memory through registers to
// shared memory, transposed to [k][r] there.
template <class Tile, int kRows, class Acc, class Loader>
struct OperandMover {
  static constexpr bool kAlongK = Loader::kAlongK;
  static constexpr int kCount = kRows * Tile::kK / Tile::kThreads;  // elements per thread
  static constexpr int kStep = Tile::kThreads / (kAlongK ? Tile::kK : kRows);
  static constexpr int kPitch = simt_pitch<Acc>(kRows);
  using Row = decltype(std::declval<const Loader&>().row(0));

  const Loader& loader;
  int r, k;  // this thread's first element in the tile
  int rows;  // rows of the tile that exist
  Row row[kAlongK ? kCount : 1];
  Acc value[kCount];

  __device__ __forceinline__ OperandMover(const Loader& from, int64_t r0, int64_t extent)
      : loader(from) {
    const int t = threadIdx.x;
    r = kAlongK ? t / Tile::kK : t % kRows;
    k = kAlongK ? t % Tile::kK : t / kRows;
    rows = extent - r0 < kRows ? static_cast<int>(extent - r0) : kRows;
#pragma unroll
    for (int i = 0; i < (kAlongK ? kCount : 1); ++i) {
      const int in_tile = r + i * kStep;
      row[i] = loader.row(r0 + (in_tile < rows ? in_tile : rows - 1));
    }
  }

  __device__ __forceinline__ void fetch(int64_t k0, int64_t k_end) {
    const int steps = k_end - k0 < Tile::kK ? static_cast<int>(k_end - k0) : Tile::kK;
    if constexpr (kAlongK) {
      const auto col = loader.col(k0 + (k < steps ? k : 0));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool inside = k < steps && r + i * kStep < rows;
        value[i] = inside ? loader.load(row[i], col) : Acc(0);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool inside = r < rows && k + i * kStep < steps;
        value[i] = inside ? loader.load(row[0], loader.col(k0 + k + i * kStep)) : Acc(0);
      }
    }
  }

  __device__ __forceinline__ void store(Acc (*shared)[kPitch]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      shared[k + (kAlongK ? 0 : i * kStep)][r + (kAlongK ? i * kStep : 0)] = value[i];
    }
  }
};

// N neighbouring elements of shared memory, in accesses of up to 16 bytes.
template <int N, class Acc>
__device__ __forceinline__ void read_run(const Acc* shared, Acc* run) {
  constexpr int kWidth = N * sizeof(Acc) <= 16 ? N : 16 / static_cast<int>(sizeof(Acc));
  struct alignas(kWidth * sizeof(Acc)) Chunk {
    Acc v[kWidth];
  };
#pragma unroll
  for (int i = 0; i < N; i += kWidth) {
    const Chunk chunk = *reinterpret_cast<const Chunk*>(shared + i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) run[i + j] = chunk.v[j];
  }
}

__device__ __forceinline__ float multiply_add(float x, float y, float sum) {
  return fmaf(x, y, sum);
}
__device__ __forceinline__ double multiply_add(double x, double y, double sum) {
  return fma(x, y, sum);
}
__device__ __forceinline__ int32_t multiply_add(int32_t x, int32_t y, int32_t sum) {
  return x * y + sum;
}

// What a thread sums: rows and columns of the tile in its runs.
template <class Tile, class Acc>
using SimtSums = Acc[Tile::kThreadM][Tile::kThreadN];

// Shared memory of a block: two stages of both operands, so that one barrier per step is enough; in
// the end a part of the sums, on their way to neighbouring threads.
template <class Tile, class Acc>
union SimtShared {
  struct {
    Acc a[2][Tile::kK][simt_pitch<Acc>(Tile::kM)];
    Acc b[2][Tile::kK][simt_pitch<Acc>(Tile::kN)];
  } stages;
  Acc sums[Tile::kThreadsM * Tile::kRunM][simt_pitch<Acc>(Tile::kN)];
};
template <class Tile, class Acc>
__device__ __forceinline__ SimtShared<Tile, Acc>& simt_shared() {
  alignas(16) __shared__ unsigned char memory[sizeof(SimtShared<Tile, Acc>)];
  return *reinterpret_cast<SimtShared<Tile, Acc>*>(memory);
}

// Adds the products for k in [k_begin, k_end) to the sums of the tile of C (m x n elements) whose
// first element is (m0, n0). For a 1-D block of Tile::kThreads threads, all of which must call it.
template <class Tile, class Acc, class LoadA, class LoadB>
__device__ __forceinline__ void simt_accumulate(SimtSums<Tile, Acc>& acc, int64_t m0, int64_t n0,
                                                int64_t m, int64_t n, int64_t k_begin,
                                                int64_t k_end, const LoadA& load_a,
                                                const LoadB& load_b) {
  constexpr int kRunM = Tile::kRunM, kRunN = Tile::kRunN;
  auto& stages = simt_shared<Tile, Acc>().stages;
  const int tx = threadIdx.x % Tile::kThreadsN, ty = threadIdx.x / Tile::kThreadsN;
  OperandMover<Tile, Tile::kM, Acc, LoadA> a(load_a, m0, m);
  OperandMover<Tile, Tile::kN, Acc, LoadB> b(load_b, n0, n);
  __syncthreads();  // what was read from shared memory before has been read
  int stage = 0;
  for (int64_t k0 = k_begin - Tile::kK; k0 < k_end; k0 += Tile::kK) {  // the first only fetches
    const int64_t next = k0 + Tile::kK;
    if (next < k_end) {
      a.fetch(next, k_end);
      b.fetch(next, k_end);
    }
    if (k0 >= k_begin) {
#pragma unroll 8
      for (int k = 0; k < Tile::kK; ++k) {
        Acc x[Tile::kThreadM], y[Tile::kThreadN];
#pragma unroll
        for (int i = 0; i < Tile::kThreadM; i += kRunM) {
          read_run<kRunM>(&stages.a[stage][k][i * Tile::kThreadsM + ty * kRunM], x + i);
        }
#pragma unroll
        for (int j = 0; j < Tile::kThreadN; j += kRunN) {
          read_run<kRunN>(&stages.b[stage][k][j * Tile::kThreadsN + tx * kRunN], y + j);
        }
#pragma unroll
        for (int i = 0; i < Tile::kThreadM; ++i) {
#pragma unroll
          for (int j = 0; j < Tile::kThreadN; ++j) acc[i][j] = multiply_add(x[i], y[j], acc[i][j]);
        }
      }
    }
    stage ^= 1;
    if (next < k_end) {
      a.store(stages.a[stage]);
      b.store(stages.b[stage]);
    }
    __syncthreads();
  }
}

// epilogue(m, n, sum) for the tile's elements inside C.
template <class Tile, class Acc, class Epilogue>
__device__ __forceinline__ void simt_finish(const SimtSums<Tile, Acc>& acc, int64_t m0, int64_t n0,
                                            int64_t m, int64_t n, const Epilogue& epilogue) {
  constexpr int kRunM = Tile::kRunM, kRunN = Tile::kRunN;
  constexpr int kRows = Tile::kThreadsM * kRunM;  // of one run of all threads
  auto& sums = simt_shared<Tile, Acc>().sums;
  const int tx = threadIdx.x % Tile::kThreadsN, ty = threadIdx.x / Tile::kThreadsN;
  const int col = threadIdx.x % Tile::kN;
#pragma unroll 1  // one copy of the epilogue's code
  for (int run = 0; run < Tile::kThreadM / kRunM; ++run) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRunM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kThreadN; ++j) {
        Acc sum = acc[i][j];
#pragma unroll
        for (int other = 1; other < Tile::kThreadM / kRunM; ++other) {
          if (run == other) sum = acc[other * kRunM + i][j];  // registers cannot be indexed
        }
        sums[ty * kRunM + i][(j / kRunN * Tile::kThreadsN + tx) * kRunN + j % kRunN] = sum;
      }
    }
    __syncthreads();
    if (n0 + col >= n) continue;
#pragma unroll 1
    for (int r = threadIdx.x / Tile::kN; r < kRows; r += Tile::kThreads / Tile::kN) {
      const int64_t row = m0 + run * kRows + r;
      if (row < m) epilogue(row, n0 + col, sums[r][col]);
    }
  }
}

// Both for one tile. May be called repeatedly; k_begin >= k_end gives sums of 0.
template <class Tile, class Acc, class LoadA, class LoadB, class Epilogue>
__device__ __forceinline__ void simt_gemm(int64_t m0, int64_t n0, int64_t m, int64_t n,
                                          int64_t k_begin, int64_t k_end, const LoadA& load_a,
                                          const LoadB& load_b, const Epilogue& epilogue) {
  SimtSums<Tile, Acc> acc = {};
  simt_accumulate<Tile, Acc>(acc, m0, n0, m, n, k_begin, k_end, load_a, load_b);
  simt_finish<Tile, Acc>(acc, m0, n0, m, n, epilogue);
}

}  // namespace dlkern::gpu
