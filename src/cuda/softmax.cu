// Softmax over one axis.
//
//   forward   y_i  = exp(x_i - m) / sum_j exp(x_j - m),  m = max_j x_j
//             log: y_i = x_i - m - log sum_j exp(x_j - m)
//   backward  dx_i = y_i (dy_i - sum_j dy_j y_j)
//             log: dx_i = dy_i - exp(y_i) sum_j dy_j
//
// Layout: the axis has n elements at some stride; all other dimensions together are the rows.
// Neighbouring elements, forward up to 64 KB of them (512 KB on Hopper), backward half as many, stay
// in the registers of a team of threads: a row is read once and written once
// (prims/row_pieces.cuh). Other rows: one group of threads walks one row (prims/rows.cuh).
// Maximum and sum come from one pass (online softmax): a row is read twice and written once. Bound
// by memory. Sums in float32 (float64 for float64), in an order fixed by n and by whether the axis
// is the last: a row's bits do not depend on the other rows.
//
// Reference: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "ops/softmax.h"

#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/row_pieces.cuh"
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

// ---- Rows in registers -------------------------------------------------------------------------

template <class T, int kItems, bool kBlocks, bool kLog>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<T>)
    softmax_forward_registers_kernel(const T* x, T* y, const Args<2> args, int team_size,
                                     int align_x, int align_y) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < args.rows.numel;
  int64_t at[2];
  args.rows.offsets(there ? team.row : 0, at);
  RowPieces<T, kItems> row;
  row.load(x + at[0], there ? args.n : 0, team, align_x, static_cast<T>(-INFINITY));
  const auto sums = softmax_sums(team, row);
  const Acc max = sums.max, scale = kLog ? log(sums.sum) : 1 / sums.sum;
  row.assign([&](T value, int) {
    const Acc v = static_cast<Acc>(value) - max;
    return kLog ? v - scale : softmax_exp<T>(v) * scale;
  });
  row.store(y + at[1], there ? args.n : 0, team, align_y);
  team.end();
}

template <class T, int kItems, bool kBlocks, bool kLog>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<T>)
    softmax_backward_registers_kernel(const T* dy, const T* y, T* dx, const Args<3> args,
                                      int team_size, int align_dy, int align_y, int align_dx) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < args.rows.numel;
  int64_t at[3];
  args.rows.offsets(there ? team.row : 0, at);
  RowPieces<T, kItems> of_dy, of_y;
  of_dy.load(dy + at[0], there ? args.n : 0, team, align_dy, T(0.0f));
  of_y.load(y + at[1], there ? args.n : 0, team, align_y, T(0.0f));
  Acc sum = 0;
#pragma unroll
  for (int i = 0; i < kItems * kPiece<T>; ++i) {
    const Acc g = static_cast<Acc>(of_dy.get(i));
    sum += kLog ? g : g * static_cast<Acc>(of_y.get(i));
  }
  sum = team.reduce(sum, Sum{}, Acc(0));
  of_dy.forget(), of_y.forget();
  of_dy.assign([&](T value, int k) {
    const Acc g = static_cast<Acc>(value), v = static_cast<Acc>(of_y.get(k));
    return kLog ? g - exp_of(v) * sum : v * (g - sum);
  });
  of_dy.store(dx + at[2], there ? args.n : 0, team, align_dx);
  team.end();
}

template <class T>
void launch_forward_registers(const SoftmaxForward& p, const Launch& launch) {
  const Args<2> args{make_index<2>({&p.x, &p.y}, ~(1u << p.axis)), p.x.shape[p.axis], {1, 1}};
  const RowPlan plan = plan_row(args.n, kPiece<T>);
  const auto align = [&](const Tensor& t, int which) {
    return row_alignment(t.data, args.rows, which, sizeof(T));
  };
  const auto kernel = pick_row_kernel(plan, [&]<int kItems, bool kBlocks>() {
    return p.log ? softmax_forward_registers_kernel<T, kItems, kBlocks, true>
                 : softmax_forward_registers_kernel<T, kItems, kBlocks, false>;
  });
  launch_rows(kernel, plan, args.rows.numel, launch.stream, p.x.as<T>(), p.y.as<T>(), args,
              plan.size, align(p.x, 0), align(p.y, 1));
}

template <class T>
void launch_backward_registers(const SoftmaxBackward& p, const Launch& launch) {
  const Args<3> args{
      make_index<3>({&p.dy, &p.y, &p.dx}, ~(1u << p.axis)), p.dy.shape[p.axis], {1, 1, 1}};
  const RowPlan plan = plan_row(args.n, kPiece<T>, 4);
  const auto align = [&](const Tensor& t, int which) {
    return row_alignment(t.data, args.rows, which, sizeof(T));
  };
  const auto kernel = pick_row_kernel<4>(plan, [&]<int kItems, bool kBlocks>() {
    return p.log ? softmax_backward_registers_kernel<T, kItems, kBlocks, true>
                 : softmax_backward_registers_kernel<T, kItems, kBlocks, false>;
  });
  launch_rows(kernel, plan, args.rows.numel, launch.stream, p.dy.as<T>(), p.y.as<T>(), p.dx.as<T>(),
              args, plan.size, align(p.dy, 0), align(p.y, 1), align(p.dx, 2));
}

// ---- Rows walked -------------------------------------------------------------------------------

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
    {"registers", [](const SoftmaxForward& p) { return not_in_registers({&p.x, &p.y}, p.axis); },
     nullptr,
     [](const SoftmaxForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward_registers<T>(p, launch); });
     }},
    {"online_rows", supports_all, nullptr,
     [](const SoftmaxForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
     }},
};
constexpr Impl<SoftmaxBackward> kBackward[] = {
    {"registers",
     [](const SoftmaxBackward& p) { return not_in_registers({&p.dy, &p.y, &p.dx}, p.axis, 4); },
     nullptr,
     [](const SoftmaxBackward& p, const Launch& launch) {
       dispatch_floating(p.dy.dtype, [&]<class T>() { launch_backward_registers<T>(p, launch); });
     }},
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
