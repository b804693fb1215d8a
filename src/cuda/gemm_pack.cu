// Operands of a matrix product gathered along k: from any strides to rows of k.
//
// Layout: a block moves 64 rows x 64 k through shared memory, reading along whichever of the two has
// the smaller stride and writing along k, 16 elements to a thread.
// Planes: x = x0 + x1 + x2, each the bfloat16 nearest to what is left: 24 bits and more, so that the
// sum is x itself.
// Bound by memory: each element is read once and written once (6 bytes for a float32).
#include "cuda/gemm_pack.h"

#include <climits>

#include "cuda/prims/gpu.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kTile = 64, kThreads = 256, kEach = kTile * kTile / kThreads;

struct Args {
  Pack pack;
  int64_t pitch, tiles_r, tiles_k;
};

// Largest float32 that rounds to a finite bfloat16, and smallest whose third plane keeps its bits.
constexpr uint32_t kLargest = 0x7f7f7fff, kSmallest = 0x0d800000;  // 2^-100

__device__ bool has_planes(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  return magnitude == 0 || (magnitude >= kSmallest && magnitude <= kLargest);
}

// Element type of one plane, and the planes of a value.
template <class T, bool kPlanes>
struct Written {
  static constexpr int kCount = 1;
  using Type = T;
  static __device__ void split(T x, T (&planes)[1]) { planes[0] = x; }
};
template <class T>
struct Written<T, true> {
  static constexpr int kCount = 3;
  using Type = BFloat16;
  static __device__ void split(T bits, BFloat16 (&planes)[3]) {
    float left = __uint_as_float(bits);
    for (int i = 0; i < 3; ++i) {
      planes[i] = BFloat16(left);
      left -= static_cast<float>(planes[i]);
    }
  }
};

template <class T, bool kPlanes>
__global__ void __launch_bounds__(kThreads) pack_kernel(Args args, void* to) {
  using Out = Written<T, kPlanes>;
  using E = typename Out::Type;
  __shared__ T tile[kTile][kTile + 1];
  const Pack& p = args.pack;
  const int64_t tiles = p.items.numel * args.tiles_r * args.tiles_k;
  const bool along_k = p.k.ndim == 0 || std::abs(p.k.stride[0][p.k.ndim - 1]) <= std::abs(p.row);
  const int fast = threadIdx.x % kTile, slow = threadIdx.x / kTile;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const int64_t item = i / (args.tiles_r * args.tiles_k);
    const int64_t in_item = i - item * args.tiles_r * args.tiles_k;
    const int64_t r0 = in_item / args.tiles_k * kTile, k0 = in_item % args.tiles_k * kTile;
    int64_t at[1];
    p.items.offsets(item, at);
    const T* from = static_cast<const T*>(p.from) + at[0];
    bool fits = true;
    __syncthreads();  // the tile before has been read
#pragma unroll  // all at once on their way
    for (int j = 0; j < kEach; ++j) {
      const int step = slow + j * (kThreads / kTile);
      const int r = along_k ? step : fast, k = along_k ? fast : step;
      T x = 0;
      if (r0 + r < p.rows && k0 + k < p.k.numel) {
        int64_t of_k[1];
        p.k.offsets(k0 + k, of_k);
        x = from[(r0 + r) * p.row + of_k[0]];
      }
      if constexpr (kPlanes) fits = fits && has_planes(x);
      tile[r][k] = x;
    }
    if constexpr (kPlanes) {
      if (!fits) *p.flag = 1;  // every writer writes the same
    }
    __syncthreads();
    const int r = threadIdx.x / (kTile / kEach), first = threadIdx.x % (kTile / kEach) * kEach;
    if (r0 + r >= p.rows) continue;
    alignas(16) E row[Out::kCount][kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      E planes[Out::kCount];
      Out::split(tile[r][first + j], planes);
      for (int plane = 0; plane < Out::kCount; ++plane) row[plane][j] = planes[plane];
    }
#pragma unroll
    for (int plane = 0; plane < Out::kCount; ++plane) {
      const int64_t line = (item * Out::kCount + plane) * p.rows + r0 + r;
      auto* place = reinterpret_cast<uint4*>(static_cast<E*>(to) + line * args.pitch + k0 + first);
#pragma unroll
      for (int j = 0; j < kEach * static_cast<int>(sizeof(E)) / 16; ++j) {
        place[j] = reinterpret_cast<const uint4*>(row[plane])[j];
      }
    }
  }
}

}  // namespace

void run_pack(const Pack& p, void* to, void* stream) {
  const Args args{p, p.pitch(), ceil_div(p.rows, kTile), ceil_div(p.k.numel, kTile)};
  const int64_t tiles = p.items.numel * args.tiles_r * args.tiles_k;
  const auto kernel = p.planes               ? pack_kernel<uint32_t, true>
                      : p.element_bytes == 1 ? pack_kernel<uint8_t, false>
                      : p.element_bytes == 2 ? pack_kernel<uint16_t, false>
                                             : pack_kernel<uint32_t, false>;
  launch_kernel(kernel, static_cast<unsigned>(std::min<int64_t>(tiles, INT_MAX)), kThreads, 0,
                stream, args, to);
}

}  // namespace dlkern
