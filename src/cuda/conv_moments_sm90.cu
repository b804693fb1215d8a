// The statistics of a convolution's result from the moments of its parts of 64 pixels, which Hopper's
// kernels leave.
//
//   mean = sum n_i mean_i / N,  var = (sum M2_i + sum n_i (mean_i - mean)^2) / N
//
// A block has four channels, 32 bytes of a part, and up to 256 threads for each, which have every so
// many-th part; then pairs of threads, in an order that the number of parts decides. Deviations are
// those from the first part's mean, in float64, whose rounding does not show. Bound by latency.
#include "core/mixed.h"
#include "cuda/conv_sm90.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kColumns = 4, kMostLanes = 256, kUnroll = 8;

struct Args {
  const float2* parts;
  int64_t rows;
  int count, columns;  // of the parts
  MixedView<float> mean, var;
};

__global__ void __launch_bounds__(kColumns* kMostLanes)
    conv_merge_moments_kernel(const DLK_GRID_CONSTANT Args args) {
  __shared__ double2 shared[kColumns * kMostLanes];
  const int lane = threadIdx.x / kColumns, lanes = blockDim.x / kColumns;
  const int column = blockIdx.x * kColumns + threadIdx.x % kColumns;
  const bool active = column < args.columns;
  const float2* at = args.parts + column;
  const double first = active ? at->x : 0.0f;
  const int last_rows = static_cast<int>(args.rows - int64_t{args.count - 1} * kSm90MomentsRows);
  double2 total = {};  // sums of the deviations, and of their squares
  if (active) {
#pragma unroll kUnroll
    for (int i = lane; i < args.count; i += lanes) {
      const float2 part = at[int64_t{i} * args.columns];
      const double n = i == args.count - 1 ? last_rows : kSm90MomentsRows, d = part.x - first;
      total.x += n * d;
      total.y += part.y + n * d * d;
    }
  }
  shared[threadIdx.x] = total;
  for (int half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane >= half) continue;
    const double2 other = shared[threadIdx.x + half * kColumns];
    total.x += other.x;
    total.y += other.y;
    shared[threadIdx.x] = total;
  }
  if (lane != 0 || !active) return;
  const double rows = static_cast<double>(args.rows), mean = total.x / rows;
  const double var = (total.y - total.x * mean) / rows;
  args.mean.store(column, static_cast<float>(first + mean));
  args.var.store(column, static_cast<float>(var < 0 ? 0 : var));
}

}  // namespace

size_t sm90_moments_bytes(int64_t rows, int64_t columns) {
  return ceil_div(rows, kSm90MomentsRows) * columns * sizeof(float2);
}

void sm90_merge_moments(const float2* parts, int64_t rows, const ConvEpilogue& e,
                        const Launch& launch) {
  const Args args{parts,
                  rows,
                  static_cast<int>(ceil_div(rows, kSm90MomentsRows)),
                  static_cast<int>(e.mean.shape[0]),
                  MixedView<float>(e.mean),
                  MixedView<float>(e.var)};
  int lanes = 8;
  while (lanes < kMostLanes && lanes < args.count) lanes *= 2;
  launch_kernel(conv_merge_moments_kernel, static_cast<unsigned>(ceil_div(args.columns, kColumns)),
                static_cast<unsigned>(lanes * kColumns), 0, launch.stream, args);
}

}  // namespace dlkern
