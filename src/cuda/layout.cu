// Copies, and how each kind of them is done: y = x, element by element, for views of one shape.
//
// Axes are ordered by y's strides and merged. Where x runs along y's fastest axis too, or nothing else
// does well, threads copy in y's order, in units of up to 16 bytes, as strides and addresses allow;
// some loads of a thread are under way at once. Long rows that are not aligned are read by smaller
// units, but written 16 bytes at a time. One launch takes some dozens of such pieces (concat, split):
// a block finds its piece by a table of where each one's blocks begin. Transposed copies are in
// layout_tiles.cu. Bound by memory.
#include "cuda/layout.h"

#include <algorithm>

#include "core/fast_index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/vec.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;

// A piece cut into units of at most 16 bytes, of which a thread takes some.
template <int kDims>
struct UnitsOf {
  const void* x;
  void* y;
  FastIndex<2, kDims> index;  // y, x

  UnitsOf() = default;
  explicit UnitsOf(const CopyPlan& plan) : x(plan.x), y(plan.y), index(plan.index) {}
  int64_t work() const { return index.numel; }
};

// A piece of rows that are contiguous on both sides, but not aligned: what 16 aligned bytes of y
// receive is a chunk, of which a thread takes some.
template <int kDims>
struct RowsOf {
  const void* x;
  void* y;
  FastIndex<2, kDims> index;  // y, x: over the rows
  FastDiv chunks;             // of a row, wherever it begins
  int64_t length;             // of a row, in units

  RowsOf() = default;
  explicit RowsOf(const CopyPlan& plan) : x(plan.x), y(plan.y) {
    StridedIndex<2> rows;
    const int last = plan.index.ndim - 1;
    for (int d = 0; d < last; ++d) {
      rows.push(plan.index.shape[d], {plan.index.stride[0][d], plan.index.stride[1][d]});
    }
    index = FastIndex<2, kDims>(rows);
    length = plan.index.shape[last];
    chunks = FastDiv(length * plan.item_bytes / 16 + 2);
  }
  int64_t work() const { return index.numel * chunks.divisor(); }
};

// Pieces of one launch, and the first block of each; within the 4 KB that every GPU's kernels take.
template <class Part>
struct Pieces {
  static constexpr int kCount = 3800 / (sizeof(Part) + sizeof(int64_t));
  Part piece[kCount];
  int64_t first[kCount + 1];
  int count = 0;

  __device__ int of_block(int64_t block) const {
    int low = 0, high = count;  // first[low] <= block < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

template <class Unit, int kDims>
constexpr int kUnroll = kDims == 1 && sizeof(Unit) < 16 ? 8 : 4;  // units of a thread

template <class Unit, int kDims>
__global__ void __launch_bounds__(kThreads, kDims < kMaxDims ? 4 : 2)
    copy_units_kernel(DLK_GRID_CONSTANT const Pieces<UnitsOf<kDims>> pieces) {
  constexpr int n = kUnroll<Unit, kDims>;
  const int64_t blocks = pieces.first[pieces.count];
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int k = pieces.of_block(block);
    const UnitsOf<kDims>& p = pieces.piece[k];
    const int64_t begin = (block - pieces.first[k]) * n * kThreads + threadIdx.x;
    Unit v[n];
    int64_t at[n][2];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      p.index.offsets(begin + i * kThreads, at[i]);
      if (begin + i * kThreads < p.index.numel) v[i] = static_cast<const Unit*>(p.x)[at[i][1]];
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (begin + i * kThreads < p.index.numel) static_cast<Unit*>(p.y)[at[i][0]] = v[i];
    }
  }
}

constexpr int kChunks = 2;  // of a thread

template <class Unit, int kDims>
__global__ void __launch_bounds__(kThreads, kDims == kMaxDims || sizeof(Unit) == 1 ? 2 : 3)
    copy_rows_kernel(DLK_GRID_CONSTANT const Pieces<RowsOf<kDims>> pieces) {
  constexpr int n = 16 / static_cast<int>(sizeof(Unit));
  const int64_t blocks = pieces.first[pieces.count];
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int k = pieces.of_block(block);
    const RowsOf<kDims>& p = pieces.piece[k];
    const int64_t begin = (block - pieces.first[k]) * kChunks * kThreads + threadIdx.x;
    Vec<Unit, n> v[kChunks];
    Unit* to[kChunks];
    int64_t first[kChunks];  // unit of its row that a chunk begins with
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int64_t item = begin + i * kThreads, row = p.chunks(item);
      int64_t at[2];
      p.index.offsets(row, at);
      Unit* y = static_cast<Unit*>(p.y) + at[0];
      const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) % 16 / sizeof(Unit));
      first[i] = row < p.index.numel ? (item - row * p.chunks.divisor()) * n - before : p.length;
      to[i] = y + first[i];
      const Unit* x = static_cast<const Unit*>(p.x) + at[1] + first[i];
#pragma unroll
      for (int e = 0; e < n; ++e) {
        if (first[i] + e >= 0 && first[i] + e < p.length) v[i].v[e] = x[e];
      }
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (first[i] >= 0 && first[i] + n <= p.length) {
        store_vec(to[i], v[i]);
      } else {
#pragma unroll
        for (int e = 0; e < n; ++e) {
          if (first[i] + e >= 0 && first[i] + e < p.length) to[i][e] = v[i].v[e];
        }
      }
    }
  }
}

// Bytes of the largest unit, up to 16, that both sides of the copy can be cut into.
int unit_bytes(const CopyPlan& plan) {
  const StridedIndex<2>& index = plan.index;
  const int last = index.ndim - 1;
  int bytes = plan.item_bytes;
  if (last < 0 || index.stride[0][last] != 1 || index.stride[1][last] != 1) return bytes;
  for (; bytes < 16; bytes *= 2) {
    const int64_t items = 2 * bytes / plan.item_bytes;
    bool can = index.shape[last] % items == 0 && is_aligned(plan.x, 2 * bytes) &&
               is_aligned(plan.y, 2 * bytes);
    for (int d = 0; d < last; ++d) {
      can = can && index.stride[0][d] % items == 0 && index.stride[1][d] % items == 0;
    }
    if (!can) break;
  }
  return bytes;
}

// The plan with units of `bytes` in place of items.
CopyPlan in_units(CopyPlan plan, int bytes) {
  const int64_t items = bytes / plan.item_bytes;
  const int last = plan.index.ndim - 1;
  if (items == 1) return plan;
  plan.item_bytes = bytes;
  plan.index.numel /= items;
  plan.index.shape[last] /= items;
  for (int d = 0; d < last; ++d) {
    plan.index.stride[0][d] /= items;
    plan.index.stride[1][d] /= items;
  }
  return plan;
}

template <class Part>
void launch_pieces(void (*kernel)(Pieces<Part>), int per_thread, std::span<const CopyPlan> plans,
                   const Launch& launch) {
  while (!plans.empty()) {
    Pieces<Part> pieces;
    int64_t blocks = 0;
    const size_t count = std::min<size_t>(plans.size(), Pieces<Part>::kCount);
    for (const CopyPlan& plan : plans.first(count)) {
      pieces.first[pieces.count] = blocks;
      const Part& part = pieces.piece[pieces.count++] = Part(plan);
      blocks += ceil_div(part.work(), kThreads * per_thread);
    }
    pieces.first[pieces.count] = blocks;
    launch_kernel(kernel, grid_for(blocks, 1, 1 << 20), kThreads, 0, launch.stream, pieces);
    plans = plans.subspan(count);
  }
}

// Contiguous rows on both sides that are worth chunks.
bool has_rows(const CopyPlan& plan) {
  constexpr int64_t kLong = 64;  // bytes
  const int last = plan.index.ndim - 1;
  return last >= 0 && plan.index.stride[0][last] == 1 && plan.index.stride[1][last] == 1 &&
         plan.index.shape[last] * plan.item_bytes >= kLong;
}

template <class Unit>
void launch_units(std::span<const CopyPlan> plans, const Launch& launch) {
  const bool rows = sizeof(Unit) < 16 && std::all_of(plans.begin(), plans.end(), has_rows);
  int dims = 0;
  for (const CopyPlan& plan : plans) dims = std::max(dims, fast_dims(plan.index));
  dispatch_dims(dims, [&]<int kDims>() {
    if constexpr (sizeof(Unit) < 16) {
      if (rows) {
        return launch_pieces(copy_rows_kernel<Unit, kDims>, kChunks, plans, launch);
      }
    }
    launch_pieces(copy_units_kernel<Unit, kDims>, kUnroll<Unit, kDims>, plans, launch);
  });
}

// All pieces in the smallest of their units.
void copy_in_order(std::vector<CopyPlan> plans, const Launch& launch) {
  int bytes = 16;
  for (const CopyPlan& plan : plans) bytes = std::min(bytes, unit_bytes(plan));
  for (CopyPlan& plan : plans) plan = in_units(plan, bytes);
  switch (bytes) {
    case 1:
      return launch_units<uint8_t>(plans, launch);
    case 2:
      return launch_units<uint16_t>(plans, launch);
    case 4:
      return launch_units<uint32_t>(plans, launch);
    case 8:
      return launch_units<uint64_t>(plans, launch);
    default:
      return launch_units<uint4>(plans, launch);
  }
}

// ---- Implementations --------------------------------------------------------------------------

constexpr const char* kSeveral = "several pieces";

const char* planes_suit(const Copy& p) {
  return p.pieces.size() > 1 ? kSeveral : declines_planes(CopyPlan(p.pieces[0]));
}
const char* tiles_suit(const Copy& p) {
  return p.pieces.size() > 1 ? kSeveral : declines_tiles(CopyPlan(p.pieces[0]));
}

// Pieces of which some are to be transposed: those in launches of their own.
void run_mixed(const Copy& p, const Launch& launch) {
  std::vector<CopyPlan> in_order;
  for (const Piece& piece : p.pieces) {
    const CopyPlan plan(piece);
    if (!declines_planes(plan)) {
      copy_planes(plan, launch);
    } else if (!declines_tiles(plan)) {
      copy_tiles(plan, launch);
    } else {
      in_order.push_back(plan);
    }
  }
  if (!in_order.empty()) copy_in_order(std::move(in_order), launch);
}
const char* mixed_suit(const Copy& p) {
  if (p.pieces.size() == 1) return "one piece";
  for (const Piece& piece : p.pieces) {
    if (!declines_tiles(CopyPlan(piece))) return nullptr;
  }
  return "nothing to transpose";
}

constexpr Impl<Copy> kCopy[] = {
    {"planes", planes_suit, nullptr,
     [](const Copy& p, const Launch& launch) { copy_planes(CopyPlan(p.pieces[0]), launch); }},
    {"tiles", tiles_suit, nullptr,
     [](const Copy& p, const Launch& launch) { copy_tiles(CopyPlan(p.pieces[0]), launch); }},
    {"mixed", mixed_suit, nullptr, run_mixed},
    {"in_order", supports_all, nullptr,
     [](const Copy& p, const Launch& launch) {
       copy_in_order({p.pieces.begin(), p.pieces.end()}, launch);
     }},
};

}  // namespace

template <>
ImplList<Copy> gpu_impls<Copy>() {
  return kCopy;
}

}  // namespace dlkern
