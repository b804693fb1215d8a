// Softmax over one axis.
//
//   forward   y_i  = exp(x_i - m) / sum_j exp(x_j - m),  m = max_j x_j
//             log: y_i = x_i - m - log sum_j exp(x_j - m)
//   backward  dx_i = y_i (dy_i - sum_j dy_j y_j)
//             log: dx_i = dy_i - exp(y_i) sum_j dy_j
//
// Layout: the axis has n elements at some stride; all other dimensions together are the rows. One
// group of threads walks one row: see prims/rows.cuh.
// Maximum and sum come from one pass (online softmax): a row is read twice and written once.
// Bound by memory. Sums in float32 (float64 for float64), in an order fixed by n and by
// whether the axis is the last: a row's bits do not depend on the other rows.
//
// Reference: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "ops/softmax.h"

#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/rows.cuh"
#include "cuda/prims/softmax.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <int N>
struct Args {
  StridedIndex<N> rows;
  int64_t n;          // elements along the axis
  int64_t stride[N];  // along the axis
};

template <class T, Group kGroup, bool kLog>
__global__ void __launch_bounds__(kMaxRowThreads)
    softmax_forward_kernel(const T* x, T* y, Args<2> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  for (int64_t row = team.row; row < args.rows.numel; row += team.row_step) {
    int64_t at[2];
    args.rows.offsets(row, at);
    const T* xr = x + at[0];
    T* yr = y + at[1];
    const auto [max, sum] = softmax_sums<T>(team, xr, args.n, args.stride[0]);
    const Acc scale = kLog ? log(sum) : 1 / sum;
    for (int64_t i = team.rank; i < args.n; i += team.size) {
      const Acc v = static_cast<Acc>(xr[i * args.stride[0]]) - max;
      yr[i * args.stride[1]] = static_cast<T>(kLog ? v - scale : exp_of(v) * scale);
    }
  }
}

template <class T, Group kGroup, bool kLog>
__global__ void __launch_bounds__(kMaxRowThreads)
    softmax_backward_kernel(const T* dy, const T* y, T* dx, Args<3> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  for (int64_t row = team.row; row < args.rows.numel; row += team.row_step) {
    int64_t at[3];
    args.rows.offsets(row, at);
    Acc sum = 0;
    for (int64_t i = team.rank; i < args.n; i += team.size) {
      const Acc g = static_cast<Acc>(dy[at[0] + i * args.stride[0]]);
      sum += kLog ? g : g * static_cast<Acc>(y[at[1] + i * args.stride[1]]);
    }
    sum = team.reduce(sum, Sum{}, Acc(0));
    for (int64_t i = team.rank; i < args.n; i += team.size) {
      const Acc g = static_cast<Acc>(dy[at[0] + i * args.stride[0]]);
      const Acc v = static_cast<Acc>(y[at[1] + i * args.stride[1]]);
      dx[at[2] + i * args.stride[2]] = static_cast<T>(kLog ? g - exp_of(v) * sum : v * (g - sum));
    }
  }
}

template <class T>
void launch_forward(const SoftmaxForward& p, const Launch& launch) {
  const Args<2> args{make_index<2>({&p.x, &p.y}, ~(1u << p.axis)),
                     p.x.shape[p.axis],
                     {p.x.strides[p.axis], p.y.strides[p.axis]}};
  const RowConfig config = pick_rows(args.n, p.axis == p.x.ndim - 1);
  const int grid = grid_for(config.blocks(args.rows.numel), 1, 16);
  dispatch_group(config.group, [&]<Group kGroup>() {
    launch_kernel(
        p.log ? softmax_forward_kernel<T, kGroup, true> : softmax_forward_kernel<T, kGroup, false>,
        grid, config.threads, 0, launch.stream, p.x.as<T>(), p.y.as<T>(), args);
  });
}

template <class T>
void launch_backward(const SoftmaxBackward& p, const Launch& launch) {
  const Args<3> args{make_index<3>({&p.dy, &p.y, &p.dx}, ~(1u << p.axis)),
                     p.dy.shape[p.axis],
                     {p.dy.strides[p.axis], p.y.strides[p.axis], p.dx.strides[p.axis]}};
  const RowConfig config = pick_rows(args.n, p.axis == p.dy.ndim - 1);
  const int grid = grid_for(config.blocks(args.rows.numel), 1, 16);
  dispatch_group(config.group, [&]<Group kGroup>() {
    launch_kernel(p.log ? softmax_backward_kernel<T, kGroup, true>
                        : softmax_backward_kernel<T, kGroup, false>,
                  grid, config.threads, 0, launch.stream, p.dy.as<T>(), p.y.as<T>(), p.dx.as<T>(),
                  args);
  });
}

constexpr Impl<SoftmaxForward> kForward[] = {
    {"online_rows", supports_all, nullptr,
     [](const SoftmaxForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
     }},
};
constexpr Impl<SoftmaxBackward> kBackward[] = {
    {"rows", supports_all, nullptr,
     [](const SoftmaxBackward& p, const Launch& launch) {
       dispatch_floating(p.dy.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<SoftmaxForward> gpu_impls<SoftmaxForward>() {
  return kForward;
}
template <>
ImplList<SoftmaxBackward> gpu_impls<SoftmaxBackward>() {
  return kBackward;
}

}  // namespace dlkern
