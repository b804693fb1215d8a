// Cross entropy on the CPU. All labels are checked before anything is written. Rows go in parallel:
// long contiguous ones one at a time, vectorised over the classes; short or strided ones in tiles of
// neighbouring rows, vectorised over the rows. Losses of the rows are kept and summed in an order
// that depends on their number alone.
#include "ops/loss.h"

#include <algorithm>
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

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 16384;  // elements worth a thread

std::vector<int64_t> checked_labels(const CrossEntropy& p) {
  std::vector<int64_t> labels(p.rows());
  const auto index = make_index<1>({&p.labels});
  dispatch_index(p.labels.dtype, [&]<class Index>() {
    for (int64_t i = 0; i < p.rows(); ++i) {
      int64_t at[1];
      index.offsets(i, at);
      labels[i] = p.labels.as<const Index>()[at[0]];
      check_label(p, labels[i], i);
    }
  });
  return labels;
}

// Class weights, and what follows from them.
template <class T>
struct Weights {
  using Acc = Accumulator<T>;
  std::vector<Acc> of_class;
  Acc all = 0;  // their sum

  explicit Weights(const CrossEntropy& p) : of_class(p.classes(), 1) {
    const MixedView<T> view(p.weight);
    for (int64_t c = 0; view && c < p.classes(); ++c) of_class[c] = view.load(c);
    all = sum_of<Acc>(p.classes(), [&](int64_t c) { return of_class[c]; });
  }
  // Sum over the rows that count.
  Acc total(const CrossEntropy& p, const std::vector<int64_t>& labels) const {
    return sum_of<Acc>(labels.size(), [&](int64_t i) {
      return labels[i] == p.ignore_index ? Acc(0) : of_class[labels[i]];
    });
  }
};

// What both directions know of the rows.
template <class T>
struct Rows {
  using Acc = Accumulator<T>;
  std::vector<int64_t> labels;
  Weights<T> weights;
  int64_t classes, ignore_index;
  Acc smoothing, share, z_loss;

  explicit Rows(const CrossEntropy& p)
      : labels(checked_labels(p)),
        weights(p),
        classes(p.classes()),
        ignore_index(p.ignore_index),
        smoothing(static_cast<Acc>(p.smoothing)),
        share(static_cast<Acc>(p.smoothing) / classes),
        z_loss(static_cast<Acc>(p.z_loss)) {}
  bool ignored(int64_t row) const { return labels[row] == ignore_index; }
  // Weight of the label's own term.
  Acc hit(int64_t row) const { return (1 - smoothing) * weights.of_class[labels[row]]; }
  // The loss of a row, from its maximum, the logarithm of its sum of exponentials, x - max at the
  // label, and sum_c w_c (x_c - max) where there is smoothing.
  Acc loss(int64_t row, Acc max, Acc log_sum, Acc own, Acc spread) const {
    const Acc lse = max + log_sum;
    return hit(row) * (log_sum - own) + share * (weights.all * log_sum - spread) +
           z_loss * lse * lse;
  }
  // What exp(x - max) is multiplied by in the gradient, for a row whose loss has gradient `scale`.
  Acc factor(int64_t row, Acc scale, Acc max, Acc sum) const {
    const Acc z = z_loss == 0 ? Acc(0) : 2 * z_loss * (max + std::log(sum));
    return scale * (hit(row) + share * weights.all + z) / sum;
  }
};

// The loss of a row x whose maximum is known, without its logarithm: that of the sum of exponentials
// may come later, from what the gradient computes.
template <class Acc>
struct RowTerms {
  Acc own, spread = 0;

  template <class T>
  RowTerms(const Rows<T>& rows, int64_t row, const Acc* x, Acc m) : own(x[rows.labels[row]] - m) {
    if (rows.smoothing == 0) return;
    const Acc* w = rows.weights.of_class.data();
    spread = sum_of<Acc>(rows.classes, [&](int64_t i) { return w[i] * (x[i] - m); });
  }
};

template <class T>
void losses_of_rows(const CrossEntropyForward& p, const Rows<T>& rows, Accumulator<T>* loss) {
  using Acc = Accumulator<T>;
  const auto index = make_index<1>({&p.logits}, ~(1u << p.axis));
  const int64_t n = rows.classes;
  parallel_for(p.rows(), kGrain / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(std::is_same_v<T, Acc> ? 0 : n);
    for (int64_t row = begin; row < end; ++row) {
      if (rows.ignored(row)) continue;
      int64_t at[1];
      index.offsets(row, at);
      const Acc* x = read_span(p.logits.as<const T>() + at[0], 1, n, buffer.data());
      const Acc m = max_of(x, n);
      const RowTerms<Acc> terms(rows, row, x, m);
      const Acc log_sum = std::log(sum_of<Acc>(n, [&](int64_t i) { return exp_fast(x[i] - m); }));
      loss[row] = rows.loss(row, m, log_sum, terms.own, terms.spread);
    }
  });
}

// Of the rows of a tile whose sums of exponentials are sum[]; uses its work space 1.
template <class T, class Acc>
void losses_of_tile(const Rows<T>& rows, RowTile<T>& tile, int64_t first, const Acc* sum,
                    Acc* loss) {
  const Acc *w = rows.weights.of_class.data(), *spread = nullptr;
  if (rows.smoothing != 0) {
    spread = tile.sum(1, [&](int64_t c, Acc x, Acc m) { return w[c] * (x - m); });
  }
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t row = first + r;
    if (rows.ignored(row)) continue;
    const Acc m = tile.max[r], own = tile.element[rows.labels[row]][r] - m;
    loss[row] = rows.loss(row, m, std::log(sum[r]), own, spread ? spread[r] : Acc(0));
  }
}

template <class T>
void losses_of_tiles(const CrossEntropyForward& p, const Rows<T>& rows, Accumulator<T>* loss) {
  const int64_t n = rows.classes;
  const auto tiles = tiles_of(make_index<1>({&p.logits}, ~(1u << p.axis)), n);
  const int64_t grain = kGrain / ((n + 1) * tiles.size() + 1);
  parallel_for(tiles.count(), grain, [&](int64_t begin, int64_t end) {
    RowTile<T> tile(n, tiles.size());
    for (int64_t i = begin; i < end; ++i) {
      const auto block = tiles[i];
      tile.load(p.logits.as<const T>() + block.at[0], p.logits.strides[p.axis], tiles.stride(0),
                block.n);
      losses_of_tile(rows, tile, block.first, tile.sum_exp(0), loss);
    }
  });
}

// Writes the loss from those of the rows.
template <class T>
void reduce(const CrossEntropy& p, const Rows<T>& rows, const std::vector<Accumulator<T>>& loss,
            const Tensor& to) {
  using Acc = Accumulator<T>;
  const MixedView<T> out(to);
  if (p.reduction == DLK_REDUCTION_NONE) {
    for (int64_t row = 0; row < p.rows(); ++row) out.store(row, loss[row]);
    return;
  }
  const Acc sum = sum_of<Acc>(p.rows(), [&](int64_t i) { return loss[i]; });
  out.store(0, p.reduction == DLK_REDUCTION_SUM ? sum : sum / rows.weights.total(p, rows.labels));
}

template <class T>
void forward(const CrossEntropyForward& p) {
  using Acc = Accumulator<T>;
  const Rows<T> rows(p);
  std::vector<Acc> loss(p.rows());
  if (in_tiles(rows.classes, p.logits.strides[p.axis])) {
    losses_of_tiles<T>(p, rows, loss.data());
  } else {
    losses_of_rows<T>(p, rows, loss.data());
  }
  reduce<T>(p, rows, loss, p.loss);
}

// Gradients of the rows with respect to their losses.
template <class T>
struct Upstream {
  using Acc = Accumulator<T>;
  MixedView<T> dloss;
  bool per_row;
  Acc over;

  Upstream(const CrossEntropy& p, const Tensor& dloss_, const Rows<T>& rows)
      : dloss(dloss_),
        per_row(p.reduction == DLK_REDUCTION_NONE),
        over(p.reduction == DLK_REDUCTION_MEAN ? rows.weights.total(p, rows.labels) : Acc(1)) {}
  Acc operator()(int64_t row) const { return dloss.load_or(per_row ? row : 0, 1) / over; }
};

// `loss`, of each row, is computed too where it is not nullptr.
template <class T>
void gradients_of_rows(const CrossEntropyBackward& p, const Rows<T>& rows, Accumulator<T>* loss) {
  using Acc = Accumulator<T>;
  const auto index = make_index<2>({&p.logits, &p.dlogits}, ~(1u << p.axis));
  const int64_t n = rows.classes, stride = p.dlogits.strides[p.axis];
  const Upstream<T> upstream(p, p.dloss, rows);
  const Acc* w = rows.weights.of_class.data();
  parallel_for(p.rows(), kGrain / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(n);
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[2];
      index.offsets(row, at);
      T* dst = p.dlogits.as<T>() + at[1];
      Acc* out = begin_span(dst, stride, buffer.data());
      if (rows.ignored(row)) {
        std::fill_n(out, n, Acc(0));
      } else {
        const Acc* x = read_span(p.logits.as<const T>() + at[0], 1, n, buffer.data());
        const Acc m = max_of(x, n);
        const RowTerms<Acc> terms(rows, row, x, m);  // before out, which may be x
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) out[i] = exp_fast(x[i] - m);
        const Acc sum = sum_of<Acc>(n, [&](int64_t i) { return out[i]; });
        if (loss) loss[row] = rows.loss(row, m, std::log(sum), terms.own, terms.spread);
        const Acc scale = upstream(row), hit = rows.hit(row), spread = scale * rows.share;
        const Acc factor = rows.factor(row, scale, m, sum);
        if (rows.smoothing == 0) {
          for (int64_t i = 0; i < n; ++i) out[i] *= factor;
        } else {
          DLK_SIMD
          for (int64_t i = 0; i < n; ++i) out[i] = out[i] * factor - spread * w[i];
        }
        out[rows.labels[row]] -= scale * hit;
      }
      finish_span(out, dst, stride, n);
    }
  });
}

template <class T>
void gradients_of_tiles(const CrossEntropyBackward& p, const Rows<T>& rows, Accumulator<T>* loss) {
  using Acc = Accumulator<T>;
  const int64_t n = rows.classes, stride = p.dlogits.strides[p.axis];
  const auto tiles = tiles_of(make_index<2>({&p.logits, &p.dlogits}, ~(1u << p.axis)), n);
  const Upstream<T> upstream(p, p.dloss, rows);
  const Acc* w = rows.weights.of_class.data();
  parallel_for(
      tiles.count(), kGrain / ((n + 1) * tiles.size() + 1), [&](int64_t begin, int64_t end) {
        RowTile<T> tile(n, tiles.size());
        TileOutput<T> result(n, tiles.size());
        std::vector<Acc> spread(tiles.size()), hit(tiles.size());
        std::vector<int32_t> label(tiles.size());  // -1: ignored
        for (int64_t i = begin; i < end; ++i) {
          const auto block = tiles[i];
          tile.load(p.logits.as<const T>() + block.at[0], p.logits.strides[p.axis], tiles.stride(0),
                    block.n);
          Acc* factor = tile.sum_exp(0);
          if (loss) losses_of_tile(rows, tile, block.first, factor, loss);
          for (int64_t r = 0; r < block.n; ++r) {
            const int64_t row = block.first + r;
            label[r] = rows.ignored(row) ? -1 : static_cast<int32_t>(rows.labels[row]);
            const Acc scale = label[r] < 0 ? Acc(0) : upstream(row);
            const Acc own = label[r] < 0 ? Acc(0) : rows.hit(row);
            factor[r] = label[r] < 0 ? Acc(0) : rows.factor(row, scale, tile.max[r], factor[r]);
            spread[r] = scale * rows.share;
            hit[r] = scale * own;
          }
          const Acc *m = tile.max.data(), *s = spread.data(), *h = hit.data();
          const int32_t* t = label.data();
          result.open(p.dlogits.as<T>() + block.at[1], stride, tiles.stride(1), block.n);
          for (int64_t c = 0; c < n; ++c) {
            const Acc *x = tile.element[c], weight = w[c];
            result.put(c, [&](Acc* out) {
              DLK_SIMD
              for (int64_t r = 0; r < block.n; ++r) {
                const Acc own = t[r] == c ? h[r] : Acc(0);
                const Acc v = exp_fast(x[r] - m[r]) * factor[r] - s[r] * weight - own;
                out[r] = t[r] < 0 ? Acc(0) : v;
              }
            });
          }
        }
      });
}

template <class T>
void backward(const CrossEntropyBackward& p) {
  const Rows<T> rows(p);
  std::vector<Accumulator<T>> loss(p.loss ? p.rows() : 0);
  Accumulator<T>* wanted = p.loss ? loss.data() : nullptr;
  if (in_tiles(rows.classes, p.logits.strides[p.axis])) {
    gradients_of_tiles<T>(p, rows, wanted);
  } else {
    gradients_of_rows<T>(p, rows, wanted);
  }
  if (p.loss) reduce<T>(p, rows, loss, p.loss);
}

// ---- Negative log-likelihood -------------------------------------------------------------------

template <class T>
void nll_forward(const NllForward& p) {
  using Acc = Accumulator<T>;
  const Rows<T> rows(p);
  const auto index = make_index<1>({&p.logits}, ~(1u << p.axis));
  const int64_t stride = p.logits.strides[p.axis];
  std::vector<Acc> loss(p.rows());
  parallel_for(p.rows(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (rows.ignored(row)) continue;
      int64_t at[1];
      index.offsets(row, at);
      const T log_p = p.logits.as<const T>()[at[0] + rows.labels[row] * stride];
      loss[row] = -rows.hit(row) * widen<Acc>(log_p);
    }
  });
  reduce<T>(p, rows, loss, p.loss);
}

template <class T>
void nll_backward(const NllBackward& p) {
  using Acc = Accumulator<T>;
  const Rows<T> rows(p);
  const Upstream<T> upstream(p, p.dloss, rows);
  map_spans(
      in_memory_order(make_index<1>({&p.dlogits})),
      [](int64_t n, Acc* v) { std::fill_n(v, n, Acc(0)); }, Out<T>{p.dlogits.as<T>()});
  const auto index = make_index<1>({&p.dlogits}, ~(1u << p.axis));
  const int64_t stride = p.dlogits.strides[p.axis];
  for (int64_t row = 0; row < p.rows(); ++row) {
    if (rows.ignored(row)) continue;
    int64_t at[1];
    index.offsets(row, at);
    const Acc g = -rows.hit(row) * upstream(row);
    p.dlogits.as<T>()[at[0] + rows.labels[row] * stride] = static_cast<T>(g);
  }
}

constexpr Impl<CrossEntropyForward> kForward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const CrossEntropyForward& p, const Launch&) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { forward<T>(p); });
     }},
};
constexpr Impl<CrossEntropyBackward> kBackward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const CrossEntropyBackward& p, const Launch&) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { backward<T>(p); });
     }},
};

constexpr Impl<NllForward> kNllForward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const NllForward& p, const Launch&) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { nll_forward<T>(p); });
     }},
};
constexpr Impl<NllBackward> kNllBackward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const NllBackward& p, const Launch&) {
       dispatch_floating(p.logits.dtype, [&]<class T>() { nll_backward<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<NllForward> cpu_impls<NllForward>() {
  return kNllForward;
}
template <>
ImplList<NllBackward> cpu_impls<NllBackward>() {
  return kNllBackward;
}
template <>
ImplList<CrossEntropyForward> cpu_impls<CrossEntropyForward>() {
  return kForward;
}
template <>
ImplList<CrossEntropyBackward> cpu_impls<CrossEntropyBackward>() {
  return kBackward;
}

}  // namespace dlkern
