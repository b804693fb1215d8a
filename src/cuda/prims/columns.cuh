// A reduction over the positions of each column of a [positions, columns] view, in two stages, or
// in one where the positions are few.
//
// A block of 256 threads takes `lanes` neighbouring columns (1 where neighbouring positions are
// adjacent in memory instead) and 256 / lanes positions at a time. The positions are cut into
// `splits`, so that few columns still fill the device; each split leaves a partial result in the
// workspace, and the second stage merges those. Every order is fixed by the shape alone.
//
// A State is an aggregate that is empty when value-initialised, with `merge(const State&)` and
// `add(const Value (&)[K])`. A functor f gives the values: `f.load(column, position)`.
#pragma once

#include <algorithm>

#include "core/index.h"
#include "cuda/prims/gpu.h"

namespace dlkern::gpu {

inline constexpr int kColumnThreads = 256;

// Host side: how the view is shared out. Passed to the kernels as it is.
struct ColumnTiles {
  int64_t positions, columns;
  int lanes;           // columns of a block: a power of two
  int64_t tiles;       // of `lanes` columns
  int64_t splits;      // of the positions, at least 1
  int64_t split_size;  // positions of a split

  ColumnTiles(int64_t positions_, int64_t columns_, bool columns_adjacent)
      : positions(positions_), columns(columns_), lanes(1) {
    constexpr int64_t kBlocks = 2048;    // enough to fill any device
    constexpr int64_t kPerThread = 16;   // positions worth a thread
    constexpr int64_t kMaxSplits = 256;  // or the second stage takes too long
    while (columns_adjacent && lanes < 32 && lanes < columns) lanes *= 2;
    tiles = ceil_div(columns, lanes);
    const int64_t wanted = ceil_div(kBlocks, std::max<int64_t>(tiles, 1));
    const int64_t worth = ceil_div(positions, kPerThread * kColumnThreads / lanes);
    splits = std::clamp<int64_t>(std::min(wanted, worth), 1, kMaxSplits);
    split_size = ceil_div(positions, splits);
    splits = split_size ? ceil_div(positions, split_size) : 1;
  }
  DLK_HD int64_t work() const {
    return tiles * splits;
  }  // blocks' worth of work in the first stage
  int grid() const { return static_cast<int>(std::clamp<int64_t>(work(), 1, 1 << 20)); }
  size_t partials() const { return static_cast<size_t>(splits * columns); }
};

// One item of work as one of the block's threads sees it.
struct ColumnThread {
  int64_t column, split;
  int64_t begin, end,
      step;     // positions begin, begin + step, ... below end; none past the last column
  bool leader;  // of its column's threads in this block

  __device__ ColumnThread(const ColumnTiles& t, int64_t work) {
    const int lane = threadIdx.x & (t.lanes - 1), row = threadIdx.x / t.lanes;
    split = work / t.tiles;
    column = (work - split * t.tiles) * t.lanes + lane;
    const bool inside = column < t.columns;
    const int64_t last = (split + 1) * t.split_size;
    step = kColumnThreads / t.lanes;
    begin = split * t.split_size + row;
    end = !inside ? 0 : last < t.positions ? last : t.positions;
    leader = inside && row == 0;
  }
};

// f(const int64_t (&position)[K]) for all of a thread's positions, four at once where possible, so
// that their loads are in flight together.
template <class F>
__device__ __forceinline__ void for_positions(const ColumnThread& t, F&& f) {
  int64_t m = t.begin;
  for (; m + 3 * t.step < t.end; m += 4 * t.step) {
    const int64_t four[4] = {m, m + t.step, m + 2 * t.step, m + 3 * t.step};
    f(four);
  }
  for (; m < t.end; m += t.step) {
    const int64_t one[1] = {m};
    f(one);
  }
}

// Merges the states of a column's threads; the result is complete in the leader. All threads of the
// block must call it; it may be called repeatedly.
template <class State>
__device__ State merge_rows(const State& state, int lanes) {
  __shared__ State slot[kColumnThreads];
  __syncthreads();  // the previous call's reads of slot are over
  const int thread = threadIdx.x;
  slot[thread] = state;
  for (int half = kColumnThreads / 2; half >= lanes; half /= 2) {
    __syncthreads();
    if (thread < half) slot[thread].merge(slot[thread + half]);
  }
  return slot[thread];
}

// f.finish(column, state) once per column where there is but one split.
template <class State, class F>
__global__ void __launch_bounds__(kColumnThreads, 2)
    column_partial_kernel(F f, ColumnTiles tiles, State* partial) {
  for (int64_t work = blockIdx.x; work < tiles.work(); work += gridDim.x) {
    const ColumnThread t(tiles, work);
    State state{};
    for_positions(t, [&]<int K>(const int64_t(&position)[K]) {
      typename State::Value v[K];
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = f.load(t.column, position[k]);
      state.add(v);
    });
    state = merge_rows(state, tiles.lanes);
    if (!t.leader) continue;
    if (tiles.splits == 1) {
      f.finish(t.column, state);
    } else {
      partial[t.split * tiles.columns + t.column] = state;
    }
  }
}

// f.finish(column, state) once per column.
template <class State, class F>
__global__ void __launch_bounds__(kColumnThreads, 2)
    column_final_kernel(F f, ColumnTiles splits, const State* partial) {
  for (int64_t work = blockIdx.x; work < splits.work(); work += gridDim.x) {
    const ColumnThread t(splits, work);
    State state{};
    for_positions(t, [&]<int K>(const int64_t(&split)[K]) {
      State v[K];
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = partial[split[k] * splits.columns + t.column];
#pragma unroll
      for (int k = 0; k < K; ++k) state.merge(v[k]);
    });
    state = merge_rows(state, splits.lanes);
    if (t.leader) f.finish(t.column, state);
  }
}

// The second stage alone: states [splits, columns] of a first stage elsewhere.
template <class State, class F>
void finish_columns(const F& f, int64_t splits, int64_t columns, const State* partial,
                    void* stream) {
  ColumnTiles tiles(splits, columns, true);
  tiles.splits = 1;
  tiles.split_size = splits;
  launch_kernel(column_final_kernel<State, F>, tiles.grid(), kColumnThreads, 0, stream, f, tiles,
                partial);
}

// The whole reduction. partial: tiles.partials() states of workspace.
template <class State, class F>
void reduce_columns(const F& f, const ColumnTiles& tiles, State* partial, void* stream) {
  launch_kernel(column_partial_kernel<State, F>, tiles.grid(), kColumnThreads, 0, stream, f, tiles,
                partial);
  if (tiles.splits > 1) finish_columns(f, tiles.splits, tiles.columns, partial, stream);
}

// kCount sums at once.
template <class Acc, int kCount>
struct alignas(kCount == 2 ? 2 * sizeof(Acc) : sizeof(Acc)) Sums {
  using Value = Sums;
  Acc v[kCount];

  __device__ void merge(const Sums& other) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] += other.v[i];
  }
  template <int K>
  __device__ void add(const Sums (&values)[K]) {
#pragma unroll
    for (int k = 0; k < K; ++k) merge(values[k]);
  }
};

}  // namespace dlkern::gpu
