// Copies of images and weights between channels first and channels last.
//
// Each piece is a transposition of matrices: channels by pixels, or channels by taps. Blocks of one
// launch do all pieces of a call, since each launch takes a few microseconds, as much as the copy of a
// small image does. Images go tile by tile (prims/transposed_tile.cuh), in accesses of 16 or 8 bytes
// where addresses and extents allow it: rows of 14 x 14 pixels of 16 bits are multiples of 8 bytes.
// Weights have a few taps: those of some hundred channels are one run of memory, which a block reads as
// it is, and writes tap by tap. Where they lie otherwise, a thread copies those of one channel.
// Bound by memory, small ones by latency.
#include "cuda/conv_layout.h"

#include <algorithm>

#include "core/fast_div.h"
#include "cuda/layout.h"
#include "cuda/prims/transposed_tile.cuh"

namespace dlkern::gpu {
namespace {

constexpr int kMostPieces = 3;  // of a launch
constexpr int kFewRows = 16;

enum class Way { kTiles, kSmallTiles, kRuns, kColumns };

// A transposition of each item of one outer dimension.
struct Part {
  const void* x;
  void* y;
  int64_t x_outer, y_outer, x_row, x_column, y_row, y_column;
  int64_t rows, columns, outer;
  FastDiv down, across;  // tiles
  int x_bytes, y_bytes;  // of an access
  Way way;
  int64_t blocks;
};

struct Parts {
  Part part[kMostPieces];
  int count = 0;
};

// Of small images: less of a tile lies beside them.
template <class T>
using SmallTile = TransposedTile<T, sizeof(T) == 4 ? 32 : 64>;

// Columns of a block that takes all rows.
constexpr int kRunColumns = 256;

template <class T>
__device__ void copy_runs(const Part& p, int block, char* memory) {
  constexpr int n = kPerChunk<T>;
  using Items = Vec<T, n>;
  const int outer = p.across.quick(block), rows = static_cast<int>(p.rows);
  const int first = (block - outer * static_cast<int>(p.across.divisor())) * kRunColumns;
  const int columns = min(static_cast<int>(p.columns) - first, kRunColumns);
  const auto* x = reinterpret_cast<const Items*>(static_cast<const T*>(p.x) + outer * p.x_outer +
                                                 int64_t{first} * rows);
  for (int i = threadIdx.x; i < columns * rows / n; i += kTileThreads) {
    reinterpret_cast<Items*>(memory)[i] = x[i];
  }
  __syncthreads();
  const T* items = reinterpret_cast<const T*>(memory);
  T* y = static_cast<T*>(p.y) + outer * p.y_outer + first;
  for (int i = threadIdx.x; i < rows * (kRunColumns / n); i += kTileThreads) {
    const int row = i / (kRunColumns / n), column = i % (kRunColumns / n) * n;
    if (column >= columns) continue;
    Items v;
#pragma unroll
    for (int j = 0; j < n; ++j) v.v[j] = items[(column + j) * rows + row];
    store_vec(y + row * p.y_row + column, v);
  }
}

// The rows of a column by one thread.
template <class T>
__device__ void copy_columns(const Part& p, int64_t block) {
  int64_t column = block * kTileThreads + threadIdx.x;
  const int64_t outer = p.across.divide(column);
  if (outer >= p.outer) return;
  const T* x = static_cast<const T*>(p.x) + outer * p.x_outer + column * p.x_column;
  T* y = static_cast<T*>(p.y) + outer * p.y_outer + column * p.y_column;
#pragma unroll 4
  for (int64_t row = 0; row < p.rows; ++row) y[row * p.y_row] = x[row * p.x_row];
}

template <class Tile, class T>
__device__ void copy_tile(const Part& p, int block, char* memory) {
  const int rest = p.across.quick(block), outer = p.down.quick(rest);
  const int64_t column =
      int64_t{block - rest * static_cast<int>(p.across.divisor())} * Tile::kColumns;
  const int64_t row = int64_t{rest - outer * static_cast<int>(p.down.divisor())} * Tile::kRows;
  const Tile tile{memory, static_cast<int>(min(p.rows - row, int64_t{Tile::kRows})),
                  static_cast<int>(min(p.columns - column, int64_t{Tile::kColumns}))};
  const T* x = static_cast<const T*>(p.x) + outer * p.x_outer + row * p.x_row + column * p.x_column;
  T* y = static_cast<T*>(p.y) + outer * p.y_outer + row * p.y_row + column * p.y_column;
  if (p.x_bytes == 16) {
    tile.template read<uint4>(x, p);
  } else if (p.x_bytes == 8) {
    tile.template read<uint2>(x, p);
  } else {
    tile.template read<T>(x, p);
  }
  __syncthreads();
  if (p.y_bytes == 16) {
    tile.template write<uint4>(y, p);
  } else if (p.y_bytes == 8) {
    tile.template write<uint2>(y, p);
  } else {
    tile.template write<T>(y, p);
  }
}

template <class T>
constexpr int kMemory = std::max<int>(TransposedTile<T>::kBytes, kFewRows* kRunColumns * sizeof(T));

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    conv_layout_kernel(DLK_GRID_CONSTANT const Parts parts) {
  __shared__ __align__(kChunk) char memory[kMemory<T>];
  int block = static_cast<int>(blockIdx.x), i = 0;
  while (block >= parts.part[i].blocks) block -= static_cast<int>(parts.part[i++].blocks);
  const Part& p = parts.part[i];
  switch (p.way) {
    case Way::kTiles:
      return copy_tile<TransposedTile<T>, T>(p, block, memory);
    case Way::kSmallTiles:
      return copy_tile<SmallTile<T>, T>(p, block, memory);
    case Way::kRuns:
      return copy_runs<T>(p, block, memory);
    case Way::kColumns:
      return copy_columns<T>(p, block);
  }
}

// Bytes of the largest access of 16, 8 or one item's that rows of a side can be cut into.
int access_bytes(const void* data, int item_bytes, int64_t step, int64_t extent, int64_t beside,
                 int64_t outer) {
  for (const int bytes : {16, 8}) {
    const int64_t n = bytes / item_bytes;
    if (step == 1 && extent % n == 0 && beside % n == 0 && outer % n == 0 &&
        is_aligned(data, bytes)) {
      return bytes;
    }
  }
  return item_bytes;
}

// Whether the kernel does a copy well, and how.
template <class T>
bool make_part(const CopyPlan& plan, Part& p) {
  if (!plan.transposes() || plan.index.ndim > 3) return false;
  const Transposition t(plan.index, plan.fast);
  const bool batch = t.outer.ndim > 0, small = t.rows <= SmallTile<T>::kRows;
  const int64_t rows = small ? SmallTile<T>::kRows : TransposedTile<T>::kRows;
  p = {plan.x,
       plan.y,
       batch ? t.outer.stride[1][0] : 0,
       batch ? t.outer.stride[0][0] : 0,
       t.x_row,
       t.x_column,
       t.y_row,
       t.y_column,
       t.rows,
       t.columns,
       t.outer.numel,
       FastDiv(ceil_div(t.rows, rows)),
       FastDiv(ceil_div(t.columns, TransposedTile<T>::kColumns))};
  p.x_bytes = access_bytes(p.x, sizeof(T), p.x_row, p.rows, p.x_column, p.x_outer);
  p.y_bytes = access_bytes(p.y, sizeof(T), p.y_column, p.columns, p.y_row, p.y_outer);
  p.blocks = p.outer * p.down.divisor() * p.across.divisor();
  p.way = small ? Way::kSmallTiles : Way::kTiles;
  if (t.rows <= kFewRows) {
    // All rows of the columns are one run on x's side.
    const bool run = p.x_row == 1 && p.x_column == p.rows && p.y_bytes == kChunk &&
                     is_aligned(p.x, kChunk) && p.x_outer * sizeof(T) % kChunk == 0;
    p.way = run ? Way::kRuns : Way::kColumns;
    p.across = FastDiv(run ? ceil_div(t.columns, kRunColumns) : t.columns);
    p.blocks = run ? p.outer * p.across.divisor() : ceil_div(t.columns * p.outer, kTileThreads);
  }
  return p.blocks < 1 << 29;
}

void copy_otherwise(const Piece& piece, const Launch& launch) {
  const Copy copy{{piece}};
  for (const Impl<Copy>& impl : gpu_impls<Copy>()) {
    if (!impl.supports(copy)) return impl.run(copy, launch);
  }
  fail(DLK_INTERNAL, "no copy for a convolution");
}

template <class T>
void copy_items(std::span<const Piece> pieces, const Launch& launch) {
  Parts parts;
  int64_t blocks = 0;
  const auto flush = [&] {
    if (parts.count == 0) return;
    launch_kernel(conv_layout_kernel<T>, static_cast<unsigned>(blocks), kTileThreads, 0,
                  launch.stream, parts);
    parts.count = 0;
    blocks = 0;
  };
  for (const Piece& piece : pieces) {
    if (parts.count == kMostPieces) flush();
    Part& part = parts.part[parts.count];
    if (!make_part<T>(CopyPlan(piece), part)) {
      copy_otherwise(piece, launch);
      continue;
    }
    ++parts.count;
    blocks += part.blocks;
  }
  flush();
}

}  // namespace

void copy_layouts(std::span<const Piece> pieces, const Launch& launch) {
  const size_t bytes = pieces.empty() ? 0 : dtype_size(pieces[0].y.dtype);
  if (bytes == 2) return copy_items<uint16_t>(pieces, launch);
  if (bytes == 4) return copy_items<uint32_t>(pieces, launch);
  for (const Piece& piece : pieces) copy_otherwise(piece, launch);
}

}  // namespace dlkern::gpu
