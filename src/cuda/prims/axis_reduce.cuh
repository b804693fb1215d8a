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

#include "core/fast_index.h"
#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/row_pieces.cuh"

namespace dlkern::gpu {

namespace axis {

inline constexpr int kThreads = 256;  // of a block, at most
// Blocks of a multiprocessor, at least; of kernels with much in registers.
inline constexpr int kBlocks = 4, kFewBlocks = 2;
// Measured: of float32, sums of columns at any address 8 % and variances 7 % quicker than with two (H200,
// 2026-12-01).
template <class T, class Op, bool kAligned>
inline constexpr int kColumnBlocks = sizeof(typename Op::State) > 4
                                         ? (kAligned && sizeof(T) == 4 ? 3 : kFewBlocks)
                                     : kAligned || sizeof(T) == 4 ? kBlocks
                                                                  : kFewBlocks;
template <class T>
inline constexpr int kScatteredBlocks = sizeof(Accumulator<T>) == 4 ? kBlocks : kFewBlocks;
inline constexpr int kChain = 8;       // pieces
inline constexpr int kLanes = 8;       // chains of a chunk, at most
inline constexpr int kFold = 8;        // states that one thread combines at once
inline constexpr int kMaxPasses = 32;  // of a block over chunks of a row

inline int power_of_two_for(int64_t n, int64_t most) {
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(n, 1, most))));
}

struct Order {
  int64_t n, pieces, chains;
  int lane_bits;  // lanes: 2 to the power of it

  Order(int64_t n_, int width) : n(n_), pieces(ceil_div(n_, width)) {
    // A thread that had less to do would be busy with finding out what it is.
    const int lanes = power_of_two_for(ceil_div(pieces, 4), kLanes);
    lane_bits = std::countr_zero(static_cast<unsigned>(lanes));
    chains = std::max<int64_t>(ceil_div(pieces, lanes * kChain), 1) * lanes;
  }
  DLK_HD int lanes() const { return 1 << lane_bits; }
  // Its first piece; the others follow at distances of lanes().
  DLK_HD int64_t first_piece(int chain) const {
    return int64_t{chain >> lane_bits << lane_bits} * kChain + (chain & (lanes() - 1));
  }
};

// A tensor's reduced axes, as is quickest for most.
struct ReducedIndex : RankedIndex<1> {
  using RankedIndex<1>::RankedIndex;

  // The offset of position i where is_paired(): two dimensions.
  __device__ __forceinline__ int64_t paired_offset(int i) const {
    const int q = extent[1].quick(i), rest = i - q * static_cast<int>(extent[1].divisor());
    return q * stride[0][0] + rest * stride[0][1];
  }
  DLK_HD bool is_paired() const { return ndim == 2 && numel <= INT32_MAX; }
};

// The tensor that is reduced. begin and end: what of its memory may be read.
template <class T>
struct Source {
  const T* x;
  const T* pivots;
  uintptr_t begin, end;
};

enum class Walk { kRows, kShiftedRows, kColumns, kShiftedColumns, kScattered };

struct Plan {
  Order order;
  RankedIndex<3> kept;   // x, y, pivot
  ReducedIndex reduced;  // x
  Walk walk;
  bool by_result;  // threads side by side have neighbouring results
  int64_t results;
  int64_t inner;     // columns: results along the innermost kept dimension
  FastDiv across;    // and threads
  FastDiv tiles;     // groups of results, one for a block
  int64_t segments;  // parts of the tree, one for a block; more than 1 go to the workspace
  int team_bits;     // of a block, threads that share a result: 2 to the power of it
  int side;          // and threads with others
  int passes = 1;    // rows: chains of a thread

  DLK_HD int team() const { return 1 << team_bits; }
};

// ---- States ------------------------------------------------------------------------------------

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

// ---- Rows --------------------------------------------------------------------------------------

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

// ---- Columns -----------------------------------------------------------------------------------

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

// ---- Any strides -------------------------------------------------------------------------------

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

// ---- The rest of the tree ----------------------------------------------------------------------

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

// ---- Plans -------------------------------------------------------------------------------------

namespace axis {

inline constexpr int64_t kManyBlocks = 1536;  // fill any device, and end at about one time

// Threads of a result, side by side; a block has more parts of long rows one after another, as long
// as there are blocks enough.
inline void share_rows(Plan& plan) {
  const int64_t chains = plan.order.chains;
  const int team = power_of_two_for(chains, kThreads);
  const int64_t parts = ceil_div(chains, team);
  int passes = plan.walk == Walk::kScattered ? 1 : power_of_two_for(parts, kMaxPasses);
  while (passes > 1 && plan.results * ceil_div(parts, passes) < kManyBlocks) passes /= 2;
  plan.team_bits = std::countr_zero(static_cast<unsigned>(team));
  plan.passes = passes;
  plan.segments = ceil_div(parts, passes);
  plan.side = kThreads / team;
  while (plan.side > 1 && plan.side * team > 32 && plan.results / plan.side < kManyBlocks) {
    plan.side /= 2;
  }
  plan.tiles = FastDiv(ceil_div(plan.results, plan.side));
}

// Neighbouring results side by side, `width` for each thread: 32 threads if there are as many, fewer
// where a block has then all chains of a result.
inline void share_columns(Plan& plan, int width) {
  const int most = width > 1 ? 16 : 32, least = width > 1 ? 8 : 32;
  const int64_t across = ceil_div(plan.inner, width), chains = plan.order.chains;
  const int64_t columns = plan.inner ? plan.results / plan.inner * across : 0;
  const int all = power_of_two_for(chains, kThreads);
  int side = power_of_two_for(columns, std::max(kThreads / all, most));
  if (all * least <= kThreads) side = std::min(side, kThreads / all);
  int team = std::min(all, kThreads / side);
  const auto blocks = [&] { return ceil_div(columns, side) * ceil_div(chains, team); };
  while (team < all && team > plan.order.lanes() && blocks() < kManyBlocks) team /= 2;
  plan.team_bits = std::countr_zero(static_cast<unsigned>(team));
  plan.side = side;
  plan.segments = ceil_div(chains, team);
  plan.across = FastDiv(across);
  plan.tiles = FastDiv(ceil_div(columns, side));
}

}  // namespace axis

// x reduced over `axes` into y; pivot: x's rank, with an element for each result. Ordered: elements
// are numbered row-major and not as they lie in memory. Vector: for an Op and a type that take all
// walks.
inline axis::Plan plan_axes(const Tensor& x, const Tensor& y, const Tensor& pivot, uint32_t axes,
                            bool ordered, bool vector) {
  using namespace axis;
  const int width = static_cast<int>(16 / dtype_size(x.dtype));
  const StridedIndex<3> kept = in_memory_order(make_index<3>({&x, &y, &pivot}, ~axes));
  StridedIndex<1> reduced = make_index<1>({&x}, axes);
  if (!ordered) reduced = in_memory_order(reduced);
  Plan plan{Order(reduced.numel, width), RankedIndex<3>(kept), ReducedIndex(reduced)};
  plan.results = kept.numel;

  const auto distance = [](int64_t stride) { return stride < 0 ? -stride : stride; };
  const int last = kept.ndim - 1, last_reduced = reduced.ndim - 1;
  plan.by_result = last >= 0 && (last_reduced < 0 || distance(kept.stride[0][last]) <
                                                         distance(reduced.stride[0][last_reduced]));
  // Whether pieces along one dimension are aligned, and where they end it does, too.
  int64_t bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.data));
  const auto strides = [&](const auto& index, int count) {
    for (int d = 0; d < count; ++d) {
      bits |= index.stride[0][d] * static_cast<int64_t>(dtype_size(x.dtype));
    }
  };
  strides(kept, plan.by_result ? last : kept.ndim);
  strides(reduced, plan.by_result ? reduced.ndim : last_reduced);
  const int64_t last_reduced_step = last_reduced < 0 ? 1 : reduced.stride[0][last_reduced];
  const bool few = plan.results <= INT32_MAX;  // for quick divisions
  const bool flat = plan.reduced.is_flat();
  const bool aligned = few && bits % 16 == 0 && (flat || plan.reduced.is_paired());
  const auto whole = [&](const auto& index) {
    return index.ndim > 0 && index.stride[0][index.ndim - 1] == 1 &&
           index.shape[index.ndim - 1] % width == 0;
  };
  if (vector && plan.by_result && aligned && whole(kept)) {
    plan.walk = Walk::kColumns;
  } else if (vector && !plan.by_result && aligned && whole(reduced)) {
    plan.walk = Walk::kRows;
  } else if (vector && few && flat && plan.by_result && kept.stride[0][last] == 1) {
    plan.walk = Walk::kShiftedColumns;
  } else if (vector && few && flat && !plan.by_result && last_reduced_step == 1) {
    plan.walk = Walk::kShiftedRows;
  } else {
    plan.walk = Walk::kScattered;
  }
  plan.inner = last < 0 ? 1 : kept.shape[last];
  plan.by_result ? share_columns(plan, plan.walk == Walk::kScattered ? 1 : width)
                 : share_rows(plan);
  return plan;
}

inline size_t axis_workspace_bytes(const axis::Plan& plan, size_t state_bytes) {
  return plan.segments > 1 ? plan.segments * plan.results * state_bytes : 0;
}

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
