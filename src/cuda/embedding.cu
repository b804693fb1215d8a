// Embedding and one-hot vectors: threads take units of up to 16 bytes of the result in order, as
// strides and addresses allow; what lies elsewhere in the table is shifted on its way. Bound by memory. An id that is out of range is
// never used as an index: its row becomes NaN, its one-hot vector 0.
#include "ops/embedding.h"

#include <cstring>
#include <limits>

#include "core/cast.h"
#include "core/fast_index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/row_pieces.cuh"
#include "cuda/prims/vec.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 128;
constexpr int kUnroll = 2;                        // units of a thread
constexpr int kHotThreads = 256, kHotUnroll = 4;  // the same of one-hot vectors

struct Ids {
  const void* data;
  bool wide;  // int64

  explicit Ids(const Tensor& t) : data(t.data), wide(t.dtype == DType::kInt64) {}
  __device__ int64_t operator[](int64_t at) const {
    return wide ? static_cast<const int64_t*>(data)[at] : static_cast<const int32_t*>(data)[at];
  }
};

// Rows of the result, and with them the ids; `length` units of a row, `step` apart in y.
template <int kDims>
struct Rows {
  FastIndex<2, kDims> index;  // y, ids: over the rows
  FastDiv length;
  int64_t units, step;
};

template <int kDims>
Rows<kDims> rows_of(const StridedIndex<2>& index, int64_t length, int64_t step) {
  return {FastIndex<2, kDims>(index), FastDiv(length), index.numel * length, step};
}

StridedIndex<2> row_index(const Tensor& y, const Tensor& ids) {
  return make_index<2>({&y, &ids}, ~(1u << (y.ndim - 1)));
}

// ---- Embedding --------------------------------------------------------------------------------

template <class Unit>
struct Table {
  const Unit* data;
  int64_t rows, pitch, step;
  Unit missing;  // NaN
};

template <class Unit, int kDims>
__global__ void __launch_bounds__(kThreads, kDims < kMaxDims ? 8 : 4)
    embedding_kernel(Ids ids, Table<Unit> table, Unit* y,
                     DLK_GRID_CONSTANT const Rows<kDims> rows) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x;
  int64_t to[kUnroll], from[kUnroll];
  bool inside[kUnroll], found[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t unit = first + i * kThreads;
    inside[i] = unit < rows.units;
    found[i] = false;
    if (!inside[i]) continue;
    const int64_t row = rows.length(unit), c = unit - row * rows.length.divisor();
    int64_t at[2];
    rows.index.offsets(row, at);
    const int64_t id = ids[at[1]];
    found[i] = id >= 0 && id < table.rows;
    to[i] = at[0] + c * rows.step;
    from[i] = id * table.pitch + c * table.step;
  }
  Unit v[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) v[i] = found[i] ? table.data[from[i]] : table.missing;
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (inside[i]) y[to[i]] = v[i];
  }
}

// Rows of neighbours at any addresses: a thread has aligned 16 bytes of y, cut out of the two of the
// table that hold them. Where those are not all of the row, or of the table, they are copied by 2
// bytes. `bytes` of a row; pitches and strides are in bytes too, and rows.length is the number of
// aligned 16 bytes that a row of y may touch.
template <int kDims>
__global__ void __launch_bounds__(kThreads)
    embedding_shifted_kernel(Ids ids, Table<uint4> table, char* y, int64_t bytes,
                             DLK_GRID_CONSTANT const Rows<kDims> rows) {
  const int64_t unit = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (unit >= rows.units) return;
  const int64_t row = rows.length(unit);
  int64_t at[2];
  rows.index.offsets(row, at);
  const int64_t id = ids[at[1]];
  const bool found = id >= 0 && id < table.rows;
  char* to = y + at[0];
  const int64_t offset = 16 * (unit - row * rows.length.divisor()) - shift_of(to);
  const auto* all = reinterpret_cast<const char*>(table.data);
  const char* from = all + (found ? id : 0) * table.pitch + offset;
  const char* aligned = from - shift_of(from);
  const char* end = all + (table.rows - 1) * table.pitch + bytes;
  uint32_t v[4] = {table.missing.x, table.missing.y, table.missing.z, table.missing.w};
  if (offset >= 0 && offset + 16 <= bytes && aligned + 32 <= end) {
    uint32_t low[4], high[4];
    load_words(found, aligned, low), load_words(found, aligned + 16, high);
    if (found) extract(low, high, shift_of(from), v);
    return store_words(to + offset, v);
  }
#pragma unroll
  for (int byte = 0; byte < 16; byte += 2) {
    if (offset + byte < 0 || offset + byte >= bytes) continue;
    const auto missing = static_cast<uint16_t>(v[byte / 4] >> 8 * (byte % 4));
    *reinterpret_cast<uint16_t*>(to + offset + byte) =
        found ? *reinterpret_cast<const uint16_t*>(from + byte) : missing;
  }
}

// Bytes of the largest unit, up to 16, that rows of the table and of y can be cut into.
int unit_bytes(const EmbeddingForward& p, const StridedIndex<2>& index) {
  const int item = static_cast<int>(dtype_size(p.y.dtype));
  int bytes = item;
  if (p.columns() > 1 && (p.weight.strides[1] != 1 || p.y.strides[p.y.ndim - 1] != 1)) return bytes;
  for (; bytes < 16; bytes *= 2) {
    const int64_t items = 2 * bytes / item;
    bool can = p.columns() % items == 0 && p.weight.strides[0] % items == 0 &&
               is_aligned(p.weight.data, 2 * bytes) && is_aligned(p.y.data, 2 * bytes);
    for (int d = 0; d < index.ndim; ++d) can = can && index.stride[0][d] % items == 0;
    if (!can) break;
  }
  return bytes;
}

template <class Unit>
Unit filled_with_nan(DType dtype) {
  return dispatch_floating(dtype, [&]<class T>() {
    const T nan = cast_wide<T>(std::numeric_limits<float>::quiet_NaN());
    Unit unit;
    constexpr size_t kBytes = sizeof(T) < sizeof(Unit) ? sizeof(T) : sizeof(Unit);
    for (size_t i = 0; i < sizeof(Unit); i += kBytes) {
      std::memcpy(reinterpret_cast<char*>(&unit) + i, &nan, kBytes);
    }
    return unit;
  });
}

template <class Unit>
void launch_embedding(const EmbeddingForward& p, StridedIndex<2> index, const Launch& launch) {
  const int64_t items = sizeof(Unit) / dtype_size(p.y.dtype);
  for (int d = 0; d < index.ndim; ++d) index.stride[0][d] /= items;
  const Table<Unit> table{p.weight.as<Unit>(), p.rows(), p.weight.strides[0] / items,
                          items > 1 ? 1 : p.weight.strides[1], filled_with_nan<Unit>(p.y.dtype)};
  const int64_t step = items > 1 ? 1 : p.y.strides[p.y.ndim - 1];
  dispatch_dims(fast_dims(index), [&]<int kDims>() {
    const auto rows = rows_of<kDims>(index, p.columns() / items, step);
    launch_kernel(embedding_kernel<Unit, kDims>,
                  static_cast<unsigned>(ceil_div(rows.units, kThreads * kUnroll)), kThreads, 0,
                  launch.stream, Ids(p.ids), table, p.y.as<Unit>(), rows);
  });
}

// Whether rows are of neighbours, and of more than a few 16 bytes.
bool can_shift(const EmbeddingForward& p) {
  const auto item = static_cast<int64_t>(dtype_size(p.y.dtype));
  return p.columns() * item >= 64 && p.weight.strides[0] >= 0 && p.weight.strides[1] == 1 &&
         p.y.strides[p.y.ndim - 1] == 1;
}

// Rows as bytes.
void launch_shifted(const EmbeddingForward& p, StridedIndex<2> index, const Launch& launch) {
  const auto item = static_cast<int64_t>(dtype_size(p.y.dtype));
  for (int d = 0; d < index.ndim; ++d) index.stride[0][d] *= item;
  const int64_t bytes = p.columns() * item;
  const Table<uint4> table{p.weight.as<uint4>(), p.rows(), p.weight.strides[0] * item, 1,
                           filled_with_nan<uint4>(p.y.dtype)};
  dispatch_dims(fast_dims(index), [&]<int kDims>() {
    const auto rows = rows_of<kDims>(index, ceil_div(bytes + 16 - item, int64_t{16}), 1);
    launch_kernel(embedding_shifted_kernel<kDims>,
                  static_cast<unsigned>(ceil_div(rows.units, kThreads)), kThreads, 0, launch.stream,
                  Ids(p.ids), table, p.y.as<char>(), bytes, rows);
  });
}

void run_embedding(const EmbeddingForward& p, const Launch& launch) {
  const StridedIndex<2> index = row_index(p.y, p.ids);
  const int bytes = unit_bytes(p, index);
  if (bytes < 16 && can_shift(p)) return launch_shifted(p, index, launch);
  switch (bytes) {
    case 2:
      return launch_embedding<uint16_t>(p, index, launch);
    case 4:
      return launch_embedding<uint32_t>(p, index, launch);
    case 8:
      return launch_embedding<uint64_t>(p, index, launch);
    default:
      return launch_embedding<uint4>(p, index, launch);
  }
}

// ---- One-hot vectors --------------------------------------------------------------------------

template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

// y and ids are contiguous: packs of neighbours, which may lie in several rows.
template <class T>
__global__ void __launch_bounds__(kHotThreads, 4)
    one_hot_packs_kernel(Ids ids, T* y, int64_t items, FastDiv classes, T one) {
  constexpr int n = kPack<T>;
  const int64_t first = int64_t{blockIdx.x} * kHotThreads * kHotUnroll + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kHotUnroll; ++i) {
    const int64_t begin = (first + i * kHotThreads) * n;
    if (begin >= items) break;
    int64_t row = classes(begin), c = begin - row * classes.divisor(), id = ids[row];
    Vec<T, n> v;
#pragma unroll
    for (int k = 0; k < n; ++k) {
      v.v[k] = c == id ? one : T(0);
      if (++c == classes.divisor() && begin + k + 1 < items) {
        c = 0;
        id = ids[++row];
      }
    }
    if (begin + n <= items) {
      store_vec(y + begin, v);
    } else {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (begin + k < items) y[begin + k] = v.v[k];
      }
    }
  }
}

template <class T>
__global__ void one_hot_kernel(Ids ids, T* y, DLK_GRID_CONSTANT const Rows<kMaxDims> rows, T one) {
  const int64_t unit = int64_t{blockIdx.x} * kHotThreads + threadIdx.x;
  if (unit >= rows.units) return;
  const int64_t row = rows.length(unit), c = unit - row * rows.length.divisor();
  int64_t at[2];
  rows.index.offsets(row, at);
  y[at[0] + c * rows.step] = c == ids[at[1]] ? one : T(0);
}

template <class T>
void launch_one_hot(const OneHot& p, const Launch& launch) {
  const auto one = static_cast<T>(bits_of_one(p.y.dtype));
  const int64_t items = p.y.numel();
  if (p.y.is_contiguous() && p.ids.is_contiguous() && is_aligned(p.y.data, 16)) {
    launch_kernel(one_hot_packs_kernel<T>,
                  static_cast<unsigned>(ceil_div(items, kHotThreads * kHotUnroll * kPack<T>)),
                  kHotThreads, 0, launch.stream, Ids(p.ids), p.y.as<T>(), items,
                  FastDiv(p.classes()), one);
  } else {
    const auto rows =
        rows_of<kMaxDims>(row_index(p.y, p.ids), p.classes(), p.y.strides[p.y.ndim - 1]);
    launch_kernel(one_hot_kernel<T>, static_cast<unsigned>(ceil_div(items, kHotThreads)),
                  kHotThreads, 0, launch.stream, Ids(p.ids), p.y.as<T>(), rows, one);
  }
}

constexpr Impl<EmbeddingForward> kForward[] = {{"units", supports_all, nullptr, run_embedding}};
constexpr Impl<OneHot> kOneHot[] = {
    {"packs", supports_all, nullptr,
     [](const OneHot& p, const Launch& launch) {
       dispatch_item_size(p.y.dtype, [&]<class T>() { launch_one_hot<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<EmbeddingForward> gpu_impls<EmbeddingForward>() {
  return kForward;
}
template <>
ImplList<OneHot> gpu_impls<OneHot>() {
  return kOneHot;
}

}  // namespace dlkern
