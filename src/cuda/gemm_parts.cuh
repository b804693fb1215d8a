// What the kernels of matrix products share: the end of a sum, and long sums in parts.
#pragma once

#include <algorithm>

#include "cuda/gemm.h"
#include "cuda/prims/epilogue.cuh"
#include "cuda/prims/sum_parts.cuh"

namespace dlkern::gpu {

// Scales along the depth are applied while the sums are made, all others at their end.
DLK_HD bool scales_along_depth(const Gemm& g) {
  return g.scale_a.along_depth() || g.scale_b.along_depth();
}

// Finishes and stores elements of y. Sum: float, double or int32_t.
template <class Sum>
struct GemmEpilogue {
  using Acc = std::conditional_t<std::is_integral_v<Sum>, float, Sum>;
  const Gemm& g;
  int64_t item;       // of the batch
  const int64_t* at;  // its tensors

  // The element (m, n); n == g.n is the sum of row m of a.
  __device__ void operator()(int64_t m, int64_t n, Sum sum) const {
    if (n == g.n) return store_row_sum(m * g.row_sum.row, sum);
    const Sum sums[1] = {sum};
    Acc scratch[1];
    run(m, n, 1, sums, scratch);
  }

  // The elements (m, n) to (m, n + count - 1), count <= N. scratch: N elements of this thread's own.
  template <int N>
  __device__ __forceinline__ void run(int64_t m, int64_t n, int count, const Sum (&sums)[N],
                                      Acc* scratch) const {
    if constexpr (std::is_integral_v<Sum>) {
      if (g.y.dtype == DType::kInt32) return store_exactly(m, n, count, sums);
    }
    Acc v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = static_cast<Acc>(sums[i]);
    if (!scales_along_depth(g)) {
      const Acc of_row = g.scale_a.data ? g.scale_a.at(item, m, 0) : 1.0f;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        v[i] *= of_row;
        if (g.scale_b.data && i < count) v[i] *= g.scale_b.at(item, n + i, 0);
      }
    }
    finish_run(g, {at[2], at[3], at[4], at[5], at[6]}, m, n, count, v, scratch);
  }

  __device__ void store_row_sum(int64_t to, Sum sum) const {
    const Acc row = static_cast<Acc>(sum);
    store_as(g.row_sum, to, g.add_row_sum ? row + load_as<Acc>(g.row_sum, to) : row);
  }

 private:
  // int32 sums; no more is asked for then.
  template <int N>
  __device__ __forceinline__ void store_exactly(int64_t m, int64_t n, int count,
                                                const Sum (&sums)[N]) const {
    int32_t* to = g.y.as<int32_t>() + at[3] + m * g.y.row + n * g.y.col;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) to[i * g.y.col] = sums[i];
    }
  }
};

// ---- A long sum for a small y, in parts that fill the device ---------------------------------

// How a sum is cut: all parts have the same length but the last one, which may be shorter.
struct Parts {
  int64_t count = 1, length = 0;

  Parts() = default;
  // About `wanted` parts (or one), their length a multiple of `unit`.
  Parts(int64_t k, int64_t wanted, int64_t unit)
      : length(ceil_div(ceil_div(k, std::max<int64_t>(wanted, 1)), unit) * unit) {
    count = length ? ceil_div(k, length) : 1;
  }
  // As many as give each block of a large device a tile; a function of the shape alone, and so are
  // the bits.
  explicit Parts(const Gemm& g) : Parts(g.k.numel, wanted(g), 32) {}

  // For the sums [parts, m, columns] of a product with them.
  size_t workspace_bytes(const Gemm& g) const;

 private:
  static int64_t wanted(const Gemm& g) {
    constexpr int64_t kTiles = 512, kTile = 64, kShortest = 512;
    const int64_t tiles = ceil_div(g.m, kTile) * ceil_div(g.n, kTile);
    return std::min(kTiles / std::max<int64_t>(tiles, 1), g.k.numel / kShortest);
  }
};

inline const char* cannot_split(const Gemm& g) {
  if (g.batch_invariant) return "a row's bits would depend on the number of rows";
  if (g.batch.numel != 1) return "a batch";
  if (g.k.ndim != 1) return "the sum runs over several dimensions";
  if (g.groups.along != Groups::Along::kNone) return "the sum is grouped";
  if (scales_along_depth(g)) return "the scales change along the sum";
  return Parts(g).count < 2 ? "the sum is short, or y large enough without parts" : nullptr;
}

// Columns of the sums: one more than y has where row sums are wanted.
inline int64_t columns_of(const Gemm& g) { return g.n + (g.row_sum.data ? 1 : 0); }

inline size_t Parts::workspace_bytes(const Gemm& g) const {
  return count * g.m * columns_of(g) * (g.a.dtype == DType::kFloat64 ? 8 : 4);
}
inline size_t split_workspace(const Gemm& g) { return Parts(g).workspace_bytes(g); }

// The parts as a batch of products whose results lie in the workspace. The last one is over less
// than parts.length of k.
template <class Acc>
Gemm products_of_parts(const Gemm& g, const Parts& parts, const Launch& launch) {
  const DType dtype = sizeof(Acc) == 8 ? DType::kFloat64 : DType::kFloat32;
  const int64_t a_k = g.k.stride[0][0], b_k = g.k.stride[1][0];
  Gemm products;
  products.m = g.m;
  products.n = g.n;
  products.a = g.a;
  products.b = g.b;
  products.y = {launch.workspace, dtype, columns_of(g), 1};
  products.tf32 = g.tf32;
  products.k.push(parts.length, {a_k, b_k});
  products.batch.push(parts.count,
                      {parts.length * a_k, parts.length * b_k, 0, g.m * columns_of(g)});
  return products;
}

template <class Acc>
__global__ void __launch_bounds__(kPartsThreads)
    add_parts_kernel(const Acc* sums, Gemm g, int64_t columns, int64_t pitch, int64_t row_sums,
                     int64_t parts, PartsShare share, const int* skip) {
  if (skip && *skip) return;
  const int64_t at[Gemm::kTensors] = {};
  const int64_t i = share.element(), row = quotient(i, columns), col = i - row * columns;
  const bool there = row < g.m;
  const Acc* first = sums + row * pitch + (col < g.n ? col : row_sums);
  const Acc sum = share.sum(there ? first : nullptr, g.m * pitch, parts);
  if (there && share.leads()) GemmEpilogue<Acc>{g, 0, at}(row, col, sum);
}

// Adds the sums [parts, m, pitch] in an order fixed by their number; not where *skip (on the device) is
// not 0. Row sums, if wanted, are in column `row_sums`.
template <class Acc>
void add_parts(const Gemm& g, const void* sums, int64_t pitch, int64_t row_sums, int64_t parts,
               const Launch& launch, const int* skip = nullptr) {
  const int64_t columns = columns_of(g);
  const PartsShare share(parts);
  launch_kernel(add_parts_kernel<Acc>, share.grid(g.m * columns), kPartsThreads, 0, launch.stream,
                static_cast<const Acc*>(sums), g, columns, pitch, row_sums, parts, share, skip);
}

}  // namespace dlkern::gpu
