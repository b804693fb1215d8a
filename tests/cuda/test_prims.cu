// Tests of the kernels' building blocks (src/cuda/prims), each against plain loops on the host.
// Here: what any NVIDIA GPU from compute capability 8.0 on has, and the program itself.
//
//   test_prims [CASE]     runs that case, or all of this GPU
//
// Exit status 0, 1 with the first element that differs, or 77 where the GPU cannot run the case.
// tests/test_prims.py compiles and runs it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "check.h"
#include "core/float8.h"
#include "cuda/prims/epilogue.cuh"
#include "cuda/prims/mma.cuh"
#include "cuda/prims/reduce.cuh"
#include "cuda/prims/simt_gemm.cuh"
#include "cuda/prims/tensor_list.cuh"
#include "cuda/prims/tile_loader.cuh"
#include "cuda/prims/tile_of.cuh"

namespace dlkern::test {
namespace {

using namespace gpu;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- Reductions ------------------------------------------------------------------------------

// Sums of 8 and of 32 lanes, and the largest of 32.
__global__ void warp_reduce_kernel(const float* x, float* of_8, float* of_32, float* largest) {
  const float v = x[threadIdx.x];
  of_8[threadIdx.x] = warp_reduce<8>(v, Sum{});
  of_32[threadIdx.x] = warp_reduce(v, Sum{});
  largest[threadIdx.x] = warp_reduce(v, Max{});
}

void test_warp_reduce() {
  auto x = small_values<float>(64);
  x[40] = kNaN;
  const DeviceArray<float> in(x), of_8(64), of_32(64), largest(64);
  launch_kernel(warp_reduce_kernel, 1, 64, 0, nullptr, in.data(), of_8.data(), of_32.data(),
                largest.data());
  const auto sum = [&](size_t i, size_t width) {
    double s = 0;
    for (size_t j = i / width * width; j < i / width * width + width; ++j) s += x[j];
    return s;
  };
  expect_equal("sum of 8", of_8.read(), [&](size_t i) { return sum(i, 8); });
  expect_equal("sum of 32", of_32.read(), [&](size_t i) { return sum(i, 32); });
  expect_equal("largest", largest.read(), [&](size_t i) {
    if (i >= 32) return kNaN;  // one of its warp is
    return *std::max_element(x.begin(), x.begin() + 32);
  });
}

constexpr int kCalls = 3;

// One call after the other: none may disturb the next.
__global__ void block_reduce_kernel(const double* x, double* sums, double* smallest) {
  const double v = x[threadIdx.x];
  for (int call = 0; call < kCalls; ++call) {
    sums[call * blockDim.x + threadIdx.x] = block_reduce(v + call, Sum{}, 0.0);
  }
  smallest[threadIdx.x] = block_reduce(v, Min{}, 1e300);
}

void test_block_reduce() {
  for (const int threads : {32, 96, 1024}) {
    const auto x = small_values<double>(threads, threads);
    const DeviceArray<double> in(x), sums(kCalls * threads), smallest(threads);
    launch_kernel(block_reduce_kernel, 1, threads, 0, nullptr, in.data(), sums.data(),
                  smallest.data());
    const double sum = std::accumulate(x.begin(), x.end(), 0.0);
    expect_equal("sum", sums.read(), [&](size_t i) { return sum + i / threads * threads; });
    const double least = *std::min_element(x.begin(), x.end());
    expect_equal("smallest", smallest.read(), [&](size_t) { return least; });
  }
}

__global__ void raise_amax_kernel(const float* x, int size, float* amax) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) raise_amax(amax, amax_bits(x[i]));
}

void test_raise_amax() {
  constexpr int kSize = 5000;
  std::vector<float> x(kSize);
  for (int i = 0; i < kSize; ++i) x[i] = (i % 2 ? -1.0f : 1.0f) * static_cast<float>(i * 7 % kSize);
  const auto amax_of = [](const std::vector<float>& values) {
    const DeviceArray<float> in(values), amax(std::vector<float>{0.0f});
    const int size = static_cast<int>(values.size());
    launch_kernel(raise_amax_kernel, 40, 128, 0, nullptr, in.data(), size, amax.data());
    return amax.read();
  };
  x[77] = -8000;
  expect_equal("amax", amax_of(x), [](size_t) { return 8000; });
  x[4000] = std::numeric_limits<float>::infinity();
  expect_equal("amax with infinity", amax_of(x), [&](size_t) { return x[4000]; });
  x[1000] = -kNaN;
  expect_equal("amax with NaN", amax_of(x), [](size_t) { return kNaN; });
}

// ---- Matrices of 8 x 8 elements from shared memory ---------------------------------------------

// Shared memory: [matrix][row][column]. words: [x4, x2, x4 transposed][register][lane].
__global__ void ldmatrix_kernel(const uint16_t* x, uint32_t (*words)[4][32]) {
  __shared__ __align__(16) uint16_t shared[4 * 64];
  for (int i = threadIdx.x; i < 4 * 64; i += 32) shared[i] = x[i];
  __syncwarp();
  uint32_t x4[4], x2[2], trans[4];
  ldmatrix_x4(x4, shared + threadIdx.x * 8);
  ldmatrix_x2(x2, shared + threadIdx.x % 16 * 8);
  ldmatrix_x4_trans(trans, shared + threadIdx.x * 8);
  for (int i = 0; i < 4; ++i) {
    words[0][i][threadIdx.x] = x4[i];
    words[1][i][threadIdx.x] = i < 2 ? x2[i] : 0;
    words[2][i][threadIdx.x] = trans[i];
  }
}

void test_ldmatrix() {
  const auto x = distinct_values(4 * 64);
  const DeviceArray<uint16_t> in(x);
  const DeviceArray<uint32_t> words(3 * 4 * 32);
  launch_kernel(ldmatrix_kernel, 1, 32, 0, nullptr, in.data(),
                reinterpret_cast<uint32_t(*)[4][32]>(words.data()));
  expect_equal("words", words.read(), [&](size_t i) -> uint32_t {
    const size_t kind = i / 128, matrix = i / 32 % 4, g = i % 32 / 4, t = i % 4;
    if (kind == 1 && matrix >= 2) return 0;
    const auto element = [&](size_t row, size_t col) -> uint32_t {
      return x[matrix * 64 + (kind == 2 ? col * 8 + row : row * 8 + col)];
    };
    return element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  });
}

// ---- Operands on their way to shared memory ----------------------------------------------------

// A tile of an operand, kRows x kTileDepth<T>, copied and read back in the order [r][k].
template <class T, int kRows, bool kAlongK>
__global__ void tile_loader_kernel(TileSource source, int64_t rows, int64_t depth, T* out) {
  constexpr int kThreads = 64;
  using Shared = SharedTile<T, kRows, kAlongK>;
  __shared__ __align__(128) unsigned char tile[kRows * kTileDepthBytes];
  const TileLoader<T, kRows, kThreads, kAlongK> loader(source, 0, 0, rows);
  loader.load(tile, 0, depth);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kTileDepth<T>; i += kThreads) {
    const int at = Shared::element(i / kTileDepth<T>, i % kTileDepth<T>);
    out[i] = *reinterpret_cast<const T*>(tile + at);
  }
}

// Lines begin `offset` elements from a 16-byte boundary and are `pitch` elements apart; elements of
// a line are `unit` apart.
template <class T, int kRows, bool kAlongK>
void check_tile_loader(int width, int offset, int pitch, int unit, int rows, int depth) {
  constexpr int kDepth = kTileDepth<T>, kLines = kAlongK ? kRows : kDepth;
  const auto x = small_values<T>(offset + kLines * pitch, width);
  const DeviceArray<T> in(x), out(kRows * kDepth);
  const int64_t line_bytes = pitch * sizeof(T), unit_bytes = unit * sizeof(T);
  const TileSource source{reinterpret_cast<const char*>(in.data() + offset),
                          kAlongK ? line_bytes : unit_bytes, kAlongK ? unit_bytes : line_bytes,
                          width, false};
  launch_kernel(tile_loader_kernel<T, kRows, kAlongK>, 1, 64, 0, nullptr, source, rows, depth,
                out.data());
  expect_equal(cat("tile of width ", width), out.read(), [&](size_t i) {
    const int r = static_cast<int>(i) / kDepth, k = static_cast<int>(i) % kDepth;
    if (r >= rows || k >= depth) return 0.0;
    return as_double(x[offset + (kAlongK ? r * pitch + k * unit : k * pitch + r * unit)]);
  });
}

// Of a type: every width, full tiles and some that end within a chunk in both directions.
template <class T, bool kAlongK>
void check_tile_loaders() {
  constexpr int kRows = 64, kSize = sizeof(T), kDepth = kTileDepth<T>;
  constexpr int kLine = kAlongK ? kDepth : kRows;  // elements
  for (const int width : {16, 8, 4, 0}) {
    const int step = width > kSize ? width / kSize : 1;  // elements; lines begin at multiples
    for (const int cut : {0, 1, 5}) {
      const int unit = width == 0 ? 2 : 1;
      check_tile_loader<T, kRows, kAlongK>(width, step, kLine * unit + step, unit, kRows - cut,
                                           kDepth - cut);
    }
  }
}

void test_tile_loader() {
  check_tile_loaders<int8_t, true>();
  check_tile_loaders<Half, true>();
  check_tile_loaders<Half, false>();
  check_tile_loaders<float, true>();
  check_tile_loaders<float, false>();
}
void test_tile_loader_float64() {  // no width below the element's
  for (const int width : {16, 8}) {
    check_tile_loader<double, 32, true>(width, width / 8, 8 + width / 8, 1, 27, 7);
    check_tile_loader<double, 32, false>(width, width / 8, 32 + width / 8, 1, 27, 7);
  }
}

// ---- Products of a warp ------------------------------------------------------------------------

using SmallMma = MmaTile<64, 32, 2, 2, 1, 1>;  // four warps

// d = a b^T for a [64][depth] and b [32][depth], and a's row sums: one stage.
template <class T, bool kAAlongK, bool kBAlongK, class Sum>
__global__ void mma_kernel(const T* a, const T* b, bool a_is_e5m2, bool b_is_e5m2, Sum* d,
                           Sum* row_sums) {
  using Tile = SmallMma;
  constexpr int kDepth = kTileDepth<T>;
  using SharedA = SharedTile<T, Tile::kM, kAAlongK>;
  using SharedB = SharedTile<T, Tile::kN, kBAlongK>;
  __shared__ __align__(128) unsigned char tile_a[Tile::kM * kTileDepthBytes];
  __shared__ __align__(128) unsigned char tile_b[Tile::kN * kTileDepthBytes];
  for (int i = threadIdx.x; i < Tile::kM * kDepth; i += Tile::kThreads) {
    *reinterpret_cast<T*>(tile_a + SharedA::element(i / kDepth, i % kDepth)) = a[i];
  }
  for (int i = threadIdx.x; i < Tile::kN * kDepth; i += Tile::kThreads) {
    *reinterpret_cast<T*>(tile_b + SharedB::element(i / kDepth, i % kDepth)) = b[i];
  }
  __syncthreads();
  MmaSums<Tile, Sum> sums;
  multiply_stage<Tile, T, SharedA, SharedB>(sums, tile_a, tile_b, a_is_e5m2, b_is_e5m2);
  sums.for_each_pair([&](int row, int col, Sum first, Sum second) {
    d[row * Tile::kN + col] = first;
    d[row * Tile::kN + col + 1] = second;
  });
  if (has_first_columns<Tile>()) {
    MmaRowSums<Tile, Sum> rows;
    add_row_sums<Tile, T, SharedA>(rows, tile_a, a_is_e5m2);
    rows.for_each([&](int row, Sum sum) { row_sums[row] = sum; });
  }
}

// A, B: the operands' types on the host, where they are not those of the kernel.
template <class T, bool kAAlongK, bool kBAlongK, class A = T, class B = T>
void check_mma() {
  using Sum = typename Mma<T>::Sum;
  constexpr int kM = SmallMma::kM, kN = SmallMma::kN, kDepth = kTileDepth<T>;
  const auto a = small_values<A>(kM * kDepth, 1);
  const auto b = small_values<B>(kN * kDepth, 2);
  const DeviceArray<A> on_a(a);
  const DeviceArray<B> on_b(b);
  const DeviceArray<Sum> d(kM * kN), row_sums(kM);
  launch_kernel(mma_kernel<T, kAAlongK, kBAlongK, Sum>, 1, SmallMma::kThreads, 0, nullptr,
                reinterpret_cast<const T*>(on_a.data()), reinterpret_cast<const T*>(on_b.data()),
                std::is_same_v<A, Float8E5M2>, std::is_same_v<B, Float8E5M2>, d.data(),
                row_sums.data());
  const std::string layout =
      cat(kAAlongK ? " a along k," : " a along rows,", kBAlongK ? " b along k" : " b along rows");
  const auto dot = [&](size_t m, auto&& other) {
    double sum = 0;
    for (size_t k = 0; k < kDepth; ++k) sum += as_double(a[m * kDepth + k]) * other(k);
    return sum;
  };
  expect_equal("product," + layout, d.read(), [&](size_t i) {
    return dot(i / kN, [&](size_t k) { return as_double(b[i % kN * kDepth + k]); });
  });
  expect_equal("row sums," + layout, row_sums.read(),
               [&](size_t m) { return dot(m, [](size_t) { return 1.0; }); });
}

template <class T>
void test_mma() {
  check_mma<T, true, true>();
  check_mma<T, true, false>();
  check_mma<T, false, true>();
  check_mma<T, false, false>();
}
void test_mma_int8() { check_mma<int8_t, true, true>(); }
void test_mma_float8() {
  check_mma<Float8, true, true, Float8E4M3, Float8E4M3>();
  check_mma<Float8, true, true, Float8E4M3, Float8E5M2>();
  check_mma<Float8, true, true, Float8E5M2, Float8E4M3>();
  check_mma<Float8, true, true, Float8E5M2, Float8E5M2>();
}

// Every code of a float8 as a float16, two at a time.
__global__ void float8_kernel(bool e5m2, uint32_t* pairs) {
  const uint32_t code = threadIdx.x, other = 255 - code;
  pairs[code] = float8x2_to_f16x2(code << 8 | other << 24, e5m2);
}

template <class T>
void check_float8_as_float16() {
  const DeviceArray<uint32_t> pairs(256);
  launch_kernel(float8_kernel, 1, 256, 0, nullptr, std::is_same_v<T, Float8E5M2>, pairs.data());
  std::vector<Half> values;
  for (const uint32_t pair : pairs.read()) {
    for (const uint32_t bits : {pair & 0xffff, pair >> 16}) {
      values.emplace_back();
      values.back().bits = static_cast<uint16_t>(bits);
    }
  }
  expect_equal("code", values, [](size_t i) {
    T v;
    v.bits = static_cast<uint8_t>(i % 2 ? 255 - i / 2 : i / 2);
    return static_cast<float>(v);
  });
}
void test_float8_as_float16() {
  check_float8_as_float16<Float8E4M3>();
  check_float8_as_float16<Float8E5M2>();
}

// ---- The portable product ----------------------------------------------------------------------

struct Store {
  float alpha;
  int64_t n;
  double* d;
  template <class Acc>
  __device__ void operator()(int64_t row, int64_t col, Acc sum) const {
    d[row * n + col] = alpha * static_cast<double>(sum);
  }
};

template <class Tile, class T, bool kAAlongK, bool kBAlongK>
__global__ void simt_gemm_kernel(int64_t m, int64_t n, int64_t k, StridedOperand<T, kAAlongK> a,
                                 StridedOperand<T, kBAlongK> b, Store store) {
  simt_gemm<Tile, Accumulator<T>>(blockIdx.y * int64_t{Tile::kM}, blockIdx.x * int64_t{Tile::kN}, m,
                                  n, 0, k, a, b, store);
}

template <class Tile, class T, bool kAAlongK, bool kBAlongK>
void check_simt_gemm(int m, int n, int k) {
  const auto a = small_values<T>(m * k + 1, 1), b = small_values<T>(n * k + 1, 2);
  const DeviceArray<T> on_a(a), on_b(b);
  const DeviceArray<double> d(m * n);
  // The first element of each is left out.
  const StridedOperand<T, kAAlongK> from_a{on_a.data() + 1, kAAlongK ? k : 1, kAAlongK ? 1 : m};
  const StridedOperand<T, kBAlongK> from_b{on_b.data() + 1, kBAlongK ? k : 1, kBAlongK ? 1 : n};
  const dim3 grid((n + Tile::kN - 1) / Tile::kN, (m + Tile::kM - 1) / Tile::kM);
  launch_kernel(simt_gemm_kernel<Tile, T, kAAlongK, kBAlongK>, grid, Tile::kThreads, 0, nullptr, m,
                n, k, from_a, from_b, Store{2.0f, n, d.data()});
  expect_equal(cat(m, " x ", n, " x ", k), d.read(), [&](size_t i) {
    const int row = static_cast<int>(i) / n, col = static_cast<int>(i) % n;
    double sum = 0;
    for (int j = 0; j < k; ++j) {
      sum += as_double(a[1 + (kAAlongK ? row * k + j : j * m + row)]) *
             as_double(b[1 + (kBAlongK ? col * k + j : j * n + col)]);
    }
    return 2 * sum;
  });
}

template <class Tile, class T>
void test_simt_gemm() {
  check_simt_gemm<Tile, T, true, true>(133, 70, 37);
  check_simt_gemm<Tile, T, true, false>(1, 129, 100);
  check_simt_gemm<Tile, T, false, true>(128, 128, 8);
  check_simt_gemm<Tile, T, false, false>(65, 3, 1);
  check_simt_gemm<Tile, T, true, true>(5, 7, 0);
}

// ---- The order of tiles ------------------------------------------------------------------------

__global__ void tile_of_kernel(int64_t tiles_m, int64_t tiles_n, int* visits) {
  const TileOf tile(blockIdx.x, tiles_m, tiles_n);
  visits[(tile.item * tiles_m + tile.m) * tiles_n + tile.n] = blockIdx.x;
}

// Each tile once; neighbours in the order are neighbours in a band of 8 tiles' height.
void test_tile_of() {
  constexpr int kM = 19, kN = 5, kItems = 3;
  const DeviceArray<int> visits(kM * kN * kItems);
  launch_kernel(tile_of_kernel, kM * kN * kItems, 1, 0, nullptr, kM, kN, visits.data());
  expect_equal("index of tile", visits.read(), [](size_t i) {
    const int item = static_cast<int>(i) / (kM * kN), m = static_cast<int>(i) / kN % kM;
    const int n = static_cast<int>(i) % kN, band = m / 8, height = std::min(8, kM - 8 * band);
    return item * kM * kN + 8 * band * kN + n * height + m % 8;
  });
}

// ---- Lists -----------------------------------------------------------------------------------

__global__ void tensor_list_kernel(const DLK_GRID_CONSTANT TensorTable<2> table) {
  const Chunk chunk = table.find(blockIdx.x);
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += blockDim.x) {
    table.at<int>(chunk, 1)[i] = table.at<const int>(chunk, 0)[i] + 1;
  }
}

// More items than a table holds: empty ones, of one chunk and of several.
void test_tensor_list() {
  constexpr int kItems = 3 * TensorTable<2>::kCapacity / 2, kChunk = 32;
  const auto size_of = [](int item) { return item * 7 % 100; };
  size_t total = 0;
  for (int i = 0; i < kItems; ++i) total += size_of(i);
  const auto x = small_values<int>(total);
  const DeviceArray<int> from(x), to(total);
  auto launcher = make_list_launcher<2>(kChunk, [](const TensorTable<2>& table) {
    launch_kernel(tensor_list_kernel, table.chunks(), kChunk, 0, nullptr, table);
  });
  size_t at = 0;
  for (int i = 0; i < kItems; at += size_of(i++)) {
    launcher.add({from.data() + at, to.data() + at}, size_of(i));
  }
  launcher.flush();
  expect_equal("element of a list", to.read(), [&](size_t i) { return x[i] + 1; });
}

constexpr Case kCases[] = {
    {"warp_reduce", test_warp_reduce},
    {"block_reduce", test_block_reduce},
    {"raise_amax", test_raise_amax},
    {"ldmatrix", test_ldmatrix},
    {"tile_loader", test_tile_loader},
    {"tile_loader_float64", test_tile_loader_float64},
    {"mma_float16", test_mma<Half>},
    {"mma_bfloat16", test_mma<BFloat16>},
    {"mma_tf32", test_mma<float>},
    {"mma_float64", test_mma<double>},
    {"mma_int8", test_mma_int8},
    {"mma_float8", test_mma_float8},
    {"float8_as_float16", test_float8_as_float16},
    {"simt_gemm_small", test_simt_gemm<SmallTile, float>},
    {"simt_gemm_medium", test_simt_gemm<MediumTile, double>},
    {"simt_gemm_large", test_simt_gemm<LargeTile, BFloat16>},
    {"tile_of", test_tile_of},
    {"tensor_list", test_tensor_list},
};

std::vector<Case> cases_of_this_gpu() {
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
#if defined(DLKERN_WITH_SM90)
  if (compute_capability() == 90) {
    for (const auto more : {sm90_cases(), sm90_copy_cases()}) {
      cases.insert(cases.end(), more.begin(), more.end());
    }
  }
#endif
  return cases;
}

}  // namespace
}  // namespace dlkern::test

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  const char* name = "test_prims";
  try {
    int ran = 0;
    for (const auto& c : dlkern::test::cases_of_this_gpu()) {
      if (argc > 1 && std::strcmp(argv[1], c.name) != 0) continue;
      name = c.name;
      c.run();
      ++ran;
    }
    if (ran) return 0;
  } catch (const std::exception& error) {
    std::printf("%s: %s\n", name, error.what());
    return 1;
  }
  std::printf("this GPU has no case %s\n", argv[1]);
  return kSkipped;
}
