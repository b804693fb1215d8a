// Reductions whose elements are neighbours: see axis_reduce.cuh.
#pragma once

#include "cuda/prims/axis_states.cuh"

namespace dlkern::gpu::axis {

// The 16 bytes that begin 4 kWord + `bytes` behind those of `piece`, and end in `next`; into `piece`.
template <int kWord, class T>
__device__ __forceinline__ void shift_words(int bytes, const Piece<T>& next, Piece<T>& piece) {
  uint32_t all[9];
#pragma unroll
  for (int k = 0; k < 4; ++k) all[k] = piece.word[k], all[k + 4] = next.word[k];
  all[8] = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t pair = all[k + kWord] | static_cast<uint64_t>(all[k + kWord + 1]) << 32;
    piece.word[k] = sizeof(T) >= 4 ? all[k + kWord] : static_cast<uint32_t>(pair >> 8 * bytes);
  }
}

// Of N neighbours in a chain, where they are at all: the first is `from`, the others follow at
// distances of chain.step.
template <class T, int N>
__device__ __forceinline__ void load_aligned(const Plan& plan, const T* row, const Chain<T>& chain,
                                             int from, Piece<T> (&piece)[N]) {
  const auto fetch = [&](auto at) {
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const int k = (from + u) * chain.step;
      load_words(k < chain.elements, at(k), piece[u].word);
    }
  };
  if (plan.reduced.is_flat()) {
    fetch([begin = row + chain.first](int k) { return begin + k; });
  } else {
    fetch(
        [&](int k) { return row + plan.reduced.paired_offset(static_cast<int>(chain.first) + k); });
  }
}

// At any address: each piece by the two aligned 16 bytes around it, or by elements where these are
// not all of the tensor's.
template <class T, int N>
__device__ __forceinline__ void load_shifted(const Source<T>& in, const T* row,
                                             const Chain<T>& chain, int from,
                                             Piece<T> (&piece)[N]) {
  constexpr int kSize = sizeof(T);
  const T* begin = row + chain.first + from * chain.step;
  const int left = chain.elements - from * chain.step;
  const auto shift = static_cast<int>(reinterpret_cast<uintptr_t>(begin) & 15);
  const char* around = reinterpret_cast<const char*>(begin) - shift;
  const auto low = reinterpret_cast<uintptr_t>(around);
  if (low < in.begin || low + (N - 1) * chain.step * kSize + 32 > in.end) {
#pragma unroll
    for (int u = 0; u < N; ++u) {
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        const int k = u * chain.step + e;
        if (k < left) piece[u].set(e, begin[k]);
      }
    }
    return;
  }
  Piece<T> next[N];
#pragma unroll
  for (int u = 0; u < N; ++u) {
    const int k = u * chain.step;
    load_words(k < left, around + k * kSize, piece[u].word);
    load_words(k < left && shift != 0, around + k * kSize + 16, next[u].word);
  }
  with_constant<0, 4>(shift / 4, [&]<int kWord>() {
#pragma unroll
    for (int u = 0; u < N; ++u) shift_words<kWord>(shift % 4, next[u], piece[u]);
  });
}

template <class T, class Op, bool kAligned>
__device__ __forceinline__ typename Op::State reduce_chain(const Source<T>& in, const Plan& plan,
                                                           const Op& op, const T* row,
                                                           const Chain<T>& chain,
                                                           Accumulator<T> pivot) {
  constexpr int kAtOnce = kAligned ? kChain : 4;
  typename Op::State state = op.identity();
#pragma unroll 1
  for (int from = 0; from < kChain; from += kAtOnce) {
    Piece<T> piece[kAtOnce];
    if constexpr (kAligned) {
      load_aligned(plan, row, chain, from, piece);
    } else {
      load_shifted(in, row, chain, from, piece);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int left = chain.elements - (from + u) * chain.step;
      if (left <= 0) continue;
      Values<T> v;
      unpack(piece[u], v);
      op.add(state, v, kAligned ? kPiece<T> : left, chain.piece(from + u), pivot);
    }
  }
  return op.close(state);
}

// Neighbouring threads share a row: those of a chunk shuffle, and what chunks there are meet in shared
// memory.
template <class T, class Op, bool kAligned>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_kernel(Source<T> in, const DLK_GRID_CONSTANT Plan plan, Op op,
                typename Op::State* partials) {
  using State = typename Op::State;
  __shared__ State slots[kThreads / kLanes * kMaxPasses];
  const Share share(plan);
  const int team = plan.team(), lane_bits = plan.order.lane_bits;
  const int row = static_cast<int>(threadIdx.x) >> plan.team_bits;
  const int rank = static_cast<int>(threadIdx.x) & (team - 1);
  const int64_t r = int64_t{share.tile} * plan.side + row;
  const bool inside = r < plan.results;
  int64_t at[3];
  plan.kept.offsets(inside ? static_cast<int>(r) : 0, at);
  const auto pivot = load_pivot<T, Op>(in, at[2]);
  const bool alone = plan.team_bits == lane_bits;  // no other chunks
  const bool first_lane = (rank & (plan.order.lanes() - 1)) == 0;
  const int chunks = team >> lane_bits;  // of a pass
  State state;
#pragma unroll 1
  for (int pass = 0; pass < plan.passes; ++pass) {
    const Chain<T> chain(plan.order, (share.segment * plan.passes + pass) * team + rank, inside);
    state = reduce_chain<T, Op, kAligned>(in, plan, op, in.x + at[0], chain, pivot);
    state = fold_lanes(op, state, plan.order.lanes());
    const int chunk = pass * chunks + (rank >> lane_bits);
    if (first_lane && !alone) slots[chunk * plan.side + row] = state;
  }
  if (alone) {
    if (first_lane && inside) put<true>(in, plan, op, partials, r, share.segment, state);
    return;
  }
  fold_slots(op, slots, plan.side, plan.side, plan.passes * chunks,
             [&](int o, const State& folded) {
               const int64_t of = int64_t{share.tile} * plan.side + o;
               if (of < plan.results) put<true>(in, plan, op, partials, of, share.segment, folded);
             });
}

}  // namespace dlkern::gpu::axis
