// How the reductions of axis_reduce.cuh are shared out: the order of a result's elements, the walk
// through memory, and what each block and thread has.
#pragma once

#include <algorithm>
#include <bit>

#include "core/fast_index.h"
#include "core/tensor.h"
#include "cuda/prims/vec.cuh"

namespace dlkern::gpu {

namespace axis {

inline constexpr int kThreads = 256;  // of a block, at most
// Blocks of a multiprocessor, at least; of kernels with much in registers.
inline constexpr int kBlocks = 4, kFewBlocks = 2;
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

}  // namespace dlkern::gpu
