// Transposed copies: y = x, element by element, for views x and y of one shape and any strides.
//
// Axes are ordered by y's strides and merged. Where x runs along y's fastest axis too, or one of the
// two fastest axes is very short, threads copy in y's order, 16 bytes at a time where strides and
// addresses allow it. Else tiles pass through shared memory: read along x's fastest axis, written
// along y's, so that both sides are coalesced; a column more than the tile is wide keeps the reads of
// a column in different banks. Bound by memory. Items are moved by size, whatever they mean.
#include "ops/layout.h"

#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;
constexpr int kTileX = 32;  // threads of a block along the contiguous side of a tile
constexpr int kTileY = kThreads / kTileX;

template <class T>
__global__ void copy_kernel(const T* x, T* y, StridedIndex<2> index) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < index.numel; i += step) {
    int64_t at[2];
    index.offsets(i, at);
    y[at[0]] = x[at[1]];
  }
}

template <class T>
constexpr int kTile = sizeof(T) < 4 ? 64 : 32;

template <class T>
__global__ void __launch_bounds__(kThreads, 2) transpose_kernel(const T* x, T* y, Transposition t) {
  constexpr int n = kTile<T>;
  __shared__ T tile[n][n + 1];  // [column][row]
  const int64_t down = ceil_div(t.rows, n), across = ceil_div(t.columns, n);
  const int64_t tiles = t.outer.numel * down * across;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const int64_t rest = quotient(i, down), row = (i - rest * down) * n;
    const int64_t batch = quotient(rest, across), column = (rest - batch * across) * n;
    int64_t at[2];
    t.outer.offsets(batch, at);
    const T* from = x + at[1] + row * t.x_row + column * t.x_column;
    T* to = y + at[0] + row * t.y_row + column * t.y_column;
    const int rows = static_cast<int>(t.rows - row < n ? t.rows - row : n);
    const int columns = static_cast<int>(t.columns - column < n ? t.columns - column : n);
    for (int c = threadIdx.y; c < columns; c += kTileY) {
      for (int r = threadIdx.x; r < rows; r += kTileX) {
        tile[c][r] = from[r * t.x_row + c * t.x_column];
      }
    }
    __syncthreads();
    for (int r = threadIdx.y; r < rows; r += kTileY) {
      for (int c = threadIdx.x; c < columns; c += kTileX) {
        to[r * t.y_row + c * t.y_column] = tile[c][r];
      }
    }
    __syncthreads();  // the tile is free for the next one
  }
}

// Bytes of the largest item, up to 16, that both sides of the copy can be cut into; the index is
// changed to count in it.
int widen(StridedIndex<2>& index, int bytes, const void* x, const void* y) {
  const int last = index.ndim - 1;
  if (last < 0 || index.stride[0][last] != 1 || index.stride[1][last] != 1) return bytes;
  for (; bytes < 16; bytes *= 2) {
    bool can = index.shape[last] % 2 == 0 && is_aligned(x, 2 * bytes) && is_aligned(y, 2 * bytes);
    for (int d = 0; d < last; ++d) {
      can = can && index.stride[0][d] % 2 == 0 && index.stride[1][d] % 2 == 0;
    }
    if (!can) break;
    index.numel /= 2;
    index.shape[last] /= 2;
    for (int d = 0; d < last; ++d) {
      index.stride[0][d] /= 2;
      index.stride[1][d] /= 2;
    }
  }
  return bytes;
}

template <class T>
void copy(const Permute& p, const StridedIndex<2>& index, const Launch& launch) {
  launch_kernel(copy_kernel<T>, grid_for(index.numel, kThreads, 16), kThreads, 0, launch.stream,
                p.x.as<T>(), p.y.as<T>(), index);
}

void run_copy(const Permute& p, StridedIndex<2> index, const Launch& launch) {
  switch (widen(index, static_cast<int>(dtype_size(p.y.dtype)), p.x.data, p.y.data)) {
    case 1:
      return copy<uint8_t>(p, index, launch);
    case 2:
      return copy<uint16_t>(p, index, launch);
    case 4:
      return copy<uint32_t>(p, index, launch);
    case 8:
      return copy<uint64_t>(p, index, launch);
    default:
      return copy<Vec<uint64_t, 2>>(p, index, launch);
  }
}

void run_transpose(const Permute& p, const StridedIndex<2>& index, int fast, const Launch& launch) {
  const Transposition t(index, fast);
  dispatch_item_size(p.y.dtype, [&]<class T>() {
    const int64_t n = kTile<T>;
    const int64_t tiles = t.outer.numel * ceil_div(t.rows, n) * ceil_div(t.columns, n);
    launch_kernel(transpose_kernel<T>, grid_for(tiles, 1, 16), dim3(kTileX, kTileY), 0,
                  launch.stream, p.x.as<T>(), p.y.as<T>(), t);
  });
}

void run(const Permute& p, const Launch& launch) {
  constexpr int64_t kShort = 8;
  const auto index = in_memory_order(make_index<2>({&p.y, &p.x}));
  const int last = index.ndim - 1, fast = fastest_axis(index);
  if (fast == last || index.shape[fast] < kShort || index.shape[last] < kShort) {
    run_copy(p, index, launch);
  } else {
    run_transpose(p, index, fast, launch);
  }
}

constexpr Impl<Permute> kPermute[] = {{"tiles", supports_all, nullptr, run}};

}  // namespace

template <>
ImplList<Permute> gpu_impls<Permute>() {
  return kPermute;
}

}  // namespace dlkern
