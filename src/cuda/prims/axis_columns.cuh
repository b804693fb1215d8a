// Reductions whose results are neighbours: see axis_reduce.cuh.
#pragma once

#include "cuda/prims/axis_states.cuh"

namespace dlkern::gpu::axis {

// Measured: of float32, sums of columns at any address 8 % and variances 7 % quicker than with two (H200,
// 2026-12-01).
template <class T, class Op, bool kAligned>
inline constexpr int kColumnBlocks = sizeof(typename Op::State) > 4
                                         ? (kAligned && sizeof(T) == 4 ? 3 : kFewBlocks)
                                     : kAligned || sizeof(T) == 4 ? kBlocks
                                                                  : kFewBlocks;

// The results of the thread that is number q along the inner dimension of the kept ones.
struct ColumnsOf {
  int64_t first = 0;
  int count = 0;  // 0: there are none

  __device__ ColumnsOf(const Plan& plan, int64_t q, int most) {
    const int outer = plan.across.quick(static_cast<int>(q));
    const int64_t in_row = (q - outer * plan.across.divisor()) * most;
    first = outer * plan.inner + in_row;
    if (first >= plan.results) return;
    count = plan.inner - in_row < most ? static_cast<int>(plan.inner - in_row) : most;
  }
};

// `count` neighbours at each of `rows` <= N addresses from p on, `step` elements apart.
template <class T, int N>
__device__ __forceinline__ void load_shifted(const Source<T>& in, const T* p, int64_t step,
                                             int rows, int count, Piece<T> (&piece)[N]) {
  constexpr int kAtOnce = 4;
  const auto granule = [&](int e) {
    return reinterpret_cast<uintptr_t>(p + e * step) & ~uintptr_t{15};
  };
  const auto first = granule(0), last = granule(rows < N ? rows - 1 : N - 1);
  const bool rising = first < last;
  if ((rising ? first : last) < in.begin || (rising ? last : first) + 32 > in.end) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
#pragma unroll
      for (int c = 0; c < kPiece<T>; ++c) {
        if (e < rows && c < count) piece[e].set(c, p[e * step + c]);
      }
    }
    return;
  }
#pragma unroll
  for (int begin = 0; begin < N; begin += kAtOnce) {
    Piece<T> next[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const auto* from = reinterpret_cast<const char*>(granule(begin + k));
      load_words(begin + k < rows, from, piece[begin + k].word);
      load_words(begin + k < rows, from + 16, next[k].word);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const auto shift = static_cast<int>(reinterpret_cast<uintptr_t>(p + (begin + k) * step) & 15);
      const Piece<T> low = piece[begin + k];
      extract(low.word, next[k].word, sizeof(T) >= 4 ? shift & ~3 : shift, piece[begin + k].word);
    }
  }
}

// A thread has a chain of each of the results that 16 bytes hold.
template <class T, class Op, bool kAligned>
__global__ void __launch_bounds__(kThreads, (kColumnBlocks<T, Op, kAligned>))
    columns_kernel(Source<T> in, const DLK_GRID_CONSTANT Plan plan, Op op,
                   typename Op::State* partials) {
  using State = typename Op::State;
  constexpr int W = kPiece<T>;
  constexpr int kAtOnce = kAligned ? 8 / W : 1;  // pieces, of W loads each or twice as many
  __shared__ Vec<State, W> slots[kThreads];
  const Share share(plan);
  const int side = plan.side;
  const int row = static_cast<int>(threadIdx.x) / side, k = static_cast<int>(threadIdx.x) % side;
  const ColumnsOf mine(plan, int64_t{share.tile} * side + k, W);
  const Chain<T> chain(plan.order, share.segment * plan.team() + row, mine.count > 0);
  int64_t at[3];
  plan.kept.offsets(mine.count > 0 ? static_cast<int>(mine.first) : 0, at);
  const T* x = in.x + at[0];
  Accumulator<T> pivot[W];
  State state[W];
#pragma unroll
  for (int c = 0; c < W; ++c) {
    pivot[c] = Accumulator<T>(0);
    if (c < mine.count) pivot[c] = load_pivot<T, Op>(in, at[2] + c * plan.kept.step(2));
    state[c] = op.identity();
  }
#pragma unroll 1
  for (int u = 0; u < kChain && u * chain.step < chain.elements; u += kAtOnce) {
    Piece<T> piece[kAtOnce][W];
    if constexpr (kAligned) {
      with_offsets(plan.reduced, [&](auto offset) {
#pragma unroll
        for (int b = 0; b < kAtOnce; ++b) {
#pragma unroll
          for (int e = 0; e < W; ++e) {
            const int i = (u + b) * chain.step + e;
            load_words(i < chain.elements, x + offset(chain.first + i), piece[b][e].word);
          }
        }
      });
    } else {
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        const int i = (u + b) * chain.step;
        const int64_t step = plan.reduced.stride[0][0];
        if (i < chain.elements) {
          load_shifted(in, x + (chain.first + i) * step, step, chain.elements - i, mine.count,
                       piece[b]);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) {
      const int count = chain.elements - (u + b) * chain.step;
      if (count <= 0) continue;
#pragma unroll
      for (int c = 0; c < W; ++c) {
        Values<T> column;
#pragma unroll
        for (int e = 0; e < W; ++e) column[e] = static_cast<Accumulator<T>>(piece[b][e].get(c));
        op.add(state[c], column, count, chain.piece(u + b), pivot[c]);
      }
    }
  }
  Vec<State, W> closed;
#pragma unroll
  for (int c = 0; c < W; ++c) closed.v[c] = op.close(state[c]);
  slots[row * side + k] = closed;
  auto* states = reinterpret_cast<State*>(slots);
  fold_slots(op, states, side * W, side * W, plan.team(), [&](int o, const State& folded) {
    const ColumnsOf of(plan, int64_t{share.tile} * side + o / W, W);
    if (o % W < of.count) {
      put<true>(in, plan, op, partials, of.first + o % W, share.segment, folded);
    }
  });
}

}  // namespace dlkern::gpu::axis
