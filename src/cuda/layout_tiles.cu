// Transposed copies through shared memory: x runs along one axis (rows), y along another (columns).
//
// Tiles: a block moves a tile of prims/transposed_tile.cuh, 16 bytes at a time on each side whose
// addresses and extents allow it.
//
// Planes: one side interleaves a few planes without gaps ([h][k], k < K; RGB images, 7 x 7 maps), the
// other has them apart ([k][h]). A block reads all planes of some h, so that the interleaved side is
// one run of memory whatever K is.
//
// Bound by memory: each side is read or written once, in whole sectors. Items are moved by size.
#include "core/fast_div.h"
#include "cuda/layout.h"
#include "cuda/prims/transposed_tile.cuh"

namespace dlkern::gpu {
namespace {

// Blocks of a grid: one for each tile, so that none waits for another's end.
int one_block_each(int64_t tiles) { return grid_for(tiles, 1, 1 << 20); }

// ---- Tiles ------------------------------------------------------------------------------------

// Blocks of a multiprocessor, at least: as many as registers allow without spills.
template <class T>
constexpr int tiles_blocks(bool wide) {
  return !wide ? 4 : sizeof(T) > 1 ? 6 : 5;
}

// The tiles of a transposition, numbered along the columns first.
template <class T>
struct Tiling {
  FastDiv down, across;
  int64_t count;

  explicit Tiling(const Transposition& t)
      : down(ceil_div(t.rows, TransposedTile<T>::kRows)),
        across(ceil_div(t.columns, TransposedTile<T>::kColumns)),
        count(t.outer.numel * down.divisor() * across.divisor()) {}
};

template <class T, bool kWideX, bool kWideY>
__global__ void __launch_bounds__(kTileThreads, tiles_blocks<T>(kWideX&& kWideY))
    tiles_kernel(const T* x, T* y, Transposition t, Tiling<T> tiling) {
  using Tile = TransposedTile<T>;
  __shared__ __align__(kChunk) char memory[Tile::kBytes];
  const auto number = static_cast<int>(blockIdx.x);
  const int rest = tiling.across.quick(number), batch = tiling.down.quick(rest);
  const int64_t column =
      int64_t{number - rest * static_cast<int>(tiling.across.divisor())} * Tile::kColumns;
  const int64_t row = int64_t{rest - batch * static_cast<int>(tiling.down.divisor())} * Tile::kRows;
  int64_t at[2];
  t.outer.offsets(batch, at);
  const Tile tile{memory, static_cast<int>(min(t.rows - row, int64_t{Tile::kRows})),
                  static_cast<int>(min(t.columns - column, int64_t{Tile::kColumns}))};
  const T* from = x + at[1] + row * t.x_row + column * t.x_column;
  T* to = y + at[0] + row * t.y_row + column * t.y_column;
  tile.template read<std::conditional_t<kWideX, uint4, T>>(from, t);
  __syncthreads();
  tile.template write<std::conditional_t<kWideY, uint4, T>>(to, t);
}

// Whether a side can be taken 16 bytes at a time, along an axis of stride `step` beside another of
// stride `beside`.
bool is_wide(const StridedIndex<2>& outer, int side, const void* data, int item_bytes, int64_t step,
             int64_t extent, int64_t beside) {
  const int64_t n = kChunk / item_bytes;
  bool wide = step == 1 && extent % n == 0 && beside % n == 0 && is_aligned(data, kChunk);
  for (int d = 0; d < outer.ndim; ++d) wide = wide && outer.stride[side][d] % n == 0;
  return wide;
}
bool is_wide_x(const Transposition& t, const CopyPlan& p) {
  return is_wide(t.outer, 1, p.x, p.item_bytes, t.x_row, t.rows, t.x_column);
}
bool is_wide_y(const Transposition& t, const CopyPlan& p) {
  return is_wide(t.outer, 0, p.y, p.item_bytes, t.y_column, t.columns, t.y_row);
}

template <class T>
void launch_tiles(const CopyPlan& plan, const Launch& launch) {
  const Transposition t(plan.index, plan.fast);
  const bool wide_x = is_wide_x(t, plan), wide_y = is_wide_y(t, plan);
  const auto kernel = wide_x
                          ? (wide_y ? tiles_kernel<T, true, true> : tiles_kernel<T, true, false>)
                          : (wide_y ? tiles_kernel<T, false, true> : tiles_kernel<T, false, false>);
  const Tiling<T> tiling(t);
  launch_kernel(kernel, static_cast<unsigned>(tiling.count), kTileThreads, 0, launch.stream,
                static_cast<const T*>(plan.x), static_cast<T*>(plan.y), t, tiling);
}

// ---- Planes -----------------------------------------------------------------------------------

// A copy between [h][k] without gaps and [k][h], for each item of the outer axes.
struct Planes {
  StridedIndex<2> outer;  // y, x
  bool gathers;           // x has the planes
  int64_t length;         // H
  int64_t pitch, step;    // from plane to plane and along a plane
  FastDiv count;          // K
  int run_bits;           // log2 of the h of a block: kPitch bytes or a power of two of that

  DLK_HD int run() const { return 1 << run_bits; }
  int64_t blocks() const { return outer.numel * ceil_div(length, run()); }
};

constexpr int kMaxPlanes = 256;

// Moves the accesses below `count` that are valid, a few of a thread at once.
template <class Access, class Valid, class Load, class Store>
__device__ void move(int count, Valid&& valid, Load&& load, Store&& store) {
  constexpr int kUnroll = sizeof(Access) == kChunk ? 4 : 8;
  for (int first = threadIdx.x; first < count; first += kUnroll * kTileThreads) {
    Access v[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (valid(first + i * kTileThreads)) v[i] = load(first + i * kTileThreads);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (valid(first + i * kTileThreads)) store(first + i * kTileThreads, v[i]);
    }
  }
}

// The planes of `length` h in shared memory, p.run() of each.
template <class T, class Access>
struct PlanesOfBlock {
  static constexpr int n = sizeof(Access) / sizeof(T);
  const Planes& p;
  char* memory;
  int length;

  __device__ int count() const { return static_cast<int>(p.count.divisor()); }
  __device__ int pitch() const { return p.run() * static_cast<int>(sizeof(T)); }

  // f(item, T& of it in shared memory) for the items of one access of the interleaved side.
  template <class F>
  __device__ void each_item(int access, F&& f) const {
    int h = p.count.quick(access * n), k = access * n - h * count();
#pragma unroll
    for (int i = 0; i < n; ++i) {
      f(i, *reinterpret_cast<T*>(memory + place<T>(k, h, pitch())));
      if (++k == count()) {
        k = 0;
        ++h;
      }
    }
  }

  __device__ void read_interleaved(const T* from) const {
    const int accesses = length * count() / n;
    move<Access>(
        accesses, [&](int at) { return at < accesses; },
        [&](int at) { return reinterpret_cast<const Access*>(from)[at]; },
        [&](int at, const Access& v) { each_item(at, [&](int i, T& item) { item = v.v[i]; }); });
  }
  __device__ void write_interleaved(T* to) const {
    const int accesses = length * count() / n;
    move<Access>(
        accesses, [&](int at) { return at < accesses; },
        [&](int at) {
          Access v;
          each_item(at, [&](int i, T& item) { v.v[i] = item; });
          return v;
        },
        [&](int at, const Access& v) { reinterpret_cast<Access*>(to)[at] = v; });
  }

  // f(an access of shared memory, where it lies in the planes)
  __device__ Access& shared(int at) const {
    return *reinterpret_cast<Access*>(memory + place<T>(plane(at), along(at), pitch()));
  }
  __device__ int64_t offset(int at) const {
    return plane(at) * p.pitch + (n > 1 ? along(at) : along(at) * p.step);
  }
  __device__ int plane(int at) const { return at * n >> p.run_bits; }
  __device__ int along(int at) const { return at * n & (p.run() - 1); }

  __device__ void read_planes(const T* from) const {
    const int accesses = p.run() * count() / n;
    move<Access>(
        accesses, [&](int at) { return at < accesses && along(at) < length; },
        [&](int at) { return *reinterpret_cast<const Access*>(from + offset(at)); },
        [&](int at, const Access& v) { shared(at) = v; });
  }
  __device__ void write_planes(T* to) const {
    const int accesses = p.run() * count() / n;
    move<Access>(
        accesses, [&](int at) { return at < accesses && along(at) < length; },
        [&](int at) { return shared(at); },
        [&](int at, const Access& v) { *reinterpret_cast<Access*>(to + offset(at)) = v; });
  }
};

template <class T, bool kWide, bool kGathers>
__global__ void __launch_bounds__(kTileThreads, sizeof(T) > 1 ? 3 : 2)
    planes_kernel(const T* x, T* y, Planes p) {
  extern __shared__ __align__(kChunk) char memory[];
  using Access = Vec<T, kWide ? kPerChunk<T> : 1>;
  const int64_t runs = ceil_div(p.length, p.run());
  for (int64_t i = blockIdx.x; i < p.outer.numel * runs; i += gridDim.x) {
    const int64_t batch = quotient(i, runs), h = (i - batch * runs) * p.run();
    int64_t at[2];
    p.outer.offsets(batch, at);
    const int64_t left = p.length - h;
    const PlanesOfBlock<T, Access> block{p, memory,
                                         static_cast<int>(left < p.run() ? left : p.run())};
    const int64_t interleaved = h * p.count.divisor(), planar = h * p.step;
    if constexpr (kGathers) {
      block.read_planes(x + at[1] + planar);
      __syncthreads();
      block.write_interleaved(y + at[0] + interleaved);
    } else {
      block.read_interleaved(x + at[1] + interleaved);
      __syncthreads();
      block.write_planes(y + at[0] + planar);
    }
    __syncthreads();  // the memory is free for the next one
  }
}

// The copy as one of planes; length is 0 where neither side is interleaved without gaps.
Planes planes_of(const Transposition& t, int item_bytes) {
  Planes p{t.outer, false, 0, 0, 0, FastDiv(1), 0};
  int64_t count = 0;
  if (t.y_column == 1 && t.y_row == t.columns && t.columns <= kMaxPlanes) {
    p.gathers = true;
    count = t.columns, p.length = t.rows, p.pitch = t.x_column, p.step = t.x_row;
  } else if (t.x_row == 1 && t.x_column == t.rows && t.rows <= kMaxPlanes) {
    count = t.rows, p.length = t.columns, p.pitch = t.y_row, p.step = t.y_column;
  } else {
    return p;
  }
  // A block has 16 KB if the planes are not too many for it, and where blocks are not too few.
  constexpr int64_t kBytes = 16384;
  const int64_t enough = 4 * multiprocessor_count();
  p.count = FastDiv(count);
  while (p.run() * item_bytes < kPitch ||
         (2 * p.run() * count * item_bytes <= kBytes && p.blocks() / 2 >= enough)) {
    ++p.run_bits;
  }
  return p;
}

template <class T>
void launch_planes(const CopyPlan& plan, const Launch& launch) {
  const Transposition t(plan.index, plan.fast);
  const Planes p = planes_of(t, sizeof(T));
  const void* planar = p.gathers ? plan.x : plan.y;
  const void* interleaved = p.gathers ? plan.y : plan.x;
  // The interleaved side is one run of memory.
  const bool wide =
      is_wide(t.outer, p.gathers, planar, sizeof(T), p.step, p.length, p.pitch) &&
      is_wide(t.outer, !p.gathers, interleaved, sizeof(T), 1, p.length * p.count.divisor(), 0);
  const auto kernel =
      wide ? (p.gathers ? planes_kernel<T, true, true> : planes_kernel<T, true, false>)
           : (p.gathers ? planes_kernel<T, false, true> : planes_kernel<T, false, false>);
  launch_kernel(kernel, one_block_each(p.blocks()), kTileThreads,
                p.run() * p.count.divisor() * sizeof(T), launch.stream,
                static_cast<const T*>(plan.x), static_cast<T*>(plan.y), p);
}

template <class F>
void dispatch_plan(const CopyPlan& plan, F&& f) {
  switch (plan.item_bytes) {
    case 1:
      return f.template operator()<uint8_t>();
    case 2:
      return f.template operator()<uint16_t>();
    case 4:
      return f.template operator()<uint32_t>();
    default:
      return f.template operator()<uint64_t>();
  }
}

}  // namespace

const char* declines_planes(const CopyPlan& plan) {
  if (!plan.transposes()) return "both sides run along the same axis";
  const Transposition t(plan.index, plan.fast);
  const Planes p = planes_of(t, plan.item_bytes);
  if (p.length == 0)
    return "no side has its fastest axes together without gaps, the inner one short";
  if (p.length * p.count.divisor() < 1024) return "too few items in one plane";
  const int64_t inner_bytes = p.count.divisor() * plan.item_bytes;
  if (is_wide_x(t, plan) && is_wide_y(t, plan) && inner_bytes >= 64) return "tiles fit better";
  return nullptr;
}

const char* declines_tiles(const CopyPlan& plan) {
  if (!plan.transposes()) return "both sides run along the same axis";
  const Transposition t(plan.index, plan.fast);
  constexpr int64_t kShort = 8;
  return t.rows < kShort || t.columns < kShort ? "one of the fastest axes is short" : nullptr;
}

void copy_planes(const CopyPlan& plan, const Launch& launch) {
  dispatch_plan(plan, [&]<class T>() { launch_planes<T>(plan, launch); });
}

void copy_tiles(const CopyPlan& plan, const Launch& launch) {
  dispatch_plan(plan, [&]<class T>() { launch_tiles<T>(plan, launch); });
}

}  // namespace dlkern::gpu
