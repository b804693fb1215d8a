// Cross entropy of logits against probabilities of the classes on the CPU. Rows as in loss.cpp: long
// contiguous ones one at a time, vectorised over the classes; short or strided ones in tiles of
// neighbouring rows, vectorised over the rows, to the same bits.
#include <cmath>
#include <vector>

#include "core/fast_math.h"
#include "core/index.h"
#include "core/mixed.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/row_tile.h"
#include "cpu/prims/spans.h"
#include "ops/loss.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 16384;  // elements worth a thread

// What q (max - x) adds to the loss of a row.
template <class Acc>
Acc term(Acc q, Acc x, Acc max) {
  return q == 0 ? Acc(0) : q * (max - x);
}

// T: type of the logits, U: of the probabilities.
template <class T, class U>
struct SoftRows {
  using Acc = Accumulator<T>;
  enum { kLogits, kLabels, kGradient, kTensors };

  const SoftCrossEntropy& p;
  StridedIndex<kTensors> index;
  int64_t classes, stride[kTensors];
  std::vector<Acc> weight, loss;  // of the classes; of the rows
  MixedView<T> upstream;
  Acc keep, share, z_loss, divisor;

  explicit SoftRows(const SoftCrossEntropy& p_)
      : p(p_),
        index(make_index<kTensors>({&p.logits, &p.labels, &p.dlogits}, ~(1u << p.axis))),
        classes(p.classes()),
        weight(classes, 1),
        loss(p.loss ? p.rows() : 0),
        upstream(p.dloss),
        keep(static_cast<Acc>(1 - p.smoothing)),
        share(static_cast<Acc>(p.smoothing) / classes),
        z_loss(static_cast<Acc>(p.z_loss)),
        divisor(static_cast<Acc>(p.divisor())) {
    const Tensor* tensors[] = {&p.logits, &p.labels, &p.dlogits};
    for (int k = 0; k < kTensors; ++k) stride[k] = *tensors[k] ? tensors[k]->strides[p.axis] : 0;
    const MixedView<T> view(p.weight);
    for (int64_t c = 0; view && c < classes; ++c) weight[c] = view.load(c);
  }
  const T* logits(int64_t at) const { return p.logits.as<const T>() + at; }
  const U* labels(int64_t at) const { return p.labels.as<const U>() + at; }
  T* gradient(int64_t at) const { return p.dlogits.as<T>() + at; }

  // The loss of a row, from its maximum, the logarithm of its sum of exponentials, the sums of q
  // and of q (max - x).
  Acc loss_of(Acc max, Acc log_sum, Acc all, Acc below) const {
    const Acc lse = max + log_sum;
    return all * log_sum + below + (z_loss == 0 ? Acc(0) : z_loss * lse * lse);
  }
  Acc scale(int64_t row) const {
    return upstream.load_or(p.reduction == DLK_REDUCTION_NONE ? row : 0, 1) / divisor;
  }
  // What exp(x - max) is multiplied by in the gradient.
  Acc factor(Acc scale, Acc max, Acc sum, Acc all) const {
    return scale * (all + (z_loss == 0 ? Acc(0) : 2 * z_loss * (max + std::log(sum)))) / sum;
  }
};

// ---- A row at a time -----------------------------------------------------------------------------

// x: logits, neighbours of type Acc. q: work space for the probabilities, and what is written where
// a gradient is wanted may be x.
template <class T, class U, class Acc>
void finish_row(SoftRows<T, U>& rows, int64_t row, const Acc* x, const Acc* q, Acc* out) {
  const int64_t n = rows.classes;
  const Acc m = max_of(x, n);
  const Acc all = sum_of<Acc>(n, [&](int64_t i) { return q[i]; });
  const Acc below =
      rows.loss.empty() ? Acc(0) : sum_of<Acc>(n, [&](int64_t i) { return term(q[i], x[i], m); });
  Acc sum;
  if (out) {
    DLK_SIMD
    for (int64_t i = 0; i < n; ++i) out[i] = exp_fast(x[i] - m);
    sum = sum_of<Acc>(n, [&](int64_t i) { return out[i]; });
    const Acc scale = rows.scale(row), factor = rows.factor(scale, m, sum, all);
    DLK_SIMD
    for (int64_t i = 0; i < n; ++i) out[i] = out[i] * factor - scale * q[i];
  } else {
    sum = sum_of<Acc>(n, [&](int64_t i) { return exp_fast(x[i] - m); });
  }
  if (!rows.loss.empty()) rows.loss[row] = rows.loss_of(m, std::log(sum), all, below);
}

template <class T, class U>
void compute_rows(SoftRows<T, U>& rows) {
  using Acc = Accumulator<T>;
  using Rows = SoftRows<T, U>;
  const int64_t n = rows.classes;
  const Acc *w = rows.weight.data(), keep = rows.keep, share = rows.share;
  parallel_for(rows.index.numel, kGrain / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> x_buffer(n), q(n);
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[Rows::kTensors];
      rows.index.offsets(row, at);
      const Acc* x = read_span(rows.logits(at[Rows::kLogits]), 1, n, x_buffer.data());
      load_span(rows.labels(at[Rows::kLabels]), rows.stride[Rows::kLabels], n, q.data());
      DLK_SIMD
      for (int64_t i = 0; i < n; ++i) q[i] = w[i] * (keep * q[i] + share);
      if (!rows.p.dlogits) {
        finish_row(rows, row, x, q.data(), static_cast<Acc*>(nullptr));
        continue;
      }
      T* dst = rows.gradient(at[Rows::kGradient]);
      Acc* out = begin_span(dst, rows.stride[Rows::kGradient], x_buffer.data());
      finish_row(rows, row, x, q.data(), out);
      finish_span(out, dst, rows.stride[Rows::kGradient], n);
    }
  });
}

// ---- Tiles of rows -------------------------------------------------------------------------------

template <class T, class U>
class SoftTile {
 public:
  using Acc = Accumulator<T>;
  using Rows = SoftRows<T, U>;

  SoftTile(Rows& rows, const Blocks<Rows::kTensors>& tiles)
      : rows_(rows),
        tiles_(tiles),
        logits_(rows.classes, tiles.size()),
        labels_(rows.classes, tiles.size()),
        result_(rows.classes, tiles.size()),
        q_(rows.classes * tiles.size()),
        all_(tiles.size()),
        below_(tiles.size()),
        scale_(tiles.size()),
        work_(kLanes * tiles.size()) {}

  void compute(const typename Blocks<Rows::kTensors>::Block& block) {
    load(block);
    const Acc* sum = logits_.sum_exp(0);
    if (!rows_.loss.empty()) store_losses(block.first, sum);
    if (rows_.p.dlogits) store_gradients(block, sum);
  }

 private:
  void load(const typename Blocks<Rows::kTensors>::Block& block) {
    logits_.load(rows_.logits(block.at[Rows::kLogits]), rows_.stride[Rows::kLogits],
                 tiles_.stride(Rows::kLogits), block.n);
    labels_.load(rows_.labels(block.at[Rows::kLabels]), rows_.stride[Rows::kLabels],
                 tiles_.stride(Rows::kLabels), block.n);
    const Acc keep = rows_.keep, share = rows_.share;
    for (int64_t c = 0; c < rows_.classes; ++c) {
      const Acc *t = labels_[c], w = rows_.weight[c];
      Acc* q = of_class(c);
      DLK_SIMD
      for (int64_t r = 0; r < block.n; ++r) q[r] = w * (keep * t[r] + share);
    }
    sum_elements(rows_.classes, block.n, all_.data(), work_.data(), [&](int64_t c, Acc* to) {
      const Acc* q = of_class(c);
      DLK_SIMD
      for (int64_t r = 0; r < block.n; ++r) to[r] += q[r];
    });
  }
  void store_losses(int64_t first, const Acc* sum) {
    const Acc* m = logits_.max.data();
    sum_elements(rows_.classes, logits_.rows, below_.data(), work_.data(), [&](int64_t c, Acc* to) {
      const Acc *q = of_class(c), *x = logits_.element[c];
      DLK_SIMD
      for (int64_t r = 0; r < logits_.rows; ++r) to[r] += term(q[r], x[r], m[r]);
    });
    for (int64_t r = 0; r < logits_.rows; ++r) {
      rows_.loss[first + r] = rows_.loss_of(m[r], std::log(sum[r]), all_[r], below_[r]);
    }
  }
  void store_gradients(const typename Blocks<Rows::kTensors>::Block& block, const Acc* sum) {
    Acc *scale = scale_.data(), *factor = all_.data();
    const Acc* m = logits_.max.data();
    for (int64_t r = 0; r < block.n; ++r) {
      scale[r] = rows_.scale(block.first + r);
      factor[r] = rows_.factor(scale[r], m[r], sum[r], all_[r]);
    }
    result_.open(rows_.gradient(block.at[Rows::kGradient]), rows_.stride[Rows::kGradient],
                 tiles_.stride(Rows::kGradient), block.n);
    for (int64_t c = 0; c < rows_.classes; ++c) {
      const Acc *q = of_class(c), *x = logits_.element[c];
      result_.put(c, [&](Acc* out) {
        DLK_SIMD
        for (int64_t r = 0; r < block.n; ++r) {
          out[r] = exp_fast(x[r] - m[r]) * factor[r] - scale[r] * q[r];
        }
      });
    }
  }
  Acc* of_class(int64_t c) { return q_.data() + c * logits_.rows; }

  Rows& rows_;
  const Blocks<Rows::kTensors>& tiles_;
  RowTile<T> logits_;
  TileInput<U, Acc> labels_;
  TileOutput<T> result_;
  std::vector<Acc> q_;                    // [class][row]
  std::vector<Acc> all_, below_, scale_;  // of the rows
  std::vector<Acc> work_;
};

template <class T, class U>
void compute_tiles(SoftRows<T, U>& rows) {
  const auto tiles = tiles_of(rows.index, rows.classes);
  const int64_t grain = kGrain / ((rows.classes + 1) * tiles.size() + 1);
  parallel_for(tiles.count(), grain, [&](int64_t begin, int64_t end) {
    SoftTile<T, U> tile(rows, tiles);
    for (int64_t i = begin; i < end; ++i) tile.compute(tiles[i]);
  });
}

template <class T, class U>
void compute(const SoftCrossEntropy& p) {
  using Acc = Accumulator<T>;
  SoftRows<T, U> rows(p);
  if (in_tiles(rows.classes, rows.stride[rows.kLogits])) {
    compute_tiles(rows);
  } else {
    compute_rows(rows);
  }
  if (!p.loss) return;
  const MixedView<T> out(p.loss);
  if (p.reduction == DLK_REDUCTION_NONE) {
    for (int64_t row = 0; row < p.rows(); ++row) out.store(row, rows.loss[row]);
  } else {
    out.store(0, sum_of<Acc>(p.rows(), [&](int64_t i) { return rows.loss[i]; }) / rows.divisor);
  }
}

constexpr Impl<SoftCrossEntropy> kSoft[] = {
    {"cpu_row", supports_all, nullptr,
     [](const SoftCrossEntropy& p, const Launch&) {
       dispatch_floating(p.logits.dtype, [&]<class T>() {
         if (p.labels.dtype == p.logits.dtype) {
           compute<T, T>(p);
         } else {
           compute<T, Accumulator<T>>(p);
         }
       });
     }},
};

}  // namespace

template <>
ImplList<SoftCrossEntropy> cpu_impls<SoftCrossEntropy>() {
  return kSoft;
}

}  // namespace dlkern
