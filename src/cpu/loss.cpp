// Cross entropy on the CPU: rows in parallel, each in a buffer of its accumulation type (rows along
// a strided axis are gathered into it). Losses of the rows are kept and summed in an order that
// depends on their number alone. All labels are checked before anything is written.
#include "ops/loss.h"

#include <cmath>
#include <vector>

#include "core/index.h"
#include "core/mixed.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/vmath.h"

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

template <class T>
void forward(const CrossEntropyForward& p) {
  using Acc = Accumulator<T>;
  const std::vector<int64_t> labels = checked_labels(p);
  const Weights<T> weights(p);
  const auto rows = make_index<1>({&p.logits}, ~(1u << p.axis));
  const int64_t n = p.classes(), stride = p.logits.strides[p.axis];
  const Acc smoothing = static_cast<Acc>(p.smoothing), share = smoothing / n;
  std::vector<Acc> loss(p.rows());
  parallel_for(p.rows(), kGrain / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(n);
    const Acc* w = weights.of_class.data();
    for (int64_t row = begin; row < end; ++row) {
      const int64_t label = labels[row];
      if (label == p.ignore_index) continue;
      int64_t at[1];
      rows.offsets(row, at);
      const Acc* x = read_span(p.logits.as<const T>() + at[0], stride, n, buffer.data());
      const Acc m = max_of(x, n);
      const Acc log_sum = std::log(sum_of<Acc>(n, [&](int64_t i) { return exp_fast(x[i] - m); }));
      loss[row] = (1 - smoothing) * w[label] * (log_sum - (x[label] - m));
      if (smoothing != 0) {
        loss[row] +=
            share * sum_of<Acc>(n, [&](int64_t i) { return w[i] * (log_sum - (x[i] - m)); });
      }
    }
  });
  const MixedView<T> out(p.loss);
  if (p.reduction == DLK_REDUCTION_NONE) {
    for (int64_t row = 0; row < p.rows(); ++row) out.store(row, loss[row]);
    return;
  }
  const Acc sum = sum_of<Acc>(p.rows(), [&](int64_t i) { return loss[i]; });
  out.store(0, p.reduction == DLK_REDUCTION_SUM ? sum : sum / weights.total(p, labels));
}

template <class T>
void backward(const CrossEntropyBackward& p) {
  using Acc = Accumulator<T>;
  const std::vector<int64_t> labels = checked_labels(p);
  const Weights<T> weights(p);
  const auto rows = make_index<2>({&p.logits, &p.dlogits}, ~(1u << p.axis));
  const int64_t n = p.classes();
  const int64_t stride = p.logits.strides[p.axis], out_stride = p.dlogits.strides[p.axis];
  const Acc smoothing = static_cast<Acc>(p.smoothing), share = smoothing / n;
  const MixedView<T> dloss(p.dloss);
  const bool per_row = p.reduction == DLK_REDUCTION_NONE;
  const Acc over = p.reduction == DLK_REDUCTION_MEAN ? weights.total(p, labels) : Acc(1);
  parallel_for(p.rows(), kGrain / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(n);
    Acc* x = buffer.data();
    const Acc* w = weights.of_class.data();
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[2];
      rows.offsets(row, at);
      const int64_t label = labels[row];
      if (label == p.ignore_index) {
        std::fill_n(x, n, Acc(0));
      } else {
        load_span(p.logits.as<const T>() + at[0], stride, n, x);
        const Acc scale = dloss.load(per_row ? row : 0) / over;
        const Acc m = max_of(x, n);
        for (int64_t i = 0; i < n; ++i) x[i] = exp_fast(x[i] - m);
        const Acc sum = sum_of<Acc>(n, [&](int64_t i) { return x[i]; });
        const Acc hit = (1 - smoothing) * w[label];
        const Acc factor = scale * (hit + share * weights.all) / sum;
        for (int64_t i = 0; i < n; ++i) x[i] *= factor;
        if (smoothing != 0) {
          for (int64_t i = 0; i < n; ++i) x[i] -= scale * share * w[i];
        }
        x[label] -= scale * hit;
      }
      store_span(x, p.dlogits.as<T>() + at[1], out_stride, n);
    }
  });
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

}  // namespace

template <>
ImplList<CrossEntropyForward> cpu_impls<CrossEntropyForward>() {
  return kForward;
}
template <>
ImplList<CrossEntropyBackward> cpu_impls<CrossEntropyBackward>() {
  return kBackward;
}

}  // namespace dlkern
