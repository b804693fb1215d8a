// Layer norm and RMS norm.
//
//   forward    y = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(var + eps)
//              RMS: no mean and bias, var = mean square
//   backward   g = dy * weight, xhat = (x - mean) * rstd, averages over the row:
//              dx = rstd * (g - avg(g) - xhat * avg(g * xhat))        RMS: without avg(g)
//              dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
//
// Rows of neighbouring elements stay in the registers of a team of threads, so that each tensor is
// read once and written once (prims/row_pieces.cuh): 2 passes over x (forward) or 3 over dy, x and
// dx (backward) are the floor, at 16384 x 4096 of 16 bits 268 and 403 MB. The parameters come from
// cache. Backward: threads keep their columns from row to row and add up dweight and dbias in
// registers; each of at most 264 blocks leaves one row of such sums in the workspace (8.7 MB at
// most), which a second kernel adds in order. The blocks' number follows from the shape alone.
// Other rows are walked by one warp or one block (prims/rows.cuh); the passes after the first find
// the row in cache. Gradients of the weights: a two-stage column reduction of its own
// (prims/columns.cuh), before dx is written, since dx may be dy or x.
// Variance in two passes, around the row's first value and then around the mean: no cancellation.
// Bound by memory. Sums in float32 (float64 for float64); a row's bits depend on that row alone.
#include "core/mixed.h"
#include "cuda/prims/columns.cuh"
#include "cuda/prims/row_pieces.cuh"
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

// ---- Rows in registers -------------------------------------------------------------------------

// share: 1 / n.
template <class T, int kItems, bool kBlocks>
__global__ void __launch_bounds__(kRowThreads, (kRowBlocks<T, kItems>))
    row_norm_forward_registers_kernel(const ForwardArgs<T> args, RowParameter<T> weight,
                                      RowParameter<T> bias, Accumulator<T> share, int team_size,
                                      int align_x, int align_y) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < args.elements.rows.numel;
  const int n = static_cast<int>(args.elements.row.numel), elements = there ? n : 0;
  int64_t at[2];
  args.elements.rows.offsets(there ? team.row : 0, at);
  const T* x = args.x + at[0];
  const Acc begin = !args.rms && elements > 0 ? static_cast<Acc>(*x) : Acc(0);
  RowPieces<T, kItems> row;
  row.load(x, elements, team, align_x, T(0.0f));
  // x minus its first value, where that is finite: the mean of the rest keeps all its digits.
  const Acc shift = begin - begin == 0 ? begin : Acc(0);
  Acc mean = 0;
  if (!args.rms) {
    const Acc sum = row.sum(team, elements, [&](T v, int) { return static_cast<Acc>(v) - shift; });
    mean = team.reduce(sum, Sum{}, Acc(0)) * share;
    row.forget();
  }
  const auto deviation = [&](T v) { return (static_cast<Acc>(v) - shift) - mean; };
  Acc squares = row.sum(team, elements, [&](T v, int) { return deviation(v) * deviation(v); });
  squares = team.reduce(squares, Sum{}, Acc(0));
  row.forget();
  const Acc rstd = 1 / sqrt(squares * share + static_cast<Acc>(args.eps));
  if (there && team.rank == 0) {
    if (args.mean) args.mean.store(team.row, shift + mean);
    if (args.rstd) args.rstd.store(team.row, rstd);
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    Acc w[kPiece<T>], b[kPiece<T>];
    weight.load(row.place(team, i * kPiece<T>), n, 1, w);
    bias.load(row.place(team, i * kPiece<T>), n, 0, b);
    row.assign(
        i, [&](T v, int k) { return deviation(v) * rstd * w[k % kPiece<T>] + b[k % kPiece<T>]; });
  }
  row.store(args.y + at[1], elements, team, align_y);
  team.end();
}

// Pieces of dy and of x that a thread has: the sums of these columns fit its registers, too.
inline constexpr int kBackwardItems = 2;

struct Aligns {
  int dy, x, dx;
};

// share: 1 / n. partial: a row of sums for each block (cluster), or nullptr.
template <class T, bool kBlocks, bool kRms>
__global__ void __launch_bounds__(kRowThreads)
    row_norm_backward_registers_kernel(const BackwardArgs<T> args, RowParameter<T> weight,
                                       Accumulator<T> share, int team_size, Aligns align,
                                       Sums<Accumulator<T>, 2>* partial) {
  using Acc = Accumulator<T>;
  using Pieces = RowPieces<T, kBackwardItems>;
  RowTeam<kBlocks> team(team_size);
  const int n = static_cast<int>(args.elements.row.numel);
  const int64_t rows = args.elements.rows.numel;
  Acc of_weight[Pieces::kElements] = {}, of_bias[Pieces::kElements] = {};
  Pieces dy, x;  // of the row that comes next, as are these:
  int elements;
  int64_t at[3];
  Acc mean, rstd;
  const auto locate = [&](int64_t row) {
    const bool there = row < rows;
    elements = there ? n : 0;
    args.elements.rows.offsets(there ? row : 0, at);
    mean = kRms || !there ? Acc(0) : static_cast<const Acc*>(args.mean.data)[row];
    rstd = there ? static_cast<const Acc*>(args.rstd.data)[row] : Acc(0);
  };
  const auto load = [&] {
    dy.load(args.dy + at[0], elements, team, align.dy, T(0.0f));
    x.load(args.x + at[1], elements, team, align.x, T(0.0f));
  };
  locate(team.row);
  load();
  // As many turns for all threads of a block.
  const int place = static_cast<int>(team.row - team.first);
  for (int64_t row = team.row; row - place < rows; row += team.row_step) {
    Acc g[Pieces::kElements];
    Pieces here = x;
    const Acc center = mean, scale = rstd;
    T* const dx = args.dx + at[2];
    const int here_elements = elements;
    locate(row + team.row_step);
    const auto xhat = [&](T v) { return (static_cast<Acc>(v) - center) * scale; };
    Pair<Acc> sums{0, 0};  // of g * xhat and g
#pragma unroll
    for (int i = 0; i < kBackwardItems; ++i) {
      Acc w[kPiece<T>];
      weight.load(here.place(team, i * kPiece<T>), n, 1, w);
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        const int k = i * kPiece<T> + e;
        const Acc d = static_cast<Acc>(dy.get(k)), h = xhat(here.get(k));
        of_weight[k] += d * h;
        g[k] = d * w[e];
        sums.a += g[k] * h;
        if constexpr (!kRms) of_bias[k] += d, sums.b += g[k];
      }
    }
    here.forget();
    team.forget();
    load();
    if constexpr (kRms) {
      sums.a = team.reduce(sums.a, Sum{}, Acc(0)) * share;
    } else {
      sums = team.reduce(sums, Sum{}, Pair<Acc>{0, 0});
      sums = {sums.a * share, sums.b * share};
    }
    here.assign([&](T v, int k) { return scale * (g[k] - sums.b - xhat(v) * sums.a); });
    here.store(dx, here_elements, team, align.dx);
  }
  if (partial) {
    Sums<Acc, 2>* part = partial + (kBlocks ? team.first : int64_t{blockIdx.x}) * n;
#pragma unroll
    for (int k = 0; k < Pieces::kElements; ++k) {
      const int column = x.place(team, k);
      const Sums<Acc, 2> sums{{team.sum_teams(of_weight[k]), team.sum_teams(of_bias[k])}};
      if (column < n && (kBlocks || static_cast<int>(threadIdx.x) < team.size)) part[column] = sums;
    }
  }
  team.end();
}

// How the backward's rows are shared out: by the shape alone.
struct BackwardPlan {
  RowPlan team;
  int threads;  // of a block: a team or several, or a part of one
  int64_t partials = 0, blocks = 0;

  BackwardPlan(int64_t rows, int64_t n, int element_bytes)
      : team(plan_row(n, 16 / element_bytes, kBackwardItems)),
        threads(std::max(team.threads(), kRowThreads / 2)) {
    if (!team.size) return;
    // Two blocks of 256 for each multiprocessor of an H200, or one of 512.
    const int64_t most = int64_t{kResident} / threads / team.blocks();
    partials = std::clamp<int64_t>(ceil_div(rows * team.size, threads * team.blocks()), 1, most);
    blocks = partials * team.blocks();
  }
  static constexpr int kResident = 132 * kRowThreads;
};

BackwardPlan backward_plan(const RowNormBackward& p) {
  return BackwardPlan(make_index<1>({&p.x}, dims_below(p.axis)).numel,
                      make_index<1>({&p.x}, dims_from(p.axis)).numel,
                      static_cast<int>(dtype_size(p.x.dtype)));
}

bool is_row(const Tensor& t, int axis) { return make_index<1>({&t}, dims_from(axis)).is_flat(); }
bool is_row(const Tensor& t) { return !t || is_row(t, 0); }

const char* const kStrided = "rows do not have neighbouring elements";
const char* const kParameters = "weight or bias does not have neighbouring elements";
const char* const kStatistics = "mean or rstd does not have neighbouring elements";
const char* const kLong = "rows are too long for registers";

const char* row_norm_not_in_registers(const RowNormForward& p) {
  if (!is_row(p.x, p.axis) || !is_row(p.y, p.axis)) return kStrided;
  if (!is_row(p.weight) || !is_row(p.bias)) return kParameters;
  return not_in_registers(make_index<1>({&p.x}, dims_below(p.axis)).numel,
                          make_index<1>({&p.x}, dims_from(p.axis)).numel,
                          static_cast<int>(16 / dtype_size(p.x.dtype)));
}
const char* row_norm_not_in_registers(const RowNormBackward& p) {
  if (!is_row(p.dy, p.axis) || !is_row(p.x, p.axis) || !is_row(p.dx, p.axis)) return kStrided;
  if (!is_row(p.weight)) return kParameters;
  if (!is_row(p.mean) || !is_row(p.rstd)) return kStatistics;
  return backward_plan(p).team.size ? nullptr : kLong;
}

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

template <class T, int N>
Accumulator<T> share_of(const Elements<N>& elements) {
  return 1 / static_cast<Accumulator<T>>(elements.row.numel);
}

template <class T>
ForwardArgs<T> forward_args(const RowNormForward& p) {
  return {Elements<2>({&p.x, &p.y}, p.axis),
          p.x.as<const T>(),
          p.y.as<T>(),
          MixedView<T>(p.weight),
          MixedView<T>(p.bias),
          MixedView<T>(p.mean),
          MixedView<T>(p.rstd),
          p.eps,
          p.rms};
}

template <class T>
void launch_forward_registers(const RowNormForward& p, const Launch& launch) {
  const ForwardArgs<T> args = forward_args<T>(p);
  const auto& rows = args.elements.rows;
  const RowPlan plan = plan_row(args.elements.row.numel, kPiece<T>);
  const auto kernel = pick_row_kernel(plan, [&]<int kItems, bool kBlocks>() {
    return row_norm_forward_registers_kernel<T, kItems, kBlocks>;
  });
  launch_rows(kernel, plan, rows.numel, launch.stream, args, RowParameter<T>(args.weight),
              RowParameter<T>(args.bias), share_of<T>(args.elements), plan.size,
              row_alignment(p.x.data, rows, 0, sizeof(T)),
              row_alignment(p.y.data, rows, 1, sizeof(T)));
}

template <class T>
void launch_forward(const RowNormForward& p, const Launch& launch) {
  const ForwardArgs<T> args = forward_args<T>(p);
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
BackwardArgs<T> backward_args(const RowNormBackward& p) {
  return {Elements<3>({&p.dy, &p.x, &p.dx}, p.axis),
          p.dy.as<const T>(),
          p.x.as<const T>(),
          p.dx.as<T>(),
          MixedView<T>(p.weight),
          MixedView<T>(p.mean),
          MixedView<T>(p.rstd),
          MixedView<T>(p.dweight),
          MixedView<T>(p.dbias),
          p.rms};
}

template <class T>
void launch_backward_registers(const RowNormBackward& p, const Launch& launch) {
  const BackwardArgs<T> args = backward_args<T>(p);
  const auto& rows = args.elements.rows;
  const BackwardPlan plan = backward_plan(p);
  const Aligns align{row_alignment(p.dy.data, rows, 0, sizeof(T)),
                     row_alignment(p.x.data, rows, 1, sizeof(T)),
                     row_alignment(p.dx.data, rows, 2, sizeof(T))};
  const bool sums = args.dweight || args.dbias;
  auto* partial = static_cast<Sums<Accumulator<T>, 2>*>(sums ? launch.workspace : nullptr);
  const auto launch_it = [&]<bool kBlocks>() {
    launch_clusters(p.rms ? row_norm_backward_registers_kernel<T, kBlocks, true>
                          : row_norm_backward_registers_kernel<T, kBlocks, false>,
                    static_cast<unsigned>(plan.blocks), plan.threads, 0, launch.stream,
                    plan.team.blocks(), args, RowParameter<T>(args.weight),
                    share_of<T>(args.elements), plan.team.size, align, partial);
  };
  if (plan.team.blocks() > 1) {
    launch_it.template operator()<true>();
  } else {
    launch_it.template operator()<false>();
  }
  if (sums) {
    finish_columns(WeightSums<T>{args}, plan.partials, args.elements.row.numel, partial,
                   launch.stream);
  }
}

template <class T>
void launch_backward(const RowNormBackward& p, const Launch& launch) {
  const BackwardArgs<T> args = backward_args<T>(p);
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

size_t registers_workspace(const RowNormBackward& p) {
  if (!p.dweight && !p.dbias) return 0;
  const int64_t n = make_index<1>({&p.x}, dims_from(p.axis)).numel;
  return static_cast<size_t>(2 * backward_plan(p).partials * n) *
         dtype_size(accumulator_of(p.x.dtype));
}

constexpr Impl<RowNormForward> kForward[] = {
    {"registers", row_norm_not_in_registers, nullptr,
     [](const RowNormForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward_registers<T>(p, launch); });
     }},
    {"two_pass_rows", supports_all, nullptr,
     [](const RowNormForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
     }},
};
constexpr Impl<RowNormBackward> kBackward[] = {
    {"registers", row_norm_not_in_registers, registers_workspace,
     [](const RowNormBackward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_backward_registers<T>(p, launch); });
     }},
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
