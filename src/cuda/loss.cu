// Cross entropy of logits against class labels.
//
//   forward   loss = -(1 - e) w_t logp_t - e / C * sum_c w_c logp_c + z lse^2
//             logp = x - lse, lse = logsumexp(x)
//   backward  dx_c = s * [(1 - e) w_t (p_c - (c == t)) + e / C * (p_c sum_k w_k - w_c)
//                         + 2 z lse p_c]
//   and both at once, which costs no more than backward alone
//
// Layout: C classes at some stride; all other dimensions together are the rows. Neighbouring
// classes, up to 32 KB of them (512 KB on Hopper), stay in the registers of a team of threads
// (prims/row_pieces.cuh): maximum, sum of exponentials and gradient come from there. Other rows
// are walked by one group of threads (prims/rows.cuh), maximum and sum in one pass (online
// softmax). The rows' losses, and the sum of their weights, are summed by a two-stage reduction
// (prims/columns.cuh), in an order fixed by the number of rows. Sums in float32 (float64 for
// float64), a row's in an order fixed by C and by which of the two ways it goes. A label out of
// range is never used as an index: its row becomes NaN.
//
// Bound by memory. Bytes for R rows of elements of b bytes, ignored rows aside:
//   registers  forward R C b (the floor), backward 2 R C b (the floor)
//   walked     forward R C b (twice that with smoothing), backward 3 R C b
// beside R labels and R losses; with smoothing and weights together a row in registers is read
// twice as well, and C weights a row come from the caches. 8192 x 128256 in bfloat16: 2.10 GB and
// 4.20 GB, at the 4.2 TB/s of a copy on an H200 0.50 ms and 1.00 ms; 16384 x 32000: 1.05 GB and
// 2.10 GB, 0.25 ms and 0.50 ms.
#include "core/mixed.h"
#include "cuda/prims/columns.cuh"
#include "cuda/prims/row_pieces.cuh"
#include "cuda/prims/rows.cuh"
#include "cuda/prims/softmax.cuh"
#include "ops/loss.h"

namespace dlkern {
namespace {

using namespace gpu;

// What both directions know of the rows.
template <class T>
struct Rows {
  using Acc = Accumulator<T>;
  const T* logits;
  int64_t classes, stride;
  MixedView<T> weight;
  StridedIndex<1> label_index;
  const void* labels;
  bool wide_labels;  // int64
  int64_t ignore_index, count;
  double smoothing, z_loss;

  explicit Rows(const CrossEntropy& p)
      : logits(p.logits.as<const T>()),
        classes(p.classes()),
        stride(p.logits.strides[p.axis]),
        weight(p.weight),
        label_index(make_index<1>({&p.labels})),
        labels(p.labels.data),
        wide_labels(p.labels.dtype == DType::kInt64),
        ignore_index(p.ignore_index),
        count(p.rows()),
        smoothing(p.smoothing),
        z_loss(p.z_loss) {}

  __device__ int64_t label(int64_t row) const {
    int64_t at[1];
    label_index.offsets(row, at);
    return wide_labels ? static_cast<const int64_t*>(labels)[at[0]]
                       : static_cast<const int32_t*>(labels)[at[0]];
  }
  __device__ bool valid(int64_t label) const { return label >= 0 && label < classes; }
  // What the row counts in the mean.
  __device__ Acc row_weight(int64_t row) const {
    const int64_t t = label(row);
    return t != ignore_index && valid(t) ? weight.load_or(t, 1) : Acc(0);
  }
};

// Where the losses of the rows go: to the workspace where they are to be summed.
template <class T>
struct RowLosses {
  using Acc = Accumulator<T>;
  MixedView<T> loss;
  Acc* kept = nullptr;

  __device__ void store(int64_t row, Acc value) const {
    if (kept) {
      kept[row] = value;
    } else {
      loss.store(row, value);
    }
  }
};

// A row and its label.
template <class T>
struct Target {
  using Acc = Accumulator<T>;
  int64_t label;
  bool used;
  Acc logit, weight;  // of the label

  // What the loss and the gradient of a row are that does not count, or has no such class.
  __device__ Acc instead(const Rows<T>& rows) const {
    return label == rows.ignore_index ? Acc(0) : Acc(NAN);
  }
};

// The label's own term and the z-loss; smoothing adds to it.
template <class T, class Acc>
__device__ __forceinline__ Acc own_loss(const Rows<T>& rows, const Target<T>& target, Acc max,
                                        Acc log_sum) {
  const Acc lse = max + log_sum;
  return (1 - static_cast<Acc>(rows.smoothing)) * target.weight *
             (log_sum - (target.logit - max)) +
         static_cast<Acc>(rows.z_loss) * lse * lse;
}

// ---- Forward, rows walked ----------------------------------------------------------------------

// The loss of a row x whose label is good; all threads of the team receive it.
template <class T, Group kGroup>
__device__ Accumulator<T> walked_loss(const Rows<T>& rows, const Team<kGroup>& team, const T* x,
                                      int64_t t, const SoftmaxSums<Accumulator<T>>& sums) {
  using Acc = Accumulator<T>;
  const Acc log_sum = log(sums.defined_sum());
  const Target<T> target{t, true, static_cast<Acc>(x[t * rows.stride]), rows.weight.load_or(t, 1)};
  Acc value = own_loss(rows, target, sums.max, log_sum);
  if (rows.smoothing != 0) {
    Acc all = 0;
    for (int64_t i = team.rank; i < rows.classes; i += team.size) {
      const Acc v = static_cast<Acc>(x[i * rows.stride]);
      all += rows.weight.load_or(i, 1) * (log_sum - (v - sums.max));
    }
    all = team.reduce(all, Sum{}, Acc(0));
    value += static_cast<Acc>(rows.smoothing) / Acc(rows.classes) * all;
  }
  return value;
}

template <class T, Group kGroup>
__device__ SoftmaxSums<Accumulator<T>> walked_sums(const Rows<T>& rows, const Team<kGroup>& team,
                                                   const T* x) {
  const int64_t stride = rows.stride;
  return softmax_sums(team, rows.classes,
                      [=](int64_t i) { return static_cast<Accumulator<T>>(x[i * stride]); });
}

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads)
    cross_entropy_forward_kernel(Rows<T> rows, StridedIndex<1> index, RowLosses<T> losses) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  for (int64_t row = team.row; row < rows.count; row += team.row_step) {
    const int64_t t = rows.label(row);
    Acc value = 0;
    if (t != rows.ignore_index && !rows.valid(t)) {
      value = NAN;
    } else if (t != rows.ignore_index) {
      int64_t at[1];
      index.offsets(row, at);
      const T* x = rows.logits + at[0];
      value = walked_loss(rows, team, x, t, walked_sums(rows, team, x));
    }
    if (team.rank == 0) losses.store(row, value);
  }
}

// ---- Forward, rows in registers ----------------------------------------------------------------

// The loss of a row; all threads of the team receive it, all of the block must call it.
template <class T, int kItems, bool kBlocks>
__device__ __forceinline__ Accumulator<T> held_loss(const Rows<T>& rows, RowTeam<kBlocks>& team,
                                                    const RowPieces<T, kItems>& row, const T* x,
                                                    const Target<T>& target,
                                                    const SoftmaxSums<Accumulator<T>>& sums) {
  using Acc = Accumulator<T>;
  const Acc log_sum = log(sums.defined_sum()), max = sums.max;
  Acc value = own_loss(rows, target, max, log_sum);
  if (rows.smoothing != 0) {
    const int n = target.used ? static_cast<int>(rows.classes) : 0;
    Acc all = 0;
    if (rows.weight) {  // the row once more, from the L2 cache mostly
      for (int c = team.rank; c < n; c += team.size) {
        all += rows.weight.load(c) * (log_sum - (static_cast<Acc>(x[c]) - max));
      }
    } else {
#pragma unroll
      for (int k = 0; k < row.kElements; ++k) {
        const Acc v = log_sum - (static_cast<Acc>(row.get(k)) - max);
        if (row.place(team, k) < n) all += v;
      }
    }
    value += static_cast<Acc>(rows.smoothing) / Acc(rows.classes) *
             team.reduce(all, Sum{}, Acc(0));
  }
  return target.used ? value : target.instead(rows);
}

// Row `team.row` of logits into registers, and what belongs to its label. The row's loads do not
// wait for the label.
template <class T, int kItems, bool kBlocks>
__device__ __forceinline__ Target<T> load_row(const Rows<T>& rows, const RowTeam<kBlocks>& team,
                                              const T* x, int align, RowPieces<T, kItems>& row) {
  using Acc = Accumulator<T>;
  const bool there = team.row < rows.count;
  const int64_t t = there ? rows.label(team.row) : rows.ignore_index;
  const int n = there ? static_cast<int>(rows.classes) : 0;
  row.load(x, n, team, align, static_cast<T>(-INFINITY));
  Target<T> target{t, t != rows.ignore_index && rows.valid(t), Acc(0), Acc(1)};
  if (target.used) {
    target.logit = static_cast<Acc>(x[t]);
    if (rows.weight) target.weight = rows.weight.load(t);
  }
  return target;
}

template <class T, int kItems, bool kBlocks>
__global__ void __launch_bounds__(kRowThreads, (kRowBlocks<T, kItems>))
    cross_entropy_forward_registers_kernel(const Rows<T> rows, const StridedIndex<1> index,
                                           const RowLosses<T> losses, int team_size, int align) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < rows.count;
  int64_t at[1];
  index.offsets(there ? team.row : 0, at);
  const T* x = rows.logits + at[0];
  RowPieces<T, kItems> row;
  const Target<T> target = load_row(rows, team, x, align, row);
  const auto sums = softmax_sums(team, row, SoftmaxExp<T>());
  const Acc value = held_loss(rows, team, row, x, target, sums);
  if (there && team.rank == 0) losses.store(team.row, value);
  team.end();
}

// ---- Sums over rows ----------------------------------------------------------------------------

// Sums of the losses and the weights of all rows: one column, the rows are the positions.
template <class T>
struct LossSums {
  using Acc = Accumulator<T>;
  Rows<T> rows;
  const Acc* row_loss;
  MixedView<T> loss;
  bool mean;

  __device__ Sums<Acc, 2> load(int64_t, int64_t row) const {
    return {{row_loss[row], mean ? rows.row_weight(row) : Acc(0)}};
  }
  __device__ void finish(int64_t, const Sums<Acc, 2>& sums) const {
    loss.store(0, mean ? sums.v[0] / sums.v[1] : sums.v[0]);
  }
};

// The sum of the weights of all rows, and of all classes, for the backward pass.
template <class T>
struct WeightSums {
  using Acc = Accumulator<T>;
  Rows<T> rows;
  Acc* total;

  __device__ Sums<Acc, 1> load(int64_t, int64_t row) const { return {{rows.row_weight(row)}}; }
  __device__ void finish(int64_t, const Sums<Acc, 1>& sums) const { *total = sums.v[0]; }
};

// ---- Backward ----------------------------------------------------------------------------------

template <class T>
struct BackwardArgs {
  Rows<T> rows;
  StridedIndex<2> index;  // logits, dlogits
  T* dlogits;
  int64_t out_stride;
  MixedView<T> dloss;  // absent: 1
  bool per_row;
  const Accumulator<T>* total;  // what dloss is divided by; nullptr: 1
  bool wants_loss;
  RowLosses<T> losses;

  __device__ Accumulator<T> scale(int64_t row) const {
    const Accumulator<T> upstream = dloss.load_or(per_row ? row : 0, 1);
    return total ? upstream / *total : upstream;
  }
};

// Gradients of a row from its logits: exp(x - max) factor - less w_c, and `hit` less at the label.
template <class Acc>
struct Gradient {
  Acc max, factor, less, hit;

  // all: the sum of the class weights.
  template <class T>
  __device__ Gradient(const Rows<T>& rows, const SoftmaxSums<Acc>& sums, Acc scale, Acc weight,
                      Acc all)
      : max(sums.max) {
    const Acc sum = sums.defined_sum(), smoothing = static_cast<Acc>(rows.smoothing);
    const Acc share = smoothing / Acc(rows.classes), own = (1 - smoothing) * weight;
    const Acc z = rows.z_loss == 0 ? Acc(0) : 2 * static_cast<Acc>(rows.z_loss) * (max + log(sum));
    factor = scale * (own + share * all + z) / sum;
    less = scale * share;
    hit = scale * own;
  }
};

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads)
    cross_entropy_backward_kernel(BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  const Rows<T>& rows = args.rows;
  const int64_t n = rows.classes;
  const bool smooth = rows.smoothing != 0;
  Acc all = Acc(n);  // sum of the class weights
  if (rows.weight && smooth) {
    all = 0;
    for (int64_t i = team.rank; i < n; i += team.size) all += rows.weight.load(i);
    all = team.reduce(all, Sum{}, Acc(0));
  }
  for (int64_t row = team.row; row < rows.count; row += team.row_step) {
    int64_t at[2];
    args.index.offsets(row, at);
    T* out = args.dlogits + at[1];
    const int64_t t = rows.label(row);
    if (t == rows.ignore_index || !rows.valid(t)) {
      const Acc instead = t == rows.ignore_index ? Acc(0) : Acc(NAN);
      for (int64_t i = team.rank; i < n; i += team.size) {
        out[i * args.out_stride] = static_cast<T>(instead);
      }
      if (args.wants_loss && team.rank == 0) args.losses.store(row, instead);
      continue;
    }
    const T* x = rows.logits + at[0];
    const auto sums = walked_sums(rows, team, x);
    if (args.wants_loss) {
      const Acc value = walked_loss(rows, team, x, t, sums);
      if (team.rank == 0) args.losses.store(row, value);
      team.reduce(Acc(0), Sum{}, Acc(0));  // all have read x_t, which one may overwrite below
    }
    const Gradient<Acc> g(rows, sums, args.scale(row), rows.weight.load_or(t, 1), all);
    for (int64_t i = team.rank; i < n; i += team.size) {
      Acc v = exp_of(static_cast<Acc>(x[i * rows.stride]) - g.max) * g.factor;
      if (smooth) v -= g.less * rows.weight.load_or(i, 1);
      if (i == t) v -= g.hit;
      out[i * args.out_stride] = static_cast<T>(v);
    }
  }
}

// As cross_entropy_backward_kernel. dlogits may be logits: a thread writes where it alone reads, and
// all have read x_t before the first reduction.
template <class T, int kItems, bool kBlocks>
__global__ void __launch_bounds__(kRowThreads, (kRowBlocks<T, kItems>))
    cross_entropy_backward_registers_kernel(const BackwardArgs<T> args, int team_size, int align,
                                            int out_align) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(team_size);
  const Rows<T>& rows = args.rows;
  const bool there = team.row < rows.count, weighted = rows.weight && rows.smoothing != 0;
  const int n = static_cast<int>(rows.classes);
  int64_t at[2];
  args.index.offsets(there ? team.row : 0, at);
  const T* x = rows.logits + at[0];
  T* out = args.dlogits + at[1];
  RowPieces<T, kItems> row;
  const Target<T> target = load_row(rows, team, x, align, row);
  Acc all = Acc(n);  // sum of the class weights
  if (weighted) {
    all = 0;
    for (int c = team.rank; c < n; c += team.size) all += rows.weight.load(c);
    all = team.reduce(all, Sum{}, Acc(0));
  }
  const SoftmaxExp<T> exp;
  const auto sums = softmax_sums(team, row, exp);
  if (args.wants_loss) {
    const Acc value = held_loss(rows, team, row, x, target, sums);
    if (there && team.rank == 0) args.losses.store(team.row, value);
    row.forget();
  }
  const Gradient<Acc> g(rows, sums, args.scale(there ? team.row : 0), target.weight, all);
  const auto gradient = [&](Acc v, Acc w) { return exp(v - g.max) * g.factor - g.less * w; };
  const bool again = target.used && weighted;  // the row once more, from the L2 cache mostly
  if (again) {
    for (int c = team.rank; c < n; c += team.size) {
      Acc v = gradient(static_cast<Acc>(x[c]), rows.weight.load(c));
      if (c == target.label) v -= g.hit;
      out[c] = static_cast<T>(v);
    }
  } else {
    const Acc instead = target.instead(rows);
    row.assign([&](T v, int) { return target.used ? gradient(static_cast<Acc>(v), 1) : instead; });
    // The thread that has x_t puts its gradient in: a comparison for each element would cost more.
    const int t = static_cast<int>(target.label), piece = t / kPiece<T>;
    if (target.used && piece % team.size == team.rank) {
      row.set_at(piece / team.size * kPiece<T> + t % kPiece<T>,
                 static_cast<T>(gradient(target.logit, 1) - g.hit));
    }
  }
  row.store(out, there && !again ? n : 0, team, out_align);
  team.end();
}

// ---- Launch ------------------------------------------------------------------------------------

ColumnTiles tiles_of(const CrossEntropy& p) { return ColumnTiles(p.rows(), 1, false); }

// The workspace: what sums over the rows need, for a loss that is not given row by row the losses of
// the rows, and for the gradient of a mean the sum of weights.
template <class T>
struct Workspace {
  using Acc = Accumulator<T>;
  ColumnTiles tiles;
  Sums<Acc, 2>* partial;
  Acc *row_loss, *total;

  Workspace(const CrossEntropy& p, void* data)
      : tiles(tiles_of(p)),
        partial(static_cast<Sums<Acc, 2>*>(data)),
        row_loss(reinterpret_cast<Acc*>(partial + tiles.partials())),
        total(row_loss + p.rows()) {}
};
size_t workspace_bytes(const CrossEntropy& p) {
  if (p.reduction == DLK_REDUCTION_NONE) return 0;
  return (2 * tiles_of(p).partials() + static_cast<size_t>(p.rows()) + 1) *
         dtype_size(accumulator_of(p.logits.dtype));
}

template <class T>
RowLosses<T> row_losses(const CrossEntropy& p, const Tensor& loss, const Workspace<T>& work) {
  return {MixedView<T>(loss), p.reduction == DLK_REDUCTION_NONE ? nullptr : work.row_loss};
}

template <class T>
void sum_losses(const CrossEntropy& p, const Rows<T>& rows, const Tensor& loss,
                const Workspace<T>& work, void* stream) {
  if (p.reduction == DLK_REDUCTION_NONE) return;
  const LossSums<T> sums{rows, work.row_loss, MixedView<T>(loss),
                         p.reduction == DLK_REDUCTION_MEAN};
  reduce_columns(sums, work.tiles, work.partial, stream);
}

template <class T, bool kRegisters>
void launch_forward(const CrossEntropyForward& p, const Launch& launch) {
  const Rows<T> rows(p);
  const Workspace<T> work(p, launch.workspace);
  const auto index = make_index<1>({&p.logits}, ~(1u << p.axis));
  const RowLosses<T> losses = row_losses(p, p.loss, work);
  if constexpr (kRegisters) {
    const RowPlan plan = plan_row(rows.classes, kPiece<T>);
    const auto kernel = pick_row_kernel(plan, [&]<int kItems, bool kBlocks>() {
      return cross_entropy_forward_registers_kernel<T, kItems, kBlocks>;
    });
    launch_rows(kernel, plan, rows.count, launch.stream, rows, index, losses, plan.size,
                row_alignment(rows.logits, index, 0, sizeof(T)));
  } else {
    const RowConfig config = pick_rows(rows.classes, p.axis == p.logits.ndim - 1);
    dispatch_group(config.group, [&]<Group kGroup>() {
      launch_kernel(cross_entropy_forward_kernel<T, kGroup>,
                    grid_for(config.blocks(rows.count), 1, 16), config.threads, 0, launch.stream,
                    rows, index, losses);
    });
  }
  sum_losses(p, rows, p.loss, work, launch.stream);
}

template <class T, bool kRegisters>
void launch_backward(const CrossEntropyBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Rows<T> rows(p);
  const Workspace<T> work(p, launch.workspace);
  const bool mean = p.reduction == DLK_REDUCTION_MEAN;
  if (mean) {
    reduce_columns(WeightSums<T>{rows, work.total}, work.tiles,
                   reinterpret_cast<Sums<Acc, 1>*>(work.partial), launch.stream);
  }
  const BackwardArgs<T> args{rows,
                             make_index<2>({&p.logits, &p.dlogits}, ~(1u << p.axis)),
                             p.dlogits.as<T>(),
                             p.dlogits.strides[p.axis],
                             MixedView<T>(p.dloss),
                             p.reduction == DLK_REDUCTION_NONE,
                             mean ? work.total : nullptr,
                             static_cast<bool>(p.loss),
                             row_losses(p, p.loss, work)};
  if constexpr (kRegisters) {
    const RowPlan plan = plan_row(rows.classes, kPiece<T>);
    const auto kernel = pick_row_kernel(plan, [&]<int kItems, bool kBlocks>() {
      return cross_entropy_backward_registers_kernel<T, kItems, kBlocks>;
    });
    launch_rows(kernel, plan, rows.count, launch.stream, args, plan.size,
                row_alignment(rows.logits, args.index, 0, sizeof(T)),
                row_alignment(args.dlogits, args.index, 1, sizeof(T)));
  } else {
    const RowConfig config = pick_rows(rows.classes, p.axis == p.logits.ndim - 1);
    dispatch_group(config.group, [&]<Group kGroup>() {
      launch_kernel(cross_entropy_backward_kernel<T, kGroup>,
                    grid_for(config.blocks(rows.count), 1, 16), config.threads, 0, launch.stream,
                    args);
    });
  }
  if (p.loss) sum_losses(p, rows, p.loss, work, launch.stream);
}

template <class Problem>
size_t workspace_of(const Problem& p) {
  return workspace_bytes(p);
}

constexpr Impl<CrossEntropyForward> kForward[] = {
    {"registers",
     [](const CrossEntropyForward& p) { return not_in_registers({&p.logits}, p.axis); },
     workspace_of,
     [](const CrossEntropyForward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_forward<T, true>(p, launch); });
     }},
    {"online_rows", supports_all, workspace_of,
     [](const CrossEntropyForward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_forward<T, false>(p, launch); });
     }},
};
constexpr Impl<CrossEntropyBackward> kBackward[] = {
    {"registers",
     [](const CrossEntropyBackward& p) {
       return not_in_registers({&p.logits, &p.dlogits}, p.axis);
     },
     workspace_of,
     [](const CrossEntropyBackward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_backward<T, true>(p, launch); });
     }},
    {"rows", supports_all, workspace_of,
     [](const CrossEntropyBackward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_backward<T, false>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<CrossEntropyForward> gpu_impls<CrossEntropyForward>() {
  return kForward;
}
template <>
ImplList<CrossEntropyBackward> gpu_impls<CrossEntropyBackward>() {
  return kBackward;
}

}  // namespace dlkern
