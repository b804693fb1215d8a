// Layer norm and RMS norm on the CPU: rows in parallel, each in a buffer of its accumulation type
// that stays in cache. Variance by the corrected two-pass method. Gradients of the weights: each
// block of rows adds up its own, and the blocks are added in order in double; blocks depend on the
// shape alone, so the bits do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/float8.h"
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

// All values of a parameter with `offset` added, or `absent` in their place.
template <class T>
std::vector<Accumulator<T>> values_of(const Tensor& t, int64_t n, Accumulator<T> absent,
                                      double offset = 0) {
  const MixedView<T> view(t);
  std::vector<Accumulator<T>> values(n, absent);
  for (int64_t i = 0; view && i < n; ++i) values[i] = view.load(i) + Accumulator<T>(offset);
  return values;
}

// sum[i] = x[i] + residual[i], rounded to T.
template <class T>
void add_residual(int64_t n, const Accumulator<T>* x, const Accumulator<T>* residual,
                  Accumulator<T>* sum) {
  DLK_SIMD
  for (int64_t i = 0; i < n; ++i) sum[i] = x[i] + residual[i];
  if constexpr (!std::is_same_v<T, Accumulator<T>>) {
    T rounded[kSpan];
    for (int64_t i = 0; i < n; i += kSpan) {
      const int64_t some = std::min(kSpan, n - i);
      store_span(sum + i, rounded, 1, some);
      load_span(rounded, 1, some, sum + i);
    }
  }
}

// y = v * scale, float8, for the row that begins at y; returns max |v|.
template <class Out, class Acc>
float store_float8(const Row& row, const Acc* v, float scale, Out* y) {
  float largest = 0;
  row.for_spans([&](int64_t i, int64_t at) {
    for (int64_t k = 0; k < row.inner; ++k) {
      const float value = static_cast<float>(v[i + k]), size = std::fabs(value);
      if (is_better<false>(size, largest)) largest = size;
      y[at + k * row.stride] = Out(value * scale);
    }
  });
  return largest;
}

// Out: T, Float8E4M3 or Float8E5M2.
template <class T, class Out>
void forward(const RowNormForward& p) {
  using Acc = Accumulator<T>;
  constexpr bool kFloat8 = sizeof(Out) == 1;
  const auto rows = make_index<4>({&p.x, &p.residual, &p.residual_out, &p.y}, dims_below(p.axis));
  const Row x(p.x, p.axis), residual(p.residual ? p.residual : p.x, p.axis),
      sum(p.residual_out ? p.residual_out : p.x, p.axis), y(p.y, p.axis);
  const int64_t n = x.index.numel;
  const MixedView<T> mean(p.mean), rstd(p.rstd);
  const std::vector<Acc> weight = values_of<T>(p.weight, n, 1, p.weight_offset),
                         bias = values_of<T>(p.bias, n, 0);
  const float scale_out = p.scale_out ? *p.scale_out.as<const float>() : 1.0f;
  std::vector<float> largest(p.amax ? rows.numel : 0);
  parallel_for(rows.numel, kGrain / (n + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(n), more(p.residual ? n : 0);
    const Acc *w = weight.data(), *b = bias.data();
    for (int64_t row = begin; row < end; ++row) {
      int64_t at[4];
      rows.offsets(row, at);
      const Acc* v = x.read(p.x.as<const T>() + at[0], buffer.data());
      if (p.residual) {
        const Acc* r = residual.read(p.residual.as<const T>() + at[1], more.data());
        add_residual<T>(n, v, r, buffer.data());
        v = buffer.data();
      }
      if (p.residual_out) sum.finish(v, p.residual_out.as<T>() + at[2]);
      Out* dst = p.y.as<Out>() + at[3];
      Acc* out = buffer.data();
      if constexpr (!kFloat8) out = y.begin(dst, buffer.data());
      // The mean in two parts, center + rest, so that its rounding does not show in x - mean.
      Acc center = 0, rest = 0, variance;
      if (p.rms) {
        variance = sum_of<Acc>(n, [&](int64_t i) { return v[i] * v[i]; }) / n;
      } else {
        center = sum_of<Acc>(n, [&](int64_t i) { return v[i]; }) / n;
        const auto sums = two_sums_of<Acc>(
            n, [&](int64_t i) { return v[i] - center; },
            [&](int64_t i) { return (v[i] - center) * (v[i] - center); });
        rest = sums.a / n;
        variance = sums.b / n - rest * rest;
        if (variance < 0) variance = 0;  // by rounding
      }
      const Acc scale = 1 / std::sqrt(variance + static_cast<Acc>(p.eps));
      DLK_SIMD
      for (int64_t i = 0; i < n; ++i) out[i] = (v[i] - center - rest) * scale * w[i] + b[i];
      if constexpr (kFloat8) {
        const float size = store_float8(y, out, scale_out, dst);
        if (p.amax) largest[row] = size;
      } else {
        y.finish(out, dst);
      }
      if (mean) mean.store(row, center + rest);
      if (rstd) rstd.store(row, scale);
    }
  });
  if (p.amax) {
    *p.amax.as<float>() = rows.numel ? max_of(largest.data(), rows.numel) : 0.0f;
  }
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
  const auto rows = make_index<4>({&p.dy, &p.x, &p.dresidual, &p.dx}, dims_below(p.axis));
  const Row dy(p.dy, p.axis), x(p.x, p.axis), dx(p.dx, p.axis),
      dresidual(p.dresidual ? p.dresidual : p.x, p.axis);
  const int64_t n = x.index.numel;
  const MixedView<T> mean(p.mean), rstd(p.rstd);
  const std::vector<Acc> weight = values_of<T>(p.weight, n, 1, p.weight_offset);
  const RowBlocks blocks(rows.numel);
  std::vector<Acc> dweight(p.dweight ? blocks.count * n : 0), dbias(p.dbias ? blocks.count * n : 0);
  parallel_for(blocks.count, kGrain / (n * blocks.size + 1), [&](int64_t first, int64_t last) {
    std::vector<Acc> buffer(2 * n), more(p.dresidual ? n : 0);
    const Acc* w = weight.data();
    for (int64_t row = first * blocks.size; row < std::min(last * blocks.size, blocks.rows);
         ++row) {
      int64_t at[4];
      rows.offsets(row, at);
      const Acc* g = dy.read(p.dy.as<const T>() + at[0], buffer.data());
      const Acc* v = x.read(p.x.as<const T>() + at[1], buffer.data() + n);
      T* dst = p.dx.as<T>() + at[3];
      Acc* out = dx.begin(dst, buffer.data());
      const Acc center = mean.load_or(row, 0), scale = rstd.load(row);
      const auto xhat = [&](int64_t i) { return (v[i] - center) * scale; };
      const auto sums = two_sums_of<Acc>(
          n, [&](int64_t i) { return g[i] * w[i] * xhat(i); },
          [&](int64_t i) { return g[i] * w[i]; });
      const Acc along = sums.a / n, shift = p.rms ? Acc(0) : sums.b / n;
      Acc* of_weight = p.dweight ? &dweight[row / blocks.size * n] : nullptr;
      Acc* of_bias = p.dbias ? &dbias[row / blocks.size * n] : nullptr;
      if (of_weight && of_bias) {
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) of_weight[i] += g[i] * xhat(i), of_bias[i] += g[i];
      } else if (of_weight) {
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) of_weight[i] += g[i] * xhat(i);
      } else if (of_bias) {
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) of_bias[i] += g[i];
      }
      if (p.dresidual) {
        const Acc* r = dresidual.read(p.dresidual.as<const T>() + at[2], more.data());
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) {
          out[i] = scale * (g[i] * w[i] - shift - xhat(i) * along) + r[i];
        }
      } else {
        DLK_SIMD
        for (int64_t i = 0; i < n; ++i) out[i] = scale * (g[i] * w[i] - shift - xhat(i) * along);
      }
      dx.finish(out, dst);
    }
  });
  add_blocks<T>(dweight, blocks.count, n, p.dweight);
  add_blocks<T>(dbias, blocks.count, n, p.dbias);
}

constexpr Impl<RowNormForward> kForward[] = {
    {"cpu_row", supports_all, nullptr,
     [](const RowNormForward& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() {
         if (p.y.dtype == DType::kFloat8E4M3) return forward<T, Float8E4M3>(p);
         if (p.y.dtype == DType::kFloat8E5M2) return forward<T, Float8E5M2>(p);
         forward<T, T>(p);
       });
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
