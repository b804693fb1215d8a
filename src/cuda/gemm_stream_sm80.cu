// Products of very many rows with a small matrix, as a convolution of one tap with few channels is: by
// mma.sync, compute capability 8.0 and newer, at the memory's rate.
//
//   y[m, n] = sum_k a[m, k] b[k, n] (+ c[m, n], often a bias)
//
// float16 and bfloat16, y of the operands' dtype. a and y lie along their rows, for accesses of 16 bytes
// or, of very short ones, element by element; b lies anyhow, and items of a batch share it.
// Algorithm: b waits in shared memory, [n][k]. A warp takes 16 rows (32 of short ones) straight from
// memory to registers, in which a lane of four has 8 neighbours of k in each 32: the k of an instruction
// come in another order, the same for b. So do the columns: a lane of four ends with 8 neighbours of
// each 32, and stores them at once. Nothing of a or y goes through shared memory, and warps do not wait
// for each other; a block goes on with more rows because it has b.
// The order of a sum depends on k alone, and whether this kernel is taken not on the rows either, where a
// product is batch-invariant: a row's bits depend on nothing but the row and b.
//
// On an H200 (4.28 TB/s), 802816 rows of k 16 by n 96: 180 MB, which take 42 us; seen, 58.
// Sums in float32.
#include "cuda/gemm.h"

#if !defined(__HIPCC__)

#include <array>
#include <utility>

#include "cuda/gemm_parts.cuh"
#include "cuda/prims/mma.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kChunk = 32;  // of k, and columns of a pass
// Beyond, reads of shared memory take as long as those of memory.
constexpr int kMostChunks = 5, kMostWeights = 8192;
constexpr int64_t kFewRows = 4096;  // for fewer there are kernels that share k
// Longest k of a, and n of y, that go element by element.
constexpr int kMostElementsK = 16, kMostElementsN = kChunk;

struct StreamArgs {
  const uint16_t *a, *b;
  uint16_t* y;
  int64_t a_row, y_row, b_col, b_k;  // strides
  int64_t m, tiles_m, tiles;         // tiles: of all items
  StridedIndex<3> batch;             // a, y, c
  Matrix bias;                       // c, if it is one row for all
  Matrix c;                          // else
  int n, k;
  bool b_in_vectors, c_in_vectors;
};

// Blocks of a multiprocessor, as many as have the registers.
constexpr int blocks_of(int chunks) { return chunks == 2 ? 6 : chunks <= 3 ? 5 : 4; }
constexpr int padded(int extent) { return (extent + kChunk - 1) / kChunk * kChunk; }
// Bytes of a column of b in shared memory: an odd number of 64, so that 8 lanes, which read 64 bytes of
// two columns, have all banks.
constexpr int pitch_of(int chunks) { return 64 * (chunks | 1); }
constexpr int shared_bytes(int chunks, int n) {
  return padded(n) * (pitch_of(chunks) + static_cast<int>(sizeof(float)));
}

// b and the bias, with zeros around them.
template <int kChunks>
__device__ __forceinline__ void load_weights(const StreamArgs& args, unsigned char* weights,
                                             float* bias) {
  constexpr int kDepth = kChunks * kChunk, kPitch = pitch_of(kChunks);
  const int columns = padded(args.n);
  if (!args.b_in_vectors) {
    for (int i = threadIdx.x; i < columns * kDepth; i += kThreads) {
      const int col = i / kDepth, k = i % kDepth;
      const bool there = col < args.n && k < args.k;
      *reinterpret_cast<uint16_t*>(weights + col * kPitch + k * 2) =
          there ? args.b[col * args.b_col + k * args.b_k] : uint16_t{0};
    }
  } else if (args.b_k == 1) {
    for (int i = threadIdx.x; i < columns * (kDepth / 8); i += kThreads) {
      const int col = i / (kDepth / 8), k = i % (kDepth / 8) * 8;
      uint4 v{};
      if (col < args.n && k < args.k) {
        v = *reinterpret_cast<const uint4*>(args.b + col * args.b_col + k);
      }
      *reinterpret_cast<uint4*>(weights + col * kPitch + k * 2) = v;
    }
  } else {
    for (int i = threadIdx.x; i < columns / 8 * kDepth; i += kThreads) {
      const int col = i / kDepth * 8, k = i % kDepth;
      Vec<uint16_t, 8> v{};
      if (col < args.n && k < args.k) v = load_vec<8>(args.b + k * args.b_k + col);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        *reinterpret_cast<uint16_t*>(weights + (col + e) * kPitch + k * 2) = v.v[e];
      }
    }
  }
  for (int col = threadIdx.x; col < columns; col += kThreads) {
    const bool there = args.bias.data && col < args.n;
    bias[col] = there ? load_as<float>(args.bias, col * args.bias.col) : 0.0f;
  }
}

// Which of a and y go element by element.
enum class ByElement { kNone, kY, kA, kBoth };

// count elements, at most 8.
__device__ __forceinline__ void load_elements(const uint16_t* from, int count, uint32_t (&w)[4]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (e < count) w[e / 2] |= uint32_t{from[e]} << 16 * (e % 2);
  }
}
__device__ __forceinline__ void store_elements(uint16_t* to, int count, const uint32_t (&w)[4]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (e < count) to[e] = static_cast<uint16_t>(w[e / 2] >> 16 * (e % 2));
  }
}

template <class T, int kChunks, ByElement kBy>
__global__ void __launch_bounds__(kThreads, blocks_of(kChunks))
    gemm_stream_kernel(const __grid_constant__ StreamArgs args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  constexpr int kTiles = kChunks == 1 ? 2 : 1, kRows = 16 * kTiles, kPitch = pitch_of(kChunks);
  constexpr bool kVectorsA = kBy == ByElement::kNone || kBy == ByElement::kY;
  constexpr bool kVectorsY = kBy == ByElement::kNone || kBy == ByElement::kA;
  extern __shared__ __align__(16) unsigned char weights[];
  float* bias = reinterpret_cast<float*>(weights + padded(args.n) * kPitch);
  load_weights<kChunks>(args, weights, bias);
  __syncthreads();
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
  // Of the columns 0 to 7 of an instruction, this lane's of b.
  const unsigned char* own = weights + (g / 2 * 8 + g % 2) * kPitch + t * 16;
  const int64_t step = int64_t{gridDim.x} * kWarps;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; i < args.tiles; i += step) {
    int64_t tile = i, at[3] = {0, 0, 0};
    if (args.batch.ndim > 0) {
      const int64_t item = quotient(i, args.tiles_m);
      tile -= item * args.tiles_m;
      args.batch.offsets(item, at);
    }
    const int64_t row0 = tile * kRows + g;
    const uint16_t* from = args.a + at[0] + row0 * args.a_row + t * 8;
    uint32_t x[kTiles][2][kChunks][4] = {};  // rows g and g + 8 of each 16
#pragma unroll
    for (int r = 0; r < 2 * kTiles; ++r) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int left = row0 + 8 * r < args.m ? args.k - c * kChunk - t * 8 : 0;
        const uint16_t* piece = from + 8 * r * args.a_row + c * kChunk;
        if constexpr (kVectorsA) {
          load_16_if<true>(left > 0, piece, x[r / 2][r % 2][c]);
        } else {
          load_elements(piece, left, x[r / 2][r % 2][c]);
        }
      }
    }
    uint16_t* to = args.y + at[1] + row0 * args.y_row + t * 8;
#pragma unroll 1
    for (int col = 0; col < args.n; col += kChunk) {
      float sums[kTiles][4][4] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const auto w = load_vec<4>(
              reinterpret_cast<const uint32_t*>(own + (col + 2 * j) * kPitch + c * kChunk * 2));
#pragma unroll
          for (int r = 0; r < kTiles; ++r) {
            const auto &low = x[r][0][c], &high = x[r][1][c];
            Mma<T>::product(sums[r][j], {low[0], high[0], low[1], high[1]}, w.v[0], w.v[1]);
            Mma<T>::product(sums[r][j], {low[2], high[2], low[3], high[3]}, w.v[2], w.v[3]);
          }
        }
      }
      const int columns = args.n - col - t * 8;
#pragma unroll
      for (int r = 0; r < 2 * kTiles; ++r) {
        const int left = row0 + 8 * r < args.m ? columns : 0;
        auto addend = load_vec<8>(bias + col + t * 8);
        if (args.c.data && left > 0) {
          const Matrix& c = args.c;
          const int64_t place = at[2] + (row0 + 8 * r) * c.row + col + t * 8;
          if (args.c_in_vectors) {
            Raw<T, 8> raw;
            raw.load(c.as<const T>() + place);
            raw.unpack(addend.v);
          } else {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
              if (e >= left) break;
              addend.v[e] = c.dtype == DType::kFloat32
                                ? c.as<const float>()[place + e]
                                : static_cast<float>(c.as<const T>()[place + e]);
            }
          }
        }
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* pair = sums[r / 2][j] + r % 2 * 2;
          w[j] = pack_pair<T>(pair[0] + addend.v[2 * j], pair[1] + addend.v[2 * j + 1]);
        }
        uint16_t* piece = to + 8 * r * args.y_row + col;
        if constexpr (kVectorsY) {
          if (left > 0) store_16(piece, {w[0], w[1], w[2], w[3]});
        } else {
          store_elements(piece, left, w);
        }
      }
    }
  }
#endif
}

bool at_16_bytes(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// One row for all: with m = 1 c may be that or a matrix, and the result is the same.
bool is_bias(const Gemm& g) {
  for (int d = 0; d < g.batch.ndim; ++d) {
    if (g.batch.stride[2][d] != 0) return false;
  }
  return g.m == 1 || g.c.row == 0;
}

// Whether a tensor's rows, or all that follow each other along the other way, begin at 16 bytes.
bool steps_by_vectors(const Gemm& g, int which, const void* data, int64_t step) {
  bool fits = at_16_bytes(data) && step % 8 == 0;
  for (int d = 0; d < g.batch.ndim; ++d) fits = fits && g.batch.stride[which][d] % 8 == 0;
  return fits;
}

// With m = 1 strides of rows say nothing.
int64_t row_of(const Gemm& g, const Matrix& t) { return g.m == 1 ? 0 : t.row; }

ByElement by_element(const Gemm& g) {
  const bool a = g.k.numel % 8 == 0 && steps_by_vectors(g, 0, g.a.data, row_of(g, g.a));
  const bool y = g.n % 8 == 0 && steps_by_vectors(g, 3, g.y.data, row_of(g, g.y));
  return a ? (y ? ByElement::kNone : ByElement::kY) : y ? ByElement::kA : ByElement::kBoth;
}

bool has_b_in_vectors(const Gemm& g) {
  const int64_t b_k = g.k.stride[1][0];
  if (b_k == 1) return g.k.numel % 8 == 0 && steps_by_vectors(g, 1, g.b.data, g.b.col);
  return g.b.col == 1 && g.n % 8 == 0 && steps_by_vectors(g, 1, g.b.data, b_k);
}

// With a batch-invariant product no answer here may depend on m, or on the number of items.
const char* cannot_stream(const Gemm& g) {
  if (compute_capability() < 80) return "the GPU's compute capability is below 8.0";
  const DType dtype = g.a.dtype;
  if (dtype != DType::kFloat16 && dtype != DType::kBFloat16) return "operands not of 16 bits";
  if (g.b.dtype != dtype || g.y.dtype != dtype) return "the dtypes differ";
  if (g.is_grouped() || g.is_scaled() || g.row_sum.data) return "groups, factors or sums of rows";
  if (g.k.ndim > 1) return "the sum runs over several dimensions";
  if (g.m < 1 || g.n < 1 || g.batch.numel < 1) return "y is empty";
  const int64_t k = g.k.numel;
  if (k < 1 || k > kMostChunks * kChunk || g.n > kMostWeights / kChunk ||
      padded(static_cast<int>(k)) * padded(static_cast<int>(g.n)) > kMostWeights) {
    return "the second operand is not small";
  }
  if (k >= 64 && g.n >= 64 && compute_capability() == 90) return "wgmma is as fast";
  Epilogue rest = g;
  if (g.beta == 1 && (g.c.dtype == dtype || g.c.dtype == DType::kFloat32)) rest.beta = 0;
  if (g.alpha != 1 || !rest.is_plain()) return "an epilogue other than an addend";
  if (!g.batch_invariant && g.m * g.batch.numel < kFewRows) return "few rows";
  for (int d = 0; d < g.batch.ndim; ++d) {
    if (g.batch.stride[1][d] != 0) return "items have second operands of their own";
  }
  if ((k > 1 && g.k.stride[0][0] != 1) ||
      (g.n > 1 && (g.y.col != 1 || (g.beta != 0 && !is_bias(g) && g.c.col != 1)))) {
    return "an operand does not lie along its rows";
  }
  const ByElement by = by_element(g);
  const bool a = by == ByElement::kA || by == ByElement::kBoth;
  const bool y = by == ByElement::kY || by == ByElement::kBoth;
  if ((a && k > kMostElementsK) || (y && g.n > kMostElementsN)) {
    return "extents, addresses or strides are not for accesses of 16 bytes";
  }
  return nullptr;
}

// For 1 to kMostChunks chunks.
template <class T, ByElement kBy, int... kLess>
constexpr std::array<void (*)(StreamArgs), sizeof...(kLess)> kernels_of(
    std::integer_sequence<int, kLess...>) {
  return {gemm_stream_kernel<T, kLess + 1, kBy>...};
}
template <class T>
auto kernel_of(int chunks, ByElement by) {
  constexpr std::make_integer_sequence<int, kMostChunks> kAll;
  static_assert(kMostElementsK <= kChunk);
  switch (by) {
    case ByElement::kA:
      return gemm_stream_kernel<T, 1, ByElement::kA>;
    case ByElement::kBoth:
      return gemm_stream_kernel<T, 1, ByElement::kBoth>;
    case ByElement::kY:
      return kernels_of<T, ByElement::kY>(kAll)[chunks - 1];
    default:
      return kernels_of<T, ByElement::kNone>(kAll)[chunks - 1];
  }
}

template <class T>
void launch_stream(const Gemm& g, const Launch& launch) {
  StreamArgs args{};
  args.a = g.a.as<const uint16_t>();
  args.b = g.b.as<const uint16_t>();
  args.y = g.y.as<uint16_t>();
  args.a_row = row_of(g, g.a);
  args.y_row = row_of(g, g.y);
  args.b_col = g.b.col;
  args.b_k = g.k.stride[1][0];
  args.m = g.m;
  args.n = static_cast<int>(g.n);
  args.k = static_cast<int>(g.k.numel);
  args.b_in_vectors = has_b_in_vectors(g);
  for (int d = 0; d < g.batch.ndim; ++d) {
    const int64_t of_c = g.beta != 0 ? g.batch.stride[2][d] : 0;
    args.batch.push(g.batch.shape[d], {g.batch.stride[0][d], g.batch.stride[3][d], of_c});
  }
  if (g.beta != 0 && is_bias(g)) {
    args.bias = g.c;
  } else if (g.beta != 0) {
    args.c = g.c;
    args.c.row = row_of(g, g.c);
    args.c_in_vectors =
        g.c.dtype == g.a.dtype && g.n % 8 == 0 && steps_by_vectors(g, 2, g.c.data, args.c.row);
  }
  const int chunks = padded(args.k) / kChunk;
  args.tiles_m = ceil_div(g.m, chunks == 1 ? 32 : 16);
  args.tiles = args.tiles_m * g.batch.numel;
  const int64_t most = int64_t{multiprocessor_count()} * blocks_of(chunks);
  const auto grid = static_cast<unsigned>(std::min(ceil_div(args.tiles, kWarps), most));
  launch_kernel(kernel_of<T>(chunks, by_element(g)), grid, kThreads, shared_bytes(chunks, args.n),
                launch.stream, args);
}

constexpr Impl<Gemm> kImpls[] = {
    {"mma_sm80_stream", cannot_stream, nullptr,
     [](const Gemm& g, const Launch& l) {
       if (g.a.dtype == DType::kFloat16) return launch_stream<Half>(g, l);
       launch_stream<BFloat16>(g, l);
     }},
};

}  // namespace

ImplList<Gemm> gemm_stream_impls() { return kImpls; }

}  // namespace dlkern

#else

namespace dlkern {
ImplList<Gemm> gemm_stream_impls() { return {}; }
}  // namespace dlkern

#endif
