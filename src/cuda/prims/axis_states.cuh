// What the kernels of axis_reduce.cuh have in common: a thread's chain of elements, and how states
// are combined and where they go.
#pragma once

#include "cuda/prims/axis_plan.cuh"
#include "cuda/prims/row_pieces.cuh"

namespace dlkern::gpu::axis {

// What an Op knows of a result when it is found.
template <class T>
struct Found {
  const T* row;  // its first element
  const ReducedIndex& reduced;
  int64_t n, at;  // its offset in y
};

template <class T>
using Values = Accumulator<T>[kPiece<T>];
template <class T>
__device__ __forceinline__ void unpack(const Piece<T>& piece, Values<T>& v) {
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) v[e] = static_cast<Accumulator<T>>(piece.get(e));
}

// A part of a result's chain: elements of it from position `first` on, those behind it and the other
// chains' between them.
template <class T>
struct Chain {
  int64_t first;
  int elements;  // up to the result's end; piece u is there where u * step < elements
  int step;      // from piece to piece

  __device__ Chain(const Order& order, int number, bool inside)
      : first(order.first_piece(number) * kPiece<T>), step(order.lanes() * kPiece<T>) {
    const int64_t rest = order.n - first;
    elements = !inside || rest <= 0 ? 0 : rest < INT32_MAX ? static_cast<int>(rest) : INT32_MAX;
  }
  __device__ int64_t piece(int u) const { return (first + u * step) / kPiece<T>; }
};

// fetch(offset) with the quickest function that gives the offset of a position along the reduced axes.
template <class Fetch>
__device__ __forceinline__ void with_offsets(const ReducedIndex& reduced, Fetch fetch) {
  if (reduced.is_flat()) {
    fetch([step = reduced.stride[0][0]](int64_t i) { return i * step; });
  } else {
    fetch([&](int64_t i) { return reduced.paired_offset(static_cast<int>(i)); });
  }
}

template <class T, class Op>
__device__ __forceinline__ Accumulator<T> load_pivot(const Source<T>& in, int64_t at) {
  if constexpr (Op::kPivot) {
    if (in.pivots) return static_cast<Accumulator<T>>(in.pivots[at]);
  }
  return Accumulator<T>(0);
}

// Of `lanes` neighbouring threads of a warp, complete in the first of them. All of the warp call it.
template <class Op>
__device__ __forceinline__ typename Op::State fold_lanes(const Op& op, typename Op::State state,
                                                         int lanes) {
  for (int mask = 1; mask < lanes; mask *= 2) state = op.combine(state, shuffle_xor(state, mask));
  return state;
}

// Of get(0), ..., get(count - 1), and no more than kFold of them.
template <class Op, class Get>
__device__ __forceinline__ typename Op::State fold_few(const Op& op, int64_t count, Get get) {
  typename Op::State s[kFold];
#pragma unroll
  for (int c = 0; c < kFold; ++c) s[c] = c < count ? get(c) : op.identity();
#pragma unroll
  for (int step = 1; step < kFold; step *= 2) {
#pragma unroll
    for (int c = 0; c < kFold; c += 2 * step) s[c] = op.combine(s[c], s[c + step]);
  }
  return s[0];
}

// take(o, state) of slots[o], slots[o + stride], ..., `count` of them, for each output o. All threads
// of the block call it. Where count is more than kFold, they have kFold slots each, or fewer.
template <class Op, class Take>
__device__ __forceinline__ void fold_slots(const Op& op, typename Op::State* slots, int stride,
                                           int outputs, int count, Take take) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto fold = [&](int o, int group) {
    const auto* mine = slots + group * kFold * stride + o;
    return fold_few(op, count - group * kFold, [&](int c) { return mine[c * stride]; });
  };
  __syncthreads();
  while (count > kFold) {
    const int groups = (count + kFold - 1) / kFold, group = thread / outputs;
    const int o = thread - group * outputs;
    typename Op::State state = op.identity();
    if (group < groups) state = fold(o, group);
    __syncthreads();
    if (group < groups) slots[group * stride + o] = state;
    __syncthreads();
    count = groups;
  }
  for (int o = thread; o < outputs; o += blockDim.x) take(o, fold(o, 0));
}

// The state of result r's segment: to the workspace, or finished where it is all there is.
template <bool kQuick, class T, class Op>
__device__ __forceinline__ void put(const Source<T>& in, const Plan& plan, const Op& op,
                                    typename Op::State* partials, int64_t r, int64_t segment,
                                    const typename Op::State& state) {
  if (partials) {
    partials[segment * plan.results + r] = state;
    return;
  }
  int64_t at[3];
  kQuick ? plan.kept.offsets(static_cast<int>(r), at) : plan.kept.offsets(r, at);
  op.finish(Found<T>{in.x + at[0], plan.reduced, plan.order.n, at[1]}, state);
}

// What a block has: a segment of each of the results of a tile.
struct Share {
  int segment, tile;

  __device__ explicit Share(const Plan& plan)
      : segment(plan.tiles.quick(static_cast<int>(blockIdx.x))),
        tile(static_cast<int>(blockIdx.x - segment * plan.tiles.divisor())) {}
};

}  // namespace dlkern::gpu::axis
