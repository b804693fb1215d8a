// The k largest or smallest elements of each row.
//
// Elements become unsigned keys in the order of selection (core/topk_key.h); with its place a key is
// an entry, and no two entries of a row are equal: the result is unique, and so are its bits.
//
//   "teams"   short rows, few of them: a team of lanes has the row in registers and takes its best
//             element k times. Each element is read once
//   "registers"  rows of up to 64 KB: a block has the row in registers and finds the k-th
//             entry bit by bit, by counts of those that are not below a bound, until there are k.
//             These are sorted in shared memory. Each element is read once
//   "filter"  few of a long row: each thread finds the best of its elements. The k-th best of these
//             is a bound that k elements reach, and mostly few more; a second pass, which finds the
//             row in the L2 cache, collects what reaches it, and that is sorted. Where too many
//             do, the block goes on as below
//   "radix"   any: the k-th key digit by digit from the top, by counts of the elements that agree
//             so far; then the elements before it and the first ones equal to it are collected, and
//             sorted in shared memory or, for many, in the workspace
//
// "filter" is bound by memory, "teams" and "registers" by instructions, "radix" by its shared-memory
// atomics and passes.
// Reference for the filter: Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs", 2017.
#include <bit>

#include "cuda/prims/row_pieces.cuh"
#include "ops/reduce.h"
#include "ops/topk.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kBlock = 512;
constexpr int kBuffer = 2048;     // entries that are sorted in shared memory
constexpr int kFilterMost = 256;  // k of "filter": half of the bests of the threads
constexpr int kTeamMost = 8;      // k of "teams"
constexpr int kTeamPieces = 4;    // of a lane, at most

// Everything by value: a kernel argument.
template <class T>
struct Rows {
  const T* x;
  T* values;
  void* indices;
  bool wide;  // indices are int64
  StridedIndex<3> at;
  int64_t x_step, value_step, index_step;
  int n, k;
  bool largest, vector;  // vector: neighbours, at multiples of 16 bytes

  __device__ void put(const int64_t (&row)[3], int j, uint32_t i) const {
    values[row[1] + j * value_step] = x[row[0] + i * x_step];
    const int64_t to = row[2] + j * index_step;
    if (wide) {
      static_cast<int64_t*>(indices)[to] = i;
    } else {
      static_cast<int32_t*>(indices)[to] = static_cast<int32_t>(i);
    }
  }
};

// f(element, its place) for all of a row that are this thread's, of `threads`, `kAtOnce` loads at once.
template <class T, class F>
__device__ __forceinline__ void for_elements(const Rows<T>& rows, const T* row, int thread,
                                             int threads, F&& f) {
  constexpr int kWidth = kPiece<T>, kAtOnce = 4;
  int done = 0;
  if (rows.vector) {
    const int pieces = rows.n / kWidth;
    for (int j = thread; j < pieces; j += kAtOnce * threads) {
      Piece<T> piece[kAtOnce] = {};
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int p = j + u * threads;
        load_words(p < pieces, row + int64_t{p} * kWidth, piece[u].word);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int p = j + u * threads;
        if (p >= pieces) continue;
#pragma unroll
        for (int e = 0; e < kWidth; ++e) f(piece[u].get(e), static_cast<uint32_t>(p * kWidth + e));
      }
    }
    done = pieces * kWidth;
  }
#pragma unroll 1
  for (int64_t i = done + thread; i < rows.n; i += kAtOnce * threads) {
    T v[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i + u * threads < rows.n) v[u] = row[(i + u * threads) * rows.x_step];
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i + u * threads < rows.n) f(v[u], static_cast<uint32_t>(i + u * threads));
    }
  }
}

// ---- Short rows --------------------------------------------------------------------------------

template <class T, int kPieces>
__global__ void __launch_bounds__(256) teams_kernel(Rows<T> rows, int lanes) {
  using Key = KeyOf<T>;
  constexpr int kWidth = kPiece<T>, kElements = kPieces * kWidth;
  const int lane = threadIdx.x % lanes, teams = 256 / lanes;
  const int64_t step = int64_t{gridDim.x} * teams;
  for (int64_t first = int64_t{blockIdx.x} * teams; first < rows.at.numel; first += step) {
    const int64_t r = first + threadIdx.x / lanes;
    const bool inside = r < rows.at.numel;
    int64_t at[3] = {};
    if (inside) rows.at.offsets(r, at);
    const T* row = rows.x + at[0];
    Piece<T> piece[kPieces] = {};
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int i = (lane + p * lanes) * kWidth;
      if (rows.vector) {
        load_words(inside && i + kWidth <= rows.n, row + i, piece[p].word);
      }
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const bool loaded = rows.vector && i + kWidth <= rows.n;
        if (inside && !loaded && i + e < rows.n) piece[p].set(e, row[(i + e) * rows.x_step]);
      }
    }
    Key key[kElements];
    uint32_t left = 0;  // bits of the elements that are not taken yet
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        key[p * kWidth + e] = selection_key(piece[p].get(e), rows.largest);
        const bool exists = inside && (lane + p * lanes) * kWidth + e < rows.n;
        left |= static_cast<uint32_t>(exists) << (p * kWidth + e);
      }
    }
    for (int j = 0; j < rows.k; ++j) {
      Entry<Key> best{0, UINT32_MAX};
      int slot = 0;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const bool better = (left >> i & 1) && (best.index == UINT32_MAX || key[i] > best.key);
        if (!better) continue;
        best.key = key[i];
        best.index = static_cast<uint32_t>((lane + i / kWidth * lanes) * kWidth + i % kWidth);
        slot = i;
      }
      const uint32_t mine = best.index;
      for (int mask = lanes / 2; mask > 0; mask /= 2) {
        const Entry<Key> other{shuffle_xor(best.key, mask), shuffle_xor(best.index, mask)};
        if (other.index != UINT32_MAX && (best.index == UINT32_MAX || other.before(best))) {
          best = other;
        }
      }
      if (mine == best.index && inside) {
        left &= ~(1u << slot);
        rows.put(at, j, mine);
      }
    }
  }
}

// ---- Blocks ------------------------------------------------------------------------------------

// Sorts count entries, a power of 2, in memory that the block shares.
template <class Key>
__device__ void sort_entries(Entry<Key>* entries, int count) {
  for (int size = 2; size <= count; size *= 2) {
    for (int half = size / 2; half > 0; half /= 2) {
      __syncthreads();
      for (int t = threadIdx.x; t < count / 2; t += blockDim.x) {
        const int i = 2 * t - (t & (half - 1)), j = i + half;
        const bool up = (i & size) == 0;
        const Entry<Key> a = entries[i], b = entries[j];
        if (b.before(a) == up) entries[i] = b, entries[j] = a;
      }
    }
  }
  __syncthreads();
}

// Fills up to a power of 2, sorts, and puts the k first.
template <class T>
__device__ void sort_and_put(const Rows<T>& rows, const int64_t (&at)[3], Entry<KeyOf<T>>* entries,
                             int count) {
  int size = 2;
  while (size < count) size *= 2;
  __syncthreads();
  for (int i = count + threadIdx.x; i < size; i += blockDim.x) entries[i] = {0, UINT32_MAX};
  sort_entries(entries, size);
  for (int j = threadIdx.x; j < rows.k; j += blockDim.x) rows.put(at, j, entries[j].index);
  __syncthreads();
}

// ---- Rows in registers -------------------------------------------------------------------------

template <class T>
using KeyBits = std::conditional_t<sizeof(T) == 2, uint16_t,
                                   std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// Sums over the block, of what threads before this one have, and of all. Slots of one call are read
// until the next but one begins.
struct BlockCount {
  int turn = 0;

  __device__ __forceinline__ int before(int v, int& total) {
    __shared__ int slots[2][kRowThreads / kRowLanes];
    const int warps = blockDim.x / kWarpSize, warp = threadIdx.x / kWarpSize;
    int before = lanes_before(v, total);
    if (warps == 1) return before;
    if (threadIdx.x % kWarpSize == 0) slots[turn][warp] = total;
    __syncthreads();
    const int lane = threadIdx.x % kWarpSize, of_lane = lane < warps ? slots[turn][lane] : 0;
    before += warp_reduce(lane < warp ? of_lane : 0, Sum{});
    total = warp_reduce(of_lane, Sum{});
    turn ^= 1;
    return before;
  }
  __device__ __forceinline__ int operator()(int v) {
    int total;
    before(v, total);
    return total;
  }

 private:
  static __device__ __forceinline__ int lanes_before(int v, int& total) {
    int before = 0;
    total = v;
#pragma unroll
    for (int mask = 1; mask < kWarpSize; mask *= 2) {
      const int other = shuffle_xor(total, mask);
      if (threadIdx.x & mask) before += other;
      total += other;
    }
    return before;
  }
};

template <class T, int kItems>
__global__ void __launch_bounds__(kRowThreads)
    registers_kernel(const DLK_GRID_CONSTANT Rows<T> rows, int align) {
  using Key = KeyOf<T>;
  extern __shared__ uint4 dynamic[];
  auto* const entries = reinterpret_cast<Entry<Key>*>(dynamic);
  int64_t at[3];
  rows.at.offsets(blockIdx.x, at);
  RowTeam<false> team(blockDim.x);
  // The keys in place of the elements; behind the row's end they are 0 and count nowhere.
  RowPieces<KeyBits<T>, kItems> row;
  static_assert(kRowThreads * row.kElements <= 1 << 15, "the bits of a place");
  row.load(reinterpret_cast<const KeyBits<T>*>(rows.x) + at[0], rows.n, team, align, 0);
#pragma unroll
  for (int e = 0; e < row.kElements; ++e) {
    if (e % kPiece<T> == 0) row.piece[e / kPiece<T>].forget();
    const Key key = selection_key(bit_cast_to<T>(row.get(e)), rows.largest);
    row.set(e, row.place(team, e) < rows.n ? static_cast<KeyBits<T>>(key) : 0);
  }
  BlockCount sum;
  const auto count_if = [&](auto&& counts) {
    team.forget(), row.forget();
    int mine = 0;
#pragma unroll
    for (int e = 0; e < row.kElements; ++e) {
      mine += counts(static_cast<Key>(row.get(e)), row.place(team, e));
    }
    return sum(mine);
  };
  // The k-th entry: first the bits of its key, then, where equal ones are left out, those of its
  // place, counted from the end.
  Key bound = 0;
  int count = rows.n, last = rows.n - 1, from_end = 0;
  for (int bit = 8 * sizeof(T) - 1; bit >= 0 && count != rows.k; --bit) {
    const Key higher = bound | Key{1} << bit;
    const int reached = count_if([&](Key key, int) { return key >= higher; });
    if (reached >= rows.k) bound = higher, count = reached;
  }
  for (int bit = 14; bit >= 0 && count != rows.k; --bit) {
    const int higher = from_end | 1 << bit, limit = rows.n - 1 - higher;
    const int reached =
        count_if([&](Key key, int i) { return key > bound || (key == bound && i <= limit); });
    if (reached >= rows.k) from_end = higher, last = limit, count = reached;
  }
  const auto selected = [&](Key key, int i) { return key > bound || (key == bound && i <= last); };
  team.forget(), row.forget();
  int mine = 0;
#pragma unroll
  for (int e = 0; e < row.kElements; ++e) {
    mine += selected(row.get(e), row.place(team, e));
  }
  int slot = sum.before(mine, count);
#pragma unroll
  for (int e = 0; e < row.kElements; ++e) {
    if (e % kPiece<T> == 0) row.piece[e / kPiece<T>].forget();
    const Key key = row.get(e);
    const int i = row.place(team, e);
    if (selected(key, i)) entries[slot++] = {key, static_cast<uint32_t>(i)};
  }
  sort_and_put(rows, at, entries, rows.k);
}

// ---- Long rows ---------------------------------------------------------------------------------

// What the block shares.
template <class Key>
struct Shared {
  Entry<Key> entries[kBuffer];
  uint32_t counts[256];
  uint32_t ties[kBlock];
  Key prefix;
  int digit, needed, found;
};

// The key of the k-th element, to shared.prefix, and how many of those equal to it are selected, to
// shared.needed; `equal` of them there are.
template <class T>
__device__ int find_key(const Rows<T>& rows, const T* row, Shared<KeyOf<T>>& shared) {
  using Key = KeyOf<T>;
  int needed = rows.k, equal = 0;
  Key prefix = 0, mask = 0;
  for (int shift = 8 * sizeof(T) - 8; shift >= 0; shift -= 8) {
    for (int d = threadIdx.x; d < 256; d += kBlock) shared.counts[d] = 0;
    __syncthreads();
    for_elements(rows, row, threadIdx.x, kBlock, [&](T v, uint32_t) {
      const Key key = selection_key(v, rows.largest);
      if ((key & mask) == prefix) atomicAdd(&shared.counts[key >> shift & 255], 1u);
    });
    __syncthreads();
    if (threadIdx.x < 256) {
      int above = 0;
      for (int d = threadIdx.x + 1; d < 256; ++d) above += shared.counts[d];
      const int here = shared.counts[threadIdx.x];
      if (above < needed && above + here >= needed) {
        shared.digit = threadIdx.x, shared.needed = needed - above;
      }
    }
    __syncthreads();
    needed = shared.needed;
    equal = shared.counts[shared.digit];
    prefix |= static_cast<Key>(shared.digit) << shift;
    mask |= Key{255} << shift;
    __syncthreads();
  }
  if (threadIdx.x == 0) shared.prefix = prefix;
  __syncthreads();
  return equal;
}

// All entries before shared.prefix and the first shared.needed equal to it, in any order.
template <class T>
__device__ void collect(const Rows<T>& rows, const T* row, int equal, Shared<KeyOf<T>>& shared,
                        Entry<KeyOf<T>>* to) {
  using Key = KeyOf<T>;
  const Key key_of_last = shared.prefix;
  const int needed = shared.needed;
  if (threadIdx.x == 0) shared.found = 0;
  __syncthreads();
  for_elements(rows, row, threadIdx.x, kBlock, [&](T v, uint32_t i) {
    const Key key = selection_key(v, rows.largest);
    if (key > key_of_last || (key == key_of_last && equal == needed)) {
      to[atomicAdd(&shared.found, 1)] = {key, i};
    }
  });
  if (equal == needed) return;
  // Of more equal ones than are selected the first: each thread counts those of its own part.
  const int64_t part = ceil_div(rows.n, kBlock), begin = threadIdx.x * part;
  const int64_t end = begin + part < rows.n ? begin + part : rows.n;
  const auto is_last = [&](int64_t i) {
    return selection_key(row[i * rows.x_step], rows.largest) == key_of_last;
  };
  uint32_t count = 0;
  for (int64_t i = begin; i < end; ++i) count += is_last(i);
  shared.ties[threadIdx.x] = count;
  __syncthreads();
  int rank = 0;
  for (int t = 0; t < static_cast<int>(threadIdx.x); ++t) rank += shared.ties[t];
  for (int64_t i = begin; i < end && rank < needed; ++i) {
    if (is_last(i)) to[rows.k - needed + rank++] = {key_of_last, static_cast<uint32_t>(i)};
  }
}

template <class T>
__device__ void radix_select(const Rows<T>& rows, const int64_t (&at)[3], Shared<KeyOf<T>>& shared,
                             Entry<KeyOf<T>>* workspace) {
  const T* row = rows.x + at[0];
  Entry<KeyOf<T>>* entries = rows.k <= kBuffer ? shared.entries : workspace;
  const int equal = find_key(rows, row, shared);
  collect(rows, row, equal, shared, entries);
  sort_and_put(rows, at, entries, rows.k);
}

// `stride` entries of workspace for each block.
template <class T>
__global__ void __launch_bounds__(kBlock)
    radix_kernel(Rows<T> rows, Entry<KeyOf<T>>* workspace, int64_t stride) {
  __shared__ Shared<KeyOf<T>> shared;
  for (int64_t r = blockIdx.x; r < rows.at.numel; r += gridDim.x) {
    int64_t at[3];
    rows.at.offsets(r, at);
    radix_select(rows, at, shared, workspace + blockIdx.x * stride);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock) filter_kernel(Rows<T> rows) {
  using Key = KeyOf<T>;
  __shared__ Shared<Key> shared;
  for (int64_t r = blockIdx.x; r < rows.at.numel; r += gridDim.x) {
    int64_t at[3];
    rows.at.offsets(r, at);
    const T* row = rows.x + at[0];
    Key best = 0;
    for_elements(rows, row, threadIdx.x, kBlock, [&](T v, uint32_t) {
      const Key key = selection_key(v, rows.largest);
      best = key > best ? key : best;
    });
    shared.entries[threadIdx.x] = {best, threadIdx.x};
    sort_entries(shared.entries, kBlock);
    const Key bound = shared.entries[rows.k - 1].key;
    if (threadIdx.x == 0) shared.found = 0;
    __syncthreads();
    for_elements(rows, row, threadIdx.x, kBlock, [&](T v, uint32_t i) {
      const Key key = selection_key(v, rows.largest);
      if (key < bound) return;
      const int slot = atomicAdd(&shared.found, 1);
      if (slot < kBuffer) shared.entries[slot] = {key, i};
    });
    __syncthreads();
    const int found = shared.found;
    if (found <= kBuffer) {
      sort_and_put(rows, at, shared.entries, found);
    } else {
      radix_select(rows, at, shared, static_cast<Entry<Key>*>(nullptr));
    }
  }
}

// ---- Launch ------------------------------------------------------------------------------------

template <class T>
Rows<T> make_rows(const TopK& p) {
  Rows<T> rows{p.x.as<T>(),
               p.values.as<T>(),
               p.indices.data,
               p.indices.dtype == DType::kInt64,
               rows_of<3>({&p.x, &p.values, &p.indices}, p.axis),
               p.x.strides[p.axis],
               p.values.strides[p.axis],
               p.indices.strides[p.axis],
               static_cast<int>(p.n()),
               static_cast<int>(p.k()),
               p.largest,
               false};
  rows.vector = rows.x_step == 1 && row_alignment(p.x.data, rows.at, 0, sizeof(T)) == 16;
  return rows;
}

// Lanes of a team that has a row of so many pieces in registers.
int lanes_for(int64_t pieces) {
  const auto wanted = static_cast<uint64_t>(std::clamp<int64_t>(pieces, 1, kRowLanes));
  return static_cast<int>(std::bit_ceil(wanted));
}

int64_t row_count(const TopK& p) { return p.k() ? p.values.numel() / p.k() : 0; }

const char* teams_supports(const TopK& p) {
  if (p.k() > kTeamMost) return "k is more than 8";
  const auto bytes = static_cast<int64_t>(dtype_size(p.x.dtype));
  if (p.n() * bytes > kRowLanes * kTeamPieces * 16) return "rows are too long for a team of lanes";
  return nullptr;
}
// How a block holds a row; size 0: it is too long.
RowPlan plan_held(int64_t n, int piece) {
  RowPlan plan = plan_row(n, piece);
  plan.items = std::max(plan.items, 4);
  if (plan.blocks() > 1) plan.size = 0;
  return plan;
}
const char* registers_support(const TopK& p) {
  const RowPlan plan = plan_held(p.n(), static_cast<int>(16 / dtype_size(p.x.dtype)));
  if (p.x.strides[p.axis] != 1) return "the axis does not have neighbouring elements";
  if (plan.size == 0) return "rows are too long for the registers of a block";
  if (row_count(p) > INT32_MAX) return "too many rows";
  return p.k() > kBuffer ? "k is more than 2048" : nullptr;
}
const char* filter_supports(const TopK& p) {
  return p.k() > kFilterMost ? "k is more than 256" : nullptr;
}

// One block for each row, as long as there are not too many of them for the workspace.
int radix_grid(const TopK& p) { return grid_for(row_count(p), 1, 1); }
int64_t sorted_size(const TopK& p) {
  return p.k() <= kBuffer ? 0 : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(p.k())));
}

template <template <class> class Launcher>
void run(const TopK& p, const Launch& launch) {
  if (p.values.numel() == 0) return;
  dispatch_reducible(p.x.dtype, [&]<class T>() { Launcher<T>::run(p, make_rows<T>(p), launch); });
}
template <class T>
struct Teams {
  static void run(const TopK& p, const Rows<T>& rows, const Launch& launch) {
    const int64_t pieces = ceil_div(p.n(), kPiece<T>);
    const int lanes = lanes_for(pieces);
    launch_kernel(pieces <= lanes ? teams_kernel<T, 1> : teams_kernel<T, kTeamPieces>,
                  grid_for(row_count(p), 256 / lanes, 32), 256, 0, launch.stream, rows, lanes);
  }
};
template <class T>
struct Registers {
  static void run(const TopK& p, const Rows<T>& rows, const Launch& launch) {
    const RowPlan plan = plan_held(p.n(), kPiece<T>);
    const size_t entries = std::max(std::bit_ceil(static_cast<uint64_t>(p.k())), uint64_t{2});
    launch_kernel(plan.items == 8 ? registers_kernel<T, 8> : registers_kernel<T, 4>,
                  static_cast<unsigned>(row_count(p)), std::max(plan.size, kWarpSize),
                  entries * sizeof(Entry<KeyOf<T>>), launch.stream, rows,
                  row_alignment(rows.x, rows.at, 0, sizeof(T)));
  }
};
template <class T>
struct Filter {
  static void run(const TopK& p, const Rows<T>& rows, const Launch& launch) {
    launch_kernel(filter_kernel<T>, grid_for(row_count(p), 1, 32), kBlock, 0, launch.stream, rows);
  }
};
template <class T>
struct Radix {
  static void run(const TopK& p, const Rows<T>& rows, const Launch& launch) {
    launch_kernel(radix_kernel<T>, radix_grid(p), kBlock, 0, launch.stream, rows,
                  static_cast<Entry<KeyOf<T>>*>(launch.workspace), sorted_size(p));
  }
};

constexpr Impl<TopK> kForward[] = {
    {"teams", teams_supports, nullptr, run<Teams>},
    {"registers", registers_support, nullptr, run<Registers>},
    {"filter", filter_supports, nullptr, run<Filter>},
    {"radix", supports_all,
     [](const TopK& p) {
       const size_t entry =
           dtype_size(p.x.dtype) == 8 ? sizeof(Entry<uint64_t>) : sizeof(Entry<uint32_t>);
       return static_cast<size_t>(sorted_size(p)) * radix_grid(p) * entry;
     },
     run<Radix>},
};

}  // namespace

template <>
ImplList<TopK> gpu_impls<TopK>() {
  return kForward;
}

}  // namespace dlkern
