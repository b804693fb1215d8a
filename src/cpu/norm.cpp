// Layer norm and RMS norm on the CPU: rows in parallel, each in a buffer of its accumulation type
// that stays in cache. Variance by the corrected two-pass method. Gradients of the weights: each
// block of rows adds up its own, and the blocks are added in order in double; blocks depend on the
// shape alone, so the bits do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/index.h"
#include "core/mixed.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/reduce.h"
#include "cpu/prims/spans.h"
#include "ops/norm.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 16384;  // elements worth a thread

// The elements of a row: one dimension at some stride, nearly always.
struct Row {
  StridedIndex<1> index;
  int64_t inner, stride;

  Row(const Tensor& t, int axis) : index(make_index<1>({&t}, dims_from(axis))) {
    inner = index.ndim ? index.shape[index.ndim - 1] : 1;
    stride = index.ndim ? index.stride[0][index.ndim - 1] : 1;
  }
  bool is_span() const { return index.ndim <= 1; }
  template <class F>
  void for_spans(F&& f) const {
    for (int64_t i = 0; i < index.numel; i += inner) {
      int64_t at[1];
      index.offsets(i, at);
      f(i, at[0]);
    }
  }
  // read_span, begin_span and finish_span for a row.
  template <class T, class Acc>
  const Acc* read(const T* src, Acc* buffer) const {
    if (is_span()) return read_span(src, stride, inner, buffer);
    for_spans([&](int64_t i, int64_t at) { load_span(src + at, stride, inner, buffer + i); });
    return buffer;
  }
  template <class T, class Acc>
  Acc* begin(T* dst, Acc* buffer) const {
    return is_span() ? begin_span(dst, stride, buffer) : buffer;
  }
  template <class T, class Acc>
  void finish(const Acc* computed, T* dst) const {
    if (is_span()) return finish_span(computed, dst, stride, inner);
    for_spans([&](int64_t i, int64_t at) { store_span(computed + i, dst + at, stride, inner); });
  }
};

// All values of a parameter, or `absent` in its place.
template <class T>
std::vector<Accumulator<T>> values_of(const Tensor& t, int64_t n, Accumulator<T> absent) {
  const MixedView<T> view(t);
  std::vector<Accumulator<T>> values(n, absent);
  for (int64_t i = 0; view && i < n; ++i) values[i] = view.load(i);
  return values;
}

template <class T>
void forward(const RowNormForward& p) {
  using Acc = Accumulator<T>;
  const auto rows = make_index<2>({&p.x, &p.y}, dims_below(p.axis));
  const Row x(p.x, p.axis), y(p.y, p.axis);
  const int64_t n = x.index.numel;
  const MixedView<T> mean(p.mean), rstd(p.rstd);
  const std::vector<Acc> weight = values_of<T>(p.weight, n, 1), bias = values_of<T>(p.bias, n, 0);
  parallel_for(rows.numel, kGrain / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(n);
    const Acc *w = weight.data(), *b = bias.data();
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[2];
      rows.offsets(row, at);
      const Acc* v = x.read(p.x.as<const T>() + at[0], buffer.data());
      T* dst = p.y.as<T>() + at[1];
      Acc* out = y.begin(dst, buffer.data());
      // The mean in two parts, center + rest, so that its rounding does not show in x - mean.
      Acc center = 0, rest = 0, variance;
      if (p.rms) {
        variance = sum_of<Acc>(n, [&](int64_t i) { return v[i] * v[i]; }) / n;
      } else {
        center = sum_of<Acc>(n, [&](int64_t i) { return v[i]; }) / n;
        rest = sum_of<Acc>(n, [&](int64_t i) { return v[i] - center; }) / n;
        variance =
            sum_of<Acc>(n, [&](int64_t i) { return (v[i] - center) * (v[i] - center); }) / n -
            rest * rest;
        if (variance < 0) variance = 0;  // by rounding
      }
      const Acc scale = 1 / std::sqrt(variance + static_cast<Acc>(p.eps));
      DLK_SIMD
      for (int64_t i = 0; i < n; ++i) out[i] = (v[i] - center - rest) * scale * w[i] + b[i];
      y.finish(out, dst);
      if (mean) mean.store(row, center + rest);
      if (rstd) rstd.store(row, scale);
    }
  });
}

// The rows whose gradients of the weights are added up together.
struct RowBlocks {
  int64_t rows, size, count;

  explicit RowBlocks(int64_t rows_)
      : rows(rows_), size(std::clamp<int64_t>(rows_ / 64, 8, 256)), count(ceil_div(rows_, size)) {}
};

// target_i = sum over blocks of partial[block][i].
template <class T>
void add_blocks(const std::vector<Accumulator<T>>& partial, int64_t blocks, int64_t n,
                const Tensor& target) {
  const MixedView<T> view(target);
  if (!view) return;
  parallel_for(n, kGrain / (blocks + 1), [&](int64_t begin, int64_t end) {
    std::vector<double> total(end - begin);
    for (int64_t block = 0; block < blocks; ++block) {
      const Accumulator<T>* part = partial.data() + block * n + begin;
      for (int64_t i = 0; i < end - begin; ++i) total[i] += part[i];
    }
    for (int64_t i = begin; i < end; ++i) {
      view.store(i, static_cast<Accumulator<T>>(total[i - begin]));
    }
  });
}

template <class T>
void backward(const RowNormBackward& p) {
  using Acc = Accumulator<T>;
  const auto rows = make_index<3>({&p.dy, &p.x, &p.dx}, dims_below(p.axis));
  const Row dy(p.dy, p.axis), x(p.x, p.axis), dx(p.dx, p.axis);
  const int64_t n = x.index.numel;
  const MixedView<T> mean(p.mean), rstd(p.rstd);
  const std::vector<Acc> weight = values_of<T>(p.weight, n, 1);
  const RowBlocks blocks(rows.numel);
  std::vector<Acc> dweight(p.dweight ? blocks.count * n : 0), dbias(p.dbias ? blocks.count * n : 0);
  parallel_for(blocks.count, kGrain / (n * blocks.size + 1), [&](int64_t first, int64_t last) {
    std::vector<Acc> buffer(2 * n);
    const Acc* w = weight.data();
    for (int64_t row = first * blocks.size; row < std::min(last * blocks.size, blocks.rows);
         ++row) {
      int64_t at[3];
      rows.offsets(row, at);
      const Acc* g = dy.read(p.dy.as<const T>() + at[0], buffer.data());
      const Acc* v = x.read(p.x.as<const T>() + at[1], buffer.data() + n);
      T* dst = p.dx.as<T>() + at[2];
      Acc* out = dx.begin(dst, buffer.data());
      const Acc center = mean.load_or(row, 0), scale = rstd.load(row);
      const auto xhat = [&](int64_t i) { return (v[i] - center) * scale; };
      const Acc along = sum_of<Acc>(n, [&](int64_t i) { return g[i] * w[i] * xhat(i); }) / n;
      const Acc shift = p.rms ? Acc(0) : sum_of<Acc>(n, [&](int64_t i) { return g[i] * w[i]; }) / n;
      if (p.dweight) {
        Acc* sum = &dweight[row / blocks.size * n];
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) sum[i] += g[i] * xhat(i);
      }
      if (p.dbias) {
        Acc* sum = &dbias[row / blocks.size * n];
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) sum[i] += g[i];
      }
      DLK_SIMD
      for (int64_t i = 0; i < n; ++i) out[i] = scale * (g[i] * w[i] - shift - xhat(i) * along);
      dx.finish(out, dst);
    }
  });
  add_blocks<T>(dweight, blocks.count, n, p.dweight);
  add_blocks<T>(dbias, blocks.count, n, p.dbias);
}

constexpr Impl<RowNormForward> kForward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const RowNormForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { forward<T>(p); });
     }},
};
constexpr Impl<RowNormBackward> kBackward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const RowNormBackward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { backward<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<RowNormForward> cpu_impls<RowNormForward>() {
  return kForward;
}
template <>
ImplList<RowNormBackward> cpu_impls<RowNormBackward>() {
  return kBackward;
}

}  // namespace dlkern
