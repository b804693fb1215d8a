// Layer norm and RMS norm, backward.
//
//   g = dy * (weight + offset), xhat = (x - mean) * rstd, averages over the row:
//   dx = rstd * (g - avg(g) - xhat * avg(g * xhat)) + dresidual        RMS: without avg(g)
//   dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
//
// Rows of neighbouring elements stay in the registers of a team of threads (prims/row_pieces.cuh):
// dy, x and dx are the floor, at 16384 x 4096 of 16 bits 403 MB. Threads keep their columns from row
// to row and add up dweight and dbias in registers, while the next row is on its way; each of at
// most 264 blocks leaves one row of such sums in the workspace (8.7 MB at most), which a second
// kernel adds in order. The blocks' number follows from the shape alone. Other rows are walked by
// one warp or one block (prims/rows.cuh), and the gradients of the weights are a two-stage column
// reduction of its own (prims/columns.cuh), before dx is written, since dx may be dy or x. Bound by
// memory. Sums in float32 (float64 for float64); a row's in an order that n alone decides.
#include "cuda/norm_rows.cuh"
#include "cuda/prims/columns.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <class T>
struct Args {
  using Acc = Accumulator<T>;
  Elements<4> elements;  // dy, x, dresidual, dx
  const T *dy, *x, *dresidual;
  T* dx;
  MixedView<T> weight, mean, rstd, dweight, dbias;
  Acc weight_offset;
  bool rms;

  explicit Args(const RowNormBackward& p)
      : elements({&p.dy, &p.x, &p.dresidual, &p.dx}, p.axis),
        dy(p.dy.as<const T>()),
        x(p.x.as<const T>()),
        dresidual(p.dresidual.as<const T>()),
        dx(p.dx.as<T>()),
        weight(p.weight),
        mean(p.mean),
        rstd(p.rstd),
        dweight(p.dweight),
        dbias(p.dbias),
        weight_offset(static_cast<Acc>(p.weight_offset)),
        rms(p.rms) {}

  // dy weight, of an element dy at column i.
  __device__ Acc g(T dy, int64_t i) const {
    const Acc d = static_cast<Acc>(dy);
    return weight ? d * (weight.load(i) + weight_offset) : d;
  }
};

// ---- Rows walked -------------------------------------------------------------------------------

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads) row_norm_backward_kernel(const Args<T> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  const int64_t n = args.elements.row.numel;
  for (int64_t row = team.row; row < args.elements.rows.numel; row += team.row_step) {
    int64_t first[4], at[4];
    args.elements.rows.offsets(row, first);
    const Acc mean = args.mean.load_or(row, 0), rstd = args.rstd.load(row);
    Acc shift = 0, along = 0;
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc g = args.g(args.dy[at[0]], i);
      along += g * ((static_cast<Acc>(args.x[at[1]]) - mean) * rstd);
      shift += g;
    }
    along = team.reduce(along, Sum{}, Acc(0)) / Acc(n);
    shift = args.rms ? Acc(0) : team.reduce(shift, Sum{}, Acc(0)) / Acc(n);
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc g = args.g(args.dy[at[0]], i);
      const Acc xhat = (static_cast<Acc>(args.x[at[1]]) - mean) * rstd;
      Acc v = rstd * (g - shift - xhat * along);
      if (args.dresidual) v += static_cast<Acc>(args.dresidual[at[2]]);
      args.dx[at[3]] = static_cast<T>(v);
    }
  }
}

// The column reduction: element i of the row is the column, the row is the position.
template <class T>
struct WeightSums {
  using Acc = Accumulator<T>;
  Args<T> args;

  __device__ Sums<Acc, 2> load(int64_t i, int64_t row) const {
    int64_t first[4], at[4];
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

// Pieces of dy and of x that a thread has: the sums of these columns fit its registers, too.
constexpr int kBackwardItems = 2;

struct Aligns {
  int dy, x, dx;
};

// share: 1 / n. partial: a row of sums for each block (cluster), or nullptr.
template <class T, bool kBlocks, bool kRms>
__global__ void __launch_bounds__(kRowThreads)
    row_norm_backward_registers_kernel(const Args<T> args, RowParameter<T> weight,
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
  int64_t at[4];
  Acc mean, rstd;
  const auto locate = [&](int64_t row) {
    const bool there = row < rows;
    elements = there ? n : 0;
    args.elements.rows.offsets(there ? row : 0, at);
    mean = kRms || !there ? Acc(0) : static_cast<const Acc*>(args.mean.data)[row];
    rstd = there ? static_cast<const Acc*>(args.rstd.data)[row] : Acc(0);
  };
  const auto load = [&] {
    dy.template load<true>(args.dy + at[0], elements, team, align.dy, T(0.0f));
    x.template load<true>(args.x + at[1], elements, team, align.x, T(0.0f));
  };
  locate(team.row);
  load();
  // As many turns for all threads of a block.
  const int place = static_cast<int>(team.row - team.first);
  for (int64_t row = team.row; row - place < rows; row += team.row_step) {
    Acc g[Pieces::kElements];
    Pieces here = x;
    const Acc center = mean, scale = rstd;
    T* const dx = args.dx + at[3];
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
  return BackwardPlan(rows_of(p.x, p.axis), columns_of(p.x, p.axis),
                      static_cast<int>(dtype_size(p.x.dtype)));
}

const char* row_norm_not_in_registers(const RowNormBackward& p) {
  if (p.dresidual) return "dresidual is added";
  for (const Tensor* t : {&p.dy, &p.x, &p.dx}) {
    if (!is_row(*t, p.axis)) return kStrided;
  }
  if (!is_row(p.weight)) return kParameters;
  if (!is_row(p.mean) || !is_row(p.rstd)) {
    return "mean or rstd does not have neighbouring elements";
  }
  return backward_plan(p).team.size ? nullptr : "rows are too long for registers";
}

ColumnTiles tiles_of(const RowNormBackward& p) {
  return ColumnTiles(rows_of(p.x, p.axis), columns_of(p.x, p.axis), true);
}

template <class T>
void launch_backward_registers(const RowNormBackward& p, const Launch& launch) {
  const Args<T> args(p);
  const auto& rows = args.elements.rows;
  const BackwardPlan plan = backward_plan(p);
  const Aligns align{row_alignment(p.dy.data, rows, 0, sizeof(T)),
                     row_alignment(p.x.data, rows, 1, sizeof(T)),
                     row_alignment(p.dx.data, rows, 3, sizeof(T))};
  const bool sums = args.dweight || args.dbias;
  auto* partial = static_cast<Sums<Accumulator<T>, 2>*>(sums ? launch.workspace : nullptr);
  const auto launch_it = [&]<bool kBlocks>() {
    launch_clusters(p.rms ? row_norm_backward_registers_kernel<T, kBlocks, true>
                          : row_norm_backward_registers_kernel<T, kBlocks, false>,
                    static_cast<unsigned>(plan.blocks), plan.threads, 0, launch.stream,
                    plan.team.blocks(), args, RowParameter<T>(args.weight, p.weight_offset),
                    1 / static_cast<Accumulator<T>>(args.elements.row.numel), plan.team.size, align,
                    partial);
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
  const Args<T> args(p);
  if (args.dweight || args.dbias) {
    reduce_columns(WeightSums<T>{args}, tiles_of(p),
                   static_cast<Sums<Accumulator<T>, 2>*>(launch.workspace), launch.stream);
  }
  const RowConfig config = pick_rows(args.elements.row.numel, true);
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
  return static_cast<size_t>(2 * backward_plan(p).partials * columns_of(p.x, p.axis)) *
         dtype_size(accumulator_of(p.x.dtype));
}

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
ImplList<RowNormBackward> gpu_impls<RowNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
