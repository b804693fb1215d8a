// The gradient of top_k: dx = 0, then dx[.., indices[.., j, ..], ..] = dy[.., j, ..].
//
//   "slabs"    all tensors are contiguous, the selection is along the last axis: a block fills 16 KB
//              of dx with zeros and then stores what of dy belongs there, which the L2 cache still
//              holds
//   "scatter"  any: zeros by the element-wise kernels, then one store for each element of dy
//
// Bound by memory: dx is written once.
#include "core/fast_div.h"
#include "cuda/prims/elementwise.cuh"
#include "cuda/prims/vec.cuh"
#include "ops/topk.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;

// ---- Slabs -------------------------------------------------------------------------------------

constexpr int kPacks = 4;   // of 16 bytes of dx for each thread
constexpr int kAtOnce = 4;  // indices of a thread on their way
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));
template <class T>
constexpr int kSlab = kThreads * kPacks * kPack<T>;  // elements of dx

// Everything by value: a kernel argument.
template <class T>
struct Slabs {
  const T* dy;
  const void* indices;
  bool wide;  // indices are int64
  T* dx;
  int64_t count;  // elements of dx
  FastDiv n, k;   // of a row

  explicit Slabs(const TopKBackward& p)
      : dy(p.dy.as<T>()),
        indices(p.indices.data),
        wide(p.indices.dtype == DType::kInt64),
        dx(p.dx.as<T>()),
        count(p.dx.numel()),
        n(p.dx.shape[p.axis]),
        k(p.dy.shape[p.axis]) {}

  __device__ int64_t index(int64_t t) const {
    return wide ? static_cast<const int64_t*>(indices)[t] : static_cast<const int32_t*>(indices)[t];
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) slabs_kernel(const DLK_GRID_CONSTANT Slabs<T> slabs) {
  const int64_t begin = int64_t{blockIdx.x} * kSlab<T>;
  const int64_t end = begin + kSlab<T> < slabs.count ? begin + kSlab<T> : slabs.count;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = begin + (i * kThreads + threadIdx.x) * kPack<T>;
    if (at + kPack<T> <= end) {
      store_vec(slabs.dx + at, Vec<T, kPack<T>>{});
    } else {
      for (int64_t e = at; e < end; ++e) slabs.dx[e] = T(0.0f);
    }
  }
  __syncthreads();
  // The entries of all rows that have elements here.
  const int64_t n = slabs.n.divisor(), k = slabs.k.divisor(), last = (slabs.n(end - 1) + 1) * k;
  for (int64_t t = slabs.n(begin) * k + threadIdx.x; t < last; t += kAtOnce * kThreads) {
    int64_t index[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      index[u] = t + u * kThreads < last ? slabs.index(t + u * kThreads) : -1;
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int64_t entry = t + u * kThreads, to = slabs.k(entry) * n + index[u];
      if (index[u] >= 0 && index[u] < n && to >= begin && to < end) slabs.dx[to] = slabs.dy[entry];
    }
  }
}

template <class T>
void run_slabs(const TopKBackward& p, const Launch& launch) {
  const Slabs<T> slabs(p);
  if (slabs.count == 0) return;
  launch_kernel(slabs_kernel<T>, static_cast<unsigned>(ceil_div(slabs.count, kSlab<T>)), kThreads,
                0, launch.stream, slabs);
}

// ---- Scatter -----------------------------------------------------------------------------------

struct Zero {
  using Pointwise = void;
  template <class V, int W>
  __device__ void operator()(Pack<V, W>& y) const {
#pragma unroll
    for (int i = 0; i < W; ++i) y[i] = V(0);
  }
};

// What of dy goes where; by value: a kernel argument.
template <class T>
struct Entries {
  const T* dy;
  const void* indices;
  bool wide;  // indices are int64
  T* dx;
  StridedIndex<3> rows;  // dx, dy, indices
  int64_t n, dx_step, dy_step, index_step;
  FastDiv k;

  explicit Entries(const TopKBackward& p)
      : dy(p.dy.as<T>()),
        indices(p.indices.data),
        wide(p.indices.dtype == DType::kInt64),
        dx(p.dx.as<T>()),
        rows(rows_of<3>({&p.dx, &p.dy, &p.indices}, p.axis)),
        n(p.dx.shape[p.axis]),
        dx_step(p.dx.strides[p.axis]),
        dy_step(p.dy.strides[p.axis]),
        index_step(p.indices.strides[p.axis]),
        k(p.dy.shape[p.axis]) {}

  // Stores entry number t of all rows.
  __device__ void put(int64_t t) const {
    const int64_t r = k(t), j = t - r * k.divisor();
    int64_t at[3];
    rows.offsets(r, at);
    const int64_t from = at[2] + j * index_step;
    const int64_t i = wide ? static_cast<const int64_t*>(indices)[from]
                           : static_cast<const int32_t*>(indices)[from];
    if (i >= 0 && i < n) dx[at[0] + i * dx_step] = dy[at[1] + j * dy_step];
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const DLK_GRID_CONSTANT Entries<T> entries, int64_t count) {
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t < count) entries.put(t);
}

template <class T>
void run_scatter(const TopKBackward& p, const Launch& launch) {
  map_elements(in_memory_order(make_index<1>({&p.dx})), Zero{}, launch.stream,
               Out<T>{p.dx.as<T>()});
  const int64_t count = p.dy.numel();
  if (count == 0) return;
  launch_kernel(scatter_kernel<T>, static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0,
                launch.stream, Entries<T>(p), count);
}

// ---- The choice --------------------------------------------------------------------------------

const char* not_in_slabs(const TopKBackward& p) {
  if (p.axis != p.dx.ndim - 1) return "the axis is not the last one";
  for (const Tensor* t : {&p.dy, &p.indices, &p.dx}) {
    if (!t->is_contiguous()) return "a tensor is not contiguous";
  }
  if (!is_aligned(p.dx.data, 16)) return "dx does not begin at a multiple of 16 bytes";
  return p.dy.numel() == 0 ? "nothing was selected" : nullptr;
}

constexpr Impl<TopKBackward> kBackward[] = {
    {"slabs", not_in_slabs, nullptr,
     [](const TopKBackward& p, const Launch& launch) {
       dispatch_floating(p.dx.dtype, [&]<class T>() { run_slabs<T>(p, launch); });
     }},
    {"scatter", supports_all, nullptr,
     [](const TopKBackward& p, const Launch& launch) {
       dispatch_floating(p.dx.dtype, [&]<class T>() { run_scatter<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<TopKBackward> gpu_impls<TopKBackward>() {
  return kBackward;
}

}  // namespace dlkern
