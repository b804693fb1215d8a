// Copies, and how each kind of them is done: y = x, element by element, for views of one shape.
//
// Axes are ordered by y's strides and merged. Where x runs along y's fastest axis too, or nothing else
// does well, threads copy in y's order, in units of up to 16 bytes, as strides and addresses allow;
// some loads of a thread are under way at once. Long rows that are not aligned are written 16 bytes
// at a time, which are cut out of the 32 aligned ones around them in x. One launch takes some dozens of such pieces (concat, split):
// a block finds its piece by a table of where each one's blocks begin. Transposed copies are in
// layout_tiles.cu. Bound by memory.
#include "cuda/layout.h"

#include <algorithm>

#include "core/fast_index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/row_pieces.cuh"
#include "cuda/prims/vec.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// Measured: small blocks of which a thread has two loads of 16 bytes are the quickest (H200, 2026-11-30).
constexpr int kThreads = 128;

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
// receive is a chunk, of which a thread takes some. All numbers count bytes.
template <int kDims>
struct RowsOf {
  const char* x;
  char* y;
  const char *low, *high;     // what may be read of x
  FastIndex<2, kDims> index;  // y, x: over the rows
  FastDiv chunks;             // of a row, wherever it begins
  int64_t length;             // of a row

  RowsOf() = default;
  explicit RowsOf(const CopyPlan& plan)
      : x(static_cast<const char*>(plan.x)), y(static_cast<char*>(plan.y)), low(x), high(x) {
    StridedIndex<2> rows;
    const int last = plan.index.ndim - 1;
    for (int d = 0; d < last; ++d) {
      const int64_t step = plan.index.stride[1][d] * plan.item_bytes;
      rows.push(plan.index.shape[d], {plan.index.stride[0][d] * plan.item_bytes, step});
      (step < 0 ? low : high) += (plan.index.shape[d] - 1) * step;
    }
    index = FastIndex<2, kDims>(rows);
    length = plan.index.shape[last] * plan.item_bytes;
    high += length;
    chunks = FastDiv(length / 16 + 2);
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
constexpr int kUnroll = sizeof(Unit) == 16 ? 2
                        : kDims == 1       ? 8
                                           : 4;  // units of a thread

template <class Unit, int kDims>
__global__ void __launch_bounds__(kThreads)
    copy_units_kernel(DLK_GRID_CONSTANT const Pieces<UnitsOf<kDims>> pieces) {
  constexpr int n = kUnroll<Unit, kDims>;
  const int k = pieces.of_block(blockIdx.x);
  const UnitsOf<kDims>& p = pieces.piece[k];
  const int64_t begin = (blockIdx.x - pieces.first[k]) * n * kThreads + threadIdx.x;
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

constexpr int kChunks = 2;  // of a thread

// Bytes [begin, end) of 16 that are aligned in y.
struct Chunk {
  const char* from = nullptr;
  char* to = nullptr;
  int begin = 0, end = 0;
  uint32_t word[4];

  Chunk() = default;
  template <int kDims>
  __device__ __forceinline__ Chunk(const RowsOf<kDims>& rows, int64_t number) {
    const int64_t row = rows.chunks(number);
    if (row >= rows.index.numel) return;
    int64_t at[2];
    rows.index.offsets(row, at);
    const auto before = static_cast<int>(reinterpret_cast<uintptr_t>(rows.y + at[0]) % 16);
    const int64_t first = (number - row * rows.chunks.divisor()) * 16 - before;
    from = rows.x + at[1] + first, to = rows.y + at[0] + first;
    begin = first < 0 ? before : 0;
    end = static_cast<int>(min(rows.length - first, int64_t{16}));
  }

  // f(byte, Unit's word and shift within it) for the units that there are.
  template <class Unit, class F>
  __device__ __forceinline__ void each_unit(F&& f) {
#pragma unroll
    for (int i = 0; i < 16; i += sizeof(Unit)) {
      if (i >= begin && i < end) f(i, word[i / 4], 8 * (i % 4));
    }
  }
  // Cut out of the 32 bytes around it where those may be read.
  template <class Unit>
  __device__ __forceinline__ void load(const char* low, const char* high) {
    const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16);
    const char* const around = from - shift;
    uint32_t next[4] = {};
#pragma unroll
    for (int w = 0; w < 4; ++w) word[w] = 0;
    if (around >= low && around + 32 <= high) {
      load_words(begin < end, around, word);
      load_words(begin < end && shift != 0, around + 16, next);
      extract(word, next, shift, word);
    } else {
      each_unit<Unit>([this](int i, uint32_t& to_word, int bits) {
        to_word |= uint32_t{*reinterpret_cast<const Unit*>(from + i)} << bits;
      });
    }
  }
  template <class Unit>
  __device__ __forceinline__ void store() {
    if (begin == 0 && end == 16) return store_words(to, word);
    each_unit<Unit>([this](int i, uint32_t from_word, int bits) {
      *reinterpret_cast<Unit*>(to + i) = static_cast<Unit>(from_word >> bits);
    });
  }
};

// Unit: what all addresses and lengths are multiples of.
template <class Unit, int kDims>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(DLK_GRID_CONSTANT const Pieces<RowsOf<kDims>> pieces) {
  const int k = pieces.of_block(blockIdx.x);
  const RowsOf<kDims>& rows = pieces.piece[k];
  const int64_t number = (blockIdx.x - pieces.first[k]) * kChunks * kThreads + threadIdx.x;
  Chunk chunk[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    chunk[i] = Chunk(rows, number + i * kThreads);
    chunk[i].template load<Unit>(rows.low, rows.high);
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) chunk[i].template store<Unit>();
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

// per_thread: units or chunks.
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
    launch_kernel(kernel, static_cast<unsigned>(std::max<int64_t>(blocks, 1)), kThreads, 0,
                  launch.stream, pieces);
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

int most_dims(std::span<const CopyPlan> plans) {
  int dims = 0;
  for (const CopyPlan& plan : plans) dims = std::max(dims, fast_dims(plan.index));
  return dims;
}

template <class Unit>
void launch_units(std::span<const CopyPlan> plans, const Launch& launch) {
  dispatch_dims(most_dims(plans), [&]<int kDims>() {
    launch_pieces(copy_units_kernel<Unit, kDims>, kUnroll<Unit, kDims>, plans, launch);
  });
}
template <class Unit>
void launch_rows(std::span<const CopyPlan> plans, const Launch& launch) {
  dispatch_dims(most_dims(plans), [&]<int kDims>() {
    launch_pieces(copy_rows_kernel<Unit, kDims>, kChunks, plans, launch);
  });
}

// All pieces in the smallest of their units.
void copy_in_order(std::vector<CopyPlan> plans, const Launch& launch) {
  int bytes = 16;
  for (const CopyPlan& plan : plans) bytes = std::min(bytes, unit_bytes(plan));
  if (bytes < 16 && std::all_of(plans.begin(), plans.end(), has_rows)) {
    return bytes == 1 ? launch_rows<uint8_t>(plans, launch) : launch_rows<uint16_t>(plans, launch);
  }
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
  for (const auto& piece : p.pieces) {
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
  for (const auto& piece : p.pieces) {
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
