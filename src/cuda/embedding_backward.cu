// The gradient of an embedding: dweight[v] = sum of dy[i] over all i with ids[i] = v.
//
// The ids are sorted with their positions (prims/sort.cuh; equal ones stay in order), and the first of
// each row of the table is looked up. Then threads take units of up to 16 bytes of the table's rows in
// order, and sum the dy of a row's ids one after the other; rows without any become 0. What more than
// kEmbeddingPiece ids share is summed in pieces of so many first, by blocks of their own, so that no
// thread has a long way to go: of kEmbeddingPiece neighbours in the sorted order at most one begins a
// later piece of such a row and at most one the first piece of the next, which tells where the sums of
// pieces lie. Bound by memory, for large tables by that of writing dweight. Sums in float32 (float64
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
static_assert(kPiece == kThreads);

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

  // sum += the dy of the keys from begin on, below end, at columns c to c + W - 1.
  template <int W>
  __device__ void add(int64_t begin, int64_t end, int64_t c, Acc (&sum)[W]) const {
    constexpr int kAtOnce = 4;
    const T* from = dy + c * dy_step;
    for (; begin < end; begin += kAtOnce) {
      Columns<T, W> v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < end)
          v[i] = *reinterpret_cast<const Columns<T, W>*>(from + place[begin + i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int k = 0; k < W; ++k) {
          if (begin + i < end) sum[k] += static_cast<Acc>(v[i].v[k]);
        }
      }
    }
  }
  __device__ Acc* piece_at(int64_t begin, bool is_first) const {
    return pieces + (begin / kPiece * 2 + is_first) * columns;
  }
  __device__ int64_t ids_of(int64_t row) const {
    return row == padding ? 0 : first[row + 1] - first[row];
  }
};

template <class T, class G, int W>
__global__ void __launch_bounds__(kThreads) sum_pieces_kernel(Sums<T, G> s) {
  using Acc = Accumulator<T>;
  __shared__ int64_t begin[2], end[2];
  if (threadIdx.x < 2) begin[threadIdx.x] = -1;
  __syncthreads();
  const int64_t j = int64_t{blockIdx.x} * kPiece + threadIdx.x;
  const int64_t row = j < s.count ? s.keys[j] : s.rows;
  if (row < s.rows && s.ids_of(row) > kPiece && (j - s.first[row]) % kPiece == 0) {
    const bool is_first = j == s.first[row];
    begin[is_first] = j;
    end[is_first] = j + kPiece < s.first[row + 1] ? j + kPiece : s.first[row + 1];
  }
  __syncthreads();
  for (int i = 0; i < 2; ++i) {
    if (begin[i] < 0) continue;
    for (int64_t c = threadIdx.x * W; c < s.columns; c += kThreads * W) {
      Acc sum[W] = {};
      s.template add<W>(begin[i], end[i], c, sum);
#pragma unroll
      for (int k = 0; k < W; ++k) s.piece_at(begin[i], i)[c + k] = sum[k];
    }
  }
}

template <class T, class G, int W>
__global__ void __launch_bounds__(kThreads) sum_rows_kernel(Sums<T, G> s, FastDiv units) {
  using Acc = Accumulator<T>;
  const int64_t unit = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = units(unit), c = (unit - row * units.divisor()) * W;
  if (row >= s.rows) return;
  const int64_t n = s.ids_of(row), begin = s.first[row];
  if (n == 0 && s.accumulate) return;
  Acc sum[W] = {};
  if (n <= kPiece) {
    s.template add<W>(begin, begin + n, c, sum);
  } else {
    for (int64_t at = 0; at < n; at += kPiece) {
      const Acc* piece = s.piece_at(begin + at, at == 0) + c;
#pragma unroll
      for (int k = 0; k < W; ++k) sum[k] += piece[k];
    }
  }
  auto* to = reinterpret_cast<Columns<G, W>*>(s.dweight + row * s.pitch + c * s.step);
  Columns<G, W> v;
  if (s.accumulate) v = *to;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    if (s.by_freq && n > 0) sum[k] /= static_cast<Acc>(n);
    v.v[k] = static_cast<G>(s.accumulate ? static_cast<Acc>(v.v[k]) + sum[k] : sum[k]);
  }
  *to = v;
}

template <class T, class G, int W>
void launch_sums(const Sums<T, G>& s, const Launch& launch) {
  if (s.count > kPiece) {
    launch_kernel(sum_pieces_kernel<T, G, W>, static_cast<unsigned>(ceil_div(s.count, kPiece)),
                  kThreads, 0, launch.stream, s);
  }
  const int64_t units = s.columns / W;
  launch_kernel(sum_rows_kernel<T, G, W>, static_cast<unsigned>(ceil_div(s.rows * units, kThreads)),
                kThreads, 0, launch.stream, s, FastDiv(units));
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
    p.scale_by_freq
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
