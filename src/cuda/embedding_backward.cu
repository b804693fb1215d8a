// The gradient of an embedding: dweight[v] = sum of dy[i] over all i with ids[i] = v.
//
// The ids are sorted with their positions (prims/sort.cuh; equal ones stay in order), and the first of
// each row of the table is looked up. dweight is cleared. Then teams of threads share the table's rows
// or, where those are fewer, the ids that are the first of their row, in units of up to 16 bytes, and
// sum the dy of a row's ids one after the other. What more
// than kEmbeddingPiece ids share is summed in pieces of so many first, by blocks of their own, so that
// no thread has a long way to go: of kEmbeddingPiece neighbours in the sorted order at most one begins
// a later piece of such a row and at most one the first piece of the next, which tells where the sums
// of pieces lie. Bound by memory, for large tables by that of writing dweight. Sums in float32 (float64
// for float64), in an order that depends on the row's own ids alone.
#include <algorithm>
#include <bit>

#include "core/fast_index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/sort.cuh"
#include "cuda/prims/vec.cuh"
#include "ops/embedding.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;
constexpr int kPiece = kEmbeddingPiece;

constexpr int kRowThreadsBits = 7, kRowThreads = 1 << kRowThreadsBits;  // that sum rows
static_assert(kPiece <= kRowThreads);
constexpr int kManyUnits = 2;  // of a thread, where rows have more units than a block has threads

// Where the parts of the workspace begin, in bytes.
struct Workspace {
  RadixSort sort;
  size_t keys[2], values[2], scratch, first, place, sums, end;

  explicit Workspace(const EmbeddingBackward& p)
      : sort{p.ids.numel(), static_cast<int>(std::bit_width(static_cast<uint64_t>(p.rows())))} {
    const auto n = static_cast<size_t>(sort.count);
    size_t at = 0;
    const auto take = [&at](size_t bytes) {
      const size_t begin = at;
      at += (bytes + 255) / 256 * 256;
      return begin;
    };
    for (int i = 0; i < 2; ++i) {
      keys[i] = take(n * sizeof(uint32_t));
      values[i] = take(n * sizeof(int));
    }
    scratch = take(static_cast<size_t>(sort.scratch()) * sizeof(int));
    first = take((static_cast<size_t>(p.rows()) + 1) * sizeof(int));
    place = take(n * sizeof(int64_t));
    const size_t item = p.dy.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
    sums = take(2 * static_cast<size_t>(ceil_div(sort.count, kPiece)) *
                static_cast<size_t>(p.columns()) * item);
    end = at;
  }
};

// Keys: ids, and `rows` in place of one that is out of range.
__global__ void take_ids_kernel(const void* ids, bool wide,
                                DLK_GRID_CONSTANT const FastIndex<2, kMaxDims> index, int64_t rows,
                                uint32_t* keys) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= index.numel) return;
  int64_t at[2];
  index.offsets(i, at);
  const int64_t id =
      wide ? static_cast<const int64_t*>(ids)[at[1]] : static_cast<const int32_t*>(ids)[at[1]];
  keys[i] = static_cast<uint32_t>(id >= 0 && id < rows ? id : rows);
}

// first[v]: the number of keys below v, for 0 <= v <= rows; place[j]: where the j-th dy begins.
__global__ void find_rows_kernel(const uint32_t* keys, const int* values,
                                 DLK_GRID_CONSTANT const FastIndex<2, kMaxDims> index, int64_t rows,
                                 int* first, int64_t* place) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i <= rows) {
    int64_t low = 0, high = index.numel;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (keys[middle] < i) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    first[i] = static_cast<int>(low);
  }
  if (i < index.numel) {
    int64_t at[2];
    index.offsets(values[i], at);
    place[i] = at[0];
  }
}

// W neighbouring columns as they lie in memory.
template <class T, int W>
struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Columns {
  T v[W];
};

// A thread's units of W columns of a row: the first one's number, and how far they are apart.
template <int W, int kUnits>
struct Units {
  int64_t first;
  int step;

  __device__ __forceinline__ int64_t column(int u) const { return (first + u * step) * W; }
  __device__ __forceinline__ bool inside(int u, int64_t columns) const {
    return column(u) < columns;
  }
};

template <class T, class G>
struct Sums {
  using Acc = Accumulator<T>;
  const T* dy;
  int64_t dy_step;
  const uint32_t* keys;
  const int* first;
  const int64_t* place;
  Acc* pieces;  // sums of pieces, [2 of each kPiece keys][columns]
  G* dweight;
  int64_t pitch, step;
  int64_t rows, columns, padding;
  int64_t count;  // of keys
  bool accumulate, by_freq;
  bool cleared;       // dweight is 0
  bool by_positions;  // fewer keys than rows: rows are found by their first key

  // sum[u] += the dy of the keys from begin on, below end, at the W columns of unit u of this thread.
  template <int W, int kUnits>
  __device__ __forceinline__ void add(int64_t begin, int64_t end, const Units<W, kUnits>& units,
                                      Acc (&sum)[kUnits][W]) const {
    constexpr int kAtOnce = kUnits == 1 ? 8 : 4;
    for (; begin < end; begin += kAtOnce) {
      Columns<T, W> v[kAtOnce][kUnits];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const T* from = dy + (begin + i < end ? place[begin + i] : 0);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          if (begin + i < end && units.inside(u, columns)) {
            v[i][u] = *reinterpret_cast<const Columns<T, W>*>(from + units.column(u) * dy_step);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
#pragma unroll
          for (int k = 0; k < W; ++k) {
            if (begin + i < end) sum[u][k] += static_cast<Acc>(v[i][u].v[k]);
          }
        }
      }
    }
  }
  __device__ Acc* piece_at(int64_t begin, bool is_first) const {
    return pieces + (begin / kPiece * 2 + is_first) * columns;
  }
  template <int W, int kUnits>
  __device__ __forceinline__ void add_piece(int64_t begin, bool is_first,
                                            const Units<W, kUnits>& units,
                                            Acc (&sum)[kUnits][W]) const {
    const Acc* piece = piece_at(begin, is_first);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        if (units.inside(u, columns)) sum[u][k] += piece[units.column(u) + k];
      }
    }
  }
  // What sum_rows_kernel goes through, and the row there: none is `rows`.
  __host__ __device__ int64_t items() const { return by_positions ? count : rows; }
  __device__ int64_t row_of(int64_t item) const {
    if (!by_positions) return item;
    return item == 0 || keys[item - 1] != keys[item] ? keys[item] : rows;
  }
  __device__ int64_t ids_of(int64_t row) const {
    return row == padding ? 0 : first[row + 1] - first[row];
  }
};

template <class T, class G, int W>
__global__ void __launch_bounds__(kRowThreads) sum_pieces_kernel(Sums<T, G> s) {
  using Acc = Accumulator<T>;
  __shared__ int64_t begin[2], end[2];
  if (threadIdx.x < 2) begin[threadIdx.x] = -1;
  __syncthreads();
  const int64_t j = int64_t{blockIdx.x} * kPiece + threadIdx.x;
  const int64_t row = threadIdx.x < kPiece && j < s.count ? s.keys[j] : s.rows;
  if (row < s.rows && s.ids_of(row) > kPiece && (j - s.first[row]) % kPiece == 0) {
    const bool is_first = j == s.first[row];
    begin[is_first] = j;
    end[is_first] = j + kPiece < s.first[row + 1] ? j + kPiece : s.first[row + 1];
  }
  __syncthreads();
  for (int i = 0; i < 2; ++i) {
    if (begin[i] < 0) continue;
    for (Units<W, 1> units{threadIdx.x, 0}; units.inside(0, s.columns);
         units.first += kRowThreads) {
      Acc sum[1][W] = {};
      s.add(begin[i], end[i], units, sum);
#pragma unroll
      for (int k = 0; k < W; ++k) s.piece_at(begin[i], i)[units.column(0) + k] = sum[0][k];
    }
  }
}

// Each row is cut into `slabs` slabs, one for each `1 << lanes_bits` neighbouring threads, of kUnits
// units for each of them.
template <class T, class G, int W, int kUnits>
__global__ void __launch_bounds__(kRowThreads)
    sum_rows_kernel(const DLK_GRID_CONSTANT Sums<T, G> s, FastDiv slabs, int lanes_bits) {
  using Acc = Accumulator<T>;
  const int lanes = 1 << lanes_bits, rank = threadIdx.x & (lanes - 1);
  const int64_t slab =
      int64_t{blockIdx.x} * (kRowThreads >> lanes_bits) + (threadIdx.x >> lanes_bits);
  const int64_t item = slabs(slab);
  if (item >= s.items()) return;
  const int64_t row = s.row_of(item);
  if (row >= s.rows) return;
  const Units<W, kUnits> units{(slab - item * slabs.divisor()) * kUnits * lanes + rank, lanes};
  const int64_t n = s.ids_of(row), begin = s.first[row];
  if (n == 0 && (s.accumulate || s.cleared)) return;
  Acc sum[kUnits][W] = {};
  if (n <= kPiece) {
    s.add(begin, begin + n, units, sum);
  } else {
#pragma unroll 4
    for (int64_t at = 0; at < n; at += kPiece) s.add_piece(begin + at, at == 0, units, sum);
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (!units.inside(u, s.columns)) continue;
    auto* to =
        reinterpret_cast<Columns<G, W>*>(s.dweight + row * s.pitch + units.column(u) * s.step);
    Columns<G, W> v;
    if (s.accumulate) v = *to;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (s.by_freq && n > 0) sum[u][k] /= static_cast<Acc>(n);
      v.v[k] = static_cast<G>(s.accumulate ? static_cast<Acc>(v.v[k]) + sum[u][k] : sum[u][k]);
    }
    *to = v;
  }
}

template <class T, class G, int W>
void launch_sums(const Sums<T, G>& s, const Launch& launch) {
  if (s.count > kPiece) {
    launch_kernel(sum_pieces_kernel<T, G, W>, static_cast<unsigned>(ceil_div(s.count, kPiece)),
                  kRowThreads, 0, launch.stream, s);
  }
  if (s.items() == 0) return;
  const int64_t units = s.columns / W;
  const bool many = units > kRowThreads;
  const int lanes_bits =
      many ? kRowThreadsBits
           : std::bit_width(static_cast<uint64_t>(std::max<int64_t>(units, 1) - 1));
  const int64_t slabs = many ? ceil_div(units, kRowThreads * kManyUnits) : 1;
  launch_kernel(many ? sum_rows_kernel<T, G, W, kManyUnits> : sum_rows_kernel<T, G, W, 1>,
                static_cast<unsigned>(ceil_div(s.items() * slabs, kRowThreads >> lanes_bits)),
                kRowThreads, 0, launch.stream, s, FastDiv(slabs), lanes_bits);
}

// Whether W columns at a time are one access on both sides.
template <class T, class G, int W>
bool fits(const EmbeddingBackward& p, const StridedIndex<2>& index) {
  bool fit = p.columns() % W == 0 && p.dy.strides[p.dy.ndim - 1] == 1 &&
             p.dweight.strides[1] == 1 &&
             p.dweight.strides[0] * sizeof(G) % alignof(Columns<G, W>) == 0 &&
             is_aligned(p.dy.data, alignof(Columns<T, W>)) &&
             is_aligned(p.dweight.data, alignof(Columns<G, W>));
  for (int d = 0; d < index.ndim; ++d) fit = fit && index.stride[0][d] % W == 0;
  return fit;
}

// Makes dweight 0, as fast as memory takes it, where its rows are of neighbours; whether it has.
bool clear(const Tensor& dweight, const Launch& launch) {
  const auto item = static_cast<int64_t>(dtype_size(dweight.dtype));
  const int64_t rows = dweight.shape[0], columns = dweight.shape[1], pitch = dweight.strides[0];
  if (rows == 0 || columns == 0) return true;
  if (dweight.strides[1] != 1 || pitch < columns) return false;
  auto* const stream = static_cast<Stream>(launch.stream);
  const auto bytes = static_cast<size_t>(columns * item);
  const ErrorCode code =
      pitch == columns ? DLK_GPU(MemsetAsync)(dweight.data, 0, bytes * rows, stream)
                       : DLK_GPU(Memset2DAsync)(dweight.data, pitch * item, 0, bytes, rows, stream);
  check(code, "clearing dweight");
  return true;
}

template <class T, class G>
void run(const EmbeddingBackward& p, const Launch& launch) {
  const Workspace w(p);
  auto* memory = static_cast<char*>(launch.workspace);
  const auto at = [&]<class V>(size_t offset) { return reinterpret_cast<V*>(memory + offset); };
  uint32_t* const keys[2] = {
    at.template operator()<uint32_t>(w.keys[0]),
    at.template operator()<uint32_t>(w.keys[1])
  };
  int* const values[2] = {
    at.template operator()<int>(w.values[0]),
    at.template operator()<int>(w.values[1])
  };
  int* first = at.template operator()<int>(w.first);
  int64_t* place = at.template operator()<int64_t>(w.place);
  const StridedIndex<2> rows = make_index<2>({&p.dy, &p.ids}, ~(1u << (p.dy.ndim - 1)));
  const FastIndex<2, kMaxDims> index(rows);
  int sorted = 0;
  if (w.sort.count > 0) {
    launch_kernel(take_ids_kernel, static_cast<unsigned>(ceil_div(w.sort.count, kThreads)),
                  kThreads, 0, launch.stream, p.ids.data, p.ids.dtype == DType::kInt64, index,
                  p.rows(), keys[0]);
    sorted = w.sort.run(keys, values, at.template operator()<int>(w.scratch), launch.stream);
  }
  const int64_t looked_up = std::max(p.rows() + 1, w.sort.count);
  launch_kernel(find_rows_kernel, static_cast<unsigned>(ceil_div(looked_up, kThreads)), kThreads, 0,
                launch.stream, keys[sorted], values[sorted], index, p.rows(), first, place);
  using Acc = Accumulator<T>;
  const bool cleared = !p.accumulate && clear(p.dweight, launch);
  const Sums<T, G> sums {
    p.dy.as<T>(),
    p.dy.strides[p.dy.ndim - 1],
    keys[sorted],
    first,
    place,
    at.template operator()<Acc>(w.sums),
    p.dweight.as<G>(),
    p.dweight.strides[0],
    p.dweight.strides[1],
    p.rows(),
    p.columns(),
    p.padding_idx,
    w.sort.count,
    p.accumulate,
    p.scale_by_freq,
    cleared,
    (cleared || p.accumulate) && w.sort.count < p.rows()
  };
  constexpr int W = 16 / sizeof(T);
  if (fits<T, G, W>(p, rows)) {
    launch_sums<T, G, W>(sums, launch);
  } else {
    launch_sums<T, G, 1>(sums, launch);
  }
}

constexpr Impl<EmbeddingBackward> kBackward[] = {
    {"sorted", supports_all, [](const EmbeddingBackward& p) { return Workspace(p).end; },
     [](const EmbeddingBackward& p, const Launch& launch) {
       dispatch_floating(p.dy.dtype, [&]<class T>() {
         if (p.dweight.dtype == p.dy.dtype) {
           run<T, T>(p, launch);
         } else {
           run<T, Accumulator<T>>(p, launch);
         }
       });
     }},
};

}  // namespace

template <>
ImplList<EmbeddingBackward> gpu_impls<EmbeddingBackward>() {
  return kBackward;
}

}  // namespace dlkern
