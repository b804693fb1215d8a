// Tests of Hopper's bulk tensor copies: boxes, the ring of stages that they fill, and the columns of
// a convolution. See test_prims.cu.
#include "check.h"
#include "cuda/gemm_sm90_tiles.cuh"  // RingPosition
#include "cuda/prims/ptx_sm90.cuh"
#include "cuda/prims/tensor_map.h"

namespace dlkern::test {
namespace {

using namespace gpu;

// Of 16-bit element number i of a swizzled box: its line, and which element of the line it is.
constexpr int line_of(size_t i) { return static_cast<int>(i) / 64; }
constexpr int element_of(size_t i) {
  return swizzled(line_of(i), static_cast<int>(i) % 64 * 2) % kSwizzleBytes / 2;
}

// ---- Boxes of a tensor -------------------------------------------------------------------------

constexpr int kBoxRows = 16, kBoxElements = kBoxRows * 64, kBoxBytes = kBoxRows * kSwizzleBytes;

struct Place {
  int at[4];
};

// A tensor of 16-bit elements whose rows, planes and items have gaps between them.
struct Tensor {
  static constexpr int kExtent[4] = {100, 150, 3, 3};
  static constexpr int kStride[4] = {1, 104, 104 * 151, 104 * 151 * 3 + 16};
  static constexpr int kSize = kStride[3] * kExtent[3];

  static bool is_inside(const Place& p) {
    for (int d = 0; d < 4; ++d) {
      if (p.at[d] < 0 || p.at[d] >= kExtent[d]) return false;
    }
    return true;
  }
  static int offset(const Place& p) {
    int offset = 0;
    for (int d = 0; d < 4; ++d) offset += p.at[d] * kStride[d];
    return offset;
  }
  // Element i of a box that is loaded from `first`.
  static Place of_box(const Place& first, size_t i) {
    return {first.at[0] + element_of(i), first.at[1] + line_of(i), first.at[2], first.at[3]};
  }
  static CUtensorMap map(uint16_t* data, int box_rows) {
    TensorMapShape shape{CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, {}, {}, {}};
    for (int d = 0; d < 4; ++d) shape.extent[d] = kExtent[d];
    for (int d = 1; d < 4; ++d) shape.stride_bytes[d - 1] = 2 * kStride[d];
    shape.box[0] = 64;
    shape.box[1] = box_rows;
    return make_tensor_map(data, shape);
  }
};

// One box for each block, as it lies in shared memory.
__global__ void tma_load_kernel(const __grid_constant__ CUtensorMap map, const Place* places,
                                uint16_t* out) {
  __shared__ __align__(1024) uint16_t box[kBoxElements];
  __shared__ Barrier full;
  if (threadIdx.x == 0) {
    tma_prefetch_map(&map);
    barrier_init(&full, 1);
    barrier_init_fence();
    barrier_arrive_expect(&full, kBoxBytes);
    tma_load(box, &map, &full, places[blockIdx.x].at);
  }
  __syncthreads();
  barrier_wait(&full, 0);
  for (int i = threadIdx.x; i < kBoxElements; i += blockDim.x) {
    out[blockIdx.x * kBoxElements + i] = box[i];
  }
}

void test_tma_load() {
  // Inside; beyond the end of rows and of the plane; before both; anywhere; all outside.
  const std::vector<Place> places = {{0, 0, 0, 0},   {40, 140, 1, 2}, {-8, -5, 2, 0}, {40, 3, 0, 1},
                                     {200, 0, 0, 0}, {0, 0, 3, 0},    {0, 0, 0, -1}};
  const auto x = distinct_values(Tensor::kSize);
  const DeviceArray<uint16_t> in(x), out(places.size() * kBoxElements);
  const DeviceArray<Place> at(places);
  launch(tma_load_kernel, places.size(), 128, 1, Tensor::map(in.data(), kBoxRows), at.data(),
         out.data());
  expect_equal("boxes", out.read(), [&](size_t i) -> int {
    const Place from = Tensor::of_box(places[i / kBoxElements], i % kBoxElements);
    return Tensor::is_inside(from) ? x[Tensor::offset(from)] : 0;
  });
}

// boxes: of each block, as it lies in shared memory.
__global__ void tma_store_kernel(const __grid_constant__ CUtensorMap map, const Place* places,
                                 const uint16_t* boxes) {
  __shared__ __align__(1024) uint16_t box[kBoxElements];
  for (int i = threadIdx.x; i < kBoxElements; i += blockDim.x) {
    box[i] = boxes[blockIdx.x * kBoxElements + i];
  }
  fence_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    tma_store(&map, box, places[blockIdx.x].at);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}

void test_tma_store() {
  // That do not overlap: inside; beyond the end of rows and of the plane; all outside.
  const std::vector<Place> places = {{0, 0, 0, 0}, {64, 140, 1, 2}, {0, 3, 0, 1}, {0, 160, 1, 1}};
  const auto boxes = distinct_values(places.size() * kBoxElements);
  const DeviceArray<uint16_t> in(boxes), out(Tensor::kSize);
  const DeviceArray<Place> at(places);
  launch(tma_store_kernel, places.size(), 128, 1, Tensor::map(out.data(), kBoxRows), at.data(),
         in.data());
  std::vector<uint16_t> y(Tensor::kSize, 0xffff);  // as DeviceArray makes it
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Place to = Tensor::of_box(places[i / kBoxElements], i % kBoxElements);
    // 16 bytes, 8 elements, are written whole where the first of them is inside.
    const Place first = {to.at[0] / 8 * 8, to.at[1], to.at[2], to.at[3]};
    if (Tensor::is_inside(first)) y[Tensor::offset(to)] = boxes[i];
  }
  expect_equal("tensor", out.read(), [&](size_t i) { return y[i]; });
}

// ---- The ring of stages ------------------------------------------------------------------------

// Each block of a cluster sees all boxes below each other, one in a round; with two blocks each loads
// half of every box for both. One producer, four consumer warps, fewer stages than rounds.
template <int kBlocks>
__global__ void ring_kernel(const __grid_constant__ CUtensorMap map, int rounds, uint16_t* out) {
  constexpr int kStages = 3, kRows = kBoxRows / kBlocks, kConsumers = 128;
  __shared__ __align__(1024) uint16_t stages[kStages][kBoxElements];
  __shared__ Barrier full[kStages], empty[kStages];
  const uint32_t rank = kBlocks > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kConsumers / 32 * kBlocks);
    }
    barrier_init_fence();
  }
  kBlocks > 1 ? cluster_sync() : __syncthreads();
  RingPosition<kStages> ring;
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) {
      for (int round = 0; round < rounds; ++round, ring.advance()) {
        barrier_wait(&empty[ring.stage], ring.parity ^ 1);
        barrier_arrive_expect(&full[ring.stage], kBoxBytes);
        const int first = rank * kRows, at[4] = {0, round * kBoxRows + first, 1, 2};
        uint16_t* to = stages[ring.stage] + first * 64;
        if constexpr (kBlocks == 1) {
          tma_load(to, &map, &full[ring.stage], at);
        } else {
          tma_load_multicast(to, &map, &full[ring.stage], at, 0b11);
        }
      }
    }
    __syncwarp();
  } else {
    for (int round = 0; round < rounds; ++round, ring.advance()) {
      barrier_wait(&full[ring.stage], ring.parity);
      for (int i = threadIdx.x; i < kBoxElements; i += kConsumers) {
        out[(blockIdx.x * rounds + round) * kBoxElements + i] = stages[ring.stage][i];
      }
      __syncwarp();
      const uint32_t lane = threadIdx.x % 32;
      if constexpr (kBlocks == 1) {
        if (lane == 0) barrier_arrive(&empty[ring.stage]);
      } else {
        if (lane < kBlocks) barrier_arrive_at(&empty[ring.stage], lane);
      }
    }
  }
  if constexpr (kBlocks > 1) cluster_sync();  // others still write into this block until then
}

template <int kBlocks>
void test_ring() {
  constexpr int kRounds = 10;  // the last box reaches beyond the plane
  const auto x = distinct_values(Tensor::kSize);
  const DeviceArray<uint16_t> in(x), out(kBlocks * kRounds * kBoxElements);
  launch(ring_kernel<kBlocks>, kBlocks, 160, kBlocks, Tensor::map(in.data(), kBoxRows / kBlocks),
         kRounds, out.data());
  expect_equal("boxes of all blocks", out.read(), [&](size_t i) -> int {
    const int round = static_cast<int>(i / kBoxElements % kRounds);
    const Place from = Tensor::of_box({0, round * kBoxRows, 1, 2}, i % kBoxElements);
    return Tensor::is_inside(from) ? x[Tensor::offset(from)] : 0;
  });
}

// ---- Columns of a convolution ------------------------------------------------------------------

constexpr int kPixels = 32, kColumnElements = kPixels * 64;

// One copy: pixels from the output pixel number `pixel` on, channels from `channel` on, one tap.
struct ColumnCopy {
  int at[5] = {};
  uint16_t offset[3] = {};
  int pixel, channel, tap[3] = {};
};

// Blocks of a cluster each load one copy, for all of them.
template <int kRank, int kBlocks>
__global__ void im2col_kernel(const __grid_constant__ CUtensorMap map, const ColumnCopy* copies,
                              uint16_t* out) {
  __shared__ __align__(1024) uint16_t columns[kBlocks][kColumnElements];
  __shared__ Barrier full;
  if (threadIdx.x == 0) {
    barrier_init(&full, 1);
    barrier_init_fence();
    barrier_arrive_expect(&full, sizeof(columns));
  }
  kBlocks > 1 ? cluster_sync() : __syncthreads();
  if (threadIdx.x == 0) {
    const ColumnCopy& copy = copies[blockIdx.x];
    int at[kRank];
    uint16_t offset[kRank - 2];
    for (int d = 0; d < kRank; ++d) at[d] = copy.at[d];
    for (int d = 0; d < kRank - 2; ++d) offset[d] = copy.offset[d];
    if constexpr (kBlocks == 1) {
      tma_load_im2col(columns[0], &map, &full, at, offset);
    } else {
      tma_load_im2col_multicast(columns[cluster_rank()], &map, &full, at, offset,
                                (1 << kBlocks) - 1);
    }
  }
  barrier_wait(&full, 0);
  for (int i = threadIdx.x; i < kBlocks * kColumnElements; i += blockDim.x) {
    out[blockIdx.x * kBlocks * kColumnElements + i] =
        columns[i / kColumnElements][i % kColumnElements];
  }
  if constexpr (kBlocks > 1) cluster_sync();
}

// One spatial dimension of a convolution.
struct Axis {
  int extent = 1, filter = 1, stride = 1, dilation = 1, before = 0, after = 0;
  int outputs() const {
    return (extent + before + after - (filter - 1) * dilation - 1) / stride + 1;
  }
};

// Inputs of [items, spatial dimensions, channels]; those dimensions count as W, H, D.
template <int kRank, int kBlocks = 1>
void check_im2col(int items, int channels, const Axis (&axes)[kRank - 2]) {
  constexpr int kSpatial = kRank - 2;
  Im2colShape shape{.type = CU_TENSOR_MAP_DATA_TYPE_UINT16, .rank = kRank};
  int size = channels, pixels = items, taps = 1;
  shape.extent[0] = channels;
  for (int d = 0; d < kSpatial; ++d) {
    const Axis& axis = axes[d];
    shape.extent[1 + d] = axis.extent;
    shape.stride_bytes[d] = 2 * size;
    shape.lower[d] = -axis.before;
    shape.upper[d] = axis.after - (axis.filter - 1) * axis.dilation;
    shape.step[d] = axis.stride;
    size *= axis.extent;
    pixels *= axis.outputs();
    taps *= axis.filter;
  }
  shape.extent[kRank - 1] = items;
  shape.stride_bytes[kSpatial] = 2 * size;
  shape.channels = 64;
  shape.pixels = kPixels;

  // Where the first tap of an output pixel is, per dimension; the item last.
  const auto place_of = [&](int pixel, int(&place)[kSpatial + 1]) {
    for (int d = 0; d < kSpatial; ++d) {
      place[d] = pixel % axes[d].outputs() * axes[d].stride - axes[d].before;
      pixel /= axes[d].outputs();
    }
    place[kSpatial] = pixel;
  };
  std::vector<ColumnCopy> copies;
  for (int pixel = 0; pixel < pixels; pixel += kPixels) {
    for (int tap = 0; tap < taps; ++tap) {
      for (int channel = 0; channel < channels; channel += 64) {
        ColumnCopy copy{.pixel = pixel, .channel = channel};
        int place[kSpatial + 1], rest = tap;
        place_of(pixel, place);
        copy.at[0] = channel;
        for (int d = 0; d < kSpatial + 1; ++d) copy.at[1 + d] = place[d];
        for (int d = 0; d < kSpatial; rest /= axes[d++].filter) {
          copy.tap[d] = rest % axes[d].filter;
          copy.offset[d] = static_cast<uint16_t>(copy.tap[d] * axes[d].dilation);
        }
        copies.push_back(copy);
      }
    }
  }
  while (copies.size() % kBlocks != 0) copies.push_back(copies.back());

  const auto x = distinct_values(size_t{1} * size * items);
  const DeviceArray<uint16_t> in(x), out(copies.size() * kBlocks * kColumnElements);
  const DeviceArray<ColumnCopy> on_device(copies);
  launch(im2col_kernel<kRank, kBlocks>, copies.size(), 128, kBlocks,
         make_im2col_map(in.data(), shape), on_device.data(), out.data());
  expect_equal("columns", out.read(), [&](size_t i) -> int {
    const size_t block = i / (kBlocks * kColumnElements);
    const size_t number = i / kColumnElements % kBlocks;  // of the copy in the cluster
    const ColumnCopy& copy = copies[block / kBlocks * kBlocks + number];
    const size_t in_box = i % kColumnElements;
    const int channel = copy.channel + element_of(in_box);
    int place[kSpatial + 1];
    place_of(copy.pixel + line_of(in_box), place);
    if (channel >= channels || place[kSpatial] >= items) return 0;
    int offset = place[kSpatial];
    for (int d = kSpatial - 1; d >= 0; --d) {
      const int input = place[d] + copy.tap[d] * axes[d].dilation;
      if (input < 0 || input >= axes[d].extent) return 0;
      offset = offset * axes[d].extent + input;
    }
    return x[offset * channels + channel];
  });
}

constexpr Axis kThree{.extent = 9, .filter = 3, .before = 1, .after = 1};

void test_im2col_3x3() {
  check_im2col<4>(3, 72, {kThree, {.extent = 7, .filter = 3, .before = 1, .after = 1}});
}
void test_im2col_stride_2() {  // the last column is used, the last line is not
  check_im2col<4>(2, 64,
                  {{.extent = 11, .filter = 3, .stride = 2, .before = 1, .after = 1},
                   {.extent = 10, .filter = 3, .stride = 2, .before = 1, .after = 1}});
}
void test_im2col_dilated() {  // nothing is the same for w and h
  check_im2col<4>(
      2, 64,
      {{.extent = 13, .filter = 2, .stride = 2, .dilation = 3, .before = 3, .after = 1},
       {.extent = 12, .filter = 3, .stride = 1, .dilation = 2, .before = 0, .after = 2}});
}
void test_im2col_1x1() { check_im2col<4>(5, 8, {{.extent = 6}, {.extent = 5}}); }
void test_im2col_1d() {
  check_im2col<3>(3, 64, {{.extent = 50, .filter = 5, .stride = 3, .before = 2, .after = 4}});
}
void test_im2col_3d() {
  check_im2col<5>(2, 64, {kThree, {.extent = 4, .filter = 2}, {.extent = 5, .filter = 3}});
}
void test_im2col_multicast() { check_im2col<4, 2>(3, 72, {kThree, kThree}); }

constexpr Case kCases[] = {
    {"tma_load", test_tma_load},
    {"tma_store", test_tma_store},
    {"ring", test_ring<1>},
    {"ring_multicast", test_ring<2>},
    {"im2col_3x3", test_im2col_3x3},
    {"im2col_stride_2", test_im2col_stride_2},
    {"im2col_dilated", test_im2col_dilated},
    {"im2col_1x1", test_im2col_1x1},
    {"im2col_1d", test_im2col_1d},
    {"im2col_3d", test_im2col_3d},
    {"im2col_multicast", test_im2col_multicast},
};

}  // namespace

std::span<const Case> sm90_copy_cases() { return kCases; }

}  // namespace dlkern::test
