// What the kernels of cross entropy share: rows and their labels, the loss of a row, sums over rows.
//
//   loss      -(1 - e) w_t logp_t - e / C * sum_c w_c logp_c + z lse^2,  logp = x - lse,
//             lse = logsumexp(x) = m + log_sum, m = max x
//           = (1 - e) w_t (log_sum + m - x_t) + e / C * sum_c w_c (log_sum + m - x_c) + z lse^2
//   gradient  s [(1 - e) w_t (p_c - (c == t)) + e / C * (p_c sum_k w_k - w_c) + 2 z lse p_c]
//
// A label out of range is never used as an index: its row becomes NaN.
#pragma once

#include "core/mixed.h"
#include "cuda/prims/columns.cuh"
#include "cuda/prims/row_pieces.cuh"
#include "cuda/prims/rows.cuh"
#include "cuda/prims/softmax.cuh"
#include "ops/loss.h"

namespace dlkern::gpu {

// ---- Rows --------------------------------------------------------------------------------------

// Offsets of a row in the tensors that have rows.
enum RowTensor { kOfLogits, kOfGradient, kOfLabels, kOfUpstream, kOfLoss, kRowTensors };
using RowOffsets = int64_t[kRowTensors];

template <class T>
struct Rows {
  using Acc = Accumulator<T>;
  StridedIndex<kRowTensors> index;
  int64_t count, classes;
  const T* logits;
  int64_t stride;
  T* gradient = nullptr;
  int64_t gradient_stride = 1;
  const void* labels;
  bool wide_labels;  // int64
  int64_t ignore_index;
  MixedView<T> weight;
  int64_t weight_stride;
  RowParameter<T> smooth_weight;  // weight, where there is smoothing: beside rows in registers
  MixedView<T> upstream, loss;    // absent: 1, not wanted
  Acc* row_loss = nullptr;        // where the losses of the rows go that are to be summed
  Acc* total = nullptr;           // what upstream gradients are divided by, or nullptr
  Acc smoothing, share, z_loss;
  bool smooth;

  Rows(const CrossEntropy& p, const Tensor& dlogits, const Tensor& dloss, const Tensor& loss_)
      : count(p.rows()),
        classes(p.classes()),
        logits(p.logits.as<const T>()),
        stride(p.logits.strides[p.axis]),
        labels(p.labels.data),
        wide_labels(p.labels.dtype == DType::kInt64),
        ignore_index(p.ignore_index),
        weight(p.weight),
        weight_stride(p.weight ? p.weight.strides[0] : 0),
        smooth_weight(p.smoothing != 0 ? weight : MixedView<T>()),
        upstream(dloss),
        loss(loss_),
        smoothing(static_cast<Acc>(p.smoothing)),
        share(static_cast<Acc>(p.smoothing) / static_cast<Acc>(classes)),
        z_loss(static_cast<Acc>(p.z_loss)),
        smooth(p.smoothing != 0) {
    const Tensor none{};
    const bool per_row = p.reduction == DLK_REDUCTION_NONE;
    index = make_index<kRowTensors>(
        {&p.logits, &dlogits, &p.labels, per_row ? &dloss : &none, per_row ? &loss_ : &none},
        ~(1u << p.axis));
    if (dlogits) gradient = dlogits.as<T>(), gradient_stride = dlogits.strides[p.axis];
  }

  __device__ int64_t label(int64_t at) const {
    return wide_labels ? static_cast<const int64_t*>(labels)[at]
                       : static_cast<const int32_t*>(labels)[at];
  }
  __device__ bool counts(int64_t label) const {
    return label != ignore_index && label >= 0 && label < classes;
  }
  __device__ Acc class_weight(int64_t c) const {
    return weight ? weight.load_at(c * weight_stride) : Acc(1);
  }
  // What row number `row` counts in the mean.
  __device__ Acc row_weight(int64_t row) const {
    RowOffsets at;
    index.offsets(row, at);
    const int64_t t = label(at[kOfLabels]);
    return counts(t) ? class_weight(t) : Acc(0);
  }
  __device__ bool wants_loss() const { return static_cast<bool>(loss); }
  __device__ void store_loss(int64_t row, const RowOffsets& at, Acc value) const {
    if (row_loss) {
      row_loss[row] = value;
    } else {
      loss.store_at(at[kOfLoss], value);
    }
  }
  // The gradient of the sum of the rows' losses with respect to a row's.
  __device__ Acc scale(const RowOffsets& at) const {
    const Acc v = upstream ? upstream.load_at(at[kOfUpstream]) : Acc(1);
    return total ? v / *total : v;
  }
};

// A row's label, and what belongs to it.
template <class T>
struct Target {
  using Acc = Accumulator<T>;
  int64_t label;
  bool counts;
  Acc instead;  // loss and gradient of a row that does not count, or whose label is out of range
  Acc logit = 0, weight = 1;  // of the label

  __device__ Target(const Rows<T>& rows, int64_t label_)
      : label(label_),
        counts(rows.counts(label_)),
        instead(label_ == rows.ignore_index ? Acc(0) : Acc(NAN)) {}
  // What lies at the label. x: the row.
  __device__ void load(const Rows<T>& rows, const T* x) {
    if (!counts) return;
    logit = static_cast<Acc>(x[label * rows.stride]);
    weight = rows.class_weight(label);
  }
};

// ---- Loss and gradient of a row ----------------------------------------------------------------

// Sums of w_c and of w_c (shift - x_c), for smoothing.
template <class T>
struct Spread {
  using Acc = Accumulator<T>;
  Acc weights = 0, sum = 0;

  __device__ __forceinline__ void move(Acc from, Acc to) { sum += weights * (to - from); }
  __device__ __forceinline__ void add(Acc w, Acc x, Acc shift) {
    weights += w;
    sum += w * (shift - x);
  }
  // The elements of a thread's pieces of a row, or of a chunk of it that begins at element `first`
  // and has n elements.
  template <int kItems, bool kBlocks>
  __device__ __forceinline__ void add(const RowPieces<T, kItems>& row,
                                      const RowParameter<T>& weight, const RowTeam<kBlocks>& team,
                                      int64_t first, int n, Acc shift) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int at = row.place(team, i * kPiece<T>);
      Acc w[kPiece<T>];
      weight.load(first + at, first + n, Acc(1), w);
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        if (at + e < n) add(w[e], static_cast<Acc>(row.get(i * kPiece<T> + e)), shift);
      }
    }
  }
  // The same of whole pieces where all weights are 1.
  template <int kItems, bool kBlocks>
  __device__ __forceinline__ void add(RowPieces<T, kItems>& row, const RowTeam<kBlocks>& team,
                                      int n, Acc shift) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      row.piece[i].forget();
      if (row.place(team, i * kPiece<T>) >= n) continue;
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        add(Acc(1), static_cast<Acc>(row.get(i * kPiece<T> + e)), shift);
      }
    }
  }
  template <class Reduce>
  __device__ __forceinline__ void reduce(Reduce&& sum_of_team) {
    weights = sum_of_team(weights);
    sum = sum_of_team(sum);
  }
};

template <class T, class Acc>
__device__ __forceinline__ Acc loss_of(const Rows<T>& rows, const Target<T>& target,
                                       const SoftmaxSums<Acc>& sums, const Spread<T>& spread) {
  const Acc log_sum = log(sums.defined_sum()), lse = sums.max + log_sum;
  Acc value = (1 - rows.smoothing) * target.weight * (log_sum - (target.logit - sums.max));
  if (rows.smooth) value += rows.share * (spread.weights * log_sum + spread.sum);
  if (rows.z_loss != 0) value += rows.z_loss * lse * lse;
  return target.counts ? value : target.instead;
}

// exp(x_c - max) factor - less w_c, and `hit` less at the label.
template <class T>
struct Gradient {
  using Acc = Accumulator<T>;
  Acc max, factor, less, hit;

  __device__ __forceinline__ Gradient(const Rows<T>& rows, const Target<T>& target,
                                      const SoftmaxSums<Acc>& sums, Acc weights, Acc scale)
      : max(sums.max) {
    const Acc sum = sums.defined_sum(), own = (1 - rows.smoothing) * target.weight;
    Acc all = own + rows.share * weights;
    if (rows.z_loss != 0) all += 2 * rows.z_loss * (max + log(sum));
    factor = scale * all / sum;
    less = scale * rows.share;
    hit = scale * own;
  }
  template <class Exp>
  __device__ __forceinline__ Acc operator()(Acc x, Acc w, const Exp& exp) const {
    return exp(x - max) * factor - less * w;
  }
};

// ---- Sums over rows ----------------------------------------------------------------------------

// Sums of the losses and the weights of all rows: one column, the rows are the positions.
template <class T>
struct LossSums {
  using Acc = Accumulator<T>;
  Rows<T> rows;
  bool mean;

  __device__ Sums<Acc, 2> load(int64_t, int64_t row) const {
    return {{rows.row_loss[row], mean ? rows.row_weight(row) : Acc(0)}};
  }
  __device__ void finish(int64_t, const Sums<Acc, 2>& sums) const {
    rows.loss.store_at(0, mean ? sums.v[0] / sums.v[1] : sums.v[0]);
  }
};

// The sum of the weights of all rows, for the gradient of a mean.
template <class T>
struct WeightSums {
  using Acc = Accumulator<T>;
  Rows<T> rows;

  __device__ Sums<Acc, 1> load(int64_t, int64_t row) const { return {{rows.row_weight(row)}}; }
  __device__ void finish(int64_t, const Sums<Acc, 1>& sums) const { *rows.total = sums.v[0]; }
};

// What sums over rows need: partial sums, the losses of the rows, and the sum of weights.
template <class T>
struct RowSums {
  using Acc = Accumulator<T>;
  ColumnTiles tiles;
  void* partial;
  bool mean;

  static ColumnTiles tiles_of(const CrossEntropy& p) { return {p.rows(), 1, false}; }
  static size_t workspace_bytes(const CrossEntropy& p) {
    if (p.reduction == DLK_REDUCTION_NONE) return 0;
    return (2 * tiles_of(p).partials() + static_cast<size_t>(p.rows()) + 1) * sizeof(Acc);
  }

  // Gives the rows their places in the workspace.
  RowSums(const CrossEntropy& p, Rows<T>& rows, void* workspace)
      : tiles(tiles_of(p)), partial(workspace), mean(p.reduction == DLK_REDUCTION_MEAN) {
    if (p.reduction == DLK_REDUCTION_NONE) return;
    rows.row_loss = static_cast<Acc*>(workspace) + 2 * tiles.partials();
    if (mean) rows.total = rows.row_loss + p.rows();
  }
  // Before the gradients are computed.
  void weights(const Rows<T>& rows, void* stream) const {
    if (!mean) return;
    reduce_columns(WeightSums<T>{rows}, tiles, static_cast<Sums<Acc, 1>*>(partial), stream);
  }
  // After the losses of the rows have been.
  void losses(const Rows<T>& rows, void* stream) const {
    if (!rows.row_loss) return;
    reduce_columns(LossSums<T>{rows, mean}, tiles, static_cast<Sums<Acc, 2>*>(partial), stream);
  }
};

template <class Problem>
size_t row_sums_bytes(const Problem& p) {
  return p.logits.dtype == DType::kFloat64 ? RowSums<double>::workspace_bytes(p)
                                           : RowSums<float>::workspace_bytes(p);
}

// Class weights with smoothing are read in pieces beside the rows.
inline const char* weights_not_in_pieces(const CrossEntropy& p) {
  const bool apart = p.weight && p.weight.strides[0] != 1 && p.classes() != 1;
  return apart && p.smoothing != 0 ? "class weights are not neighbours" : nullptr;
}

// Whether rows need none of what kernels' plain instances leave out.
template <class T>
bool is_plain(const Rows<T>& rows, int align) {
  const bool weighted = rows.smooth && rows.weight;
  return rows_are_plain(rows.index, rows.classes, kPiece<T>, align) && !weighted;
}

// ---- Rows walked by groups of threads (prims/rows.cuh) -------------------------------------------

template <class T, Group kGroup>
__device__ SoftmaxSums<Accumulator<T>> walked_sums(const Rows<T>& rows, const Team<kGroup>& team,
                                                   const T* x) {
  const int64_t stride = rows.stride;
  return softmax_sums(team, rows.classes,
                      [=](int64_t i) { return static_cast<Accumulator<T>>(x[i * stride]); });
}
template <class T, Group kGroup>
__device__ Spread<T> walked_spread(const Rows<T>& rows, const Team<kGroup>& team, const T* x,
                                   Accumulator<T> max) {
  Spread<T> spread;
  if (!rows.smooth) return spread;
  for (int64_t i = team.rank; i < rows.classes; i += team.size) {
    spread.add(rows.class_weight(i), static_cast<Accumulator<T>>(x[i * rows.stride]), max);
  }
  spread.reduce([&](Accumulator<T> v) { return team.reduce(v, Sum{}, Accumulator<T>(0)); });
  return spread;
}

}  // namespace dlkern::gpu
