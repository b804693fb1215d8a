// The gradient of top_k: dx = 0, then dx[.., indices[.., j, ..], ..] = dy[.., j, ..].
//
//   "slabs"    dx is contiguous along its last axis, the one of the selection: a block fills 16 KB of
//              dx with zeros and then stores what of dy belongs there, which the L2 cache still holds
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

  // Stores entry number t of all rows, where it lies in [begin, end) of dx's memory.
  __device__ void put(int64_t t, int64_t begin, int64_t end) const {
    const int64_t r = k(t), j = t - r * k.divisor();
    int64_t at[3];
    rows.offsets(r, at);
    const int64_t from = at[2] + j * index_step;
    const int64_t i = wide ? static_cast<const int64_t*>(indices)[from]
                           : static_cast<const int32_t*>(indices)[from];
    const int64_t to = at[0] + i * dx_step;
    if (i >= 0 && i < n && to >= begin && to < end) dx[to] = dy[at[1] + j * dy_step];
  }
};

// ---- Slabs -------------------------------------------------------------------------------------

template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));
constexpr int kPacks = 4;  // of a thread
template <class T>
constexpr int kSlab = kThreads * kPacks * kPack<T>;  // elements of dx

template <class T>
__global__ void __launch_bounds__(kThreads)
    slabs_kernel(const DLK_GRID_CONSTANT Entries<T> entries, FastDiv n) {
  const int64_t count = entries.rows.numel * entries.n, begin = int64_t{blockIdx.x} * kSlab<T>;
  const int64_t end = begin + kSlab<T> < count ? begin + kSlab<T> : count;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int64_t at = begin + (i * kThreads + threadIdx.x) * kPack<T>;
    if (at + kPack<T> <= end) {
      store_vec(entries.dx + at, Vec<T, kPack<T>>{});
    } else {
      for (int64_t e = at; e < end; ++e) entries.dx[e] = T(0.0f);
    }
  }
  __syncthreads();
  const int64_t k = entries.k.divisor(), last = (n(end - 1) + 1) * k;
  for (int64_t t = n(begin) * k + threadIdx.x; t < last; t += kThreads) entries.put(t, begin, end);
}

template <class T>
void run_slabs(const TopKBackward& p, const Launch& launch) {
  const int64_t count = p.dx.numel();
  if (count == 0) return;
  launch_kernel(slabs_kernel<T>, static_cast<unsigned>(ceil_div(count, kSlab<T>)), kThreads, 0,
                launch.stream, Entries<T>(p), FastDiv(p.dx.shape[p.axis]));
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

template <class T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const DLK_GRID_CONSTANT Entries<T> entries, int64_t count) {
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t < count) entries.put(t, INT64_MIN, INT64_MAX);
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
  if (!p.dx.is_contiguous()) return "dx is not contiguous";
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
