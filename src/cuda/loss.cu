// Cross entropy of logits against class labels.
//
//   forward   loss = -(1 - e) w_t logp_t - e / C * sum_c w_c logp_c,   logp = x - logsumexp(x)
//   backward  dx_c = s * [(1 - e) w_t (p_c - (c == t)) + e / C * (p_c sum_k w_k - w_c)]
//
// Layout: C classes at some stride; all other dimensions together are the rows. Neighbouring
// classes, up to 64 KB of them (512 KB on Hopper), stay in the registers of a team of threads
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
  double smoothing;

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
        smoothing(p.smoothing) {}

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

// ---- Forward, rows walked ----------------------------------------------------------------------

// Writes the loss of each row to `loss`, or to `row_loss` (workspace) where that is given.
template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads)
    cross_entropy_forward_kernel(Rows<T> rows, StridedIndex<1> index, MixedView<T> loss,
                                 Accumulator<T>* row_loss) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  const Acc smoothing = static_cast<Acc>(rows.smoothing);
  for (int64_t row = team.row; row < rows.count; row += team.row_step) {
    const int64_t t = rows.label(row);
    Acc value = 0;
    if (t != rows.ignore_index && !rows.valid(t)) {
      value = NAN;
    } else if (t != rows.ignore_index) {
      int64_t at[1];
      index.offsets(row, at);
      const T* x = rows.logits + at[0];
      const auto [max, sum] = softmax_sums<T>(team, x, rows.classes, rows.stride);
      const Acc log_sum = log(sum);
      const Acc hit = static_cast<Acc>(x[t * rows.stride]);
      value = (1 - smoothing) * rows.weight.load_or(t, 1) * (log_sum - (hit - max));
      if (smoothing != 0) {
        Acc all = 0;
        for (int64_t i = team.rank; i < rows.classes; i += team.size) {
          const Acc v = static_cast<Acc>(x[i * rows.stride]);
          all += rows.weight.load_or(i, 1) * (log_sum - (v - max));
        }
        value += smoothing / Acc(rows.classes) * team.reduce(all, Sum{}, Acc(0));
      }
    }
    if (team.rank == 0) {
      if (row_loss) {
        row_loss[row] = value;
      } else {
        loss.store(row, value);
      }
    }
  }
}

// ---- Forward, rows in registers ----------------------------------------------------------------

// As cross_entropy_forward_kernel. A row that needs no logits is a row of none here: its threads
// take part in the reductions.
template <class T, int kItems, bool kBlocks>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<T>)
    cross_entropy_forward_registers_kernel(const Rows<T> rows, const StridedIndex<1> index,
                                           const MixedView<T> loss, Accumulator<T>* row_loss,
                                           int team_size, int align) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < rows.count;
  const int64_t t = there ? rows.label(team.row) : rows.ignore_index;
  const bool used = t != rows.ignore_index && rows.valid(t);
  const Acc unused_value = t == rows.ignore_index ? Acc(0) : Acc(NAN);
  const int n = used ? static_cast<int>(rows.classes) : 0;
  int64_t at[1];
  index.offsets(there ? team.row : 0, at);
  const T* x = rows.logits + at[0];
  const bool has_hit = used && team.rank == 0;
  const int64_t weight_at = has_hit && rows.weight ? rows.weight.place(t) : 0;
  T hit_logit{};
  if (has_hit) hit_logit = x[t];
  RowPieces<T, kItems> row;
  row.load(x, n, team, align, static_cast<T>(-INFINITY));
  const Acc hit_weight = has_hit && rows.weight ? rows.weight.load_at(weight_at) : Acc(1);
  const auto [max, sum] = softmax_sums(team, row);
  const Acc log_sum = log(sum), smoothing = static_cast<Acc>(rows.smoothing);
  Acc value = (1 - smoothing) * hit_weight * (log_sum - (static_cast<Acc>(hit_logit) - max));
  if (smoothing != 0) {
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
    value += smoothing / Acc(rows.classes) * team.reduce(all, Sum{}, Acc(0));
  }
  if (!used) value = unused_value;
  if (there && team.rank == 0) {
    if (row_loss) {
      row_loss[team.row] = value;
    } else {
      loss.store(team.row, value);
    }
  }
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
  MixedView<T> dloss;
  bool per_row;
  const Accumulator<T>* total;  // what dloss is divided by; nullptr: 1
};

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads)
    cross_entropy_backward_kernel(BackwardArgs<T> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  const Rows<T>& rows = args.rows;
  const int64_t n = rows.classes;
  const Acc smoothing = static_cast<Acc>(rows.smoothing), share = smoothing / Acc(n);
  Acc all = Acc(n);  // sum of the class weights
  if (rows.weight && smoothing != 0) {
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
      const T fill = static_cast<T>(t == rows.ignore_index ? Acc(0) : Acc(NAN));
      for (int64_t i = team.rank; i < n; i += team.size) out[i * args.out_stride] = fill;
      continue;
    }
    const T* x = rows.logits + at[0];
    const auto [max, sum] = softmax_sums<T>(team, x, n, rows.stride);
    Acc scale = args.dloss.load(args.per_row ? row : 0);
    if (args.total) scale /= *args.total;
    const Acc hit = (1 - smoothing) * rows.weight.load_or(t, 1);
    const Acc factor = scale * (hit + share * all) / sum;
    for (int64_t i = team.rank; i < n; i += team.size) {
      Acc v = exp_of(static_cast<Acc>(x[i * rows.stride]) - max) * factor;
      if (smoothing != 0) v -= scale * share * rows.weight.load_or(i, 1);
      if (i == t) v -= scale * hit;
      out[i * args.out_stride] = static_cast<T>(v);
    }
  }
}

// As cross_entropy_backward_kernel. dlogits may be logits: a thread writes where it alone reads.
template <class T, int kItems, bool kBlocks>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<T>)
    cross_entropy_backward_registers_kernel(const BackwardArgs<T> args, int team_size, int align,
                                            int out_align) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(team_size);
  const Rows<T>& rows = args.rows;
  const bool there = team.row < rows.count;
  const int64_t t = there ? rows.label(team.row) : rows.ignore_index;
  const bool used = t != rows.ignore_index && rows.valid(t);
  const int64_t n = rows.classes;
  int64_t at[2];
  args.index.offsets(there ? team.row : 0, at);
  const T* x = rows.logits + at[0];
  const Acc smoothing = static_cast<Acc>(rows.smoothing), share = smoothing / Acc(n);
  const bool weighted = rows.weight && smoothing != 0;
  Acc all = Acc(n);  // sum of the class weights
  if (weighted) {
    all = 0;
    for (int64_t c = team.rank; c < n; c += team.size) all += rows.weight.load(c);
    all = team.reduce(all, Sum{}, Acc(0));
  }
  const int64_t weight_at = used && rows.weight ? rows.weight.place(t) : 0;
  const int64_t dloss_at = args.dloss.place(there && args.per_row ? team.row : 0);
  // The thread that has x_t puts its gradient in: a comparison for each element would cost more.
  const bool has_hit = used && t / kPiece<T> % team.size == team.rank;
  T hit_logit{};
  if (has_hit) hit_logit = x[t];
  RowPieces<T, kItems> row;
  row.load(x, used ? n : 0, team, align, static_cast<T>(-INFINITY));
  const Acc hit_weight = used && rows.weight ? rows.weight.load_at(weight_at) : Acc(1);
  Acc scale = args.dloss.load_at(dloss_at);
  if (args.total) scale /= *args.total;
  const auto sums = softmax_sums(team, row);
  const Acc max = sums.max, hit = (1 - smoothing) * hit_weight;
  const Acc factor = scale * (hit + share * all) / sums.sum;
  const Acc less = smoothing != 0 ? scale * share : Acc(0);
  const auto gradient = [&](Acc v, Acc w) { return softmax_exp<T>(v - max) * factor - less * w; };
  T* out = args.dlogits + at[1];
  const bool again = used && weighted;  // the row once more, from the L2 cache mostly
  if (again) {
    for (int64_t c = team.rank; c < n; c += team.size) {
      Acc v = gradient(static_cast<Acc>(x[c]), rows.weight.load(c));
      if (c == t) v -= scale * hit;
      out[c] = static_cast<T>(v);
    }
  } else {
    const Acc fill = t == rows.ignore_index ? Acc(0) : Acc(NAN);
    row.assign([&](T v, int) { return used ? gradient(static_cast<Acc>(v), 1) : fill; });
    if (has_hit) {
      row.set_at(static_cast<int>(t / kPiece<T> / team.size * kPiece<T> + t % kPiece<T>),
                 static_cast<T>(gradient(static_cast<Acc>(hit_logit), 1) - scale * hit));
    }
  }
  row.store(out, there && !again ? n : 0, team, out_align);
  team.end();
}

// ---- Launch ------------------------------------------------------------------------------------

ColumnTiles tiles_of(const CrossEntropy& p) { return ColumnTiles(p.rows(), 1, false); }

template <class T, bool kRegisters>
void launch_forward(const CrossEntropyForward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Rows<T> rows(p);
  const MixedView<T> loss(p.loss);
  const auto index = make_index<1>({&p.logits}, ~(1u << p.axis));
  const ColumnTiles tiles = tiles_of(p);
  auto* partial = static_cast<Sums<Acc, 2>*>(launch.workspace);
  Acc* row_loss = nullptr;
  if (p.reduction != DLK_REDUCTION_NONE) {
    row_loss = reinterpret_cast<Acc*>(partial + tiles.partials());
  }
  if constexpr (kRegisters) {
    const RowPlan plan = plan_row(rows.classes, kPiece<T>);
    const auto kernel = pick_row_kernel(plan, [&]<int kItems, bool kBlocks>() {
      return cross_entropy_forward_registers_kernel<T, kItems, kBlocks>;
    });
    launch_rows(kernel, plan, rows.count, launch.stream, rows, index, loss, row_loss, plan.size,
                row_alignment(rows.logits, index, 0, sizeof(T)));
  } else {
    const RowConfig config = pick_rows(rows.classes, p.axis == p.logits.ndim - 1);
    dispatch_group(config.group, [&]<Group kGroup>() {
      launch_kernel(cross_entropy_forward_kernel<T, kGroup>,
                    grid_for(config.blocks(rows.count), 1, 16), config.threads, 0, launch.stream,
                    rows, index, loss, row_loss);
    });
  }
  if (row_loss) {
    const bool mean = p.reduction == DLK_REDUCTION_MEAN;
    reduce_columns(LossSums<T>{rows, row_loss, loss, mean}, tiles, partial, launch.stream);
  }
}

size_t forward_workspace(const CrossEntropyForward& p) {
  if (p.reduction == DLK_REDUCTION_NONE) return 0;
  return (2 * tiles_of(p).partials() + static_cast<size_t>(p.rows())) *
         dtype_size(accumulator_of(p.logits.dtype));
}

template <class T, bool kRegisters>
void launch_backward(const CrossEntropyBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Rows<T> rows(p);
  Acc* total = nullptr;
  if (p.reduction == DLK_REDUCTION_MEAN) {
    const ColumnTiles tiles = tiles_of(p);
    auto* partial = static_cast<Sums<Acc, 1>*>(launch.workspace);
    total = reinterpret_cast<Acc*>(partial + tiles.partials());
    reduce_columns(WeightSums<T>{rows, total}, tiles, partial, launch.stream);
  }
  const BackwardArgs<T> args{rows,
                             make_index<2>({&p.logits, &p.dlogits}, ~(1u << p.axis)),
                             p.dlogits.as<T>(),
                             p.dlogits.strides[p.axis],
                             MixedView<T>(p.dloss),
                             p.reduction == DLK_REDUCTION_NONE,
                             total};
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
}

size_t backward_workspace(const CrossEntropyBackward& p) {
  if (p.reduction != DLK_REDUCTION_MEAN) return 0;
  return (tiles_of(p).partials() + 1) * dtype_size(accumulator_of(p.logits.dtype));
}

constexpr Impl<CrossEntropyForward> kForward[] = {
    {"registers",
     [](const CrossEntropyForward& p) { return not_in_registers({&p.logits}, p.axis); },
     forward_workspace,
     [](const CrossEntropyForward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_forward<T, true>(p, launch); });
     }},
    {"online_rows", supports_all, forward_workspace,
     [](const CrossEntropyForward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_forward<T, false>(p, launch); });
     }},
};
constexpr Impl<CrossEntropyBackward> kBackward[] = {
    {"registers",
     [](const CrossEntropyBackward& p) {
       return not_in_registers({&p.logits, &p.dlogits}, p.axis);
     },
     backward_workspace,
     [](const CrossEntropyBackward& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_backward<T, true>(p, launch); });
     }},
    {"rows", supports_all, backward_workspace,
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
