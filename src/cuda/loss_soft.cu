// Cross entropy of logits x against probabilities t of the classes, its gradient, or both at once.
//
//   q_c       w_c ((1 - e) t_c + e / C),  Q = sum_c q_c
//   loss      Q log_sum + sum_c q_c (m - x_c) + z lse^2,  lse = logsumexp(x) = m + log_sum, m = max x
//   gradient  s [(Q + 2 z lse) p_c - q_c],  p = softmax(x)
//
// Layout: as loss_forward.cu. Neighbouring classes whose probabilities have the logits' type, up to
// 32 KB of each (256 KB on Hopper), stay in the registers of a team of threads: both are read once.
// Longer rows, and float32 probabilities beside 16-bit logits, go through a block in chunks, twice
// where a gradient is wanted; other rows are walked by one group of threads, twice, and once more for
// a gradient. dlogits may be logits: a thread writes where it alone reads. One kernel does for all
// three calls: what is not wanted is a branch that all threads skip. Sums in float32 (float64 for
// float64), a row's in an order fixed by C and by which of the ways it goes.
//
// Bound by memory: 2 R C b bytes for R rows of elements of b bytes, 3 R C b with the gradient.
//
// Measured: 65536 x 1000 float32 at 4.38 TB/s, with the gradient 4.32, 16384 x 8192 bfloat16 at 3.77
// and 4.14 (H200, 2026-12-01). Four pieces for each of few threads are quicker than two or one for
// more of them.
//
// Reference: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
#include "core/mixed.h"
#include "cuda/prims/columns.cuh"
#include "cuda/prims/row_pieces.cuh"
#include "cuda/prims/rows.cuh"
#include "cuda/prims/softmax.cuh"
#include "ops/loss.h"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kItems = 4;  // pieces of a thread, of logits and of labels

// ---- Rows --------------------------------------------------------------------------------------

// Offsets of a row in the tensors that have rows.
enum RowTensor { kOfLogits, kOfLabels, kOfGradient, kOfUpstream, kOfLoss, kRowTensors };
using RowOffsets = int64_t[kRowTensors];

template <class T>
struct SoftRows {
  using Acc = Accumulator<T>;
  StridedIndex<kRowTensors> index;
  int64_t classes;
  const T* logits;
  const void* labels;
  bool wide_labels;  // of type Acc
  T* gradient;       // nullptr: not wanted
  int64_t logits_stride, labels_stride, gradient_stride, weight_stride;
  MixedView<T> weight;
  RowParameter<T> weight_pieces;  // the same, beside rows of neighbours
  MixedView<T> upstream, loss;    // absent: 1, not wanted
  Acc* row_loss = nullptr;        // where the losses of the rows go that are to be summed
  Acc keep, share, z_loss, divisor;

  explicit SoftRows(const SoftCrossEntropy& p)
      : classes(p.classes()),
        logits(p.logits.as<const T>()),
        labels(p.labels.data),
        wide_labels(dtype_size(p.labels.dtype) == sizeof(Acc)),
        gradient(p.dlogits ? p.dlogits.as<T>() : nullptr),
        logits_stride(p.logits.strides[p.axis]),
        labels_stride(p.labels.strides[p.axis]),
        gradient_stride(p.dlogits ? p.dlogits.strides[p.axis] : 0),
        weight_stride(p.weight ? p.weight.strides[0] : 0),
        weight(p.weight),
        weight_pieces(weight),
        upstream(p.dloss),
        loss(p.loss),
        keep(static_cast<Acc>(1 - p.smoothing)),
        share(static_cast<Acc>(p.smoothing) / static_cast<Acc>(classes)),
        z_loss(static_cast<Acc>(p.z_loss)),
        divisor(static_cast<Acc>(p.divisor())) {
    const Tensor none{};
    const bool per_row = p.reduction == DLK_REDUCTION_NONE;
    index = make_index<kRowTensors>(
        {&p.logits, &p.labels, &p.dlogits, per_row ? &p.dloss : &none, per_row ? &p.loss : &none},
        ~(1u << p.axis));
  }

  __device__ __forceinline__ Acc q(Acc label, Acc w) const { return w * (keep * label + share); }
  // q of class c, in a row whose labels begin at `at`.
  __device__ Acc q_at(int64_t at, int64_t c) const {
    const int64_t place = at + c * labels_stride;
    const Acc label = wide_labels ? static_cast<const Acc*>(labels)[place]
                                  : static_cast<Acc>(static_cast<const T*>(labels)[place]);
    return q(label, weight ? weight.load_at(c * weight_stride) : Acc(1));
  }
  // The labels of a row of neighbours, read beside it.
  __device__ RowParameter<T> label_pieces(int64_t at) const {
    RowParameter<T> row;
    row.data = static_cast<const char*>(labels) + at * (wide_labels ? sizeof(Acc) : sizeof(T));
    row.wide = wide_labels;
    row.vector = reinterpret_cast<uintptr_t>(row.data) % 16 == 0;
    return row;
  }
  __device__ void store_loss(int64_t row, const RowOffsets& at, Acc value) const {
    if (row_loss) {
      row_loss[row] = value;
    } else {
      loss.store_at(at[kOfLoss], value);
    }
  }
  // The gradient of the sum of the rows' losses, or of their mean, with respect to a row's.
  __device__ Acc scale(const RowOffsets& at) const {
    return (upstream ? upstream.load_at(at[kOfUpstream]) : Acc(1)) / divisor;
  }
};

// ---- Loss and gradient of a row ----------------------------------------------------------------

// Sums of q and of q (shift - x).
template <class Acc>
struct QSums {
  Acc all = 0, below = 0;

  __device__ __forceinline__ void add(Acc q, Acc x, Acc shift) {
    all += q;
    below += q == 0 ? Acc(0) : q * (shift - x);
  }
  __device__ __forceinline__ void move(Acc from, Acc to) { below += all * (to - from); }
  template <class Reduce>
  __device__ __forceinline__ void reduce(Reduce&& sum_of_team) {
    all = sum_of_team(all);
    below = sum_of_team(below);
  }
};

template <class T, class Acc>
__device__ __forceinline__ Acc loss_of(const SoftRows<T>& rows, const SoftmaxSums<Acc>& sums,
                                       const QSums<Acc>& q) {
  const Acc log_sum = log(sums.defined_sum()), lse = sums.max + log_sum;
  const Acc value = q.all * log_sum + q.below;
  return rows.z_loss != 0 ? value + rows.z_loss * lse * lse : value;
}

// exp(x_c - max) factor - scale q_c.
template <class Acc>
struct Gradient {
  Acc max, factor, scale;

  template <class T>
  __device__ __forceinline__ Gradient(const SoftRows<T>& rows, const SoftmaxSums<Acc>& sums,
                                      Acc all, Acc scale_)
      : max(sums.max), scale(scale_) {
    const Acc sum = sums.defined_sum();
    if (rows.z_loss != 0) all += 2 * rows.z_loss * (max + log(sum));
    factor = scale * all / sum;
  }
  template <class Exp>
  __device__ __forceinline__ Acc operator()(Acc x, Acc q, const Exp& exp) const {
    return exp(x - max) * factor - scale * q;
  }
};

// ---- Rows in registers -------------------------------------------------------------------------

// The sums of a row, each thread's from its own maximum: they meet in one reduction.
template <class Acc>
struct alignas(4 * sizeof(Acc)) SoftSums {
  Acc max, sum;    // the largest logit; of exp(x - max), 0 in place of an infinite max
  Acc all, below;  // QSums

  template <class Exp>
  __device__ __forceinline__ SoftSums over_lanes(int count, const Exp& exp) const {
    const Acc largest = reduce_lanes(max, Larger(), count), to = zero_if_infinite(largest);
    return {largest, reduce_lanes(sum * exp(max - to), Sum(), count),
            reduce_lanes(all, Sum(), count),
            reduce_lanes(below + all * (to - zero_if_infinite(max)), Sum(), count)};
  }
};

// f(i, q_of) for each piece of a thread, number i: q_of(k) is q of the thread's element number k.
// kPlain: it is the label itself.
template <bool kPlain, class T, bool kBlocks, class F>
__device__ __forceinline__ void for_pieces(const SoftRows<T>& rows, const RowTeam<kBlocks>& team,
                                           int n, const RowPieces<T, kItems>& labels, F&& f) {
  using Acc = Accumulator<T>;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int first = labels.place(team, i * kPiece<T>);
    Acc w[kPiece<T>] = {};
    if constexpr (!kPlain) rows.weight_pieces.load(first, n, Acc(1), w);
    f(i, [&](int k) {
      const Acc label = static_cast<Acc>(labels.get(k));
      if constexpr (kPlain) return label;
      const int e = k % kPiece<T>;
      return first + e < n ? rows.q(label, w[e]) : Acc(0);
    });
  }
}

// kPlain: rows of whole pieces at multiples of 16 bytes and one stride apart, no class weights, no
// smoothing.
template <class T, bool kBlocks, bool kPlain>
__global__ void __launch_bounds__(kRowThreads, kPlain ? kRowBlocks<T> : 1)
    soft_registers_kernel(const DLK_GRID_CONSTANT SoftRows<T> rows, int team_size, int align,
                          int label_align, int out_align) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < rows.index.numel;
  const int n = there ? static_cast<int>(rows.classes) : 0;
  RowOffsets at;
  row_offsets<kPlain>(rows.index, there ? team.row : 0, at);
  RowPieces<T, kItems> x, labels;
  x.template load<false, kPlain>(rows.logits + at[kOfLogits], n, team, align,
                                 static_cast<T>(-INFINITY));
  labels.template load<false, kPlain>(static_cast<const T*>(rows.labels) + at[kOfLabels], n, team,
                                      label_align, T(0.0f));
  const SoftmaxExp<T> exp;
  const Acc max = reduce_lanes(largest_of(x), Larger(), team.lanes());
  const Acc shift = zero_if_infinite(max);
  Acc sum = 0;
  QSums<Acc> q;
  for_pieces<kPlain>(rows, team, n, labels, [&](int i, auto&& q_of) {
#pragma unroll
    for (int k = i * kPiece<T>; k < (i + 1) * kPiece<T>; ++k) {
      const Acc v = static_cast<Acc>(x.get(k));
      sum += exp(v - shift);
      q.add(q_of(k), v, shift);
    }
  });
  const auto over_warp = [&](Acc v) { return reduce_lanes(v, Sum(), team.lanes()); };
  const auto all = team.reduce_warps(
      SoftSums<Acc>{max, over_warp(sum), over_warp(q.all), over_warp(q.below)},
      [&](const SoftSums<Acc>& v, int count) { return v.over_lanes(count, exp); });
  const SoftmaxSums<Acc> sums{zero_if_infinite(all.max), all.sum};
  q = {all.all, all.below};
  if (rows.loss && there && team.rank == 0) {
    rows.store_loss(team.row, at, loss_of(rows, sums, q));
  }
  if (!rows.gradient) return;
  x.forget(), labels.forget();
  const Gradient<Acc> gradient(rows, sums, q.all, rows.scale(at));
  for_pieces<kPlain>(rows, team, n, labels, [&](int i, auto&& q_of) {
    x.assign(i, [&](T v, int k) { return gradient(static_cast<Acc>(v), q_of(k), exp); });
  });
  x.template store<kPlain>(rows.gradient + at[kOfGradient], n, team, out_align);
}

// ---- Rows in chunks ----------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kChunkThreads)
    soft_chunks_kernel(const DLK_GRID_CONSTANT SoftRows<T> rows, int align, int out_align) {
  using Acc = Accumulator<T>;
  RowTeam<false> team(kChunkThreads);
  RowOffsets at;
  rows.index.offsets(team.row, at);
  const T* x = rows.logits + at[kOfLogits];
  const RowParameter<T> labels = rows.label_pieces(at[kOfLabels]);
  const int n = static_cast<int>(rows.classes);
  // q of the piece that begins at class `first`.
  const auto load_q = [&](int first, Acc(&q)[kPiece<T>]) {
    Acc w[kPiece<T>];
    labels.load(first, n, Acc(0), q);
    rows.weight_pieces.load(first, n, Acc(1), w);
#pragma unroll
    for (int e = 0; e < kPiece<T>; ++e) q[e] = first + e < n ? rows.q(q[e], w[e]) : Acc(0);
  };
  const SoftmaxExp<T> exp;
  QSums<Acc> q;
  const auto sums = softmax_sums(
      team, x, rows.classes, align, exp, [&](Acc old, Acc now) { q.move(old, now); },
      [&](int64_t begin, int, RowChunk<T>& chunk, Acc now) {
#pragma unroll
        for (int i = 0; i < kChunkItems; ++i) {
          Acc values[kPiece<T>];
          load_q(static_cast<int>(begin) + chunk.place(team, i * kPiece<T>), values);
#pragma unroll
          for (int e = 0; e < kPiece<T>; ++e) {
            q.add(values[e], static_cast<Acc>(chunk.get(i * kPiece<T> + e)), now);
          }
        }
      });
  q.reduce([&](Acc v) { return team.reduce(v, Sum{}, Acc(0)); });
  if (rows.loss && team.rank == 0) rows.store_loss(team.row, at, loss_of(rows, sums, q));
  if (!rows.gradient) return;
  const Gradient<Acc> gradient(rows, sums, q.all, rows.scale(at));
  T* out = rows.gradient + at[kOfGradient];
  for_chunks(team, x, rows.classes, align, T(0.0f),
             [&](int64_t begin, int count, RowChunk<T>& chunk) {
#pragma unroll
               for (int i = 0; i < kChunkItems; ++i) {
                 Acc values[kPiece<T>];
                 load_q(static_cast<int>(begin) + chunk.place(team, i * kPiece<T>), values);
                 chunk.assign(i, [&](T v, int k) {
                   return gradient(static_cast<Acc>(v), values[k % kPiece<T>], exp);
                 });
               }
               chunk.store(out + begin, count, team, out_align);
             });
}

// ---- Rows walked -------------------------------------------------------------------------------

struct ExactExp {
  template <class Acc>
  __device__ __forceinline__ Acc operator()(Acc x) const {
    return exp_of(x);
  }
};

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads)
    soft_walked_kernel(const DLK_GRID_CONSTANT SoftRows<T> rows) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  for (int64_t row = team.row; row < rows.index.numel; row += team.row_step) {
    RowOffsets at;
    rows.index.offsets(row, at);
    const T* x = rows.logits + at[kOfLogits];
    const auto logit = [&](int64_t i) { return static_cast<Acc>(x[i * rows.logits_stride]); };
    const auto sums = softmax_sums(team, rows.classes, logit);
    QSums<Acc> q;
    for (int64_t i = team.rank; i < rows.classes; i += team.size) {
      q.add(rows.q_at(at[kOfLabels], i), logit(i), sums.max);
    }
    q.reduce([&](Acc v) { return team.reduce(v, Sum{}, Acc(0)); });
    if (rows.loss && team.rank == 0) rows.store_loss(row, at, loss_of(rows, sums, q));
    if (!rows.gradient) continue;
    const Gradient<Acc> gradient(rows, sums, q.all, rows.scale(at));
    T* out = rows.gradient + at[kOfGradient];
    for (int64_t i = team.rank; i < rows.classes; i += team.size) {
      const Acc g = gradient(logit(i), rows.q_at(at[kOfLabels], i), ExactExp());
      out[i * rows.gradient_stride] = static_cast<T>(g);
    }
  }
}

// ---- Sum over rows -----------------------------------------------------------------------------

// One column, the rows are the positions.
template <class T>
struct LossSum {
  using Acc = Accumulator<T>;
  SoftRows<T> rows;

  __device__ Sums<Acc, 1> load(int64_t, int64_t row) const { return {{rows.row_loss[row]}}; }
  __device__ void finish(int64_t, const Sums<Acc, 1>& sums) const {
    rows.loss.store_at(0, sums.v[0] / rows.divisor);
  }
};

ColumnTiles tiles_of(const SoftCrossEntropy& p) { return {p.rows(), 1, false}; }

// The losses of the rows, and partial sums of them.
size_t workspace_bytes(const SoftCrossEntropy& p) {
  if (!p.loss || p.reduction == DLK_REDUCTION_NONE) return 0;
  const size_t numbers = tiles_of(p).partials() + static_cast<size_t>(p.rows());
  return numbers * dtype_size(accumulator_of(p.logits.dtype));
}

// ---- Launch ------------------------------------------------------------------------------------

// launch_kernels(rows).
template <class T, class F>
void run(const SoftCrossEntropy& p, const Launch& launch, F&& launch_kernels) {
  SoftRows<T> rows(p);
  const bool summed = workspace_bytes(p) > 0;
  auto* const partial = static_cast<Sums<Accumulator<T>, 1>*>(launch.workspace);
  if (summed) rows.row_loss = &partial[tiles_of(p).partials()].v[0];
  launch_kernels(rows);
  if (summed) reduce_columns(LossSum<T>{rows}, tiles_of(p), partial, launch.stream);
}

template <class T>
void launch_registers(const SoftCrossEntropy& p, const Launch& launch) {
  run<T>(p, launch, [&](const SoftRows<T>& rows) {
    const RowPlan plan = plan_row(rows.classes, kPiece<T>, kItems, kItems);
    const int align = row_alignment(rows.logits, rows.index, kOfLogits, sizeof(T)),
              label_align = row_alignment(rows.labels, rows.index, kOfLabels, sizeof(T)),
              out_align = row_alignment(rows.gradient, rows.index, kOfGradient, sizeof(T));
    const bool plain = !p.weight && p.smoothing == 0 &&
                       rows_are_plain(rows.index, rows.classes, kPiece<T>,
                                      std::min({align, label_align, out_align}));
    const auto pick = [&]<bool kPlain>() {
      return plan.blocks() > 1 ? soft_registers_kernel<T, true, kPlain>
                               : soft_registers_kernel<T, false, kPlain>;
    };
    const auto kernel =
        plain ? pick.template operator()<true>() : pick.template operator()<false>();
    launch_rows(kernel, plan, rows.index.numel, launch.stream, rows, plan.size, align, label_align,
                out_align);
  });
}

template <class T>
void launch_chunked(const SoftCrossEntropy& p, const Launch& launch) {
  run<T>(p, launch, [&](const SoftRows<T>& rows) {
    launch_chunks(soft_chunks_kernel<T>, rows.index.numel, launch.stream, rows,
                  row_alignment(rows.logits, rows.index, kOfLogits, sizeof(T)),
                  row_alignment(rows.gradient, rows.index, kOfGradient, sizeof(T)));
  });
}

template <class T>
void launch_walked(const SoftCrossEntropy& p, const Launch& launch) {
  run<T>(p, launch, [&](const SoftRows<T>& rows) {
    const RowConfig config = pick_rows(rows.classes, p.axis == p.logits.ndim - 1);
    dispatch_group(config.group, [&]<Group kGroup>() {
      launch_kernel(soft_walked_kernel<T, kGroup>, grid_for(config.blocks(rows.index.numel), 1, 16),
                    config.threads, 0, launch.stream, rows);
    });
  });
}

// Class weights are read in pieces beside the rows.
const char* not_in_pieces(const SoftCrossEntropy& p) {
  const bool apart = p.weight && p.weight.strides[0] != 1 && p.classes() != 1;
  return apart ? "class weights are not neighbours" : nullptr;
}

const char* not_held(const SoftCrossEntropy& p) {
  if (const char* reason = not_in_pieces(p)) return reason;
  if (p.labels.dtype != p.logits.dtype) return "labels are wider than logits";
  return p.dlogits ? not_in_registers({&p.logits, &p.labels, &p.dlogits}, p.axis, kItems)
                   : not_in_registers({&p.logits, &p.labels}, p.axis, kItems);
}

const char* not_chunked(const SoftCrossEntropy& p) {
  if (const char* reason = not_in_pieces(p)) return reason;
  return p.dlogits ? not_in_chunks({&p.logits, &p.labels, &p.dlogits}, p.axis)
                   : not_in_chunks({&p.logits, &p.labels}, p.axis);
}

constexpr Impl<SoftCrossEntropy> kSoft[] = {
    {"registers", not_held, workspace_bytes,
     [](const SoftCrossEntropy& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_registers<T>(p, launch); });
     }},
    {"chunks", not_chunked, workspace_bytes,
     [](const SoftCrossEntropy& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_chunked<T>(p, launch); });
     }},
    {"rows", supports_all, workspace_bytes,
     [](const SoftCrossEntropy& p, const Launch& launch) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { launch_walked<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<SoftCrossEntropy> gpu_impls<SoftCrossEntropy>() {
  return kSoft;
}

}  // namespace dlkern
