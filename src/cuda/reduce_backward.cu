// Gradients of the reductions: one element-wise pass, after a reduction of x where the gradient needs
// something of each result that the forward pass did not leave (ties, the other factors, the mean).
// Bound by memory.
#include "core/reduce_math.h"
#include "cuda/prims/axis_reduce.cuh"
#include "cuda/prims/elementwise.cuh"
#include "cuda/reduce.h"

namespace dlkern {
namespace {

using namespace gpu;

// dx = dy / n
template <class Acc>
struct Spread {
  Acc n;
  template <int W>
  __device__ void operator()(Pack<Acc, W>& dx, const Pack<Acc, W>& dy) const {
#pragma unroll
    for (int k = 0; k < W; ++k) dx[k] = dy[k] / n;
  }
};

// a and b: the statistics of cuda/reduce.h.
template <class Acc>
struct Gradient {
  dlk_reduce_kind kind;
  Acc ord;     // of a norm
  Acc factor;  // of the deviation

  __device__ __forceinline__ Acc of(Acc dy, Acc x, Acc y, Acc a, Acc b) const {
    switch (kind) {
      case DLK_REDUCE_PROD:
        return product_gradient(dy, x, a, b);
      case DLK_REDUCE_VECTOR_NORM:
        return isinf(ord) ? sign_of(x) * share_gradient(dy, std::abs(x), y, a)
                          : norm_gradient(dy, x, y, ord);
      case DLK_REDUCE_VAR:
        return variance_gradient(dy, x, a, b, factor);
      case DLK_REDUCE_STD:
        return deviation_gradient(dy, x, y, a, b, factor);
      case DLK_REDUCE_LOGSUMEXP:
        return logsumexp_gradient(dy, x, y);
      default:
        return share_gradient(dy, x, y, a);
    }
  }
  template <int W>
  __device__ void operator()(Pack<Acc, W>& dx, const Pack<Acc, W>& dy, const Pack<Acc, W>& x,
                             const Pack<Acc, W>& y, const Pack<Acc, W>& a,
                             const Pack<Acc, W>& b) const {
#pragma unroll
    for (int k = 0; k < W; ++k) dx[k] = of(dy[k], x[k], y[k], a[k], b[k]);
  }
};

// The reduction in front: its statistics lie in the workspace, and its partial results behind them.
struct Before {
  bool needed = false;
  axis::Plan plan;
  Statistics statistics;
  size_t partials_at, workspace_bytes;

  Before(const ReduceBackward& p, void* workspace)
      : plan(plan_axes(p.x ? p.x : p.dx, p.dy, Tensor{}, p.axes, false, false)) {
    const bool norm = p.kind == DLK_REDUCE_VECTOR_NORM;
    needed = p.x && p.kind != DLK_REDUCE_LOGSUMEXP && (!norm || std::isinf(p.ord));
    if (!needed) {
      partials_at = workspace_bytes = 0;
      return;
    }
    const DType dtype = p.dy.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    const size_t bytes = ceil_div(p.dy.numel() * dtype_size(dtype), 256) * 256;
    char* at = static_cast<char*>(workspace);
    statistics = {contiguous_like(p.dy, dtype, at), contiguous_like(p.dy, dtype, at + bytes)};
    plan = plan_axes(p.x, statistics.a, is_variance(p.kind) ? Tensor{} : p.y, p.axes, false,
                     is_variance(p.kind) && is_vector_dtype(p.x.dtype));
    const size_t state = state_bytes(is_variance(p.kind)         ? DLK_REDUCE_VAR
                                     : p.kind == DLK_REDUCE_PROD ? DLK_REDUCE_PROD
                                                                 : DLK_REDUCE_SUM,
                                     p.x.dtype);
    partials_at = 2 * bytes;
    workspace_bytes = partials_at + axis_workspace_bytes(plan, state);
  }

  void run(const ReduceBackward& p, const Launch& launch) const {
    void* partials = static_cast<char*>(launch.workspace) + partials_at;
    const auto with = [&](auto* reduce) { reduce(p, statistics, plan, launch.stream, partials); };
    if (is_variance(p.kind)) return with(find_means);
    p.kind == DLK_REDUCE_PROD ? with(split_products) : with(count_ties);
  }
};

// The same for rows of dx that lie one after the other, of `length` neighbours that share an element of
// dy, `step` apart: a thread has 16 bytes, which belong to two rows at most.
constexpr int kSpreadThreads = 128;

template <class T>
__global__ void __launch_bounds__(kSpreadThreads)
    spread_rows_kernel(T* dx, const T* dy, FastDiv length, int64_t step, int64_t numel,
                       Accumulator<T> n) {
  using Acc = Accumulator<T>;
  constexpr int W = 16 / sizeof(T);
  const int64_t first = (int64_t{blockIdx.x} * kSpreadThreads + threadIdx.x) * W;
  if (first >= numel) return;
  const int64_t row = length(first), next = (row + 1) * length.divisor();
  const Acc here = static_cast<Acc>(dy[row * step]) / n;
  const Acc then = next < numel ? static_cast<Acc>(dy[(row + 1) * step]) / n : here;
  Pack<Acc, W> v;
#pragma unroll
  for (int k = 0; k < W; ++k) v[k] = first + k < next ? here : then;
  Out<T>{dx}.store(first, static_cast<int>(min(numel - first, int64_t{W})), v);
}

// Whether rows are as spread_rows_kernel takes them. (Those of whole packs are no different for
// map_elements from others.)
bool has_spread_rows(const StridedIndex<2>& index, const void* dx, int pack) {
  return index.ndim == 2 && index.stride[0][1] == 1 && index.stride[0][0] == index.shape[1] &&
         index.stride[1][1] == 0 && index.shape[1] > pack && index.shape[1] % pack != 0 &&
         is_aligned(dx, 16);
}

template <class T>
void spread(const ReduceBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  constexpr int kPack = 16 / sizeof(T);
  const int64_t count = make_index<1>({&p.dx}, p.axes).numel;
  const Acc n = p.kind == DLK_REDUCE_MEAN ? static_cast<Acc>(count) : Acc(1);
  const StridedIndex<2> index = in_memory_order(make_index<2>({&p.dx, &p.dy}));
  if (has_spread_rows(index, p.dx.data, kPack)) {
    const int64_t blocks = ceil_div(index.numel, kSpreadThreads * kPack);
    return launch_kernel(spread_rows_kernel<T>, static_cast<unsigned>(blocks), kSpreadThreads, 0,
                         launch.stream, p.dx.as<T>(), p.dy.as<T>(), FastDiv(index.shape[1]),
                         index.stride[1][0], index.numel, n);
  }
  map_elements(index, Spread<Acc>{n}, launch.stream, Out<T>{p.dx.as<T>()}, In<T>{p.dy.as<T>()});
}

template <class T>
void from_elements(const ReduceBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Before before(p, launch.workspace);
  if (before.needed) before.run(p, launch);
  const Tensor &a = before.statistics.a, &b = before.statistics.b;
  const Gradient<Acc> gradient{p.kind, static_cast<Acc>(p.ord),
                               static_cast<Acc>(deviation_factor(p))};
  map_elements(in_memory_order(make_index<6>({&p.dx, &p.dy, &p.x, &p.y, &a, &b})), gradient,
               launch.stream, Out<T>{p.dx.as<T>()}, In<T>{p.dy.as<T>()}, In<T>{p.x.as<T>()},
               In<T>{p.y.as<T>()}, In<Acc>{a.as<Acc>()}, In<Acc>{b.as<Acc>()});
}

constexpr Impl<ReduceBackward> kBackward[] = {
    {"elementwise", supports_all,
     [](const ReduceBackward& p) { return p.x ? Before(p, nullptr).workspace_bytes : size_t{0}; },
     [](const ReduceBackward& p, const Launch& launch) {
       dispatch_floating(p.dy.dtype, [&]<class T>() {
         p.x ? from_elements<T>(p, launch) : spread<T>(p, launch);
       });
     }},
};

}  // namespace

template <>
ImplList<ReduceBackward> gpu_impls<ReduceBackward>() {
  return kBackward;
}

}  // namespace dlkern
