// Reductions of tensors of any strides, one element at a time: see axis_reduce.cuh.
#pragma once

#include "cuda/prims/axis_states.cuh"

namespace dlkern::gpu::axis {

template <class T>
inline constexpr int kScatteredBlocks = sizeof(Accumulator<T>) == 4 ? kBlocks : kFewBlocks;

template <class T, class Op>
__global__ void __launch_bounds__(kThreads, kScatteredBlocks<T>)
    scattered_kernel(Source<T> in, const DLK_GRID_CONSTANT Plan plan, Op op,
                     typename Op::State* partials) {
  using State = typename Op::State;
  constexpr int W = kPiece<T>, kAtOnce = 16 / W;  // pieces, of W loads each
  __shared__ State slots[kThreads];
  const Share share(plan);
  const int team = plan.team(), thread = static_cast<int>(threadIdx.x);
  const int number = plan.by_result ? thread / plan.side : thread % team;
  const int k = plan.by_result ? thread % plan.side : thread / team;
  const int64_t r = int64_t{share.tile} * plan.side + k;
  const Chain<T> chain(plan.order, share.segment * team + number, r < plan.results);
  int64_t at[3];
  plan.kept.offsets(r < plan.results ? r : 0, at);
  const T* x = in.x + at[0];
  const auto pivot = load_pivot<T, Op>(in, at[2]);
  const bool near = plan.reduced.is_flat() || plan.reduced.is_paired();
  State state = op.identity();
#pragma unroll 1
  for (int u = 0; u < kChain && u * chain.step < chain.elements; u += kAtOnce) {
    Values<T> v[kAtOnce];
    const int left = chain.elements - u * chain.step;
    if (near) {
      T element[kAtOnce][W];
      with_offsets(plan.reduced, [&](auto offset) {
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
#pragma unroll
          for (int e = 0; e < W; ++e) {
            const int i = b * chain.step + e;
            element[b][e] = T{};
            if (i < left) element[b][e] = x[offset(chain.first + u * chain.step + i)];
          }
        }
      });
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
#pragma unroll
        for (int e = 0; e < W; ++e) v[b][e] = static_cast<Accumulator<T>>(element[b][e]);
      }
    } else {
      Accumulator<T> far[kAtOnce * W];  // in memory
#pragma unroll 1
      for (int f = 0; f < kAtOnce * W; ++f) {
        const int i = f / W * chain.step + f % W;
        if (i >= left) continue;
        const int64_t at_element = plan.reduced.offset(chain.first + u * chain.step + i);
        far[f] = static_cast<Accumulator<T>>(x[at_element]);
      }
#pragma unroll
      for (int f = 0; f < kAtOnce * W; ++f) v[f / W][f % W] = far[f];
    }
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) {
      if (b * chain.step >= left) continue;
      op.add(state, v[b], left - b * chain.step, chain.piece(u + b), pivot);
    }
  }
  slots[number * plan.side + k] = op.close(state);
  fold_slots(op, slots, plan.side, plan.side, team, [&](int o, const State& folded) {
    const int64_t of = int64_t{share.tile} * plan.side + o;
    if (of < plan.results) put<false>(in, plan, op, partials, of, share.segment, folded);
  });
}

}  // namespace dlkern::gpu::axis
