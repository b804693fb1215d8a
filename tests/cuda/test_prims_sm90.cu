// Tests of Hopper's wgmma, stmatrix, clusters and named barriers. See test_prims.cu.
#include <cstring>
#include <type_traits>

#include "check.h"
#include "core/float8.h"
#include "cuda/prims/wgmma.cuh"

namespace dlkern::test {
namespace {

using namespace gpu;

// ---- wgmma -------------------------------------------------------------------------------------

// The operands' types on the host.
template <Mma kMma>
struct Operands {
  using A =
      std::conditional_t<kMma == Mma::kE5M2 || kMma == Mma::kE5M2E4M3, Float8E5M2, Float8E4M3>;
  using B =
      std::conditional_t<kMma == Mma::kE5M2 || kMma == Mma::kE4M3E5M2, Float8E5M2, Float8E4M3>;
};
template <class T>
struct Both {
  using A = T;
  using B = T;
};
template <>
struct Operands<Mma::kBFloat16> : Both<BFloat16> {};
template <>
struct Operands<Mma::kFloat16> : Both<Half> {};
template <>
struct Operands<Mma::kTf32> : Both<float> {};
template <>
struct Operands<Mma::kInt8> : Both<int8_t> {};

template <Mma kMma>
constexpr int kDepth = kSwizzleBytes / element_bytes(kMma);  // of a stage

// Shared memory of an operand [rows][128 bytes of k], as wgmma.cuh says.
template <class T>
std::vector<uint8_t> stage_of(const std::vector<T>& values, bool along_k) {
  constexpr int kSize = sizeof(T), kK = kSwizzleBytes / kSize;
  std::vector<uint8_t> bytes(values.size() * kSize);
  for (size_t i = 0; i < values.size(); ++i) {
    const int r = static_cast<int>(i) / kK, k = static_cast<int>(i) % kK;
    const int at = along_k ? swizzled(r, k * kSize) : swizzled(r / 64 * kK + k, r % 64 * kSize);
    std::memcpy(&bytes[at], &values[i], kSize);
  }
  return bytes;
}

// By all threads of the block; what wgmma reads afterwards.
__device__ void fill_stage(uint8_t* to, const uint8_t* from, int bytes) {
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
  fence_async_shared();
  __syncthreads();
}

template <int N, class Sum>
__device__ void store_sums(const Sum (&sums)[N / 2], Sum* d) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
    d[row * N + col] = sums[i];
  }
}

// d[64][N] = a b for one stage.
template <Mma kMma, int N, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(128)
    wgmma_kernel(const uint8_t* a, const uint8_t* b, MmaSum<kMma>* d) {
  __shared__ __align__(1024) uint8_t stage_a[64 * kSwizzleBytes], stage_b[N * kSwizzleBytes];
  fill_stage(stage_a, a, sizeof(stage_a));
  fill_stage(stage_b, b, sizeof(stage_b));
  const uint64_t desc_a = operand_descriptor<kAAlongK>(stage_a, kDepth<kMma>);
  const uint64_t desc_b = operand_descriptor<kBAlongK>(stage_b, kDepth<kMma>);
  MmaSum<kMma> sums[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) sums[i] = 12345;  // the first instruction does not add
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSwizzleBytes / kMmaBytes; ++step) {
    Wgmma<kMma, N, !kAAlongK, !kBAlongK>::run(sums, desc_a + step * kDescriptorStep<kAAlongK>,
                                              desc_b + step * kDescriptorStep<kBAlongK>, step > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  store_sums<N>(sums, d);
}

// The same with an operand of ones in place of b: each of the 8 columns has a's row sums.
template <Mma kMma, bool kAAlongK>
__global__ void __launch_bounds__(128) wgmma_ones_kernel(const uint8_t* a, MmaSum<kMma>* d) {
  using T = typename Operands<kMma>::B;
  __shared__ __align__(1024) uint8_t stage_a[64 * kSwizzleBytes];
  __shared__ __align__(128) T ones[kOnesBytes / sizeof(T)];
  if (threadIdx.x < kOnesBytes / sizeof(T)) ones[threadIdx.x] = static_cast<T>(1.0f);
  fill_stage(stage_a, a, sizeof(stage_a));
  const uint64_t desc_a = operand_descriptor<kAAlongK>(stage_a, kDepth<kMma>);
  const uint64_t desc_ones = constant_descriptor(ones);
  MmaSum<kMma> sums[4] = {};
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSwizzleBytes / kMmaBytes; ++step) {
    Wgmma<kMma, 8, !kAAlongK, false>::run(sums, desc_a + step * kDescriptorStep<kAAlongK>,
                                          desc_ones, true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  store_sums<8>(sums, d);
}

template <Mma kMma>
double row_dot(const std::vector<typename Operands<kMma>::A>& a, size_t row, auto&& b) {
  double sum = 0;
  for (size_t k = 0; k < kDepth<kMma>; ++k) sum += as_double(a[row * kDepth<kMma> + k]) * b(k);
  return sum;
}

template <Mma kMma, int N, bool kAAlongK, bool kBAlongK>
void check_wgmma() {
  constexpr int kK = kDepth<kMma>;
  const auto a = small_values<typename Operands<kMma>::A>(64 * kK, 1);
  const auto b = small_values<typename Operands<kMma>::B>(N * kK, 2);
  const DeviceArray<uint8_t> on_a(stage_of(a, kAAlongK)), on_b(stage_of(b, kBAlongK));
  const DeviceArray<MmaSum<kMma>> d(64 * N);
  launch(wgmma_kernel<kMma, N, kAAlongK, kBAlongK>, 1, 128, 1, on_a.data(), on_b.data(), d.data());
  const std::string name = cat("n = ", N, kAAlongK ? ", a along k" : ", a along rows",
                               kBAlongK ? ", b along k" : ", b along rows");
  expect_equal(name, d.read(), [&](size_t i) {
    return row_dot<kMma>(a, i / N, [&](size_t k) { return as_double(b[i % N * kK + k]); });
  });
}

template <Mma kMma, bool kAAlongK>
void check_wgmma_sizes() {
  check_wgmma<kMma, 8, kAAlongK, true>();
  check_wgmma<kMma, 16, kAAlongK, true>();
  check_wgmma<kMma, 64, kAAlongK, true>();
  check_wgmma<kMma, 128, kAAlongK, true>();
  check_wgmma<kMma, 256, kAAlongK, true>();
  if constexpr (is_16_bit(kMma)) {  // along rows, in chunks of 64: so n is not less
    check_wgmma<kMma, 64, kAAlongK, false>();
    check_wgmma<kMma, 128, kAAlongK, false>();
    check_wgmma<kMma, 256, kAAlongK, false>();
  }
}

template <Mma kMma>
void test_wgmma() {
  check_wgmma_sizes<kMma, true>();
  if constexpr (is_16_bit(kMma)) check_wgmma_sizes<kMma, false>();
}

template <Mma kMma, bool kAAlongK>
void check_wgmma_ones() {
  const auto a = small_values<typename Operands<kMma>::A>(64 * kDepth<kMma>, 3);
  const DeviceArray<uint8_t> on_a(stage_of(a, kAAlongK));
  const DeviceArray<MmaSum<kMma>> d(64 * 8);
  launch(wgmma_ones_kernel<kMma, kAAlongK>, 1, 128, 1, on_a.data(), d.data());
  expect_equal(kAAlongK ? "row sums, along k" : "row sums, along rows", d.read(),
               [&](size_t i) { return row_dot<kMma>(a, i / 8, [](size_t) { return 1.0; }); });
}
void test_constant_descriptor() {
  check_wgmma_ones<Mma::kBFloat16, true>();
  check_wgmma_ones<Mma::kBFloat16, false>();
  check_wgmma_ones<Mma::kFloat16, true>();
  check_wgmma_ones<Mma::kFloat16, false>();
}

// ---- Matrices of 8 x 8 elements to shared memory -----------------------------------------------

// out: [as they are, transposed][matrix][row][column]
__global__ void stmatrix_kernel(const uint16_t (*x)[8][8], uint16_t (*out)[4 * 64]) {
  __shared__ __align__(16) uint16_t shared[2][4 * 64];
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  uint32_t r[4];
  for (int i = 0; i < 4; ++i) r[i] = x[i][g][2 * t] | x[i][g][2 * t + 1] << 16;
  stmatrix_x4<false>(shared[0] + lane * 8, r[0], r[1], r[2], r[3]);
  stmatrix_x4<true>(shared[1] + lane * 8, r[0], r[1], r[2], r[3]);
  __syncwarp();
  for (int i = lane; i < 2 * 4 * 64; i += 32) out[0][i] = shared[0][i];
}

void test_stmatrix() {
  const auto x = distinct_values(4 * 64);
  const DeviceArray<uint16_t> in(x), out(2 * 4 * 64);
  launch(stmatrix_kernel, 1, 32, 1, reinterpret_cast<const uint16_t(*)[8][8]>(in.data()),
         reinterpret_cast<uint16_t(*)[4 * 64]>(out.data()));
  expect_equal("stored", out.read(), [&](size_t i) -> int {
    const size_t kind = i / 256, matrix = i / 64 % 4, row = i / 8 % 8, col = i % 8;
    return x[matrix * 64 + (kind == 1 ? col * 8 + row : row * 8 + col)];
  });
}

// ---- Blocks of a cluster, parts of a block, registers of a thread ------------------------------

// Sums over the blocks of a cluster, in their order.
__global__ void cluster_sum_kernel(const float4* x, float4* sums) {
  __shared__ float4 own[32];
  own[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  cluster_sync();
  float4 sum = {};
  for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
    const float4 part = load_from_block(&own[threadIdx.x], rank);
    const float weight = rank == cluster_rank() ? 2.0f : 1.0f;
    sum = {sum.x + weight * part.x, sum.y + weight * part.y, sum.z + weight * part.z,
           sum.w + weight * part.w};
  }
  sums[blockIdx.x * 32 + threadIdx.x] = sum;
  cluster_sync();  // others still read `own`
}

void test_load_from_block() {
  constexpr int kClusters = 3, kBlocks = 4, kPerBlock = 32 * 4;
  const auto x = small_values<float>(kClusters * kBlocks * kPerBlock);
  const DeviceArray<float> in(x), sums(x.size());
  launch(cluster_sum_kernel, kClusters * kBlocks, 32, kBlocks,
         reinterpret_cast<const float4*>(in.data()), reinterpret_cast<float4*>(sums.data()));
  expect_equal("sum over blocks", sums.read(), [&](size_t i) {
    double sum = x[i];  // a block's own counts twice
    const size_t first = i / (kBlocks * kPerBlock) * (kBlocks * kPerBlock) + i % kPerBlock;
    for (int block = 0; block < kBlocks; ++block) sum += x[first + block * kPerBlock];
    return sum;
  });
}

// Two halves of a block, each with a barrier of its own and as many rounds as it likes.
__global__ void named_barrier_kernel(int* out) {
  __shared__ int values[256];
  const int half = threadIdx.x / 128, i = threadIdx.x % 128;
  int* own = values + half * 128;
  own[i] = i;
  for (int round = 0; round < 50 + 50 * half; ++round) {
    named_barrier_sync(1 + half, 128);
    const int next = own[(i + 33) % 128];
    named_barrier_sync(1 + half, 128);
    own[i] = next;
    own[i] = next;
  }
  out[threadIdx.x] = own[i];
}

void test_named_barrier() {
  const DeviceArray<int> out(256);
  launch(named_barrier_kernel, 1, 256, 1, out.data());
  expect_equal("after the rounds", out.read(),
               [](size_t i) { return (i % 128 + (50 + 50 * (i / 128)) * 33) % 128; });
}

constexpr int kRegisters = 40, kChunkRegisters = 8, kChunks = kRegisters / kChunkRegisters;

__global__ void with_constant_kernel(float* out) {
  float registers[kRegisters];
  for (int i = 0; i < kRegisters; ++i) registers[i] = 100.0f * threadIdx.x + i;
  with_constant<0, kChunks>(threadIdx.x % kChunks, [&]<int kNumber>() {
#pragma unroll
    for (int i = 0; i < kChunkRegisters; ++i) {
      out[threadIdx.x * kChunkRegisters + i] = registers[kNumber * kChunkRegisters + i];
    }
  });
}

void test_with_constant() {
  const DeviceArray<float> out(64 * kChunkRegisters);
  launch(with_constant_kernel, 1, 64, 1, out.data());
  expect_equal("chunks", out.read(), [](size_t i) {
    const size_t thread = i / kChunkRegisters;
    return 100 * thread + thread % kChunks * kChunkRegisters + i % kChunkRegisters;
  });
}

// Two lanes of each warp, whichever they are, would count twice.
__global__ void elect_one_kernel(int* out) {
  __shared__ int counts[4];
  if (threadIdx.x < 4) counts[threadIdx.x] = 0;
  __syncthreads();
  const int warp = warp_uniform(threadIdx.x / 32);
  if (elect_one()) atomicAdd(&counts[warp], 1 + 100 * static_cast<int>(threadIdx.x % 32));
  if (elect_one()) atomicAdd(&counts[warp], 1 - 100 * static_cast<int>(threadIdx.x % 32));
  cluster_meet();
  if (threadIdx.x < 4) out[blockIdx.x * 4 + threadIdx.x] = counts[threadIdx.x];
}

void test_elect_one() {
  const DeviceArray<int> out(8);
  launch(elect_one_kernel, 2, 128, 2, out.data());
  expect_equal("lanes elected twice", out.read(), [](size_t) { return 2; });
}

constexpr Case kCases[] = {
    {"wgmma_bfloat16", test_wgmma<Mma::kBFloat16>},
    {"wgmma_float16", test_wgmma<Mma::kFloat16>},
    {"wgmma_tf32", test_wgmma<Mma::kTf32>},
    {"wgmma_e4m3", test_wgmma<Mma::kE4M3>},
    {"wgmma_e4m3_e5m2", test_wgmma<Mma::kE4M3E5M2>},
    {"wgmma_e5m2_e4m3", test_wgmma<Mma::kE5M2E4M3>},
    {"wgmma_e5m2", test_wgmma<Mma::kE5M2>},
    {"wgmma_int8", test_wgmma<Mma::kInt8>},
    {"constant_descriptor", test_constant_descriptor},
    {"stmatrix", test_stmatrix},
    {"load_from_block", test_load_from_block},
    {"named_barrier", test_named_barrier},
    {"with_constant", test_with_constant},
    {"elect_one", test_elect_one},
};

}  // namespace

std::span<const Case> sm90_cases() { return kCases; }

}  // namespace dlkern::test
