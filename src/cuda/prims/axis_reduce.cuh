// Reductions over any axes of a strided tensor: each result's n elements in one order, whichever way
// memory is walked.
//
// The order. The elements of a result, numbered along the reduced axes, are cut into pieces of 16
// bytes' worth. Up to 8 chains (lanes) share a chunk, 8 pieces for each: piece j of it belongs to its chain
// j % lanes, which adds its pieces one after the other. All the chains of a result are combined as
// a binary tree: 0 with 1, 2 with 3, and so on, then these pairs with their neighbours. Any power of
// 2 of neighbouring chains that begins at a multiple of it is a part of that tree, whoever takes it.
// So bits follow from n and the dtype: they depend neither on how many results there are and who
// shares the work, nor on strides or addresses.
//
// The walks. A thread takes a chain, a block a part of the tree; where that is not all of it, the
// states of the parts go to the workspace, and a second kernel combines them.
//   rows       the elements of a result are neighbours: so are the threads that share it
//   columns    neighbouring results are neighbours in memory: a thread takes a chain of each of the
//              results that 16 bytes hold
//   shifted    either at any address: two aligned loads are shifted into place
//   scattered  any strides, one element at a time. Threads side by side have chains of one result, or
//              those of neighbouring results, whichever lie closer
// Each element is read once. A thread has 64 to 128 bytes on their way from memory before it waits for
// the first, by aligned loads of 16 bytes but for the last walk.
//
// An Op has
//     using State                                       what elements are reduced to
//     State identity()
//     void add(State&, const Acc (&v)[W], int count, int64_t piece, Acc pivot)
//                                                       a piece: v[e] for e < count
//     State close(const State&)                         at the end of a chain
//     State combine(State lower, State upper)           the identity on either side changes nothing
//     void finish(const Found<T>&, State)               the result, once
//     static constexpr bool kPivot                      each result may have a pivot, of type T
//     static constexpr bool kVector                     worth all walks, for types that are computed
//                                                       in 32 bits; else one, scattered
//     static constexpr bool kLooksUp                    finish looks at elements again
// and shuffle_xor takes a State.
#pragma once

#include <algorithm>
#include <bit>

#include "cuda/prims/axis_columns.cuh"
#include "cuda/prims/axis_rows.cuh"
#include "cuda/prims/axis_scattered.cuh"

namespace dlkern::gpu {

namespace axis {

// The states in the workspace, [segments, results]. A thread combines `each` of them, a power of 2
// and a multiple of kFold, of one of `side` results.
template <class T, class Op>
__global__ void __launch_bounds__(kThreads)
    final_kernel(Source<T> in, const DLK_GRID_CONSTANT Plan plan, Op op,
                 const typename Op::State* partials, int side, int64_t each) {
  using State = typename Op::State;
  constexpr int kLevels = 32;
  __shared__ State slots[kThreads];
  const int part = static_cast<int>(threadIdx.x) / side, k = static_cast<int>(threadIdx.x) % side;
  const int64_t first = int64_t{blockIdx.x} * side, r = first + k;
  const State* mine = partials + (r < plan.results ? r : 0);
  const auto fold = [&](int64_t group) {
    const int64_t begin = part * each + group * kFold;
    return fold_few(op, plan.segments - begin,
                    [&](int c) { return mine[(begin + c) * plan.results]; });
  };
  State state = fold(0);
  if (each > kFold) {
    State pending[kLevels];  // of 1, 2, 4, ... groups, that wait for their neighbours
    for (int64_t group = 0; group < each / kFold; ++group) {
      state = fold(group);
      int level = 0;
      for (; group >> level & 1; ++level) state = op.combine(pending[level], state);
      pending[level] = state;
    }
  }
  slots[threadIdx.x] = state;
  fold_slots(op, slots, side, side, kThreads / side, [&](int o, const State& folded) {
    if (first + o < plan.results) put<false>(in, plan, op, nullptr, first + o, 0, folded);
  });
}

}  // namespace axis

// Whether an Op and a type take all walks: what plan_axes is told as `vector`.
template <class T, class Op>
inline constexpr bool is_vector = Op::kVector && sizeof(Accumulator<T>) == 4;

template <class T, class Op>
void reduce_axes(const Tensor& x, const Tensor& pivot, const axis::Plan& plan, const Op& op,
                 void* stream, void* workspace) {
  using namespace axis;
  if (plan.results == 0) return;
  Source<T> in{x.as<T>(), pivot.as<T>(), 0, 0};
  if (plan.order.n > 0) {
    const ByteRange range = byte_range(x);
    in.begin = static_cast<uintptr_t>(range.low), in.end = static_cast<uintptr_t>(range.high);
  }
  auto* partials = static_cast<typename Op::State*>(plan.segments > 1 ? workspace : nullptr);
  const auto launch = [&](auto* kernel) {
    launch_kernel(kernel, static_cast<unsigned>(plan.tiles.divisor() * plan.segments),
                  plan.side * plan.team(), 0, stream, in, plan, op, partials);
  };
  if constexpr (is_vector<T, Op>) {
    if (plan.walk == Walk::kRows) launch(rows_kernel<T, Op, true>);
    if (plan.walk == Walk::kShiftedRows) launch(rows_kernel<T, Op, false>);
    if (plan.walk == Walk::kColumns) launch(columns_kernel<T, Op, true>);
    if (plan.walk == Walk::kShiftedColumns) launch(columns_kernel<T, Op, false>);
  }
  if (plan.walk == Walk::kScattered) launch(scattered_kernel<T, Op>);
  if (partials) {
    using Looked = std::conditional_t<Op::kLooksUp, T, Accumulator<T>>;
    Source<Looked> looked{};
    if constexpr (Op::kLooksUp) looked = in;
    const int parts = power_of_two_for(ceil_div(plan.segments, kFold), kThreads);
    const int side = kThreads / parts;
    const int64_t each = std::max<int64_t>(
        std::bit_ceil(static_cast<uint64_t>(ceil_div(plan.segments, parts))), kFold);
    launch_kernel(final_kernel<Looked, Op>, static_cast<unsigned>(ceil_div(plan.results, side)),
                  kThreads, 0, stream, looked, plan, op, partials, side, each);
  }
}

}  // namespace dlkern::gpu
