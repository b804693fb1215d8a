// Thin products: y with at most 32 rows or columns, so that one operand (the long one, e.g. weights)
// is read once and nearly all there is to read. Multiply-adds of any GPU.
//
//   sum[r, c] = sum_k long[r, k] short[c, k],  then the epilogue of ops/epilogue.h
//
// r is n of y where b is the long operand (y = x W of few rows), m where a is. Operands: floats of
// one dtype. The long one lies along k or along its rows; loads of 16 bytes (8 for 16-bit types along
// rows) where addresses, strides and extents allow them, of single elements for any other strides.
// Algorithm: teams of 32 threads stream the long operand straight into registers, a step ahead of the
// arithmetic; the short one lies in shared memory, a stage of k at a time, as the type of the sums.
//   along k     a thread has 4 rows (2 for float64) and 64 bytes of each step; 16 threads share a row,
//               and add up at the end by halving: each keeps half of the sums and gives away the rest
//   along rows  a thread has 4 (2) neighbouring rows for itself
// Teams of a block share rows, too, where there are few, and add up in shared memory; so do blocks,
// by way of the workspace (gemm_parts.cuh). All in a fixed order, which depends on the shape and the
// device: bits depend on the number of rows.
//
// Estimate, on an H200 (132 multiprocessors, 4.28 TB/s, about 1.8 GHz), float32 16 x 4096 x 4096:
//   memory      67 MB: 15.7 us
//   FMA         2.7e8: 8.8 us at 128 a clock
//   LDS         16 bytes of the short operand serve 16 multiply-adds of a thread. Pairs of threads
//               read the same, so a warp reads 256 bytes: 2 clocks for 4 of multiply-adds: 4.4 us
//   L2          each block reads the short operand, too. Two teams share 8 rows: 128 blocks of 32
//               rows, 16 columns beside them, 100 MB in all: 18 us at 5.5 TB/s. Four parts of k would
//               read less, but take another kernel.
//   in flight   64 KB a multiprocessor, from its 256 threads (512 for one column)
// Measured there: one column 3.7 TB/s (268 MB), four 3.0, but 16 columns 38 us, 1.8 TB/s: not bound by
// memory then, and by what is not known yet. More than 16 columns are two tiles, the second from the
// L2 cache.
// Sums in float32 (float64 for float64).
#pragma once

#include <climits>
#include <cstdlib>

#include "cuda/gemm_parts.cuh"

namespace dlkern::gpu {

inline constexpr int kThinMost = 32;  // columns
inline constexpr int kThinThreads = 256, kThinTeam = 32, kThinTeams = kThinThreads / kThinTeam;
inline constexpr int kThinShared = 32 << 10;  // bytes

// How a team's step is cut, by the sizes of an element and of a sum.
struct ThinStep {
  int rows, depth;      // of a thread
  int team_rows, step;  // of a team; step: along k

  constexpr ThinStep(int bytes, int sum_bytes, bool along_k)
      : rows(sum_bytes == 8 ? 2 : 4),
        depth(64 / (rows * bytes)),
        team_rows((along_k ? 2 : kThinTeam) * rows),
        step((along_k ? kThinTeam / 2 : 1) * depth) {}
};

// Depth of a stage of the short operand, of which so many columns lie in shared memory.
constexpr int thin_stage(int cols, int sum_bytes) {
  return std::min(kThinShared / (cols * sum_bytes), 2048);
}

// Blocks that a multiprocessor holds, as many as have the registers: 16-bit elements that come one by
// one take a register each.
constexpr int thin_blocks(int cols, int bytes, bool wide) {
  return cols == 1 && bytes < 8 && (bytes > 2 || wide) ? 2 : 1;
}

// Steps of a team that are on their way from memory: 64 KB for a multiprocessor, or less where that
// takes too many registers.
constexpr int thin_ahead(int cols, int bytes, bool wide) {
  if (!wide && bytes == 2 && cols > 8) return 1;
  return (wide ? 4 : 2) / thin_blocks(cols, bytes, wide);
}

// An operand with any strides.
struct ThinOperand {
  const void* data;
  int64_t row, k;  // strides
  bool wide;       // by vectors
};

struct ThinArgs {
  Gemm g;
  ThinOperand x[2];  // the long one, the short one
  int64_t rows, cols;
  bool of_b;    // b is the long one
  int depth;    // of k
  int last;     // and of the last item, where they are parts of a sum
  int teams_k;  // teams that share rows
  uint32_t tiles_rows, tiles_cols, tiles;

  explicit ThinArgs(const Gemm& gemm) : g(gemm) {}
};

// ---- Config ---------------------------------------------------------------------------------

template <class T_, int kCols_, bool kAlongK_, bool kWide_>
struct Thin {
  using T = T_;
  using Sum = Accumulator<T>;
  static constexpr int kCols = kCols_;
  static constexpr bool kAlongK = kAlongK_, kWide = kWide_;
  static constexpr int kQuad = 16 / sizeof(Sum);  // elements of the short operand in an access
  static constexpr ThinStep kShape{sizeof(T), sizeof(Sum), kAlongK};
  static constexpr int kRows = kShape.rows, kDepth = kShape.depth, kStep = kShape.step;
  static constexpr int kTeamRows = kShape.team_rows, kLanes = kThinTeam / 2;
  static constexpr int kVec = !kWide ? 1 : kAlongK ? 16 / sizeof(T) : kRows;
  static constexpr int kStage = thin_stage(kCols, sizeof(Sum));
  static constexpr int kMinBlocks = thin_blocks(kCols, sizeof(T), kWide);
  static constexpr int kAhead = thin_ahead(kCols, sizeof(T), kWide);
  // Columns whose sums are in shared memory at a time.
  static constexpr int kChunk = kAlongK ? kCols : std::min(kCols, 8);
  static_assert(kStage % (kStep * kAhead) == 0 && kDepth % kQuad == 0 && kDepth % kVec == 0);
  static_assert(kThinTeams * kTeamRows * kChunk * sizeof(Sum) <= kThinShared);

  // Where an element of the short operand is in its column of a stage: a thread's share of a step
  // is one of whole quads, and those of neighbouring threads are neighbours.
  static __device__ __forceinline__ int place(int k) {
    if constexpr (!kAlongK) return k;
    const int i = k % kStep, lane = i % (kLanes * kVec) / kVec;
    const int j = i / (kLanes * kVec) * kVec + i % kVec;
    return k - i + j / kQuad * (kLanes * kQuad) + lane * kQuad + j % kQuad;
  }
};

// ---- The long operand -----------------------------------------------------------------------

// N neighbouring elements as they come: 16-bit ones stay together in words.
template <class T, int N>
struct ThinVec {
  static constexpr int kWord = sizeof(T) == 2 && N > 1 ? 2 : 1;  // elements of one
  using Word = std::conditional_t<kWord == 2, uint32_t, T>;
  Vec<Word, N / kWord> v = {};

  __device__ __forceinline__ void load(const T* from) {
    v = load_vec<N / kWord>(reinterpret_cast<const Word*>(from));
  }
  template <class Sum>
  __device__ __forceinline__ Sum at(int i) const {
    if constexpr (kWord == 2) {
      const uint32_t word = v.v[i / 2];
      return static_cast<Sum>(bit_cast_to<T>(static_cast<uint16_t>(i % 2 ? word >> 16 : word)));
    } else {
      return static_cast<Sum>(v.v[i]);
    }
  }
};

// What a thread takes of it in a step.
template <class C>
struct ThinTaken {
  using T = typename C::T;
  static constexpr int kVec = C::kVec;
  ThinVec<T, kVec> v[C::kRows * C::kDepth / kVec];

  __device__ __forceinline__ typename C::Sum at(int r, int j) const {
    const int i = C::kAlongK ? r * C::kDepth + j : j * C::kRows + r;
    return v[i / kVec].template at<typename C::Sum>(i % kVec);
  }
};

// A thread's rows.
template <class C>
class ThinRows {
 public:
  using T = typename C::T;

  // first: of the team. Rows that there are not are read as others; their sums go nowhere.
  __device__ __forceinline__ ThinRows(const ThinOperand& x, int64_t at, int64_t first, int64_t rows,
                                      int k_end, int lane)
      : k_stride_(x.k), k_end_(k_end), lane_(lane) {
    const T* data = static_cast<const T*>(x.data) + at;
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int64_t row = first + row_of(lane, i * (C::kAlongK ? 1 : C::kVec));
      const int64_t last = rows - (C::kAlongK ? 1 : C::kVec);
      line_[i] = data + (row < last ? row : last) * x.row;
    }
  }

  // Of the team: where a thread's row number r is.
  static __device__ __forceinline__ int row_of(int lane, int r) {
    if constexpr (C::kAlongK) return 2 * r + lane % 2;
    return r / C::kVec * kThinTeam * C::kVec + lane * C::kVec + r % C::kVec;
  }

  // Zeros behind the end of k.
  __device__ __forceinline__ void load(ThinTaken<C>& to, int step) const {
    constexpr int kApart = C::kAlongK ? C::kLanes * C::kVec : 1;  // from vector to vector
    constexpr int kVectors = C::kAlongK ? C::kDepth / C::kVec : C::kDepth;
    const int k = step * C::kStep + (C::kAlongK ? lane_ / 2 * C::kVec : 0);
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const int64_t offset = (k + u * kApart) * (C::kAlongK && C::kWide ? 1 : k_stride_);
#pragma unroll
      for (int i = 0; i < kLines; ++i) {
        ThinVec<T, C::kVec> v;
        if (k + u * kApart < k_end_) v.load(line_[i] + offset);
        to.v[C::kAlongK ? i * kVectors + u : u * kLines + i] = v;
      }
    }
  }

 private:
  static constexpr int kLines = C::kAlongK ? C::kRows : C::kRows / C::kVec;
  const T* line_[kLines];
  int64_t k_stride_;
  int k_end_, lane_;
};

// ---- The short operand ----------------------------------------------------------------------

// Its elements from k on, `depth` for each column of a tile; zeros where there are none. `data` is at
// the first column.
template <class C, bool kWide>
__device__ __forceinline__ void load_stage(typename C::Sum* shared, const ThinOperand& x,
                                           const typename C::T* data, int cols, int k, int k_end,
                                           int depth) {
  using Sum = typename C::Sum;
  constexpr int kQuad = C::kQuad, kSide = 128;  // threads along k
  constexpr int kUnroll = !kWide ? 1 : C::kMinBlocks > 1 ? 4 : 8;
  for (int q = threadIdx.x % kSide * kQuad; q < depth; q += kSide * kQuad) {
    int c = threadIdx.x / kSide;
    const typename C::T* from = data + c * x.row + (k + q) * x.k;
    const int64_t step = kThinThreads / kSide * x.row;
    Sum* to = shared + c * C::kStage;
#pragma unroll kUnroll
    for (; c < C::kCols; c += kThinThreads / kSide) {
      Vec<Sum, kQuad> v{};
      if constexpr (kWide) {
        ThinVec<typename C::T, kQuad> raw;
        if (c < cols && k + q < k_end) raw.load(from);
#pragma unroll
        for (int e = 0; e < kQuad; ++e) v.v[e] = raw.template at<Sum>(e);
      } else {
#pragma unroll
        for (int e = 0; e < kQuad; ++e) {
          if (c < cols && k + q + e < k_end) v.v[e] = static_cast<Sum>(from[e * x.k]);
        }
      }
      if constexpr (!C::kAlongK || C::kVec % kQuad == 0) {
        store_vec(to + C::place(q), v);
      } else {
#pragma unroll
        for (int e = 0; e < kQuad; ++e) to[C::place(q + e)] = v.v[e];
      }
      from += step;
      to += kThinThreads / kSide * C::kStage;
    }
  }
}

// ---- What a block works on ------------------------------------------------------------------

template <class C>
struct ThinTile {
  uint32_t item, row, col;  // row and col count tiles
  int block_rows;

  __device__ __forceinline__ explicit ThinTile(const ThinArgs& args)
      : block_rows(kThinTeams / args.teams_k * C::kTeamRows) {
    const uint32_t by_cols = blockIdx.x / args.tiles_cols;
    col = blockIdx.x - by_cols * args.tiles_cols;
    item = by_cols / args.tiles_rows;
    row = by_cols - item * args.tiles_rows;
  }
  // Of the item, in operand a (0) or b (1).
  __device__ __forceinline__ int64_t offset(const ThinArgs& args, int operand) const {
    const auto& batch = args.g.batch;
    int64_t offset = 0;
    uint32_t i = item;
#pragma unroll 1
    for (int d = batch.ndim - 1; d >= 0; --d) {
      const uint32_t extent = static_cast<uint32_t>(batch.shape[d]), q = i / extent;
      offset += (i - q * extent) * batch.stride[operand][d];
      i = q;
    }
    return offset;
  }
  __device__ __forceinline__ int64_t row0() const { return int64_t{row} * block_rows; }
  __device__ __forceinline__ int col0() const { return static_cast<int>(col) * C::kCols; }
  __device__ __forceinline__ int cols(const ThinArgs& args) const {
    const int left = static_cast<int>(args.cols) - col0();
    return left < C::kCols ? left : C::kCols;
  }
};

// ---- Sums -----------------------------------------------------------------------------------

// sums[c * kRows + r] += the products of a step; x: this thread's first quad of the first column.
template <class C>
__device__ __forceinline__ void multiply(typename C::Sum (&sums)[C::kCols * C::kRows],
                                         const ThinTaken<C>& taken, const typename C::Sum* x) {
  using Sum = typename C::Sum;
  constexpr int kQuad = C::kQuad, kApart = C::kAlongK ? C::kLanes * kQuad : kQuad;
#pragma unroll
  for (int q = 0; q < C::kDepth / kQuad; ++q) {
    Sum w[C::kRows][kQuad];
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
      for (int e = 0; e < kQuad; ++e) w[r][e] = taken.at(r, q * kQuad + e);
    }
#pragma unroll
    for (int c = 0; c < C::kCols; ++c) {
      const auto of_column = load_vec<kQuad>(x + c * C::kStage + q * kApart);
#pragma unroll
      for (int e = 0; e < kQuad; ++e) {
#pragma unroll
        for (int r = 0; r < C::kRows; ++r) sums[c * C::kRows + r] += w[r][e] * of_column.v[e];
      }
    }
  }
}

// Adds up over the lanes whose numbers differ in the bits of kMask and below, but for the last.
// Each lane is left with sums number first, first + 1, ... (N / 16 of them, at least 1).
template <int N, int kMask = kThinTeam / 2, class Sum, int kSize>
__device__ __forceinline__ void add_lanes(Sum (&sums)[kSize], int lane, int& first) {
  if constexpr (kMask > 1) {
    if constexpr (N > 1) {
      const bool upper = lane & kMask;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const Sum kept = upper ? sums[i + N / 2] : sums[i];
        sums[i] = kept + shuffle_xor(upper ? sums[i] : sums[i + N / 2], kMask);
      }
      if (upper) first += N / 2;
    } else {
      sums[0] += shuffle_xor(sums[0], kMask);
    }
    add_lanes<(N > 1 ? N / 2 : 1), kMask / 2>(sums, lane, first);
  }
}

// Adds up the sums of the teams that share rows, in their order, and stores y. `shared` holds
// [team][kChunk][kTeamRows].
template <class C>
__device__ __forceinline__ void finish_thin(typename C::Sum (&sums)[C::kCols * C::kRows],
                                            typename C::Sum* shared, const ThinArgs& args,
                                            const ThinTile<C>& tile) {
  using Sum = typename C::Sum;
  constexpr int kTeamSums = C::kChunk * C::kTeamRows;
  const int lane = threadIdx.x % kThinTeam;
  Sum* own = shared + threadIdx.x / kThinTeam * kTeamSums;
  const int block_rows = tile.block_rows;
  [[maybe_unused]] int first = 0;
  if constexpr (C::kAlongK) add_lanes<C::kCols * C::kRows>(sums, lane, first);
  int64_t at[Gemm::kTensors];
  args.g.batch.offsets(tile.item, at);
  const GemmEpilogue<Sum> epilogue{args.g, tile.item, at};
#pragma unroll
  for (int chunk = 0; chunk < C::kCols; chunk += C::kChunk) {
    __syncthreads();  // what was there has been read
    if constexpr (C::kAlongK) {
      constexpr int kSums = C::kCols * C::kRows, kLeft = std::max(kSums / C::kLanes, 1);
      constexpr int kSame = std::max(C::kLanes / kSums, 1);
      // Lanes that have the same sums differ in the low bits.
      if (lane / 2 % kSame == 0) {
#pragma unroll
        for (int i = 0; i < kLeft; ++i) {
          const int c = (first + i) / C::kRows, r = (first + i) % C::kRows;
          own[c * C::kTeamRows + ThinRows<C>::row_of(lane, r)] = sums[i];
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < C::kChunk * C::kRows; ++i) {
        own[i / C::kRows * C::kTeamRows + ThinRows<C>::row_of(lane, i % C::kRows)] =
            sums[chunk * C::kRows + i];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < block_rows * C::kChunk; i += kThinThreads) {
      // Neighbouring threads have neighbouring n.
      const int row = args.of_b ? i % block_rows : i / C::kChunk;
      const int col = args.of_b ? i / block_rows : i % C::kChunk;
      const int64_t r = tile.row0() + row, c = tile.col0() + chunk + col;
      if (r >= args.rows || c >= args.cols) continue;
      const Sum* from = shared + row / C::kTeamRows * args.teams_k * kTeamSums +
                        col * C::kTeamRows + row % C::kTeamRows;
      Sum sum = from[0];
      for (int team = 1; team < args.teams_k; ++team) sum += from[team * kTeamSums];
      epilogue(args.of_b ? c : r, args.of_b ? r : c, sum);
    }
  }
}

// ---- The kernel -----------------------------------------------------------------------------

template <class C>
__global__ void __launch_bounds__(kThinThreads, C::kMinBlocks) gemm_thin_kernel(ThinArgs args) {
  using T = typename C::T;
  using Sum = typename C::Sum;
  __shared__ __align__(16) unsigned char storage[kThinShared];
  Sum* shared = reinterpret_cast<Sum*>(storage);
  const int lane = threadIdx.x % kThinTeam, team = threadIdx.x / kThinTeam;
  const int group = team / args.teams_k, of_k = team % args.teams_k;
  const ThinTile<C> tile(args);
  const int k_end = tile.item + 1 == args.g.batch.numel ? args.last : args.depth;
  const int steps = (k_end + C::kStep - 1) / C::kStep;
  const ThinRows<C> rows(args.x[0], tile.offset(args, args.of_b),
                         tile.row0() + group * C::kTeamRows, args.rows, k_end, lane);
  const T* of_short = static_cast<const T*>(args.x[1].data) + tile.offset(args, !args.of_b) +
                      tile.col0() * args.x[1].row;
  Sum sums[C::kCols * C::kRows] = {};
  ThinTaken<C> next[C::kAhead];
  const int round = C::kAhead * args.teams_k;  // steps, of all teams that share rows
#pragma unroll
  for (int i = 0; i < C::kAhead; ++i) rows.load(next[i], of_k + i * args.teams_k);
  constexpr int kSteps = C::kStage / C::kStep;
  for (int stage = 0; stage < steps; stage += kSteps) {
    // Whole rounds, with zeros behind the end.
    const int left = (steps - stage + round - 1) / round * round;
    const int count = left < kSteps ? left : kSteps;
    __syncthreads();  // the stage before has been read
    if (args.x[1].wide) {
      load_stage<C, true>(shared, args.x[1], of_short, tile.cols(args), stage * C::kStep, k_end,
                          count * C::kStep);
    } else {
      load_stage<C, false>(shared, args.x[1], of_short, tile.cols(args), stage * C::kStep, k_end,
                           count * C::kStep);
    }
    __syncthreads();
    const Sum* x = shared + of_k * C::kStep + (C::kAlongK ? lane / 2 * C::kQuad : 0);
#pragma unroll 1
    for (int s = 0; s < count; s += round) {
#pragma unroll
      for (int i = 0; i < C::kAhead; ++i) {
        const ThinTaken<C> taken = next[i];
        rows.load(next[i], stage + s + of_k + i * args.teams_k + round);
        multiply<C>(sums, taken, x);
        x += args.teams_k * C::kStep;
      }
    }
  }
  finish_thin<C>(sums, shared, args, tile);
}

// For the files that instantiate it. cols: of a tile (1, 4, 8 or 16).
template <class T>
void launch_thin(const ThinArgs& args, int cols, bool along_k, const Launch& launch) {
  const auto run = [&]<int kCols>() {
    const bool wide = args.x[0].wide;
    const auto kernel = along_k ? (wide ? gemm_thin_kernel<Thin<T, kCols, true, true>>
                                        : gemm_thin_kernel<Thin<T, kCols, true, false>>)
                                : (wide ? gemm_thin_kernel<Thin<T, kCols, false, true>>
                                        : gemm_thin_kernel<Thin<T, kCols, false, false>>);
    launch_kernel(kernel, args.tiles, kThinThreads, 0, launch.stream, args);
  };
  switch (cols) {
    case 1:
      return run.template operator()<1>();
    case 4:
      return run.template operator()<4>();
    case 8:
      return run.template operator()<8>();
    default:
      return run.template operator()<16>();
  }
}

}  // namespace dlkern::gpu
