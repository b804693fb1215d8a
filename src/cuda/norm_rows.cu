// Layer norm and RMS norm.
//
//   forward    y = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(var + eps)
//              RMS: no mean and bias, var = mean square
//   backward   g = dy * weight, xhat = (x - mean) * rstd, averages over the row:
//              dx = rstd * (g - avg(g) - xhat * avg(g * xhat))        RMS: without avg(g)
//              dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
//
// Layout: a row is the last dimensions of x, walked by one warp or one block (prims/rows.cuh); the
// passes over it after the first find it in cache. Variance in two passes, around the row's first
// value and then around the mean: no cancellation. Gradients of the weights: a two-stage column
// reduction of its own (prims/columns.cuh), before dx is written, since dx may be dy or x.
// Bound by memory. Sums in float32 (float64 for float64); a row's bits depend on that row alone.
#include "core/mixed.h"
#include "cuda/prims/columns.cuh"
#include "cuda/prims/rows.cuh"
#include "ops/norm.h"

namespace dlkern {
namespace {

using namespace gpu;

// N tensors of x's shape by row and by place in the row.
template <int N>
struct Elements {
  StridedIndex<N> rows, row;

  Elements(const Tensor* const (&tensors)[N], int axis)
      : rows(make_index<N>(tensors, dims_below(axis))),
        row(make_index<N>(tensors, dims_from(axis))) {}
  // A row that does not lie at one stride takes more arithmetic, and that is all.
  __device__ void offsets(const int64_t (&first)[N], int64_t i, int64_t (&at)[N]) const {
    row.offsets(i, at);
    for (int n = 0; n < N; ++n) at[n] += first[n];
  }
};

template <class T>
struct ForwardArgs {
  Elements<2> elements;
  const T* x;
  T* y;
  MixedView<T> weight, bias, mean, rstd;
  double eps;
  bool rms;
};

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads) row_norm_forward_kernel(ForwardArgs<T> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  const int64_t n = args.elements.row.numel;
  for (int64_t row = team.row; row < args.elements.rows.numel; row += team.row_step) {
    int64_t first[2], at[2];
    args.elements.rows.offsets(row, first);
    // x minus its first value, where that is finite: the mean of the rest keeps all its digits.
    Acc shift = 0, mean = 0;
    if (!args.rms) {
      const Acc v = n > 0 ? static_cast<Acc>(args.x[first[0]]) : Acc(0);
      shift = v - v == 0 ? v : Acc(0);
      for (int64_t i = team.rank; i < n; i += team.size) {
        args.elements.offsets(first, i, at);
        mean += static_cast<Acc>(args.x[at[0]]) - shift;
      }
      mean = team.reduce(mean, Sum{}, Acc(0)) / Acc(n);
    }
    Acc squares = 0;
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc d = (static_cast<Acc>(args.x[at[0]]) - shift) - mean;
      squares += d * d;
    }
    squares = team.reduce(squares, Sum{}, Acc(0));
    const Acc rstd = 1 / sqrt(squares / Acc(n) + static_cast<Acc>(args.eps));
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc xhat = ((static_cast<Acc>(args.x[at[0]]) - shift) - mean) * rstd;
      args.y[at[1]] = static_cast<T>(xhat * args.weight.load_or(i, 1) + args.bias.load_or(i, 0));
    }
    if (team.rank == 0) {
      if (args.mean) args.mean.store(row, shift + mean);
      if (args.rstd) args.rstd.store(row, rstd);
    }
  }
}

template <class T>
struct BackwardArgs {
  Elements<3> elements;
  const T *dy, *x;
  T* dx;
  MixedView<T> weight, mean, rstd, dweight, dbias;
  bool rms;
};

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads) row_norm_backward_kernel(BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  const int64_t n = args.elements.row.numel;
  for (int64_t row = team.row; row < args.elements.rows.numel; row += team.row_step) {
    int64_t first[3], at[3];
    args.elements.rows.offsets(row, first);
    const Acc mean = args.mean.load_or(row, 0), rstd = args.rstd.load(row);
    Acc shift = 0, along = 0;
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc g = static_cast<Acc>(args.dy[at[0]]) * args.weight.load_or(i, 1);
      along += g * ((static_cast<Acc>(args.x[at[1]]) - mean) * rstd);
      shift += g;
    }
    along = team.reduce(along, Sum{}, Acc(0)) / Acc(n);
    shift = args.rms ? Acc(0) : team.reduce(shift, Sum{}, Acc(0)) / Acc(n);
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc g = static_cast<Acc>(args.dy[at[0]]) * args.weight.load_or(i, 1);
      const Acc xhat = (static_cast<Acc>(args.x[at[1]]) - mean) * rstd;
      args.dx[at[2]] = static_cast<T>(rstd * (g - shift - xhat * along));
    }
  }
}

// The column reduction: element i of the row is the column, the row is the position.
template <class T>
struct WeightSums {
  using Acc = Accumulator<T>;
  BackwardArgs<T> args;

  __device__ Sums<Acc, 2> load(int64_t i, int64_t row) const {
    int64_t first[3], at[3];
    args.elements.rows.offsets(row, first);
    args.elements.offsets(first, i, at);
    const Acc dy = static_cast<Acc>(args.dy[at[0]]), x = static_cast<Acc>(args.x[at[1]]);
    return {{dy * ((x - args.mean.load_or(row, 0)) * args.rstd.load(row)), dy}};
  }
  __device__ void finish(int64_t i, const Sums<Acc, 2>& sums) const {
    if (args.dweight) args.dweight.store(i, sums.v[0]);
    if (args.dbias) args.dbias.store(i, sums.v[1]);
  }
};

// A warp or a block for a row, never a single thread.
RowConfig pick(int64_t n) { return pick_rows(n, true); }

template <class F>
void dispatch_row_group(Group group, F&& f) {
  if (group == Group::kWarp) {
    f.template operator()<Group::kWarp>();
  } else {
    f.template operator()<Group::kBlock>();
  }
}

template <class T>
void launch_forward(const RowNormForward& p, const Launch& launch) {
  const ForwardArgs<T> args{Elements<2>({&p.x, &p.y}, p.axis),
                            p.x.as<const T>(),
                            p.y.as<T>(),
                            MixedView<T>(p.weight),
                            MixedView<T>(p.bias),
                            MixedView<T>(p.mean),
                            MixedView<T>(p.rstd),
                            p.eps,
                            p.rms};
  const RowConfig config = pick(args.elements.row.numel);
  const int grid = grid_for(config.blocks(args.elements.rows.numel), 1, 16);
  dispatch_row_group(config.group, [&]<Group kGroup>() {
    launch_kernel(row_norm_forward_kernel<T, kGroup>, grid, config.threads, 0, launch.stream, args);
  });
}

ColumnTiles tiles_of(const RowNormBackward& p) {
  return ColumnTiles(make_index<1>({&p.x}, dims_below(p.axis)).numel,
                     make_index<1>({&p.x}, dims_from(p.axis)).numel, true);
}

template <class T>
void launch_backward(const RowNormBackward& p, const Launch& launch) {
  const BackwardArgs<T> args{Elements<3>({&p.dy, &p.x, &p.dx}, p.axis),
                             p.dy.as<const T>(),
                             p.x.as<const T>(),
                             p.dx.as<T>(),
                             MixedView<T>(p.weight),
                             MixedView<T>(p.mean),
                             MixedView<T>(p.rstd),
                             MixedView<T>(p.dweight),
                             MixedView<T>(p.dbias),
                             p.rms};
  if (args.dweight || args.dbias) {
    reduce_columns(WeightSums<T>{args}, tiles_of(p),
                   static_cast<Sums<Accumulator<T>, 2>*>(launch.workspace), launch.stream);
  }
  const RowConfig config = pick(args.elements.row.numel);
  const int grid = grid_for(config.blocks(args.elements.rows.numel), 1, 16);
  dispatch_row_group(config.group, [&]<Group kGroup>() {
    launch_kernel(row_norm_backward_kernel<T, kGroup>, grid, config.threads, 0, launch.stream,
                  args);
  });
}

size_t backward_workspace(const RowNormBackward& p) {
  if (!p.dweight && !p.dbias) return 0;
  return 2 * tiles_of(p).partials() * dtype_size(accumulator_of(p.x.dtype));
}

constexpr Impl<RowNormForward> kForward[] = {
    {"two_pass_rows", supports_all, nullptr,
     [](const RowNormForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
     }},
};
constexpr Impl<RowNormBackward> kBackward[] = {
    {"rows_and_columns", supports_all, backward_workspace,
     [](const RowNormBackward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<RowNormForward> gpu_impls<RowNormForward>() {
  return kForward;
}
template <>
ImplList<RowNormBackward> gpu_impls<RowNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
