// Reductions over any axes of a strided tensor: each result's n elements in one order, whichever way
// memory is walked.
//
// The order. The elements of a result, numbered along the reduced axes, are cut into pieces of 16
// bytes' worth. Chunk c has pieces [c * chunk, (c + 1) * chunk); in it, piece j belongs to lane
// j % lanes, which adds its pieces one after the other. The lanes are combined as a tree, the upper
// half into the lower one; so are eight neighbouring chunks (a group). Group g belongs to lane
// g % final_lanes, and these are combined in the same way. All of it follows from n and the dtype:
// bits depend neither on how many results there are, nor on strides or addresses.
//
// The walks.
//   teams    short rows (the elements of a result are neighbours): `lanes` threads share one, and
//            each thread has pieces of several rows on their way from memory
//   rows     a warp's worth of threads takes a chunk, a block the chunks of a row; of rows that are
//            long and few each block takes one group, whose result goes to the workspace
//   columns  neighbouring results are neighbours in memory: a thread takes 16 bytes of them, and a
//            lane's elements one after the other. A block takes one chunk of a tile of results; with
//            more than one chunk the results go to the workspace
// Loads are of 16 bytes where all addresses allow that (kVector), else two of them are shifted into
// place, or elements are loaded one by one. Each element is read once, by eight loads at a time.
//
// An Op has
//     using State                                       what elements are reduced to
//     State identity()
//     void add(State&, const Acc (&v)[W], int count, int64_t piece, Acc pivot)
//     State combine(State lower, State upper)
//     void finish(const Found<T>&, State)               the result, once
//     static constexpr bool kPivot                      each result may have a pivot, of type T
//     static constexpr bool kVector                     worth kernels of aligned tensors alone,
//                                                       for types that are computed in float32
// and shuffle_xor takes a State.
#pragma once

#include <algorithm>
#include <bit>

#include "core/fast_div.h"
#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/row_pieces.cuh"

namespace dlkern::gpu {

namespace axis {

inline constexpr int kThreads = 256;
inline constexpr int kLanes = 32;  // of a chunk, at most; no more than any target's warps have
inline constexpr int kTeams = kThreads / kLanes;
inline constexpr int kChain = 8;        // pieces of a lane in a chunk that is not deep
inline constexpr int kGroup = 8;        // chunks
inline constexpr int kRowChunks = 256;  // of a row that one block takes

inline int power_of_two_for(int64_t n, int most) {
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(n, 1, most))));
}

struct Order {
  int64_t n, pieces;
  int lanes;
  int64_t chunk, chunks;  // pieces of a chunk
  int64_t groups;
  int final_lanes;

  Order(int64_t n_, int width) : n(n_), pieces(ceil_div(n_, width)) {
    lanes = power_of_two_for(pieces, kLanes);
    chunk = kLanes * kChain;
    for (int64_t most = 4096; chunk < 8 * kLanes * kChain && pieces > most * kLanes * kChain;
         most *= 4) {
      chunk *= 2;  // fewer states for the last stage
    }
    chunks = std::max<int64_t>(ceil_div(pieces, chunk), 1);
    groups = ceil_div(chunks, kGroup);
    final_lanes = power_of_two_for(groups, kThreads);
  }
};

// The elements of one result.
struct ReducedIndex {
  int ndim = 0;
  FastDiv extent[kMaxDims];
  int64_t stride[kMaxDims] = {};

  ReducedIndex() = default;
  explicit ReducedIndex(const StridedIndex<1>& index) : ndim(index.ndim) {
    for (int d = 0; d < ndim; ++d) {
      extent[d] = FastDiv(std::max<int64_t>(index.shape[d], 1)), stride[d] = index.stride[0][d];
    }
  }
  // Of the innermost dimension; 1 where there is none.
  DLK_HD int64_t step() const { return ndim ? stride[ndim - 1] : 1; }
  // Offset of element i.
  DLK_HD int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (int d = ndim - 1; d > 0; --d) {
      int64_t rest = i;
      i = extent[d].divide(rest);
      at += rest * stride[d];
    }
    return at + i * stride[0];
  }
  // The same in a few instructions, where is_quick().
  DLK_HD int64_t quick_offset(int64_t i) const {
    if (ndim <= 1) return i * stride[0];
    const int32_t q = extent[1].quick(static_cast<int32_t>(i));
    return q * stride[0] + (i - q * extent[1].divisor()) * stride[1];
  }
  bool is_quick(int64_t n) const { return ndim <= 1 || (ndim == 2 && n <= INT32_MAX); }
};

// The tensor that is reduced. begin and end: what of its memory may be read.
template <class T>
struct Source {
  const T* x;
  const T* pivots;
  uintptr_t begin, end;
};

enum class Walk { kTeams, kRows, kColumns };

struct Plan {
  Order order;
  StridedIndex<3> kept;  // x, y, pivot
  ReducedIndex reduced;  // x
  Walk walk;
  bool vector;  // aligned pieces along one dimension of x, at offsets that are quick to find
  bool flat;    // the reduced dimensions are one
  int64_t inner, step;  // columns: neighbouring results, and how far they are apart
  int64_t segments;     // states of each result in the workspace; 1: none

  int64_t results() const { return kept.numel; }
  // Columns: threads side by side, and all that would be.
  DLK_HD int column_threads() const { return kThreads / order.lanes; }
  int64_t columns(int width) const {
    return inner ? kept.numel / inner * ceil_div(inner, width) : 0;
  }
};

// ---- Pieces ------------------------------------------------------------------------------------

// Neighbours at any address, by two loads of 16 bytes that are shifted into place.
template <class T>
__device__ __forceinline__ Piece<T> load_shifted(bool wanted, const T* from) {
  const auto* p = reinterpret_cast<const char*>(from);
  const auto shift = static_cast<int>(reinterpret_cast<uintptr_t>(p) & 15);
  Piece<T> low{}, high{}, piece;
  load_words(wanted, p - shift, low.word);
  load_words(wanted && shift != 0, p - shift + 16, high.word);
  extract(low.word, high.word, shift, piece.word);
  return piece;
}
template <bool kVector, class T>
__device__ __forceinline__ Piece<T> load_quick(bool wanted, const T* p) {
  if constexpr (!kVector) return load_shifted(wanted, p);
  Piece<T> piece{};
  load_words(wanted, p, piece.word);
  return piece;
}

// `count` elements `step` apart, zeros behind them, one by one. Not inlined: it is as long as rare.
template <class T>
__device__ __noinline__ Piece<T> load_strided(const T* p, int64_t step, int count) {
  Piece<T> piece{};
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) {
    if (e < count) piece.set(e, p[e * step]);
  }
  return piece;
}
// The same for elements first, first + 1, ... of the result that begins at `row`.
template <class T>
__device__ __noinline__ Piece<T> load_scattered(const T* row, const ReducedIndex& reduced,
                                                int64_t first, int count) {
  Piece<T> piece{};
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) {
    if (e < count) piece.set(e, row[reduced.offset(first + e)]);
  }
  return piece;
}

// ---- States ------------------------------------------------------------------------------------

// What an Op knows of a result when it is found.
template <class T>
struct Found {
  const T* row;  // its first element
  const ReducedIndex& reduced;
  int64_t n, at;  // its offset in y
  const T* pivot;
};

// Where result r begins in x, and its places in y and among the pivots.
__device__ __noinline__ inline void far_offsets(const StridedIndex<3>& kept, int64_t r,
                                                int64_t (&at)[3]) {
  kept.offsets(r, at);
}
__device__ __forceinline__ void row_offsets(const Plan& plan, int64_t r, int64_t (&at)[3]) {
  if (plan.kept.ndim > 1) {
    int64_t far[3];  // has an address, at does not: it stays in registers
    far_offsets(plan.kept, r, far);
    at[0] = far[0], at[1] = far[1], at[2] = far[2];
    return;
  }
#pragma unroll
  for (int n = 0; n < 3; ++n) at[n] = r * plan.kept.stride[n][0];
}
__device__ __noinline__ inline int64_t far_offset(const ReducedIndex& reduced, int64_t i) {
  return reduced.offset(i);
}

template <class T, class Op>
__device__ __forceinline__ void add_piece(const Op& op, typename Op::State& state,
                                          const Piece<T>& piece, int count, int64_t j,
                                          Accumulator<T> pivot) {
  Accumulator<T> v[kPiece<T>];
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) v[e] = static_cast<Accumulator<T>>(piece.get(e));
  op.add(state, v, count, j, pivot);
}

template <class T, class Op>
__device__ __forceinline__ Accumulator<T> load_pivot(const Source<T>& in, int64_t at) {
  if constexpr (Op::kPivot) {
    if (in.pivots) return static_cast<Accumulator<T>>(in.pivots[at]);
  }
  return Accumulator<T>(0);
}

// The state of `lanes` neighbouring threads, complete in the first of them. All of a warp call it.
template <class Op>
__device__ __forceinline__ typename Op::State fold_lanes(const Op& op, typename Op::State state,
                                                         int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    state = op.combine(state, shuffle_xor(state, mask));
  }
  return state;
}

// Of chunks [0, count) of a group; get(c) is the state of one.
template <class Op, class Get>
__device__ __forceinline__ typename Op::State combine_group(const Op& op, int64_t count, Get get) {
  typename Op::State s[kGroup];
#pragma unroll
  for (int c = 0; c < kGroup; ++c) s[c] = c < count ? get(c) : op.identity();
#pragma unroll
  for (int half = kGroup / 2; half > 0; half /= 2) {
#pragma unroll
    for (int c = 0; c < half; ++c) s[c] = op.combine(s[c], s[c + half]);
  }
  return s[0];
}

// The state of result r's segment: to the workspace, or finished where it is all there is.
template <class T, class Op>
__device__ __forceinline__ void put(const Source<T>& in, const Plan& plan, const Op& op,
                                    typename Op::State* partials, int64_t r, int64_t segment,
                                    const typename Op::State& state) {
  if (partials) {
    partials[segment * plan.kept.numel + r] = state;
    return;
  }
  int64_t at[3];
  row_offsets(plan, r, at);
  op.finish(Found<T>{in.x + at[0], plan.reduced, plan.order.n, at[1], in.pivots + at[2]}, state);
}

// Those of a chunk's pieces, which begin at `row`, that load_shifted takes.
struct Range {
  int begin, end;
};
template <class T>
__device__ __forceinline__ Range shiftable(const Source<T>& in, const T* row, int pieces) {
  const auto from = reinterpret_cast<uintptr_t>(row) & ~uintptr_t{15};
  const auto room = static_cast<int64_t>(in.end - from) / 16 - 1;  // pieces
  const int begin = from < in.begin && pieces > 0 ? 1 : 0;
  return {begin, room < begin ? begin : room < pieces ? static_cast<int>(room) : pieces};
}

// A lane's share of chunk c of the result that begins at `row`.
template <bool kVector, class T, class Op>
__device__ __forceinline__ typename Op::State reduce_chain(const Source<T>& in, const Plan& plan,
                                                           const Op& op, const T* row,
                                                           Accumulator<T> pivot, int64_t c,
                                                           int lane) {
  constexpr int kWidth = kPiece<T>, kAtOnce = kVector ? 8 : 4;
  typename Op::State state = op.identity();
  const int lanes = plan.order.lanes;
  const int64_t first = c * plan.order.chunk;  // piece
  const int64_t left = plan.order.pieces - first, left_whole = plan.order.n / kWidth - first;
  const int pieces = static_cast<int>(left < plan.order.chunk ? left : plan.order.chunk);
  const int whole = static_cast<int>(left_whole < pieces ? left_whole : pieces);
  const T* begin = row + first * kWidth;  // where neighbours follow each other
  Range quick{0, whole};
  if constexpr (!kVector) {
    quick = plan.flat && plan.reduced.step() == 1 ? shiftable(in, begin, whole) : Range{0, 0};
  }
  // One by one: what lies across dimensions, or not next to its neighbour, and an incomplete piece.
  const auto add_slowly = [&](int k) {
    const int64_t i = (first + k) * kWidth, rest = plan.order.n - i;
    const int count = rest < kWidth ? static_cast<int>(rest) : kWidth;
    add_piece(op, state, load_scattered(row, plan.reduced, i, count), count, first + k, pivot);
  };
  int j = lane;
  if (!kVector && j < quick.begin) {
    add_slowly(j);
    j += lanes;
  }
  for (; j < quick.end; j += kAtOnce * lanes) {
    Piece<T> piece[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int k = j + u * lanes;
      const T* p =
          plan.flat ? begin + k * kWidth : row + plan.reduced.quick_offset((first + k) * kWidth);
      piece[u] = load_quick<kVector>(k < quick.end, p);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int k = j + u * lanes;
      if (k < quick.end) add_piece(op, state, piece[u], kWidth, first + k, pivot);
    }
  }
  // On to this lane's first piece behind those.
  for (j = quick.end + ((lane - quick.end) & (lanes - 1)); j < pieces; j += lanes) add_slowly(j);
  return state;
}

// ---- Kernels -----------------------------------------------------------------------------------

inline constexpr int kTeamItems = 2;  // pieces of a thread of each row
inline constexpr int kTeamRows = 4;   // of a team at once

// Rows of whole aligned pieces.
template <class T, class Op>
__global__ void __launch_bounds__(kThreads)
    teams_kernel(Source<T> in, const DLK_GRID_CONSTANT Plan plan, Op op) {
  const int lanes = plan.order.lanes, teams = kThreads / lanes;
  const int lane = threadIdx.x % lanes, team = threadIdx.x / lanes;
  const int pieces = static_cast<int>(plan.order.pieces);
  const int64_t at_once = teams * kTeamRows;
  for (int64_t first = blockIdx.x * at_once; first < plan.kept.numel;
       first += gridDim.x * at_once) {
    Piece<T> piece[kTeamRows][kTeamItems];
    Accumulator<T> pivot[kTeamRows];
#pragma unroll
    for (int r = 0; r < kTeamRows; ++r) {
      const int64_t result = first + r * teams + team;
      const bool inside = result < plan.kept.numel;
      int64_t at[3] = {};
      if (inside) row_offsets(plan, result, at);
#pragma unroll
      for (int u = 0; u < kTeamItems; ++u) {
        const int j = lane + u * lanes;
        const T* p = in.x + at[0] + plan.reduced.quick_offset(j * kPiece<T>);
        piece[r][u] = load_quick<true>(inside && j < pieces, p);
      }
      pivot[r] = inside ? load_pivot<T, Op>(in, at[2]) : Accumulator<T>(0);
    }
#pragma unroll
    for (int r = 0; r < kTeamRows; ++r) {
      const int64_t result = first + r * teams + team;
      const bool inside = result < plan.kept.numel;
      typename Op::State state = op.identity();
#pragma unroll
      for (int u = 0; u < kTeamItems; ++u) {
        const int j = lane + u * lanes;
        if (inside && j < pieces) add_piece(op, state, piece[r][u], kPiece<T>, j, pivot[r]);
      }
      state = fold_lanes(op, state, lanes);
      if (lane == 0 && inside) put(in, plan, op, nullptr, result, 0, state);
    }
  }
}

// A task is a row, or a group of chunks of one; `share` teams of threads take each.
template <class T, class Op, bool kVector>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(Source<T> in, const DLK_GRID_CONSTANT Plan plan, Op op,
                typename Op::State* partials, int share) {
  __shared__ typename Op::State slots[kRowChunks];
  const int lanes = plan.order.lanes, teams = kThreads / lanes, tasks_at_once = teams / share;
  const int team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int64_t per_task = plan.segments > 1 ? kGroup : plan.order.chunks;
  const int64_t tasks = plan.kept.numel * plan.segments;
  for (int64_t first = int64_t{blockIdx.x} * tasks_at_once; first < tasks;
       first += int64_t{gridDim.x} * tasks_at_once) {
    const int64_t task = first + team / share;
    const bool inside = task < tasks;
    const int64_t r = plan.segments > 1 ? task / plan.segments : task;
    const int64_t segment = task - r * plan.segments, first_chunk = segment * per_task;
    const int64_t rest = plan.order.chunks - first_chunk;
    const int chunks = inside ? static_cast<int>(rest < per_task ? rest : per_task) : 0;
    int64_t at[3] = {};
    if (inside) row_offsets(plan, r, at);
    const auto pivot = inside ? load_pivot<T, Op>(in, at[2]) : Accumulator<T>(0);
    typename Op::State state = op.identity();
    // Teams smaller than a warp have a chunk each, and fold it together.
    for (int c = team % share; c < (share == 1 ? 1 : chunks); c += share) {
      if (inside) {
        state = reduce_chain<kVector>(in, plan, op, in.x + at[0], pivot, first_chunk + c, lane);
      }
      state = fold_lanes(op, state, lanes);
      if (lane == 0) slots[share == kTeams ? c : team] = state;
    }
    if (share > 1) {
      __syncthreads();
      if (team % share == 0) {
        const auto* mine = &slots[team];  // 0 where the block has one task
        state = combine_group(op, chunks - kGroup * lane,
                              [&](int c) { return mine[kGroup * lane + c]; });
        if (plan.segments == 1) state = fold_lanes(op, state, plan.order.final_lanes);
      }
      __syncthreads();
    }
    if (team % share == 0 && lane == 0 && inside) {
      put(in, plan, op, partials, r, segment, state);
    }
  }
}

// Whether load_shifted takes the rows from i to `last`: neighbours, behind which there is memory.
template <class T>
__device__ __forceinline__ bool may_shift_rows(const Source<T>& in, const Plan& plan, const T* x,
                                               int64_t i, int64_t last) {
  if (plan.step != 1 || !plan.flat) return false;
  const auto granule = [&](int64_t row) {
    return reinterpret_cast<uintptr_t>(x + row * plan.reduced.stride[0]) & ~uintptr_t{15};
  };
  const uintptr_t a = granule(i), b = granule(last);
  return (a < b ? a : b) >= in.begin && (a < b ? b : a) + 32 <= in.end;
}

// Chunk by chunk of a tile of results, kWidth of them for each thread.
template <class T, class Op, bool kVector>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(Source<T> in, const DLK_GRID_CONSTANT Plan plan, Op op,
                   typename Op::State* partials, int64_t columns, FastDiv per_row) {
  using State = typename Op::State;
  constexpr int kWidth = kPiece<T>, kAtOnce = kWidth < 8 ? 8 / kWidth : 1;  // pieces
  __shared__ State slots[kWidth * kThreads];
  const int lanes = plan.order.lanes, side = plan.column_threads();
  const int lane = threadIdx.x / side;
  const int64_t tiles = ceil_div(columns, side), work = tiles * plan.order.chunks;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t chunk = w / tiles;
    const int64_t q = (w - chunk * tiles) * side + threadIdx.x % side;
    int64_t in_row = q;
    const int64_t outer = per_row.divide(in_row), first = outer * plan.inner + in_row * kWidth;
    const int64_t rest = plan.inner - in_row * kWidth;
    const int width = q >= columns ? 0 : rest < kWidth ? static_cast<int>(rest) : kWidth;
    int64_t at[3] = {};
    if (width) row_offsets(plan, first, at);
    const T* x = in.x + at[0];
    Accumulator<T> pivot[kWidth];
    State state[kWidth];
#pragma unroll
    for (int v = 0; v < kWidth; ++v) {
      const int64_t pivot_step = plan.kept.ndim ? plan.kept.stride[2][plan.kept.ndim - 1] : 0;
      pivot[v] = v < width ? load_pivot<T, Op>(in, at[2] + v * pivot_step) : Accumulator<T>(0);
      state[v] = op.identity();
    }
    const int64_t first_piece = chunk * plan.order.chunk, left = plan.order.pieces - first_piece;
    const int pieces = static_cast<int>(left < plan.order.chunk ? left : plan.order.chunk);
    for (int j = lane; j < pieces && width > 0; j += kAtOnce * lanes) {
      const int64_t i = (first_piece + j) * kWidth;
      const int steps = lanes * kWidth;  // positions from piece to piece
      Piece<T> piece[kAtOnce][kWidth];
      int count[kAtOnce];  // of positions
      int64_t last = i;
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int64_t rest = plan.order.n - i - u * steps;
        count[u] = j + u * lanes >= pieces ? 0 : rest < kWidth ? static_cast<int>(rest) : kWidth;
        if (count[u] > 0) last = i + u * steps + count[u] - 1;
      }
      if (kVector || may_shift_rows(in, plan, x, i, last)) {
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            const T* p = x + plan.reduced.quick_offset(i + u * steps + e);
            piece[u][e] = load_quick<kVector>(e < count[u], p);
          }
        }
      } else {
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            if (e >= count[u]) continue;
            piece[u][e] =
                load_strided(x + far_offset(plan.reduced, i + u * steps + e), plan.step, width);
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (count[u] <= 0) continue;
#pragma unroll
        for (int v = 0; v < kWidth; ++v) {
          Accumulator<T> values[kWidth];
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            values[e] = static_cast<Accumulator<T>>(piece[u][e].get(v));
          }
          op.add(state[v], values, count[u], first_piece + j + u * lanes, pivot[v]);
        }
      }
    }
    for (int half = lanes / 2; half > 0; half /= 2) {
      if (lane >= half && lane < 2 * half) {
#pragma unroll
        for (int v = 0; v < kWidth; ++v) slots[v * kThreads + threadIdx.x] = state[v];
      }
      __syncthreads();
      if (lane < half) {
#pragma unroll
        for (int v = 0; v < kWidth; ++v) {
          state[v] = op.combine(state[v], slots[v * kThreads + threadIdx.x + half * side]);
        }
      }
    }
    if (lane == 0) {
      // Not unrolled, by way of memory that no other thread has to do with.
      State* mine = &slots[threadIdx.x];
#pragma unroll
      for (int v = 0; v < kWidth; ++v) mine[v * kThreads] = state[v];
#pragma unroll 1
      for (int v = 0; v < width; ++v) {
        put(in, plan, op, partials, first + v, chunk, mine[v * kThreads]);
      }
    }
    __syncthreads();
  }
}

// The states in the workspace, [segments, results]: chunks of columns, or groups of rows.
template <class T, class Op>
__global__ void __launch_bounds__(kThreads)
    final_kernel(Source<T> in, const DLK_GRID_CONSTANT Plan plan, Op op,
                 const typename Op::State* partials) {
  using State = typename Op::State;
  __shared__ State slots[kThreads];
  const int lanes = plan.order.final_lanes, side = kThreads / lanes;
  const int lane = threadIdx.x / side;
  const int64_t results = plan.kept.numel;
  for (int64_t first = int64_t{blockIdx.x} * side; first < results;
       first += int64_t{gridDim.x} * side) {
    const int64_t r = first + threadIdx.x % side;
    const State* mine = partials + (r < results ? r : 0);
    State state = op.identity();
#pragma unroll 4
    for (int64_t g = lane; g < plan.order.groups; g += lanes) {
      if (plan.walk == Walk::kColumns) {
        state = op.combine(state, combine_group(op, plan.order.chunks - g * kGroup, [&](int c) {
                             return mine[(g * kGroup + c) * results];
                           }));
      } else {
        state = op.combine(state, mine[g * results]);
      }
    }
    for (int half = lanes / 2; half > 0; half /= 2) {
      if (lane >= half && lane < 2 * half) slots[threadIdx.x] = state;
      __syncthreads();
      if (lane < half) state = op.combine(state, slots[threadIdx.x + half * side]);
    }
    if (lane == 0 && r < results) put(in, plan, op, nullptr, r, 0, state);
    __syncthreads();
  }
}

// What has kernels of its own for aligned tensors.
template <class T, class Op>
inline constexpr bool is_hot = Op::kVector && std::is_same_v<Accumulator<T>, float>;

inline int blocks_for(int64_t n) { return static_cast<int>(std::clamp<int64_t>(n, 1, 1 << 24)); }

}  // namespace axis

// x reduced over `axes` into y; pivot: x's rank, with an element for each result. Ordered: elements
// are numbered row-major and not as they lie in memory.
inline axis::Plan plan_axes(const Tensor& x, const Tensor& y, const Tensor& pivot, uint32_t axes,
                            bool ordered) {
  using namespace axis;
  const int width = static_cast<int>(16 / dtype_size(x.dtype));
  const StridedIndex<3> kept = in_memory_order(make_index<3>({&x, &y, &pivot}, ~axes));
  StridedIndex<1> reduced = make_index<1>({&x}, axes);
  if (!ordered) reduced = in_memory_order(reduced);
  Plan plan{Order(reduced.numel, width),
            kept,
            ReducedIndex(reduced),
            Walk::kRows,
            false,
            reduced.ndim <= 1,
            1,
            0,
            1};
  const Order& order = plan.order;

  const auto distance = [](int64_t stride) { return stride < 0 ? -stride : stride; };
  const int last = kept.ndim - 1, last_reduced = reduced.ndim - 1;
  const bool columns =
      last >= 0 && (last_reduced < 0 ||
                    distance(kept.stride[0][last]) < distance(reduced.stride[0][last_reduced]));
  // Whether pieces along one dimension are aligned, and where they end it does, too.
  int64_t bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.data));
  const auto strides = [&](const auto& index, int count) {
    for (int d = 0; d < count; ++d) {
      bits |= index.stride[0][d] * static_cast<int64_t>(dtype_size(x.dtype));
    }
  };
  const bool quick = plan.reduced.is_quick(order.n);
  if (columns) {
    plan.walk = Walk::kColumns;
    plan.inner = kept.shape[last], plan.step = kept.stride[0][last];
    strides(kept, last), strides(reduced, reduced.ndim);
    plan.vector = quick && plan.step == 1 && plan.inner % width == 0 && bits % 16 == 0;
    plan.segments = order.chunks;
  } else {
    strides(kept, kept.ndim), strides(reduced, last_reduced);
    const bool whole = reduced.ndim <= 1 || reduced.shape[last_reduced] % width == 0;
    plan.vector = quick && plan.reduced.step() == 1 && whole && bits % 16 == 0;
    const bool even = plan.vector && order.n % width == 0 && order.n > 0;
    if (even && order.pieces <= kTeamItems * order.lanes) plan.walk = Walk::kTeams;
    constexpr int64_t kMany = 1024;  // rows that fill any device
    const bool split = order.chunks > kRowChunks || (order.groups > 1 && kept.numel < kMany);
    plan.segments = split ? order.groups : 1;
  }
  return plan;
}

inline size_t axis_workspace_bytes(const axis::Plan& plan, size_t state_bytes) {
  return plan.segments > 1 ? plan.segments * plan.results() * state_bytes : 0;
}

// The memory of x that one load may touch beyond its own elements.
template <class T>
axis::Source<T> axis_source(const Tensor& x, const Tensor& pivot) {
  auto begin = reinterpret_cast<uintptr_t>(x.data), end = begin + sizeof(T);
  for (int d = 0; d < x.ndim; ++d) {
    const int64_t span = x.strides[d] * (x.shape[d] - 1) * static_cast<int64_t>(sizeof(T));
    (span < 0 ? begin : end) += span;
  }
  return {x.as<T>(), pivot.as<T>(), begin, end};
}

template <class T, class Op>
void reduce_axes(const Tensor& x, const Tensor& pivot, const axis::Plan& plan, const Op& op,
                 void* stream, void* workspace) {
  using namespace axis;
  if (plan.results() == 0) return;
  const Source<T> in = axis_source<T>(x, pivot);
  const Order& order = plan.order;
  auto* partials = static_cast<typename Op::State*>(plan.segments > 1 ? workspace : nullptr);
  const auto dispatch = [&](auto&& run) {
    if constexpr (is_hot<T, Op>) {
      if (plan.vector) return run.template operator()<true>();
    }
    run.template operator()<false>();
  };
  if (plan.walk == Walk::kColumns) {
    const int64_t columns = plan.columns(kPiece<T>);
    const int64_t work = ceil_div(columns, plan.column_threads()) * order.chunks;
    const FastDiv per_row(ceil_div(plan.inner, kPiece<T>));
    dispatch([&]<bool kVector>() {
      launch_kernel(columns_kernel<T, Op, kVector>, blocks_for(work), kThreads, 0, stream, in, plan,
                    op, partials, columns, per_row);
    });
  } else if (plan.walk == Walk::kTeams && is_hot<T, Op>) {
    if constexpr (is_hot<T, Op>) {
      const int64_t at_once = kThreads / order.lanes * kTeamRows;
      launch_kernel(teams_kernel<T, Op>, blocks_for(ceil_div(plan.results(), at_once)), kThreads, 0,
                    stream, in, plan, op);
    }
  } else {
    const int share = plan.segments > 1 ? kTeams : power_of_two_for(order.chunks, kTeams);
    const int64_t at_once = kThreads / order.lanes / share;
    dispatch([&]<bool kVector>() {
      launch_kernel(rows_kernel<T, Op, kVector>,
                    blocks_for(ceil_div(plan.results() * plan.segments, at_once)), kThreads, 0,
                    stream, in, plan, op, partials, share);
    });
  }
  if (partials) {
    launch_kernel(final_kernel<T, Op>,
                  blocks_for(ceil_div(plan.results(), kThreads / order.final_lanes)), kThreads, 0,
                  stream, in, plan, op, partials);
  }
}

}  // namespace dlkern::gpu
